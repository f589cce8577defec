"""The claim: the adopted stack as a whole against the original, on fresh randomised pairs.

The interval comes from these pairs alone; no screening or verification estimate is ever quoted.
Lengths differ from pair to pair, so that the claim also holds as the slope of total wall time and
un-amortised at the lengths that were run.
"""

from __future__ import annotations

import math
from statistics import fmean, median

from rsi_tui.evaluator.blocks import BlockOutcome, BlockPlan, Slot, run_block
from rsi_tui.evaluator.claim import hodges_lehmann, slope_ratio, slow_run_bound
from rsi_tui.evaluator.draws import Draw, draw_steps, keep_or_draw, shuffled
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.verify import validate_pair
from rsi_tui.journal.events import Claimed
from rsi_tui.journal.facts import AttributionFacts, CandidateFacts, ClaimFacts, InvariantFacts, TrialFacts

CONFIDENCE = 0.99
SLOPE_TOLERANCE = 0.10
"""the slope of total wall may fall short of the claimed ratio by this fraction, beyond the interval's low end"""


def prove(lab: Lab, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...]) -> ClaimFacts:
    """Run the pairs and make the claim; `proven` is False, with reasons, when it does not hold."""
    pairs: list[tuple[TrialFacts, TrialFacts]] = []
    invariants: dict[str, InvariantFacts] = {}
    reasons: list[str] = []
    for number in range(lab.contract.proof.final_pairs):
        outcome = _pair(lab, f"{step}/p{number + 1}", stack, judged=number == 0)
        for found in outcome.invariants.values():
            invariants.update({fact.name: fact for fact in found})
        base, ours = outcome.of(lab.original)[0], outcome.of(stack)[0]
        if outcome.void or base.score_s is None or ours.score_s is None:
            reasons.append(f"pair {number + 1} gave no pair of times: {outcome.void or ours.detail or base.detail}")
        else:
            pairs.append((base, ours))
    made = lab.steps.once(
        step, Claimed, lambda: Claimed(claim=_claim(stack, pairs, invariants, reasons, attribution))
    )
    return made.claim


def _pair(lab: Lab, step: str, stack: CandidateFacts, judged: bool) -> BlockOutcome:
    block = step.replace("/", "-")
    judged = judged and lab.contract.invariants.weights == "equivalent"
    draw, commitment = keep_or_draw(
        lab.vault,
        block,
        lambda: Draw(
            seed=lab.randbelow(2**31),
            steps=draw_steps(lab.contract.objective, lab.randbelow),
            order=shuffled(("A", "B"), lab.randbelow),
        ),
    )
    twin = (Slot("twin", lab.original, extra=lab.twin),) if lab.twin else ()
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="claim",
        incumbent=lab.original,
        candidates=(stack,),
        setup=(Slot("initial", lab.original, zero_steps=True), *twin, Slot("warmup", lab.original)) if judged else (),
        timed=tuple(Slot("candidate", stack) if x == "B" else Slot("incumbent", lab.original) for x in draw.order),
        draw=draw,
        commitment=commitment,
        kind="claim",
        sealed=True,
        judge=judged,
    )
    validate = judged and lab.validation is not None
    judge = CheckpointJudge(lab, active=judged, validate=validate)
    outcome = run_block(lab, plan, judge)
    if validate:
        for trial, fact in validate_pair(lab, step, judge).items():
            outcome.invariants[trial] = (*outcome.invariants.get(trial, ()), fact)
    return outcome


def _claim(
    stack: CandidateFacts,
    pairs: list[tuple[TrialFacts, TrialFacts]],
    invariants: dict[str, InvariantFacts],
    reasons: list[str],
    attribution: tuple[AttributionFacts, ...],
) -> ClaimFacts:
    base, ours = [a for a, _ in pairs], [b for _, b in pairs]
    ratios = [math.log((a.score_s or 0) / (b.score_s or 1)) for a, b in pairs]
    speedup = hodges_lehmann(ratios, CONFIDENCE)
    walls = fmean(a.wall_s for a in base) / fmean(b.wall_s for b in ours)
    slope = slope_ratio([a.steps for a in base], [a.wall_s for a in base], [b.wall_s for b in ours])
    reasons = [*reasons]
    if speedup.low <= 1:
        reasons.append("the interval does not lie above 1")
    if walls <= 1:
        reasons.append("total wall time, nothing amortised, does not win at the lengths that were run")
    if slope is not None and slope < min(speedup.low, speedup.estimate) * (1 - SLOPE_TOLERANCE):
        reasons.append(f"the slope of total wall over length says {slope:.2f}x, less than the step times claim")
    reasons += [f"{fact.name} is broken" for fact in invariants.values() if fact.status == "broken"]
    return ClaimFacts(
        candidate=stack.id,
        pairs=len(pairs),
        baseline_step_s=median(a.step_s for a in base if a.step_s is not None),
        candidate_step_s=median(b.step_s for b in ours if b.step_s is not None),
        speedup=speedup,
        total_wall_ratio=walls,
        slope_ratio=slope,
        baseline_peak_bytes=max((a.peak_bytes for a in base if a.peak_bytes is not None), default=None),
        candidate_peak_bytes=max((b.peak_bytes for b in ours if b.peak_bytes is not None), default=None),
        slow_run_bound=slow_run_bound([b.score_s or 0 for b in ours], [a.score_s or 0 for a in base]),
        invariants=tuple(invariants.values()),
        attribution=attribution,
        proven=not reasons,
        reasons=tuple(reasons),
        trials=tuple(f.id for pair in pairs for f in pair),
    )

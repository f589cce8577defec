"""The claim: the adopted stack as a whole against the original, on fresh randomised pairs.

The interval comes from these pairs alone; no screening or verification estimate is ever quoted.
Lengths differ from pair to pair, so that the claim also holds as the slope of total wall time and
un-amortised at the lengths that were run.
"""

from __future__ import annotations

import math
from statistics import fmean, median

from rsi_tui.evaluator.blocks import BlockOutcome, BlockPlan, Slot, run_block
from rsi_tui.evaluator.claim import fewest_pairs, hodges_lehmann, slope_ratio, slow_run_bound
from rsi_tui.evaluator.draws import Draw, draw_steps, keep_or_draw, shuffled
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.verify import validate_pair
from rsi_tui.journal.events import Claimed
from rsi_tui.journal.facts import AttributionFacts, CandidateFacts, ClaimFacts, Interval, InvariantFacts, TrialFacts

CONFIDENCE = 0.99
MAX_VOID = 2
"""pairs that a fault of the host may void"""
SLOPE_TOLERANCE = 0.10
"""the slope of total wall may fall short of the claimed ratio by this fraction, beyond the interval's low end"""


def prove(lab: Lab, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...]) -> ClaimFacts:
    """Run the pairs and make the claim; `proven` is False, with reasons, when it does not hold."""
    pairs: list[tuple[TrialFacts, TrialFacts]] = []
    invariants: dict[str, InvariantFacts] = {}
    reasons: list[str] = []
    number = voided = 0
    while len(pairs) < lab.contract.proof.final_pairs and voided <= MAX_VOID:
        number += 1
        outcome = _pair(lab, f"{step}/p{number}", stack, judged=number == 1)
        for found in outcome.invariants.values():
            invariants.update({fact.name: fact for fact in found})
        base, ours = outcome.of(lab.original)[0], outcome.of(stack)[0]
        if base.score_s is not None and ours.score_s is not None and not outcome.void:
            pairs.append((base, ours))
            continue
        voided += 1
        if ours.outcome not in ("ok", "not_measured", "cancelled"):
            reasons.append(f"run {ours.id} of the stack ended as {ours.outcome}: {ours.detail}")
            break
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
    validate = judged and bool(lab.holdouts)
    judge = CheckpointJudge(lab, active=judged, validate=validate)
    outcome = run_block(lab, plan, judge)
    if validate:
        for trial, fact in validate_pair(lab, step, "claim", judge).items():
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
    enough = len(pairs) >= fewest_pairs(CONFIDENCE)
    ratios = [math.log((b.score_s or 1) / (a.score_s or 1)) for a, b in pairs]
    speedup = hodges_lehmann(ratios, CONFIDENCE) if enough else None
    walls = fmean(a.wall_s for a in base) / fmean(b.wall_s for b in ours) if pairs else None
    slope = _slope(base, ours)
    reasons = [*reasons, *_shortfalls(speedup, walls, slope, len(pairs))]
    reasons += [f"{fact.name} is broken: {fact.how}" for fact in invariants.values() if fact.status == "broken"]
    return ClaimFacts(
        candidate=stack.id,
        pairs=len(pairs),
        baseline_step_s=median(a.step_s for a in base if a.step_s is not None) if pairs else None,
        candidate_step_s=median(b.step_s for b in ours if b.step_s is not None) if pairs else None,
        speedup=speedup,
        total_wall_ratio=walls,
        slope_ratio=slope,
        baseline_peak_bytes=max((a.peak_bytes for a in base if a.peak_bytes is not None), default=None),
        candidate_peak_bytes=max((b.peak_bytes for b in ours if b.peak_bytes is not None), default=None),
        slow_run_bound=slow_run_bound([b.score_s or 0 for b in ours], [a.score_s or 0 for a in base]) if pairs else 1.0,
        invariants=tuple(invariants.values()),
        attribution=attribution,
        proven=not reasons,
        reasons=tuple(reasons),
        trials=tuple(f.id for pair in pairs for f in pair),
    )


def _slope(base: list[TrialFacts], ours: list[TrialFacts]) -> float | None:
    """Slope of total wall over length, baseline / stack; None when all runs had one length."""
    lengths = [float(a.steps) for a in base]
    if len(set(lengths)) < 2:
        return None
    return slope_ratio(lengths, [a.wall_s for a in base], lengths, [b.wall_s for b in ours])


def _shortfalls(speedup: Interval | None, walls: float | None, slope: float | None, pairs: int) -> list[str]:
    """Why a claim does not hold, as far as times say."""
    if speedup is None:
        return [f"only {pairs} pairs count; a {CONFIDENCE:.0%} interval needs {fewest_pairs(CONFIDENCE)}"]
    found = []
    if speedup.low <= 1:
        found.append("the interval does not lie above 1")
    if walls is not None and walls <= 1:
        found.append("total wall time, nothing amortised, does not win at the lengths that were run")
    if slope is not None and slope < speedup.low * (1 - SLOPE_TOLERANCE):
        found.append(f"the slope of total wall over length says {slope:.2f}x, less than the step times claim")
    return found

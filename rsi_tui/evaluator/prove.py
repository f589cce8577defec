"""The claim: the adopted stack as a whole against the original, on fresh randomised pairs.

The interval comes from these pairs alone; no screening or verification estimate is ever quoted.
Lengths differ from pair to pair, so that the claim also holds as the slope of total wall time and in
total wall, nothing amortised. The first pair that counts is also compared and validated, on a hidden
set of the claim's own; without that nothing is claimed. Where updates need not be the same, the stack must
learn as well as the original over fresh seeds, validated on that set. A stack that also needs less memory is
held to that in runs of its own; a saving that is not proven leaves the claim of time as it is. A stack that no
verification has seen must also show here what a verification asks of every other adoption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, median

from rsi_tui.evaluator.blocks import (
    MAX_VOID,
    BlockOutcome,
    BlockPlan,
    Slot,
    counts_against,
    draw_block,
    no_time,
    run_block,
    setup_slots,
)
from rsi_tui.evaluator.claim import fewest_pairs, hodges_lehmann, slow_run_bound
from rsi_tui.evaluator.draws import shuffled
from rsi_tui.evaluator.endurance import endure
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, gaps, highest_peak, scores, slope_of_walls, total_wall_holds, worst_of
from rsi_tui.evaluator.noninferior import check_noninferior
from rsi_tui.evaluator.one_step import check_one_step
from rsi_tui.evaluator.saving import prove_saving
from rsi_tui.evaluator.slow_runs import judge_slow_runs
from rsi_tui.evaluator.states import has_states
from rsi_tui.journal.events import Claimed
from rsi_tui.journal.facts import (
    AttributionFacts,
    CandidateFacts,
    ClaimFacts,
    InvariantFacts,
    MemorySavingFacts,
    TrialFacts,
)

CONFIDENCE = 0.99
SLOPE_TOLERANCE = 0.10
"""the slope of total wall may fall short of the interval's low end by this fraction"""


@dataclass
class _Pairs:
    """The pairs that count, baseline and stack in the same order, and what else was found."""

    base: list[TrialFacts] = field(default_factory=list)
    ours: list[TrialFacts] = field(default_factory=list)
    invariants: tuple[InvariantFacts, ...] = ()
    reasons: list[str] = field(default_factory=list)
    """what is wrong with the stack itself"""
    lacking: list[str] = field(default_factory=list)
    """what could not be shown, through no fault of the stack"""
    voided: int = 0


def prove(
    lab: Lab, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...], *, verified: bool = True
) -> ClaimFacts:
    """Run the pairs and make the claim; `proven` is False, with reasons, when it does not hold.

    `verified`: was this very stack adopted by a verification? Else its claim has to be that as well.
    """
    pairs = _Pairs()
    number = 0
    while len(pairs.base) < lab.contract.proof.final_pairs and pairs.voided <= MAX_VOID and not pairs.reasons:
        number += 1
        _take(pairs, _pair(lab, f"{step}/p{number}", stack, judged=lab.compares and not pairs.invariants), lab.original, stack)
    made = lab.steps.once(step, Claimed, lambda: Claimed(claim=_concluded(lab, step, stack, pairs, attribution, verified)))
    return made.claim


def _concluded(
    lab: Lab, step: str, stack: CandidateFacts, pairs: _Pairs, attribution: tuple[AttributionFacts, ...], verified: bool = True
) -> ClaimFacts:
    """The claim, after what it needs besides the pairs; where they were in vain nothing more is run."""
    promising = not pairs.reasons and len(pairs.base) >= fewest_pairs(CONFIDENCE)
    if promising and not lab.compares:
        checked = check_noninferior(lab, f"{step}/seeds", stack, lab.original, "claim")
        _add(pairs, checked)
        pairs.lacking += [checked.trouble] if checked.trouble else []
    memory, sound = None, promising and not pairs.reasons and not pairs.lacking
    if sound and (found := prove_saving(lab, f"{step}/memory", stack, lab.original, pairs.ours, pairs.base, "claim")):
        memory, checked = found
        _add(pairs, checked)
    made = _claim(lab, stack, pairs, attribution, memory)
    if made.proven and not verified:
        _verify_as_well(lab, step, stack, pairs, made)
        made = _claim(lab, stack, pairs, attribution, memory)
    return made


def _verify_as_well(lab: Lab, step: str, stack: CandidateFacts, pairs: _Pairs, made: ClaimFacts) -> None:
    """What a verification asks besides, the first that fails decides: the margin, single updates, no rare disasters."""
    margin = lab.contract.objective.margin
    if made.speedup is None or made.speedup.low <= 1 / (1 - margin):
        pairs.lacking.append(f"the interval does not lie above the margin of {100 * margin:.1f} %, and no verification has seen this stack")
        return
    if has_states(lab):
        checked = check_one_step(lab, f"{step}/one-step", stack)
        _add(pairs, checked)
        pairs.lacking += [checked.trouble] if checked.trouble else []
    if not pairs.reasons and not pairs.lacking:
        why_not, _ = endure(lab, f"{step}/endurance", stack, lab.original, pairs.base)
        pairs.reasons += [why_not] if why_not else []


def _add(pairs: _Pairs, checked: Checked) -> None:
    """Take further invariants in: what is broken, or failed, is wrong with the stack itself."""
    pairs.reasons += [f"{fact.name} is broken: {fact.how}" for fact in checked.invariants if fact.status == "broken"]
    pairs.reasons += [checked.failed] if checked.failed else []
    pairs.invariants = worst_of((*pairs.invariants, *checked.invariants))


def _take(pairs: _Pairs, outcome: BlockOutcome, original: CandidateFacts, stack: CandidateFacts) -> None:
    """Add a pair that counts; a fault of the host is counted, a run of the stack that failed ends the claim.

    What is broken counts in a void pair too; what held there shows nothing.
    """
    found = tuple(fact for facts in outcome.invariants.values() for fact in facts)
    pairs.reasons += [f"{fact.name} is broken: {fact.how}" for fact in found if fact.status == "broken"]
    base, ours = outcome.of(original), outcome.of(stack)
    if outcome.void:
        pairs.voided += 1
    elif failed := next((f for f in ours if counts_against(f)), None):
        pairs.reasons.append(f"run {failed.id} of the stack has no time ({failed.outcome}): {no_time(failed)}")
    else:
        pairs.base += base
        pairs.ours += ours
    pairs.invariants = worst_of((*pairs.invariants, *(f for f in found if f.status == "broken" or not outcome.void)))


def _pair(lab: Lab, step: str, stack: CandidateFacts, judged: bool) -> BlockOutcome:
    block, draw, commitment = draw_block(lab, step, lambda: shuffled(("A", "B"), lab.randbelow))
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="claim",
        kind="claim",
        incumbent=lab.original,
        candidates=(stack,),
        setup=setup_slots(lab, lab.original) if judged else (),
        timed=tuple(Slot("candidate", stack) if x == "B" else Slot("incumbent", lab.original) for x in draw.order),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=judged, holdout="claim" if judged and lab.holdouts else ""),
        sealed=True,
    )
    return run_block(lab, plan)


def _claim(
    lab: Lab,
    stack: CandidateFacts,
    pairs: _Pairs,
    attribution: tuple[AttributionFacts, ...],
    memory: MemorySavingFacts | None,
) -> ClaimFacts:
    base, ours = pairs.base, pairs.ours
    enough = len(base) >= fewest_pairs(CONFIDENCE)
    ratios = [math.log(b / a) for a, b in zip(scores(base), scores(ours), strict=True)]
    speedup = hodges_lehmann(ratios, CONFIDENCE) if enough else None
    slope = slope_of_walls(base, ours)
    reasons = [*pairs.reasons, *pairs.lacking, *_shortfalls(lab, pairs)]
    if speedup is not None:
        reasons += ["the interval does not lie above 1"] if speedup.low <= 1 else []
        reasons += _slope_shortfall(slope, speedup.low)
        reasons += [wall] if (wall := total_wall_holds(base, ours)) else []
        slow = judge_slow_runs(lab.runs[stack.id], scores(base), lab.contract.proof.max_slow_rate)
        reasons += [slow.reason] if slow.decision == "refuted" else []
    return ClaimFacts(
        candidate=stack.id,
        pairs=len(base),
        baseline_step_s=median(a.step_s for a in base if a.step_s is not None) if base else None,
        candidate_step_s=median(b.step_s for b in ours if b.step_s is not None) if base else None,
        speedup=speedup,
        total_wall_ratio=fmean(a.total_s for a in base) / fmean(b.total_s for b in ours) if base else None,
        slope_ratio=slope,
        baseline_peak_bytes=highest_peak(base),
        candidate_peak_bytes=highest_peak(ours),
        memory=memory,
        slow_run_bound=slow_run_bound(scores(ours), scores(base)) if base else 1.0,
        invariants=(*pairs.invariants, *gaps(lab, [*base, *ours])),
        attribution=attribution,
        proven=not reasons,
        reasons=tuple(dict.fromkeys(reasons)),
        refuted="; ".join(dict.fromkeys(pairs.reasons)),
        trials=tuple(f.id for pair in zip(base, ours, strict=True) for f in pair),
    )


def _shortfalls(lab: Lab, pairs: _Pairs) -> list[str]:
    """Evidence that is missing; it counts against the claim."""
    found = []
    if pairs.voided > MAX_VOID:
        found.append(f"{pairs.voided} pairs did not count for faults of the host")
    if len(pairs.base) < fewest_pairs(CONFIDENCE):
        found.append(f"only {len(pairs.base)} pairs count; a {100 * CONFIDENCE:.0f} % interval needs {fewest_pairs(CONFIDENCE)}")
    if (lab.compares or lab.holdouts) and not pairs.invariants:
        found.append("no checkpoint of the stack was compared or validated")
    return found


def _slope_shortfall(slope: float | None, low: float) -> list[str]:
    if slope is None:
        return ["the slope of total wall over length could not be measured"]
    if slope < low * (1 - SLOPE_TOLERANCE):
        return [f"the slope of total wall over length says {slope:.2f}x, less than the step times claim"]
    return []

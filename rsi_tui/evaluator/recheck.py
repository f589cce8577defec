"""Does a calibration of a few hours ago still hold? Two fresh A/A pairs of the unchanged program tell.

It holds when each pair differs by no more than the noise that was measured allows, the program is as fast as
it was then, and the unchanged program stays within the bands of its own learned update. Then noise and bands
are taken over, the fresh differences added to the old ones; else the machine is calibrated anew. No error
rate rests on this: the scale decides power alone, and a band that no longer fits would have been left by the
fresh pair. Whether a calibration may be asked about at all (same terms, base, machine, version, age) is
the caller's to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rsi_tui.evaluator.bands import judge
from rsi_tui.evaluator.blocks import BlockOutcome, BlockPlan, Slot, draw_block, run_block, setup_slots
from rsi_tui.evaluator.eprocess import choose_plan
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.noise import RECENT, pair_scale, run_cv, smallest_provable
from rsi_tui.journal.events import Calibrated
from rsi_tui.journal.facts import NoiseFacts

FRESH_PAIRS = 2
APART_SCALES = 3.0
"""pair scales that two fresh runs may lie apart: four standard deviations of normal noise"""
LEVEL_SCALES = 5.0
"""pair scales that the fresh runs together may have moved since"""
LEVEL_FLOOR = 0.05
"""log change of the level that is allowed in any case: a machine is not the same at every hour"""


@dataclass(frozen=True)
class Known:
    """A calibration that was made under the same conditions before."""

    calibrated: Calibrated
    origin: str
    """campaign or evaluation that made it"""
    measured_at: str
    """UTC, ISO 8601"""
    log_level: float
    """mean log score of its A/A runs, the score in seconds"""


def recheck(lab: Lab, step: str, known: Known, alpha: float) -> Calibrated | None:
    """Take a calibration over when fresh pairs agree with it, and set it on the lab; None when they do not.

    `alpha` is the error probability of the campaign, for the smallest effect that can be proven.
    """
    scale = known.calibrated.noise.pair_scale
    lab.rounding = not known.calibrated.no_rounding
    pairs: list[tuple[float, float]] = []
    for number in range(FRESH_PAIRS):
        outcome = _pair(lab, f"{step}/pair{number}", judged=number == 0)
        first, second = (facts.score_s for facts in outcome.timed) if len(outcome.timed) == 2 else (None, None)
        if outcome.void or first is None or second is None:
            return None
        if number == 0 and not _within(lab, outcome, known.calibrated):
            return None
        pairs.append((first, second))
    if not agrees(pairs, scale, known.log_level):
        return None
    noise = _joined(lab, known.calibrated.noise, pairs, alpha)
    return known.calibrated.model_copy(
        update={"noise": noise, "origin": known.origin, "measured_at": known.measured_at}
    )


def agrees(pairs: Sequence[tuple[float, float]], scale: float, log_level: float) -> bool:
    """Do fresh A/A pairs (scores in seconds) fit the scale and the mean log score of a calibration?"""
    apart = max(abs(math.log(first / second)) for first, second in pairs)
    moved = abs(fmean(math.log(score) for pair in pairs for score in pair) - log_level)
    return apart <= APART_SCALES * scale and moved <= max(LEVEL_SCALES * scale, LEVEL_FLOOR)


def _pair(lab: Lab, step: str, judged: bool) -> BlockOutcome:
    """Two runs of the unchanged program; the first pair compares checkpoints and tries the hidden validation."""
    block, draw, commitment = draw_block(lab, step, lambda: ("A", "A"))
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="calibration",
        kind="calibration",
        incumbent=lab.original,
        candidates=(lab.original,),
        setup=setup_slots(lab, lab.original) if judged else (),
        timed=(Slot("incumbent", lab.original), Slot("incumbent", lab.original)),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=judged and lab.compares, probe=judged),
    )
    return run_block(lab, plan)


def _within(lab: Lab, outcome: BlockOutcome, calibrated: Calibrated) -> bool:
    """Does the unchanged program stay within its own bands?"""
    if not lab.compares:
        return True
    reports, arms = outcome.plan.judge.reports, outcome.plan.judge.arms
    twin = next((reports[trial] for trial, arm in arms.items() if arm == "twin"), None)
    own = [report for trial, report in reports.items() if arms[trial] == "incumbent"]
    found = (fact for report in own for fact in judge(report, calibrated.bands, lab.contract, twin=twin))
    return bool(own) and all(fact.status == "held" for fact in found)


def _joined(lab: Lab, noise: NoiseFacts, pairs: Sequence[tuple[float, float]], alpha: float) -> NoiseFacts:
    """The noise with the fresh differences added."""
    differences = (*noise.differences, *(math.log(first / second) for first, second in pairs))[-RECENT:]
    scale, margin = pair_scale(differences), lab.contract.objective.margin
    share = alpha / lab.contract.proof.max_verifications
    plan = choose_plan(share, 0.0, scale, margin)
    return noise.model_copy(
        update={
            "pair_scale": scale,
            "run_cv": run_cv([(math.exp(difference), 1.0) for difference in differences]),
            "pairs": len(differences),
            "differences": differences,
            "smallest_provable": smallest_provable(scale, share, plan.arm_size, plan.max_blocks, margin),
        }
    )

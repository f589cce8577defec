"""The baseline: noise of this machine by A/A pairs, and bands of the invariants by harmless changes.

Each pair is a block of two runs of the unchanged program with a seed and length of its own. The
first pair also runs zero steps, the bf16 twin and every harmless perturbation of the contract: what
those move in the learned update is what no honest change can be blamed for; and it tries the hidden
validation, which must tell the trained weights from those of zero steps. A fault of the host voids a pair, twice
at the most; then the engine ends, and one that resumes tries it again.
"""

from __future__ import annotations

import math

from rsi_tui.errors import ContractError, RsiError
from rsi_tui.evaluator.bands import calibrate
from rsi_tui.evaluator.blocks import (
    TWIN_PATIENCE,
    BlockOutcome,
    BlockPlan,
    Slot,
    draw_block,
    run_block,
    setup_slots,
    until_it_counts,
)
from rsi_tui.evaluator.eprocess import choose_plan
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import HostFault, Lab
from rsi_tui.evaluator.noise import drift, pair_scale, run_cv, smallest_provable
from rsi_tui.evaluator.one_step import calibrate_one_step
from rsi_tui.evaluator.trajectories import calibrate_trajectories
from rsi_tui.journal.events import Calibrated
from rsi_tui.journal.facts import HOST_FAULTS, BandFacts, NoiseFacts


def calibrate_baseline(lab: Lab, step: str, alpha: float) -> Calibrated:
    """Measure noise and bands; sets them on the lab.

    Raises ContractError when the unchanged program does not run, HostFault when the machine does not let it.
    """
    if not lab.compares and not lab.holdouts:
        raise ContractError(
            'workload.toml: weights = "statistical" needs a validation under [invariants]: '
            "without either, nothing would tell a broken program from a faster one."
        )
    pairs: list[tuple[float, float]] = []
    bands: tuple[BandFacts, ...] = ()
    no_rounding, lab.rounding = "", True
    for number in range(lab.contract.proof.aa_pairs):
        outcome = _pair(lab, f"{step}/pair{number}", judged=number == 0)
        first, second = (facts.score_s for facts in outcome.timed)
        assert first is not None and second is not None
        pairs.append((first, second))
        if number == 0:
            bands, no_rounding = _bands(lab, outcome.plan.judge), _too_slow(outcome)
            lab.rounding = not no_rounding
    bands = (*bands, *calibrate_one_step(lab, f"{step}/one-step", bands))
    made = lab.steps.once(
        step,
        Calibrated,
        lambda: Calibrated(noise=_noise(lab, pairs, alpha), bands=bands, no_rounding=no_rounding),
    )
    lab.calibrated(made)
    return made


def _pair(lab: Lab, step: str, judged: bool) -> BlockOutcome:
    """A pair that counts; a fault of the host is tried again, any other fault is the contract's."""
    outcome, voided = until_it_counts(lab, step, lambda name: _run(lab, name, judged), _blame)
    if outcome.void:
        raise _could_not(outcome, voided)
    return outcome


def _blame(outcome: BlockOutcome) -> None:
    """Raises ContractError where a run of the program itself failed."""
    failed = next((f for f in (*outcome.setup, *outcome.timed) if f.outcome not in ("ok", *HOST_FAULTS)), None)
    if failed is None:
        return
    how = f"ends as {failed.outcome}: {failed.detail.rstrip(' .')}."
    if extra := _extra(outcome, failed.slot):
        raise ContractError(f"Mend the program, or take {extra} out of [invariants] in workload.toml: the program with it {how}")
    raise ContractError(f"Mend the program or its launch in workload.toml first: the program unchanged {how}")


def _could_not(outcome: BlockOutcome, voided: int) -> RsiError:
    """What to raise where no pair counts, and none because a run failed."""
    why = outcome.void.rstrip(" .")
    if any(facts.outcome in HOST_FAULTS for facts in (*outcome.setup, *outcome.timed)):
        return HostFault(
            f"The machine did not let the unchanged program be measured, {voided} times in a row, the last because {why}: "
            "see that nothing else runs on it (`rsi doctor` says what it lacks), then try again."
        )
    return ContractError(f"Mend the program or workload.toml first: the unchanged program can't be measured, because {why}.")


def _extra(outcome: BlockOutcome, slot: int) -> str:
    return outcome.plan.slots[slot].extra


def _run(lab: Lab, step: str, judged: bool) -> BlockOutcome:
    block, draw, commitment = draw_block(lab, step, lambda: ("A", "A"))
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="calibration",
        kind="calibration",
        incumbent=lab.original,
        candidates=(lab.original,),
        setup=baseline_setup(lab) if judged else (),
        timed=(Slot("incumbent", lab.original), Slot("incumbent", lab.original)),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=judged and lab.compares, probe=judged),
    )
    return run_block(lab, plan)


def baseline_setup(lab: Lab) -> tuple[Slot, ...]:
    """What the bands are calibrated from, and the weights before training, which the validation must tell from trained ones."""
    harmless = lab.contract.invariants.harmless if lab.compares else ()
    before = setup_slots(lab, lab.original, twin_patience=TWIN_PATIENCE, initial=True)
    return (*before, *(Slot("harmless", lab.original, extra=extra) for extra in harmless))


def _bands(lab: Lab, judge: CheckpointJudge) -> tuple[BandFacts, ...]:
    """Limits from the harmless runs and from repeated runs of the incumbent itself."""
    if not lab.compares:
        return ()
    by_arm = [(judge.arms[trial], report) for trial, report in judge.reports.items()]
    harmless = [report for arm, report in by_arm if arm in ("harmless", "incumbent")]
    twins = [report for arm, report in by_arm if arm == "twin"]
    return (*calibrate(harmless, twins, lab.contract), *_printed_bands(judge))


def _too_slow(outcome: BlockOutcome) -> str:
    """Why the bf16 twin could not be measured, a sentence; '' where it was, or where the contract allows no bf16."""
    twin = next((facts for facts in outcome.setup if facts.arm == "twin"), None)
    if twin is None or twin.outcome == "ok":
        return ""
    usual = next(facts.total_s for facts in outcome.setup if facts.arm == "warmup")
    return (
        f"The program rounded to bf16 was ended after {twin.wall_s:.0f} s where it takes {usual:.0f} s as it is: "
        "bf16 can't make it faster on this machine, and is not allowed here."
    )


def _printed_bands(judge: CheckpointJudge) -> tuple[BandFacts, ...]:
    """The same for what the runs printed of each step."""
    reference = judge.printed_by_reference
    if reference is None:
        return ()
    harmless = [said for arm, said in judge.printed.values() if arm in ("harmless", "incumbent")]
    twins = [said for arm, said in judge.printed.values() if arm == "twin"]
    return calibrate_trajectories(reference, harmless, twins)


def _noise(lab: Lab, pairs: list[tuple[float, float]], alpha: float) -> NoiseFacts:
    differences = [math.log(a / b) for a, b in pairs]
    scale = pair_scale(differences)
    margin = lab.contract.objective.margin
    share = alpha / lab.contract.proof.max_verifications
    plan = choose_plan(share, 0.0, scale, margin)
    return NoiseFacts(
        pair_scale=scale,
        run_cv=run_cv(pairs),
        pairs=len(pairs),
        differences=tuple(differences),
        smallest_provable=smallest_provable(scale, share, plan.arm_size, plan.max_blocks, margin),
        fingerprint=lab.fingerprint,
        drift=drift([math.log(score) for pair in pairs for score in pair]),
    )

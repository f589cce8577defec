"""The baseline: noise of this machine by A/A pairs, and bands of the invariants by harmless changes.

Each pair is a block of two runs of the unchanged program with a seed and length of its own. The
first pair also runs zero steps, the bf16 twin and every harmless perturbation of the contract: what
those move in the learned update is what no honest change can be blamed for.
"""

from __future__ import annotations

import math

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.bands import calibrate
from rsi_tui.evaluator.blocks import BlockOutcome, BlockPlan, Slot, run_block
from rsi_tui.evaluator.draws import Draw, draw_steps, keep_or_draw
from rsi_tui.evaluator.eprocess import choose_plan
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.noise import pair_scale, run_cv, smallest_provable
from rsi_tui.evaluator.validation import ValidationError
from rsi_tui.journal.events import Calibrated
from rsi_tui.journal.facts import BandFacts, NoiseFacts


def calibrate_baseline(lab: Lab, step: str, alpha: float) -> Calibrated:
    """Measure noise and bands; sets them on the lab. Raises ContractError when the baseline does not run."""
    pairs: list[tuple[float, float]] = []
    bands: tuple[BandFacts, ...] = ()
    for number in range(lab.contract.proof.aa_pairs):
        outcome, judge = _pair(lab, f"{step}/pair{number}", number)
        first, second = outcome.timed
        if outcome.void or first.score_s is None or second.score_s is None:
            failed = next((f for f in (*outcome.setup, *outcome.timed) if f.outcome != "ok"), first)
            raise ContractError(f"The unchanged program does not run: {failed.detail or failed.outcome}")
        pairs.append((first.score_s, second.score_s))
        if number == 0:
            bands = _bands(lab, judge)
    made = lab.steps.once(step, Calibrated, lambda: Calibrated(noise=_noise(lab, pairs, alpha), bands=bands))
    lab.noise, lab.bands = made.noise, made.bands
    return made


def _pair(lab: Lab, step: str, number: int) -> tuple[BlockOutcome, CheckpointJudge]:
    block = f"aa{number + 1}"
    draw, commitment = keep_or_draw(lab.vault, block, lambda: _draw(lab))
    first = number == 0
    harmless = tuple(Slot("harmless", lab.original, extra=extra) for extra in lab.contract.invariants.harmless)
    twin = (Slot("twin", lab.original, extra=lab.twin),) if lab.twin else ()
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="calibration",
        incumbent=lab.original,
        candidates=(lab.original,),
        setup=(Slot("initial", lab.original, zero_steps=True), Slot("warmup", lab.original), *twin, *harmless)
        if first
        else (),
        timed=(Slot("incumbent", lab.original), Slot("incumbent", lab.original)),
        draw=draw,
        commitment=commitment,
        kind="calibration",
        judge=first,
    )
    judge = CheckpointJudge(lab, active=first, validate=first)
    outcome = run_block(lab, plan, judge)
    if first:
        _try_validation(lab, judge)
        judge.dispose()
    return outcome, judge


def _try_validation(lab: Lab, judge: CheckpointJudge) -> None:
    """Validate the baseline once, so that a contract whose validation does not work is found before the search."""
    holdout = lab.holdout("verify")
    if holdout is None or judge.reference is None or lab.vault.get("baseline loss") is not None:
        return
    try:
        lab.vault.put("baseline loss", {"loss": holdout.loss(judge.reference)})
    except ValidationError as error:
        raise ContractError(f"The validation of the unchanged program does not work: {error}") from error


def _draw(lab: Lab) -> Draw:
    return Draw(seed=lab.randbelow(2**31), steps=draw_steps(lab.contract.objective, lab.randbelow), order=("A", "A"))


def _bands(lab: Lab, judge: CheckpointJudge) -> tuple[BandFacts, ...]:
    """Limits from the harmless runs and from repeated runs of the incumbent itself."""
    if lab.contract.invariants.weights != "equivalent":
        return ()
    by_arm = [(judge.arms[trial], report) for trial, report in judge.reports.items()]
    harmless = [report for arm, report in by_arm if arm in ("harmless", "incumbent")]
    twins = [report for arm, report in by_arm if arm == "twin"]
    return calibrate(harmless, twins, lab.contract)


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
    )

"""Comparing the checkpoints of a block while it runs, and disposing of them as soon as they are compared.

The reference is the block's first finished run of the incumbent (its declared warm-up where it has
one); updates are taken against the block's run of zero steps. With the checkpoints goes what the runs
printed of each step, against what the reference printed. What was compared or validated is kept
in the vault, so that a resumed block does not need the files again. A fault that is not the
candidate's is `trouble`, which voids the block; it never becomes a verdict.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rsi_tui.contract.model import Invariants
from rsi_tui.errors import ContractError
from rsi_tui.evaluator.bands import judge, judge_layout
from rsi_tui.evaluator.compare import CompareError, UpdateReport
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.trajectories import Trajectory, judge_trajectories, read_trajectory
from rsi_tui.evaluator.trial import TrialResult
from rsi_tui.evaluator.validation import RELATIVE_BAND, HiddenValidation, ValidationError, judge_validation
from rsi_tui.journal.facts import Arm, InvariantFacts, TrialFacts

WORST = 1e300
"""loss of a checkpoint that can't be validated: larger than any limit, and a number that JSON can hold"""


@dataclass
class CheckpointJudge:
    """Takes the checkpoints of one block as they come; holds the references and what waits for them."""

    lab: Lab
    compare: bool = True
    """compare learned updates with the block's reference"""
    holdout: Literal["", "verify", "claim"] = ""
    """measure hidden validation loss on reference, twin and first candidate, on this hidden set"""
    over_seeds: bool = False
    """what was learned may differ: of the first candidate only the layout is compared with the reference's, and
    the hidden losses, which one pair can't judge, are kept for whoever puts pairs together (`hidden_losses`)"""
    probe: bool = False
    """try the hidden validation once, on the reference and on the initial weights: the baseline's own check of its contract"""
    initial: Path | None = None
    reference: Path | None = None
    twin: Path | None = None
    """kept for the hidden validation"""
    validated: str = ""
    """trial whose checkpoint is kept for the hidden validation"""
    kept: Path | None = None
    pending: dict[str, tuple[Arm, Path]] = field(default_factory=dict)
    """trial id -> checkpoint that waits for its references"""
    reports: dict[str, UpdateReport] = field(default_factory=dict)
    arms: dict[str, Arm] = field(default_factory=dict)
    printed: dict[str, tuple[Arm, Trajectory]] = field(default_factory=dict)
    """trial id -> its arm and what it printed of each step, in the order run"""
    validation_s: float = 0.0
    """what the hidden validation of this block took"""
    trouble: str = ""
    """why something failed through no fault of the candidate; '' when nothing did"""

    @property
    def active(self) -> bool:
        """Are checkpoints of this block of any use?"""
        return self.compare or self.probe or bool(self.holdout)

    def take(self, result: TrialResult, arm: Arm) -> None:
        """Take the checkpoint of a run that just ended."""
        if not self.active or result.checkpoint is None or result.facts.outcome != "ok":
            self.lab.runner.discard(result.facts.id)
            return
        if self.compare and result.facts.steps:
            key = f"printed/{result.facts.id}"
            found = read_trajectory(result.run.told, self.lab.contract.launch.progress)
            self.lab.keep(key, found.model_dump(mode="json"))
            self.printed[result.facts.id] = (arm, found)
        self._place(result.facts.id, arm, result.checkpoint)
        self._flush()

    def recall(self, facts: TrialFacts, arm: Arm) -> bool:
        """Take up a run that was recorded before a restart.

        Returns False when its checkpoint is needed and gone and the run may be repeated because
        nothing was timed in it.
        """
        if not self.active or facts.outcome != "ok":
            return True
        if (said := self.lab.vault.get(f"printed/{facts.id}")) is not None:
            self.printed[facts.id] = (arm, Trajectory.model_validate(said))
        if (stored := self.lab.vault.get(f"compared/{facts.id}")) is not None:
            self._store(facts.id, arm, UpdateReport.model_validate(stored))
        path = self.lab.runner.checkpoint_of(facts.id)
        if path is not None:
            self._place(facts.id, arm, path)
            self._flush()
            return True
        return arm not in ("initial", "warmup", "twin") or stored is not None

    def finish(self, step: str) -> dict[str, tuple[InvariantFacts, ...]]:
        """Judge every candidate's run that was compared, and the hidden validation; sets `trouble`."""
        twin = next((self.reports[trial] for trial, arm in self.arms.items() if arm == "twin"), None)
        found = {
            trial: (*judge(report, self.lab.bands, self.lab.contract, twin=twin), *self._trajectories(trial))
            for trial, report in self.reports.items()
            if self.arms[trial] == "candidate"
        }
        began = time.monotonic()
        if self.probe:
            self._probe()
        known = self._validate(step) if self.holdout else None
        self.validation_s = time.monotonic() - began
        if known is not None:
            trial = known["trial"]
            found[trial] = (*found.get(trial, ()), *(self._layout(trial) if self.over_seeds else _validation(known)))
        return found

    def dispose(self) -> None:
        """Delete every checkpoint of the block."""
        waiting = [path for _, path in self.pending.values()]
        for path in (self.initial, self.reference, self.twin, self.kept, *waiting):
            if path is not None:
                self.lab.runner.discard_file(path)

    # --- what was printed

    @property
    def printed_by_reference(self) -> Trajectory | None:
        """Of the block's reference: its first run of the incumbent."""
        return self._printed_first("warmup", "incumbent")

    def _printed_first(self, *arms: Arm) -> Trajectory | None:
        return next((said for arm, said in self.printed.values() if arm in arms), None)

    def _trajectories(self, trial: str) -> tuple[InvariantFacts, ...]:
        """What a candidate's run printed; nothing where a record of an older version lacks it."""
        reference = self.printed_by_reference
        if reference is None or trial not in self.printed:
            return ()
        bf16 = self.lab.contract.invariants.precision == "bf16"
        said = self.printed[trial][1]
        return judge_trajectories(said, reference, self.lab.bands, self._printed_first("twin"), bf16)

    # --- learned updates

    def _place(self, trial: str, arm: Arm, path: Path) -> None:
        if arm == "initial":
            self.initial = path
        elif arm in ("warmup", "incumbent") and self.reference is None:
            self.reference = path
        elif arm == "candidate" and self.holdout and not self.validated and not self.compare:
            self.validated, self.kept = trial, path
        elif trial in self.reports:
            self._after(trial, arm, path)
        else:
            self.pending[trial] = (arm, path)

    def _flush(self) -> None:
        """Compare what waits, once initial weights and reference are there."""
        if not self.compare or self.initial is None or self.reference is None:
            return
        for trial, (arm, path) in list(self.pending.items()):
            del self.pending[trial]
            try:
                report = self.lab.comparer.compare(self.initial, self.reference, path)
            except CompareError as error:
                self.trouble = f"the checkpoints could not be compared: {error}"
                self.lab.runner.discard_file(path)
                continue
            self.lab.keep(f"compared/{trial}", report.model_dump(mode="json"))
            self._store(trial, arm, report)
            self._after(trial, arm, path)

    def _after(self, trial: str, arm: Arm, path: Path) -> None:
        """Keep a compared checkpoint that the validation needs, delete any other."""
        if self.holdout and arm == "twin" and self.twin is None:
            self.twin = path
        elif self.holdout and arm == "candidate" and not self.validated:
            self.validated, self.kept = trial, path
        else:
            self.lab.runner.discard_file(path)

    def _store(self, trial: str, arm: Arm, report: UpdateReport) -> None:
        self.reports[trial] = report
        self.arms[trial] = arm

    # --- hidden validation

    def _validate(self, step: str) -> dict[str, Any] | None:
        """Hidden losses with the first candidate; measured once, kept in the vault. None when they can't be."""
        key = _validated(step)
        known = self.lab.vault.get(key)
        if known is None:
            if self.reference is None or self.kept is None:
                self.trouble = self.trouble or "the checkpoints for the hidden validation are missing"
                return None
            try:
                known = self._losses()
            except ValidationError as error:
                self.trouble = f"the hidden validation of the incumbent failed: {error}"
                return None
            self.lab.keep(key, known)
        return known

    def _layout(self, trial: str) -> tuple[InvariantFacts, ...]:
        """Layout and counters of a candidate's checkpoint against the reference's, whatever it learned."""
        stored = self.lab.vault.get(f"layout/{trial}")
        if stored is None and self.reference is not None and self.kept is not None:
            try:
                report = self.lab.comparer.compare(self.reference, self.reference, self.kept)
            except CompareError as error:
                self.trouble = f"the checkpoints could not be compared: {error}"
                return ()
            stored = report.model_dump(mode="json")
            self.lab.keep(f"layout/{trial}", stored)
        return judge_layout(UpdateReport.model_validate(stored)) if stored is not None else ()

    def _probe(self) -> None:
        """Raises ContractError when the validation does not work on the unchanged program, or sees no training in it."""
        holdout = self.lab.holdout("verify")
        if holdout is None:
            return
        known = self.lab.vault.get("baseline loss")
        if known is None and self.reference is not None:
            try:
                known = {"loss": min(holdout.loss(self.reference), WORST)}
            except ValidationError as error:
                raise ContractError(f"The validation of the unchanged program does not work: {error}") from error
            if self.initial is not None:
                known["untrained"] = _candidate_loss(holdout, self.initial)
            self.lab.keep("baseline loss", known)
        if known is not None and "untrained" in known:
            require_learning(known["loss"], known["untrained"], self.lab.contract.invariants)

    def _losses(self) -> dict[str, Any]:
        """Hidden losses of reference, twin and candidate. Raises ValidationError when a reference fails."""
        holdout = self.lab.holdout(self.holdout)
        assert holdout is not None and self.reference is not None and self.kept is not None
        return {
            "trial": self.validated,
            "incumbent": min(holdout.loss(self.reference), WORST),
            "twin": min(holdout.loss(self.twin), WORST) if self.twin is not None else None,
            "candidate": _candidate_loss(holdout, self.kept),
        }


def worsened(trained: float, other: float, invariants: Invariants) -> bool:
    """Is a hidden loss worse than the right program's by more than a candidate's may be? No rounding is granted."""
    if invariants.weights == "statistical":
        return other - trained > invariants.loss_margin * abs(trained)
    return judge_validation(other, trained, 0.0).status == "broken"


def require_learning(trained: float, untrained: float, invariants: Invariants) -> None:
    """Raises ContractError when the hidden loss takes a program that learns nothing for one that learns.

    `trained`, `untrained`: hidden losses of the unchanged program after the steps of a run, and before the first.
    """
    if not worsened(trained, untrained, invariants):
        allowed = invariants.loss_margin if invariants.weights == "statistical" else RELATIVE_BAND
        raise ContractError(
            f"The validation can't tell a program that learns nothing from the right one: the loss is {untrained:.6g} before "
            f"the first step and {trained:.6g} after the last, and a candidate's may be {100 * allowed:.2f} % worse. Let [invariants] "
            "validation measure the checkpoint it is given, as a loss that is lower when more is learned, or raise "
            "[objective] steps until training shows in it."
        )


def hidden_losses(lab: Lab, step: str) -> tuple[float, float] | None:
    """(incumbent's, candidate's) hidden loss that the block of a step measured; None when it measured none."""
    known = lab.vault.get(_validated(step))
    return (float(known["incumbent"]), float(known["candidate"])) if known is not None else None


def _validated(step: str) -> str:
    return f"validated/{step}"


def _validation(known: dict[str, Any]) -> tuple[InvariantFacts, ...]:
    rounding = 0.0 if known["twin"] is None else abs(known["twin"] - known["incumbent"])
    return (judge_validation(known["candidate"], known["incumbent"], rounding),)


def _candidate_loss(holdout: HiddenValidation, checkpoint: Path) -> float:
    """A candidate that can't be validated twice, where its reference could, has the worst of losses."""
    for _ in range(2):
        try:
            return min(holdout.loss(checkpoint), WORST)
        except ValidationError:
            continue
    return min(math.inf, WORST)

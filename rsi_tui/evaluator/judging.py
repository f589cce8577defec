"""Comparing the checkpoints of a block while it runs, and disposing of them as soon as they are compared.

The reference is the block's first finished run of the incumbent (its declared warm-up where it has
one); updates are taken against the block's run of zero steps. What was compared or validated is kept
in the vault, so that a resumed block does not need the files again. A fault that is not the
candidate's is `trouble`, which voids the block; it never becomes a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.bands import judge
from rsi_tui.evaluator.compare import CompareError, UpdateReport
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.trial import TrialResult
from rsi_tui.evaluator.validation import HiddenValidation, ValidationError, judge_validation
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
    probe: bool = False
    """try the hidden validation once, on the reference: the baseline's own check of its contract"""
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
        self._place(result.facts.id, arm, result.checkpoint)
        self._flush()

    def recall(self, facts: TrialFacts, arm: Arm) -> bool:
        """Take up a run that was recorded before a restart.

        Returns False when its checkpoint is needed and gone and the run may be repeated because
        nothing was timed in it.
        """
        if not self.active or facts.outcome != "ok":
            return True
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
            trial: judge(report, self.lab.bands, self.lab.contract, twin=twin)
            for trial, report in self.reports.items()
            if self.arms[trial] == "candidate"
        }
        if self.probe:
            self._probe()
        if self.holdout and (fact := self._validate(step)) is not None:
            trial, value = fact
            found[trial] = (*found.get(trial, ()), value)
        return found

    def dispose(self) -> None:
        """Delete every checkpoint of the block."""
        waiting = [path for _, path in self.pending.values()]
        for path in (self.initial, self.reference, self.twin, self.kept, *waiting):
            if path is not None:
                self.lab.runner.discard_file(path)

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

    def _validate(self, step: str) -> tuple[str, InvariantFacts] | None:
        """(trial, fact) of the first candidate; measured once, kept in the vault."""
        key = f"validated/{step}"
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
        rounding = 0.0 if known["twin"] is None else abs(known["twin"] - known["incumbent"])
        return known["trial"], judge_validation(known["candidate"], known["incumbent"], rounding)

    def _probe(self) -> None:
        """Raises ContractError when the validation does not work on the unchanged program."""
        holdout = self.lab.holdout("verify")
        if holdout is None or self.reference is None or self.lab.vault.get("baseline loss") is not None:
            return
        try:
            self.lab.keep("baseline loss", {"loss": min(holdout.loss(self.reference), WORST)})
        except ValidationError as error:
            raise ContractError(f"The validation of the unchanged program does not work: {error}") from error

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


def _candidate_loss(holdout: HiddenValidation, checkpoint: Path) -> float:
    """A candidate that can't be validated twice, where its reference could, has the worst of losses."""
    for _ in range(2):
        try:
            return min(holdout.loss(checkpoint), WORST)
        except ValidationError:
            continue
    return min(math.inf, WORST)

"""Comparing the checkpoints of a block while it runs, and disposing of them as soon as they are compared.

The reference is the block's first finished run of the incumbent (its declared warm-up where it has
one); updates are taken against the block's run of zero steps. What was compared is kept in the
vault, so that a resumed block does not need the files again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rsi_tui.evaluator.bands import judge
from rsi_tui.evaluator.compare import CompareError, UpdateReport
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.trial import TrialResult
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.facts import Arm, InvariantFacts, TrialFacts

REFERENCES: tuple[Arm, ...] = ("initial", "warmup", "incumbent", "twin")


@dataclass
class CheckpointJudge:
    """Takes the checkpoints of one block as they come; holds at most the references and what waits for them."""

    lab: Lab
    active: bool = True
    """False: checkpoints of this block are not compared"""
    validate: bool = False
    """measure hidden validation loss on the reference and the first candidate"""
    initial: Path | None = None
    reference: Path | None = None
    twin: Path | None = None
    twin_report: UpdateReport | None = None
    pending: dict[str, tuple[Arm, Path]] = field(default_factory=dict)
    """trial id -> checkpoint that waits for its references"""
    reports: dict[str, UpdateReport] = field(default_factory=dict)
    arms: dict[str, Arm] = field(default_factory=dict)
    trouble: str = ""
    """why a comparison failed through no fault of the candidate; '' when none did"""
    validated: Path | None = None
    """checkpoint of the first candidate, kept for the hidden validation"""

    def take(self, vault: Vault, result: TrialResult, arm: Arm) -> None:
        """Take the checkpoint of a run that just ended."""
        if not self.active or result.checkpoint is None or result.facts.outcome != "ok":
            self.lab.runner.discard(result.facts.id)
            return
        self._place(result.facts.id, arm, result.checkpoint)
        self._flush(vault)

    def recall(self, vault: Vault, facts: TrialFacts, arm: Arm) -> bool:
        """Take up a run that was recorded before a restart.

        Returns False when its checkpoint is needed and gone and the run may be repeated because
        nothing was timed in it.
        """
        if not self.active or facts.outcome != "ok":
            return True
        if (stored := vault.get(f"compared/{facts.id}")) is not None:
            self.arms[facts.id] = arm
            self._store(facts.id, arm, UpdateReport.model_validate(stored))
        path = self.lab.runner.checkpoint_of(facts.id)
        if path is not None:
            self._place(facts.id, arm, path)
            self._flush(vault)
            return True
        return arm not in ("initial", "warmup", "twin") or stored is not None

    def finish(self) -> dict[str, tuple[InvariantFacts, ...]]:
        """Judge what was compared, dispose of all checkpoints but those the validation still needs."""
        found = {
            trial: judge(report, self.lab.bands, self.lab.contract, twin=self.twin_report)
            for trial, report in self.reports.items()
            if self.arms[trial] == "candidate"
        }
        if not self.validate:
            self.dispose()
        return found

    def dispose(self) -> None:
        """Delete every checkpoint of the block."""
        for path in (self.initial, self.reference, self.twin, self.validated, *(p for _, p in self.pending.values())):
            if path is not None:
                self.lab.runner.discard_file(path)

    def _place(self, trial: str, arm: Arm, path: Path) -> None:
        if arm == "initial":
            self.initial = path
        elif arm in ("warmup", "incumbent") and self.reference is None:
            self.reference = path
        elif trial not in self.reports:
            self.pending[trial] = (arm, path)
        elif self.validate and arm == "candidate" and self.validated is None:
            self.validated = path

    def _flush(self, vault: Vault) -> None:
        """Compare what waits, once initial weights and reference are there."""
        if self.initial is None or self.reference is None:
            return
        for trial, (arm, path) in list(self.pending.items()):
            del self.pending[trial]
            try:
                report = self.lab.comparer.compare(self.initial, self.reference, path)
            except CompareError as error:
                self.trouble = f"the checkpoints could not be compared: {error}"
                self.lab.runner.discard_file(path)
                continue
            if vault.get(f"compared/{trial}") is None:
                vault.put(f"compared/{trial}", report.model_dump(mode="json"))
            self._store(trial, arm, report)
            if self.validate and arm == "candidate" and self.validated is None:
                self.validated = path
            else:
                self.lab.runner.discard_file(path)

    def _store(self, trial: str, arm: Arm, report: UpdateReport) -> None:
        self.reports[trial] = report
        self.arms[trial] = arm
        if arm == "twin":
            self.twin_report = report

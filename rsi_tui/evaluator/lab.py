"""The evaluator's bench: what every measurement of one campaign shares.

Nothing here decides. The Lab holds the contract, the trial runner, the vault with the secrets, the
journal, the warm comparer of checkpoints and the hidden validation, and hands out trial ids.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rsi_tui.contract.model import Contract
from rsi_tui.errors import RsiError
from rsi_tui.evaluator.compare import UpdateComparer
from rsi_tui.evaluator.noise import MachineNoise
from rsi_tui.evaluator.trial import TrialRunner
from rsi_tui.evaluator.validation import HiddenValidation
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.events import Calibrated
from rsi_tui.journal.facts import BandFacts, CandidateFacts, NoiseFacts, TrialFacts
from rsi_tui.journal.steps import Steps
from rsi_tui.launch.lease import Lease


class Interrupted(RsiError):
    """A person stopped the campaign while a trial ran; `rsi run --resume` continues."""

    exit_code = 1


class HostFault(Interrupted):
    """The machine, not the program, failed what had to be measured; resuming tries it again."""


@dataclass
class Lab:
    """Shared by all measurements of one campaign; owned by the Evaluator."""

    contract: Contract
    original: CandidateFacts
    runner: TrialRunner
    steps: Steps
    vault: Vault
    open_comparer: Callable[[], UpdateComparer]
    holdouts: dict[str, HiddenValidation]
    """'verify' and 'claim': two hidden sets, so that many verdicts can't overfit the claim's; empty without validation"""
    cancel: threading.Event
    fingerprint: str
    """hash of hardware and software"""
    trials: int = 0
    """trials started so far, over all resumptions"""
    noise: NoiseFacts | None = None
    bands: tuple[BandFacts, ...] = ()
    rounding: bool = True
    """may candidates round to bf16 where the contract allows it? False where the bf16 twin is too slow to be run"""
    runs: dict[str, list[float]] = field(default_factory=dict)
    """candidate id -> scores, seconds, of all its runs as a candidate in blocks that count, whatever they were for"""
    screened: dict[str, tuple[tuple[TrialFacts, ...], tuple[TrialFacts, ...]]] = field(default_factory=dict)
    """candidate id -> its runs in screening, and those of the incumbent beside it"""
    randbelow: Callable[[int], int] = secrets.randbelow
    between: Callable[[], None] = lambda: None
    """called before each run: where a campaign can pause or stop"""
    lease: Lease | None = None
    """of the block that is running or was the last to run"""
    on_wait: Callable[[str], None] | None = None
    """told when another campaign of this machine is measuring"""
    _machine: MachineNoise | None = field(default=None, repr=False)
    _comparer: UpdateComparer | None = field(default=None, repr=False)

    @property
    def comparer(self) -> UpdateComparer:
        """The warm worker that loads and compares checkpoints, started on first use."""
        if self._comparer is None:
            self._comparer = self.open_comparer()
        return self._comparer

    def drop_comparer(self) -> None:
        """End the worker; the next comparison starts a fresh one."""
        if self._comparer is not None:
            self._comparer.close()
            self._comparer = None

    def keep(self, key: str, value: dict[str, Any]) -> None:
        """Put a measurement into the vault unless it is there: the first one stands."""
        if self.vault.get(key) is None:
            self.vault.put(key, value)

    @property
    def compares(self) -> bool:
        """Does the contract ask that learned updates be equivalent?"""
        return self.contract.invariants.weights == "equivalent"

    def next_trial(self) -> str:
        self.trials += 1
        return f"t{self.trials}"

    @property
    def measured_noise(self) -> NoiseFacts:
        """The calibrated noise; only after the baseline."""
        if self.noise is None:
            raise RuntimeError("noise is asked for before the baseline was calibrated")
        return self.noise

    def follow(self, outcome_scores: Sequence[float]) -> None:
        """Take in a batch's incumbent runs (scores in seconds, in the order run): the noise follows the machine."""
        if len(outcome_scores) >= 2:
            noise = self._machine or MachineNoise(self.measured_noise.differences)
            self._machine = noise.followed_by(outcome_scores[0], outcome_scores[1])

    @property
    def pair_scale(self) -> float:
        """Noise of the machine as it is now; only after the baseline."""
        return self._machine.scale if self._machine is not None else self.measured_noise.pair_scale

    def holdout(self, purpose: str) -> HiddenValidation | None:
        """The hidden validation of a purpose, its data derived on first use from a secret of its own."""
        validation = self.holdouts.get(purpose)
        if validation is not None:
            key = f"holdout/{purpose}"
            if self.vault.get(key) is None:
                self.vault.put(key, {"secret": secrets.token_hex(16)})
            validation.prepare(str((self.vault.get(key) or {})["secret"]))
        return validation

    @property
    def twin(self) -> str:
        """The perturbation that makes the baseline round as the contract allows, '' when it does not or can't here."""
        invariants = self.contract.invariants
        return invariants.bf16_twin if invariants.precision == "bf16" and self.rounding else ""

    def calibrated(self, made: Calibrated) -> None:
        """Take over what a calibration found."""
        self.noise, self.bands, self.rounding = made.noise, made.bands, not made.no_rounding

"""The Evaluator: the only source of numbers that count.

It is given a contract, a mirror and a journal, owns the vault and everything in the evaluator's
folder, and answers four questions: what is the baseline, what do screening runs say, what is the
verdict, and what may be claimed. Each answer is a durable step.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.baseline import calibrate_baseline
from rsi_tui.evaluator.lab import Interrupted, Lab
from rsi_tui.evaluator.profiling.profile import run_profile
from rsi_tui.evaluator.prove import prove
from rsi_tui.evaluator.screen import screen
from rsi_tui.evaluator.trial import TrialRequest
from rsi_tui.evaluator.verify import verify
from rsi_tui.journal.events import Calibrated, Profiled, SecretsRevealed, TrialFinished, TrialStarted
from rsi_tui.journal.facts import AttributionFacts, CandidateFacts, ClaimFacts, ProfileFacts, ScreenFacts, VerdictFacts
from rsi_tui.launch.lease import host_lease

__all__ = ["Evaluator", "Interrupted"]


class Evaluator:
    """Runs trials, owns clock, memory, seeds and hidden data, decides verdicts."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    @property
    def original(self) -> CandidateFacts:
        """The user's own program, unchanged, as a candidate."""
        return self._lab.original

    def profile(self) -> ProfileFacts:
        """Where a step's time goes; the first run of the campaign, so that it also finds what is wrong."""
        lab = self._lab
        known = lab.steps.find("profile")
        if isinstance(known, Profiled):
            return known.profile
        low, high = lab.contract.objective.steps
        attempt = 1
        while lab.steps.find(f"profile/a{attempt}/started") is not None:
            attempt += 1
        started = lab.steps.once(f"profile/a{attempt}/started", TrialStarted, lambda: self._profile_start(attempt))
        request = TrialRequest(
            id=started.trial, candidate=lab.original, kind="profile", arm="profile", block="", slot=0,
            attempt=attempt, steps=(low + high) // 2, seed=lab.randbelow(2**31),
        )
        with host_lease("campaign profile"):
            facts, profile = run_profile(lab.runner, request, lab.cancel)
        lab.runner.discard(started.trial)
        lab.steps.append(TrialFinished(trial=facts.id, facts=facts), f"profile/a{attempt}/finished")
        if facts.outcome == "cancelled":
            raise Interrupted("Stopped while profiling; `rsi run --resume` continues.")
        if profile is None:
            raise ContractError(facts.detail)
        return lab.steps.once("profile", Profiled, lambda: Profiled(profile=profile)).profile

    def _profile_start(self, attempt: int) -> TrialStarted:
        return TrialStarted(
            trial=self._lab.next_trial(), candidate=self._lab.original.id, kind="profile", arm="profile",
            block="", slot=0, of=1, attempt=attempt,
        )

    def calibrate(self, alpha: float) -> Calibrated:
        """Noise by A/A pairs and bands of the invariants."""
        return calibrate_baseline(self._lab, "calibration", alpha)

    def screen(self, step: str, candidates: Sequence[CandidateFacts], incumbent: CandidateFacts) -> tuple[ScreenFacts, ...]:
        """Screening estimates; adopts nothing."""
        return screen(self._lab, step, candidates, incumbent).results

    def verify(
        self, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, alpha: float, predicted_gain: float
    ) -> VerdictFacts:
        """The verdict on a candidate, with the error probability it may spend."""
        return verify(self._lab, step, candidate, incumbent, alpha, predicted_gain)

    def claim(self, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...]) -> ClaimFacts:
        """The stack against the original, on fresh pairs."""
        return prove(self._lab, step, stack, attribution)

    def reveal(self) -> None:
        """Publish the values behind the commitments; the campaign has ended."""
        lab = self._lab
        lab.steps.once("secrets", SecretsRevealed, lambda: SecretsRevealed(blocks=lab.vault.reveal()))

    def close(self, *, finished: bool) -> None:
        """End the worker; when the campaign has finished, delete trees, scratch and hidden data."""
        self._lab.drop_comparer()
        if finished:
            for folder in (self._lab.runner.paths.trees, self._lab.runner.paths.scratch, self._lab.runner.paths.hidden):
                shutil.rmtree(folder, ignore_errors=True)

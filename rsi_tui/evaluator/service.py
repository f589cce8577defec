"""The Evaluator: the only source of numbers that count.

It is given a contract, a mirror and a journal, owns the vault and everything in the evaluator's
folder, and answers four questions: what is the baseline, what do screening runs say, what is the
verdict, and what may be claimed. Each answer is a durable step.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.baseline import calibrate_baseline
from rsi_tui.evaluator.blocks import MAX_ATTEMPTS
from rsi_tui.evaluator.check import check_runs
from rsi_tui.evaluator.lab import Interrupted, Lab
from rsi_tui.evaluator.leave_one_out import Part, leave_one_out
from rsi_tui.evaluator.one_step import check_one_step
from rsi_tui.evaluator.profiling.profile import run_profile
from rsi_tui.evaluator.prove import prove
from rsi_tui.evaluator.recheck import Known, recheck
from rsi_tui.evaluator.redteam.escapes import ESCAPES, run_escapes
from rsi_tui.evaluator.redteam.live import LiveCheat, LiveOutcome, run_live
from rsi_tui.evaluator.saving import unprovable
from rsi_tui.evaluator.screen import Alone, screen, screen_alone
from rsi_tui.evaluator.screening import SLOWER_SCALES
from rsi_tui.evaluator.slower import judge_slower
from rsi_tui.evaluator.states import has_states
from rsi_tui.evaluator.trial import TrialRequest, remove_tree
from rsi_tui.evaluator.verify import verify
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.chain import now_utc
from rsi_tui.journal.events import Calibrated, LeftOut, Profiled, SecretsRevealed, TrialFinished, TrialStarted
from rsi_tui.journal.facts import (
    HOST_FAULTS,
    AttributionFacts,
    CandidateFacts,
    ClaimFacts,
    PlantedFacts,
    ProfileFacts,
    ScreenFacts,
    TrialFacts,
    Verdict,
    VerdictFacts,
)
from rsi_tui.launch.lease import host_lease

__all__ = ["Evaluator", "Interrupted", "Part"]

FEW_ESCAPES = (
    "read_home", "read_vault", "read_other_tree", "see_processes", "signal_outside", "leave_cgroup", "mount",
    "write_outside", "reach_network", "stay",
)  # fmt: skip
"""those that are tried before every first campaign on a program; `rsi check --all` tries each"""


class Evaluator:
    """Runs trials, owns clock, memory, seeds and hidden data, decides verdicts."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    @property
    def original(self) -> CandidateFacts:
        """The user's own program, unchanged, as a candidate."""
        return self._lab.original

    def profile(self) -> ProfileFacts:
        """Where a step's time goes; the first run of the campaign, so that it also finds what is wrong.

        Raises ContractError, with one sentence for whoever wrote the contract, when the program does not run.
        """
        found, why = self._profiled("profile", self._lab.original)
        if found is None:
            raise ContractError(why or f"The profile run was disturbed {MAX_ATTEMPTS} times; see that nothing else runs here and start a new campaign.")
        return found

    def profile_of(self, candidate: CandidateFacts) -> ProfileFacts | None:
        """Where a step of a proven candidate goes, for people who compare; None where its instrumented run fails."""
        return self._profiled(f"profile/{candidate.id}", candidate)[0]

    def _profiled(self, step: str, candidate: CandidateFacts) -> tuple[ProfileFacts | None, str]:
        """(the profile, recorded or made now; why the program has none, '' where it was the machine)."""
        lab = self._lab
        known = lab.steps.find(step)
        if isinstance(known, Profiled):
            return known.profile, ""
        attempt = tried = 0
        while tried < MAX_ATTEMPTS:
            attempt += 1
            # Attempts of an engine before are passed over: what ended it says nothing of the program.
            tried += lab.steps.find(f"{step}/a{attempt}/started") is None
            found, why = self._profile_once(f"{step}/a{attempt}", candidate, attempt)
            if found is not None:
                return lab.steps.append(Profiled(profile=found, candidate=candidate.id), step).profile, ""
            if why:
                return None, why
        return None, ""

    def _profile_once(self, step: str, candidate: CandidateFacts, attempt: int) -> tuple[ProfileFacts | None, str]:
        """One profile run, recorded or fresh; no profile when it was interrupted, or failed, and why."""
        lab = self._lab
        started = lab.steps.find(f"{step}/started")
        if isinstance(started, TrialStarted):
            kept = lab.vault.get(f"profile/{started.trial}")
            finished = lab.steps.find(f"{step}/finished")
            if finished is None:
                lab.steps.append(TrialFinished(trial=started.trial, facts=self._lost(started)), f"{step}/finished")
            facts = finished.facts if isinstance(finished, TrialFinished) else None
            failed = facts is not None and facts.outcome != "ok" and facts.outcome not in HOST_FAULTS
            return ProfileFacts.model_validate(kept) if kept is not None else None, facts.detail if facts is not None and failed else ""
        with host_lease("campaign profile", on_wait=lab.on_wait, meanwhile=lab.between):
            return self._profile_now(step, candidate, attempt)

    def _profile_now(self, step: str, candidate: CandidateFacts, attempt: int) -> tuple[ProfileFacts | None, str]:
        """One fresh profile run; the machine is ours."""
        lab = self._lab
        lab.between()
        start = TrialStarted(
            trial=lab.next_trial(), candidate=candidate.id, kind="profile", arm="profile", block="", slot=0, of=1, attempt=attempt,
        )  # fmt: skip
        started = lab.steps.append(start, f"{step}/started")
        low, high = lab.contract.objective.steps
        request = TrialRequest(
            id=started.trial, candidate=candidate, kind="profile", arm="profile", block="", slot=0,
            attempt=attempt, steps=(low + high) // 2, seed=lab.randbelow(2**31),
        )  # fmt: skip
        facts, profile = run_profile(lab.runner, request, lab.cancel)
        lab.runner.discard(started.trial)
        if profile is not None:
            lab.keep(f"profile/{started.trial}", profile.model_dump(mode="json"))
        lab.steps.append(TrialFinished(trial=facts.id, facts=facts), f"{step}/finished")
        if facts.outcome == "cancelled":
            raise Interrupted("Stopped while profiling; `rsi run --resume` continues.")
        return profile, facts.detail if profile is None and facts.outcome not in HOST_FAULTS else ""

    def _lost(self, started: TrialStarted) -> TrialFacts:
        return TrialFacts(
            id=started.trial, candidate=started.candidate, kind="profile", arm="profile", block="", slot=0,
            attempt=started.attempt, steps=0, outcome="not_measured", cause="interrupted",
            detail="the engine ended while this trial ran", started_at=now_utc(), wall_s=0.0,
        )  # fmt: skip

    def check_runs(self, step: str, candidate: CandidateFacts) -> str:
        """'' when the candidate runs, else how it fails; ContractError when the unchanged program fails as well."""
        return check_runs(self._lab, step, candidate)

    def calibrate(self, alpha: float) -> Calibrated:
        """Noise by A/A pairs and bands of the invariants."""
        return calibrate_baseline(self._lab, "calibration", alpha)

    def recalibrate(self, known: Known | None, alpha: float) -> Calibrated:
        """A calibration made before under the same conditions, where fresh pairs agree with it; else a new one."""
        lab, step = self._lab, "calibration"
        made = lab.steps.find(step)
        if not isinstance(made, Calibrated):
            made = recheck(lab, "recheck", known, alpha) if known is not None else None
            if made is None:
                return self.calibrate(alpha)
            lab.steps.append(made, step)
        lab.calibrated(made)
        return made

    def challenge(self, step: str, cheats: Sequence[LiveCheat]) -> LiveOutcome:
        """Planted cheats, run in one block and judged; what one run can't show is looked for from saved states."""
        lab = self._lab
        outcome = run_live(lab, step, cheats)
        late = dict(outcome.cheats)
        for cheat in cheats if has_states(lab) else ():
            if late.get(cheat.name) == ():
                found = check_one_step(lab, f"{step}/{cheat.candidate.id}", cheat.candidate)
                broken = tuple(f"{i.name} ({i.how})" for i in found.invariants if i.status == "broken")
                late[cheat.name] = broken or ((found.failed,) if found.failed else ())
        return LiveOutcome(late, outcome.forged)

    def escapes(self, *, everything: bool) -> tuple[PlantedFacts, ...]:
        """Attempts to leave the sandbox, each in a trial of its own; none where trials are not sandboxed."""
        lab = self._lab
        if not lab.runner.sandboxed:
            return ()
        folder = lab.runner.paths.scratch / "escapes"
        chosen = [escape for escape in ESCAPES if everything or escape.name in FEW_ESCAPES]
        lab.between()
        with host_lease("campaign escapes", on_wait=lab.on_wait, meanwhile=lab.between):
            try:
                found = run_escapes(lab.runner.python, folder, chosen)
            finally:
                remove_tree(folder)
        return tuple(
            PlantedFacts(
                name=facts.name, kind="escape", family="sandbox", does=facts.does, ran=True,
                evaluator=() if facts.succeeded else ("nothing of it shows from outside",),
            )
            for facts in found
        )  # fmt: skip

    def screen_alone(self, step: str, candidate: CandidateFacts, incumbent: CandidateFacts) -> Alone:
        """Screening of the only candidate of an evaluation: `promoted` unless it failed or is clearly slower."""
        return screen_alone(self._lab, step, candidate, incumbent)

    def judge_slower(
        self, step: str, screened: Alone, candidate: CandidateFacts, incumbent: CandidateFacts
    ) -> VerdictFacts:
        """The verdict on what screening saw to be clearly slower: a saving of memory is still looked for."""
        return judge_slower(self._lab, step, screened, candidate, incumbent)

    def bank(
        self, step: str, screened: ScreenFacts, candidate: CandidateFacts, incumbent: CandidateFacts
    ) -> VerdictFacts | None:
        """The verdict on a candidate that screening dropped and saw to need less memory: 'leaner' where that is proven.

        Where it is not, the verdict is 'slower' only when screening has as much to say as it needs for that of a lone
        change, since later campaigns do not try again what is slower: beyond SLOWER_SCALES, and not on one run's word.
        None where memory was measured in a way that can prove no saving.
        """
        ours, theirs = self._lab.screened.get(candidate.id, ((), ()))
        if not ours or unprovable((*ours, *theirs)):
            return None
        beyond_noise = (screened.log_ratio or 0.0) > SLOWER_SCALES * self._lab.pair_scale
        otherwise: Verdict = "slower" if screened.batches >= 2 and beyond_noise else "not_proven"
        return judge_slower(self._lab, step, Alone(screened, ours, theirs), candidate, incumbent, otherwise)

    def screen(self, step: str, candidates: Sequence[CandidateFacts], incumbent: CandidateFacts) -> tuple[ScreenFacts, ...]:
        """Screening estimates; adopts nothing."""
        return screen(self._lab, step, candidates, incumbent).results

    def verify(
        self,
        step: str,
        candidate: CandidateFacts,
        incumbent: CandidateFacts,
        alpha: float,
        predicted_gain: float,
        *,
        early_look: bool = True,
    ) -> VerdictFacts:
        """The verdict on a candidate, with the error probability it may spend.

        Without the `early_look` the first block is run to its end however hopeless it is.
        """
        return verify(self._lab, step, candidate, incumbent, alpha, predicted_gain, early_look=early_look)

    def claim(
        self, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...], *, verified: bool = True
    ) -> ClaimFacts:
        """The stack against the original, on fresh pairs.

        One that no verification adopted (`verified` False) must also show what a verification asks.
        """
        return prove(self._lab, step, stack, attribution, verified=verified)

    def machine_lent(self) -> contextlib.AbstractContextManager[None]:
        """Within it, other campaigns may measure on this machine even if a block of ours is open."""
        return self._lab.lease.lent() if self._lab.lease is not None else contextlib.nullcontext()

    def leave_one_out(self, step: str, stack: CandidateFacts, parts: Sequence[Part], *, last: bool) -> LeftOut:
        """What each change of a stack contributes, and which one to leave out; nothing is left out in the `last` round."""
        return leave_one_out(self._lab, step, stack, parts, last=last)

    def reveal(self) -> None:
        """Publish the values behind the commitments; the campaign has ended."""
        lab = self._lab
        blobs = Blobs(lab.runner.paths.blobs)
        lab.steps.once("secrets", SecretsRevealed, lambda: SecretsRevealed(blob=blobs.put(lab.vault.revealed())))

    def close(self, *, finished: bool) -> None:
        """End the worker; when the campaign has finished, delete trees, scratch and hidden data."""
        self._lab.drop_comparer()
        if finished:
            for folder in (self._lab.runner.paths.trees, self._lab.runner.paths.scratch, self._lab.runner.paths.hidden):
                shutil.rmtree(folder, ignore_errors=True)

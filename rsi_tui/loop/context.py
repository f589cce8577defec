"""What all roles of one campaign share. Built by `setup`, passed down; nobody reaches around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rsi_tui.contract.model import Contract
from rsi_tui.contract.scope import in_scope
from rsi_tui.errors import RsiError
from rsi_tui.evaluator.ledger import AlphaLedger
from rsi_tui.evaluator.service import Evaluator, Interrupted
from rsi_tui.journal import chain
from rsi_tui.journal.commands import take_commands
from rsi_tui.journal.events import AlphaGranted, Calibrated, CampaignCreated, PersonActed, State, StateChanged
from rsi_tui.journal.facts import CandidateFacts, NoiseFacts, ProfileFacts
from rsi_tui.journal.steps import Steps
from rsi_tui.locations import CampaignPaths, Home
from rsi_tui.loop.memory import Memory
from rsi_tui.loop.recall import Memories
from rsi_tui.loop.steering import Steering
from rsi_tui.minds.protocol import Brief, Mind
from rsi_tui.repo.heads import note_head
from rsi_tui.repo.mirror import Mirror


class Stopped(RsiError):
    """A person ended the search; what was proven stays."""


@dataclass
class Context:
    """One campaign's rooms and state."""

    home: Home
    created: CampaignCreated
    contract: Contract
    """what the evaluator holds fixed"""
    usable: Contract
    """the same with knobs that this machine lacks held at their default; what minds see"""
    mirror: Mirror
    paths: CampaignPaths
    steps: Steps
    mind: Mind
    evaluator: Evaluator
    draw_alpha: Callable[[], AlphaGranted]
    """draws this campaign's error probability from the workload's ledger"""
    memory: Memory
    recall: Callable[[ProfileFacts, int], Memories]
    """what the library says, given the profile and the number of directions so far"""
    cancel: threading.Event
    began: float = field(default_factory=time.monotonic)
    """monotonic time at which it would have begun, had it run without a break"""
    deadline: float | None = None
    """monotonic time at which the hours are used up; a claim that was begun is carried to its end"""
    state: State = "contracted"
    """the last one recorded, never 'paused': what a pause returns to"""
    paused: bool = False
    """by a person, over engines that die, until a person says otherwise"""
    profile: ProfileFacts | None = None
    noise: NoiseFacts | None = None
    no_rounding: str = ""
    """why no candidate may round to bf16 on this machine, a sentence; '' where the contract decides"""
    drawn: AlphaLedger | None = None
    """shares of the error probability, once it was drawn"""
    out_of_time: bool = False
    stop_asked: str = ""
    """who asked for an end, in words; '' while nobody did"""
    alarm: str = ""
    """why nothing of this campaign may be trusted, one sentence; '' while that is not so"""
    approvals: list[PersonActed] = field(default_factory=list)
    """people's words on what was proven (`approving.await_approval`)"""
    steering: Steering = field(default_factory=Steering)
    """people's ideas, pin and budget"""
    vetoes: list[PersonActed] = field(default_factory=list)
    """what people took back, still to be carried out at the next safe point (`revoking.heed_vetoes`)"""
    _sources: dict[str, dict[str, str]] = field(default_factory=dict)

    def sources(self, commit: str) -> dict[str, str]:
        """Editable files of a commit: path -> text."""
        if commit not in self._sources:
            files = self.mirror.read_files(commit, self.contract.editable)
            self._sources[commit] = {path: text for path, text in files.items() if in_scope(self.contract, path)}
        return self._sources[commit]

    @property
    def ledger(self) -> AlphaLedger:
        """The shares of error probability; only after the baseline."""
        if self.drawn is None:
            raise RuntimeError("a verification is asked for before its error probability was drawn")
        return self.drawn

    def open_ledger(self) -> float:
        """Draw the error probability once; returns the whole of it."""
        granted = self.steps.once("alpha", AlphaGranted, self.draw_alpha)
        self.drawn = AlphaLedger(granted.alpha, self.contract.proof.max_verifications)
        return granted.alpha

    @property
    def candidates_left(self) -> int:
        return (self.steering.candidates or self.created.max_candidates) - self.memory.searched

    def baselined(self, found: Calibrated) -> None:
        """Take in what calibration found: noise, and whether candidates may round to bf16 on this machine."""
        self.noise, self.no_rounding = found.noise, found.no_rounding
        if found.no_rounding:
            self.usable = _without_rounding(self.usable)

    def memories(self) -> Memories:
        """What the library says at this point of the search."""
        if self.profile is None:
            raise RuntimeError("the library is asked before the baseline is known")
        return self.recall(self.profile, len(self.memory.directions))

    def brief(self, start: CandidateFacts) -> Brief:
        """What Director and Selector both see, from a start candidate."""
        if self.profile is None or self.noise is None:
            raise RuntimeError("a mind is asked before the baseline is known")
        memories = self.memories()
        return Brief(
            contract=self.usable,
            profile=self.profile,
            sources=self.sources(start.commit),
            attempts=tuple(self.memory.attempts.values()),
            past=memories.past,
            hits=memories.hits,
            candidates_left=self.candidates_left,
            noise_scale=self.noise.pair_scale,
        )

    def enter(self, state: State, reason: str = "") -> None:
        """Record a state once."""
        if self.steps.find(f"state/{state}") is None:
            self.steps.append(StateChanged(state=state, reason=reason), f"state/{state}")
            self.state = state
            self.note_head()

    def note_head(self) -> None:
        """Have the mirror know the journal's newest line too."""
        seq, hash = chain.head(self.paths.journal)
        if seq >= 0:
            note_head(self.mirror.git_dir, self.created.campaign, seq, hash)

    def heed_people(self) -> None:
        """Carry out what people asked for: called wherever the campaign can safely wait or stop.

        A resumed campaign ends only once it has come to the end of its record: before that it does not know
        what is adopted, and could not take back what a person vetoed.
        """
        if self.take():
            self._wait()
        if self.stop_asked and self.steps.live:
            raise Stopped(self.stop_asked)
        if self.cancel.is_set():
            raise Interrupted("Stopped between two trials; `rsi run --resume` continues.")
        if self.steps.live and self.deadline is not None and self.state != "claiming" and time.monotonic() > self.deadline:
            self.out_of_time = True
            raise Stopped("the hours of this campaign are used up")

    def _wait(self) -> None:
        """Until nobody holds the campaign any more; others may have the machine, and the hours stand still."""
        began = time.monotonic()
        with self.evaluator.machine_lent():
            while not self.cancel.wait(0.5) and self.take():
                pass
        if self.deadline is not None:
            self.deadline += time.monotonic() - began

    def take(self) -> bool:
        """Record all that waits, then act on it; whether the campaign is paused afterwards."""
        return self._act(take_commands(self.paths, self._record))

    def _act(self, actions: Sequence[PersonActed]) -> bool:
        self.vetoes += [action for action in actions if action.action == "veto"]
        self.approvals += [action for action in actions if action.action == "approve"]
        for action in actions:
            self._steer(action)
            if action.action == "stop":
                self.stop_asked = f"stopped by {action.who}"
                self.paused = False
                break
            if action.action == "pause" and not self.paused:
                self.steps.append(StateChanged(state="paused", reason=f"by {action.who}"))
                self.paused = True
            elif action.action == "resume" and self.paused:
                self.steps.append(StateChanged(state=self.state, reason=f"resumed by {action.who}"))
                self.paused = False
        return self.paused

    def _steer(self, action: PersonActed) -> None:
        """Heed an idea, a pin or a budget; hours count from the campaign's beginning, as those it was given."""
        before = self.steering.hours or self.created.hours
        self.steering.take(action)
        after = self.steering.hours or self.created.hours
        if action.action != "budget" or after is None or after == before:
            return
        if before is not None and self.deadline is not None:
            self.deadline += 3600 * (after - before)
        else:
            self.deadline = self.began + 3600 * after

    def hear_vetoes(self) -> None:
        """Take what waits when a campaign ends: vetoes are kept, all else comes too late."""
        actions = take_commands(self.paths, self._record)
        self.vetoes += [action for action in actions if action.action == "veto"]

    def _record(self, name: str, action: PersonActed) -> None:
        self.steps.once(f"command/{name}", PersonActed, lambda: action)

    def forget_the_past(self) -> tuple[str, ...]:
        """Take what an engine that has ended never took: a stop is not carried out, all else is.

        Returns one sentence for each command that is dropped.
        """
        kept: list[PersonActed] = []
        dropped: list[str] = []

        def look(name: str, action: PersonActed) -> None:
            if action.action == "stop":
                dropped.append(f"A stop that {action.who} sent to an engine that had ended was dropped.")
            else:
                self._record(name, action)
                kept.append(action)

        take_commands(self.paths, look)
        self._act(kept)
        return tuple(dropped)


def _without_rounding(contract: Contract) -> Contract:
    """The contract as if it allowed no bf16; knobs that touch precision are held at their default."""
    knobs = tuple(k.model_copy(update={"values": (k.default,)}) if "precision" in k.affects else k for k in contract.knobs)
    strict = contract.invariants.model_copy(update={"precision": "fp32", "bf16_twin": ""})
    return contract.model_copy(update={"knobs": knobs, "invariants": strict})

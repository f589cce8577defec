"""What the experience library says to this campaign, asked once for each direction.

The library is opened on first use, after the baseline: its encoder must not share the cores with a
timed run, so opening and indexing hold the host's lease. A resumed campaign that finds its decisions
in the journal does not open it at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from experience.records import EntryKind
from rsi_tui import library as room
from rsi_tui.contract.fingerprint import changed_knobs, terms_hash
from rsi_tui.contract.model import Contract
from rsi_tui.journal.events import CampaignCreated
from rsi_tui.journal.facts import CandidateFacts, ProfileFacts, RetrievedFacts
from rsi_tui.launch.lease import host_lease
from rsi_tui.locations import Home
from rsi_tui.minds.protocol import PastEffect
from rsi_tui.techniques.registry import all_techniques

REFUTED = ("failed", "invalid", "slower")
PAST_LIMIT = 400
HIT_LIMIT = 8
CARD_LIMIT = 4
EXPERIENCE: tuple[EntryKind, ...] = ("hypothesis", "failure", "lesson", "note")
"""kinds of entries that tell what happened; diffs are for the duplicate gate"""


@dataclass(frozen=True)
class Memories:
    """One answer of the library."""

    query: str
    past: tuple[PastEffect, ...]
    hits: tuple[RetrievedFacts, ...]
    refuted: Callable[[CandidateFacts, CandidateFacts, str, str], str | None]
    """(candidate, parent, hypothesis, diff against the parent) -> what refuted the same change under the same conditions, in words"""


class Recall:
    """Opens the library when first asked, keeps the answer of each direction."""

    def __init__(
        self,
        home: Home,
        created: CampaignCreated,
        contract: Contract,
        *,
        retry: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`retry`: nothing that failed before stands in the way; `tell` is told when the machine is busy."""
        self._home, self._created, self._contract = home, created, contract
        self._retry, self._tell = retry, tell
        self._library: room.ExperienceLibrary | None = None
        self._answers: dict[int, Memories] = {}

    def __call__(self, profile: ProfileFacts, directions: int) -> Memories:
        """What the library says with this profile, before the next direction."""
        if directions not in self._answers:
            self._answers[directions] = self._ask(profile)
        return self._answers[directions]

    @property
    def library(self) -> room.ExperienceLibrary:
        """The library, opened and given the technique cards on first use."""
        if self._library is None:
            with host_lease("opening the experience library", on_wait=self._tell):
                self._library = room.open_library(self._home, patient=True)
                room.add_technique_cards(self._library, all_techniques())
        return self._library

    def sync(self) -> None:
        """Bring this campaign's journal into the library."""
        library = self.library
        with host_lease("indexing this campaign", on_wait=self._tell):
            room.sync(library, self._home, self._created.campaign)

    def close(self) -> None:
        """Let go of the library's files."""
        if self._library is not None:
            self._library.close()
            self._library = None

    @property
    def _here(self) -> room.Conditions:
        """Where the answers are used, the profile apart."""
        return room.Conditions(
            workload_key=self._created.workload_key,
            hardware=self._created.host["hardware"],
            software=self._created.host["software"],
            base_commit=self._created.base_commit,
            terms=terms_hash(self._created.contract),
            memory_limit_bytes=self._contract.launch.memory_limit_bytes,
        )

    def _binding(self, effect: PastEffect) -> PastEffect:
        """The effect as it counts here: with --retry no failure of the past stands in the way."""
        return replace(effect, same_conditions=False) if self._retry else effect

    def _ask(self, profile: ProfileFacts) -> Memories:
        query = describe(self._created.workload, profile)
        conditions = replace(self._here, profile={phase.name: phase.share for phase in profile.phases})
        answer = room.recall(self.library, query, conditions, PAST_LIMIT, HIT_LIMIT, EXPERIENCE)
        cards = room.hits(self.library, query, conditions, CARD_LIMIT, ("knowledge",))
        own = f"{self._created.campaign}/"
        past = tuple(self._binding(effect) for effect in answer.past if not effect.record.startswith(own))
        return Memories(query, past, (*answer.hits, *cards), self._refuted)

    def _refuted(self, candidate: CandidateFacts, parent: CandidateFacts, statement: str, diff: str) -> str | None:
        if self._retry:
            return None
        repeats = self.library.duplicates(
            diff_hash=candidate.diff_hash,
            launch_fingerprint=candidate.launch_fingerprint,
            base_stack=parent.techniques,
            conditions=self._here,
            techniques=candidate.techniques,
            knobs=changed_knobs(self._contract, candidate.knobs),
            statement=statement,
            diff=diff,
        )
        for repeat in repeats:
            row = repeat.row
            if row.verdict in REFUTED and row.campaign != self._created.campaign:
                return f"{row.id} was {row.verdict} under the same conditions ({row.reason}); {repeat.why}"
        return None


def describe(workload: str, profile: ProfileFacts) -> str:
    """The question to the library: what the profile says is slow, in words."""
    phases = sorted(profile.phases, key=lambda phase: -phase.share)[:3]
    operators = [operator.name for operator in profile.operators[:6]]
    return f"{workload}: time in {', '.join(p.name for p in phases)}; operators {', '.join(operators)}"

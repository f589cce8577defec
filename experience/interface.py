"""The one interface of the library, in prose. Every implementation passes tests/experience.

What is promised
- The library is a projection of journals. It can be deleted; a reader gives it back. After every
  open each journal's head is compared with what is stored, and what is missing is replayed.
- `ingest` replaces all rows of one campaign at once: doing it twice changes nothing, a reader never
  sees half of it, and what it returned from survives a kill.
- Search answers by words alone when meaning can't be had, and every hit then says so.
- Ids are unique over homes.
What is not promised
- Knowledge given to `add_knowledge` is in no journal of a campaign: who adds it adds it again after
  the tables were lost (knowledge that the reader gives comes back by itself).
- Order among equal scores.
Errors are of `experience.errors`: LockedError when another process has the library open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from experience.conditions import Conditions
from experience.records import (
    Batch,
    CampaignRow,
    CandidateRow,
    DirectionRow,
    Entry,
    EntryKind,
    RetrievalRow,
    TrialRow,
)

HOME = "home"
"""campaign id of the entries that come from the home's own journal"""

Record = Entry | CandidateRow | TrialRow | DirectionRow | CampaignRow
KnobValues = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Head:
    """Where a journal ends."""

    campaign: str
    last_seq: int
    head: str
    """hash of the last event"""


class Reader(Protocol):
    """The journals, as the library sees them."""

    def heads(self) -> Sequence[Head]:
        """One of each journal; `HOME` stands for the home's own."""

    def batch(self, campaign: str) -> Batch:
        """All rows of a campaign; UnreadableJournalError when its journal is damaged."""

    def knowledge(self) -> Sequence[Entry]:
        """Notes and knowledge of the home's journal, with campaign HOME."""


@dataclass(frozen=True)
class Filters:
    """What a hit must have; '' is no filter."""

    workload_key: str = ""
    layer: str = ""
    hardware: str = ""
    outcome: str = ""
    since: str = ""
    """UTC, ISO 8601, or the beginning of one: only what was written then or later"""


@dataclass(frozen=True)
class Hit:
    """One entry found, and why."""

    entry: Entry
    score: float
    """0..1: relevance by both rankings times fit of conditions; comparable within one answer only"""
    why: str
    """terms found, distance of meaning, conditions that match and that do not"""


@dataclass(frozen=True)
class PastCandidate:
    """A candidate of the past and how far it carries over."""

    row: CandidateRow
    fit: float
    """0..1, see experience.conditions"""
    same_workload: bool


@dataclass(frozen=True)
class Calibration:
    """Predictions of one technique, or one mind, against what was measured. Effects are log ratios of step time."""

    by: Literal["technique", "mind"]
    name: str
    hits: int
    """what was measured lies within half of the prediction, or 0.01, of it"""
    overshoots: int
    """faster, but by less than was predicted"""
    undershoots: int
    """faster by more"""
    misses: int
    """no faster, where faster was predicted, or the reverse"""
    failed: int
    """no effect could be measured"""
    factor: float
    """what a prediction is worth multiplied by, 0..2: the ratio of measured to predicted, drawn to 1 as if by two predictions that came true"""

    @property
    def predictions(self) -> int:
        return self.hits + self.overshoots + self.undershoots + self.misses + self.failed


Sameness = Literal["same change", "same techniques and settings", "similar code", "similar words"]


@dataclass(frozen=True)
class Repeat:
    """A past failure or refutation that a proposal would repeat."""

    row: CandidateRow
    by: Sameness
    likeness: float
    """1 where what was run is the same, else how alike code or words are, 0..1"""
    why: str
    """what is the same, and what would have to differ"""


@dataclass(frozen=True)
class Stats:
    """What the library holds."""

    campaigns: int
    directions: int
    candidates: int
    trials: int
    entries: Mapping[str, int]
    """kind -> number"""
    vectors: int
    """entries that can be found by meaning"""
    disk_bytes: int
    encoder: str
    notes: tuple[str, ...]
    """what was repaired or could not be done since it was opened, one sentence each"""


class ExperienceLibrary(Protocol):
    """Everything that was ever tried, and how it ended."""

    def ingest(self, batch: Batch) -> None:
        """Store all rows of a campaign in place of those it had."""

    def search(
        self,
        text: str,
        kinds: Sequence[EntryKind] | None = None,
        filters: Filters | None = None,
        limit: int = 10,
        conditions: Conditions | None = None,
    ) -> list[Hit]:
        """Entries that match by words or by meaning, best first, near-repeats pushed down."""

    def past_candidates(
        self,
        workload_key: str | None,
        hardware: str,
        software: str,
        limit: int,
        profile: Mapping[str, float] | None = None,
    ) -> list[PastCandidate]:
        """Candidates that ran: proven here first, then proven elsewhere, then the rest, each by fit."""

    def duplicates(
        self,
        diff_hash: str,
        launch_fingerprint: str,
        base_stack: Sequence[str],
        conditions: Conditions,
        techniques: Sequence[str],
        knobs: KnobValues,
        statement: str = "",
        diff: str = "",
    ) -> list[Repeat]:
        """Past failures and refutations of the same change under the same conditions, the surest first.

        By same normalised diff and launch fingerprint; by same techniques and knobs; and where `diff` (against the parent) or
        `statement` (the hypothesis) is given, among changes with the same knobs, by likeness of the code and of what the hypotheses mean. The
        base stack and all conditions but the profile must be known and equal, and the memory limit too; an
        out-of-memory failure repeats under any limit up to what it had plus what it asked for.
        Proven changes, members of a bundle, and runs that were not measured are no duplicates.
        """

    def campaigns(self) -> list[CampaignRow]:
        """All campaigns, newest first."""

    def lessons(self, conditions: Conditions | None = None, layer: str = "", limit: int = 20) -> list[Hit]:
        """Lessons by fit of conditions, then newest first."""

    def calibration(self) -> list[Calibration]:
        """How predictions came true: of each mind, and of each technique that was tried alone; most predictions first."""

    def retrievals(self, campaign: str = "", limit: int = 100) -> list[RetrievalRow]:
        """What was asked, by one campaign or by all, newest first."""

    def record_of(self, id: str) -> Record | None:
        """The entry, candidate, trial, direction or campaign of that id."""

    def add_knowledge(self, entries: Iterable[Entry]) -> None:
        """Store entries in place of those of the same source (without a source: of the same id)."""

    def stats(self) -> Stats:
        """Counts, sizes and notes."""

    def fingerprint(self) -> str:
        """Hash of all rows and of what each vector was made from; vectors that wait are made first."""

    def last_seq(self, campaign: str) -> int:
        """Sequence number of the last event stored; -1 when the campaign is not known."""

    def sync(self, campaign: str) -> None:
        """Bring a campaign up to its journal as it is now; UnreadableJournalError when that is damaged."""

    def rebuild(self) -> list[str]:
        """Forget what journals give, and all vectors, and make them again from the reader.

        Knowledge stays, and so do campaigns that were sent and whose journals the reader does not have.

        Returns one sentence for each journal that could not be read.
        """

    def catch_up(self) -> list[str]:
        """Store what the reader has and the tables lack; one sentence for each journal that could not be read."""

    def export(self, folder: str) -> int:
        """Write all tables as Parquet, and Markdown for people, into an empty or new folder; the number of campaigns.

        The folder is one of the machine that holds the library. ExperienceError when it holds something, or can't be written.
        """

    def compact(self) -> None:
        """Give back the disk that replaced rows and vectors still take."""

    def close(self) -> None:
        """Flush and let go of the files."""

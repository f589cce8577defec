"""The questions that a mind is asked, and the shape of its answers.

The program drives; a mind only answers, and never supplies a number that counts. Every brief is a
value: the same brief in gives, from the builtin mind, the same answer out. No brief holds a
threshold, a seed, an order or a result of an open block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from rsi_tui.contract.model import Contract, KnobValue, Layer
from rsi_tui.journal.events import Role
from rsi_tui.journal.facts import (
    CandidateFacts,
    DirectionFacts,
    ProfileFacts,
    RetrievedFacts,
    ReviewFacts,
    ScreenFacts,
    StartKind,
    VerdictFacts,
)


@dataclass(frozen=True)
class Attempt:
    """One candidate of this campaign and all that is known of it."""

    candidate: CandidateFacts
    direction: str
    predicted_time: float
    predicted_memory: float
    screen: ScreenFacts | None
    verdict: VerdictFacts | None
    review: ReviewFacts | None
    added: tuple[str, ...] = ()
    """techniques that it added to its parent"""


@dataclass(frozen=True)
class PastEffect:
    """What the library knows of one change from earlier campaigns."""

    record: str
    """id of the library entry"""
    techniques: tuple[str, ...]
    knobs: Mapping[str, KnobValue]
    """knobs that differ from the defaults"""
    verdict: str
    """adopted, slower, invalid, failed, not_proven, ... or 'screened'"""
    outcome: str
    """outcome of its trials"""
    log_ratio: float | None
    fit: float
    """0..1: how well hardware, versions, workload and profile match"""
    same_workload: bool
    stack: tuple[str, ...] = ()
    """techniques of the base it was tried on"""
    reason: str = ""
    same_conditions: bool = False
    """same program, contract, machine, versions, and a memory limit that decides the same: what failed would fail again"""


@dataclass(frozen=True)
class Brief:
    """What Director and Selector both see."""

    contract: Contract
    profile: ProfileFacts
    sources: Mapping[str, str]
    """editable Python files of the start commit"""
    attempts: tuple[Attempt, ...]
    past: tuple[PastEffect, ...]
    hits: tuple[RetrievedFacts, ...]
    candidates_left: int
    noise_scale: float
    """pair scale; effects far below it can't be proven alone"""


@dataclass(frozen=True)
class Proposal:
    """A person's idea, in their own words."""

    id: str
    """p1, p2, ..."""
    who: str
    text: str


@dataclass(frozen=True)
class DirectorBrief(Brief):
    open_or_closed: tuple[DirectionFacts, ...] = ()
    """directions so far, oldest first"""
    best: str = "original"
    previous_refusal: str = ""
    """why the answer to this very question was refused; '' when it is asked first"""
    pinned: str = ""
    """candidate that a person wants directions to start from; '' leaves it to the Director"""
    proposals: tuple[Proposal, ...] = ()
    """people's ideas that no direction has answered yet, oldest first"""


@dataclass(frozen=True)
class DirectionAnswer:
    """A direction to open."""

    question: str
    layer: Layer
    start_kind: StartKind
    start: str
    techniques: tuple[str, ...]
    reason: str
    expected_gain: float
    budget: int
    closing_rule: str
    evidence: tuple[str, ...] = ()
    used_hits: Mapping[str, str] = field(default_factory=dict)
    """record id -> what it changed"""
    reproduces: str = ""
    """record of a past proof that is verified at once, as a whole, whether it holds here; '' for a search"""
    proposal: str = ""
    """id of the person's idea that it answers; '' for none"""


@dataclass(frozen=True)
class Decline:
    """A person's idea can't be tried."""

    proposal: str
    reason: str


@dataclass(frozen=True)
class EndSearch:
    """No further direction is worth its cost."""

    reason: str


@dataclass(frozen=True)
class SelectorBrief(Brief):
    direction: DirectionFacts | None = None
    round: int = 1
    archive: tuple[CandidateFacts, ...] = ()
    """parents to choose from: original, best, time/peak-memory frontier, the direction's start"""
    archive_sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """by candidate of the archive: its editable files"""
    previous_refusal: str = ""
    """the last refusal of this direction, with the hypothesis that it was about; '' when there was none"""


@dataclass(frozen=True)
class HypothesisAnswer:
    parent: str
    statement: str
    techniques: tuple[str, ...]
    knobs: Mapping[str, KnobValue]
    predicted_time: float
    predicted_memory: float
    refuted_by: str
    evidence: tuple[str, ...] = ()
    used_hits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CloseDirection:
    reason: str


@dataclass(frozen=True)
class ExecutorBrief:
    contract: Contract
    profile: ProfileFacts | None
    hypothesis: HypothesisAnswer
    sources: Mapping[str, str]
    """editable files of the parent commit"""
    parent_knobs: Mapping[str, KnobValue]
    previous_refusal: str = ""
    """the last refusal of this direction, with the hypothesis that it was about; '' when there was none"""
    direction: DirectionFacts | None = None
    parent_commit: str = ""
    """commit of the mirror that holds the parent, for a mind that works in a worktree"""


@dataclass(frozen=True)
class ChangeAnswer:
    """Either whole new texts, or a unified diff; and knobs."""

    sources: Mapping[str, str] = field(default_factory=dict)
    diff: str = ""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    affects: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class ReviewBrief:
    """Diff and direction, and nothing about time: the reviewer is blind to the score."""

    direction: DirectionFacts
    statement: str
    diff: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    knobs_before: Mapping[str, KnobValue]
    knobs_after: Mapping[str, KnobValue]
    contract: Contract


@dataclass(frozen=True)
class ReviewAnswer:
    on_direction: bool
    reason: str
    exploit: Literal["no", "yes"] = "no"
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class LessonBrief:
    direction: DirectionFacts
    attempts: tuple[Attempt, ...]
    closing_reason: str


@runtime_checkable
class Foreseeing(Protocol):
    """A mind that can think about a question to come while another one is answered."""

    def foresee(self, role: Role, direction: str, question: Callable[[], object]) -> None:
        """Begin to answer in another thread; the very same question, asked later, takes that answer. `direction`: '' for the Director.

        Decides nothing and raises nothing; where the question turns out otherwise, the answer is never used.
        """


class Mind(Protocol):
    """Who thinks for the roles."""

    name: str

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch | Decline:
        """What to investigate next, from where, and why; or why a person's idea is not."""

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        """One falsifiable hypothesis within the direction, or that it is exhausted."""

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        """The change that tests the hypothesis."""

    def review(self, brief: ReviewBrief) -> ReviewAnswer:
        """Is the diff on its direction, and is it honest?"""

    def lesson(self, brief: LessonBrief) -> str:
        """What the closed direction taught, one or two sentences."""

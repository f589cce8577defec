"""What this campaign knows so far: directions, attempts, verdicts. Rebuilt by replaying its steps.

"Best" is a query over proven verdicts; there is no pointer to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rsi_tui.journal.events import CanaryKind, Revoked
from rsi_tui.journal.facts import (
    ORIGINAL,
    CandidateFacts,
    DirectionFacts,
    HypothesisFacts,
    ReviewFacts,
    ScreenFacts,
    VerdictFacts,
)
from rsi_tui.minds.protocol import Attempt
from rsi_tui.search.archive import Standing, frontier


@dataclass
class Memory:
    """State of the search, in the order in which it happened."""

    original: CandidateFacts
    directions: list[DirectionFacts] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """by candidate id; bundles included"""
    refusals: dict[str, str] = field(default_factory=dict)
    """by direction: the last refusal in it"""
    canaries: list[tuple[CanaryKind, CandidateFacts | None]] = field(default_factory=list)
    """planted by the evaluator's side, in order, None where the program has no place for one; no mind sees them"""
    refuted: set[str] = field(default_factory=set)
    """candidates whose adoption was taken back: nothing is built on them"""
    verified: list[str] = field(default_factory=list)
    """candidates in the order in which the ledger gave them their error probability"""
    offered: list[str] = field(default_factory=list)
    """candidates that were offered to the evaluator as savings of memory"""
    hypotheses: int = 0
    candidates: int = 0
    """ids given out, bundles included"""
    _judged: list[str] = field(default_factory=list)
    """in the order of their last verdicts"""

    @property
    def searched(self) -> int:
        """Candidates that count against the budget: all but bundles."""
        return sum(1 for attempt in self.attempts.values() if not attempt.candidate.members)

    def candidate(self, id: str) -> CandidateFacts:
        return self.original if id == ORIGINAL else self.attempts[id].candidate

    def parent(self, candidate: CandidateFacts) -> CandidateFacts:
        """What a candidate was built on; the original is its own."""
        return self.candidate(candidate.parent or ORIGINAL)

    def knows(self, id: str) -> bool:
        """May something be built on it?"""
        return id == ORIGINAL or (id in self.attempts and id not in self.refuted)

    def made_of(self, id: str) -> set[str]:
        """Candidates whose code is in one, itself included."""
        return made_of(id, {known: attempt.candidate for known, attempt in self.attempts.items()})

    def reproduces(self, direction: str) -> bool:
        """Does the direction ask whether a proven change of the past holds here?"""
        return any(known.id == direction and known.reproduces for known in self.directions)

    def add(self, candidate: CandidateFacts, direction: str, hypothesis: HypothesisFacts | None) -> None:
        self.candidates += 1
        self.attempts[candidate.id] = Attempt(
            candidate=candidate,
            direction=direction,
            predicted_time=hypothesis.predicted_time if hypothesis else 0.0,
            predicted_memory=hypothesis.predicted_memory if hypothesis else 0.0,
            screen=None,
            verdict=None,
            review=None,
            added=self.added(candidate),
        )

    def added(self, candidate: CandidateFacts) -> tuple[str, ...]:
        """Techniques that a candidate added to its parent."""
        below = self.parent(candidate).techniques
        return tuple(technique for technique in candidate.techniques if technique not in below)

    def reviewed(self, review: ReviewFacts) -> None:
        self.attempts[review.candidate] = replace(self.attempts[review.candidate], review=review)

    def screened(self, screen: ScreenFacts) -> None:
        self.attempts[screen.candidate] = replace(self.attempts[screen.candidate], screen=screen)

    def judged(self, verdict: VerdictFacts) -> None:
        self._judged = [*(id for id in self._judged if id != verdict.candidate), verdict.candidate]
        self.attempts[verdict.candidate] = replace(self.attempts[verdict.candidate], verdict=verdict)

    def revoke(self, revoked: Revoked) -> None:
        """Take an adoption back: it is not proven, and what rested on it is open again."""
        self.refuted.add(revoked.candidate)
        attempt = self.attempts[revoked.candidate]
        if attempt.verdict is not None:
            reasons = (f"taken back by {revoked.who}: {revoked.reason}",)
            changed = attempt.verdict.model_copy(update={"verdict": "not_proven", "reasons": reasons})
            self.attempts[revoked.candidate] = replace(attempt, verdict=changed)
        for id in revoked.reopened:
            self.attempts[id] = replace(self.attempts[id], verdict=None)

    @property
    def adopted(self) -> list[Attempt]:
        """What is adopted, in the order of verdicts."""
        return [a for id in self._judged if (a := self.attempts[id]).verdict and a.verdict.verdict == "adopted"]

    @property
    def best(self) -> CandidateFacts:
        """The candidate adopted last, each being proven against the best before it; the original while there is none."""
        adopted = self.adopted
        return adopted[-1].candidate if adopted else self.original

    @property
    def promoted(self) -> list[Attempt]:
        """Screened, promising, and not yet settled by a verdict, alone or in a join; largest effect first."""
        joined = {member for a in self.attempts.values() if a.verdict for member in a.candidate.members}
        open_ = (a for a in self.attempts.values() if a.verdict is None and a.candidate.id not in joined)
        waiting = [a for a in open_ if a.screen and a.screen.promoted]
        return sorted(waiting, key=lambda a: a.screen.log_ratio or 0.0 if a.screen else 0.0)

    def effect(self, id: str) -> tuple[str, float] | None:
        """(incumbent, log-ratio of time to it) from screening, else from the verdict; None when neither has a time."""
        attempt = self.attempts[id]
        if attempt.screen is not None and attempt.screen.log_ratio is not None:
            return attempt.screen.incumbent, attempt.screen.log_ratio
        if attempt.verdict is not None and attempt.verdict.log_ratio is not None:
            return attempt.verdict.incumbent, attempt.verdict.log_ratio
        return None

    def log_time(self, id: str) -> float | None:
        """Log-ratio of a candidate's time to the original's, along its chain of incumbents."""
        if id == ORIGINAL:
            return 0.0
        known = self.effect(id)
        below = self.log_time(known[0]) if known is not None else None
        return None if known is None or below is None else below + known[1]

    def archive(self) -> tuple[CandidateFacts, ...]:
        """Parents to choose from: original and best first, then the time/peak-memory frontier."""
        standings = []
        for id, attempt in self.attempts.items():
            time = self.log_time(id)
            broken = attempt.verdict is not None and attempt.verdict.verdict in ("invalid", "off_direction", "failed")
            if time is not None and not broken and not self.made_of(id) & self.refuted:
                standings.append(Standing(attempt.candidate, time, self._peak_bytes(attempt)))
        found = [self.original, self.best, *(s.candidate for s in frontier(standings))]
        return tuple({candidate.id: candidate for candidate in found}.values())

    def _peak_bytes(self, attempt: Attempt) -> int | None:
        measured = attempt.screen or attempt.verdict
        return measured.peak_bytes if measured is not None else None

    def tried(self, direction: str) -> tuple[Attempt, ...]:
        """The candidates of a direction that count against its budget: all but joins."""
        return tuple(a for a in self.within(direction) if not a.candidate.members)

    def within(self, direction: str) -> tuple[Attempt, ...]:
        return tuple(a for a in self.attempts.values() if a.direction == direction)


def made_of(id: str, candidates: Mapping[str, CandidateFacts]) -> set[str]:
    """A candidate, its line of parents, and the members of joins among them: all whose code is in it."""
    found: set[str] = set()
    waiting = [id]
    while waiting:
        current = waiting.pop()
        if current in candidates and current not in found:
            found.add(current)
            members = (member.partition(":")[0] for member in candidates[current].members)
            waiting += [candidates[current].parent or ORIGINAL, *members]
    return found

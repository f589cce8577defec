"""What this campaign knows so far: directions, attempts, verdicts. Rebuilt by replaying its steps.

"Best" is a query over proven verdicts; there is no pointer to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    hypotheses: int = 0
    candidates: int = 0
    """ids given out, bundles included"""

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
        return id == ORIGINAL or id in self.attempts

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
        self.attempts[verdict.candidate] = replace(self.attempts[verdict.candidate], verdict=verdict)

    @property
    def best(self) -> CandidateFacts:
        """The last adopted candidate that no later verdict on the same line has revoked; else the original."""
        adopted = [a.candidate for a in self.attempts.values() if a.verdict and a.verdict.verdict == "adopted"]
        return adopted[-1] if adopted else self.original

    @property
    def promoted(self) -> list[Attempt]:
        """Screened, promising, and not yet judged; largest effect first."""
        waiting = [a for a in self.attempts.values() if a.screen and a.screen.promoted and a.verdict is None]
        return sorted(waiting, key=lambda a: a.screen.log_ratio or 0.0 if a.screen else 0.0)

    def log_time(self, id: str) -> float | None:
        """Log-ratio of a candidate's time to the original's, along its chain of incumbents."""
        if id == ORIGINAL:
            return 0.0
        screen = self.attempts[id].screen
        if screen is None or screen.log_ratio is None:
            return None
        below = self.log_time(screen.incumbent)
        return None if below is None else below + screen.log_ratio

    def archive(self) -> tuple[CandidateFacts, ...]:
        """Parents to choose from: original and best first, then the time/peak-memory frontier."""
        standings = []
        for id, attempt in self.attempts.items():
            time = self.log_time(id)
            broken = attempt.verdict is not None and attempt.verdict.verdict in ("invalid", "off_direction", "failed")
            if time is not None and not broken and attempt.screen is not None:
                standings.append(Standing(attempt.candidate, time, attempt.screen.peak_bytes))
        found = [self.original, self.best, *(s.candidate for s in frontier(standings))]
        return tuple({candidate.id: candidate for candidate in found}.values())

    def within(self, direction: str) -> tuple[Attempt, ...]:
        return tuple(a for a in self.attempts.values() if a.direction == direction)

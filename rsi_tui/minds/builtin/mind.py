"""The builtin mind: known techniques, chosen by profile and library. No key, no network."""

from __future__ import annotations

from statistics import fmean

from rsi_tui.minds.builtin.director import direct
from rsi_tui.minds.builtin.reviewer import review
from rsi_tui.minds.builtin.selector import select
from rsi_tui.minds.protocol import (
    ChangeAnswer,
    CloseDirection,
    Decline,
    DirectionAnswer,
    DirectorBrief,
    EndSearch,
    ExecutorBrief,
    HypothesisAnswer,
    LessonBrief,
    ReviewAnswer,
    ReviewBrief,
    SelectorBrief,
)
from rsi_tui.search.acquisition import percent
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import apply_all, get


class BuiltinMind:
    """Answers every question from the techniques, the profile and the library."""

    name = "builtin"

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch | Decline:
        return direct(brief)

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        return select(brief)

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        """Apply the hypothesis's techniques to the parent; raises PatchError when one changes nothing."""
        situation = Situation(brief.sources, brief.contract, brief.profile, brief.parent_knobs)
        change = apply_all(brief.hypothesis.techniques, situation)
        affects = {effect for id in brief.hypothesis.techniques for effect in get(id, brief.contract).affects}
        return ChangeAnswer(
            sources=change.sources,
            knobs={**change.knobs, **brief.hypothesis.knobs},
            affects=tuple(sorted(affects)),
            techniques=brief.hypothesis.techniques,
        )

    def review(self, brief: ReviewBrief) -> ReviewAnswer:
        return review(brief)

    def lesson(self, brief: LessonBrief) -> str:
        """Prediction against outcome of each attempt, in one or two sentences."""
        told = []
        for attempt in brief.attempts:
            name = ", ".join(attempt.added) or attempt.candidate.id
            screen = attempt.screen
            if screen is not None and screen.log_ratio is not None:
                told.append(f"{name} {percent(screen.log_ratio)} (predicted {percent(attempt.predicted_time)})")
            elif screen is not None:
                told.append(f"{name} {screen.outcome}")
            elif attempt.verdict is not None:
                told.append(f"{name} {attempt.verdict.verdict}")
        measured = [a.screen.log_ratio for a in brief.attempts if a.screen and a.screen.log_ratio is not None]
        mean = f" On average {percent(fmean(measured))}." if len(measured) > 1 else ""
        return f"{brief.direction.layer}: " + ("; ".join(told) or "nothing could be tried") + "." + mean

"""What people ask of a search while it runs: ideas to try, the commit to start from, another budget.

All of it is commands in the journal (`PersonActed`), so that it survives the engine. A pin and a budget bind the loop,
whatever a mind answers; an idea is put to the Director until a direction answers it or it is declined with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rsi_tui.errors import UsageError
from rsi_tui.journal.events import Event, PersonActed
from rsi_tui.journal.view import CampaignView
from rsi_tui.minds.protocol import Proposal

MOST_CANDIDATES, MOST_HOURS = 100_000, 10_000.0


@dataclass
class Steering:
    """The last word of people on each thing."""

    pinned: str = ""
    """candidate that directions start from: 'original', 'best', or its id; '' leaves it to the Director"""
    candidates: int | None = None
    """budget of candidates in place of the campaign's own"""
    hours: float | None = None
    """budget of hours in place of the campaign's own"""
    proposals: list[Proposal] = field(default_factory=list)
    """every idea, oldest first"""

    @classmethod
    def of(cls, past: Iterable[Event]) -> Steering:
        """From a campaign's record."""
        steering = cls()
        for event in past:
            if isinstance(event.body, PersonActed):
                steering.take(event.body)
        return steering

    def take(self, action: PersonActed) -> None:
        """Heed a command; others than ideas, pins and budgets are not its business."""
        if action.action == "propose" and action.text.strip():
            self.proposals.append(Proposal(f"p{len(self.proposals) + 1}", action.who, action.text.strip()))
        elif action.action == "pin":
            self.pinned = action.text.strip()
        elif action.action == "budget":
            candidates, hours = read_budget(action.text)
            self.candidates = candidates if candidates is not None else self.candidates
            self.hours = hours if hours is not None else self.hours


def budget_text(candidates: int | None, hours: float | None) -> str:
    """A budget as a command's text. Raises UsageError for one that can't be meant."""
    if candidates is None and hours is None:
        raise UsageError("say what the budget is: rsi budget --candidates 40, or --hours 3, or both.")
    if candidates is not None and not 1 <= candidates <= MOST_CANDIDATES:
        raise UsageError(f"a budget of candidates is a number from 1 to {MOST_CANDIDATES}, not {candidates}.")
    if hours is not None and not (math.isfinite(hours) and 0 < hours <= MOST_HOURS):
        raise UsageError(f"a budget of hours is a number above 0 and up to {MOST_HOURS:.0f}, not {hours}.")
    parts = [f"candidates={candidates}"] if candidates is not None else []
    return " ".join([*parts, *([f"hours={hours:g}"] if hours is not None else [])])


def read_budget(text: str) -> tuple[int | None, float | None]:
    """(candidates, hours) of a command's text; None for what it does not say."""
    found = dict(re.findall(r"\b(candidates|hours)=([0-9.]+)", text))
    try:
        return (int(found["candidates"]) if "candidates" in found else None), (float(found["hours"]) if "hours" in found else None)
    except ValueError:
        return None, None


def check_pin(view: CampaignView, start: str) -> str:
    """The text of a pin: 'original', 'best', a candidate of the campaign, or '' for 'none'. Raises UsageError."""
    if start == "none":
        return ""
    if start in ("original", "best"):
        return start
    known = view.candidates.get(start)
    if known is None:
        raise UsageError(f"{view.id} has no candidate {start}; pin original, best, none, or one that `rsi show {view.id}` lists.")
    if known.standing in ("failed", "invalid", "off_direction", "revoked"):
        raise UsageError(f"{start} is {known.standing.replace('_', ' ')}, so that nothing is built on it; pin another candidate.")
    return start


def pinned(view: CampaignView) -> str:
    """What people pinned last; '' for nothing."""
    return next((body.text.strip() for _, body in reversed(view.people) if body.action == "pin"), "")

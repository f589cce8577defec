"""What a search cost against what it saves, at a use that a person states. Arithmetic alone: nothing is estimated.

A saving is the claim's: the share of training time that the proven speed-up takes away, with its interval. Without a
proven claim nothing is saved.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from rsi_tui.errors import UsageError
from rsi_tui.journal.facts import ClaimFacts

MOST_HOURS = 1e9


@dataclass(frozen=True)
class Usage:
    """What a person says of their use of the program."""

    hours_per_month: float
    """machine hours of training a month, at the speed before"""
    usd_per_hour: float | None = None
    """price of a machine hour; None where it is not given"""

    @classmethod
    def asked(cls, hours_per_month: float | None, usd_per_hour: float | None) -> Usage | None:
        """From the command line; UsageError for values that can't be meant."""
        for name, value in (("--hours-per-month", hours_per_month), ("--usd-per-hour", usd_per_hour)):
            if value is not None and not (math.isfinite(value) and 0 <= value <= MOST_HOURS):
                raise UsageError(f"{name} must be a number from 0 to {MOST_HOURS:.0e}, not {value}.")
        if hours_per_month is None:
            if usd_per_hour is not None:
                raise UsageError("--usd-per-hour needs --hours-per-month: a saving is counted over the hours of a month.")
            return None
        return cls(float(hours_per_month), None if usd_per_hour is None else float(usd_per_hour))

    @classmethod
    def read(cls, value: Any) -> Usage | None:
        """From a report's JSON; ValueError when it is no usage."""
        if value is None:
            return None
        return cls(float(value["hours_per_month"]), None if value["usd_per_hour"] is None else float(value["usd_per_hour"]))

    @classmethod
    def parse(cls, text: str) -> Usage | None:
        """From a report's closing line, as `words` writes it; None when it is none."""
        found = re.fullmatch(r"(\S+) h a month(?: at (\S+) USD an hour)?", text)
        try:
            return cls(float(found[1]), float(found[2]) if found[2] else None) if found else None
        except ValueError:
            return None

    @property
    def words(self) -> str:
        price = f" at {self.usd_per_hour!r} USD an hour" if self.usd_per_hour is not None else ""
        return f"{self.hours_per_month!r} h a month{price}"

    def as_json(self) -> dict[str, float | None]:
        return asdict(self)


def payback(usage: Usage | None, claim: ClaimFacts | None, searched_s: float) -> dict[str, Any] | None:
    """Hours and money saved a month, low to high, and the days of that use after which the search is paid; None without usage."""
    if usage is None:
        return None
    cost_hours = searched_s / 3600
    cost = {"hours": cost_hours, "usd": cost_hours * usage.usd_per_hour if usage.usd_per_hour is not None else None}
    if claim is None or not claim.proven or claim.speedup is None:
        return {"cost": cost, "saved_a_month": None, "days": None}
    of_time = {name: 1 - 1 / getattr(claim.speedup, name) for name in ("low", "estimate", "high")}
    hours = {name: share * usage.hours_per_month for name, share in of_time.items()}
    usd = {name: value * usage.usd_per_hour for name, value in hours.items()} if usage.usd_per_hour is not None else None
    days = cost_hours / hours["estimate"] * 30 if hours["estimate"] > 0 else None
    return {"cost": cost, "saved_a_month": {"hours": hours, "usd": usd}, "days": days}

"""What recomputing finds: one check a figure, of the record against what follows from the runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec

from rsi_tui.errors import RsiError
from rsi_tui.journal.facts import Interval

TOLERANCE = 1e-9
"""relative; the same functions on the same machine's floats give the same bits, another processor may differ in the last"""
UNFIT = (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, RsiError)
"""what the evaluator's functions raise on values that no run has"""

P = ParamSpec("P")
Value = float | int | str | bool | None


@dataclass(frozen=True)
class Check:
    """One figure of the record against what follows from the runs."""

    figure: str
    recorded: Value
    follows: Value
    """what the runs say"""
    right: bool | None
    """None: the record lacks what the figure needs"""
    why: str = ""
    """of one that is not recomputable: what is lacking"""


@dataclass
class Checks:
    """Collects checks; each method adds one or more."""

    found: list[Check] = field(default_factory=list)

    def same(self, figure: str, recorded: Value, follows: Value) -> None:
        self.found.append(Check(figure, recorded, follows, alike(recorded, follows)))

    def holds(self, figure: str, right: bool, recorded: Value, follows: Value) -> None:
        self.found.append(Check(figure, recorded, follows, right))

    def lacks(self, figure: str, recorded: Value, why: str) -> None:
        self.found.append(Check(figure, recorded, None, None, why))

    def interval(self, figure: str, recorded: Interval | None, follows: Interval | None) -> None:
        if recorded is None or follows is None:
            self.holds(figure, recorded is follows, _words(recorded), _words(follows))
            return
        for name in ("estimate", "low", "high", "confidence"):
            self.same(f"{figure}, {name}", getattr(recorded, name), getattr(follows, name))

    def attempt(self, figure: str, add: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        """Call what adds checks; where the recorded values can't even be computed with, that is what is wrong."""
        try:
            add(*args, **named)
        except UNFIT as error:
            self.holds(figure, False, "values that can't be computed with", str(error) or type(error).__name__)


def alike(recorded: Value, follows: Value) -> bool:
    """Equal; two floats to TOLERANCE."""
    if isinstance(recorded, float) and isinstance(follows, int | float):
        return math.isclose(recorded, follows, rel_tol=TOLERANCE, abs_tol=1e-12)
    return recorded == follows


def _words(interval: Interval | None) -> str:
    return "none" if interval is None else f"{interval.estimate:.6g} ({interval.low:.6g} to {interval.high:.6g})"

"""What may be combined, as numbers: a point is a set of changes of code and a value for every knob.

Changes of code are techniques and a mind's free patches alike: each is one dimension, absent or present. A knob is a
dimension for each value other than its default, and one more that says how far a number is from its default, in
doublings, so that what was learned of 2 says something of 4.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rsi_tui.contract.fingerprint import same_value
from rsi_tui.contract.model import KnobValue, Layer

Array = NDArray[np.float64]
_TRIES = 200


@dataclass(frozen=True)
class Switch:
    """A change of code that is made or not."""

    id: str
    layer: Layer
    conflicts: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """it changes something only where one of these is made as well; () for anywhere"""


@dataclass(frozen=True)
class Dial:
    """A knob with its values."""

    name: str
    values: tuple[KnobValue, ...]
    default: KnobValue
    layer: Layer = "launch"


@dataclass(frozen=True)
class Point:
    """A place in the space; `made` in the space's order, knobs that are not named have their defaults."""

    made: tuple[str, ...] = ()
    knobs: tuple[tuple[str, KnobValue], ...] = ()
    """those that differ from the defaults, in the space's order"""

    def words(self) -> str:
        """For a person: 'sdpa, fused-qkv, micro_batch=4'; 'the original' for nothing."""
        return ", ".join([*self.made, *(f"{name}={value}" for name, value in self.knobs)]) or "the original"


@dataclass(frozen=True)
class Dimension:
    """One coordinate of an encoded point."""

    name: str
    """id of a switch, 'knob=value', or 'knob' for how far a number is from its default"""
    graded: bool = False


def _everything(values: Mapping[str, KnobValue]) -> bool:
    return True


@dataclass(frozen=True)
class Space:
    """Switches, dials, and the rules that their values obey."""

    switches: tuple[Switch, ...]
    dials: tuple[Dial, ...] = ()
    allowed: Callable[[Mapping[str, KnobValue]], bool] = _everything
    """whether the contract's rules hold for values of all knobs"""
    dimensions: tuple[Dimension, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = [Dimension(switch.id) for switch in self.switches]
        for dial in self.dials:
            found += [Dimension(_value_name(dial.name, v)) for v in dial.values if not same_value(v, dial.default)]
            if _is_graded(dial):
                found.append(Dimension(dial.name, graded=True))
        object.__setattr__(self, "dimensions", tuple(found))

    def point(self, made: Iterable[str], knobs: Mapping[str, KnobValue]) -> Point:
        """The point with these changes and values; KeyError for what the space does not have."""
        wanted = set(made)
        if unknown := wanted - {switch.id for switch in self.switches}:
            raise KeyError(f"the space has no {sorted(unknown)[0]}")
        chosen = [(d.name, knobs[d.name]) for d in self.dials if d.name in knobs and not same_value(knobs[d.name], d.default)]
        return Point(tuple(s.id for s in self.switches if s.id in wanted), tuple(chosen))

    def values(self, point: Point) -> dict[str, KnobValue]:
        """Values of all knobs at a point."""
        return {dial.name: dial.default for dial in self.dials} | dict(point.knobs)

    def feasible(self, point: Point) -> bool:
        """No two changes exclude each other, what one needs is made, the contract's rules hold."""
        made = set(point.made)
        for switch in self.switches:
            if switch.id in made and (made & set(switch.conflicts) or (switch.needs and not made & set(switch.needs))):
                return False
        return self.allowed(self.values(point))

    def encode(self, points: Sequence[Point]) -> Array:
        """(points, dimensions), float64: 0 or 1, and for graded dimensions doublings from the default, scaled into [-1, 1]."""
        rows = np.zeros((len(points), len(self.dimensions)))
        at = {dimension.name: i for i, dimension in enumerate(self.dimensions)}
        dials = {dial.name: dial for dial in self.dials}
        for row, point in zip(rows, points, strict=True):
            for name in point.made:
                row[at[name]] = 1.0
            for name, value in point.knobs:
                row[at[_value_name(name, value)]] = 1.0
                if name in at:
                    row[at[name]] = _grade(dials[name], value)
        return rows

    def neighbours(self, point: Point) -> list[Point]:
        """Feasible points that differ in one change or one knob; where one change excludes another, it takes its place,
        and a change that needs another brings it."""
        found = []
        for switch in self.switches:
            made = set(point.made) ^ {switch.id}
            if switch.id in made:
                made -= set(switch.conflicts) | {s.id for s in self.switches if switch.id in s.conflicts}
                if switch.needs and not made & set(switch.needs):
                    made.add(switch.needs[0])
            else:
                made = self._without_orphans(made)
            found.append(Point(tuple(s.id for s in self.switches if s.id in made), point.knobs))
        values = self.values(point)
        for dial in self.dials:
            others = (value for value in dial.values if not same_value(value, values[dial.name]))
            found += [self.point(point.made, values | {dial.name: value}) for value in others]
        return [p for p in dict.fromkeys(found) if p != point and self.feasible(p)]

    def sample(self, rng: random.Random, share: float) -> Point:
        """A feasible point with about `share` of the changes, and of the knobs off their defaults.

        Conflicts are settled by a drawn order, needs are brought along; knobs are drawn until the rules hold, and stay at
        their defaults where they never do.
        """
        made: set[str] = set()
        for switch in rng.sample(self.switches, len(self.switches)):
            clash = made & set(switch.conflicts) or any(switch.id in s.conflicts for s in self.switches if s.id in made)
            if rng.random() < share and not clash:
                made.add(switch.id)
                if switch.needs and not made & set(switch.needs):
                    made.add(rng.choice(switch.needs))
        made = self._without_orphans(self._without_conflicts(made))
        for _ in range(_TRIES):
            knobs = {d.name: rng.choice(d.values) for d in self.dials if rng.random() < share}
            point = self.point(made, knobs)
            if self.feasible(point):
                return point
        return self.point(made, {})

    def _without_conflicts(self, made: set[str]) -> set[str]:
        kept: set[str] = set()
        for switch in self.switches:
            if switch.id in made and not kept & set(switch.conflicts) and not any(switch.id in s.conflicts for s in self.switches if s.id in kept):
                kept.add(switch.id)
        return kept

    def _without_orphans(self, made: set[str]) -> set[str]:
        """Less the changes whose need is not there any more."""
        while orphans := {s.id for s in self.switches if s.id in made and s.needs and not made & set(s.needs)}:
            made = made - orphans
        return made


def _value_name(name: str, value: KnobValue) -> str:
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def _number(value: KnobValue) -> float | None:
    """A positive number, also where a knob spells it as text; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number > 0 and math.isfinite(number) else None


def _is_graded(dial: Dial) -> bool:
    return len(dial.values) > 2 and all(_number(value) is not None for value in (*dial.values, dial.default))


def _grade(dial: Dial, value: KnobValue) -> float:
    """Doublings from the default, over the most that any value has."""
    default = _number(dial.default) or 1.0
    most = max(abs(math.log2((_number(v) or default) / default)) for v in dial.values)
    return math.log2((_number(value) or default) / default) / most if most else 0.0

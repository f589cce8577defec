"""A field of characters to plot on: braille dots, two by four to a cell, or plain signs where the terminal has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""bit of each dot, by column and row of its cell"""


@dataclass(frozen=True)
class Scale:
    """Values along one axis, with round ticks."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float], padding: float = 0.04) -> Scale:
        """Around all values that are finite; 0 to 1 where there is none."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        spread = (high - low) or abs(high) or 1.0
        return cls(low - padding * spread, high + padding * spread)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[float]:
        raw = (self.high - self.low) / max(1, count)
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [round(n * step, 12) for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Canvas:
    """Plots points and lines of values; later signs lie on top."""

    def __init__(self, width: int, height: int, x: Scale, y: Scale, *, plain: bool = False) -> None:
        """`width` and `height` in cells; `plain`: ASCII only."""
        self.width, self.height, self.x, self.y, self._plain = max(1, width), max(1, height), x, y, plain
        self._cells: dict[tuple[int, int], tuple[int, str]] = {}
        """(column, row) -> dots and style"""
        self._signs: dict[tuple[int, int], tuple[str, str]] = {}

    def _place(self, x: float, y: float) -> tuple[int, int] | None:
        """The dot at which a value lies, from the top left; None outside."""
        px, py = self.x.share(x), 1 - self.y.share(y)
        if not (0 <= px <= 1 and 0 <= py <= 1):
            return None
        return min(2 * self.width - 1, int(px * 2 * self.width)), min(4 * self.height - 1, int(py * 4 * self.height))

    def dot(self, x: float, y: float, style: str = "") -> None:
        if (at := self._place(x, y)) is not None:
            self._set(*at, style)

    def _set(self, px: int, py: int, style: str) -> None:
        cell = (px // 2, py // 4)
        dots = self._cells.get(cell, (0, ""))[0]
        self._cells[cell] = (dots | _DOTS[px % 2][py % 4], style)

    def sign(self, x: float, y: float, sign: str, style: str = "") -> None:
        """A character at a value."""
        if (at := self._place(x, y)) is not None:
            self._signs[at[0] // 2, at[1] // 4] = (sign, style)

    def line(self, start: tuple[float, float], end: tuple[float, float], style: str = "", every: int = 1) -> None:
        """A straight line; `every`: only each n-th dot, for lines that are weaker."""
        one, two = self._place(*start), self._place(*end)
        if one is None or two is None:
            return
        steps = max(abs(two[0] - one[0]), abs(two[1] - one[1]), 1)
        for n in range(0, steps + 1, every):
            self._set(round(one[0] + (two[0] - one[0]) * n / steps), round(one[1] + (two[1] - one[1]) * n / steps), style)

    def lines(self) -> list[Text]:
        """The rows of the field, from the top."""
        rows = []
        for row in range(self.height):
            text = Text()
            for column in range(self.width):
                if (column, row) in self._signs:
                    text.append(*self._signs[column, row])
                elif (column, row) in self._cells:
                    dots, style = self._cells[column, row]
                    text.append("." if self._plain else chr(0x2800 + dots), style)
                else:
                    text.append(" ")
            rows.append(text)
        return rows


def framed(canvas: Canvas, label_x: Callable[[float], str], label_y: Callable[[float], str], below: str) -> list[Text]:
    """The field with ticks on the left and below, and what the axis below is."""
    ticks = canvas.y.ticks(max(2, canvas.height // 2))
    labels = {min(canvas.height - 1, int((1 - canvas.y.share(t)) * canvas.height)): label_y(t) for t in ticks}
    width = max((len(label) for label in labels.values()), default=0)
    rows = [Text(f"{labels.get(n, ''):>{width}} ", "dim").append_text(line) for n, line in enumerate(canvas.lines())]
    return [*rows, Text(" " * (width + 1) + _bottom(canvas, label_x, below), "dim")]


def _bottom(canvas: Canvas, label: Callable[[float], str], below: str) -> str:
    """Ticks at their places, then the axis's name at the right end where it fits."""
    line = [" "] * canvas.width
    room = canvas.width - len(below) - 1
    last = -2
    for tick in canvas.x.ticks(max(2, canvas.width // 14)):
        text = label(tick)
        at = int(canvas.x.share(tick) * (canvas.width - 1)) - len(text) // 2
        if at > last + 1 and at >= 0 and at + len(text) <= room:
            line[at : at + len(text)] = text
            last = at + len(text)
    if room > 0:
        line[canvas.width - len(below) :] = below
    return "".join(line).rstrip()


def thinned(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """At most so many of the points, evenly chosen, the last among them."""
    if len(points) <= most:
        return points
    step = len(points) / most
    return [points[min(len(points) - 1, int((n + 1) * step) - 1)] for n in range(most)]

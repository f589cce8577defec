"""Plots of a report as inline SVG: functions of the canonical JSON, without scripts, fonts or colours of their own.

Colours are classes that the page defines for light and dark; every plot has a title and a description for those who
can't see it, and every figure in it stands in a table of the page as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rsi_tui.audit import words

WIDTH = 640
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 40
MOST_ROWS = 24
"""rows of a plot of intervals; beyond that it is a table"""
PHASES = ("data", "forward", "backward", "communication", "optimizer", "host_sync", "compile", "other")


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to pixels, with round ticks."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, zero: bool = False, padding: float = 0.06) -> Axis:
        low, high = min(values), max(values)
        low = min(low, 0.0) if zero else low
        spread = (high - low) or abs(high) or 1.0
        return cls(low if zero and low == 0 else low - padding * spread, high + padding * spread, start, end)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        raw = (self.high - self.low) / count
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [round(n * step, 12) for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def best_so_far(data: dict[str, Any]) -> str:
    """Speed-up of the best against the time spent in runs, dashed while it is an estimate; what was tried lies below it, one above the other."""
    best, tried = data["course"]["best"], data["course"]["tried"]
    end = max([data["cost"]["trial_seconds"], *(p["seconds"] for p in tried), 1.0])
    x = Axis(0.0, end / 60 * 1.02, LEFT, WIDTH - RIGHT)
    rows = _rows([p["seconds"] for p in tried], x)
    high = max(rows, default=-1) + 1
    spacing, height = min(9.0, 60.0 / max(high, 1)), round(212 + min(9.0 * high, 60.0))
    floor = height - BOTTOM
    y = Axis.over([1.0, *(p["speedup"] for p in best), 1.05], floor - spacing * high - 6, TOP)
    body = _grid(x, y, height, "minutes of runs", "speed-up of the best", lambda v: f"{v:g}x")
    for known, after in itertools.pairwise([*best, {**best[-1], "seconds": end}]):
        px, py = x.at(known["seconds"] / 60), y.at(known["speedup"])
        kind = "line" if known["proven"] else "line estimate"
        body.append(f'<path class="{kind}" d="M{px:.1f} {py:.1f}H{x.at(after["seconds"] / 60):.1f}V{y.at(after["speedup"]):.1f}"/>')
        body.append(f'<circle class="best" cx="{px:.1f}" cy="{py:.1f}" r="3.5"/>')
    body += [_mark(x.at(p["seconds"] / 60), floor - 5 - spacing * row, p["result"], f"{p['candidate']}: {p['result']}") for p, row in zip(tried, rows, strict=True)]
    kept = best[-1]
    text = f"After {words.duration(end)} of runs the best is {kept['candidate']} at {kept['speedup']:.2f} times the original's speed; {words.plural(len(tried), 'result')} in all."
    return _svg(height, "The best so far against time spent", text, body)


def _rows(seconds: Sequence[float], x: Axis) -> list[int]:
    """How many earlier marks lie at the same place of the axis."""
    at = [round(x.at(s / 60) / 9) for s in seconds]
    return [at[:n].count(place) for n, place in enumerate(at)]


def time_against_memory(data: dict[str, Any]) -> str:
    """Each candidate that was measured, by step time and peak memory as ratios to what it was measured against; '' for none."""
    points = data["frontier"]
    if not points:
        return ""
    x = Axis.over([1.0, *(p["time"] for p in points)], LEFT, WIDTH - RIGHT)
    y = Axis.over([1.0, *(p["memory"] for p in points)], 260 - BOTTOM, TOP)
    one = f'<path class="one" d="M{x.at(1):.1f} {TOP}V{260 - BOTTOM}M{LEFT} {y.at(1):.1f}H{WIDTH - RIGHT}"/>'
    named = [(p, x.at(p["time"]), y.at(p["memory"])) for p in points]
    body = [
        *_grid(x, y, 260, "step time, ratio (left is faster)", "peak memory, ratio", lambda v: f"{v:g}"), one,
        *(_mark(px, py, p["result"], f"{p['candidate']}: time {p['time']:.3f}, memory {p['memory']:.3f}, {p['result']}") for p, px, py in named),
        *(f'<text class="name" x="{px + 6:.1f}" y="{py - 5:.1f}">{escape(p["candidate"])}</text>' for p, px, py in named if _class(p["result"]) == "good"),
    ]  # fmt: skip
    faster = sum(p["time"] < 1 for p in points)
    return _svg(260, "Step time against peak memory", f"{len(points)} measured candidates, {faster} of them faster than what they were measured against.", body)


def all_intervals(data: dict[str, Any]) -> str:
    """The interval of each verdict and of the claim; '' for none."""
    rows = data["intervals"][-MOST_ROWS:]
    if not rows:
        return ""
    height = TOP + 24 * len(rows) + BOTTOM
    x = Axis.over([1.0, *(r["low"] for r in rows), *(r["high"] for r in rows)], 222, WIDTH - RIGHT)
    body = [*_ticks(x, height, "speed-up", lambda v: f"{v:g}x"), f'<path class="one" d="M{x.at(1):.1f} {TOP}V{height - BOTTOM}"/>']
    for number, row in enumerate(rows):
        at = TOP + 24 * number + 12
        kind = "claim" if row["what"] == "claim" else row["what"]
        label = f"{row['candidate']}, {kind.replace('_', ' ')} ({words.confidence(row['confidence'])})"
        body += [
            f'<text class="row" x="214" y="{at + 4}" text-anchor="end">{escape(label)}</text>',
            f'<path class="interval {_class(kind)}" d="M{x.at(row["low"]):.1f} {at}H{x.at(row["high"]):.1f}"><title>{row["estimate"]:.3f} ({row["low"]:.3f} to {row["high"]:.3f})</title></path>',
            f'<circle class="{_class(kind)}" cx="{x.at(row["estimate"]):.1f}" cy="{at}" r="4"/>',
        ]
    return _svg(height, "Intervals of all verdicts", f"{len(rows)} intervals of the speed-up; those right of 1 exclude that nothing was gained.", body)


def contributions(data: dict[str, Any]) -> str:
    """What each adopted change is worth, with leave-one-out's interval where there is one; '' for fewer than two changes."""
    parts = [p for p in (data["adopted"] or {}).get("parts", ()) if p["log_ratio"] is not None]
    if len(parts) < 2:
        return ""
    height = TOP + 26 * len(parts) + BOTTOM
    values = [(math.exp(-p["log_ratio"]), p["interval"]) for p in parts]
    ends = [v for worth, i in values for v in (worth, *((i["low"], i["high"]) if i else ()))]
    x = Axis.over([1.0, *ends], 262, WIDTH - RIGHT)
    body = [*_ticks(x, height, "times as fast with it as without", lambda v: f"{v:g}x"), f'<path class="one" d="M{x.at(1):.1f} {TOP}V{height - BOTTOM}"/>']
    for number, (part, (worth, interval)) in enumerate(zip(parts, values, strict=True)):
        at, start = TOP + 26 * number + 13, x.at(1.0)
        name = words.one_line(part["name"], 30)
        width = abs(x.at(worth) - start)
        body += [
            f'<text class="row" x="254" y="{at + 4}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{"setting" if part["kind"].startswith("setting") else "code"}" x="{min(start, x.at(worth)):.1f}" y="{at - 8}" width="{width:.1f}" height="16"><title>{escape(part["known_by"])}</title></rect>',
        ]
        if interval:
            body.append(f'<path class="whisker" d="M{x.at(interval["low"]):.1f} {at}H{x.at(interval["high"]):.1f}"/>')
    return _svg(height, "What each change is worth", f"{len(parts)} adopted changes; settings that were never switched on and new code are told apart.", body)


def phases(data: dict[str, Any]) -> str:
    """A step by phase, before and, where it was profiled, after; '' without a profile."""
    rows = [(name, p) for name, p in (("before", data["profile"]), ("after", data["profile_after"])) if p]
    if not rows:
        return ""
    height = TOP + 40 * len(rows) + 64
    x = Axis(0.0, max(p["step_s"] for _, p in rows) * 1000, 70, WIDTH - RIGHT)
    body, used = [], []
    for number, (name, profile) in enumerate(rows):
        at, start = TOP + 40 * number, 70.0
        body.append(f'<text class="row" x="64" y="{at + 18}" text-anchor="end">{name}</text>')
        for phase in sorted(profile["phases"], key=lambda p: PHASES.index(p["name"])):
            width = x.at(phase["share"] * profile["step_s"] * 1000) - 70
            if width <= 0.2:
                continue
            used.append(phase["name"])
            body.append(f'<rect class="phase p{PHASES.index(phase["name"])}" x="{start:.1f}" y="{at}" width="{width:.1f}" height="26"><title>{phase["name"].replace("_", " ")} {100 * phase["share"]:.1f} %</title></rect>')
            start += width
        body.append(f'<text class="small" x="{start + 4:.1f}" y="{at + 18}">{escape(words.step_time(profile["step_s"]))}</text>' if start < WIDTH - 70 else f'<text class="small" x="{WIDTH - RIGHT}" y="{at + 38}" text-anchor="end">{escape(words.step_time(profile["step_s"]))}</text>')
    shown = [p for p in PHASES if p in used]
    for number, phase in enumerate(shown):
        column, row = number % 4, number // 4
        px, py = 70 + column * 140, TOP + 40 * len(rows) + 18 + row * 20
        body += [f'<rect class="phase p{PHASES.index(phase)}" x="{px}" y="{py - 9}" width="11" height="11"/>', f'<text class="small" x="{px + 16}" y="{py + 1}">{phase.replace("_", " ")}</text>']
    return _svg(height, "Where a step spends its time", "; ".join(f"{name}: " + ", ".join(f"{p['name'].replace('_', ' ')} {100 * p['share']:.0f} %" for p in profile["phases"] if p["share"] >= 0.005) for name, profile in rows), body)


def memory_course(data: dict[str, Any]) -> str:
    """What a step of the original holds beyond parameters and state, as it rises and falls; '' where it was not seen."""
    memory = (data["profile"] or {}).get("memory")
    if not memory or len(memory["timeline"]) < 2:
        return ""
    points = [(t * 1000, b / 2**20) for t, b in memory["timeline"]]
    x = Axis(points[0][0], points[-1][0], LEFT, WIDTH - RIGHT)
    y = Axis(0.0, max(b for _, b in points) * 1.08 or 1.0, 200 - BOTTOM, TOP)
    line = "M" + "L".join(f"{x.at(t):.1f} {y.at(b):.1f}" for t, b in points)
    area = f"{line}L{x.at(points[-1][0]):.1f} {y.at(0):.1f}L{x.at(points[0][0]):.1f} {y.at(0):.1f}Z"
    body = [*_grid(x, y, 200, "ms since the begin of the profiled steps", "MiB", lambda v: f"{v:g}"), f'<path class="area" d="{area}"/>', f'<path class="line" d="{line}"/>']
    return _svg(200, "Memory over the profiled steps", f"At most {words.size(memory['activations_bytes'])} beyond parameters, gradients and optimizer state.", body)


# --- parts ----------------------------------------------------------------------------------------


def _class(result: str) -> str:
    """The page's colour for a result."""
    if result in ("adopted", "claim", "promoted", "leaner"):
        return "good"
    return "bad" if result in ("invalid", "failed", "oom", "crashed", "timeout", "diverged", "slower", "off_direction", "revoked") else "plain"


def _mark(x: float, y: float, result: str, title: str) -> str:
    """A dot for what is good, a ring, or a cross for what is bad: told apart without colour."""
    kind = _class(result)
    if kind == "bad":
        return f'<path class="mark bad" d="M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m-7 0l7 -7"><title>{escape(title)}</title></path>'
    return f'<circle class="mark {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{4 if kind == "good" else 3.3}"><title>{escape(title)}</title></circle>'


def _grid(x: Axis, y: Axis, height: int, below: str, beside: str, label: Any) -> list[str]:
    rows = [
        f'<path class="grid" d="M{LEFT} {y.at(v):.1f}H{WIDTH - RIGHT}"/><text class="small" x="{LEFT - 6}" y="{y.at(v) + 4:.1f}" text-anchor="end">{label(v)}</text>'
        for v in y.ticks()
    ]
    return [*rows, *_ticks(x, height, below, lambda v: f"{v:g}"), f'<text class="small" x="{LEFT}" y="{TOP - 3}">{escape(beside)}</text>']


def _ticks(x: Axis, height: int, below: str, label: Any) -> list[str]:
    base = height - BOTTOM
    marks = [f'<path class="grid" d="M{x.at(v):.1f} {TOP}V{base}"/><text class="small" x="{x.at(v):.1f}" y="{base + 15}" text-anchor="middle">{label(v)}</text>' for v in x.ticks()]
    return [*marks, f'<text class="small" x="{(x.start + x.end) / 2:.1f}" y="{base + 32}" text-anchor="middle">{escape(below)}</text>']


def _svg(height: int, title: str, text: str, body: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><desc>{escape(text)}</desc>'
    return "\n".join([head, *body, "</svg>"])

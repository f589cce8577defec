"""What the map shows, as text: the best so far, time against memory, the line of what was built on what, the machine's noise.

Functions of a campaign's view and a size. Trial time is the sum of the runs' wall times, failed ones too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from rsi_tui.app.canvas import Canvas, Scale, framed, thinned
from rsi_tui.audit import pages, words
from rsi_tui.journal.facts import ORIGINAL, TrialFacts
from rsi_tui.journal.view import CampaignView, CandidateView, is_turned_down

GOOD, BAD, OPEN, DIM = "green", "red", "yellow", "dim"
_MOST = 4000
"""points that a plot is made of"""


@dataclass(frozen=True)
class Result:
    """A candidate with a time, where it stands."""

    id: str
    seconds: float
    """of trial time when its last run had ended"""
    log_time: float
    """log-ratio of its time to the original's"""
    peak: int | None
    standing: str
    promoted: bool


def results(view: CampaignView) -> list[Result]:
    """Candidates that have a time, in the order in which they were measured."""
    spent, ends = 0.0, {}
    for trial in view.trials.values():
        spent += trial.wall_s
        ends[trial.candidate] = spent
    logs: dict[str, float | None] = {ORIGINAL: 0.0}
    found = []
    for known in view.candidates.values():
        log = _log_time(view, known.id, logs)
        if log is not None:
            measured = known.verdict if known.verdict is not None and known.verdict.peak_bytes else known.screen
            promoted = known.screen is not None and known.screen.promoted
            found.append(Result(known.id, ends.get(known.id, spent), log, measured.peak_bytes if measured else None, known.standing, promoted))
    return sorted(found, key=lambda r: r.seconds)


def _log_time(view: CampaignView, id: str, known: dict[str, float | None]) -> float | None:
    """Along the chain of incumbents; None where a link has no time."""
    if id not in known:
        known[id] = None  # a chain that runs in a circle ends here
        candidate = view.candidates.get(id)
        below, ratio = _effect(candidate) if candidate is not None else ("", None)
        start = _log_time(view, below, known) if ratio is not None else None
        known[id] = None if start is None or ratio is None else start + ratio
    return known[id]


def _effect(known: CandidateView) -> tuple[str, float | None]:
    if known.verdict is not None and known.verdict.log_ratio is not None:
        return known.verdict.incumbent, known.verdict.log_ratio
    return (known.screen.incumbent, known.screen.log_ratio) if known.screen is not None else ("", None)


def best_so_far(view: CampaignView, width: int, height: int, *, plain: bool = False) -> Text:
    """Speed-up of the best against trial time: adopted whole, only measured thin; dotted, the same candidates in random order."""
    found = results(view)
    if not found:
        return _nothing("no candidate has a time yet")
    total = max(view.trial_seconds, 1.0)
    adopted = _rising([(r.seconds, math.exp(-r.log_time)) for r in found if r.standing == "adopted"])
    measured = _rising([(r.seconds, math.exp(-r.log_time)) for r in found if not _is_bad(r)])
    chance = _random_order([math.exp(-r.log_time) for r in found if not _is_bad(r)], total)
    unit, name = (3600.0, "hours of runs") if total > 5400 else (60.0, "minutes of runs")
    y = Scale.over([1.0, *(v for line in (adopted, measured, chance) for _, v in line)])
    canvas = Canvas(width - 7, height - 2, Scale(0.0, total / unit * 1.01), y, plain=plain)
    for one, two in itertools.pairwise(thinned(chance, 2 * width)):
        canvas.line((one[0] / unit, one[1]), (two[0] / unit, two[1]), DIM, every=3)
    _steps(canvas, measured, total, unit, OPEN, every=2)
    _steps(canvas, adopted, total, unit, GOOD)
    for x, value in adopted[1:]:
        canvas.sign(x / unit, value, "+", f"bold {GOOD}")
    rows = framed(canvas, lambda v: f"{v:g}", lambda v: f"{v:.4g}x", name)
    best = max(adopted, key=lambda p: p[1])[1]
    key = Text.assemble(("+ adopted ", GOOD), (f"{best:.2f}x  ", GOOD), ("measured, unproven ", OPEN), (f"{measured[-1][1]:.2f}x  ", OPEN), ("dotted: in random order", DIM))
    return _joined(key, rows, width, plain)


def _rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(seconds, best until then), from 1 at the beginning."""
    line = [(0.0, 1.0)]
    for seconds, value in points:
        if value > line[-1][1]:
            line.append((seconds, value))
    return line


def _random_order(values: Sequence[float], total: float) -> list[tuple[float, float]]:
    """Expected best after a share of the cost, had the same candidates come in random order at equal costs."""
    ordered = sorted((max(1.0, v) for v in values), reverse=True)
    n = len(ordered)
    found = [(0.0, 1.0)]
    for k in range(1, n + 1) if n <= 200 else range(1, n + 1, max(1, n // 200)):
        expected, left = 0.0, 1.0  # chance that none of the better ones is among k of n
        for rank, value in enumerate(ordered):
            if left < 1e-6 or n - rank <= 0:
                break
            here = min(1.0, k / (n - rank))
            expected += left * here * value
            left *= 1 - here
        found.append((total * k / n, expected + left))
    return found


def _steps(canvas: Canvas, line: Sequence[tuple[float, float]], end: float, unit: float, style: str, every: int = 1) -> None:
    for (x, y), (then, value) in zip(line, [*line[1:], (end, line[-1][1])], strict=True):
        canvas.line((x / unit, y), (then / unit, y), style, every)
        canvas.line((then / unit, y), (then / unit, value), style, every)


def time_against_memory(view: CampaignView, width: int, height: int, *, plain: bool = False) -> Text:
    """Step time and peak memory of every candidate that was measured, with the limit, and the frontier joined up."""
    found = [r for r in results(view) if r.peak]
    base = next((c.screen.incumbent_peak_bytes for c in view.candidates.values() if c.screen and c.screen.incumbent == ORIGINAL and c.screen.incumbent_peak_bytes), None)
    if base is None and view.profile is not None:
        base = view.profile.peak_bytes
    if not found:
        return _nothing("no candidate has a time and a peak yet")
    limit = int(view.created.contract.get("launch", {}).get("memory_limit_bytes", 0)) if view.created else 0
    points = [(math.exp(r.log_time), (r.peak or 0) / 2**20) for r in found]
    peaks = [p for _, p in points] + ([base / 2**20] if base else [])
    shown_limit = limit / 2**20 if limit and limit / 2**20 < 3 * max(peaks) else 0.0
    canvas = Canvas(width - 7, height - 2, Scale.over([1.0, *(t for t, _ in points)]), Scale.over([*peaks, *([shown_limit] if shown_limit else [])]), plain=plain)
    if shown_limit:
        canvas.line((canvas.x.low, shown_limit), (canvas.x.high, shown_limit), BAD, every=3)
    edge = _frontier([*points, *([(1.0, base / 2**20)] if base else [])])
    for one, two in itertools.pairwise(edge):
        canvas.line(one, (two[0], one[1]), DIM, every=2)
        canvas.line((two[0], one[1]), two, DIM, every=2)
    for r, point in list(zip(found, points, strict=True))[-_MOST:]:
        canvas.sign(*point, *_sign(r))
    if base:
        canvas.sign(1.0, base / 2**20, "o", "bold")
    failed = sum(t.outcome == "oom" for t in view.trials.values())
    key = Text.assemble(("+ adopted  ", GOOD), ("~ promising  ", OPEN), (". other  ", ""), ("o original  ", "bold"), (f"{words.plural(failed, 'run')} out of memory" + (f" at {limit / 2**20:.0f} MiB" if limit else ""), BAD if failed else DIM))
    return _joined(key, framed(canvas, lambda v: f"{v:g}", lambda v: f"{v:.0f}", "step time, ratio; MiB"), width, plain)


def _frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What nothing beats in both, fastest first."""
    kept: list[tuple[float, float]] = []
    for time, peak in sorted(points):
        if not kept or peak < kept[-1][1]:
            kept.append((time, peak))
    return kept


def _is_bad(result: Result) -> bool:
    return result.standing in ("failed", "invalid", "off_direction", "revoked")


def _sign(result: Result) -> tuple[str, str]:
    if result.standing in ("adopted", "leaner"):
        return "+", f"bold {GOOD}"
    if _is_bad(result):
        return "x", BAD
    return ("~", OPEN) if result.promoted else (".", "")


def lineage(view: CampaignView, width: int, height: int, *, plain: bool = False) -> Text:
    """What was built on what: a tree of the candidates that something was built on, and of those that were adopted."""
    below: dict[str, list[str]] = {}
    for known in view.candidates.values():
        below.setdefault(known.facts.parent or ORIGINAL, []).append(known.id)
    branch, last, pipe = ("|- ", "`- ", "|  ") if plain else ("├─ ", "└─ ", "│  ")
    rows: list[Text] = [Text("original", "bold")]

    def grow(id: str, indent: str) -> None:
        children = [c for c in below.get(id, ()) if c in below or view.candidates[c].is_adopted]
        others = len(below.get(id, ())) - len(children)
        if others:
            rows.append(Text(f"{indent}{branch if children else last}{words.plural(others, 'candidate')} that nothing was built on", DIM))
        for number, child in enumerate(children):
            known, end = view.candidates[child], number == len(children) - 1
            style = GOOD if known.is_adopted else BAD if is_turned_down(known) else OPEN
            line = Text(f"{indent}{last if end else branch}", DIM).append(pages.candidate_line(view, known), style)
            line.truncate(width, overflow="crop" if plain else "ellipsis")
            rows.append(line)
            if len(rows) < 500:
                grow(child, indent + ("   " if end else pipe))

    grow(ORIGINAL, "")
    if not view.candidates:
        return _nothing("no candidate was built yet")
    if len(rows) > height:
        rows = [*rows[: height - 1], Text(f"... and {len(rows) - height + 1} lines more", DIM)]
    return Text("\n").join(rows)


def machine(view: CampaignView, width: int, height: int, *, plain: bool = False) -> Text:
    """Runs of the original against the time they were started: their step time over the median, which noise and drift move."""
    runs = [t for t in view.trials.values() if t.candidate == ORIGINAL and t.step_s and t.outcome == "ok"]
    if len(runs) < 2:
        return _nothing("fewer than two runs of the original yet")
    middle = sorted(t.step_s or 0.0 for t in runs)[len(runs) // 2]
    spent, at = 0.0, []
    for trial in view.trials.values():
        spent += trial.wall_s
        if trial.candidate == ORIGINAL and trial.step_s and trial.outcome == "ok":
            at.append((spent, trial.step_s / middle, _is_busy(trial)))
    unit, name = (3600.0, "hours of runs") if spent > 5400 else (60.0, "minutes of runs")
    canvas = Canvas(width - 7, height - 2, Scale(0.0, spent / unit * 1.01), Scale.over([0.98, 1.02, *(v for _, v, _ in at)]), plain=plain)
    canvas.line((0.0, 1.0), (spent / unit, 1.0), DIM, every=3)
    for seconds, value, busy in at[-_MOST:]:
        canvas.sign(seconds / unit, value, "!" if busy else ".", BAD if busy else "")
    noise = pages.noise_words(view) or "not calibrated yet"
    key = Text.assemble((f"{words.plural(len(runs), 'run')} of the original, median {words.step_time(middle)}; ", ""), (noise, DIM), ("  ! other work on the machine", BAD) if any(b for *_, b in at) else ("", ""))
    return _joined(key, framed(canvas, lambda v: f"{v:g}", lambda v: f"{v:.3g}", name), width, plain)


def _is_busy(trial: TrialFacts) -> bool:
    return trial.foreign_load > 0.1


def _nothing(why: str) -> Text:
    return Text(f"Nothing to draw: {why}.", DIM)


def _joined(key: Text, rows: Sequence[Text], width: int, plain: bool) -> Text:
    key.truncate(width, overflow="crop" if plain else "ellipsis")
    return Text("\n").join([key, *rows])

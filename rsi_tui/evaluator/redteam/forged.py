"""Forged evidence: progress lines and checkpoints that no honest run leaves, made from those of an honest one.

Promises: every forgery starts from what the unchanged program really printed and learned, so that only the forged
part can give it away; nothing here runs the program. Lines are forged here, checkpoints by `forge_checkpoints`, in a
sandbox. Does not promise that a forgery could be adopted otherwise: each is a kind that a cheat would need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.measures import total_wall_holds
from rsi_tui.evaluator.progress import UNUSABLE, check, matches, read_progress, timings
from rsi_tui.journal.facts import TrialFacts
from rsi_tui.launch.spec import Line

FEWEST_LINES = 6
"""progress lines of a run from which evidence can be forged"""


@dataclass(frozen=True)
class ForgedLines:
    """One way to forge progress lines."""

    name: str
    make: Callable[[list[Line], list[int]], list[Line]]
    """given a run's lines and the indices of its progress lines; stamps are arrivals, which a program can't forge but
    can choose by printing earlier or later"""


def _twice(lines: list[Line], marks: list[int]) -> list[Line]:
    return [again for i, line in enumerate(lines) for again in ([line, line] if i in marks else [line])]


def _half(lines: list[Line], marks: list[int]) -> list[Line]:
    dropped = set(marks[1::2])
    return [line for i, line in enumerate(lines) if i not in dropped]


def _swapped(lines: list[Line], marks: list[int]) -> list[Line]:
    out = list(lines)
    a, b = marks[-2], marks[-1]
    out[a], out[b] = replace(lines[a], text=lines[b].text), replace(lines[b], text=lines[a].text)
    return out


def _bunch(lines: list[Line], marks: list[int]) -> list[Line]:
    """All printed at the end, as a program does that works first and reports later."""
    last = lines[marks[-1]].at_s
    return [replace(line, at_s=last + 1e-6 * i) if i in marks else line for i, line in enumerate(lines)]


def _front(lines: list[Line], marks: list[int]) -> list[Line]:
    """All printed before the work is done, one after the other at an even, high speed."""
    first, end = lines[marks[0]].at_s, lines[marks[-1]].at_s
    gap = 0.02 * (end - first) / len(marks)
    stamps = {index: first + gap * number for number, index in enumerate(marks)}
    return [replace(line, at_s=stamps.get(i, line.at_s)) for i, line in enumerate(lines)]


def _restarted(lines: list[Line], marks: list[int]) -> list[Line]:
    """The second half reports the numbers of the first again."""
    out, half = list(lines), len(marks) // 2
    for source, target in zip(marks, marks[half:], strict=False):
        out[target] = replace(lines[target], text=lines[source].text)
    return out


def _beyond(lines: list[Line], marks: list[int]) -> list[Line]:
    """One more than was asked for, after the end."""
    return [*lines, replace(lines[marks[0]], at_s=lines[-1].at_s + 1e-3)]


def _in_one(lines: list[Line], marks: list[int]) -> list[Line]:
    """Several in one line, set apart by carriage returns, to shorten what is timed."""
    a, b = marks[-2], marks[-1]
    joined = replace(lines[b], text=f"{lines[a].text}\r{lines[b].text}\r{lines[a].text}")
    return [joined if i == b else line for i, line in enumerate(lines) if i != a]


FORGED_LINES = (
    ForgedLines("every step reported twice", _twice),
    ForgedLines("every second step left out", _half),
    ForgedLines("steps in another order", _swapped),
    ForgedLines("all steps reported at the end", _bunch),
    ForgedLines("all steps reported before the work", _front),
    ForgedLines("step numbers begin anew", _restarted),
    ForgedLines("one step more than asked for", _beyond),
    ForgedLines("several steps in one line", _in_one),
)


@dataclass(frozen=True)
class HonestRun:
    """What an honest run printed, and its facts."""

    facts: TrialFacts
    lines: Sequence[Line]
    contract: Contract


def judge_lines(honest: HonestRun, forgery: ForgedLines) -> tuple[str, ...] | None:
    """What gives a forgery away, as it would a candidate; () when nothing does, None where there are too few lines to forge."""
    pattern, objective, facts = honest.contract.launch.progress, honest.contract.objective, honest.facts
    lines = list(honest.lines)
    marks = [i for i, line in enumerate(lines) if any(True for _ in matches([line], pattern))]
    if len(marks) < FEWEST_LINES or len(marks) != facts.steps:
        return None
    progress = read_progress(forgery.make(lines, marks), pattern)
    flags = tuple(f for f in check(progress, facts.wall_s, facts.steps) if f in UNUSABLE)
    times = timings(progress, facts.wall_s, objective.warmup, facts.steps, objective.amortise_over)
    if flags or times is None:
        return flags or ("no time can be taken from it",)
    claimed = facts.model_copy(
        update={
            "startup_s": times.startup_s, "step_s": times.step_s, "teardown_s": times.teardown_s, "score_s": times.score_s,
        }
    )  # fmt: skip
    return tuple(filter(None, (total_wall_holds([facts], [claimed]),)))

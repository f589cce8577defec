"""Progress lines read from outside: what the program printed, and when each line arrived.

Promises: pure functions of stamped lines; times come from the launcher's clock alone, never from
what a line says; a failed or forged record yields no time at all. Does not promise that the work
behind a line was done: that is what weights, total wall time and slopes over lengths are for.

Step numbers may start anywhere but must be consecutive. One line is one mark; a carriage return
inside a line starts a new one, because progress bars print that way.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rsi_tui.launch.spec import Line

MAX_LINE = 4096
"""characters of one line that are read: a pattern of the contract never meets a line of megabytes"""

FLAG_EXTRA = "progress: more lines than steps"
FLAG_MISSING = "progress: fewer lines than steps"
FLAG_ORDER = "progress: steps out of order"
FLAG_DUPLICATE = "progress: a step was reported twice"
FLAG_GAP = "progress: step numbers have gaps"
FLAG_OUTSIDE = "progress: a line is stamped outside the run"
FLAG_BUFFERED = "progress: buffered output, lines arrive in bunches"
FLAG_LATE_START = "progress: most of the run passed before its first line"
FLAG_LATE_EXIT = "progress: most of the run passed after its last line"
FLAG_LOSS = "progress: a loss is not finite"

FINDINGS = frozenset({FLAG_EXTRA, FLAG_ORDER, FLAG_DUPLICATE, FLAG_GAP, FLAG_OUTSIDE})
"""flags that no honest run of a checked contract shows: the evaluator treats them as findings"""
UNUSABLE = FINDINGS | {FLAG_MISSING, FLAG_BUFFERED}
"""flags under which arrival times say nothing about step time"""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and other strings: titles, links
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]"
)


@dataclass(frozen=True)
class StepMark:
    """One progress line."""

    step: int
    at_s: float
    """arrival, seconds since the process was started"""
    loss: float
    """NaN when the text was no number"""


@dataclass(frozen=True)
class Progress:
    """All progress lines of one run, in order of arrival."""

    steps: tuple[StepMark, ...] = ()

    @property
    def final_loss(self) -> float | None:
        """The last loss when it is finite, else None."""
        if not self.steps or not math.isfinite(self.steps[-1].loss):
            return None
        return self.steps[-1].loss


@dataclass(frozen=True)
class Timings:
    """Where one run's wall time went, seconds."""

    startup_s: float
    """what the time up to the end of warm-up exceeds as many steady steps by; at least 0"""
    step_s: float
    """mean step time after warm-up"""
    teardown_s: float
    """from the last progress line to exit"""
    score_s: float
    """step_s + (startup_s + teardown_s) / amortise_over"""
    flags: tuple[str, ...] = ()


def plain(text: str) -> str:
    """The text without escape sequences and control characters; \\t, \\n and \\r stay."""
    return _ESCAPES.sub("", text)


def _number(text: str) -> float:
    """A loss as printed, NaN for anything that is no number."""
    try:
        return float(text.strip().rstrip(",;").replace(",", ""))
    except ValueError:
        return math.nan


def _mark(match: re.Match[str], at_s: float) -> StepMark | None:
    groups = match.groupdict()
    try:
        step = int((groups.get("step") or "").replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return StepMark(step, at_s, _number(groups.get("loss") or ""))


def matches(lines: Sequence[Line], pattern: str) -> Iterator[tuple[re.Match[str], StepMark]]:
    """Every progress line with its mark; at most one for each piece between carriage returns."""
    search = re.compile(pattern).search
    for line in lines:
        for piece in plain(line.text[:MAX_LINE]).split("\r"):
            match = search(piece)
            mark = _mark(match, line.at_s) if match else None
            if match is not None and mark is not None:
                yield match, mark


def read_progress(lines: Sequence[Line], pattern: str) -> Progress:
    """The progress marks in a run's output."""
    return Progress(tuple(mark for _, mark in matches(lines, pattern)))


def _order_flags(progress: Progress) -> list[str]:
    numbers = [mark.step for mark in progress.steps]
    flags = []
    if len(set(numbers)) < len(numbers):
        flags.append(FLAG_DUPLICATE)
    if any(later < earlier for earlier, later in itertools.pairwise(numbers)):
        flags.append(FLAG_ORDER)
    elif any(later > earlier + 1 for earlier, later in itertools.pairwise(numbers)):
        flags.append(FLAG_GAP)
    return flags


def _bunched(progress: Progress) -> bool:
    """Lines that leave a block buffer together arrive microseconds apart, with long pauses between bunches.

    A gap counts as none below 50 microseconds or 2 % of the mean gap: no training step varies
    fifty-fold downwards. A quarter of such gaps is a buffer, not chance.
    """
    stamps = [mark.at_s for mark in progress.steps]
    if len(stamps) < 4:
        return False
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    floor = max(50e-6, 0.02 * sum(gaps) / len(gaps))
    return sum(gap < floor for gap in gaps) > 0.25 * len(gaps)


def _arrival_flags(progress: Progress, wall_s: float) -> list[str]:
    first, last = progress.steps[0].at_s, progress.steps[-1].at_s
    flags = []
    if first < 0 or last > wall_s:
        flags.append(FLAG_OUTSIDE)
    if _bunched(progress):
        flags.append(FLAG_BUFFERED)
    if first > 0.75 * wall_s:
        flags.append(FLAG_LATE_START)
    if wall_s - last > 0.5 * wall_s:
        flags.append(FLAG_LATE_EXIT)
    return flags


def check(progress: Progress, wall_s: float, steps: int) -> tuple[str, ...]:
    """Everything about the progress lines that does not fit the steps asked for or the total wall time.

    Late start and late exit are hints (a short run spends most of its time on imports); the flags
    in FINDINGS are not.
    """
    flags = []
    if len(progress.steps) > steps:
        flags.append(FLAG_EXTRA)
    if len(progress.steps) < steps:
        flags.append(FLAG_MISSING)
    flags += _order_flags(progress)
    if progress.steps:
        flags += _arrival_flags(progress, wall_s)
    if any(not math.isfinite(mark.loss) for mark in progress.steps):
        flags.append(FLAG_LOSS)
    return tuple(flags)


def timings(progress: Progress, wall_s: float, warmup: int, steps: int, amortise_over: int) -> Timings | None:
    """Times of one finished run of `steps` steps; None when its progress can't carry any.

    The mean step time is (t_last - t_warmup) / (steps - warmup) with t_k the arrival of the k-th
    line; start-up is t_warmup - warmup * step_s, so that imports, compilation and slow first steps
    are charged to it. Without warm-up the first line is the reference. None for missing, forged or
    buffered lines, and for runs not longer than their warm-up.
    """
    flags = check(progress, wall_s, steps)
    reference = max(1, warmup)
    if UNUSABLE.intersection(flags) or steps <= reference:
        return None
    settled, last = progress.steps[reference - 1].at_s, progress.steps[-1].at_s
    step_s = (last - settled) / (steps - reference)
    startup_s = max(0.0, settled - reference * step_s)
    teardown_s = max(0.0, wall_s - last)
    if step_s <= 0:
        return None
    return Timings(startup_s, step_s, teardown_s, step_s + (startup_s + teardown_s) / amortise_over, flags)

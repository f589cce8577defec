"""Which candidates are worth a verification: pure decisions on few runs (MEASUREMENT, section 2).

Screening spends runs sparingly and proves nothing: verification uses fresh runs only, and no figure
from here is ever quoted as a gain. Ratios are log(candidate / incumbents), so that negative is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

DROP_SCALES = 0.2
"""a first run has to be faster by this many pair scales"""
PROMOTE_SCALES = 0.46
"""the mean of two runs has to be faster by this many pair scales, or by the practical margin"""
SLOWER_SCALES = 2.0
"""the only candidate of an evaluation is verified unless it is slower by this many pair scales, more than three
standard errors of two batches"""
CONTRADICTION_SCALES = 3.0
"""two runs that differ by more than this do not measure the same thing: one of them was disturbed"""


@dataclass(frozen=True)
class Look:
    """What to do with a candidate now."""

    decision: Literal["drop", "again", "promote"]
    reason: str
    """one sentence"""


def batch_log_ratio(candidate: float, incumbents: Sequence[float]) -> float:
    """log(candidate / geometric mean of the batch's incumbents), from scores in seconds."""
    return math.log(candidate) - statistics.fmean(math.log(score) for score in incumbents)


def batch_order(candidates: Sequence[str], incumbent: str, randbelow: Callable[[int], int]) -> tuple[str, ...]:
    """Labels of a batch in the order to run: the candidates and two incumbents, at random, an incumbent in each half.

    The machine drifts within a batch, and two incumbents at one end of it would say so little of the other end that
    2 % of power are lost (simulation at CV 2 %). `randbelow(k)` gives an integer in [0, k), as secrets.randbelow does.
    """
    drawn = _shuffled(candidates, randbelow)
    half = (len(drawn) + 1) // 2
    return tuple(_shuffled([*drawn[:half], incumbent], randbelow) + _shuffled([*drawn[half:], incumbent], randbelow))


def _shuffled(labels: Sequence[str], randbelow: Callable[[int], int]) -> list[str]:
    order = list(labels)
    for last in range(len(order) - 1, 0, -1):
        other = randbelow(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def estimate(ratios: Sequence[float]) -> float:
    """Log-ratio from one to three batches: their mean, or the median of three.

    A third batch is run only where two contradict each other, and a median of three outvotes the disturbed one.
    """
    return statistics.median(ratios) if len(ratios) >= 3 else statistics.fmean(ratios)


def first_look(log_ratio: float, scale: float) -> Look:
    """Drop what is not visibly faster in its first batch; give the rest a second one."""
    if -log_ratio < DROP_SCALES * scale:
        return Look("drop", f"{_words(log_ratio)} in its first run; below {DROP_SCALES} scales of noise it is dropped.")
    return Look("again", f"{_words(log_ratio)} in its first run; a second one decides.")


def second_look(first: float, second: float, scale: float, margin: float) -> Look:
    """Promote when the mean of two batches beats noise and margin; ask for a third where they contradict.

    `margin` is the practical margin D0 as a fraction of step time.
    """
    if abs(first - second) > CONTRADICTION_SCALES * scale:
        return Look("again", f"{_words(first)}, then {_words(second)}: one of the two was disturbed, a third run decides.")
    return _decide(estimate((first, second)), "on the mean of two runs", scale, margin)


def third_look(first: float, second: float, third: float, scale: float, margin: float) -> Look:
    """Promote or drop on the median of three batches."""
    return _decide(estimate((first, second, third)), "on the median of three runs", scale, margin)


def look_alone(ratios: Sequence[float], scale: float) -> Look:
    """After each batch of a lone candidate whose verdict is asked for: is it so slow that a verification is wasted?

    Two batches in any case, since one disturbed run must not condemn a change; a third where they contradict.
    """
    if len(ratios) == 1:
        return Look("again", f"{_words(ratios[0])} in its first run; a second one follows in any case.")
    if len(ratios) == 2 and abs(ratios[0] - ratios[1]) > CONTRADICTION_SCALES * scale:
        return Look("again", f"{_words(ratios[0])}, then {_words(ratios[1])}: one of the two was disturbed, a third run decides.")
    over = "on the mean of two runs" if len(ratios) == 2 else "on the median of three runs"
    said = f"{_words(estimate(ratios))} {over}"
    if estimate(ratios) > SLOWER_SCALES * scale:
        return Look("drop", f"{said}, far beyond the noise")
    return Look("promote", f"{said}; not clearly slower, so it is verified.")


def threshold(scale: float, margin: float) -> float:
    """Log gain that promotes: the larger of the practical margin and 0.46 scales."""
    return max(-math.log1p(-margin), PROMOTE_SCALES * scale)


def _decide(log_ratio: float, over: str, scale: float, margin: float) -> Look:
    needed = -math.expm1(-threshold(scale, margin))
    if -log_ratio > threshold(scale, margin):
        return Look("promote", f"{_words(log_ratio)} {over}, above the {100 * needed:.1f} % that a verification is worth.")
    return Look("drop", f"{_words(log_ratio)} {over}, not above the {100 * needed:.1f} % that a verification is worth.")


def _words(log_ratio: float) -> str:
    change = math.expm1(log_ratio)
    return f"{100 * abs(change):.1f} % {'slower' if change >= 0 else 'faster'}"

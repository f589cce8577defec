"""Which change to try next: expected improvement, under the chance that it fits, per second of trial time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rsi_tui.search.estimate import MEMORY_SD, Estimate


@dataclass(frozen=True)
class Choice:
    """A scored change, with the score in words."""

    value: float
    """expected log improvement x P(fits), per relative second"""
    improvement: float
    """expected fall of log time, counting only falls"""
    fits: float
    """P(peak memory within the limit)"""
    chance: float
    """P(faster by more than the practical margin)"""
    words: str


def normal_cdf(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def expected_improvement(mean: float, sd: float) -> float:
    """E[max(0, -x)] for x ~ N(mean, sd^2): how much log time is expected to fall, counting only falls."""
    if sd <= 0:
        return max(0.0, -mean)
    z = -mean / sd
    return -mean * normal_cdf(z) + sd * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def probability_fits(parent_peak: int | None, memory: float, limit: int) -> float:
    """P(peak <= limit) when the parent's peak is known; 1 when nothing is known or there is no limit."""
    if parent_peak is None or limit <= 0:
        return 1.0
    return normal_cdf((math.log(limit / parent_peak) - memory) / MEMORY_SD)


def score(estimate: Estimate, parent_peak: int | None, limit: int, margin: float, startup: float = 0.0) -> Choice:
    """Score a change; its cost is the run time it is expected to have, `margin` the practical one (fraction).

    `startup`: what its runs take longer to start, in lengths of a run.
    """
    improvement = expected_improvement(estimate.time, estimate.time_sd)
    fits = probability_fits(parent_peak, estimate.memory, limit)
    cost = math.exp(estimate.time) + startup
    chance = normal_cdf((math.log1p(-margin) - estimate.time) / estimate.time_sd)
    words = (
        f"expected {percent(estimate.time)} of step time, give or take {100 * estimate.time_sd:.0f} points, "
        f"fits with probability {fits:.2f}, matters with probability {chance:.2f}"
    )
    return Choice(improvement * fits / cost, improvement, fits, chance, words)


def percent(log_ratio: float) -> str:
    """A log-ratio of time as a signed percentage: -0.1 -> '-9.5 %'."""
    return f"{100 * math.expm1(log_ratio):+.1f} %"

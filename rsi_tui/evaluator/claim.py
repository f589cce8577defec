"""What may be said of the adopted stack against the original, from fresh pairs (MEASUREMENT, section 5).

Pure functions of measured values. The interval is distribution-free under symmetry of the pairs' log
ratios; it says nothing of rare disasters, which `mean_total_ratio` and `slow_run_bound` are for.

Which members of the stack carry it: leave-one-out in blocks of one run of the stack and one of each 'stack without
a member', in random order, with simultaneous intervals, and backward elimination one member at a time. Two members
that do the same work look useless each, since the other one still does it; dropping one shows what the other is
worth, dropping both would lose it. So each step drops one member at most, and the next needs fresh blocks of the
smaller stack. Every round's intervals hold together for its members; only those of the last round are quoted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from rsi_tui.journal.facts import Interval


def hodges_lehmann(log_ratios: Sequence[float], confidence: float = 0.99) -> Interval:
    """Speed-up (baseline time / candidate time) from pairs' log(candidate / baseline), with exact interval.

    The estimate is the median of the Walsh averages, the interval inverts Wilcoxon's signed-rank test
    (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, section 3.3), so it covers with at least
    `confidence`. Raises ValueError when there are too few pairs: 99 % needs eight.
    """
    count = len(log_ratios)
    cut = _signed_rank_cut(count, (1 - confidence) / 2)
    if cut is None:
        raise ValueError(
            f"{count} pairs can't give a {confidence:.3g} interval: measure at least {fewest_pairs(confidence)}."
        )
    values = np.asarray(log_ratios, dtype=np.float64)
    upper = np.triu_indices(count)
    walsh = np.sort((values[upper[0]] + values[upper[1]]) / 2)
    return Interval(
        estimate=math.exp(-float(np.median(walsh))),
        low=math.exp(-float(walsh[-1 - cut])),
        high=math.exp(-float(walsh[cut])),
        confidence=confidence,
    )


def fewest_pairs(confidence: float) -> int:
    """Pairs without which no signed-rank interval of this confidence exists."""
    return math.ceil(1 - math.log2(1 - confidence))


def fewest_blocks(members: int, family: float = 0.95) -> int:
    """Blocks of leave-one-out without which no simultaneous intervals exist.

    So few prove little: any one disturbed run leaves its member unproven. Among four members at CV 2 % with 2 % of
    runs disturbed, 8 blocks prove one worth 5 % in 0.57 of cases and one worth 10 % in 0.84; 16 blocks in 0.92 and 0.94.
    """
    return fewest_pairs(_each(members, family))


def simultaneous(
    ratios: Mapping[str, Sequence[float]], members: int | None = None, family: float = 0.95
) -> dict[str, Interval]:
    """What each member is worth: time without it / time with it, intervals that hold for all with `family` at least.

    `ratios` by member: log(time of the stack without it / time of the stack) of each block. `members` is how many
    were asked when some have no times (the stack does not run without them); by default those in `ratios`.
    Bonferroni over exact signed-rank intervals, which needs no independence: all of a block share the stack's run.
    Raises ValueError when there are too few blocks, see `fewest_blocks`.
    """
    asked = len(ratios) if members is None else members
    if asked < len(ratios):
        raise ValueError(f"{len(ratios)} members have times, but {asked} are said to have been asked.")
    return {name: hodges_lehmann([-log for log in logs], _each(asked, family)) for name, logs in ratios.items()}


def eliminate(intervals: Mapping[str, Interval]) -> str:
    """The member to drop next: of those whose interval does not lie above 1, the one worth least; '' for none."""
    unproven = {name: interval.estimate for name, interval in intervals.items() if interval.low <= 1}
    return min(unproven, key=unproven.__getitem__, default="")


def _each(members: int, family: float) -> float:
    """Confidence of one interval among `members` that hold together."""
    if members < 1 or not 0 < family < 1:
        raise ValueError(f"no simultaneous intervals for {members} members at {family}.")
    return 1 - (1 - family) / members


def slope(lengths: Sequence[float], walls: Sequence[float]) -> float:
    """Seconds a step: slope of total wall over length of run, by Theil and Sen, weighted by distance.

    The weighted median of the slopes between all pairs of runs of different length (Jaeckel, Ann. Math.
    Stat. 1972). Raises ValueError when all runs have one length.
    """
    x, y = np.asarray(lengths, dtype=np.float64), np.asarray(walls, dtype=np.float64)
    first, second = np.triu_indices(len(x), k=1)
    run, rise = x[second] - x[first], y[second] - y[first]
    apart = run != 0
    if not apart.any():
        raise ValueError("a slope needs runs of at least two lengths: draw further lengths before the claim.")
    slopes, weights = rise[apart] / run[apart], np.abs(run[apart])
    order = np.argsort(slopes)
    reached = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    return float(slopes[order][reached])


def slope_ratio(
    baseline_lengths: Sequence[float],
    baseline_walls: Sequence[float],
    candidate_lengths: Sequence[float],
    candidate_walls: Sequence[float],
) -> float | None:
    """Slope of total wall, baseline / candidate, above 1 is faster; None when a slope is not positive."""
    baseline = slope(baseline_lengths, baseline_walls)
    candidate = slope(candidate_lengths, candidate_walls)
    return baseline / candidate if baseline > 0 and candidate > 0 else None


def slow_run_bound(
    candidate_scores: Sequence[float], baseline_scores: Sequence[float], confidence: float = 0.95
) -> float:
    """Upper bound on the rate of candidate runs slower than the baseline's median (Clopper-Pearson)."""
    if not candidate_scores or not baseline_scores:
        raise ValueError("a bound on slow runs needs runs of both arms.")
    middle = statistics.median(baseline_scores)
    slow = sum(score > middle for score in candidate_scores)
    count = len(candidate_scores)
    return 1.0 if slow == count else float(special.betaincinv(slow + 1, count - slow, confidence))


def mean_total_ratio(candidate_totals: Sequence[float], baseline_totals: Sequence[float]) -> float:
    """Plain mean of total time, candidate / baseline; below 1 is faster.

    Of all completed runs, none dropped: this is the figure that a rare disaster shows in. Both arms must have
    run the same lengths.
    """
    return statistics.fmean(candidate_totals) / statistics.fmean(baseline_totals)


def _signed_rank_cut(count: int, tail: float) -> int | None:
    """Largest k with P(T <= k) <= tail for the signed-rank statistic of `count` pairs; None when there is none."""
    ways = np.ones(1, dtype=np.float64)
    for rank in range(1, count + 1):
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways / 2
        longer[rank:] += ways / 2
        ways = longer
    # 1e-12: 2 / 2**8 against 0.01 must not hang on the last bit
    below = np.cumsum(ways) <= tail * (1 + 1e-12)
    return int(below.sum()) - 1 if below[0] else None

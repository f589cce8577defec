"""The rule against rare disasters: how often is a run of the candidate far slower than its runs usually are?

Robust statistics forgive a candidate that is faster in nine runs and three times slower in the tenth, and the
plain mean of a dozen runs often holds no such run at all. So a candidate whose e-process has reached its bound
is also asked for its rate of slow runs, over all of its runs that exist: screening, verification, and further
runs of the candidate alone ('endurance runs'), which cost nothing where nothing is about to be proven.

A run is slow when it takes at least SLOW_FACTOR times the candidate's own median score and longer than the
incumbent's median: against its own median, because a large gain would hide a doubled time; and no longer than
the program that it replaces is no disaster.

'held': the rate is below `max_rate`, with probability of error at most ERROR whatever the rate is above it, at
any rule of stopping. It is an exact sequential test: with k slow runs it takes n_k runs, and n_0 < n_1 < ... are
the fewest for which all ways of being held at a true rate of `max_rate` spend ERROR / 2 up to no slow run,
3/4 ERROR up to one, and so on (error spending: Lan and DeMets, Biometrika 1983). At 10 %: 36, 54, 73, 94 runs.
'refuted': Wald's ratio (Ann. Math. Stat. 1945) prefers `max_rate` to the rate of the incumbent's own slow runs so
clearly that at most one candidate in a hundred like the incumbent is refused; this only saves runs.

Runs are taken as independent of each other. Screening's runs count as well: the probability is that of being
adopted, over all that happens to a candidate, not among those that screening let through.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SLOW_FACTOR = 2.0
ERROR = 0.05
"""probability at most that a candidate with too many slow runs is held to have few"""
REFUSED = 0.01
"""probability at most, roughly, that a candidate like the incumbent is refuted"""
FULL_RATE = 0.10
"""rate of slow runs that a full campaign excludes"""
QUICK_RATE = 0.20
LEAST_EXTRA = 88
"""endurance runs that one candidate may have whatever its rate: see `most_extra`"""
OUTVOTED = 3
"""slow runs that further ones can still outvote; at a rate of 10 % one candidate in a hundred exceeds that where 1 % of
all runs are slow"""
_BEFORE = 6
"""runs of a candidate before its endurance runs, at the least: screening's and one block's, roughly"""
_LEAST_USUAL = 0.01
"""rate of slow runs that any machine is allowed"""


@dataclass(frozen=True)
class SlowRuns:
    """What the runs so far say of the candidate's rate of slow runs."""

    decision: Literal["held", "refuted", "undecided"]
    slow: int
    runs: int
    runs_needed: int
    """further runs until 'held' if none of them is slow; 0 when held"""
    rate_bound: float
    """upper bound on the rate of slow runs, 0..1, with confidence 1 - ERROR at any rule of stopping"""
    incumbent_slow: int
    """slow runs of the incumbent, at least SLOW_FACTOR times its own median"""
    incumbent_runs: int
    max_rate: float

    @property
    def reason(self) -> str:
        """One sentence for a verdict."""
        seen = f"{self.slow} of {self.runs} runs took at least {SLOW_FACTOR:g} times the usual"
        match self.decision:
            case "held":
                return f"{seen}: at most {100 * self.rate_bound:.0f} % of all runs do."
            case "refuted":
                return f"{seen} ({self.incumbent_slow} of {self.incumbent_runs} of the incumbent's): rare disasters."
            case _:
                return f"{seen}: {self.runs_needed} more without a slow one would show that under {100 * self.max_rate:.0f} % do."

    def worth_asking(self, extra: int) -> bool:
        """Can it still be held, with `extra` endurance runs made so far of at most `most_extra`?"""
        return self.decision == "undecided" and extra + self.runs_needed <= most_extra(self.max_rate)


def judge_slow_runs(
    candidate: Sequence[float], incumbent: Sequence[float], max_rate: float = FULL_RATE
) -> SlowRuns:
    """Judge all runs of the candidate so far; ask as often as wanted, and stop at 'held' or 'refuted'.

    Scores in seconds a step (comparable over blocks), in any order. Raises ValueError for times that are not
    positive and finite, an arm without runs, or a rate outside (0, 1).
    """
    if not candidate or not incumbent or not 0 < max_rate < 1:
        raise ValueError("slow runs are judged on runs of both arms, against a rate between 0 and 1.")
    if not all(math.isfinite(score) and score > 0 for score in (*candidate, *incumbent)):
        raise ValueError("scores must be positive and finite; a run without a time is no time.")
    usual = statistics.median(incumbent)
    slow, runs = _slow(candidate, longer_than=usual), len(candidate)
    theirs = _slow(incumbent, longer_than=usual)
    needed = max(0, runs_to_hold(slow, max_rate) - runs)
    refuted = _log_ratio(slow, runs, (theirs + 0.5) / (len(incumbent) + 1), max_rate) >= math.log((1 - ERROR) / REFUSED)
    return SlowRuns(
        decision="held" if not needed else "refuted" if refuted else "undecided",
        slow=slow,
        runs=runs,
        runs_needed=needed,
        rate_bound=rate_bound(slow, runs),
        incumbent_slow=theirs,
        incumbent_runs=len(incumbent),
        max_rate=max_rate,
    )


@functools.lru_cache(maxsize=1024)
def runs_to_hold(slow: int, max_rate: float) -> int:
    """Runs n_k after which `slow` slow ones among them are few enough to exclude a rate of `max_rate`."""
    # still[k]: probability at `max_rate` of k slow runs so far without having been held
    still = [1.0] + [0.0] * slow
    enough: list[int] = []
    spent, run = 0.0, 0
    while len(enough) <= slow:
        run += 1
        still = [p * (1 - max_rate) + q * max_rate for p, q in zip(still, [0.0, *still[:-1]], strict=True)]
        following = len(enough)
        held = sum(still[:following])
        if spent + held + still[following] <= ERROR * (1 - 0.5 ** (following + 1)):
            enough.append(run)
            held += still[following]
        spent += held
        still[: len(enough)] = [0.0] * len(enough)
    return enough[slow]


def most_extra(max_rate: float) -> int:
    """Endurance runs of one candidate at most, so that OUTVOTED slow runs need not be its end: 88 at 10 % and above, of
    which most candidates need some 25; 186 at 5 %, 481 at 2 %."""
    return max(LEAST_EXTRA, runs_to_hold(OUTVOTED, max_rate) - _BEFORE)


@functools.lru_cache(maxsize=1024)
def rate_bound(slow: int, runs: int) -> float:
    """The smallest rate, to a thousandth, that `slow` slow runs among `runs` exclude; 1 when they exclude none.

    The tests of all rates invert to a confidence sequence, so this holds at any rule of stopping, which the bound
    of Clopper and Pearson does not.
    """
    low, high = 0, 1000
    while high - low > 1:
        middle = (low + high) // 2
        if runs_to_hold(slow, middle / 1000) <= runs:
            high = middle
        else:
            low = middle
    return high / 1000


def _slow(scores: Sequence[float], longer_than: float) -> int:
    limit = SLOW_FACTOR * statistics.median(scores)
    return sum(score >= limit and score > longer_than for score in scores)


def _log_ratio(slow: int, runs: int, usual: float, max_rate: float) -> float:
    """Log likelihood ratio of `max_rate` to the usual rate, which is at least 1 % and at most a quarter of it."""
    usual = min(max(usual, _LEAST_USUAL), max_rate / 4)
    return slow * math.log(max_rate / usual) + (runs - slow) * math.log((1 - max_rate) / (1 - usual))

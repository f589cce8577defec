"""Which candidates to measure next: noisy expected improvement, where it fits in memory, for each second of trial time.

Improvement is over the best of what was measured, whose true times are uncertain as well, so both are drawn together
from the models' joint posterior (Letham et al. 2019, constrained noisy expected improvement, by simple Monte Carlo). A
batch is chosen one by one: what is pending or chosen before counts in each draw as if it had been measured. A draw in
which a candidate does not fit improves nothing and costs what such a run costs. A saving of memory is bought by its
worth: sets with a hungry change and a saving one are candidates like others, and compete with either alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from rsi_tui.search.censored import Array
from rsi_tui.search.space import Point, Space
from rsi_tui.search.surrogate import Observation, Surrogate

_DRAWS = 512
_SHORTLIST = 256
"""candidates whose joint posterior is drawn; the others are behind them by a bound that is exact for each alone"""
_RIVALS = 12
"""measured points that may be the best"""


@dataclass(frozen=True)
class Costs:
    """What a run costs, in seconds."""

    step_s: float
    """of the original"""
    steps: float
    startup_s: float = 0.0
    failed_s: float = 0.0
    """of a run that does not fit; 0 for as long as one that does"""
    extra: Callable[[Point], float] = lambda point: 0.0
    """what starts later at a point, as with a compiler"""

    def of(self, point: Point, log_time: float, fits: float) -> float:
        """Expected seconds of a run with that log-ratio of step time and chance to fit."""
        whole = self.startup_s + self.extra(point) + self.steps * self.step_s * math.exp(log_time)
        return fits * whole + (1 - fits) * (self.failed_s or whole)


@dataclass(frozen=True)
class Choice:
    """A candidate to measure, and why."""

    point: Point
    value: float
    """expected improvement in log time where it fits, per second"""
    improvement: float
    """of log time, over the best so far, counting only falls and only where it fits"""
    log_time: float
    """expected, to the original"""
    log_time_sd: float
    fits: float
    """P(peak within the limit)"""
    cost_s: float

    def words(self, best: float) -> str:
        """The reason in one line; `best`: expected log-ratio of the best so far."""
        change = 100 * math.expm1(self.log_time - best)
        return (
            f"expected {change:+.1f} % of step time against the best so far, give or take {100 * self.log_time_sd:.0f} points, "
            f"fits with probability {self.fits:.2f}, about {self.cost_s:.0f} s a run"
        )


def choose(
    surrogate: Surrogate,
    candidates: Sequence[Point],
    limit_bytes: float,
    costs: Costs,
    *,
    count: int = 1,
    pending: Sequence[Point] = (),
    seed: int = 0,
    least_fit: float = 0.0,
) -> list[Choice]:
    """The next `count` of the candidates, most valuable first; fewer where there are fewer.

    `limit_bytes` 0 means no limit. Candidates with a chance to fit below `least_fit` are left out while others remain.
    """
    if not candidates:
        return []
    rivals = best_measured(surrogate, _RIVALS)
    alone = surrogate.times(candidates)
    peaks = surrogate.peaks(candidates)
    fits = _chance_to_fit(peaks.mean, peaks.sd, limit_bytes)
    price = np.array([costs.of(p, t, f) for p, t, f in zip(candidates, alone.mean, fits, strict=True)])
    standing = surrogate.times([point for point, _ in rivals]).mean.min()
    bound = expected_improvement(alone.mean - standing, alone.sd) * fits / price
    if least_fit and (fits >= least_fit).any():
        bound = np.where(fits >= least_fit, bound, -1.0)
    short = [int(i) for i in np.argsort(-bound, kind="stable")[: max(_SHORTLIST, count)] if bound[i] >= 0]
    drawn_time, drawn_fit, best = _draws(surrogate, [p for p, _ in rivals], list(pending), [candidates[i] for i in short], limit_bytes, seed)
    chosen: list[Choice] = []
    left = list(range(len(short)))
    while left and len(chosen) < count:
        gains = np.array([np.mean(np.maximum(best - drawn_time[:, i], 0.0) * drawn_fit[:, i]) for i in left])
        values = gains / price[[short[i] for i in left]]
        # Where no draw improves, the bound still orders.
        at = int(np.argmax(values)) if values.max() > 0 else int(np.argmax(bound[[short[i] for i in left]]))
        i = left.pop(at)
        n = short[i]
        chosen.append(Choice(candidates[n], float(values[at]), float(gains[at]), float(alone.mean[n]), float(alone.sd[n]), float(fits[n]), float(price[n])))
        best = np.where(drawn_fit[:, i], np.minimum(best, drawn_time[:, i]), best)
    return chosen


def best_measured(surrogate: Surrogate, count: int) -> list[tuple[Point, float]]:
    """(point, expected log-ratio to the original) of what was measured and fits, fastest first; the original among them."""
    known = list(dict.fromkeys([Point(), *(o.point for o in surrogate.observations if _timed(o)), *(o.against for o in surrogate.observations)]))
    means = surrogate.times(known).mean
    ordered = sorted(zip(known, (float(m) for m in means), strict=True), key=lambda pair: pair[1])
    return ordered[:count]


def expected_improvement(mean: Array, sd: Array) -> Array:
    """E[max(0, -x)] for x ~ N(mean, sd^2), elementwise."""
    spread = np.maximum(sd, 1e-9)
    z = -mean / spread
    found: Array = np.maximum(-mean * ndtr(z) + spread * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi), 0.0)
    return found


def _timed(observation: Observation) -> bool:
    return observation.log_ratio is not None and not observation.slow and not observation.oom


def _chance_to_fit(mean: Array, sd: Array, limit_bytes: float) -> Array:
    found: Array = ndtr((math.log(limit_bytes) - mean) / np.maximum(sd, 1e-9)) if limit_bytes > 0 else np.ones_like(mean)
    return found


def _draws(
    surrogate: Surrogate, rivals: Sequence[Point], pending: Sequence[Point], candidates: Sequence[Point], limit_bytes: float, seed: int
) -> tuple[Array, NDArray[np.bool_], Array]:
    """(draws, candidates) of log time and of whether it fits, and (draws,) of the best log time of rivals and pending."""
    rng = np.random.default_rng(seed)
    everything = [*rivals, *pending, *candidates]
    forecast = surrogate.times(everything)
    times = _normal(forecast.mean, forecast.covariance, rng)
    unsure = [*pending, *candidates]
    if limit_bytes > 0:
        peaks = surrogate.peaks(unsure)
        fits = _normal(peaks.mean, peaks.covariance, rng) <= math.log(limit_bytes)
    else:
        fits = np.ones((_DRAWS, len(unsure)), bool)
    best: Array = times[:, : len(rivals)].min(axis=1)
    for i in range(len(pending)):
        best = np.where(fits[:, i], np.minimum(best, times[:, len(rivals) + i]), best)
    return times[:, len(rivals) + len(pending) :], fits[:, len(pending) :], best


def _normal(mean: Array, covariance: Array, rng: np.random.Generator) -> Array:
    """(draws, points); the covariance may be singular."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found: Array = mean + rng.standard_normal((_DRAWS, len(mean))) @ root.T
    return found


def propose(space: Space, surrogate: Surrogate, rng: random.Random, *, starts: Iterable[Point] = (), most: int = 600) -> list[Point]:
    """Untried feasible points worth a look: neighbours of the starts and of the best measured, neighbours of what the
    model thinks best of those, so that two changes which only pay together are found, and random sets for the rest."""
    tried = {o.point for o in surrogate.observations}
    best = [point for point, _ in best_measured(surrogate, 6)]
    near = list(dict.fromkeys(n for start in dict.fromkeys([*starts, *best]) for n in space.neighbours(start)))
    found = dict.fromkeys(near)
    for _ in range(3):
        if not near:
            break
        forecast = surrogate.times(near)
        order = np.argsort(forecast.mean - forecast.sd)[:8]
        near = [n for i in order for n in space.neighbours(near[int(i)]) if n not in found]
        found |= dict.fromkeys(near)
        if len(found) >= most:
            break
    points = [point for point in found if point not in tried]
    while len(points) < most // 4:
        points.append(space.sample(rng, rng.uniform(0.1, 0.6)))
    return [p for p in dict.fromkeys(points) if p not in tried][: max(most, 1)]

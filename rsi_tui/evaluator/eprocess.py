"""Proof that B is faster than A: blocks in random order and a permutation e-process (MEASUREMENT, section 3).

Null hypothesis: the improvement is at most the practical margin D0. In each block of n incumbent (A) and
n candidate (B) runs the order is drawn uniformly from all C(2n, n). Under the sharp null at its boundary
a run's *shifted* log time, log t + d for B and log t for A with d = -log(1 - D0), is the same whichever
arm the draw put there. All that follows sees shifted values alone: the block's median, the clipping around
it, and the statistic W. So, given the block's shifted values, W at the drawn order divided by the mean of
W over all orders has expectation exactly 1, whatever drift, outliers or scale did; and products over blocks
and mixtures over g stay so. Clipping never looks at a label: the shift comes first. A candidate that is
uniformly slower than the boundary has a smaller e-value in every single case, not only on average.

By Ville's inequality the probability that `total` ever reaches 1/alpha is at most alpha, at any rule of
stopping; futility looks therefore cost power, never validity. What is not covered: a candidate whose noise
has another shape than the incumbent's, or runs that slow the next one (scripts/bench/measurement.py).

    log W(order) = -g * (sum of candidates' clipped values) / s^2     (half the difference of sums, same thing)
    mean of W    = e_n(exp(-g c_i / s^2)) / C(2n, n),  e_n the elementary symmetric polynomial: exact, O(n^2)

Times are seconds, gains natural logs with positive = faster, the scale is that of a *pair* of runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SAFETY = 1.15
"""factor that noise.pair_scale carries, because the scale of few pairs is too small more often than too large"""
GRID: Floats = np.geomspace(0.01, 0.25, 12)
"""log effects beyond D0 that the process is a mixture over"""
CLIP_SCALES = 2.0
"""in run scales without the safety factor; wider clips lose power to outliers, in simulation"""
HEDGE = 0.02
"""share of every bet that is kept back, so that one bad block never ruins a process"""
PRIOR_FLOOR = 0.3
"""share of the mixture that is spread evenly, because a screening estimate is a lucky one"""
ARM_SIZES = (3, 4, 5, 6, 7, 8)
FUTILE_FIRST = -0.8
"""half-way through the first block: standard errors of the arms' difference under which it is hopeless"""
DISTURBED_SCALES = 8.0
"""run scales above the fastest at which a run says more about a disturbance than about the program"""
FUTILE_OPTIMISM = 2.0
"""after a block: standard errors that are added to the estimate before the rest is projected"""
MAX_RUNS = 70
"""of a verification, warm-ups counted. Ten small blocks and an early stop at 2 standard errors find more than eight
and a stop at 3 (0.83 instead of 0.77 at a true 5 %, CV 2 %) and cost nulls less (826 instead of 852 runs for 200)"""


@dataclass(frozen=True)
class BlockPlan:
    """How a verification is cut into blocks."""

    arm_size: int
    """runs of each arm in a block"""
    max_blocks: int

    @property
    def runs_per_block(self) -> int:
        """Both arms and the declared warm-up run that begins each block and is never counted."""
        return 2 * self.arm_size + 1


def orders(arm_size: int) -> int:
    """Number of orders of a block."""
    return math.comb(2 * arm_size, arm_size)


def draw_order(arm_size: int, randbelow: Callable[[int], int]) -> str:
    """An order such as 'ABBABA', uniform over all: one draw below C(2n, n), unranked.

    `randbelow(k)` gives an integer in [0, k) without bias, such as `secrets.randbelow`.
    """
    rank = randbelow(orders(arm_size))
    order, a_left, b_left = "", arm_size, arm_size
    while a_left + b_left:
        starting_with_a = math.comb(a_left + b_left - 1, b_left) if a_left else 0
        if rank < starting_with_a:
            order, a_left = order + "A", a_left - 1
        else:
            order, b_left, rank = order + "B", b_left - 1, rank - starting_with_a
    return order


def choose_plan(alpha: float, predicted_gain: float, scale: float, margin: float, max_runs: int = MAX_RUNS) -> BlockPlan:
    """Block size for which a block like the predicted ones reaches 1/alpha in the fewest runs.

    Each size is tried on a typical block (normal quantiles in both arms, apart by the predicted gain), with
    hedge and mixture as they are: for a large gain one large block is enough, whose orders are many; for a
    small one no size helps, and 3 + 3 runs in many blocks can stop soonest. `max_runs` counts warm-up runs.
    """
    best: tuple[int, BlockPlan] | None = None
    for arm_size in ARM_SIZES:
        plan = BlockPlan(arm_size, max_runs // (2 * arm_size + 1))
        blocks = blocks_needed(alpha, predicted_gain, scale, margin, arm_size, most=plan.max_blocks)
        if blocks is not None and (best is None or blocks * plan.runs_per_block < best[0]):
            best = (blocks * plan.runs_per_block, plan)
    return best[1] if best else BlockPlan(ARM_SIZES[0], max(1, max_runs // (2 * ARM_SIZES[0] + 1)))


class EProcess:
    """Evidence against 'the candidate is at most D0 faster', block by block."""

    def __init__(self, alpha: float, scale: float, margin: float, predicted_gain: float) -> None:
        """`scale` of a pair (noise.pair_scale), `margin` D0 as a fraction, `predicted_gain` from screening (log)."""
        if not (0 < alpha < 1 and scale > 0 and 0 <= margin < 1):
            raise ValueError(f"alpha {alpha}, scale {scale} or margin {margin} is out of range.")
        self.alpha = alpha
        self._scale = run_scale_of(scale)
        self._shift = -math.log1p(-margin)
        self._log_weights = log_weights(predicted_gain - self._shift, scale)
        self._log_products = np.zeros(len(GRID))
        self._differences: list[float] = []
        self._arm_size = ARM_SIZES[0]
        self._highest = 0.0

    @property
    def total(self) -> float:
        """The e-value so far, 1 before the first block."""
        return math.exp(_mix(self._log_products, self._log_weights))

    @property
    def highest(self) -> float:
        """The e-value at its highest: what a ledger keeps, since reaching 1/alpha once is the proof."""
        return math.exp(self._highest)

    @property
    def reached(self) -> bool:
        """Proven: the process has been at 1/alpha or above."""
        return self._highest >= -math.log(self.alpha)

    @property
    def estimate(self) -> float | None:
        """Mean log gain beyond D0 over the blocks, on clipped values; None before the first."""
        return float(np.mean(self._differences)) if self._differences else None

    def add_block(self, order: str, times: Sequence[float]) -> float:
        """Take a closed block's times in the order run; its e-value, expectation 1 under the null.

        `order` holds as many 'A' as 'B', `times` are positive seconds. A candidate run without a time has no
        place here: it counts against the candidate. Raises ValueError.
        """
        values, candidate = self._shifted(order, times)
        if 2 * candidate.sum() != len(order):
            raise ValueError(f"order {order!r} must hold as many A as B.")
        before = _mix(self._log_products, self._log_weights)
        self._log_products = self._log_products + log_evalues(values, candidate, self._scale)
        after = _mix(self._log_products, self._log_weights)
        self._differences.append(float(block_gain(values, candidate, self._scale)))
        self._arm_size = len(order) // 2
        self._highest = max(self._highest, after)
        return math.exp(after - before)

    def futile(self, plan: BlockPlan, order: str = "", times: Sequence[float] = ()) -> bool:
        """Is going on hopeless? Ask half-way through the first block, with its runs so far, and after each block.

        Half-way: the candidate is visibly no faster. Later: even at the present estimate plus FUTILE_OPTIMISM
        standard errors the blocks left would not reach 1/alpha. Stopping here never makes a false proof more likely.
        """
        if self.reached:
            return False
        if not self._differences:
            return bool(times) and bool(_hopeless_start(*self._shifted(order, times), self._scale))
        return bool(_hopeless(
            self._log_products, np.asarray(self._differences), plan, self._log_weights, self._scale, self.alpha
        ))

    def runs_needed(self) -> int | None:
        """Runs still needed, warm-ups counted, if the blocks to come are like those so far; 0 when proven.

        None when there is no block yet, or no number of blocks (up to 200) would do at the present estimate.
        """
        if self.reached:
            return 0
        if self.estimate is None:
            return None
        gains = _typical_log_evalues(np.asarray(self.estimate), self._arm_size, self._scale)
        for blocks in range(1, 201):
            if _mix(self._log_products + blocks * gains, self._log_weights) >= -math.log(self.alpha):
                return blocks * (2 * self._arm_size + 1)
        return None

    def _shifted(self, order: str, times: Sequence[float]) -> tuple[Floats, Bools]:
        if len(order) != len(times) or set(order) - set("AB"):
            raise ValueError(f"order {order!r} must be one A or B for each of the {len(times)} times.")
        seconds = np.asarray(times, dtype=np.float64)
        if not (np.isfinite(seconds).all() and (seconds > 0).all()):
            raise ValueError("times of a block must be positive and finite; a run without a time is no time.")
        candidate = np.array([arm == "B" for arm in order])
        return np.log(seconds) + self._shift * candidate, candidate


def run_scale_of(pair_scale: float) -> float:
    """Scale s of a single run, without the safety factor: a bet is largest at the noise as it is.

    Screening keeps the factor, since it pays for scales that are too small. The bets' s affects power alone.
    """
    return pair_scale / (math.sqrt(2) * SAFETY)


def log_weights(gain: float, scale: float) -> Floats:
    """Log weights of the mixture over GRID: around the predicted log gain beyond D0, as wide as its noise."""
    width = scale + 0.2 * abs(gain)
    closeness = np.exp(-0.5 * ((GRID - np.clip(gain, GRID[0], GRID[-1])) / width) ** 2) + 1e-12
    weights: Floats = np.log(PRIOR_FLOOR / len(GRID) + (1 - PRIOR_FLOOR) * closeness / closeness.sum())
    return weights


def log_evalues(values: Floats, candidate: Bools, run_scale: float) -> Floats:
    """Hedged log e-values of blocks for each g: values (..., 2n) shifted logs, candidate (..., 2n) -> (..., G).

    Exact over all orders by the recurrence of elementary symmetric polynomials, in log space.
    """
    arm_size = values.shape[-1] // 2
    bets = -_clipped(values, run_scale)[..., None, :] * (GRID / run_scale**2)[:, None]
    drawn = np.where(candidate[..., None, :], bets, 0.0).sum(axis=-1)
    ways = np.full((*bets.shape[:-1], arm_size + 1), -np.inf)
    ways[..., 0] = 0.0
    for run in range(2 * arm_size):
        ways[..., 1:] = np.logaddexp(ways[..., 1:], ways[..., :-1] + bets[..., run, None])
    mean = ways[..., arm_size] - math.log(orders(arm_size))
    hedged: Floats = np.logaddexp(math.log1p(-HEDGE) + drawn - mean, math.log(HEDGE))
    return hedged


def prove_many(
    logs: Floats, plan: BlockPlan, alpha: float, scale: float, margin: float, predicted_gain: float
) -> Bools:
    """Which of many simulated verifications prove the candidate: the rules of EProcess, all at once.

    logs (simulations, blocks, 2n): log times, incumbents first; their places in the order do not matter to the
    statistic. Half of the first block is a set of runs as mixed as an order is: every second one.
    """
    arm_size, run_scale = plan.arm_size, run_scale_of(scale)
    candidate = np.arange(2 * arm_size) >= arm_size
    shift = -math.log1p(-margin)
    values = logs + shift * candidate
    weights = log_weights(predicted_gain - shift, scale)
    gains = log_evalues(values, np.broadcast_to(candidate, values.shape), run_scale)
    differences = block_gain(values, candidate, run_scale)
    alive = ~_hopeless_start(values[:, 0, ::2], candidate[::2], run_scale)
    proven = np.zeros(len(logs), dtype=np.bool_)
    products = np.zeros((len(logs), len(GRID)))
    for block in range(plan.max_blocks):
        products = products + gains[:, block]
        proven |= alive & (mixed(products, weights) >= -math.log(alpha))
        seen = differences[:, : block + 1]
        alive &= ~proven & ~_hopeless(products, seen, plan, weights, run_scale, alpha)
    return proven


def _clipped(values: Floats, run_scale: float) -> Floats:
    """Shifted values around their block's median, at most CLIP_SCALES away."""
    away = values - _median(values)[..., None]
    return np.clip(away, -CLIP_SCALES * run_scale, CLIP_SCALES * run_scale)


def _median(values: Floats) -> Floats:
    """Over the last axis; for so few values sorting is ten times as fast as numpy's median."""
    ordered = np.sort(values, axis=-1)
    count = values.shape[-1]
    middle: Floats = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return middle


def block_gain(values: Floats, candidate: Bools, run_scale: float) -> Floats:
    """Log gain beyond D0 of each block: incumbents' mean minus candidates'.

    Clipped around each arm's own median, not around the block's: this estimates the gain, and a large one lies
    further from the block's median than noise does.
    """
    return _robust_mean(values[..., ~candidate], run_scale) - _robust_mean(values[..., candidate], run_scale)


def _robust_mean(values: Floats, run_scale: float) -> Floats:
    mean: Floats = _median(values) + _clipped(values, run_scale).mean(axis=-1)
    return mean


def _hopeless_start(values: Floats, candidate: Bools, run_scale: float) -> Bools:
    """Is the candidate visibly no faster after some runs of the first block? Never with one arm unseen.

    So few runs can't outvote a disturbed one, so runs far slower than the fastest of their arm are left out, and an
    arm whose runs all lie far above the other's is not judged yet.
    """
    if candidate.all() or not candidate.any():
        return np.zeros(values.shape[:-1], dtype=np.bool_)
    means, errors, fastest = [], [], []
    for arm in (~candidate, candidate):
        times = values[..., arm]
        fastest.append(times.min(axis=-1))
        calm = times <= fastest[-1][..., None] + DISTURBED_SCALES * run_scale
        means.append((times * calm).sum(axis=-1) / calm.sum(axis=-1))
        errors.append(1 / calm.sum(axis=-1))
    behind = means[0] - means[1] < FUTILE_FIRST * run_scale * np.sqrt(errors[0] + errors[1])
    hopeless: Bools = behind & (fastest[1] - fastest[0] <= DISTURBED_SCALES * run_scale)
    return hopeless


def _hopeless(
    log_products: Floats, differences: Floats, plan: BlockPlan, weights: Floats, run_scale: float, alpha: float
) -> Bools:
    """Could the blocks left not even reach 1/alpha at a hopeful estimate? differences (..., blocks so far)."""
    done = differences.shape[-1]
    left = plan.max_blocks - done
    error = run_scale * math.sqrt(2 / (plan.arm_size * done))
    hoped = differences.mean(axis=-1) + FUTILE_OPTIMISM * error
    projected = log_products + left * _typical_log_evalues(hoped, plan.arm_size, run_scale)
    return np.asarray(mixed(projected, weights) < -math.log(alpha))


def _typical_log_evalues(gain: Floats, arm_size: int, run_scale: float) -> Floats:
    """Log e-values for each g of a block whose arms lie `gain` apart with normal quantiles of noise: (...) -> (..., G)."""
    quantiles = special.ndtri((np.arange(arm_size) + 0.5) / arm_size) * run_scale
    candidate = np.arange(2 * arm_size) >= arm_size
    values = np.tile(quantiles, 2) - np.asarray(gain)[..., None] * candidate
    return log_evalues(values, np.broadcast_to(candidate, values.shape), run_scale)


@functools.lru_cache(maxsize=256)
def blocks_needed(
    alpha: float, gain: float, scale: float, margin: float, arm_size: int, most: int
) -> int | None:
    """Typical blocks until 1/alpha at this gain; None when `most` are not enough."""
    beyond = gain + math.log1p(-margin)
    weights = log_weights(beyond, scale)
    gains = _typical_log_evalues(np.asarray(beyond), arm_size, run_scale_of(scale))
    totals = mixed(np.arange(1, most + 1)[:, None] * gains, weights)
    enough = np.flatnonzero(totals >= -math.log(alpha))
    return int(enough[0]) + 1 if len(enough) else None


def _mix(log_products: Floats, weights: Floats) -> float:
    return float(mixed(log_products, weights))


def mixed(log_products: Floats, weights: Floats) -> Floats:
    """Log of the mixture: log products (..., G) and log weights -> (...). Ten times as fast as scipy's on 12 terms."""
    terms = log_products + weights
    largest = terms.max(axis=-1)
    total: Floats = np.asarray(largest + np.log(np.exp(terms - largest[..., None]).sum(axis=-1)))
    return total

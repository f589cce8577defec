"""How noisy this machine is, from A/A pairs: two runs of one program, in an order drawn at random.

Promises the scale that screening and verification use, how that scale follows the machine, how far the machine
drifted, and the smallest effect that a planned verification could prove. Reads nothing. The scale decides power alone: no error
rate depends on it being right (MEASUREMENT, sections 1 and 3).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rsi_tui.evaluator.eprocess import SAFETY, BlockPlan, prove_many, run_scale_of

RECENT = 40
"""A/A differences that count: the scale follows the machine"""
MAD_TO_SIGMA = 1.4826
FLOOR = 0.001
"""smallest pair scale: no process repeats its wall time better, and log times are divided by it"""
FEWEST = 4
POWER = 0.8
_SIMULATED = 160
_SEED = 20_010_521


def pair_scale(differences: Sequence[float]) -> float:
    """Scale of the difference of two runs' log scores: 1.15 x scaled MAD, at least 0.001.

    `differences` are log(first / second) of A/A pairs, oldest first; the last 40 count. The centre is 0,
    not their median: both runs are the same program in an order drawn at random, so the differences are
    symmetric about 0 by design, and a fitted centre would make eight of them look quieter than they are.
    Raises ValueError when there are fewer than four.
    """
    return max(SAFETY * _mad(differences[-RECENT:]), FLOOR)


@dataclass(frozen=True)
class MachineNoise:
    """The noise of a machine as it is now: A/A differences of the calibration, then one of each later batch."""

    differences: tuple[float, ...]
    """log(first / second) of two runs of one program, oldest first; the last RECENT count"""

    def followed_by(self, first: float, second: float) -> MachineNoise:
        """With the two incumbent runs of a screening batch (scores in seconds, in the order run)."""
        if not (0 < first < math.inf and 0 < second < math.inf):
            raise ValueError("incumbent scores must be positive and finite; a run without a time tells no noise.")
        return MachineNoise((*self.differences, math.log(first / second))[-RECENT:])

    @property
    def scale(self) -> float:
        """Pair scale now; ValueError when there are fewer than four differences."""
        return pair_scale(self.differences)


def drift(log_scores: Sequence[float]) -> float:
    """Log change of the median score from the first half of these runs to the second; positive is slower.

    Log scores of runs of one program, in the order run; with an odd number the middle run is in neither half.
    Raises ValueError when there are fewer than two.
    """
    half = len(log_scores) // 2
    if not half:
        raise ValueError(f"a drift needs at least two runs, not {len(log_scores)}.")
    return statistics.median(log_scores[-half:]) - statistics.median(log_scores[:half])


def run_cv(pairs: Sequence[tuple[float, float]]) -> float:
    """Coefficient of variation of a single run, from all these A/A pairs of scores (seconds), without
    the safety factor.

    Robust, so that a single disturbed run does not count as noise. Raises ValueError as `pair_scale` does.
    """
    sigma = _mad([math.log(first / second) for first, second in pairs]) / math.sqrt(2)
    return math.sqrt(math.expm1(sigma**2))


def smallest_provable(scale: float, alpha: float, arm_size: int, max_blocks: int, margin: float) -> float:
    """Smallest gain, as a fraction of step time, that one verification proves with power 0.8.

    Bisects over 160 simulated verifications with normal run noise of this scale, futility looks included,
    the same draws at every effect: the answer is a function of its arguments. Takes the screening estimate
    to be right. Returns 1.0 when no gain below 60 % could be proven.
    """
    plan = BlockPlan(arm_size=arm_size, max_blocks=max_blocks)
    noise = np.random.default_rng(_SEED).standard_normal((_SIMULATED, max_blocks, 2 * arm_size))
    low, high = 0.0, 1.0
    if _power(high, noise, plan, scale, alpha, margin) < POWER:
        return 1.0
    for _ in range(9):
        middle = (low + high) / 2
        if _power(middle, noise, plan, scale, alpha, margin) < POWER:
            low = middle
        else:
            high = middle
    return -math.expm1(-high)


def _power(
    gain: float, noise: np.ndarray[tuple[int, ...], np.dtype[np.float64]], plan: BlockPlan,
    scale: float, alpha: float, margin: float,
) -> float:
    """Share of simulated verifications that prove a true log gain."""
    logs = noise * run_scale_of(scale)
    logs[..., plan.arm_size :] -= gain
    return float(np.mean(prove_many(logs, plan, alpha, scale, margin, predicted_gain=gain)))


def _mad(differences: Sequence[float]) -> float:
    if len(differences) < FEWEST:
        raise ValueError(f"{len(differences)} A/A pairs are too few for a scale: measure at least {FEWEST}.")
    return MAD_TO_SIGMA * float(np.median(np.abs(np.asarray(differences, dtype=np.float64))))

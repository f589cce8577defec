"""How much faster: an interval of the speed-up from a verification's own blocks, valid whenever it stopped.

The e-process of eprocess.py against 'the log gain is at most d' is valid for each d, at any rule of stopping. The
values of d that it has never excluded, at a level of (1 - confidence) / 2, reach down to the interval's low end; the
same with the arms exchanged gives its high end (confidence sequences: Howard et al., Annals of Statistics 2021).
So the interval covers the true speed-up with at least `confidence` under the assumptions of eprocess.py, however
the verification was stopped: by proof, by futility, or at its end. The mixture over g is even and the same for
all d: evidence then falls steadily as d rises, so what is excluded has no holes and the ends can be bisected.

Not covered: conditioning. The promise is over all verifications; among those that proved their candidate the
estimate is a little high (0.2 points at a true 5 %, CV 2 %), though in simulation the interval covers there as well,
in 0.999. It is wide after a single large block. The final claim has fresh pairs of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rsi_tui.evaluator.eprocess import GRID, Floats, block_gain, log_evalues, mixed, run_scale_of
from rsi_tui.journal.facts import Interval

FAR = 3.0
"""log gain either side of the estimate at which the arms lie apart whatever outliers are among them"""
_POINTS = 41
_ROUNDS = 3
"""each finds the end within a fortieth of the last one's step: 0.0001 in the end"""
_EVEN: Floats = np.full(len(GRID), -math.log(len(GRID)))


def speedup_interval(
    blocks: Sequence[tuple[str, Sequence[float]]], scale: float, confidence: float = 0.99
) -> Interval | None:
    """Speed-up incumbent time / candidate time from closed blocks, each as (order, seconds) like EProcess.add_block.

    `scale` of a pair (noise.pair_scale). None where nothing can be said: without blocks, or when even arms that lie
    apart in every block would not exclude anything, as with one block of 3 + 3 runs, whose 20 orders can't tell
    one in 200; a lower confidence may still have an answer. The blocks must be all that were closed, in order.
    """
    if not 0 < confidence < 1 or scale <= 0:
        raise ValueError(f"confidence {confidence} or scale {scale} is out of range.")
    if not blocks:
        return None
    run_scale, needed = run_scale_of(scale), -math.log((1 - confidence) / 2)
    logs = [(np.array([arm == "B" for arm in order]), np.log(np.asarray(times))) for order, times in blocks]
    estimate = float(np.mean([block_gain(values, candidate, run_scale) for candidate, values in logs]))
    exchanged = [(~candidate, values) for candidate, values in logs]
    low = _excluded_up_to(logs, estimate, run_scale, needed)
    high = _excluded_up_to(exchanged, -estimate, run_scale, needed)
    if low is None or high is None:
        return None
    return Interval(
        estimate=math.exp(estimate),
        low=math.exp(min(low, estimate)),
        high=math.exp(max(-high, estimate)),
        confidence=confidence,
    )


def _excluded_up_to(
    logs: Sequence[tuple[np.ndarray, Floats]], estimate: float, run_scale: float, needed: float
) -> float | None:
    """The largest d that the evidence excludes as an upper bound of the log gain; None when it excludes none."""
    low, high = estimate - FAR, estimate + FAR
    for _ in range(_ROUNDS):
        gains = np.linspace(low, high, _POINTS)
        excluded = np.flatnonzero(_evidence(logs, gains, run_scale) >= needed)
        if not len(excluded):
            return None
        low, high = gains[excluded[-1]], gains[min(excluded[-1] + 1, _POINTS - 1)]
    return float(low)


def _evidence(logs: Sequence[tuple[np.ndarray, Floats]], gains: Floats, run_scale: float) -> Floats:
    """Highest log e-value so far against 'the log gain is at most d', for each d of `gains`."""
    products = np.zeros((len(gains), len(GRID)))
    highest = np.full(len(gains), -np.inf)
    for candidate, values in logs:
        shifted = values + gains[:, None] * candidate
        products = products + log_evalues(shifted, np.broadcast_to(candidate, shifted.shape), run_scale)
        highest = np.maximum(highest, mixed(products, _EVEN))
    return highest

"""The interval of the speed-up covers whenever a verification stops, and narrows with every block."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsi_tui.evaluator.eprocess import EProcess, draw_order
from rsi_tui.evaluator.speedup import speedup_interval

SCALE = 0.03
PRECISION = 3e-4
Blocks = list[tuple[str, list[float]]]


def measured(seed: int, gain: float, blocks: int, arm_size: int = 3, cv: float = 0.02) -> Blocks:
    """Blocks of a candidate with this log gain, with drift and a rare outlier."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(blocks):
        order = draw_order(arm_size, lambda below: int(rng.integers(below)))
        noise = rng.normal(0, cv, len(order)) + np.cumsum(rng.normal(0, cv / 4, len(order)))
        noise += (rng.random(len(order)) < 0.02) * 0.7
        found.append((order, [math.exp(n - gain * (arm == "B")) for arm, n in zip(order, noise, strict=True)]))
    return found


def test_the_truth_is_covered_however_the_verification_stops() -> None:
    missed = said = 0
    for seed in range(100):
        blocks, gain = measured(seed, 0.05, 8), 0.05
        process = EProcess(0.01, SCALE, 0.005, gain)
        seen: Blocks = []
        for block in blocks:
            seen.append(block)
            process.add_block(*block)
            if process.reached:
                break
        interval = speedup_interval(seen, SCALE)
        if interval is not None:
            said += 1
            missed += not interval.low <= math.exp(gain) <= interval.high
    assert said > 70
    assert missed <= 4, "more than 4 misses of 100 at 1 % come up in 0.3 % of cases"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(-0.3, 0.5))
def test_a_candidate_faster_by_a_factor_moves_the_interval_by_it(seed: int, gain: float) -> None:
    plain, moved = (speedup_interval(measured(seed, g, 4), SCALE) for g in (0.0, gain))
    assert plain is not None and moved is not None
    for ours, theirs in ((moved.low, plain.low), (moved.estimate, plain.estimate), (moved.high, plain.high)):
        assert math.isclose(math.log(ours), math.log(theirs) + gain, abs_tol=PRECISION)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000))
def test_exchanged_arms_give_the_inverse(seed: int) -> None:
    blocks = measured(seed, 0.1, 4)
    exchanged = [(order.translate(str.maketrans("AB", "BA")), times) for order, times in blocks]
    one, other = speedup_interval(blocks, SCALE), speedup_interval(exchanged, SCALE)
    assert one is not None and other is not None
    assert one.low * other.high == pytest.approx(1, abs=PRECISION)
    assert one.high * other.low == pytest.approx(1, abs=PRECISION)
    assert one.estimate * other.estimate == pytest.approx(1)


def test_what_a_block_has_excluded_stays_excluded() -> None:
    blocks = measured(3, 0.08, 8)
    ends = [i for n in range(2, 9) if (i := speedup_interval(blocks[:n], SCALE)) is not None]
    assert len(ends) >= 6
    for before, after in itertools.pairwise(ends):
        assert after.low >= min(before.low, after.estimate) - PRECISION
        assert after.high <= max(before.high, after.estimate) + PRECISION
    assert ends[-1].high - ends[-1].low < 0.06


def test_too_few_orders_say_nothing_at_this_confidence() -> None:
    assert speedup_interval([], SCALE) is None
    assert speedup_interval(measured(1, 0.3, 1), SCALE) is None
    less = speedup_interval(measured(1, 0.3, 1), SCALE, confidence=0.8)
    assert less is not None and less.low < math.exp(0.3) < less.high and less.confidence == 0.8


def test_a_disturbed_run_does_not_move_the_interval_far() -> None:
    blocks = measured(5, 0.1, 5)
    order, times = blocks[2]
    disturbed = [*blocks[:2], (order, [times[0] * 3, *times[1:]]), *blocks[3:]]
    one, other = speedup_interval(blocks, SCALE), speedup_interval(disturbed, SCALE)
    assert one is not None and other is not None
    assert abs(one.low - other.low) < 0.03 and abs(one.high - other.high) < 0.03

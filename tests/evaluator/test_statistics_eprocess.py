"""The e-process is exact under the null, one-sided above it, and able to reach what it is planned for."""

from __future__ import annotations

import itertools
import math
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsi_tui.evaluator import eprocess
from rsi_tui.evaluator.eprocess import BlockPlan, EProcess, choose_plan, draw_order, log_evalues, orders

ALPHA = 0.01 / 40


def all_orders(arm_size: int) -> list[str]:
    return [
        "".join("A" if place in incumbents else "B" for place in range(2 * arm_size))
        for incumbents in itertools.combinations(range(2 * arm_size), arm_size)
    ]


def as_run(order: str, shifted: list[float], margin: float) -> list[float]:
    """Seconds that a block shows when its shifted log times are these whatever the order is."""
    return [math.exp(v + (math.log1p(-margin) if arm == "B" else 0.0)) for arm, v in zip(order, shifted, strict=True)]


values = st.floats(-1.5, 1.5, allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(st.lists(values, min_size=6, max_size=6), st.floats(0.003, 0.3), st.floats(0, 0.05), st.floats(-0.1, 0.4))
def test_expectation_over_all_orders_is_one_whatever_the_times(
    shifted: list[float], scale: float, margin: float, gain: float
) -> None:
    evalues = [
        EProcess(ALPHA, scale, margin, gain).add_block(order, as_run(order, shifted, margin)) for order in all_orders(3)
    ]
    assert math.isclose(float(np.mean(evalues)), 1.0, rel_tol=1e-9)


@pytest.mark.parametrize("arm_size", [4, 8])
def test_expectation_is_one_for_large_blocks_with_drift_and_outliers(arm_size: int) -> None:
    rng = np.random.default_rng(7)
    shifted = np.cumsum(rng.normal(0, 0.02, 2 * arm_size))
    shifted[3] += 0.9
    masks = np.array([[arm == "B" for arm in order] for order in all_orders(arm_size)])
    logs = log_evalues(np.broadcast_to(shifted, masks.shape), masks, run_scale=0.02)
    assert np.allclose(np.exp(logs).mean(axis=0), 1.0, rtol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(values, min_size=6, max_size=6), st.lists(values, min_size=6, max_size=6))
def test_second_block_has_conditional_expectation_one(first: list[float], second: list[float]) -> None:
    evalues = []
    for order in all_orders(3):
        process = EProcess(ALPHA, 0.05, 0.005, 0.1)
        process.add_block("ABBABA", as_run("ABBABA", first, 0.005))
        evalues.append(process.add_block(order, as_run(order, second, 0.005)))
    assert math.isclose(float(np.mean(evalues)), 1.0, rel_tol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(values, min_size=6, max_size=6), st.floats(0.0, 1.0), st.integers(0, 19))
def test_a_uniformly_slower_candidate_never_has_more_evidence(times: list[float], slower: float, which: int) -> None:
    order = all_orders(3)[which]
    late = [t + (slower if arm == "B" else 0.0) for arm, t in zip(order, times, strict=True)]
    faster = EProcess(ALPHA, 0.04, 0.005, 0.1).add_block(order, list(np.exp(times)))
    assert EProcess(ALPHA, 0.04, 0.005, 0.1).add_block(order, list(np.exp(late))) <= faster * (1 + 1e-9)


def test_mean_over_orders_agrees_with_enumeration() -> None:
    shifted = np.array([0.01, -0.02, 0.05, 0.3, -0.04, 0.0])
    scale = 0.03
    clipped = np.clip(shifted - np.median(shifted), -eprocess.CLIP_SCALES * scale, eprocess.CLIP_SCALES * scale)
    masks = np.array([[arm == "B" for arm in order] for order in all_orders(3)])
    for number, g in enumerate(eprocess.GRID):
        w = np.exp(g * (np.where(masks, -clipped, clipped)).sum(axis=1) / (2 * scale**2))
        expected = np.log(0.98 * w[4] / w.mean() + 0.02)
        assert math.isclose(log_evalues(shifted, masks[4], scale)[number], expected, rel_tol=1e-9)


@pytest.mark.parametrize("arm_size", [3, 5])
def test_every_order_is_drawn_by_exactly_one_number(arm_size: int) -> None:
    drawn = {draw_order(arm_size, lambda below, rank=rank: rank) for rank in range(orders(arm_size))}
    assert drawn == set(all_orders(arm_size))
    assert draw_order(arm_size, secrets.randbelow) in drawn


def separated(arm_size: int, gain: float) -> tuple[str, list[float]]:
    order = "AB" * arm_size
    return order, [math.exp(-gain) if arm == "B" else 1.0 for arm in order]


@pytest.mark.parametrize("alpha", [0.01, 0.01 / 4, ALPHA])
def test_one_block_of_the_chosen_size_proves_a_complete_separation(alpha: float) -> None:
    plan = choose_plan(alpha, predicted_gain=0.3, scale=0.03, margin=0.005)
    process = EProcess(alpha, 0.03, 0.005, 0.3)
    process.add_block(*separated(plan.arm_size, 0.3))
    assert process.reached


@pytest.mark.parametrize(("alpha", "gain"), [(1e-6, 0.3), (1e-6, 0.05), (ALPHA, 0.05), (ALPHA, -0.1), (0.3, 0.0)])
def test_plans_stay_within_their_runs(alpha: float, gain: float) -> None:
    plan = choose_plan(alpha, gain, scale=0.03, margin=0.005)
    assert plan.arm_size in eprocess.ARM_SIZES
    assert plan.max_blocks >= 1 and plan.max_blocks * plan.runs_per_block <= eprocess.MAX_RUNS


def test_a_tiny_alpha_is_reachable_within_the_plan() -> None:
    plan = choose_plan(1e-6, predicted_gain=0.3, scale=0.03, margin=0.005)
    process = EProcess(1e-6, 0.03, 0.005, 0.3)
    for _ in range(plan.max_blocks):
        process.add_block(*separated(plan.arm_size, 0.3))
    assert process.reached


def test_a_small_gain_is_proven_with_small_blocks() -> None:
    assert choose_plan(ALPHA, predicted_gain=0.02, scale=0.03, margin=0.005) == BlockPlan(3, 10)


def test_runs_needed_counts_down_to_zero() -> None:
    process = EProcess(ALPHA, 0.05, 0.005, 0.1)
    assert process.runs_needed() is None
    needed = []
    while not process.reached:
        process.add_block(*separated(3, 0.1))
        needed.append(process.runs_needed())
    assert len(needed) >= 3 and needed[-1] == 0
    assert needed == sorted(needed, reverse=True)


def test_a_slower_candidate_needs_no_number_of_runs_and_is_futile() -> None:
    process = EProcess(ALPHA, 0.03, 0.005, 0.1)
    process.add_block(*separated(3, -0.1))
    assert process.runs_needed() is None
    assert process.futile(BlockPlan(3, 8))
    assert not process.reached and process.total < 1


@pytest.mark.parametrize(("order", "times", "expected"), [
    ("ABB", [1.0, 1.05, 1.04], True),
    ("AAB", [1.0, 1.0, 0.9], False),
    ("AAA", [1.0, 1.0, 1.0], False),
    ("ABA", [1.0, 2.0, 1.0], False),  # one disturbed run says nothing of the program
    ("", [], False),
])
def test_half_a_block_stops_only_what_is_visibly_no_faster(order: str, times: list[float], expected: bool) -> None:
    assert EProcess(ALPHA, 0.03, 0.005, 0.1).futile(BlockPlan(3, 8), order, times) is expected


def test_an_honest_gain_is_not_called_futile() -> None:
    process = EProcess(ALPHA, 0.03, 0.005, 0.06)
    process.add_block(*separated(3, 0.05))
    assert not process.futile(BlockPlan(3, 8))


def test_futility_never_takes_a_proof_back() -> None:
    process = EProcess(0.05, 0.03, 0.005, 0.3)
    for _ in range(3):
        process.add_block(*separated(3, 0.3))
    assert process.reached
    for _ in range(6):
        process.add_block(*separated(3, -0.3))
    assert process.reached and not process.futile(BlockPlan(3, 16))


@pytest.mark.parametrize(("order", "times"), [
    ("AAB", [1.0, 1.0, 1.0]), ("ABAB", [1.0, 1.0, 1.0]), ("ABAC", [1.0] * 4),
    ("AB", [1.0, math.nan]), ("AB", [0.0, 1.0]), ("AB", [math.inf, 1.0]),
])
def test_a_block_without_all_its_times_is_refused(order: str, times: list[float]) -> None:
    with pytest.raises(ValueError, match="must"):
        EProcess(ALPHA, 0.03, 0.005, 0.1).add_block(order, times)

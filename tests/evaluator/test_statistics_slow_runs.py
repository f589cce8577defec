"""The rule against rare disasters excludes its rate with the error that it states, at any rule of stopping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.evaluator.slow_runs import (
    ERROR,
    FULL_RATE,
    QUICK_RATE,
    REFUSED,
    judge_slow_runs,
    most_extra,
    rate_bound,
    runs_to_hold,
)

INCUMBENT = [1.0] * 16


def ever_held(rate: float, max_rate: float, runs: int = 400, campaigns: int = 20_000) -> float:
    """Share of candidates with this rate that are held at some time, were they asked after every run."""
    slow = np.cumsum(np.random.default_rng(5).random((campaigns, runs)) < rate, axis=1)
    most = 12
    needed = np.array([*(runs_to_hold(k, max_rate) for k in range(most)), runs + 1])
    return float(np.mean((np.arange(1, runs + 1) >= needed[np.minimum(slow, most)]).any(axis=1)))


@pytest.mark.parametrize("max_rate", [FULL_RATE, QUICK_RATE])
def test_too_many_slow_runs_are_held_to_be_few_in_at_most_five_percent(max_rate: float) -> None:
    assert 0.04 < ever_held(max_rate, max_rate) < ERROR + 3 * math.sqrt(ERROR / 20_000)
    assert ever_held(1.3 * max_rate, max_rate) < ever_held(max_rate, max_rate)


def test_a_rate_like_that_of_a_noisy_machine_is_held() -> None:
    assert ever_held(0.01, FULL_RATE, runs=80) > 0.96


def test_clean_runs_needed_are_counted_down_to_held() -> None:
    scores: list[float] = []
    needed = []
    while not scores or needed[-1]:
        scores.append(0.9)
        needed.append(judge_slow_runs(scores, INCUMBENT).runs_needed)
    assert needed == list(range(35, -1, -1))
    assert judge_slow_runs(scores, INCUMBENT).decision == "held"
    assert judge_slow_runs([0.9] * 17, INCUMBENT, QUICK_RATE).decision == "held"


def test_a_disaster_in_every_tenth_run_is_never_held_and_stops_before_the_last_run() -> None:
    scores: list[float] = []
    for run in range(1, 300):
        scores.append(3.0 if run % 10 == 7 else 0.9)
        found = judge_slow_runs(scores, INCUMBENT)
        assert found.decision != "held"
        if not found.worth_asking(extra=len(scores)):
            break
    assert len(scores) < most_extra(FULL_RATE)


@pytest.mark.parametrize("rate", [0.02, 0.025, 0.03, 0.035, 0.05, FULL_RATE, QUICK_RATE, 0.5])
def test_every_rate_that_a_contract_may_ask_for_can_be_held_after_a_slow_run(rate: float) -> None:
    scores = [0.9] * 4 + [3.0] + [0.9]  # screening and one block, one run of it slow
    extra = 0
    while (found := judge_slow_runs(scores, INCUMBENT, rate)).worth_asking(extra):
        scores.append(0.9)
        extra += 1
    assert found.decision == "held" and extra <= most_extra(rate)


def test_the_rates_of_the_presets_ask_for_no_more_runs_than_they_did() -> None:
    assert (most_extra(FULL_RATE), most_extra(QUICK_RATE)) == (88, 88)


def test_a_candidate_like_the_incumbent_is_hardly_ever_refuted() -> None:
    rng = np.random.default_rng(6)
    incumbent = [1.0] * 99 + [2.5]
    refuted = sum(
        any(
            judge_slow_runs(scores[:runs], incumbent).decision == "refuted"
            for runs in range(10, 80, 3)
        )
        for scores in (list(np.where(rng.random(80) < 0.01, 2.5, 0.9)) for _ in range(300))
    )
    assert refuted <= 3 * REFUSED * 300


def test_many_slow_runs_are_refuted_at_once() -> None:
    found = judge_slow_runs([0.9] * 8 + [3.0] * 4, INCUMBENT)
    assert found.decision == "refuted" and not found.worth_asking(0)
    assert "4 of 12 runs" in found.reason


def test_a_slow_run_of_a_fast_candidate_that_beats_the_incumbent_is_no_disaster() -> None:
    assert judge_slow_runs([0.3] * 9 + [0.9], INCUMBENT).slow == 0
    assert judge_slow_runs([0.3] * 9 + [1.1], INCUMBENT).slow == 1
    assert judge_slow_runs([0.9] * 9 + [1.7], INCUMBENT).slow == 0


@given(st.integers(0, 4), st.integers(1, 120), st.sampled_from([0.05, 0.1, 0.2]))
def test_the_bound_says_what_the_decision_says(slow: int, runs: int, max_rate: float) -> None:
    slow = min(slow, runs)
    assert (rate_bound(slow, runs) <= max_rate) == (runs >= runs_to_hold(slow, max_rate))


def test_the_bound_holds_while_one_watches() -> None:
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(400):
        slow = np.cumsum(rng.random(60) < 0.15)
        missed += any(rate_bound(int(k), n) < 0.15 for n, k in enumerate(slow, 1))
    assert missed <= 400 * ERROR + 3 * math.sqrt(400 * ERROR)


@pytest.mark.parametrize(("candidate", "incumbent", "max_rate"), [
    ([], INCUMBENT, 0.1), ([1.0], [], 0.1), ([1.0], INCUMBENT, 0.0), ([math.nan], INCUMBENT, 0.1), ([1.0], [0.0], 0.1),
])  # fmt: skip
def test_runs_without_times_are_refused(candidate: list[float], incumbent: list[float], max_rate: float) -> None:
    with pytest.raises(ValueError, match=r"slow runs|scores"):
        judge_slow_runs(candidate, incumbent, max_rate)

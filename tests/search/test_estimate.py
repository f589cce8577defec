"""What is expected of a change, and which one is tried next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.journal.facts import CandidateFacts
from rsi_tui.minds.protocol import PastEffect
from rsi_tui.search.acquisition import expected_improvement, probability_fits, score
from rsi_tui.search.archive import Standing, frontier
from rsi_tui.search.estimate import estimate
from rsi_tui.techniques.base import Effect


def past(**changes: object) -> PastEffect:
    values: dict[str, object] = {
        "record": "old/c1", "techniques": ("sdpa",), "knobs": {}, "verdict": "screened", "outcome": "ok",
        "log_ratio": -0.02, "fit": 1.0, "same_workload": True,
    }  # fmt: skip
    return PastEffect(**{**values, **changes})  # type: ignore[arg-type]


PREDICTED = Effect(time=-0.2, confidence="low")


def test_a_measurement_here_outweighs_a_prediction() -> None:
    found = estimate(("sdpa",), {}, PREDICTED, [past()], noise_scale=0.02)
    assert found.time == pytest.approx(-0.02, abs=0.02)
    assert found.evidence == ("old/c1",)


def test_without_memory_the_prediction_stands() -> None:
    assert estimate(("sdpa",), {}, PREDICTED, [], noise_scale=0.02).time == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("fit", "same"), [(0.4, True), (0.6, False), (1.0, False)], ids=["poor fit", "other workload", "other, good fit"]
)
def test_conditions_that_fit_worse_move_less(fit: float, same: bool) -> None:
    here = estimate(("sdpa",), {}, PREDICTED, [past()], 0.02).time
    there = estimate(("sdpa",), {}, PREDICTED, [past(fit=fit, same_workload=same)], 0.02).time
    assert -0.2 < there < here


def test_another_change_says_nothing() -> None:
    others = [past(techniques=("fused-optimizer",)), past(techniques=("sdpa", "fused-qkv")), past(log_ratio=None)]
    assert estimate(("sdpa",), {}, PREDICTED, others, 0.02).time == pytest.approx(-0.2)


@pytest.mark.parametrize("verdict", ["failed", "invalid"])
def test_a_failure_under_the_same_conditions_is_remembered(verdict: str) -> None:
    here = past(verdict=verdict, log_ratio=None, same_conditions=True)
    assert estimate(("sdpa",), {}, PREDICTED, [here], 0.02).failed_before
    elsewhere = past(verdict=verdict, log_ratio=None)
    assert not estimate(("sdpa",), {}, PREDICTED, [elsewhere], 0.02).failed_before


@given(st.floats(-1, 1), st.floats(0.001, 1))
def test_expected_improvement_is_never_negative_and_grows_with_doubt(mean: float, sd: float) -> None:
    low, high = expected_improvement(mean, sd), expected_improvement(mean, 2 * sd)
    assert high >= low >= max(0.0, -mean) - 1e-12


def test_what_will_not_fit_scores_low() -> None:
    limit = 1000
    assert probability_fits(900, math.log(2), limit) < 0.01
    assert probability_fits(300, math.log(2), limit) > 0.99
    assert probability_fits(None, 5.0, limit) == 1.0
    roomy = score(estimate(("sdpa",), {}, PREDICTED, [], 0.02), 100, limit, 0.005)
    tight = score(estimate(("sdpa",), {}, PREDICTED, [], 0.02), 1400, limit, 0.005)
    assert tight.value < 0.1 * roomy.value


def standing(name: str, time: float, peak: int | None) -> Standing:
    return Standing(CandidateFacts(id=name, commit="", base=""), time, peak)


def test_a_slower_but_leaner_candidate_stays_in_the_archive() -> None:
    kept = frontier([standing("fast", -0.5, 900), standing("lean", 0.2, 300), standing("worse", -0.1, 950)])
    assert [s.candidate.id for s in kept] == ["fast", "lean"]


def test_unknown_memory_never_beats_known() -> None:
    kept = frontier([standing("unknown", 0.0, None), standing("known", 0.1, 500)])
    assert [s.candidate.id for s in kept] == ["unknown", "known"]

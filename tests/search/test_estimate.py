"""What is expected of a change, and which one is tried next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.journal.facts import CandidateFacts, ScreenFacts
from rsi_tui.minds.protocol import Attempt, PastEffect
from rsi_tui.search.acquisition import expected_improvement, probability_fits, score
from rsi_tui.search.archive import Standing, frontier
from rsi_tui.search.estimate import above, estimate, memory_seen
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


def test_running_out_of_memory_moves_what_is_expected_beyond_the_limit() -> None:
    unseen = memory_seen(("big",), 0.1, [], 1000)
    assert unseen == pytest.approx(0.1)
    died = memory_seen(("big",), 0.1, [tried("oom", None)], 1000)
    assert died > math.log(1000 / 700)
    expected_anyway = memory_seen(("big",), 0.9, [tried("oom", None)], 1000)
    assert expected_anyway == pytest.approx(0.9, abs=0.01)


def test_a_measured_peak_outweighs_a_predicted_one() -> None:
    seen = memory_seen(("big",), 0.5, [tried("ok", 770)], 1000)
    assert seen == pytest.approx(math.log(1.1), abs=0.03)
    assert memory_seen(("other",), 0.5, [tried("ok", 770)], 1000) == pytest.approx(0.5)


@given(st.floats(-1, 1), st.floats(0.01, 0.5), st.floats(-3, 3))
def test_what_is_known_to_exceed_a_bound_is_expected_above_it(mean: float, sd: float, floor: float) -> None:
    assert above(mean, sd, floor) >= max(mean, floor) - 1e-6


def tried(outcome: str, peak: int | None) -> Attempt:
    screen = ScreenFacts(
        candidate="c1", incumbent="original", outcome=outcome, log_ratio=None, batches=1, promoted=False, reason="",  # type: ignore[arg-type]
        peak_bytes=peak, incumbent_peak_bytes=700,
    )  # fmt: skip
    return Attempt(CandidateFacts(id="c1", commit="", base=""), "d1", 0.0, 0.0, screen, None, None, ("big",))

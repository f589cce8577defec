"""Noise, screening and claim keep what their modules promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.evaluator import claim, noise, screening


def test_pair_scale_is_near_the_truth_and_not_below_it_on_average() -> None:
    rng = np.random.default_rng(0)
    scales = [noise.pair_scale(list(rng.normal(0, 0.03, 20))) for _ in range(400)]
    assert 0.03 < np.mean(scales) < 0.037


def test_outliers_and_old_pairs_do_not_move_the_scale() -> None:
    recent = list(np.random.default_rng(1).normal(0, 0.02, 40))
    assert noise.pair_scale([0.5] * 100 + recent) == noise.pair_scale(recent)
    assert noise.pair_scale([*recent[:-2], 0.8, -0.7]) < 1.15 * noise.pair_scale(recent)


def test_scale_is_never_zero_and_too_few_pairs_are_refused() -> None:
    assert noise.pair_scale([0.0] * 8) == noise.FLOOR
    with pytest.raises(ValueError, match="at least 4"):
        noise.pair_scale([0.01, 0.02])


def test_run_cv_is_that_of_a_single_run() -> None:
    rng = np.random.default_rng(2)
    pairs = [(float(a), float(b)) for a, b in np.exp(rng.normal(0, 0.02, (4000, 2)))]
    assert noise.run_cv(pairs) == pytest.approx(0.02, rel=0.05)


def test_the_scale_follows_a_machine_that_becomes_noisier() -> None:
    rng = np.random.default_rng(9)
    known = noise.MachineNoise(tuple(rng.normal(0, 0.02, 20)))
    before = known.scale
    for number in range(noise.RECENT):
        known = known.followed_by(*np.exp(rng.normal(0, 0.06 / math.sqrt(2), 2)))
        assert len(known.differences) == min(21 + number, noise.RECENT)
    assert before < 0.035 < 0.05 < known.scale == noise.pair_scale(known.differences)


@pytest.mark.parametrize("score", [0.0, -1.0, math.nan, math.inf])
def test_a_run_without_a_time_tells_no_noise(score: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        noise.MachineNoise((0.01,)).followed_by(1.0, score)


def test_drift_is_the_change_between_halves_whatever_one_run_did() -> None:
    early, late = [0.0, 0.01, -0.01, 0.9], [0.2, 0.21, 0.19, 0.2]
    assert noise.drift([*early, *late]) == pytest.approx(0.195)
    assert noise.drift([*early, 5.0, *late]) == pytest.approx(0.195)
    assert noise.drift([0.1, 0.1]) == 0
    with pytest.raises(ValueError, match="two runs"):
        noise.drift([0.1])


def test_smallest_provable_grows_with_noise_and_shrinks_with_alpha_spent() -> None:
    quiet = noise.smallest_provable(0.016, 0.01 / 40, 3, 8, 0.005)
    loud = noise.smallest_provable(0.033, 0.01 / 40, 3, 8, 0.005)
    assert 0.015 < quiet < 0.03 < loud < 0.05
    assert noise.smallest_provable(0.033, 0.01, 3, 8, 0.005) < loud
    assert noise.smallest_provable(0.033, 1e-12, 3, 2, 0.005) == 1.0, "20**2 orders can't reach it"
    assert quiet == noise.smallest_provable(0.016, 0.01 / 40, 3, 8, 0.005)


@pytest.mark.parametrize(("ratios", "decision"), [
    ([0.0], "drop"), ([-0.005], "drop"), ([-0.02], "again"), ([0.7], "drop"),
    ([-0.02, -0.02], "promote"), ([-0.01, -0.01], "drop"), ([-0.03, 0.01], "drop"),
    ([-0.5, 0.0], "again"), ([-0.02, 0.4], "again"),
    ([-0.5, 0.0, 0.01], "drop"), ([-0.02, 0.4, -0.03], "promote"),
])
def test_screening_decides(ratios: list[float], decision: str) -> None:
    scale, margin = 0.03, 0.005
    look = (
        screening.first_look(ratios[0], scale) if len(ratios) == 1
        else screening.second_look(ratios[0], ratios[1], scale, margin) if len(ratios) == 2
        else screening.third_look(ratios[0], ratios[1], ratios[2], scale, margin)
    )
    assert look.decision == decision
    assert look.reason.endswith(".")


def test_the_margin_promotes_where_noise_is_small() -> None:
    assert screening.second_look(-0.004, -0.004, scale=0.002, margin=0.005).decision == "drop"
    assert screening.second_look(-0.006, -0.006, scale=0.002, margin=0.005).decision == "promote"


def test_each_half_of_a_batch_has_an_incumbent_and_every_label_is_run_once() -> None:
    rng = np.random.default_rng(4)
    seen = set()
    for _ in range(200):
        order = screening.batch_order(("a", "b", "c", "d"), "A", lambda below: int(rng.integers(below)))
        assert sorted(order) == ["A", "A", "a", "b", "c", "d"]
        assert "A" in order[:3] and "A" in order[3:]
        seen.add(order)
    assert len(seen) > 100
    assert sorted(screening.batch_order(("a",), "A", lambda below: 0)) == ["A", "A", "a"]


def test_log_ratio_is_negative_when_faster() -> None:
    assert screening.batch_log_ratio(0.9, [1.0, 1.0]) == pytest.approx(math.log(0.9))
    assert screening.estimate([-0.1, -0.3]) == pytest.approx(-0.2)
    assert screening.estimate([-0.1, 0.9, -0.2]) == -0.1


def test_interval_agrees_with_enumeration_of_the_signed_ranks() -> None:
    for count in (8, 10, 12):
        signs = np.array(list(itertools.product((0, 1), repeat=count)))
        statistic = signs @ np.arange(1, count + 1)
        cut = claim._signed_rank_cut(count, 0.005)
        assert cut is not None
        assert np.mean(statistic <= cut) <= 0.005 < np.mean(statistic <= cut + 1)


def test_speedup_is_baseline_over_candidate() -> None:
    interval = claim.hodges_lehmann([math.log(0.8)] * 8)
    assert interval.estimate == pytest.approx(1.25) == interval.low == interval.high


def test_interval_covers_and_needs_eight_pairs() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        interval = claim.hodges_lehmann(list(rng.standard_t(3, 16) * 0.02 - 0.1))
        covered += interval.low <= math.exp(0.1) <= interval.high
    assert covered >= 390
    with pytest.raises(ValueError, match="at least 8"):
        claim.hodges_lehmann([-0.1] * 7)


@given(st.lists(st.floats(-0.5, 0.5), min_size=8, max_size=20))
def test_interval_holds_its_estimate(log_ratios: list[float]) -> None:
    interval = claim.hodges_lehmann(log_ratios)
    assert interval.low <= interval.estimate <= interval.high


def test_slope_ignores_startup_and_an_outlier() -> None:
    lengths = [20, 25, 30, 35, 40, 60]
    walls = [3 + 0.1 * n for n in lengths]
    assert claim.slope(lengths, walls) == pytest.approx(0.1)
    walls[2] += 5
    assert claim.slope(lengths, walls) == pytest.approx(0.1)
    assert claim.slope_ratio(lengths, walls, lengths, [9 + 0.05 * n for n in lengths]) == pytest.approx(2.0)
    assert claim.slope_ratio(lengths, walls, lengths, [9.0] * 6) is None
    with pytest.raises(ValueError, match="two lengths"):
        claim.slope([20, 20], [1.0, 1.1])


def test_slow_run_bound_is_clopper_pearson() -> None:
    baseline = [1.0] * 16
    assert claim.slow_run_bound([0.9] * 16, baseline) == pytest.approx(1 - 0.05 ** (1 / 16))
    assert claim.slow_run_bound([0.9] * 15 + [3.0], baseline) == pytest.approx(0.2640, abs=1e-3)
    assert claim.slow_run_bound([1.1] * 4, baseline) == 1.0


def test_a_rare_disaster_shows_in_the_mean() -> None:
    assert claim.mean_total_ratio([0.9] * 9 + [3.0], [1.0] * 10) > 1
    assert claim.hodges_lehmann([math.log(0.9)] * 9 + [math.log(3.0)]).estimate > 1

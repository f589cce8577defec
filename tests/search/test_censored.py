"""Bounds are taken into the posterior as bounds: checked against integrals and draws, not against itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from rsi_tui.search.censored import Array, posterior, sites


def moments(mean: float, sd: float, bound: float, noise: float) -> tuple[float, float]:
    """Mean and variance of N(mean, sd^2) given that it exceeds a noisy bound, by quadrature."""
    weight = lambda f: stats.norm.pdf(f, mean, sd) * stats.norm.cdf((f - bound) / noise)  # noqa: E731
    low, high = mean - 12 * sd, mean + 12 * sd
    points = [bound, mean]
    mass = integrate.quad(weight, low, high, points=points)[0]
    first = integrate.quad(lambda f: f * weight(f), low, high, points=points)[0] / mass
    return first, integrate.quad(lambda f: (f - first) ** 2 * weight(f), low, high, points=points)[0] / mass


def taken(mean: Array, prior: Array, seen: Array, noise: Array, bounded: list[bool]) -> tuple[Array, Array]:
    found = sites(mean, prior, seen, noise, np.array(bounded))
    after, covariance = posterior(mean, prior, found)
    return after, np.diag(covariance)


@pytest.mark.parametrize("bound", [-3.0, -1.0, 0.0, 0.8, 2.5])
def test_one_bound_gives_the_exact_moments(bound: float) -> None:
    mean, variance = taken(np.zeros(1), np.eye(1) * 0.49, np.array([bound]), np.array([0.05]), [True])
    expected = moments(0.0, 0.7, bound, 0.05)
    assert (mean[0], variance[0]) == pytest.approx(expected, rel=2e-3, abs=2e-4)


def test_several_bounds_and_values_agree_with_draws() -> None:
    """Three correlated quantities: one seen, two known to exceed a bound; importance sampling is the judge."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3)) * 0.4
    prior = root @ root.T + 0.05 * np.eye(3)
    mean, noise, seen = np.array([0.1, -0.2, 0.0]), np.array([0.05, 0.1, 0.1]), np.array([0.3, 0.1, 0.2])
    draws = rng.multivariate_normal(mean, prior, 400_000)
    weight = stats.norm.pdf((seen[0] - draws[:, 0]) / noise[0])
    weight *= stats.norm.cdf((draws[:, 1] - seen[1]) / noise[1]) * stats.norm.cdf((draws[:, 2] - seen[2]) / noise[2])
    expected = np.average(draws, axis=0, weights=weight)
    spread = np.average((draws - expected) ** 2, axis=0, weights=weight)
    found, variance = taken(mean, prior, seen, noise, [False, True, True])
    assert found == pytest.approx(expected, abs=0.02)
    assert variance == pytest.approx(spread, rel=0.1, abs=0.002)


def test_a_bound_that_was_expected_says_almost_nothing_and_is_no_value() -> None:
    found = sites(np.zeros(1), np.eye(1), np.array([-4.0]), np.array([0.05]), np.array([True]))
    mean, covariance = posterior(np.zeros(1), np.eye(1), found)
    assert mean[0] == pytest.approx(0.0, abs=1e-3)
    assert covariance[0, 0] == pytest.approx(1.0, abs=1e-2)


def test_a_surprising_bound_moves_the_mean_beyond_itself() -> None:
    mean, _ = taken(np.zeros(1), np.eye(1) * 0.04, np.array([0.5]), np.array([0.03]), [True])
    assert mean[0] > 0.5


def test_exact_observations_are_left_as_they_are() -> None:
    found = sites(np.zeros(2), np.eye(2), np.array([0.3, 0.1]), np.array([0.1, 0.2]), np.array([False, False]))
    assert found.mean.tolist() == [0.3, 0.1]
    assert found.variance == pytest.approx([0.01, 0.04])

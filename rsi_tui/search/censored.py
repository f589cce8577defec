"""Observations of which only a bound is known, taken into a Gaussian process by expectation propagation.

A run that ran out of memory says that its peak would have been at least the limit; one that was ended for its time, that
it would have taken at least so long. Such an observation is a likelihood Phi((f - bound) / noise): a Tobit model.
Expectation propagation (Minka 2001; for this likelihood Rasmussen and Williams 2006, 3.6) gives each a Gaussian site, so
that afterwards an exact Gaussian process can take all of them as observations with noise of their own. A site is never
a value put in the place of the unknown one: where the model expected more than the bound already, it says almost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_ndtr

Array = NDArray[np.float64]
_VAGUE = 1e6
"""variance of a site that says nothing"""
_SWEEPS, _SETTLED = 60, 1e-4
_DAMPING = 0.7


@dataclass(frozen=True)
class Sites:
    """Gaussian observations that stand for what was seen."""

    mean: Array
    variance: Array


def sites(prior_mean: Array, prior: Array, seen: Array, noise: Array, bounded: NDArray[np.bool_]) -> Sites:
    """Sites of n observations under a prior N(prior_mean (n,), prior (n, n)).

    `seen` (n,) holds values, or lower bounds where `bounded`; `noise` (n,) are their standard deviations. Exact
    observations keep their values and variances. Raises numpy.linalg.LinAlgError where the prior is no covariance.
    """
    precision = np.where(bounded, 1 / _VAGUE, 1 / noise**2)
    shift = np.where(bounded, prior_mean / _VAGUE, seen / noise**2)
    if not bounded.any():
        return Sites(seen.copy(), noise**2)
    for _ in range(_SWEEPS):
        mean, variance = posterior(prior_mean, prior, Sites(shift / precision, 1 / precision))
        mean, variance = mean[bounded], np.diag(variance)[bounded]
        # What the others say of each: the cavity.
        left = np.maximum(1 / variance - precision[bounded], 1e-9)
        cavity_mean, cavity = (mean / variance - shift[bounded]) / left, 1 / left
        new_mean, new_variance = _tilted(cavity_mean, cavity, seen[bounded], noise[bounded])
        wanted = np.maximum(1 / new_variance - left, 1 / _VAGUE)
        moved = new_mean / new_variance - cavity_mean * left
        moved = np.where(wanted > 1 / _VAGUE, moved, cavity_mean / _VAGUE)
        change = np.max(np.abs(wanted - precision[bounded]) / (wanted + precision[bounded]))
        precision[bounded] += _DAMPING * (wanted - precision[bounded])
        shift[bounded] += _DAMPING * (moved - shift[bounded])
        if change < _SETTLED:
            break
    return Sites(shift / precision, 1 / precision)


def posterior(prior_mean: Array, prior: Array, observed: Sites) -> tuple[Array, Array]:
    """Mean (n,) and covariance (n, n) of the latent values given Gaussian observations of each."""
    factor = cho_factor(prior + np.diag(observed.variance), lower=True)
    mean = prior_mean + prior @ cho_solve(factor, observed.mean - prior_mean)
    covariance = prior - prior @ cho_solve(factor, prior)
    return mean, covariance + 1e-12 * np.eye(len(prior_mean))


def _tilted(mean: Array, variance: Array, bound: Array, noise: Array) -> tuple[Array, Array]:
    """Mean and variance of N(mean, variance) times Phi((f - bound) / noise)."""
    spread = np.sqrt(noise**2 + variance)
    z = (mean - bound) / spread
    ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
    new_mean = mean + variance * ratio / spread
    new_variance = variance - variance**2 * ratio * (z + ratio) / spread**2
    return new_mean, np.maximum(new_variance, 1e-12)

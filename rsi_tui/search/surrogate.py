"""Models of step time and peak memory over sets of changes: Gaussian processes on log scale.

The prior says what techniques predict: the mean is the sum of their effects, the kernel lets each effect be wrong by its
own standard deviation, lets any two interact, and leaves a rest for sets of three and more:

    k(x, x') = a sum_i (s_i x_i) (s_i x'_i) + b sum_{i<j} s_i s_j x_i x_j s_i s_j x'_i x'_j / s2 + c exp(-|x - x'|^2 / 2 l^2)

Times are observed as log-ratios to the incumbent of their batch, so a time is a difference of two places and its kernel
that of differences; the original is 0. Memory is the log of peak bytes. What ran out of memory or time says a lower bound
(`search.censored`); what was not measured says nothing. The four scales a, b, c and an inflation of the known noise are
fitted by marginal likelihood with weak priors; with censored observations that is the likelihood of their sites, which at
the fixed point of expectation propagation has the same gradient as its own approximation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rsi_tui.search.censored import Array, Sites, sites
from rsi_tui.search.space import Point, Space

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their own use of what torch deprecates
    from botorch.exceptions.warnings import BotorchWarning
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim.fit import fit_gpytorch_mll_scipy
    from gpytorch.constraints import Positive
    from gpytorch.kernels import Kernel
    from gpytorch.means import Mean
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from gpytorch.priors import LogNormalPrior

_REST_LENGTH = 1.5
_REST_SD = 0.05
"""log-ratio that sets of three and more are off by, before anything is seen"""
_OFFSET_SD = 0.5
"""of the original's log peak memory"""
_ROUNDS = 3
"""of expectation propagation and fitting in turn"""
_MOST_ITERATIONS = 40


@dataclass(frozen=True)
class Belief:
    """What is thought of each dimension before this program was measured: means and standard deviations of its effect."""

    time: Array
    """(dimensions,), log-ratio of step time"""
    time_sd: Array
    memory: Array
    """(dimensions,), log-ratio of peak memory"""
    memory_sd: Array
    original_peak: float = 0.0
    """bytes that the original is thought to need at its peak; 0 for no idea"""


ORIGINAL = Point()


@dataclass(frozen=True)
class Observation:
    """What one candidate's runs in one batch showed."""

    point: Point
    against: Point = ORIGINAL
    """the incumbent of the batch"""
    log_ratio: float | None = None
    """of time, to the incumbent's; a lower bound where `slow`; None when there was no time"""
    noise: float = 0.02
    """standard deviation of `log_ratio`"""
    slow: bool = False
    """ended for its time"""
    peak: float | None = None
    """bytes; a lower bound where `oom`; None when it was not measured"""
    oom: bool = False


@dataclass(frozen=True)
class Scales:
    """Hyperparameters: variances in units of the belief's own."""

    main: float = 1.0
    pair: float = 0.25
    rest: float = 1.0


@dataclass
class Forecast:
    """What a model says of a list of points."""

    mean: Array
    """(points,)"""
    covariance: Array
    """(points, points)"""

    @property
    def sd(self) -> Array:
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))


class _Effects(Kernel):  # type: ignore[misc]
    """Main effects, interactions of two, and a rest; of places, or of differences of two places side by side."""

    has_lengthscale = False

    def __init__(self, sd: torch.Tensor, scales: Scales, *, differences: bool, offset: float) -> None:
        super().__init__()
        self.register_buffer("sd", sd)
        self.differences, self.offset = differences, offset
        for name, value, spread in (("main", scales.main, 0.7), ("pair", scales.pair, 1.0), ("rest", scales.rest, 1.0)):
            self.register_parameter(f"raw_{name}", torch.nn.Parameter(torch.zeros(1, dtype=torch.double)))
            self.register_constraint(f"raw_{name}", Positive())
            self.initialize(**{f"raw_{name}": getattr(self, f"raw_{name}_constraint").inverse_transform(torch.tensor([value], dtype=torch.double))})
            start = {"main": 1.0, "pair": 0.25, "rest": 1.0}[name]
            self.register_prior(f"{name}_prior", LogNormalPrior(math.log(start), spread), lambda m, n=name: m.scale(n))

    def scale(self, name: str) -> torch.Tensor:
        scale: torch.Tensor = getattr(self, f"raw_{name}_constraint").transform(getattr(self, f"raw_{name}"))
        return scale

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **_: object) -> torch.Tensor:
        if not self.differences:
            found = self._between(x1, x2)
        else:
            (a, b), (c, d) = x1.chunk(2, -1), x2.chunk(2, -1)
            found = self._between(a, c) - self._between(a, d) - self._between(b, c) + self._between(b, d)
        along: torch.Tensor = found.diagonal(dim1=-2, dim2=-1) if diag else found
        return along

    def _between(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        one, two = a * self.sd, b * self.sd
        main = one @ two.transpose(-1, -2)
        alone = one.square() @ two.square().transpose(-1, -2)
        typical = self.sd.square().mean()
        far = torch.cdist(a, b).square()
        rest = _REST_SD**2 * torch.exp(-0.5 * far / _REST_LENGTH**2)
        pairs = (main.square() - alone) / 2 / typical
        found: torch.Tensor = self.scale("main") * main + self.scale("pair") * pairs + self.scale("rest") * rest + self.offset**2
        return found


class _Predicted(Mean):  # type: ignore[misc]
    """What is predicted: a constant and the sum of the effects; of places, or of differences."""

    def __init__(self, effects: torch.Tensor, constant: float, *, differences: bool) -> None:
        super().__init__()
        self.register_buffer("effects", effects)
        self.constant, self.differences = constant, differences

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.differences:
            here, there = x.chunk(2, -1)
            x = here - there
        found: torch.Tensor = self.constant + x @ self.effects
        return found


@dataclass
class _Data:
    """Observations of one quantity: n rows."""

    x: Array
    seen: Array
    noise: Array
    bounded: NDArray[np.bool_]


@dataclass
class Process:
    """One quantity's Gaussian process: its prior, and what was seen of it."""

    effects: Array
    sd: Array
    differences: bool
    constant: float = 0.0
    offset: float = 0.0
    scales: Scales = field(default_factory=Scales)
    data: _Data | None = None
    _model: SingleTaskGP | None = None

    def see(self, data: _Data, *, refit: bool) -> None:
        """Take these observations for all that is known; `refit`: the scales too."""
        self.data = data
        if not len(data.seen):
            self._model = None
            return
        for turn in range(_ROUNDS if refit else 1):
            found = self._sites(data)
            self._model = self._build(data, found)
            if refit:
                self._fit(self._model)
                kernel = self._model.covar_module
                self.scales = Scales(*(float(kernel.scale(name).detach()) for name in ("main", "pair", "rest")))
                if not data.bounded.any() or turn == _ROUNDS - 1:
                    break
        if refit and data.bounded.any():
            self._model = self._build(data, self._sites(data))

    def forecast(self, x: Array) -> Forecast:
        """The latent values at (points, columns as in the data)."""
        inputs = torch.from_numpy(x)
        with torch.no_grad():
            if self._model is None:
                mean, covariance = self._mean()(inputs), self._kernel()(inputs).to_dense()
            else:
                found = self._model.posterior(inputs).distribution  # type: ignore[union-attr]
                mean, covariance = found.mean, found.covariance_matrix
        return Forecast(mean.numpy().astype(np.float64), covariance.numpy().astype(np.float64))

    def evidence(self) -> float:
        """Log marginal likelihood of what was seen under the scales as they are; 0 when nothing was."""
        if self._model is None:
            return 0.0
        self._model.train()
        with torch.no_grad():
            inputs, targets = self._model.train_inputs[0], self._model.train_targets
            found = self._model.likelihood(self._model(inputs), [inputs])
            value = float(found.log_prob(targets))
        self._model.eval()
        return value

    def _mean(self) -> _Predicted:
        return _Predicted(torch.from_numpy(self.effects), self.constant, differences=self.differences)

    def _kernel(self) -> _Effects:
        return _Effects(torch.from_numpy(self.sd), self.scales, differences=self.differences, offset=self.offset)

    def _sites(self, data: _Data) -> Sites:
        inputs = torch.from_numpy(data.x)
        with torch.no_grad():
            mean, prior = self._mean()(inputs).numpy(), self._kernel()(inputs).to_dense().numpy()
        return sites(mean, prior, data.seen, data.noise, data.bounded)

    def _build(self, data: _Data, found: Sites) -> SingleTaskGP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BotorchWarning)
            return SingleTaskGP(
                torch.from_numpy(data.x), torch.from_numpy(found.mean)[:, None], torch.from_numpy(found.variance)[:, None],
                covar_module=self._kernel(), mean_module=self._mean(), outcome_transform=None,
            )  # fmt: skip

    def _fit(self, model: SingleTaskGP) -> None:
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_gpytorch_mll(
                mll, optimizer=fit_gpytorch_mll_scipy, optimizer_kwargs={"options": {"maxiter": _MOST_ITERATIONS}}, max_attempts=1
            )
        model.eval()


class Surrogate:
    """Both models over one space."""

    def __init__(self, space: Space, belief: Belief) -> None:
        self.space, self.belief = space, belief
        self.observations: tuple[Observation, ...] = ()
        base = math.log(belief.original_peak) if belief.original_peak > 0 else 20.0
        self.time = Process(belief.time, belief.time_sd, differences=True)
        offset = _OFFSET_SD if belief.original_peak > 0 else 5.0
        self.memory = Process(belief.memory, belief.memory_sd, differences=False, constant=base, offset=offset)

    def see(self, observations: Sequence[Observation], *, refit: bool = True) -> None:
        """Take these for all that is known; without `refit` the scales stay what they are, which is fast."""
        self.observations = tuple(observations)
        self.time.see(self._times(), refit=refit)
        self.memory.see(self._peaks(), refit=refit)

    def evidence(self) -> float:
        """How well the belief explains the times that were seen: their log marginal likelihood."""
        return self.time.evidence()

    def times(self, points: Sequence[Point]) -> Forecast:
        """Log-ratio of step time to the original's, without noise."""
        x = self.space.encode(points)
        return self.time.forecast(np.hstack([x, np.zeros_like(x)]))

    def peaks(self, points: Sequence[Point]) -> Forecast:
        """Log of peak memory in bytes."""
        return self.memory.forecast(self.space.encode(points))

    def _times(self) -> _Data:
        seen = [o for o in self.observations if o.log_ratio is not None]
        x = np.hstack([self.space.encode([o.point for o in seen]), self.space.encode([o.against for o in seen])])
        return _Data(x, _floats(o.log_ratio for o in seen), _floats(o.noise for o in seen), np.array([o.slow for o in seen], bool))

    def _peaks(self) -> _Data:
        seen = [o for o in self.observations if o.peak]
        logs = _floats(math.log(o.peak or 1.0) for o in seen)
        return _Data(self.space.encode([o.point for o in seen]), logs, np.full(len(seen), PEAK_NOISE), np.array([o.oom for o in seen], bool))


PEAK_NOISE = 0.03
"""standard deviation of the log of a measured peak, and of where a limit bites"""


def _floats(values: object) -> Array:
    return np.array(list(values), np.float64)  # type: ignore[call-overload]

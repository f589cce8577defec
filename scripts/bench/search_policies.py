"""Policies of search over a pool: this product's, and those that it is compared with.

A policy is asked for the number of a candidate that is not measured yet and told what its run showed. Samplers that
think in coordinates (Optuna's, SMAC's) name a point; the nearest of the pool that is not measured is taken for it, and
what they are told is the result of that one, at its own coordinates.
"""

from __future__ import annotations

import contextlib
import logging
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rsi_tui.search.choosing import choose
from rsi_tui.search.surrogate import Belief, Observation, Surrogate
from scripts.bench.search_surfaces import Surface

REFIT_EVERY = 5


class Policy(Protocol):
    def ask(self, left: list[int]) -> int:
        """One of the numbers that are left."""

    def tell(self, number: int, seen: Observation) -> None:
        """What its run showed."""


class Random:
    def __init__(self, surface: Surface, seed: int) -> None:
        self._rng = random.Random(seed)

    def ask(self, left: list[int]) -> int:
        return self._rng.choice(left)

    def tell(self, number: int, seen: Observation) -> None:
        return None


class Greedy:
    """From the best so far to the nearest that was not tried, as a single agent climbs: one change, keep what is better."""

    def __init__(self, surface: Surface, seed: int) -> None:
        self._surface, self._rng = surface, random.Random(seed)
        self._x = surface.space.encode([m.point for m in surface.pool])
        self._at = next((i for i, m in enumerate(surface.pool) if not m.point.made and not m.point.knobs), 0)
        self._best = np.inf

    def ask(self, left: list[int]) -> int:
        far = np.abs(self._x[left] - self._x[self._at]).sum(axis=1)
        nearest = [n for n, d in zip(left, far, strict=True) if d <= far.min() + 1e-9]
        return self._rng.choice(nearest)

    def tell(self, number: int, seen: Observation) -> None:
        if seen.log_ratio is not None and not seen.slow and seen.log_ratio < self._best:
            self._at, self._best = number, seen.log_ratio


class Rsi:
    """Both models, noisy constrained improvement per second."""

    def __init__(self, surface: Surface, seed: int, belief: Belief | None = None, least_fit: float = 0.0) -> None:
        self._surface, self._seed, self._least_fit = surface, seed, least_fit
        self._model = Surrogate(surface.space, belief or surface.belief)
        self._seen: list[Observation] = []

    def ask(self, left: list[int]) -> int:
        self._model.see(self._seen, refit=len(self._seen) % REFIT_EVERY == 0 and len(self._seen) > 0)
        candidates = [self._surface.pool[n].point for n in left]
        found = choose(self._model, candidates, self._surface.limit_bytes, self._surface.costs, seed=self._seed * 1000 + len(self._seen), least_fit=self._least_fit)
        return left[candidates.index(found[0].point)]

    def tell(self, number: int, seen: Observation) -> None:
        self._seen.append(seen)


class _Nearest:
    """Finds the candidate nearest to a sampler's point."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self._x = surface.space.encode([m.point for m in surface.pool])

    def params(self, number: int) -> dict[str, Any]:
        point = self.surface.pool[number].point
        values = self.surface.space.values(point)
        return {s.id: s.id in point.made for s in self.surface.space.switches} | {k: _plain(v) for k, v in values.items()}

    def number(self, params: dict[str, Any], left: list[int]) -> int:
        space = self.surface.space
        made = [s.id for s in space.switches if params[s.id]]
        knobs = {d.name: next(v for v in d.values if _plain(v) == params[d.name]) for d in space.dials}
        wanted = space.encode([space.point(made, knobs)])[0]
        return left[int(np.argmin(np.abs(self._x[left] - wanted).sum(axis=1)))]


def _plain(value: Any) -> Any:
    return str(value)


class Optuna:
    """TPE or Gaussian processes with the memory limit as a constraint; a failed run is worth the worst that was seen."""

    def __init__(self, surface: Surface, seed: int, kind: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        self._optuna, self._nearest = optuna, _Nearest(surface)
        space = surface.space
        self._distributions: dict[str, Any] = {s.id: optuna.distributions.CategoricalDistribution([False, True]) for s in space.switches}
        self._distributions |= {d.name: optuna.distributions.CategoricalDistribution([_plain(v) for v in d.values]) for d in space.dials}
        constraints: Callable[[Any], Any] = lambda trial: (trial.user_attrs["over"],)  # noqa: E731
        if kind == "tpe":
            self._sampler: Any = optuna.samplers.TPESampler(seed=seed, multivariate=True, constraints_func=constraints)
        else:
            self._sampler = optuna.samplers.GPSampler(seed=seed, constraints_func=constraints)
        self._trials: list[Any] = []
        self._worst = 0.0

    def ask(self, left: list[int]) -> int:
        study = self._optuna.create_study(sampler=self._sampler)
        study.add_trials(self._trials)
        return self._nearest.number(study.ask(self._distributions).params, left)

    def tell(self, number: int, seen: Observation) -> None:
        value = seen.log_ratio if seen.log_ratio is not None and not seen.slow else self._worst
        self._worst = max(self._worst, value)
        limit = self._nearest.surface.limit_bytes
        over = float(np.log((seen.peak or limit) / limit)) if seen.peak else 0.0
        over = max(over, 0.05) if seen.oom else min(over, 0.0)
        self._trials.append(
            self._optuna.trial.create_trial(
                params=self._nearest.params(number), distributions=self._distributions, value=value, user_attrs={"over": over},
                system_attrs={"constraints": (over,)},
            )
        )  # fmt: skip


class Smac:
    """SMAC3's random forest; what runs out of memory is told as such."""

    def __init__(self, surface: Surface, seed: int) -> None:
        import smac
        from ConfigSpace import Categorical, ConfigurationSpace
        from smac.runhistory.dataclasses import TrialInfo, TrialValue
        from smac.runhistory.enumerations import StatusType

        logging.getLogger("smac").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        self._kinds, self._nearest, self._worst = (TrialInfo, TrialValue, StatusType), _Nearest(surface), 0.0
        self._space = ConfigurationSpace(seed=seed)
        self._space.add([Categorical(s.id, [False, True]) for s in surface.space.switches])
        self._space.add([Categorical(d.name, [_plain(v) for v in d.values]) for d in surface.space.dials])
        self._folder = tempfile.TemporaryDirectory(prefix="rsi-smac-")
        scenario = smac.Scenario(self._space, n_trials=1000, seed=seed, deterministic=True, output_directory=Path(self._folder.name))
        design = smac.HyperparameterOptimizationFacade.get_initial_design(scenario, n_configs=10)
        self._smac = smac.HyperparameterOptimizationFacade(scenario, lambda config, seed=0: 0.0, initial_design=design, overwrite=True, logging_level=False)

    def ask(self, left: list[int]) -> int:
        with contextlib.redirect_stdout(None):
            asked = self._smac.ask()
        return self._nearest.number({k: _native(v) for k, v in dict(asked.config).items()}, left)

    def tell(self, number: int, seen: Observation) -> None:
        from ConfigSpace import Configuration

        info, value, status = self._kinds
        ok = seen.log_ratio is not None and not seen.slow
        cost = float(seen.log_ratio) if ok and seen.log_ratio is not None else self._worst
        self._worst = max(self._worst, cost)
        config = Configuration(self._space, values=self._nearest.params(number))
        self._smac.tell(info(config, seed=0), value(cost=cost, status=status.SUCCESS if ok else status.MEMORYOUT), save=False)


def _native(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


POLICIES: dict[str, Callable[[Surface, int], Policy]] = {
    "rsi": Rsi,
    "random": Random,
    "greedy": Greedy,
    "optuna tpe": lambda surface, seed: Optuna(surface, seed, "tpe"),
    "optuna gp": lambda surface, seed: Optuna(surface, seed, "gp"),
    "smac3": Smac,
}

"""The models learn effects and interactions, take bounds as bounds, and their intervals hold as often as they say."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy.stats import norm

from rsi_tui.search.space import Dial, Point, Space, Switch
from rsi_tui.search.surrogate import Belief, Observation, Surrogate

LIMIT = 600 * 2**20
PEAK = 500 * 2**20


class World:
    """Effects that interact, of which the predictions know a part."""

    def __init__(self, seed: int, dimensions: int = 12) -> None:
        rng = np.random.default_rng(seed)
        self.space = Space(tuple(Switch(f"c{i}", "kernel") for i in range(dimensions)), (Dial("batch", (1, 2, 4), 2, "memory"),))
        n = len(self.space.dimensions)
        self.time, self.memory = rng.normal(-0.05, 0.1, n), rng.normal(0.03, 0.1, n)
        self.pairs = np.triu(rng.normal(0, 0.05, (n, n)) * (rng.random((n, n)) < 0.3), 1)
        self.memory_pairs = np.triu(rng.normal(0, 0.05, (n, n)) * (rng.random((n, n)) < 0.3), 1)
        off, memory_off = rng.normal(0, 0.06, n), rng.normal(0, 0.05, n)
        time, memory = self.time + off, self.memory + memory_off
        self.belief = Belief(time, 0.03 + 0.5 * abs(time), memory, 0.03 + 0.5 * abs(memory), PEAK)

    def times(self, points: list[Point]) -> np.ndarray:
        x = self.space.encode(points)
        return x @ self.time + np.einsum("ni,ij,nj->n", x, self.pairs, x)

    def peaks(self, points: list[Point]) -> np.ndarray:
        x = self.space.encode(points)
        return math.log(PEAK) + x @ self.memory + np.einsum("ni,ij,nj->n", x, self.memory_pairs, x)

    def points(self, count: int, seed: int) -> list[Point]:
        rng = random.Random(seed)
        return [self.space.sample(rng, rng.uniform(0.1, 0.6)) for _ in range(count)]

    def seen(self, points: list[Point], seed: int, against: Point = Point()) -> list[Observation]:  # noqa: B008 - frozen
        rng = random.Random(seed)
        base = self.times([against])[0]
        found = []
        for point, time, peak in zip(points, self.times(points), np.exp(self.peaks(points)), strict=True):
            if peak > LIMIT:
                found.append(Observation(point, against, peak=LIMIT, oom=True))
            else:
                found.append(Observation(point, against, time - base + rng.gauss(0, 0.02), 0.02, peak=peak * math.exp(rng.gauss(0, 0.02))))
        return found


def test_intervals_hold_and_bounds_are_not_values() -> None:
    """Over worlds: 90 % intervals hold about as often, beyond the limit too, where nothing was ever measured."""
    inside, inside_memory, beyond = [], [], []
    for seed in range(8):
        world = World(seed)
        model = Surrogate(world.space, world.belief)
        model.see(world.seen(world.points(60, seed), seed))
        test = world.points(150, 100 + seed)
        times, peaks = model.times(test), model.peaks(test)
        inside += list(abs(world.times(test) - times.mean) < 1.645 * times.sd + 1e-9)
        errors = world.peaks(test) - peaks.mean
        inside_memory += list(abs(errors) < 1.645 * peaks.sd + 1e-9)
        beyond += list(errors[world.peaks(test) > math.log(LIMIT)])
    assert 0.83 <= np.mean(inside) <= 0.96
    assert 0.83 <= np.mean(inside_memory) <= 0.96
    assert len(beyond) > 100
    assert abs(np.mean(beyond)) < 0.05


def test_a_chance_to_fit_is_reliable() -> None:
    said, was = [], []
    for seed in range(6):
        world = World(seed)
        model = Surrogate(world.space, world.belief)
        model.see(world.seen(world.points(40, seed), seed))
        test = world.points(150, 100 + seed)
        peaks = model.peaks(test)
        said += list(norm.cdf((math.log(LIMIT) - peaks.mean) / peaks.sd))
        was += list(world.peaks(test) <= math.log(LIMIT))
    chances, fits = np.array(said), np.array(was)
    for low, high in ((0.0, 0.2), (0.2, 0.8), (0.8, 1.001)):
        group = (chances >= low) & (chances < high)
        assert abs(chances[group].mean() - fits[group].mean()) < 0.12, (low, high, group.sum())


def test_runs_out_of_memory_teach_more_than_dropping_them() -> None:
    """The Brier score of 'it fits' where it hardly does or hardly does not."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(6):
        world = World(seed)
        seen = world.seen(world.points(60, seed), seed)
        test = world.points(300, 100 + seed)
        fits = world.peaks(test) <= math.log(LIMIT)
        for kept in (True, False):
            model = Surrogate(world.space, world.belief)
            model.see([o for o in seen if kept or not o.oom])
            peaks = model.peaks(test)
            scores[kept] += list((norm.cdf((math.log(LIMIT) - peaks.mean) / peaks.sd) - fits) ** 2)
    assert np.mean(scores[True]) < 0.95 * np.mean(scores[False])


def test_times_to_any_incumbent_are_one_scale() -> None:
    """Half measured against the original and half against a stack: about as exact as all against one."""
    world = World(3)
    stack = world.points(1, 9)[0]
    points = [p for p in world.points(90, 3) if world.peaks([p])[0] <= math.log(LIMIT)]
    test = world.points(200, 55)
    errors = []
    for seen in (
        world.seen(points, 1) + world.seen([stack], 3),
        world.seen(points[::2], 1) + world.seen(points[1::2], 2, against=stack) + world.seen([stack], 3),
    ):
        model = Surrogate(world.space, world.belief)
        model.see(seen)
        errors.append(float(np.sqrt(np.mean((model.times(test).mean - world.times(test)) ** 2))))
        assert model.times([Point()]).mean[0] == pytest.approx(0.0, abs=1e-6)
    assert errors[1] < 1.3 * errors[0]


def test_a_run_ended_for_its_time_is_a_lower_bound() -> None:
    world = World(1)
    point = world.space.point(["c0"], {})
    model = Surrogate(world.space, world.belief)
    before = model.times([point]).mean[0]
    model.see([Observation(point, log_ratio=before + 0.5, noise=0.02, slow=True)])
    assert model.times([point]).mean[0] > before + 0.4
    model.see([Observation(point, log_ratio=before - 2.0, noise=0.02, slow=True)])
    assert model.times([point]).mean[0] == pytest.approx(before, abs=0.05)


def test_nothing_measured_says_nothing_and_the_predictions_stand() -> None:
    world = World(2)
    model = Surrogate(world.space, world.belief)
    test = world.points(20, 5)
    model.see([Observation(test[0])])
    assert model.times(test).mean == pytest.approx(world.space.encode(test) @ world.belief.time)
    assert model.evidence() == 0.0


def test_the_better_belief_has_the_larger_evidence() -> None:
    world = World(4)
    seen = world.seen(world.points(40, 4), 4)
    turned = Belief(-world.belief.time, world.belief.time_sd, world.belief.memory, world.belief.memory_sd, PEAK)
    found = []
    for belief in (world.belief, turned):
        model = Surrogate(world.space, belief)
        model.see(seen)
        found.append(model.evidence())
    assert found[0] > found[1]

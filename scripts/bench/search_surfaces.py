"""Surfaces that policies of search are compared on: recorded ones of the bundled workloads, and a synthetic one.

A surface is a pool of candidates whose true time and memory are taken as known. A policy chooses from the pool; what it
is told of a choice is the truth with the noise that was measured, or a failure. Times are log-ratios to the reference.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rsi_tui.search.censored import Array
from rsi_tui.search.choosing import Costs
from rsi_tui.search.space import Dial, Point, Space, Switch
from rsi_tui.search.surrogate import Belief, Observation

FOLDER = Path(__file__).parent / "surfaces"
_LEAST_SD = 0.03
"""of a predicted effect, whatever its size"""
_SHARE_SD = 0.6
"""of a predicted effect, of its size"""


@dataclass(frozen=True)
class Measured:
    """One candidate of a pool."""

    point: Point
    outcome: str
    """ok, oom, timeout, or another failure"""
    log_time: float | None
    """true log-ratio to the reference; a lower bound for a timeout"""
    peak: float | None
    """bytes; at an OOM what was had and asked for, at least the limit"""
    cost_s: float


@dataclass(frozen=True)
class Surface:
    name: str
    space: Space
    pool: tuple[Measured, ...]
    noise: float
    """standard deviation of one measured log-ratio"""
    reference: Point
    limit_bytes: float
    belief: Belief
    """what techniques predict of this program"""
    costs: Costs
    how: str

    @property
    def best(self) -> float:
        """The smallest true log time of the pool."""
        return min(m.log_time for m in self.pool if m.outcome == "ok" and m.log_time is not None)

    def told(self, number: int, rng: random.Random) -> Observation:
        """What a policy hears when it measures a candidate of the pool."""
        found = self.pool[number]
        if found.outcome == "ok" and found.log_time is not None:
            return Observation(found.point, self.reference, found.log_time + rng.gauss(0, self.noise), self.noise, peak=found.peak)
        if found.outcome == "oom":
            return Observation(found.point, self.reference, peak=found.peak or self.limit_bytes, oom=True)
        return Observation(found.point, self.reference, found.log_time, self.noise, slow=True) if found.outcome == "timeout" else Observation(found.point, self.reference)


def recorded(workload: str, folder: Path = FOLDER) -> Surface | None:
    """The surface of a workload as it was collected; None where there is none yet."""
    from scripts.bench.collect_surface import read

    path = folder / f"{workload}.parquet"
    if not path.exists():
        return None
    runs, about = read(path)
    space = _space(about)
    points: dict[int, Point] = {}
    by_point: dict[int, list[Any]] = {}
    for run in runs:
        points[run.point] = space.point(run.techniques, json.loads(run.knobs))
        by_point.setdefault(run.point, []).append(run)
    limit = float(about["memory_limit_bytes"])
    pool = tuple(_measured(points[n], found, limit) for n, found in sorted(by_point.items()) if n >= 0)
    original = next((m for m in pool if m.point == Point()), None)
    spread = [statistics.stdev(r.log_ratio for r in found) for n, found in by_point.items() if n >= 0 and len([r for r in found if r.log_ratio is not None]) > 2]
    noise = statistics.median(spread) if spread else _noise_of_reference(by_point[-1])
    steps = float(about["steps"][0])
    step_s = statistics.median(r.step_s for n, found in by_point.items() if points[n] == Point() for r in found if r.step_s) if original else 1.0
    startup = statistics.median(r.wall_s - steps * r.step_s for found in by_point.values() for r in found if r.step_s)
    failed = [r.wall_s for found in by_point.values() for r in found if r.outcome == "oom"]
    costs = Costs(step_s, steps, startup, statistics.median(failed) if failed else 0.0)
    return Surface(workload, space, pool, max(noise, 0.005), points[-1], limit, _belief(space, about, original), costs, about["how"])


def _space(about: dict[str, Any]) -> Space:
    from types import SimpleNamespace

    from rsi_tui.contract.rules import violations

    known = {t["id"] for t in about["techniques"]}
    switches = tuple(
        Switch(t["id"], t["layer"], tuple(c for c in t["conflicts"] if c in known), tuple(t["needs"])) for t in about["techniques"]
    )
    dials = tuple(Dial(k["name"], tuple(k["values"]), k["default"], k["layer"]) for k in about["knobs"])
    terms: Any = SimpleNamespace(rules=tuple(about["rules"]), defaults={d.name: d.default for d in dials}, knobs=dials)
    return Space(switches, dials, lambda values: not violations(terms, values))


def _measured(point: Point, runs: Sequence[Any], limit: float) -> Measured:
    times = [r.log_ratio for r in runs if r.log_ratio is not None]
    cost = statistics.fmean(r.wall_s for r in runs)
    if times:
        peaks = [r.peak_bytes for r in runs if r.peak_bytes]
        return Measured(point, "ok", statistics.fmean(times), statistics.median(peaks) if peaks else None, cost)
    last = runs[-1]
    if last.outcome == "oom":
        return Measured(point, "oom", None, max(limit, (last.peak_bytes or 0) + (last.requested_bytes or 0)), cost)
    return Measured(point, last.outcome, None, None, cost)


def _noise_of_reference(runs: Sequence[Any]) -> float:
    batches: dict[int, list[float]] = {}
    for run in runs:
        if run.score_s is not None:
            batches.setdefault(run.batch, []).append(math.log(run.score_s))
    spread = [statistics.stdev(found) for found in batches.values() if len(found) > 1]
    return statistics.median(spread) if spread else 0.03


def _belief(space: Space, about: dict[str, Any], original: Measured | None) -> Belief:
    """What the techniques predicted of the profiled original, as the collector wrote it down."""
    predicted = {t["id"]: t["predicted"] for t in about["techniques"]} | about.get("predicted_knobs", {})
    found = [predicted.get(d.name) or {"time": 0.0, "memory": 0.0} for d in space.dimensions]
    return believed([f["time"] for f in found], [f["memory"] for f in found], original.peak if original and original.peak else 0.0)


def believed(time: Sequence[float], memory: Sequence[float], peak: float) -> Belief:
    """Effects as predicted, each uncertain by a share of itself and a little more."""
    t, m = np.array(time, float), np.array(memory, float)
    return Belief(t, _LEAST_SD + _SHARE_SD * np.abs(t), m, _LEAST_SD + _SHARE_SD * np.abs(m), peak)


def synthetic(seed: int = 0, size: int = 700) -> Surface:
    """17 dimensions, effects that interact, 22 to 27 % out of memory, predictions that are half right.

    Half of the pool is drawn at random, half bred from the fastest of it, so that good sets are in it.
    """
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    switches = tuple(Switch(f"change-{i}", "kernel", ("change-1",) if i == 0 else ()) for i in range(13))
    dials = (Dial("micro_batch", (1, 2, 4, 8), 2, "memory"), Dial("allocator", (False, True), False, "memory"))
    space = Space(switches, dials)
    size_of = len(space.dimensions)
    time = np.where(draw.random(size_of) < 0.6, -np.abs(draw.normal(0, 0.12, size_of)), draw.normal(0, 0.04, size_of))
    memory = draw.normal(0, 0.07, size_of)
    names = [d.name for d in space.dimensions]
    time[names.index("micro_batch")], memory[names.index("micro_batch")] = -0.35, 0.55
    for name in ("micro_batch=1", "micro_batch=4", "micro_batch=8"):
        time[names.index(name)], memory[names.index(name)] = 0.0, 0.0
    pairs = np.triu(draw.normal(0, 0.06, (size_of, size_of)) * (draw.random((size_of, size_of)) < 0.25), 1)
    memory_pairs = np.triu(draw.normal(0, 0.04, (size_of, size_of)) * (draw.random((size_of, size_of)) < 0.15), 1)

    def truth(points: Sequence[Point]) -> tuple[Array, Array]:
        x = space.encode(points)
        return x @ time + np.einsum("ni,ij,nj->n", x, pairs, x), x @ memory + np.einsum("ni,ij,nj->n", x, memory_pairs, x)

    points = list(dict.fromkeys(space.sample(rng, rng.uniform(0.1, 0.8)) for _ in range(size // 2)))
    points = list(dict.fromkeys([Point(), *points]))
    limit = float(np.quantile(truth(points)[1], 0.76))
    while len(points) < size:
        logs, peaks = truth(points)
        order = sorted(range(len(points)), key=lambda i: logs[i] + (1.0 if peaks[i] > limit else 0.0))[:40]
        new = rng.choice(space.neighbours(points[rng.choice(order)]))
        if new not in points:
            points.append(new)
    logs, peaks = truth(points)
    base, step_s, startup = 600 * 2**20, 0.4, 3.0
    costs = Costs(step_s, 10.0, startup, 4.0)
    pool = tuple(
        Measured(p, "ok", float(t), base * math.exp(m), startup + 10 * step_s * math.exp(t))
        if m <= limit
        else Measured(p, "oom", None, base * math.exp(limit), 4.0)
        for p, t, m in zip(points, logs, peaks, strict=True)
    )
    off = np.array([rng.gauss(0, 0.06) for _ in names])
    belief = believed(0.6 * time + off, memory + np.array([rng.gauss(0, 0.05) for _ in names]), base)
    share = sum(m.outcome == "oom" for m in pool) / len(pool)
    how = f"synthetic: {len(names)} dimensions, {100 * share:.0f} % of the pool out of memory, predictions off by a standard deviation of 0.06"
    return Surface(f"synthetic-{seed}", space, pool, 0.02, Point(), base * math.exp(limit), belief, costs, how)


def misled(surface: Surface) -> Belief:
    """The belief with every effect turned round."""
    return replace(surface.belief, time=-surface.belief.time, memory=-surface.belief.memory)

"""The whole procedure on a simulated machine: nothing false is adopted, real gains are found."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench" / "simulation.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rsi_bench_simulation", BENCH)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def machine(simulation: ModuleType, *key: int):  # type: ignore[no-untyped-def]
    return simulation.Machine(simulation.World(cv=0.02), np.random.default_rng(key))


def test_two_hundred_candidates_that_change_nothing_adopt_nothing(simulation: ModuleType) -> None:
    ended = [simulation.campaign(machine(simulation, 11, i), [simulation.Program()] * 200) for i in range(5)]
    assert [e.adopted for e in ended] == [()] * 5
    assert np.mean([e.runs for e in ended]) < 900


@pytest.mark.parametrize(("gain", "least"), [(0.10, 0.9), (0.05, 0.7)])
def test_a_real_gain_is_proven_through_drift_and_outliers(simulation: ModuleType, gain: float, least: float) -> None:
    repeats, found, tried = 120, 0, 0
    for i in range(repeats):
        program = simulation.Program(-math.log1p(-gain))
        host = machine(simulation, 12, round(gain * 100), i)
        scale = simulation.calibrate(host).scale
        tried += 1
        found += simulation.verify(host, program, simulation.campaign_alpha(1) / 40, scale, -program.gain).adopted
    assert found / tried > least


def test_screening_and_verification_together_find_a_ten_percent_gain(simulation: ModuleType) -> None:
    programs = [simulation.Program(-math.log1p(-0.1)), *[simulation.Program()] * 3]
    adopted = [simulation.campaign(machine(simulation, 13, i), programs).adopted for i in range(60)]
    assert sum(0 in numbers for numbers in adopted) / 60 > 0.9
    assert all(numbers in ((), (0,)) for numbers in adopted)


def test_a_candidate_that_is_three_times_slower_in_one_run_of_ten_is_hardly_ever_adopted(simulation: ModuleType) -> None:
    gain = -math.log1p(-0.1)
    adopted = {"in turn": 0, "at random": 0}
    for how, program in {
        "in turn": simulation.Program(gain, disaster_every=10), "at random": simulation.Program(gain, disaster_rate=0.1)
    }.items():
        for i in range(80):
            host = machine(simulation, 14, i)
            scale = simulation.calibrate(host).scale
            adopted[how] += simulation.verify(host, program, simulation.campaign_alpha(1) / 40, scale, -gain).adopted
    assert adopted["in turn"] == 0
    assert adopted["at random"] <= 0.05 * 80

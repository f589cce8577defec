"""A simulated machine that drives the very code that decides: calibration, screening, verification, claim.

Nothing of the procedure is copied here; this module only makes times and calls rsi_tui.evaluator as the engine
does. Noise of a run is log-normal, with AR(1) drift of the same size and rare outliers; a world can also break the
assumptions (arms of unequal noise, skew, carry-over from run to run, rare disasters).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rsi_tui.evaluator import claim, screening
from rsi_tui.evaluator.eprocess import EProcess, choose_plan, draw_order
from rsi_tui.evaluator.ledger import AlphaLedger, campaign_alpha
from rsi_tui.evaluator.noise import pair_scale

STEP_S = 1.0
BATCH = 4
MARGIN = 0.005


@dataclass(frozen=True)
class World:
    """Laws of the noise of a machine."""

    cv: float = 0.02
    """standard deviation of a run's log time"""
    drift: float = 1.0
    """stationary deviation of the AR(1) drift, in units of cv"""
    memory: float = 0.9
    """AR(1) coefficient from run to run"""
    outliers: float = 0.02
    """rate of runs that something slows 1.5 to 2.5 times"""
    candidate_noise: float = 1.0
    """the candidate's noise, in units of the incumbent's"""
    skew: float = 0.0
    """weight of an exponential part in the incumbent's noise, 0..1: the arms' laws differ in shape"""
    carry_over: float = 0.0
    """log slow-down of a run that follows a candidate's run"""


@dataclass(frozen=True)
class Program:
    """What is run: the incumbent, or a candidate with a true gain."""

    gain: float = 0.0
    """true log gain, positive is faster"""
    disaster_rate: float = 0.0
    """share of runs that are a disaster, at random"""
    disaster_every: int = 0
    """every n-th candidate run is a disaster; 0 = none"""
    disaster: float = 3.0
    """factor on the incumbent's time in a disastrous run"""
    candidate: bool = True


INCUMBENT = Program(candidate=False)


@dataclass
class Machine:
    """Runs programs one after the other; counts them."""

    world: World
    rng: np.random.Generator
    runs: int = 0
    _drift: float = 0.0
    _after_candidate: bool = False
    _candidate_runs: int = 0

    def run(self, program: Program = INCUMBENT) -> float:
        """Seconds of one fresh process."""
        world, rng = self.world, self.rng
        self.runs += 1
        fresh = math.sqrt(1 - world.memory**2) * world.drift * world.cv * rng.standard_normal()
        self._drift = world.memory * self._drift + fresh
        noise = world.cv * (self._skewed() if not program.candidate else rng.standard_normal() * world.candidate_noise)
        log_time = self._drift + noise - program.gain + world.carry_over * self._after_candidate
        if rng.random() < world.outliers:
            log_time += math.log(rng.uniform(1.5, 2.5))
        if program.candidate:
            self._candidate_runs += 1
        every_nth = program.disaster_every and self._candidate_runs % program.disaster_every == 0
        if every_nth or rng.random() < program.disaster_rate:
            log_time += math.log(program.disaster) + program.gain
        self._after_candidate = program.candidate
        return STEP_S * math.exp(log_time)

    def _skewed(self) -> float:
        """Mean 0, variance 1."""
        skew = self.world.skew
        return float(math.sqrt(1 - skew**2) * self.rng.standard_normal() + skew * (self.rng.exponential() - 1))


@dataclass(frozen=True)
class Verified:
    """How one verification ended."""

    adopted: bool
    evalue: float
    blocks: int
    candidate_times: tuple[float, ...]
    incumbent_times: tuple[float, ...]


@dataclass(frozen=True)
class Ended:
    """How one campaign ended."""

    adopted: tuple[int, ...]
    """numbers of the candidates that were adopted"""
    promoted: tuple[int, ...]
    runs: int
    """all after the calibration, warm-ups included"""


def calibrate(machine: Machine, pairs: int = 20) -> list[float]:
    """Log differences of A/A pairs."""
    return [math.log(machine.run() / machine.run()) for _ in range(pairs)]


def verify(machine: Machine, program: Program, alpha: float, scale: float, log_ratio: float) -> Verified:
    """One verification on fresh runs, by the evaluator's rules."""
    plan = choose_plan(alpha, -log_ratio, scale, MARGIN)
    process = EProcess(alpha, scale, MARGIN, -log_ratio)
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    for block in range(plan.max_blocks):
        order = draw_order(plan.arm_size, lambda below: int(machine.rng.integers(below)))
        machine.run()
        times: list[float] = []
        for arm in order:
            times.append(machine.run(program if arm == "B" else INCUMBENT))
            seconds[arm].append(times[-1])
            half = order[: len(times)]
            if not block and len(times) == plan.arm_size and process.futile(plan, half, times):
                return _verified(process, 0, seconds, adopted=False)
        process.add_block(order, times)
        if process.reached or process.futile(plan):
            wins = process.reached and claim.mean_total_ratio(seconds["B"], seconds["A"]) < 1
            return _verified(process, block + 1, seconds, adopted=wins)
    return _verified(process, plan.max_blocks, seconds, adopted=False)


def _verified(process: EProcess, blocks: int, seconds: dict[str, list[float]], *, adopted: bool) -> Verified:
    return Verified(adopted, process.total, blocks, tuple(seconds["B"]), tuple(seconds["A"]))


def campaign(machine: Machine, programs: Sequence[Program], alpha: float | None = None, planned: int = 40) -> Ended:
    """Screen all programs in batches, verify what is promoted, with the ledger of a first campaign."""
    differences = calibrate(machine)
    start = machine.runs
    ledger = AlphaLedger(campaign_alpha(1) if alpha is None else alpha, planned)
    waiting: deque[int] = deque(range(len(programs)))
    seen: dict[int, list[float]] = {}
    adopted: list[int] = []
    promoted: list[int] = []
    while waiting:
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        scale = pair_scale(differences)
        again: list[int] = []
        for number, ratio in _screen(machine, [(n, programs[n]) for n in batch], differences):
            ratios = seen.setdefault(number, [])
            ratios.append(ratio)
            match _look(ratios, scale).decision:
                case "again":
                    again.append(number)
                case "promote":
                    promoted.append(number)
        waiting.extendleft(again)
        for number in [n for n in promoted if n in batch]:
            if ledger.left:
                result = verify(machine, programs[number], ledger.next_alpha(), pair_scale(differences),
                                screening.estimate(seen[number]))
                ledger.settle(result.adopted)
                adopted += [number] * result.adopted
    return Ended(tuple(adopted), tuple(promoted), machine.runs - start)


def _screen(
    machine: Machine, batch: list[tuple[int, Program]], differences: list[float]
) -> list[tuple[int, float]]:
    """One batch: the candidates and two incumbents in random order; its incumbents are a new A/A difference."""
    programs = {str(number): program for number, program in batch}
    times: dict[int, float] = {}
    incumbents: list[float] = []
    for label in screening.batch_order(tuple(programs), "A", lambda below: int(machine.rng.integers(below))):
        if label == "A":
            incumbents.append(machine.run())
        else:
            times[int(label)] = machine.run(programs[label])
    differences.append(math.log(incumbents[0] / incumbents[1]))
    return [(number, screening.batch_log_ratio(times[number], incumbents)) for number, _ in batch]


def _look(ratios: list[float], scale: float) -> screening.Look:
    if len(ratios) == 1:
        return screening.first_look(ratios[0], scale)
    if len(ratios) == 2:
        return screening.second_look(ratios[0], ratios[1], scale, MARGIN)
    return screening.third_look(ratios[0], ratios[1], ratios[2], scale, MARGIN)


def claimed_pairs(machine: Machine, program: Program, pairs: int = 16) -> tuple[list[float], list[float]]:
    """(candidate, baseline) times of fresh pairs, each in an order drawn at random."""
    candidate: list[float] = []
    baseline: list[float] = []
    for _ in range(pairs):
        if machine.rng.random() < 0.5:
            candidate.append(machine.run(program))
            baseline.append(machine.run())
        else:
            baseline.append(machine.run())
            candidate.append(machine.run(program))
    return candidate, baseline

"""A simulated machine that drives the very code that decides: calibration, screening, verification, claim.

No rule of the procedure is copied here; this module only makes times and asks rsi_tui.evaluator as the engine does
(evaluator/screen.py, verify.py, endurance.py, prove.py, leave_one_out.py). Noise of a run is log-normal, with AR(1) drift of the same size and rare outliers; a world can also break the
assumptions (arms of unequal noise, skew, carry-over from run to run, rare disasters).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rsi_tui.evaluator import claim, screening
from rsi_tui.evaluator.eprocess import EProcess, choose_plan, draw_order
from rsi_tui.evaluator.ledger import AlphaLedger, campaign_alpha
from rsi_tui.evaluator.noise import MachineNoise
from rsi_tui.evaluator.slow_runs import FULL_RATE, judge_slow_runs

STEP_S = 1.0
BATCH = 4
MARGIN = 0.005
ENDURANCE_BLOCK = 8
"""endurance runs after which the rate of slow runs is judged anew"""


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
    """at its highest"""
    blocks: tuple[tuple[str, tuple[float, ...]], ...]
    """closed blocks: order and seconds"""
    candidate_times: tuple[float, ...]
    """in the blocks"""
    incumbent_times: tuple[float, ...]
    endurance_times: tuple[float, ...] = ()
    """further runs of the candidate alone"""


@dataclass(frozen=True)
class Ended:
    """How one campaign ended."""

    adopted: tuple[int, ...]
    """numbers of the candidates that were adopted"""
    promoted: tuple[int, ...]
    runs: int
    """all after the calibration, warm-ups included"""
    endurance_runs: tuple[int, ...]
    """of each candidate whose e-process reached its bound and whose mean won"""


def calibrate(machine: Machine, pairs: int = 20) -> MachineNoise:
    """Noise from A/A pairs."""
    return MachineNoise(tuple(math.log(machine.run() / machine.run()) for _ in range(pairs)))


def verify(
    machine: Machine, program: Program, alpha: float, scale: float, log_ratio: float,
    screened: Sequence[float] = (), max_slow_rate: float = FULL_RATE,
) -> Verified:
    """One verification on fresh runs, by the evaluator's rules; `screened` are the candidate's times so far."""
    plan = choose_plan(alpha, -log_ratio, scale, MARGIN)
    process = EProcess(alpha, scale, MARGIN, -log_ratio)
    blocks: list[tuple[str, tuple[float, ...]]] = []
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    wins = False
    while len(blocks) < plan.max_blocks and not wins:
        order = draw_order(plan.arm_size, lambda below: int(machine.rng.integers(below)))
        machine.run()
        times: list[float] = []
        for arm in order:
            times.append(machine.run(program if arm == "B" else INCUMBENT))
            seconds[arm].append(times[-1])
            half = order[: len(times)]
            if not blocks and len(times) == plan.arm_size and process.futile(plan, half, times):
                return _verified(process, blocks, seconds, ())
        process.add_block(order, times)
        blocks.append((order, tuple(times)))
        wins = process.reached and claim.mean_total_ratio(seconds["B"], seconds["A"]) < 1
        if process.futile(plan):
            break
    if not wins:
        return _verified(process, blocks, seconds, ())
    held, further = _endure(machine, program, [*screened, *seconds["B"]], seconds["A"], max_slow_rate)
    return _verified(process, blocks, seconds, further, adopted=held)


def _endure(
    machine: Machine, program: Program, before: Sequence[float], incumbent: Sequence[float], max_slow_rate: float
) -> tuple[bool, tuple[float, ...]]:
    """(are slow runs known to be rare?, the runs that it took)."""
    further: list[float] = []
    judged = judge_slow_runs(before, incumbent, max_slow_rate)
    while judged.worth_asking(len(further)):
        further += [machine.run(program) for _ in range(min(judged.runs_needed, ENDURANCE_BLOCK))]
        judged = judge_slow_runs([*before, *further], incumbent, max_slow_rate)
    return judged.decision == "held", tuple(further)


def _verified(
    process: EProcess, blocks: Sequence[tuple[str, tuple[float, ...]]], seconds: Mapping[str, Sequence[float]],
    further: tuple[float, ...], adopted: bool = False,
) -> Verified:
    return Verified(adopted, process.highest, tuple(blocks), tuple(seconds["B"]), tuple(seconds["A"]), further)


def campaign(machine: Machine, programs: Sequence[Program], alpha: float | None = None, planned: int = 40) -> Ended:
    """Screen all programs in batches, verify what is promoted, with the ledger of a first campaign."""
    noise = calibrate(machine)
    start = machine.runs
    ledger = AlphaLedger(campaign_alpha(1) if alpha is None else alpha, planned)
    waiting: deque[int] = deque(range(len(programs)))
    seen: dict[int, _Seen] = {number: _Seen([], []) for number in waiting}
    adopted: list[int] = []
    promoted: list[int] = []
    endured: list[int] = []
    while waiting:
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        following = _screen(machine, {n: programs[n] for n in batch}, noise, seen)
        looks = {number: _look(seen[number].ratios, noise.scale).decision for number in batch}
        noise = following
        waiting.extendleft(n for n in batch if looks[n] == "again")
        for number in (n for n in batch if looks[n] == "promote"):
            promoted.append(number)
            if ledger.left:
                result = verify(machine, programs[number], ledger.next_alpha(), noise.scale,
                                screening.estimate(seen[number].ratios), seen[number].times)
                ledger.settle(result.adopted, result.evalue)
                adopted += [number] * result.adopted
                endured += [len(result.endurance_times)] * (result.adopted or bool(result.endurance_times))
    return Ended(tuple(adopted), tuple(promoted), machine.runs - start, tuple(endured))


@dataclass
class _Seen:
    """What screening has seen of one candidate."""

    ratios: list[float]
    times: list[float]


def _screen(machine: Machine, batch: Mapping[int, Program], noise: MachineNoise, seen: Mapping[int, _Seen]) -> MachineNoise:
    """One batch: the candidates and two incumbents in random order; its incumbents are a new A/A difference."""
    times: dict[int, float] = {}
    incumbents: list[float] = []
    labels = tuple(map(str, batch))
    for label in screening.batch_order(labels, "A", lambda below: int(machine.rng.integers(below))):
        if label == "A":
            incumbents.append(machine.run())
        else:
            times[int(label)] = machine.run(batch[int(label)])
    for number, time in times.items():
        seen[number].ratios.append(screening.batch_log_ratio(time, incumbents))
        seen[number].times.append(time)
    return noise.followed_by(incumbents[0], incumbents[1])


def _look(ratios: Sequence[float], scale: float) -> screening.Look:
    if len(ratios) == 1:
        return screening.first_look(ratios[0], scale)
    if len(ratios) == 2:
        return screening.second_look(ratios[0], ratios[1], scale, MARGIN)
    return screening.third_look(ratios[0], ratios[1], ratios[2], scale, MARGIN)


def left_out(machine: Machine, worth: Mapping[str, float], blocks: int) -> dict[str, list[float]]:
    """Leave-one-out: log(time without / time of the stack) of each member, whose log gains simply add up."""
    whole = sum(worth.values())
    programs = {"": Program(whole)} | {name: Program(whole - log) for name, log in worth.items()}
    ratios: dict[str, list[float]] = {name: [] for name in worth}
    for _ in range(blocks):
        order = [list(programs)[i] for i in machine.rng.permutation(len(programs))]
        times = {name: machine.run(programs[name]) for name in order}
        for name in worth:
            ratios[name].append(math.log(times[name] / times[""]))
    return ratios


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

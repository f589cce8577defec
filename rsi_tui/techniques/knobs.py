"""Techniques that are settings: recipes over the contract's knobs, and every other value of every knob.

A knob that is set together with others so that the contract's rules hold changes as few of them as
possible. `setting:NAME=VALUE` is the general family; a recipe with a name of its own covers a value
when it would choose it, and that value is then not listed twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import combinations, product
from math import log

from rsi_tui.contract.model import Contract, Knob, KnobValue, Layer
from rsi_tui.contract.rules import violations
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import faster

SECONDS_PER_FAULT = 2.4e-6
"""a page returned to the system, faulted in and zeroed again: from tcmalloc's saving on two cores of a virtual machine"""
SAVED_OF_FAULTS = 0.8
"""faults that a caching allocator avoids"""
SECONDS_PER_CALL = 6e-6
"""dispatch of one eager operator from Python, forward and backward"""
FAULTS_OF_BATCHING = 1.6
"""factor on page faults by a micro-batch of twice the size, under glibc's allocator"""
MEMORY_OF_BATCHING = 0.45
"""log-ratio of peak memory by a micro-batch of twice the size, where activations dominate"""


def _text(value: KnobValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def equal(a: KnobValue, b: KnobValue) -> bool:
    """Equal values of one type: True is not 1 here."""
    return type(a) is type(b) and a == b


def reach(contract: Contract, current: Mapping[str, KnobValue], name: str, value: KnobValue) -> dict[str, KnobValue]:
    """Knobs to set so that one has a value and every rule holds; {} when there is no such choice.

    Changes at most two other knobs, as few as possible, the first listed values first.
    """
    wanted = {**contract.defaults, **current, name: value}
    others = [k for k in contract.knobs if k.name != name]
    for count in range(3):
        for chosen in combinations(others, count):
            for values in product(*(k.values for k in chosen)):
                trial = {**wanted, **{k.name: v for k, v in zip(chosen, values, strict=True)}}
                if not violations(contract, trial):
                    return {n: v for n, v in trial.items() if not equal(v, current.get(n, contract.defaults[n]))}
    return {}


def value_now(situation: Situation, knob: Knob) -> KnobValue:
    return situation.knobs.get(knob.name, knob.default)


def is_micro_batch(knob: Knob) -> bool:
    """A number of sequences that one forward pass takes: named so in the knob, its flag or its variable."""
    words = f"{knob.name} {knob.flag} {knob.env} {knob.file} {knob.global_}".lower().replace("-", "_")
    return ("micro" in words or "per_device_batch" in words or "batch_size" in words) and all(
        isinstance(v, int) and not isinstance(v, bool) for v in knob.values
    )


def is_allocator(knob: Knob) -> bool:
    return any(word in knob.preload for word in ("malloc", "mimalloc", "hoard"))


def is_bf16(value: KnobValue) -> bool:
    return isinstance(value, str) and value.lower() in ("bf16", "bfloat16", "torch.bfloat16", "amp_bf16", "bf16-mixed")


def is_threads(knob: Knob) -> bool:
    return "thread" in knob.name.lower() or knob.env in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Recipe(ABC):
    """A technique that sets knobs by what they mean; see base.Technique for the attributes."""

    id: str
    title: str
    layer: Layer
    summary: str
    applies_when: str
    risk: str
    source: str
    affects: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @abstractmethod
    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        """The knob to set and its value, None when no knob means this or it is set already."""

    @abstractmethod
    def predict(self, situation: Situation) -> Effect:
        """Expected effect where `apply` is not empty."""

    def apply(self, situation: Situation) -> Change:
        chosen = self.choose(situation)
        return Change(knobs=reach(situation.contract, situation.knobs, *chosen)) if chosen else Change()


def _sizes(situation: Situation, larger: bool) -> list[tuple[str, KnobValue]]:
    """Micro-batches on one side of the present one that the rules allow, nearest first."""
    found: list[tuple[str, KnobValue]] = []
    for knob in situation.contract.knobs:
        if not is_micro_batch(knob):
            continue
        now = value_now(situation, knob)
        beyond = [v for v in knob.values if isinstance(v, int) and isinstance(now, int) and (v > now if larger else v < now)]
        for value in sorted(beyond, reverse=not larger):
            if reach(situation.contract, situation.knobs, knob.name, value):
                found.append((knob.name, value))
    return found


def fault_share(situation: Situation) -> float:
    """Share of the step that goes into page faults; 0 once an allocator knob is on, off the CPU, or not measured."""
    profile = situation.profile
    if profile is None or profile.page_faults_per_step is None or profile.device != "cpu":
        return 0.0
    if any(is_allocator(k) and value_now(situation, k) is True for k in situation.contract.knobs):
        return 0.0
    return min(0.8, profile.page_faults_per_step * SECONDS_PER_FAULT / profile.step_s)


def batching(situation: Situation, doublings: float) -> Effect:
    """Effect of a micro-batch of 2**doublings times the size: fewer calls, larger tensors, more page faults."""
    profile = situation.profile
    calls = sum(o.calls for o in profile.operators) * SECONDS_PER_CALL / profile.step_s if profile else 0.05
    called = min(0.5, calls) * (1 - 2.0**-doublings)
    faulted = fault_share(situation) * (FAULTS_OF_BATCHING**doublings - 1)
    return Effect(log(max(0.3, 1 - called + faulted)), memory_of_batching(situation, doublings))


def memory_of_batching(situation: Situation, doublings: float) -> float:
    """Log-ratio of peak memory: what a step makes grows with the micro-batch, gradients and all else stay."""
    profile = situation.profile
    if profile is None or profile.memory is None or not profile.peak_bytes:
        return doublings * MEMORY_OF_BATCHING
    growing = max(0, profile.memory.activations_bytes - profile.memory.gradients_bytes) / profile.peak_bytes
    return log(max(0.1, 1 + min(0.9, growing) * (2.0**doublings - 1)))


def _doublings(situation: Situation, chosen: tuple[str, KnobValue] | None) -> float:
    if chosen is None:
        return 0.0
    now = value_now(situation, situation.contract.knob(chosen[0]))
    assert isinstance(now, int) and isinstance(chosen[1], int)
    return log(max(1, chosen[1]) / max(1, now), 2)


class LargerMicroBatch(Recipe):
    id = "larger-micro-batch"
    title = "Larger micro-batch"
    layer: Layer = "memory"
    summary = (
        "Takes the next larger micro-batch that the contract's rules allow, with fewer accumulation steps: larger "
        "matrices, fewer calls, one pass over the weights for more sequences. It costs activation memory."
    )
    applies_when = "a knob for the micro-batch has a larger value that the rules allow"
    risk = "Another order of additions; runs out of memory where activations dominate."
    source = "McCandlish et al. 2018, arXiv:1812.06162, for the batch; PyTorch performance tuning guide"
    conflicts: tuple[str, ...] = ("smaller-micro-batch",)

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        return next(iter(_sizes(situation, larger=True)), None)

    def predict(self, situation: Situation) -> Effect:
        return batching(situation, _doublings(situation, self.choose(situation)))


class SmallerMicroBatch(Recipe):
    id = "smaller-micro-batch"
    title = "Smaller micro-batch"
    layer: Layer = "memory"
    summary = (
        "Takes the next smaller micro-batch with more accumulation steps: activations shrink in proportion. Usually "
        "slower by itself, faster where the working set then fits the cache or the allocator stops faulting."
    )
    applies_when = "a knob for the micro-batch has a smaller value that the rules allow"
    risk = "Another order of additions."
    source = "PyTorch performance tuning guide; gradient accumulation"
    conflicts: tuple[str, ...] = ("larger-micro-batch",)

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        return next(iter(_sizes(situation, larger=False)), None)

    def predict(self, situation: Situation) -> Effect:
        return batching(situation, _doublings(situation, self.choose(situation)))


class CachingAllocator(Recipe):
    id = "caching-allocator"
    title = "Caching memory allocator"
    layer: Layer = "memory"
    summary = (
        "Preloads tcmalloc or jemalloc. glibc returns large tensors to the system at once, so that each step faults "
        "every page in again and the kernel zeroes it; a caching allocator keeps them."
    )
    applies_when = "a knob preloads an allocator and is off; worth it with many page faults a step on a CPU"
    risk = "None to the numbers; peak memory can grow by what the allocator keeps."
    source = "PyTorch performance tuning guide, 'Switch memory allocator'"
    conflicts: tuple[str, ...] = ("glibc-keeps-pages",)

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        knobs = [k for k in situation.contract.knobs if is_allocator(k) and True in k.values]
        if any(value_now(situation, k) is True for k in knobs):
            # two allocators in one process do not add up
            return None
        return (knobs[0].name, True) if knobs else None

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None or situation.profile.page_faults_per_step is None:
            return Effect(time=-0.02, memory=0.03)
        return Effect(faster(fault_share(situation), SAVED_OF_FAULTS), memory=0.03, confidence="medium")


class PassiveWaiting(Recipe):
    id = "omp-wait-policy"
    title = "OpenMP threads that wait without spinning"
    layer: Layer = "launch"
    summary = (
        "Sets OMP_WAIT_POLICY=PASSIVE: threads sleep at the end of a parallel region. Spinning threads take the core "
        "from others, which makes a step several times as long beside a busy neighbour."
    )
    applies_when = "a knob sets OMP_WAIT_POLICY or its like and offers PASSIVE"
    risk = "None to the numbers; waking costs a few microseconds a region on an idle machine."
    source = "OpenMP 5.2, section 21.7, OMP_WAIT_POLICY"

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        for knob in situation.contract.knobs:
            if knob.env in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
                wanted = next((v for v in knob.values if str(v).upper() in ("PASSIVE", "0")), None)
                if wanted is not None and not equal(wanted, value_now(situation, knob)):
                    return knob.name, wanted
        return None

    def predict(self, situation: Situation) -> Effect:
        gpu = situation.profile is not None and situation.profile.device != "cpu"
        return Effect(time=0.0 if gpu else -0.01)


class ThreadCount(Recipe):
    id = "thread-count"
    title = "Number of threads"
    layer: Layer = "launch"
    summary = (
        "Sets the number of threads of a process to the number of cores that the launch gives it: fewer leave cores "
        "idle, more take turns on them."
    )
    applies_when = "a knob for the number of threads has a value nearer to the cores of one process"
    risk = "Another split of reductions, about 1e-7 relative in fp32."
    source = "PyTorch documentation, 'CPU threading and TorchScript inference'"

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        cores = max(1, situation.contract.launch.threads)
        for knob in situation.contract.knobs:
            numbers = [v for v in knob.values if str(v).isdigit() and not isinstance(v, bool)]
            if not is_threads(knob) or not numbers:
                continue
            best = min(numbers, key=lambda v: abs(log(max(1, int(v)) / cores)))
            if not equal(best, value_now(situation, knob)):
                return knob.name, best
        return None

    def predict(self, situation: Situation) -> Effect:
        return Effect(time=-0.02)


class Setting:
    """One listed value of one knob."""

    applies_when = "the knob has another value"
    risk = "That of the setting itself: it is one that the contract lists."
    source = "workload.toml"

    def __init__(self, knob: Knob, value: KnobValue) -> None:
        where = knob.flag or knob.env or knob.preload or knob.file or knob.global_
        self._name = knob.name
        self._value = value
        self.id = f"setting:{knob.name}={_text(value)}"
        self.title = f"{knob.name} = {_text(value) or 'unset'}"
        self.layer: Layer = knob.layer
        self.summary = f"Sets {knob.name} ({where}) to {_text(value) or 'nothing'}; the program has the setting already."
        self.affects: tuple[str, ...] = tuple(knob.affects)
        self.conflicts: tuple[str, ...] = tuple(
            f"setting:{knob.name}={_text(v)}" for v in knob.values if not equal(v, value)
        )

    def apply(self, situation: Situation) -> Change:
        try:
            knob = situation.contract.knob(self._name)
        except KeyError:
            return Change()
        if equal(value_now(situation, knob), self._value):
            return Change()
        return Change(knobs=reach(situation.contract, situation.knobs, self._name, self._value))

    def predict(self, situation: Situation) -> Effect:
        """Small and uncertain: what an unknown setting does is to be measured. Known meanings are used."""
        knob = situation.contract.knob(self._name)
        now = value_now(situation, knob)
        if is_micro_batch(knob) and isinstance(now, int) and isinstance(self._value, int) and min(now, self._value) > 0:
            return batching(situation, log(self._value / now, 2))
        return Effect(time=0.0)


def settings(contract: Contract) -> tuple[Setting, ...]:
    """Every value of every knob but the defaults, in the contract's order."""
    return tuple(Setting(k, v) for k in contract.knobs for v in k.values if not equal(v, k.default))

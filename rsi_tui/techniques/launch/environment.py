"""Recipes over knobs that set environment variables of libraries: memory of glibc and torch, places of threads.

They choose by the variable that a knob sets, never by the knob's name; a contract that lists no such
variable offers none of them.
"""

from __future__ import annotations

from math import log

from rsi_tui.contract.model import Knob, KnobValue, Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import faster
from rsi_tui.techniques.knobs import Recipe, equal, fault_share, is_allocator, reach, value_now

GLIBC_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
SAVED_OF_FAULTS = 0.6
"""of page faults: some 8,000 of 14,000 a step by MALLOC_MMAP_MAX_=0 and a high MALLOC_TRIM_THRESHOLD_, small GPT; tcmalloc all"""
SAVED_BY_HUGE_PAGES = 0.5
"""of the time of page faults; 9,500 of 14,000 a step are gone, but larger pages are zeroed in each that stays"""
PINNING_VARIABLES = {"OMP_PROC_BIND": ("close", "true"), "GOMP_CPU_AFFINITY": (), "KMP_AFFINITY": ()}
"""variable -> values preferred, in this order; any set value where none is listed"""


def _other(situation: Situation, knob: Knob) -> KnobValue | None:
    """The first listed value that is set, where the knob is unset now."""
    if value_now(situation, knob) not in ("", False):
        return None
    return next((v for v in knob.values if v not in ("", False)), None)


class GlibcKeepsPages(Recipe):
    id = "glibc-keeps-pages"
    title = "glibc keeps freed memory"
    layer: Layer = "memory"
    summary = (
        "Sets glibc's malloc, by its environment variables, to keep what the program frees: no mapping of its own for "
        "each large tensor, and no trimming of the heap. Pages are touched once and not faulted in again in each step."
    )
    applies_when = "knobs set GLIBC_TUNABLES or MALLOC_..._ variables, and no other allocator is preloaded"
    risk = "None to the numbers; the heap can fragment, so that peak memory grows."
    source = "GNU C library manual, 3.2.3.11 'Malloc Tunable Parameters'; mallopt(3)"
    conflicts: tuple[str, ...] = ("caching-allocator",)

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        return next(iter(self._wanted(situation).items()), None)

    def _wanted(self, situation: Situation) -> dict[str, KnobValue]:
        knobs = situation.contract.knobs
        if any(is_allocator(k) and value_now(situation, k) is True for k in knobs):
            return {}
        found = {k.name: _other(situation, k) for k in knobs if k.env in GLIBC_VARIABLES}
        return {name: value for name, value in found.items() if value is not None}

    def apply(self, situation: Situation) -> Change:
        """All of the variables together: one of them alone switches glibc's own adaptation off."""
        changes: dict[str, KnobValue] = {}
        for name, value in self._wanted(situation).items():
            changes |= reach(situation.contract, {**situation.knobs, **changes}, name, value)
        return Change(knobs=changes)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None or situation.profile.page_faults_per_step is None:
            return Effect(time=-0.01)
        return Effect(faster(fault_share(situation), SAVED_OF_FAULTS))


class HugePages(Recipe):
    id = "huge-pages"
    title = "Huge pages for tensors"
    layer: Layer = "memory"
    summary = (
        "Lets torch ask for transparent huge pages for tensors of 2 MiB and more: one page fault in place of 512, and "
        "fewer misses of the translation buffer."
    )
    applies_when = "a knob sets THP_MEM_ALLOC_ENABLE and the kernel gives huge pages on request"
    risk = "None to the numbers; tensors are rounded up to 2 MiB. Useless under an allocator that keeps its pages."
    source = "PyTorch documentation, 'CPU threading and environment variables', THP_MEM_ALLOC_ENABLE; Linux transhuge.rst"

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        for knob in situation.contract.knobs:
            if knob.env == "THP_MEM_ALLOC_ENABLE" and (wanted := _other(situation, knob)) is not None:
                return knob.name, wanted
        return None

    def predict(self, situation: Situation) -> Effect:
        return Effect(faster(fault_share(situation), SAVED_BY_HUGE_PAGES))


class ExpandableSegments(Recipe):
    id = "cuda-expandable-segments"
    title = "Expandable segments of GPU memory"
    layer: Layer = "memory"
    summary = (
        "Lets torch's allocator grow a segment of GPU memory in place rather than ask for a new one, so that tensors "
        "whose sizes vary leave fewer holes. It makes room for larger micro-batches where memory is fragmented."
    )
    applies_when = "a knob sets PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF and offers expandable_segments:True"
    risk = "None to the numbers."
    source = "PyTorch documentation, 'CUDA semantics', PYTORCH_CUDA_ALLOC_CONF"

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        for knob in situation.contract.knobs:
            if knob.env in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
                wanted = next((v for v in knob.values if "expandable_segments:true" in str(v).lower()), None)
                if wanted is not None and not equal(wanted, value_now(situation, knob)):
                    return knob.name, wanted
        return None

    def predict(self, situation: Situation) -> Effect:
        on_cpu = situation.profile is not None and situation.profile.device == "cpu"
        return Effect(time=0.0, memory=0.0 if on_cpu else log(0.97))


class PinThreads(Recipe):
    id = "pin-threads"
    title = "Threads bound to cores"
    layer: Layer = "launch"
    summary = (
        "Binds OpenMP's threads to cores by OMP_PROC_BIND or its like, so that the system does not move them away from "
        "their caches and memory. It pays with many cores or several memory nodes."
    )
    applies_when = "a knob sets OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY and is unset"
    risk = "None to the numbers; beside another busy process a bound thread can't move out of its way."
    source = "OpenMP 5.2, section 21.2, OMP_PROC_BIND; PyTorch performance tuning guide"

    def choose(self, situation: Situation) -> tuple[str, KnobValue] | None:
        for knob in situation.contract.knobs:
            if knob.env not in PINNING_VARIABLES or _other(situation, knob) is None:
                continue
            preferred = [v for p in PINNING_VARIABLES[knob.env] for v in knob.values if str(v).lower() == p]
            return knob.name, preferred[0] if preferred else _other(situation, knob) or ""
        return None

    def predict(self, situation: Situation) -> Effect:
        many = situation.contract.launch.threads > 8 and (situation.profile is None or situation.profile.device == "cpu")
        return Effect(time=-0.02 if many else 0.0)

"""Memory of a process tree on the GPUs, by NVML, from outside the process.

NVML says how much of each GPU every process holds now: its context, and all that the framework's allocator
has reserved, used or not. That is sampled, so what comes and goes between two looks is missed; where
accounting mode is on (`nvidia-smi -am 1`, as root), the driver's own high-water mark of each process is
read besides, and nothing is missed. The figure is the highest on any one GPU, since that is the one that
runs out. It is marked 'nvml', limits nothing and proves no saving.

The driver may number processes otherwise than we do (in a container with its own process ids) or name none.
Then what the GPUs hold beyond what they held before the start stands for the tree, others included, and a
flag says so.

This was written to NVML's documentation and tested against a stand-in for its library; it has not been run on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any, Protocol

FLAG_WHOLE_DEVICE = "GPU memory: of the whole device beyond its state at the start, because the driver names no process of the run"


class Nvml(Protocol):
    """What is used of NVML; `pynvml` (the package nvidia-ml-py) has these functions."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[Any]: ...
    def nvmlDeviceGetAccountingMode(self, handle: Any) -> int: ...
    def nvmlDeviceGetAccountingStats(self, handle: Any, pid: int) -> Any: ...


class GpuMemory:
    """Follows one process tree on all GPUs; `close` when it has ended."""

    interval_s = 0.1

    def __init__(self, library: Nvml | ModuleType, errors: type[Exception]) -> None:
        """`library`: pynvml, or something with its functions; `errors`: what it raises. Raises them itself."""
        self._nvml: Any = library
        self._errors = errors
        self._nvml.nvmlInit()
        self._gpus = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        self._before = [self._used(gpu) for gpu in self._gpus]
        self._named: dict[int, set[int]] = {}
        """GPU -> processes of the tree that the driver named there"""
        self._own: int | None = None
        self._whole: int | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        return (FLAG_WHOLE_DEVICE,) if self._own is None and self._whole else ()

    def sample(self, pids: Collection[int]) -> None:
        """Look once at what these processes hold."""
        for number, gpu in enumerate(self._gpus):
            with contextlib.suppress(self._errors):
                self._whole = max(self._whole or 0, self._used(gpu) - self._before[number])
                found = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
                held = {p.pid: p.usedGpuMemory for p in found if p.pid in pids and p.usedGpuMemory is not None}
                if held:
                    self._named.setdefault(number, set()).update(held)
                    self._own = max(self._own or 0, sum(held.values()))

    def close(self) -> None:
        """Read the driver's own marks where it keeps them, and let go of the library."""
        for number, pids in self._named.items():
            for pid in pids:
                with contextlib.suppress(self._errors):
                    if self._nvml.nvmlDeviceGetAccountingMode(self._gpus[number]):
                        mark = self._nvml.nvmlDeviceGetAccountingStats(self._gpus[number], pid).maxMemoryUsage
                        self._own = max(self._own or 0, mark or 0)
        with contextlib.suppress(self._errors):
            self._nvml.nvmlShutdown()

    def peak(self) -> int | None:
        """Highest memory of the tree on any one GPU, bytes; None when nothing was to be seen."""
        return self._own if self._own is not None else (self._whole or None)

    def _used(self, gpu: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used)


def open_gpu_memory() -> GpuMemory | None:
    """Follow a tree that is about to start; None where there is no NVML or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return GpuMemory(pynvml, pynvml.NVMLError)
    except pynvml.NVMLError:
        return None

"""Reading the GPU's counters through a stand-in for NVML's library: this was not run on a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rsi_tui.launch import gpu_memory, local
from rsi_tui.launch.gpu_memory import FLAG_WHOLE_DEVICE, GpuMemory
from rsi_tui.launch.local import LocalLauncher
from tests.launch.conftest import needs_sandbox, shell

GIB = 2**30


class Refused(Exception):
    """What the library raises."""


class Driver:
    """Two GPUs whose processes a test sets; the functions are those of pynvml."""

    def __init__(self) -> None:
        self.held: list[dict[int, int | None]] = [{}, {}]
        """by GPU: process -> bytes"""
        self.others = [GIB, GIB]
        """what is held besides"""
        self.marks: dict[int, int] = {}
        """process -> high-water mark, with accounting on"""
        self.broken = False
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.held)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.broken:
            raise Refused
        return SimpleNamespace(used=self.others[handle] + sum(size or 0 for size in self.held[handle].values()))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.held[handle].items()]

    def nvmlDeviceGetAccountingMode(self, handle: int) -> int:
        return int(bool(self.marks))

    def nvmlDeviceGetAccountingStats(self, handle: int, pid: int) -> SimpleNamespace:
        if pid not in self.marks:
            raise Refused
        return SimpleNamespace(maxMemoryUsage=self.marks[pid])


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_peak_is_that_of_the_tree_on_the_fullest_gpu(driver: Driver) -> None:
    followed = GpuMemory(driver, Refused)
    driver.held = [{10: 2 * GIB, 11: GIB, 99: 50 * GIB}, {10: 2 * GIB}]
    followed.sample({10, 11})
    driver.held = [{10: GIB}, {10: GIB}]
    followed.sample({10, 11})
    followed.close()
    assert (followed.peak(), followed.flags, driver.open) == (3 * GIB, (), 0)


def test_accounting_finds_what_came_and_went_between_two_looks(driver: Driver) -> None:
    followed = GpuMemory(driver, Refused)
    driver.held[1] = {10: 2 * GIB}
    followed.sample({10})
    driver.marks = {10: 7 * GIB}
    followed.close()
    assert followed.peak() == 7 * GIB


def test_where_no_process_is_named_the_device_stands_for_the_tree_and_that_is_said(driver: Driver) -> None:
    followed = GpuMemory(driver, Refused)
    driver.held[0] = {4321: 5 * GIB}
    followed.sample({10})
    assert (followed.peak(), followed.flags) == (5 * GIB, (FLAG_WHOLE_DEVICE,))


def test_a_program_that_never_touches_a_gpu_has_no_peak(driver: Driver) -> None:
    followed = GpuMemory(driver, Refused)
    followed.sample({10})
    assert (followed.peak(), followed.flags) == (None, ())


def test_a_driver_that_fails_while_it_is_asked_ends_no_trial(driver: Driver) -> None:
    followed = GpuMemory(driver, Refused)
    driver.broken = True
    followed.sample({10})
    followed.close()
    assert followed.peak() is None


class EverybodyHolds(Driver):
    """Every process of this machine holds a gibibyte of the first GPU."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in pids if handle == 0]


@needs_sandbox
def test_only_a_run_that_asks_for_gpus_is_followed_and_only_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = EverybodyHolds()
    monkeypatch.setattr(local, "open_gpu_memory", lambda: GpuMemory(crowd, Refused))
    plain = LocalLauncher().run(shell("sleep 0.3"))
    assert (plain.gpu_peak_bytes, plain.gpu_memory_source) == (None, "")
    run = LocalLauncher().run(shell("sleep 0.5", gpus=True))
    assert run.gpu_peak_bytes is not None and GIB <= run.gpu_peak_bytes <= 5 * GIB
    assert (run.gpu_memory_source, run.flags, crowd.open) == ("nvml", (), 0)


@needs_sandbox
def test_without_a_driver_the_memory_of_gpus_is_not_known() -> None:
    if gpu_memory.open_gpu_memory() is not None:
        pytest.skip("there is a driver here")
    run = LocalLauncher().run(shell("true", gpus=True))
    assert (run.gpu_peak_bytes, run.gpu_memory_source) == (None, "none")

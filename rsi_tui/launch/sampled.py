"""Memory of a process tree by looking, where no cgroup is to be had.

Descendants are found through /proc, and remembered once seen, so that a child that detaches itself
between two looks is still ours. Shared memory is counted once per process that maps it, so the
figure is an upper estimate at the moment of the look and blind between looks; before a tree is
ended for it, the proportional figure of the kernel (smaps_rollup) has to agree. Files in memory that
nobody maps (memfd, the sandbox's own /tmp and /dev/shm) are found through descriptors and file systems.
Buffers of the kernel, such as those of sockets, belong to nobody that can be asked: where the tree holds sockets, what
the kernel's own memory grew by since the tree began counts as theirs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import psutil

_PARTS = re.compile(r"^(?:RssAnon|RssShmem|VmSwap|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)
_PSS = re.compile(r"^(?:Pss_Anon|SwapPss|Private_Hugetlb|Shared_Hugetlb):\s+(\d+) kB$", re.MULTILINE)
_PSS_SHARED = re.compile(r"^Pss_Shmem:\s+(\d+) kB$", re.MULTILINE)
_MEMINFO = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_FILES_EVERY_S = 0.5
"""looking through descriptors costs more than a sample"""


class SampledGroup:
    """A tree known by its root process."""

    source: Literal["sampled"] = "sampled"
    interval_s = 0.1
    flags: tuple[str, ...] = ()

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self._peak: int | None = None
        self._files = self._kernel = 0
        self._next_files = 0.0
        self._kernel_before = _kernel_memory()
        self._seen: dict[int, float] = {}
        """pid -> creation time, so that a reused pid is not taken for ours"""

    def attach(self, pid: int) -> None:
        self._seen[pid] = _created(pid)

    def sample(self) -> bool:
        pids = self._members()
        if time.monotonic() >= self._next_files:
            self._next_files = time.monotonic() + _FILES_EVERY_S
            self._files, sockets = _files_in_memory(pids)
            self._kernel = max(0, _kernel_memory() - self._kernel_before) if sockets else 0
        total = sum(_kib(pid, "status", _PARTS) for pid in pids) * 1024 + self._files + self._kernel
        self._peak = max(self._peak or 0, total)
        if not self.limit or total <= self.limit:
            return False
        proportional = sum(_kib(pid, "smaps_rollup", _PSS) for pid in pids) * 1024
        shared = sum(_kib(pid, "smaps_rollup", _PSS_SHARED) for pid in pids) * 1024
        # A file may be mapped as well: it is not to be counted twice where a tree is ended for it.
        proportional += max(shared, self._files) + self._kernel
        return proportional == 0 or proportional > self.limit

    def peak(self) -> int | None:
        return self._peak

    def oom_killed(self) -> bool:
        return False

    def cpu_s(self) -> float | None:
        return None

    def kill(self) -> None:
        until = time.monotonic() + 5.0
        while (pids := self._members()) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def remove(self) -> None:
        self.kill()

    def pids(self) -> set[int]:
        return set(self._members())

    def _members(self) -> list[int]:
        """Everything seen that still lives, and its descendants."""
        alive = [pid for pid, created in self._seen.items() if _runs(pid) and _created(pid) == created]
        members = dict.fromkeys(alive)
        queue = list(alive)
        while queue:
            for child in _children(queue.pop()):
                if child not in members:
                    members[child] = None
                    queue.append(child)
        self._seen = {pid: self._seen.get(pid) or _created(pid) for pid in members}
        return [pid for pid in members if _runs(pid)]


def _children(pid: int) -> Iterable[int]:
    with contextlib.suppress(OSError):
        found: list[int] = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
        return found
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return ()


def _files_in_memory(pids: Iterable[int]) -> tuple[int, bool]:
    """(bytes of memfds that processes hold, and of the file systems in memory that are theirs alone; do they hold sockets?)."""
    held: dict[tuple[int, int], int] = {}
    sockets = False
    mounts: dict[int, int] = {}  # the same for every process of a sandbox: one that shows them is enough
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    what = os.readlink(entry.path)  # noqa: PTH115 - hundreds of times
                    sockets = sockets or what.startswith("socket:")
                    if what.startswith("/memfd:"):
                        seen = entry.stat()
                        held[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
        for place in () if mounts else ("/tmp", "/dev/shm"):
            with contextlib.suppress(OSError):
                inside = Path(f"/proc/{pid}/root{place}")
                device = inside.stat().st_dev
                if device != Path(place).stat().st_dev and _in_memory(pid, place):
                    room = os.statvfs(inside)
                    mounts[device] = (room.f_blocks - room.f_bfree) * room.f_frsize
    return sum(held.values()) + sum(mounts.values()), sockets


def _kernel_memory() -> int:
    """Bytes of this machine's memory that are neither free, nor of files, nor of processes; what can be taken back apart."""
    fields = dict(_MEMINFO.findall(Path("/proc/meminfo").read_text()))
    others = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
    return (int(fields["MemTotal"]) - sum(int(fields.get(name, 0)) for name in others)) * 1024


def _in_memory(pid: int, place: str) -> bool:
    """Is a tmpfs mounted there, in the process's own view?"""
    fields = (line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines())
    return any(f[1] == place and f[2] == "tmpfs" for f in fields)


def _fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command's name; [] when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _created(pid: int) -> float:
    fields = _fields(pid)
    return float(fields[19]) if fields else -1.0


def _runs(pid: int) -> bool:
    fields = _fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def _kib(pid: int, name: str, pattern: re.Pattern[str]) -> int:
    try:
        return sum(map(int, pattern.findall(Path(f"/proc/{pid}/{name}").read_text())))
    except OSError:
        return 0

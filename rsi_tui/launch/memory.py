"""One group per process tree: limits, peak of anonymous + shared memory, CPU time, and the end of all of it.

`open_group` gives the best that this machine allows:

- cgroup v2 (delegated, or root): memory.max with memory.swap.max = 0, huge pages 0 and memory.oom.group;
- cgroup v1 (writable for root, as a rule): memory.limit_in_bytes, memsw, swappiness 0, huge pages 0;
- neither: anonymous + shared RSS of the tree, sampled; the launcher kills a tree that is over its
  limit. Marked `sampled`; not good enough for a memory claim, and the limit on processes is left to
  RLIMIT_NPROC.

Peak. The kernel's own high-water marks include page cache, which a program that reads a big file
fills without needing it. So anonymous + shared memory is sampled, and between two samples the
high-water mark, set back at each sample, speaks for what was missed: anonymous + shared memory had
reached at least mark - page cache - kernel memory, each of the two taken at its larger end. That finds
spikes of a millisecond, never counts page cache, and is short of the truth only by what the cache
changed within one sample (some, when a short spike pushes the cache out). Without a mark that can be
set back (v2 before Linux 6.12) samples alone count. A memory claim therefore is proven by running
under the limit that is claimed. Where this machine has swap, or a pool of huge pages, and its controllers
could not be told to leave it alone, the group says so (`flags`): such runs prove no saving.

Groups are named rsi-ENGINE_PID-START-N, with the engine's start in ticks since boot, because numbers of processes are
used again; `reclaim` ends what a dead engine left behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rsi_tui.journal.chain import process_start
from rsi_tui.launch.sampled import SampledGroup
from rsi_tui.launch.spec import LaunchSpec

_COUNTER = itertools.count(1)
_NAME = re.compile(r"rsi-(\d+)(?:-(\d+))?-\d+")
_KILL_WAIT_S = 10.0
_MEMINFO, _HUGE_PAGES = Path("/proc/meminfo"), Path("/sys/kernel/mm/hugepages")
_BATCH = 64 * os.sysconf("SC_PAGE_SIZE")
"""memory that the kernel may charge ahead of use, per CPU (MEMCG_CHARGE_BATCH)"""
_OVERHEAD_PROCESSES = 2
"""bubblewrap and the first process of its namespace"""
FLAG_UNHELD = "memory: "
"""start of a flag that names memory which the limit of the run did not hold"""
NO_SWAP_LIMIT = FLAG_UNHELD + "this machine has swap, and the controller could not keep the run out of it"
NO_HUGE_LIMIT = FLAG_UNHELD + "this machine has a pool of huge pages, which the limit does not count"


class Group(Protocol):
    """What holds one process tree."""

    @property
    def source(self) -> Literal["cgroup2", "cgroup1", "sampled", "none"]:
        """What measures."""

    interval_s: float
    """how often `sample` wants to be called"""
    flags: tuple[str, ...]
    """what of the limit could not be set here"""

    def pids(self) -> set[int]:
        """Processes of the tree that live now."""

    def attach(self, pid: int) -> None:
        """Take a process in; its children follow."""

    def sample(self) -> bool:
        """Look once; True when the tree is out of memory and must end."""

    def peak(self) -> int | None:
        """Highest anonymous + shared memory so far, bytes."""

    def oom_killed(self) -> bool:
        """Did the memory controller kill a process of the tree?"""

    def cpu_s(self) -> float | None:
        """CPU seconds of the tree so far; None when only rusage knows."""

    def kill(self) -> None:
        """End every process of the tree, and wait until they are gone."""

    def remove(self) -> None:
        """Kill what is left and take the group away."""


@dataclass(frozen=True)
class Controllers:
    """Where groups can be made on this machine."""

    kind: Literal["cgroup2", "cgroup1", "none"]
    parents: tuple[tuple[str, Path], ...] = ()
    """controller -> folder that may hold our groups; for v2 one entry, 'unified'"""
    why_not: str = ""
    """when kind is 'none': why, and how to mend it"""

    def parent(self, controller: str) -> Path | None:
        return dict(self.parents).get(controller)


def find_controllers() -> Controllers:
    """Look for a memory controller that we may use: v2 first, then v1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = _own_paths()
    for fields in mounts:
        if fields[2] == "cgroup2" and (parent := _delegated(Path(fields[1]), own.get("", "/"))):
            return Controllers("cgroup2", (("unified", parent),))
    parents: list[tuple[str, Path]] = []
    for fields in mounts:
        if fields[2] == "cgroup":
            for name in {"memory", "pids", "cpuacct", "cpuset", "hugetlb"} & set(fields[3].split(",")):
                if folder := _writable_v1(Path(fields[1]), own.get(name, "/")):
                    parents.append((name, folder))
    if any(name == "memory" for name, _ in parents):
        return Controllers("cgroup1", tuple(parents))
    return Controllers("none", (), _why_none(any(f[2] in ("cgroup", "cgroup2") for f in mounts)))


def _own_paths() -> dict[str, str]:
    """Controller -> path of this process's cgroup; '' for v2."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _why_none(any_mount: bool) -> str:
    if not any_mount:
        return "no cgroup file system is mounted; mount one, or start the container with one."
    if os.geteuid() == 0:
        return "no memory controller is writable; start the container with a writable cgroup (docker: --cgroupns=private, --privileged)."
    return "no cgroup is delegated to you; start rsi with: systemd-run --user --scope -p Delegate=yes rsi ..."


def _writable_v1(mount: Path, own: str) -> Path | None:
    """The cgroup of this process, so that limits above it keep holding, else the root of the mount."""
    for folder in (mount / own.lstrip("/"), mount):
        if os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
            return folder
    return None


def _delegated(mount: Path, own: str) -> Path | None:
    """The nearest folder at or above our own cgroup whose children get memory limits and which is ours to use."""
    here = mount / own.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(mount) or not os.access(folder / "cgroup.procs", os.W_OK):
            return None
        if os.access(folder, os.W_OK) and _enables_memory(folder):
            return folder
    return None


def _enables_memory(folder: Path) -> bool:
    control = folder / "cgroup.subtree_control"
    wanted = {"memory", "pids", "cpuset", "hugetlb"} & set(_text(folder / "cgroup.controllers").split())
    for name in wanted - set(_text(control).split()):
        # Refused where the folder holds processes itself: then a parent must do.
        _write(control, f"+{name}")
    return "memory" in _text(control).split()


def open_group(spec: LaunchSpec, controllers: Controllers | None = None) -> Group:
    """A new group with the limits of `spec`, as good as this machine has it."""
    found = controllers or find_controllers()
    name = f"rsi-{os.getpid()}-{process_start(os.getpid())}-{next(_COUNTER)}"
    try:
        if found.kind == "cgroup2":
            return CgroupV2(found, name, spec)
        if found.kind == "cgroup1":
            return CgroupV1(found, name, spec)
    except OSError:
        # Listed as writable and refused all the same (read-only mount, limits of the host): sample instead.
        for _, parent in found.parents:
            with contextlib.suppress(OSError):
                (parent / name).rmdir()
    return SampledGroup(spec.memory_limit_bytes)


class _Cgroup:
    """What v1 and v2 share: folders, membership, the peak from samples and high-water marks."""

    interval_s = 0.025

    def __init__(self, folders: dict[str, Path], spec: LaunchSpec) -> None:
        for folder in set(folders.values()):
            folder.mkdir()
        self.folders = folders
        self.limit = spec.memory_limit_bytes
        self.flags: tuple[str, ...] = ()
        self._peak: int | None = None
        self._noncache = (0, 0)
        self._slack = _BATCH * (len(spec.cores) or len(os.sched_getaffinity(0)))

    def attach(self, pid: int) -> None:
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def peak(self) -> int | None:
        return self._peak

    def sample(self) -> bool:
        """One look at anonymous, shared, cached and kernel memory, and at the mark since the last look."""
        try:
            needed, cache, kernel = self._usage()
            mark = self._mark()
        except (OSError, ValueError, KeyError):
            return False
        old_cache, old_kernel = self._noncache
        self._noncache = (cache, kernel)
        missed = mark - max(cache, old_cache) - max(kernel, old_kernel) - self._slack if mark is not None else 0
        self._peak = max(self._peak or 0, needed, missed)
        near = self.limit and (mark is None or mark >= 0.9 * self.limit)
        return bool(near) and self.oom_killed()

    def _hold(self, no_swap: bool, no_huge_pages: bool) -> None:
        """Note what the limit, where there is one, could not be made to hold."""
        holes = ((no_swap, _has_swap, NO_SWAP_LIMIT), (no_huge_pages, _has_huge_pages, NO_HUGE_LIMIT))
        self.flags = tuple(flag for held, present, flag in holes if self.limit and not held and present())

    def kill(self) -> None:
        """SIGKILL to every member until none is left; new ones can't be made meanwhile."""
        self._stop_forks()
        until = time.monotonic() + _KILL_WAIT_S
        while (pids := self.pids()) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def remove(self) -> None:
        if self.pids():
            self.kill()
        for folder in set(self.folders.values()):
            remove_folder(folder)

    def pids(self) -> set[int]:
        found: set[int] = set()
        for folder in set(self.folders.values()):
            found.update(int(pid) for pid in _text(folder / "cgroup.procs").split())
        # 0 stands for a process of another pid namespace, which is not ours.
        return found - {0}

    def oom_killed(self) -> bool:
        raise NotImplementedError

    def _usage(self) -> tuple[int, int, int]:
        """(anonymous + shared + swapped, page cache without shared, kernel), bytes."""
        raise NotImplementedError

    def _mark(self) -> int | None:
        """High-water mark of all charges since the last call, which sets it back; None when it can't be."""
        raise NotImplementedError

    def _stop_forks(self) -> None:
        raise NotImplementedError


class CgroupV1(_Cgroup):
    """One folder in each v1 hierarchy that we may write."""

    source: Literal["cgroup1"] = "cgroup1"

    def __init__(self, found: Controllers, name: str, spec: LaunchSpec) -> None:
        super().__init__({controller: parent / name for controller, parent in found.parents}, spec)
        memory = self.folders["memory"]
        if self.limit:
            (memory / "memory.limit_in_bytes").write_text(str(self.limit))
            counted = _write(memory / "memory.memsw.limit_in_bytes", str(self.limit))
            # For its own limit v1 takes swappiness 0 strictly; a limit on memory and swap together does as well.
            no_swap = _write(memory / "memory.swappiness", "0") or counted
            self._hold(no_swap, _no_huge_pages(self.folders.get("hugetlb"), "hugetlb.*.limit_in_bytes"))
        if pids := self.folders.get("pids"):
            (pids / "pids.max").write_text(str(spec.max_processes + _OVERHEAD_PROCESSES))
        if cpuset := self.folders.get("cpuset"):
            _fill_cpuset(cpuset, spec.cores)
        self._stat = memory / "memory.stat"

    def _usage(self) -> tuple[int, int, int]:
        stat = _table(self._stat)
        needed = stat["total_rss"] + stat["total_shmem"] + stat.get("total_swap", 0)
        kernel = int(_text(self.folders["memory"] / "memory.kmem.usage_in_bytes") or 0)
        return needed, stat["total_cache"] - stat["total_shmem"], kernel

    def _mark(self) -> int | None:
        path = self.folders["memory"] / "memory.max_usage_in_bytes"
        mark = int(path.read_text())
        path.write_text("0")
        return mark

    def oom_killed(self) -> bool:
        return _table(self.folders["memory"] / "memory.oom_control").get("oom_kill", 0) > 0

    def cpu_s(self) -> float | None:
        folder = self.folders.get("cpuacct")
        return int(_text(folder / "cpuacct.usage") or 0) / 1e9 if folder else None

    def _stop_forks(self) -> None:
        if pids := self.folders.get("pids"):
            _write(pids / "pids.max", "0")


class CgroupV2(_Cgroup):
    """One folder of the unified hierarchy."""

    source: Literal["cgroup2"] = "cgroup2"

    def __init__(self, found: Controllers, name: str, spec: LaunchSpec) -> None:
        self.folder = dict(found.parents)["unified"] / name
        super().__init__({"unified": self.folder}, spec)
        if self.limit:
            (self.folder / "memory.max").write_text(str(self.limit))
            no_swap = _write(self.folder / "memory.swap.max", "0")
            self._hold(no_swap, _no_huge_pages(self.folder, "hugetlb.*.max"))
        _write(self.folder / "memory.oom.group", "1")
        _write(self.folder / "pids.max", str(spec.max_processes + _OVERHEAD_PROCESSES))
        if spec.cores:
            _write(self.folder / "cpuset.cpus", ",".join(map(str, spec.cores)))
        self._peak_fd = _open_mark(self.folder / "memory.peak")
        if self._peak_fd is None:
            self.interval_s = 0.02

    def _usage(self) -> tuple[int, int, int]:
        stat = _table(self.folder / "memory.stat")
        swap = int(_text(self.folder / "memory.swap.current") or 0)
        kernel = stat.get("kernel", 0) + stat.get("sock", 0)
        return stat["anon"] + stat["shmem"] + swap, stat["file"] - stat["shmem"], kernel

    def _mark(self) -> int | None:
        if self._peak_fd is None:
            return None
        mark = int(os.pread(self._peak_fd, 64, 0))
        os.pwrite(self._peak_fd, b"0", 0)
        return mark

    def oom_killed(self) -> bool:
        return _table(self.folder / "memory.events").get("oom_kill", 0) > 0

    def cpu_s(self) -> float | None:
        usage = _table(self.folder / "cpu.stat").get("usage_usec")
        return None if usage is None else usage / 1e6

    def kill(self) -> None:
        _write(self.folder / "cgroup.kill", "1")
        super().kill()

    def remove(self) -> None:
        if self._peak_fd is not None:
            os.close(self._peak_fd)
            self._peak_fd = None
        super().remove()

    def _stop_forks(self) -> None:
        _write(self.folder / "pids.max", "0")


def _open_mark(path: Path) -> int | None:
    """memory.peak opened so that it can be set back through this descriptor (Linux 6.12), else None."""
    fd = None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.pwrite(fd, b"0", 0)
    except OSError:
        if fd is not None:
            os.close(fd)
        return None
    return fd


def _fill_cpuset(folder: Path, cores: tuple[int, ...]) -> None:
    """A v1 cpuset takes no process before both of its lists are written."""
    (folder / "cpuset.mems").write_text(_text(folder.parent / "cpuset.mems"))
    (folder / "cpuset.cpus").write_text(",".join(map(str, cores)) or _text(folder.parent / "cpuset.cpus"))


def reclaim(controllers: Controllers | None = None) -> tuple[str, ...]:
    """End and remove the groups whose engine is dead; their names. Groups of other pid namespaces stay."""
    found = controllers or find_controllers()
    gone: dict[str, None] = {}
    for folder, engine, start in _our_groups({parent for _, parent in found.parents}):
        pids = [int(pid) for pid in _text(folder / "cgroup.procs").split()]
        if _engine_lives(engine, start) or 0 in pids:
            continue
        for _ in range(200):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pids = [int(pid) for pid in _text(folder / "cgroup.procs").split()]
            if not pids:
                break
            time.sleep(0.01)
        remove_folder(folder)
        gone[folder.name] = None
    return tuple(gone)


def _our_groups(parents: set[Path]) -> Iterator[tuple[Path, int, str]]:
    """(group, PID and start of its engine) beside the places where we would make one, and below the mounts' roots."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = {Path(m) for m in mounts if any(p.is_relative_to(m) for p in parents) and m != "/"}
    cgroup_roots = {root for root in roots if (root / "cgroup.procs").exists()} or parents
    for root in cgroup_roots:
        for folder, _, _ in os.walk(root, topdown=False):
            if name := _NAME.fullmatch(Path(folder).name):
                yield Path(folder), int(name[1]), name[2] or ""


def _engine_lives(pid: int, start: str) -> bool:
    """Does the process that made a group live? Another one with its number is not it; a start of '' is unknown."""
    found = process_start(pid)
    if found:
        return start in ("", found)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's, hidden from us
    except ProcessLookupError:
        pass
    return False


def remove_folder(folder: Path) -> None:
    """Remove a cgroup; members that are just exiting are waited for, up to a second."""
    for _ in range(200):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.005)
        else:
            return


def _table(path: Path) -> dict[str, int]:
    """'name value' lines of a kernel file."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _write(path: Path, value: str) -> bool:
    """Write where the file exists and lets us; a missing control is a weaker guarantee, not a fault."""
    if not path.exists():
        return False  # never to be created, where this is no control file
    try:
        path.write_text(value)
    except OSError:
        return False
    return True


def _no_huge_pages(folder: Path | None, pattern: str) -> bool:
    """Set every size's limit in this folder to zero; False when there is none, or one can't be set."""
    limits = folder.glob(pattern) if folder is not None else ()
    set_ = [_write(limit, "0") for limit in limits]
    return bool(set_) and all(set_)


def _has_swap() -> bool:
    return any(line.startswith("SwapTotal:") and line.split()[1] != "0" for line in _text(_MEMINFO).splitlines())


def _has_huge_pages() -> bool:
    """Is there a pool that any user can map pages of, or may one grow?"""
    names = ("nr_hugepages", "nr_overcommit_hugepages")
    return any(_text(size / name) not in ("", "0") for size in _HUGE_PAGES.glob("hugepages-*") for name in names)

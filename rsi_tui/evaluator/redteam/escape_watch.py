"""Watches the processes of an attempt from outside: what they became, opened, joined. Reads /proc; changes nothing.

Processes are known by a mark in the environment that their trial was started with, whatever they do later. The first
process of the sandbox, which is the launcher's own, is what the others are compared with.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from rsi_tui.launch.syscalls import numbers

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
_OPENED = re.compile(r"anon_inode:.*(?:perf|io_uring|userfault|bpf|fanotify|secretmem)|/dev/(?!null|zero|full|random|urandom"
                     r"|tty|pts|ptmx|shm)|/proc/(?:kcore|kmsg|sysrq|kpage)|/sys/")  # fmt: skip
_LOOK_S = 0.03
_MOST = 40
"""processes that one look reads in full"""
_REAL_TIME = (1, 2, 6)
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}


def marked(mark: str) -> list[int]:
    """Processes that were started with the mark in their environment and still run."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone, hundreds of times
        if name.isdigit() and mark.encode() in _bytes(f"/proc/{name}/environ"):
            found.append(int(name))
    return found


class Watch:
    """A thread that looks at an attempt's processes until it is closed."""

    def __init__(self, mark: str, disk: Path, most_processes: int) -> None:
        self.traces: dict[str, None] = {}
        self.looks = 0
        self.disk_used_bytes = 0
        self._mark, self._disk, self._most = mark, disk, most_processes
        self._free = shutil.disk_usage(disk).free
        self._first: dict[str, object] = {}
        self._once: set[tuple[int, str]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _go(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.disk_used_bytes = max(self.disk_used_bytes, self._free - shutil.disk_usage(self._disk).free)
            pids = marked(self._mark)
            self.looks += bool(pids)
            if len(pids) > self._most:
                self.traces[f"{len(pids)} processes at once"] = None
            for pid in sorted(pids)[:_MOST]:
                with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                    self.traces.update(dict.fromkeys(self._look(pid)))

    def _look(self, pid: int) -> Iterator[str]:
        status = dict(line.split(":", 1) for line in _text(f"/proc/{pid}/status").splitlines() if ":" in line)
        now = _facts(pid)
        if status["NSpid"].split()[-1:] == ["1"]:
            self._first = self._first or now
        elif self._first:
            for name in now:
                # A process that is ending has left its groups and namespaces: only what is seen twice counts.
                if now[name] and now[name] != self._first[name]:
                    if (pid, name) in self._once:
                        yield f"has {name} other than its sandbox's"
                    self._once.add((pid, name))
        yield from _powers(status)
        yield from _places(pid)
        yield from _precedence(pid)


def _facts(pid: int) -> dict[str, object]:
    """What is the same for every process of a sandbox."""
    facts: dict[str, object] = {f"a {kind} namespace": _link(f"/proc/{pid}/ns/{kind}") for kind in _NAMESPACES}
    lines = (line.split() for line in _text(f"/proc/{pid}/mountinfo").splitlines())
    facts["mounts"] = [(*fields[:4], fields[5]) for fields in lines]  # not where: a folder may be renamed around one
    facts["control groups"] = _text(f"/proc/{pid}/cgroup")
    facts["a root folder"] = _link(f"/proc/{pid}/root")
    facts["ids"] = re.findall(r"^[UG]id:.*", _text(f"/proc/{pid}/status"), re.MULTILINE)
    facts["a protection from memory shortage"] = min(int(_text(f"/proc/{pid}/oom_score_adj")), 0)
    return facts


def _powers(status: dict[str, str]) -> Iterator[str]:
    if any(int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh")):
        yield "has capabilities"
    if status["NoNewPrivs"].strip() != "1":
        yield "may gain privileges"


def _places(pid: int) -> Iterator[str]:
    own = os.getpid()
    for kind in _NAMESPACES[:-1]:
        if _link(f"/proc/{pid}/ns/{kind}") == _link(f"/proc/{own}/ns/{kind}"):
            yield f"is in our {kind} namespace"
    for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - as above
        target = _link(f"/proc/{pid}/fd/{name}")
        writes = re.search(r"flags:\s*0\d*[12]\b", _text(f"/proc/{pid}/fdinfo/{name}"))
        if _OPENED.match(target) or (writes and re.match(r"/proc/", target)):
            yield f"opened {target}"


def _precedence(pid: int) -> Iterator[str]:
    own = os.getpid()
    if os.getpriority(os.PRIO_PROCESS, pid) < os.getpriority(os.PRIO_PROCESS, own):
        yield "has a better priority than ours"
    if os.sched_getscheduler(pid) in _REAL_TIME:
        yield "runs in real time"
    if (mine := _slice(own)) and (its := _slice(pid)) and its != mine:
        yield f"has a time slice of its own ({its})"
    number = _IOPRIO_GET.get(os.uname().machine)
    if number is not None and numbers():
        value = ctypes.CDLL(None).syscall(ctypes.c_long(number), 1, pid)
        usual = (os.getpriority(os.PRIO_PROCESS, pid) + 20) // 5
        if value > 0 and (value >> 13 == 1 or (value >> 13 == 2 and value & 7 < min(usual, 4))):
            yield "has a better priority of input and output"


def _slice(pid: int) -> str:
    found = re.search(r"^se\.slice\s*:\s*(\d+)", _text(f"/proc/{pid}/sched"), re.MULTILINE)
    return found[1] if found else ""


def _bytes(path: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


def _text(path: str) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(path).readlink())
    return ""

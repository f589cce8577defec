"""Runs one process tree on this machine and reports what was seen from outside it.

Clock, memory and end of the tree are the launcher's; nothing that the tree prints or does changes
them. `run` blocks its thread until the whole tree is gone, and sleeps while it waits: the cores
belong to the trial. It makes no judgement; what an exit code or a missing line means is the
evaluator's business.

In the sandbox an exit status above 128 is read as the signal status - 128, as shells do: a program
that exits with 137 of its own accord can't be told from one that was killed.

Without a sandbox (`sandboxed=False`, trust level C) the same limits hold, but the tree sees and can
write all that its user can, and where no cgroup is to be had a child that detaches itself between
two looks can survive.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rsi_tui.errors import SandboxError
from rsi_tui.launch import plain, sandbox
from rsi_tui.launch.folders import disk_room, measure, written_bytes
from rsi_tui.launch.gpu_memory import GpuMemory, open_gpu_memory
from rsi_tui.launch.load import foreign_load, read_load
from rsi_tui.launch.memory import Group, find_controllers, open_group
from rsi_tui.launch.output import Output
from rsi_tui.launch.process import FILTER_FD, STATUS_FD, Tree
from rsi_tui.launch.spec import LaunchSpec, RawRun
from rsi_tui.launch.worker import Worker

Killed = Literal["", "timeout", "silence", "memory", "disk", "cancelled"]
_READ_BYTES = 2**18
_TICK_S = 0.2
"""longest sleep: cancellation and the live log wait no longer"""
_DISK_LOOK_S = 0.25
_GIVE_UP_S = 15.0
"""a tree that SIGKILL does not end (blocked in a driver) is given up after so long"""


class LocalLauncher:
    """Runs trials and workers on this machine."""

    def __init__(self, sandboxed: bool = True) -> None:
        """Raises SandboxError, which says how to mend it, when a sandbox is asked for and can't be built here."""
        if sandboxed and (why_not := sandbox.sandbox_works()):
            raise SandboxError(f"No sandbox here: {why_not} Or give --unsandboxed, for results of trust level C.")
        self.sandboxed = sandboxed

    def run(
        self, spec: LaunchSpec, cancel: threading.Event | None = None, gate: threading.Barrier | None = None
    ) -> RawRun:
        """Run one tree to its end; it and its memory group are gone when this returns.

        `gate` holds the program back until other trees are ready to start, too.

        Raises SandboxError when the sandbox of this very spec can't be built (a mount that does not exist),
        OSError when the machine refuses to start a process at all.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            command, cwd, env = self._command(spec, stack)
            group = open_group(spec)
            stack.callback(group.remove)
            output = Output(spec.live_log)
            stack.callback(output.finish)
            tree = Tree(command, spec, group, env, cwd)
            stack.callback(tree.close)
            gpus = open_gpu_memory() if spec.gpus else None
            if gpus is not None:
                stack.callback(gpus.close)
            watch = _Watch(tree, group, output, spec, cancel or threading.Event(), gpus)
            if gate is not None:
                _wait_for_all(gate, tree)
            before = read_load()
            watch.until_gone()
            after = read_load()
        if self.sandboxed and not tree.program_ran and not watch.killed_for and watch.returncode == 1:
            raise SandboxError(f"The sandbox could not be built: {_complaint(output)}.")
        cpu_s = watch.cpu_s
        exit_code, signal_number = _ending(watch.returncode, self.sandboxed)
        return RawRun(
            exit_code=exit_code,
            signal=signal_number,
            wall_s=watch.wall_s,
            lines=output.lines(),
            killed_for=watch.killed_for,
            oom_kill=watch.oom_kill,
            peak_bytes=group.peak(),
            memory_source=group.source,
            cpu_s=cpu_s,
            foreign_load=foreign_load(before, after, cpu_s),
            launcher_s=time.monotonic() - began - watch.wall_s,
            flags=(*output.flags, *watch.flags, *group.flags, *(gpus.flags if gpus is not None else ())),
            gpu_peak_bytes=gpus.peak() if gpus is not None else None,
            gpu_memory_source=("nvml" if gpus is not None else "none") if spec.gpus else "",
        )

    def open_worker(self, spec: LaunchSpec) -> Worker:
        """A long-lived process in the same sandbox, spoken to through stdin and stdout; `close` ends it.

        It also ends with the thread that opened it (the kernel ties it to that thread).
        """
        with contextlib.ExitStack() as stack:
            if not self.sandboxed:
                spec = plain.translate(spec)
            command = sandbox.bwrap_argv(spec, "", _filter()) if self.sandboxed else list(spec.argv)
            cwd = None if self.sandboxed else Path(spec.cwd)
            group = open_group(spec)
            stack.callback(group.remove)
            worker = Worker(command, spec, group, {} if self.sandboxed else spec.env, cwd)
            stack.pop_all()
        return worker

    def describe(self) -> str:
        """One sentence: what isolates and limits a trial here."""
        found = find_controllers()
        memory = {
            "cgroup2": "memory limited and measured by cgroup v2",
            "cgroup1": "memory limited and measured by cgroup v1",
            "none": "memory sampled and not strictly limited (no cgroup)",
        }[found.kind]
        if not self.sandboxed:
            return f"no sandbox (--unsandboxed): the trial sees what its user sees; {memory}."
        version = ".".join(map(str, sandbox.bwrap_version()))
        calls = "" if sandbox.filter_works() else "system calls filtered; "
        return (
            f"bubblewrap {version}: own user, pid, net, ipc, uts, mount and cgroup namespaces, uid nobody, "
            f"no capabilities, read-only system, no network; {calls}{memory}."
        )

    def trust_cap(self) -> Literal["A", "C"]:
        """The highest trust level that results of this launcher can have."""
        return "A" if self.sandboxed else "C"

    def _command(self, spec: LaunchSpec, stack: contextlib.ExitStack) -> tuple[list[str], Path | None, dict[str, str]]:
        if self.sandboxed:
            return sandbox.bwrap_argv(spec, STATUS_FD, _filter()), None, {}
        stack.enter_context(plain.nested_mounts(spec))
        bare = plain.translate(spec)
        return list(bare.argv), Path(bare.cwd), bare.env


def _wait_for_all(gate: threading.Barrier, tree: Tree) -> None:
    """Until every tree of the run is ready; where one can't be made, this one never runs."""
    try:
        gate.wait()
    except threading.BrokenBarrierError:
        tree.kill_outer()
        tree.reap()
        raise


def _filter() -> str:
    return "" if sandbox.filter_works() else FILTER_FD


def _complaint(output: Output) -> str:
    lines = [line.text for line in output.lines() if line.text.startswith("bwrap: ")]
    return (lines or ["bwrap: ended without a message"])[-1].removeprefix("bwrap: ").rstrip(".")


def _ending(returncode: int, sandboxed: bool) -> tuple[int | None, int | None]:
    """(exit code, signal) of the program."""
    if returncode < 0:
        return None, -returncode
    if sandboxed and returncode - 128 in {s.value for s in signal.Signals}:
        return None, returncode - 128
    return returncode, None


@dataclass
class _Watch:
    """The life of one tree, from the opening of its gate until all of it is gone."""

    tree: Tree
    group: Group
    output: Output
    spec: LaunchSpec
    cancel: threading.Event
    gpus: GpuMemory | None = None
    killed_for: Killed = ""
    returncode: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    oom_kill: bool = False
    flags: list[str] = field(default_factory=list)
    _started: float = 0.0
    _killed_at: float = 0.0
    _next_sample: float = 0.0
    _next_gpu_sample: float = 0.0
    _next_disk: float = 0.0
    _disk_free: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def until_gone(self) -> None:
        """Open the gate, watch, enforce, end, reap."""
        tree = self.tree
        self._disk_free = {m.source: disk_room(m.source) for m in self.spec.mounts if m.writable}
        with selectors.DefaultSelector() as selector:
            for fd in (tree.output_fd, tree.status_fd, tree.exit_fd):
                selector.register(fd, selectors.EVENT_READ)
            self._started = time.monotonic()
            self._next_disk = _DISK_LOOK_S
            tree.open_gate()
            try:
                while not self._step(selector):
                    pass
            except BaseException:
                # Ctrl-C in the engine: the tree must not outlive us.
                self._end_now()
                raise
        self._finish()

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _step(self, selector: selectors.BaseSelector) -> bool:
        """Wait for one thing to happen and deal with it; True when the tree's root has ended."""
        ended = False
        for key, _ in selector.select(self._patience()):
            if key.fd == self.tree.output_fd:
                if not self._read():
                    selector.unregister(key.fd)
            elif key.fd == self.tree.status_fd:
                if not self.tree.read_status():
                    selector.unregister(key.fd)
            else:
                ended = True
        now = self._now()
        self.output.tick(now)
        if now >= self._next_sample:
            self._next_sample = now + self.group.interval_s
            if self.group.sample():
                self._kill("memory")
        if self.gpus is not None and now >= self._next_gpu_sample:
            self._next_gpu_sample = now + self.gpus.interval_s
            self.gpus.sample(self.group.pids())
        if not self._killed_at:
            self._enforce(now)
        elif now - self._killed_at > _GIVE_UP_S:
            self.flags.append("not_killable")
            return True
        return ended

    def _patience(self) -> float:
        """How long to sleep at most."""
        now = self._now()
        wake = min(now + _TICK_S, self._next_sample, self.spec.timeout_s if not self._killed_at else now + _TICK_S)
        return max(0.0, wake - now)

    def _read(self) -> bool:
        """Take one piece of output and stamp it; False at the end of the stream."""
        try:
            data = os.read(self.tree.output_fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self.output.feed(data, self._now())
        return bool(data)

    def _enforce(self, now: float) -> None:
        if now >= self.spec.timeout_s:
            self._kill("timeout")
        elif self.spec.silence_timeout_s and now - self.output.last_line_s >= self.spec.silence_timeout_s:
            self._kill("silence")
        elif self.cancel.is_set():
            self._kill("cancelled")
        elif now >= self._next_disk:
            self._next_disk = now + _DISK_LOOK_S
            if self._disk_full():
                self._kill("disk")

    def _disk_full(self) -> bool:
        """Is there more in a writable folder than allowed? Counted only when the disk has lost that much.

        What the tree wrote counts besides what can be found: a file may have no name, or lie too deep. Both are
        bounds, and a trial is ended for them only while the disk is really short of so much.
        """
        limit, most = self.spec.scratch_limit_bytes, self.spec.max_files
        for folder, (free, places) in self._disk_free.items():
            free_now, places_now = disk_room(folder)
            if free - free_now > limit or places - places_now > most:
                size = measure(folder, most)
                if size.entries > most or size.too_deep or size.closed or size.blocks_bytes > limit:
                    return True
            if free - free_now > limit and written_bytes(self.group.pids()) > limit:
                return True
        return False

    def _kill(self, reason: Killed) -> None:
        if not self._killed_at:
            self.killed_for = reason
            self._killed_at = self._now()
            self.tree.kill()

    def _finish(self) -> None:
        """The root has ended, or can't be ended: end the rest, read what is left, take the figures."""
        if "not_killable" in self.flags:
            self.tree.kill_outer()
        self.group.sample()
        self.returncode, rusage_s = self.tree.reap()
        self.group.kill()
        self.wall_s = self._now()
        while self._drain():
            pass
        with contextlib.suppress(OSError):
            self.tree.read_status()
        grouped_s = self.group.cpu_s()
        self.cpu_s = rusage_s if grouped_s is None else grouped_s
        self.oom_kill = self.group.oom_killed()
        if self.oom_kill and not self.killed_for and self.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
            self.killed_for = "memory"

    def _drain(self) -> bool:
        """Read on while there is something to read."""
        try:
            data = os.read(self.tree.output_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self.output.feed(data, self._now())
        return bool(data)

    def _end_now(self) -> None:
        self.tree.kill()
        self.tree.kill_outer()
        self.tree.reap()
        self.group.kill()

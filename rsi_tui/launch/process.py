"""Starting and ending one process tree.

A process is started behind a gate: a shell that waits for one line before it becomes the program.
While it waits the launcher puts it into its group and sets its limits, so that nothing of the
program runs outside them and no code runs between fork and exec. If the launcher dies the gate
reads the end of its input and exits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import IO

from rsi_tui.launch.memory import Group
from rsi_tui.launch.spec import LaunchSpec
from rsi_tui.launch.syscall_filter import open_program

_GATE = 'read -r _ && exec "$@" </dev/null'
_GATE_KEEPS_INPUT = 'read -r _ && exec "$@"'
_PIPE_BYTES = 2**20


def gated(command: list[str], keep_input: bool = False) -> list[str]:
    """The command behind its gate."""
    return ["/bin/sh", "-c", _GATE_KEEPS_INPUT if keep_input else _GATE, "sh", *command]


def confine(pid: int, spec: LaunchSpec, group: Group) -> None:
    """Group, limits and cores of a process that waits at its gate."""
    group.attach(pid)
    _limit(pid, resource.RLIMIT_NOFILE, spec.max_open_files)
    _limit(pid, resource.RLIMIT_FSIZE, spec.scratch_limit_bytes)
    # 1, not 0: only that also keeps a program which the kernel pipes cores to from being started (core(5)).
    _limit(pid, resource.RLIMIT_CORE, 1)
    for precedence in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        _limit(pid, precedence, 0)
    if group.source == "sampled":
        # Without a pids controller: counted per user, so what runs already is allowed for.
        _limit(pid, resource.RLIMIT_NPROC, _tasks_of_user() + spec.max_processes)
    if spec.cores:
        os.sched_setaffinity(pid, spec.cores)


def _limit(pid: int, what: int, value: int) -> None:
    _, hard = resource.prlimit(pid, what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.prlimit(pid, what, (value, value))


def _tasks_of_user() -> int:
    """Threads that this user runs now."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                total += sum(1 for _ in (folder / "task").iterdir())
    return total


class Tree:
    """One running process tree, seen through descriptors that can be waited for."""

    def __init__(
        self, command: list[str], spec: LaunchSpec, group: Group, env: dict[str, str], cwd: Path | None
    ) -> None:
        out_read, out_write = os.pipe()
        status_read, status_write = os.pipe()
        self.output_fd = out_read
        self.status_fd = status_read
        _enlarge(out_read)
        # Only bubblewrap is handed the descriptor (and keeps it to itself); a bare program gets 0, 1, 2.
        passed: tuple[int, ...] = (status_write,) if STATUS_FD in command else ()
        command = [str(status_write) if part == STATUS_FD else part for part in command]
        command, filters = with_filter(command, group)
        passed += filters
        try:
            self._process = subprocess.Popen(
                gated(command), stdin=subprocess.PIPE, stdout=out_write, stderr=subprocess.STDOUT, env=env, cwd=cwd,
                start_new_session=True, pass_fds=passed,
            )  # fmt: skip
        except BaseException:
            os.close(out_read)
            os.close(status_read)
            raise
        finally:
            for fd in (out_write, status_write, *filters):
                os.close(fd)
        self.pid = self._process.pid
        self.exit_fd = os.pidfd_open(self.pid)
        self._init_fd: int | None = None
        self._status = b""
        os.set_blocking(out_read, False)
        os.set_blocking(status_read, False)
        try:
            confine(self.pid, spec, group)
        except BaseException:
            self.kill()
            self.reap()
            self.close()
            raise

    def open_gate(self) -> None:
        """Let the program run."""
        gate = _pipe(self._process.stdin)
        gate.write(b"\n")
        gate.close()

    def read_status(self) -> bool:
        """Take what bubblewrap says of itself; False at its end."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.status_fd, 65536)
            if not data:
                return False
            self._status += data
            if self._init_fd is None and (init := self._told("child-pid")):
                with contextlib.suppress(ProcessLookupError):
                    self._init_fd = os.pidfd_open(init)
        return True

    def _told(self, key: str) -> int | None:
        for line in self._status.splitlines():
            with contextlib.suppress(ValueError):
                if key in (told := json.loads(line)):
                    return int(told[key])
        return None

    @property
    def program_ran(self) -> bool:
        """Did bubblewrap get as far as running the program, and saw it end?"""
        return self._told("exit-code") is not None

    def kill(self) -> None:
        """SIGKILL to the first process of the pid namespace, which takes all others with it, else to the session."""
        with contextlib.suppress(ProcessLookupError):
            if self._init_fd is not None:
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
            else:
                os.killpg(self.pid, signal.SIGKILL)

    def kill_outer(self) -> None:
        """SIGKILL to what we started ourselves, for when killing the inside was not enough."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.exit_fd, signal.SIGKILL)

    def reap(self) -> tuple[int, float]:
        """Exit status as subprocess gives it (negative: signal) and CPU seconds that rusage knows of."""
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, usage.ru_utime + usage.ru_stime

    def close(self) -> None:
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        for fd in (self.output_fd, self.status_fd, self.exit_fd, self._init_fd):
            if fd is not None:
                os.close(fd)


def with_filter(command: list[str], group: Group) -> tuple[list[str], tuple[int, ...]]:
    """The command with the number of a descriptor for the filter, where it wants one, and that descriptor to be closed."""
    if FILTER_FD not in command:
        return command, ()
    fd = open_program(uncounted=group.source == "sampled")
    return [str(fd) if part == FILTER_FD else part for part in command], (fd,)


FILTER_FD = "\0filter"
"""stands in a command for the number of the descriptor that bubblewrap reads the filter of system calls from"""
STATUS_FD = "\0status"
"""stands in a command for the number of the descriptor that bubblewrap reports on"""


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("started without a pipe")
    return stream


def _enlarge(fd: int) -> None:
    """So that a program rarely waits for us to read; the user's quota of pipe memory may forbid it."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

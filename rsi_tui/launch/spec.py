"""What is asked of a launcher, and what it saw. Plain values; no launching here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rsi_tui.journal.facts import NodeFacts


@dataclass(frozen=True)
class Mount:
    """One read-only or writable folder or file inside the sandbox."""

    source: Path
    target: str
    """absolute path inside the sandbox"""
    writable: bool = False


@dataclass(frozen=True)
class LaunchSpec:
    """One process tree to run in a sandbox."""

    argv: tuple[str, ...]
    """no shell; argv[0] absolute"""
    cwd: str
    """absolute path inside the sandbox"""
    mounts: tuple[Mount, ...]
    env: dict[str, str]
    """complete: nothing is inherited"""
    timeout_s: float
    silence_timeout_s: float = 0.0
    """killed after so long without a line of output; 0 = never"""
    memory_limit_bytes: int = 0
    """0 = no limit"""
    max_processes: int = 512
    max_open_files: int = 4096
    scratch_limit_bytes: int = 10 * 2**30
    """most that the tree may hold in each writable folder; also the largest file a process may write"""
    max_files: int = 500_000
    """most files and folders in each writable folder"""
    cores: tuple[int, ...] = ()
    """CPUs that the tree may use; empty = all"""
    gpus: bool = False
    live_log: Path | None = None
    """where lines are copied for people to watch; None = nowhere (sealed runs)"""
    entry: tuple[str, ...] = ()
    """words that enter the network of a node; then the sandbox makes no network namespace of its own"""


@dataclass(frozen=True)
class Line:
    """One line of output, stamped on arrival by the launcher's monotonic clock."""

    at_s: float
    """seconds since the process was started"""
    text: str
    """decoded, without line end; escape sequences untouched"""
    node: int = 0
    """which node of the run printed it"""


@dataclass(frozen=True)
class RawRun:
    """What the launcher saw of one process tree. No judgement."""

    exit_code: int | None
    """None when it was ended by a signal"""
    signal: int | None
    wall_s: float
    """from start of the process to exit of the whole tree, monotonic"""
    lines: tuple[Line, ...]
    """stdout and stderr in order of arrival; at most the last 200,000"""
    killed_for: Literal["", "timeout", "silence", "memory", "disk", "cancelled"]
    oom_kill: bool
    """the memory controller killed a process of the tree"""
    peak_bytes: int | None
    """anonymous + shared memory of the tree at its highest; None when not to be had"""
    memory_source: Literal["cgroup2", "cgroup1", "sampled", "none"]
    cpu_s: float
    """CPU seconds of the tree"""
    foreign_load: float
    """mean number of cores that others kept busy meanwhile"""
    launcher_s: float
    """time spent by the launcher outside the process's life: set-up and clean-up"""
    flags: tuple[str, ...] = field(default=())
    gpu_peak_bytes: int | None = None
    """highest memory of the tree on any one GPU; None when not to be had, or no GPU was asked for"""
    gpu_memory_source: Literal["", "nvml", "none"] = ""
    """'' when no GPU was asked for"""
    nodes: tuple[NodeFacts, ...] = ()
    """each node by itself, of a run of several; peak_bytes above is then that of the fullest node"""

    @property
    def told(self) -> tuple[Line, ...]:
        """Lines of node 0, which reports for all."""
        return tuple(line for line in self.lines if line.node == 0) if self.nodes else self.lines

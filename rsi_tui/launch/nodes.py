"""Runs one job of several nodes on this machine: a process tree a node, joined by a simulated network.

Each node has its own sandbox, memory group and limit, clock and output, as a run of one process has,
and no way to another node but the link: nothing is shared, no folder, no memory, no process. All
start together. When a node fails, the others have a little time to notice and are then ended; what
is reported is the end of the node that failed first, and all output, each line with its node.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from rsi_tui.journal.facts import NodeFacts
from rsi_tui.launch.load import foreign_load, read_load
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.network import Network, rate_bits, wiring
from rsi_tui.launch.spec import LaunchSpec, Line, RawRun

GRACE_S = 5.0
"""that other nodes have to say what they see when one has failed"""
_LOOK_S = 0.2


def run_nodes(
    launcher: LocalLauncher, specs: Sequence[LaunchSpec], link: str, cancel: threading.Event | None = None
) -> RawRun:
    """Run one tree a node to the end of all; nothing of them, of their network or of their groups is left.

    `link` is the contract's rate, '' for none. Node 0's silence, where it is limited, is that of the run: the
    others need not print. Raises SandboxError when a sandbox or the network can't be made.
    """
    began = time.monotonic()
    with contextlib.closing(Network(len(specs), rate_bits(link), wiring())) as network:
        placed = [_placed(spec, node, len(specs), network) for node, spec in enumerate(specs)]
        job = _Job(launcher, placed, cancel or threading.Event())
        before = read_load()
        job.run()
        after = read_load()
        ended = [job.node_run(node, network.sent_bytes(node)) for node in range(len(specs))]
    raw = _joined(job, ended)
    wall = max(run.wall_s for run in job.runs)
    foreign = foreign_load(before, after, raw.cpu_s)
    flags = tuple(dict.fromkeys((*raw.flags, *network.flags)))
    return replace(raw, foreign_load=foreign, launcher_s=time.monotonic() - began - wall, flags=flags)


def node_log(live_log: Path, node: int) -> Path:
    """Where a node's own lines are copied: node 0's are the run's live log."""
    return live_log if node == 0 else live_log.with_name(f"{live_log.stem}.node{node}{live_log.suffix}")


def cores_of(node: int, nodes: int) -> tuple[int, ...]:
    """The CPUs of one node where there are enough for each to have its own; () where they share all."""
    available = sorted(os.sched_getaffinity(0))
    each = len(available) // nodes
    return tuple(available[node * each : (node + 1) * each])


def _placed(spec: LaunchSpec, node: int, nodes: int, network: Network) -> LaunchSpec:
    log = node_log(spec.live_log, node) if spec.live_log is not None else None
    silence = spec.silence_timeout_s if node == 0 else 0.0
    cores = spec.cores or cores_of(node, nodes)
    return replace(spec, entry=network.entry(node), live_log=log, silence_timeout_s=silence, cores=cores)


@dataclass
class _Job:
    """The trees of one run, each watched by a thread that lives as long as its tree."""

    launcher: LocalLauncher
    specs: list[LaunchSpec]
    cancel: threading.Event

    def __post_init__(self) -> None:
        self.runs: list[RawRun] = []
        self.order: list[int] = []
        """nodes in the order in which they ended"""
        self._stop = threading.Event()
        self._ended_for_peer: set[int] = set()

    def run(self) -> None:
        """To the end of all trees. What one of them raises is raised when all are gone."""
        gate = threading.Barrier(len(self.specs))
        with ThreadPoolExecutor(len(self.specs), thread_name_prefix="node") as pool:
            futures = [pool.submit(self._one, spec, gate) for spec in self.specs]
            try:
                self._watch(futures)
            finally:
                self._stop.set()
        for error in filter(None, (future.exception() for future in futures)):
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        self.runs = [future.result() for future in futures]

    def _one(self, spec: LaunchSpec, gate: threading.Barrier) -> RawRun:
        try:
            return self.launcher.run(spec, self._stop, gate)
        except BaseException:
            gate.abort()
            raise

    def _watch(self, futures: list[Future[RawRun]]) -> None:
        running, deadline = set(futures), float("inf")
        while running:
            done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                node = futures.index(future)
                self.order.append(node)
                if future.exception() is not None:
                    self._stop.set()
                elif not _well(future.result()) and deadline == float("inf"):
                    deadline = time.monotonic() + GRACE_S
            if self.cancel.is_set():
                self._stop.set()
            elif running and time.monotonic() >= deadline and not self._stop.is_set():
                self._ended_for_peer = {futures.index(future) for future in running}
                self._stop.set()

    def node_run(self, node: int, sent: int | None) -> NodeFacts:
        run = self.runs[node]
        killed = "peer" if node in self._ended_for_peer and run.killed_for == "cancelled" else run.killed_for
        return NodeFacts(
            exit_code=run.exit_code,
            signal=run.signal,
            killed_for=killed,
            wall_s=run.wall_s,
            oom_kill=run.oom_kill,
            peak_bytes=run.peak_bytes,
            sent_bytes=sent,
        )


def _well(run: RawRun) -> bool:
    return run.exit_code == 0 and not run.killed_for


def _joined(job: _Job, ended: list[NodeFacts]) -> RawRun:
    """One record of all nodes: the end of the one that failed first, the highest peak, all lines in order of arrival."""
    runs = job.runs
    bad = [node for node in job.order if ended[node].killed_for != "peer" and not _well(runs[node])]
    # A node that was killed for memory, time or disk failed before those that lost their connection to it.
    killed = [node for node in bad if runs[node].killed_for or runs[node].oom_kill]
    first = runs[(killed or bad or [0])[0]]
    lines = [replace(line, node=node) if node else line for node, run in enumerate(runs) for line in run.lines]
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    gpu_peaks = [run.gpu_peak_bytes for run in runs if run.gpu_peak_bytes is not None]
    return replace(
        first,
        wall_s=max(run.wall_s for run in runs),
        lines=tuple(sorted(lines, key=_arrival)),
        oom_kill=any(run.oom_kill for run in runs),
        peak_bytes=max(peaks) if len(peaks) == len(runs) else None,
        gpu_peak_bytes=max(gpu_peaks) if gpu_peaks else None,
        cpu_s=sum(run.cpu_s for run in runs),
        flags=tuple(dict.fromkeys(flag for run in runs for flag in run.flags)),
        nodes=tuple(ended),
    )


def _arrival(line: Line) -> float:
    return line.at_s

"""One trial: a fresh copy of a candidate's code, one sandboxed process tree, and the facts of it.

Promises: a trial sees its own copy of the tree, its output folder and the contract's inputs (read-only),
nothing of another trial; the copy is gone when `run` returns; the checkpoint stays until it is
discarded; frozen files are compared with what was exported. Facts come from outside the process.
Does not promise that a run is worth anything: blocks, comparison and verdicts are other modules.

    paths.trees/COMMIT              exported once, copied for each trial, never mounted
    paths.trees/COMMIT.ID           the same after the contract's setup commands, once per candidate
    paths.trees/caches              what compilers left, see compile_cache
    paths.scratch/TRIAL/tree, out, cache   of the running trial; tree.1, out.1, ... of its other nodes
    paths.scratch/TRIAL/kept        its checkpoint
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from rsi_tui.contract.command import Command, Meeting, render_run, render_setup
from rsi_tui.contract.knob_files import apply_file_knobs
from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError, JournalError
from rsi_tui.evaluator.compile_cache import ENVIRONMENT, ColdRun, CompileCaches, cache_mounts
from rsi_tui.evaluator.explaining import explain_lines
from rsi_tui.evaluator.outcome import OutcomeFacts, classify
from rsi_tui.evaluator.progress import (
    FINDINGS,
    Progress,
    Timings,
    read_progress,
    timings,
)
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.chain import now_utc
from rsi_tui.journal.facts import Arm, BlobFacts, CandidateFacts, TrialFacts, TrialKind
from rsi_tui.launch.folders import plain_content
from rsi_tui.launch.folders import remove_tree as remove_tree
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.network import wiring
from rsi_tui.launch.nodes import run_nodes
from rsi_tui.launch.sandbox import python_mounts
from rsi_tui.launch.spec import LaunchSpec, Mount, RawRun
from rsi_tui.locations import CampaignPaths
from rsi_tui.repo.frozen import changed_frozen, tree_digest
from rsi_tui.repo.mirror import Mirror

TREE, OUT, STATE = "/rsi/tree", "/rsi/out", "/rsi/state"
"""where a trial finds its code, its output folder and, with the file's own ending, the state that it starts from"""
FROZEN = "frozen files changed: "
"""start of the flag that names them; a finding"""
_ROOM = 2**30
"""bytes free on the disk with which no trial runs out of it for want of ours"""
_COLLECT_LIMIT = 32 * 2**20
_TRIAL = re.compile(r"t\d+")


@dataclass(frozen=True)
class TrialRequest:
    """One execution that is asked for."""

    id: str
    candidate: CandidateFacts
    kind: TrialKind
    arm: Arm
    block: str
    slot: int
    attempt: int
    steps: int
    seed: int
    extra: str = ""
    """perturbation of the launch: harmless change or bf16 twin"""
    state: Path | None = None
    """saved state that the run starts from; mounted read-only"""
    memory_limit_bytes: int | None = None
    """hard limit where it is lower than the contract's"""
    timeout_s: float | None = None
    """time limit in place of the contract's"""
    sealed: bool = False
    """no live log"""
    keep_checkpoint: bool = True
    fills_cache: bool = False
    """what its compilers leave is what the candidate's later runs find"""


@dataclass(frozen=True)
class Instruments:
    """What a profile trial carries besides; never in a trial that is timed."""

    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pythonpath: str = ""
    """put before the program's own PYTHONPATH"""
    collect: tuple[str, ...] = ()
    """glob patterns of small files in the output folder to read afterwards"""
    patience: float = 1.0
    """factor on the time limit: instruments cost time"""
    extra_memory_bytes: int = 0
    """beyond the contract's limit: instruments cost memory"""


@dataclass(frozen=True)
class TrialResult:
    """What one trial left."""

    facts: TrialFacts
    checkpoint: Path | None
    """file or folder, until it is discarded"""
    run: RawRun
    outputs: tuple[str, ...] = ()
    """names in the output folder, at most 20"""
    collected: Mapping[str, bytes] = field(default_factory=dict)


def findings(facts: TrialFacts) -> tuple[str, ...]:
    """The flags of a trial that no honest run shows."""
    return tuple(flag for flag in facts.flags if flag in FINDINGS or flag.startswith(FROZEN))


def _state_place(state: Path | None) -> str:
    """Where a trial finds the state it starts from; '' when it starts from scratch."""
    return STATE + "".join(state.suffixes) if state is not None else ""


@dataclass(frozen=True)
class _NodePlace:
    """The folders of one node in a running trial; node 0's have plain names."""

    node: int
    tree: Path
    out: Path
    cache: Path

    @classmethod
    def of(cls, tree: Path, out: Path, node: int) -> _NodePlace:
        ending = f".{node}" if node else ""
        return cls(node, tree.with_name(tree.name + ending), out.with_name(out.name + ending), out.with_name("cache" + ending))

    def __iter__(self) -> Iterator[Path]:
        return iter((self.tree, self.out, self.cache))


class TrialRunner:
    """Runs trials of one campaign, one at a time."""

    def __init__(
        self, contract: Contract, launcher: LocalLauncher, mirror: Mirror, paths: CampaignPaths, python: Path
    ) -> None:
        self.contract = contract
        self.paths = paths
        self.python = python
        self._launcher = launcher
        self._mirror = mirror
        self._digests: dict[tuple[str, str], dict[str, str]] = {}
        self._caches = CompileCaches(paths.trees / "caches") if contract.invariants.weights == "equivalent" else None
        for folder in (paths.trees, paths.scratch):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def sandboxed(self) -> bool:
        """Do trials run in a sandbox?"""
        return self._launcher.sandboxed

    # --- trees and checkpoints

    def base_tree(self, commit: str) -> Path:
        """The exported tree of a commit, made on first use. Never to be written to."""
        place = self.paths.trees / commit
        if not place.is_dir():
            half = self.paths.trees / f".{commit}.{os.getpid()}"
            remove_tree(half)
            self._mirror.export(commit, half)
            half.rename(place)
        return place

    def checkpoint_of(self, trial: str) -> Path | None:
        """The checkpoint of a trial that was run before, None when it is gone."""
        kept = self._folder(trial) / "kept"
        return next(iter(kept.iterdir()), None) if kept.is_dir() else None

    def discard(self, trial: str | TrialResult) -> None:
        """Delete all that a trial left; nothing happens when it is gone already."""
        remove_tree(self._folder(trial if isinstance(trial, str) else trial.facts.id))

    def discard_file(self, checkpoint: Path) -> None:
        """Delete the trial's folder that holds this checkpoint."""
        if checkpoint.parent.name == "kept" and checkpoint.parent.parent.parent == self.paths.scratch:
            remove_tree(checkpoint.parent.parent)

    def reclaim(self, ended: Set[str]) -> None:
        """Delete what an engine that died left half-done: runs that are not among the `ended`, copies, exports.

        Of a run that ended its checkpoint stays. Only for who holds the campaign's journal; what is no run's stays.
        """
        for folder in self.paths.scratch.iterdir():
            if folder.name == "beside" or folder.name.startswith("setup-") or (_TRIAL.fullmatch(folder.name) and folder.name not in ended):
                remove_tree(folder)
            elif folder.name in ended:
                for place in folder.iterdir():
                    if place.name != "kept":
                        remove_tree(place)
        for half in (*self.paths.trees.glob(".*"), *(self.paths.trees / "caches").glob(".*")):
            remove_tree(half)

    def _folder(self, trial: str) -> Path:
        if not re.fullmatch(r"[\w.-]+", trial) or trial.startswith("."):
            raise ValueError(f"{trial!r} is no trial id")
        return self.paths.scratch / trial

    # --- running

    def run(
        self, request: TrialRequest, cancel: threading.Event | None = None, instruments: Instruments | None = None
    ) -> TrialResult:
        """Run one trial to its end and say what became of it.

        Raises ContractError when command or knobs can't be rendered or a file knob does not fit the
        tree, SandboxError when the sandbox can't be built. A failing program is a result, no error.
        """
        began, started_at = time.monotonic(), now_utc()
        self.discard(request.id)
        folder = self._folder(request.id)
        tree, out = folder / "tree", folder / "out"
        out.mkdir(parents=True, mode=0o700)
        try:
            failed = self._set_up(request.candidate, cancel)
            if failed is not None:
                return self._result(request, failed, started_at, began, out, OutcomeFacts("crashed"))
            return self._run_in(request, tree, out, cancel, instruments or Instruments(), started_at, began)
        except BaseException:
            remove_tree(folder)
            raise
        finally:
            for node in range(self.contract.launch.nodes):
                for place in _NodePlace.of(tree, out, node):
                    remove_tree(place)

    def wants_cache(self, candidate: str) -> bool:
        """Do a candidate's runs compile, and was nothing kept of it yet?"""
        return self._caches is not None and self._caches.wanted(candidate)

    def _run_in(
        self,
        request: TrialRequest,
        tree: Path,
        out: Path,
        cancel: threading.Event | None,
        instruments: Instruments,
        started_at: str,
        began: float,
    ) -> TrialResult:
        usual = not request.extra and request.memory_limit_bytes is None and instruments == Instruments()
        frozen: dict[str, str] = {}
        colds, specs = [], []
        places = [_NodePlace.of(tree, out, node) for node in range(self.contract.launch.nodes)]
        for place in places:
            frozen = self._copy(request.candidate, place.tree)
            place.out.mkdir(exist_ok=True, mode=0o700)
            colds.append(self._lend_cache(request.candidate.id, place.cache, usual and not request.fills_cache))
            specs.append(self._run_spec(request, place, instruments))
        raw = self._launch(specs, cancel)
        changed = sorted({path for place in places for path in changed_frozen(frozen, place.tree, self.contract)})
        collected = self._collect(out, instruments.collect)
        result = self._result(request, raw, started_at, began, out, None, changed, collected)
        if colds[0] is not None:
            return replace(result, facts=colds[0].charge(result.facts, self.contract.objective.amortise_over))
        if self._caches is not None and request.fills_cache:
            self._caches.fill(result.facts, places[0].cache)
        elif self._caches is not None and usual and result.facts.outcome == "ok":
            self._caches.note(request.candidate.id, places[0].cache)
        return result

    def _run_spec(self, request: TrialRequest, place: _NodePlace, instruments: Instruments) -> LaunchSpec:
        """One node's process tree of a trial, with nothing of another node's."""
        wired = wiring() if self.contract.launch.nodes > 1 else None
        command = render_run(
            self.contract,
            knobs=request.candidate.knobs,
            steps=request.steps,
            seed=request.seed,
            out=OUT,
            extra=request.extra,
            state=_state_place(request.state),
            python=str(self.python),
            node=place.node,
            meeting=Meeting(wired.master, interface=wired.interface) if wired is not None else Meeting(),
        )
        states = (Mount(request.state, _state_place(request.state)),) if request.state is not None else ()
        mounts = (*self._mounts(place.tree, place.out), *self._inputs(place.tree), *states, *cache_mounts(place.cache), *instruments.mounts)
        live_log = None if request.sealed else self.paths.live_log
        spec = self._spec(command, mounts, live_log, instruments)
        spec = replace(spec, env={**ENVIRONMENT, **spec.env})
        if request.memory_limit_bytes is not None:
            spec = replace(spec, memory_limit_bytes=min(spec.memory_limit_bytes, request.memory_limit_bytes))
        return spec if request.timeout_s is None else replace(spec, timeout_s=request.timeout_s)

    def _launch(self, specs: Sequence[LaunchSpec], cancel: threading.Event | None) -> RawRun:
        if len(specs) == 1:
            return self._launcher.run(specs[0], cancel)
        return run_nodes(self._launcher, specs, self.contract.launch.link, cancel)

    def _lend_cache(self, candidate: str, place: Path, may_have_one: bool) -> ColdRun | None:
        """A run's own folder for what compilers leave, with the candidate's cache where it may have it."""
        remove_tree(place)
        if self._caches is not None and may_have_one:
            return self._caches.lend(candidate, place)
        place.mkdir(mode=0o700)
        return None

    def run_beside(
        self, candidate: CandidateFacts, command: Command, mounts: Sequence[Mount], cancel: threading.Event | None = None
    ) -> RawRun:
        """Run another command of the contract in a fresh copy of a candidate's tree; no trial, nothing of it is kept."""
        folder = self._folder("beside")
        remove_tree(folder)
        tree, out = folder / "tree", folder / "out"
        out.mkdir(parents=True, mode=0o700)
        try:
            if (failed := self._set_up(candidate, cancel)) is not None:
                return failed
            self._copy(candidate, tree)
            places = (*self._mounts(tree, out), *self._inputs(tree), *mounts)
            return self._launcher.run(self._spec(command, places, None), cancel)
        finally:
            remove_tree(folder)

    def _copy(self, candidate: CandidateFacts, tree: Path) -> dict[str, str]:
        """A writable copy with the candidate's file knobs; returns the digests of its frozen files."""
        shutil.copytree(self._prepared(candidate), tree, symlinks=True)
        apply_file_knobs(self.contract, candidate.knobs, tree)
        values = repr([candidate.knobs.get(k.name, k.default) for k in self.contract.knobs if k.file or k.global_])
        key = (self._prepared(candidate).name, values)
        if key not in self._digests:
            self._digests[key] = tree_digest(tree, self.contract)
        return self._digests[key]

    def _spec(
        self, command: Command, mounts: tuple[Mount, ...], live_log: Path | None, instruments: Instruments | None = None
    ) -> LaunchSpec:
        launch = self.contract.launch
        env = {**self._environment(), **command.env}
        instruments = instruments or Instruments()
        env |= instruments.env
        if instruments.pythonpath:
            env["PYTHONPATH"] = ":".join(filter(None, (instruments.pythonpath, env.get("PYTHONPATH", ""))))
        argv = command.argv
        if command.preloads:
            # Set for the program alone: the sandbox's own shell runs without it.
            argv = ("/usr/bin/env", f"LD_PRELOAD={':'.join(command.preloads)}", *argv)
        return LaunchSpec(
            argv=argv,
            cwd=str(PurePosixPath(TREE) / launch.workdir),
            mounts=mounts,
            env=env,
            timeout_s=launch.timeout_s * instruments.patience,
            memory_limit_bytes=launch.memory_limit_bytes + instruments.extra_memory_bytes,
            gpus=launch.gpus_per_node > 0,
            live_log=live_log,
        )

    def _environment(self) -> dict[str, str]:
        """What every trial has, before the contract's own; nothing is inherited from ours."""
        return {
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "USER": "nobody",
            "LOGNAME": "nobody",
            "LANG": "C.UTF-8",
            "PYTHONNOUSERSITE": "1",
            "PYTHONHASHSEED": "0",
        }

    def _mounts(self, tree: Path, out: Path) -> tuple[Mount, ...]:
        return (*python_mounts(self.python), Mount(tree, TREE, writable=True), Mount(out, OUT, writable=True))

    def _inputs(self, tree: Path) -> tuple[Mount, ...]:
        """The contract's input files at their own places. In the sandbox each needs a place to be mounted on."""
        mounts = []
        for pattern in self.contract.launch.inputs:
            root = Path("/") if pattern.startswith("/") else self.contract.path
            found = sorted(root.glob(pattern.lstrip("/")))
            if not found:
                raise ContractError(f"workload.toml: [launch] inputs: nothing is at {pattern!r}; correct it or bring the file.")
            for name in found:
                if not name.is_relative_to(self.contract.path):
                    mounts.append(Mount(name.resolve(), str(name)))
                    continue
                inner = name.relative_to(self.contract.path)
                if self._launcher.sandboxed:
                    make_place(tree / inner, name.is_dir())
                mounts.append(Mount(name.resolve(), f"{TREE}/{inner.as_posix()}"))
        return tuple(mounts)

    # --- setup commands, once per candidate

    def _prepared(self, candidate: CandidateFacts) -> Path:
        if not self.contract.launch.setup:
            return self.base_tree(candidate.commit)
        return self.paths.trees / f"{candidate.commit}.{candidate.id}"

    def _set_up(self, candidate: CandidateFacts, cancel: threading.Event | None) -> RawRun | None:
        """Run the contract's setup commands unless it was done; returns the run of the one that failed."""
        place = self._prepared(candidate)
        if place.is_dir():
            return None
        folder = self._folder(f"setup-{candidate.id}")
        remove_tree(folder)
        tree, out = folder / "tree", folder / "out"
        out.mkdir(parents=True, mode=0o700)
        try:
            shutil.copytree(self.base_tree(candidate.commit), tree, symlinks=True)
            apply_file_knobs(self.contract, candidate.knobs, tree)
            for command in render_setup(self.contract, python=str(self.python)):
                raw = self._launcher.run(self._spec(command, self._mounts(tree, out), self.paths.live_log), cancel)
                if raw.exit_code != 0 or raw.killed_for:
                    return raw
            tree.rename(place)
            return None
        finally:
            remove_tree(folder)

    # --- facts

    def _keep(self, request: TrialRequest, out: Path) -> Path | None:
        """Move the checkpoint to its own place; None when there is none that can be trusted to be plain data."""
        folder = out.parent
        named = self.contract.launch.checkpoint
        for name, value in (("out", OUT), ("steps", str(request.steps)), ("seed", str(request.seed))):
            named = named.replace("{" + name + "}", value)
        inside = PurePosixPath(TREE, self.contract.launch.workdir, named)
        root, base = (out, OUT) if inside.is_relative_to(OUT) else (folder / "tree", TREE)
        if not inside.is_relative_to(base):
            return None
        path = root / inside.relative_to(base)
        if not plain_content(path, root):
            return None
        kept = folder / "kept"
        kept.mkdir(mode=0o700)
        return path.rename(kept / (path.name or "checkpoint"))

    def _machine_at_fault(self, outcome: OutcomeFacts) -> OutcomeFacts:
        """A fault of the machine must be one that this machine can have: a trial can print what it likes."""
        no_gpu = outcome.cause == "device_fault" and not self.contract.launch.gpus_per_node
        has_room = outcome.cause == "disk_full" and shutil.disk_usage(self.paths.scratch).free > _ROOM
        if outcome.outcome == "not_measured" and (no_gpu or has_room):
            return replace(outcome, outcome="crashed", detail=f"{outcome.detail} The machine itself is well.")
        return outcome

    def _collect(self, out: Path, patterns: Sequence[str]) -> dict[str, bytes]:
        found = {}
        for pattern in patterns:
            for path in sorted(out.glob(pattern)):
                if plain_content(path, out) and path.is_file() and path.stat().st_size <= _COLLECT_LIMIT:
                    found[path.name] = path.read_bytes()
        return found

    def _result(
        self,
        request: TrialRequest,
        raw: RawRun,
        started_at: str,
        began: float,
        out: Path,
        forced: OutcomeFacts | None,
        changed: Sequence[str] = (),
        collected: Mapping[str, bytes] | None = None,
    ) -> TrialResult:
        progress = read_progress(raw.told, self.contract.launch.progress)
        outputs = tuple(sorted(entry.name for entry in out.iterdir()))[:20] if out.is_dir() else ()
        checkpoint = self._keep(request, out)
        outcome = classify(
            raw,
            progress,
            expected_steps=request.steps,
            memory_limit_bytes=request.memory_limit_bytes or self.contract.launch.memory_limit_bytes,
            checkpoint_found=checkpoint is not None,
        )
        if forced is not None:
            outcome = _setup_failed(raw, outcome)
        outcome = self._machine_at_fault(outcome)
        flags = (*outcome.flags, *((FROZEN + ", ".join(changed[:5]),) if changed else ()), *raw.flags)
        if outcome.outcome != "ok" or not request.keep_checkpoint:
            remove_tree(out.parent / "kept")
            checkpoint = None
        objective = self.contract.objective
        times = timings(progress, raw.wall_s, objective.warmup, request.steps, objective.amortise_over)
        facts = _facts(request, raw, outcome, progress, times if outcome.outcome == "ok" else None, started_at)
        log, flags = self._log(raw, flags) if outcome.outcome not in ("ok", "cancelled") else (None, flags)
        facts = facts.model_copy(update={"flags": flags, "log": log, "engine_s": max(0.0, time.monotonic() - began - raw.wall_s)})
        return TrialResult(facts, checkpoint, raw, outputs, collected or {})


    def _log(self, raw: RawRun, flags: tuple[str, ...]) -> tuple[BlobFacts | None, tuple[str, ...]]:
        """The whole output, kept for people; that it could not be is no reason to lose the run."""
        several = len({line.node for line in raw.lines}) > 1
        try:
            return Blobs(self.paths.logs).put_log(f"[node {line.node}] {line.text}" if several else line.text for line in raw.lines), flags
        except JournalError as error:
            return None, (*flags, f"its output was not kept: {error}")


def _setup_failed(raw: RawRun, outcome: OutcomeFacts) -> OutcomeFacts:
    if outcome.outcome in ("cancelled", "oom", "timeout", "preempted", "not_measured"):
        return OutcomeFacts(outcome.outcome, outcome.cause, f"In a setup command: {outcome.detail}", outcome.telling_lines)
    why = explain_lines(line.text for line in raw.lines)
    return OutcomeFacts("crashed", why.cause, f"A setup command failed: {why.root_cause}", why.evidence, why.facts)


def make_place(path: Path, folder: bool) -> None:
    """An empty file or folder to mount on, where there is nothing yet."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        path.mkdir()
    else:
        path.touch()


def _facts(
    request: TrialRequest, raw: RawRun, outcome: OutcomeFacts, progress: Progress, times: Timings | None, started_at: str
) -> TrialFacts:
    """A failed trial has no metric: times and loss are None."""
    return TrialFacts(
        id=request.id,
        candidate=request.candidate.id,
        kind=request.kind,
        arm=request.arm,
        block=request.block,
        slot=request.slot,
        attempt=request.attempt,
        steps=request.steps,
        outcome=outcome.outcome,
        cause=outcome.cause,
        detail=outcome.detail,
        telling_lines=outcome.telling_lines,
        advice=outcome.advice,
        exit_code=raw.exit_code,
        signal=raw.signal,
        started_at=started_at,
        wall_s=raw.wall_s,
        startup_s=times.startup_s if times else None,
        step_s=times.step_s if times else None,
        teardown_s=times.teardown_s if times else None,
        score_s=times.score_s if times else None,
        peak_bytes=raw.gpu_peak_bytes if raw.gpu_memory_source else raw.peak_bytes,
        memory_source=raw.gpu_memory_source or raw.memory_source,
        memory_limit_bytes=request.memory_limit_bytes,
        requested_bytes=outcome.requested_bytes,
        foreign_load=raw.foreign_load,
        final_loss=progress.final_loss if outcome.outcome == "ok" else None,
        nodes=raw.nodes,
    )

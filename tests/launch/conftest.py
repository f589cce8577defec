"""Real processes throughout: what can't run on this machine is skipped with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.memory import find_controllers
from rsi_tui.launch.sandbox import python_mounts, sandbox_works
from rsi_tui.launch.spec import LaunchSpec, RawRun

PYTHON = sys.executable
ENV = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}

needs_sandbox = pytest.mark.skipif(bool(sandbox_works()), reason=sandbox_works())
needs_cgroup = pytest.mark.skipif(find_controllers().kind == "none", reason=find_controllers().why_not)


def spec(*argv: str, **changes: Any) -> LaunchSpec:
    given: dict[str, Any] = {"cwd": "/", "mounts": (), "env": ENV, "timeout_s": 20.0}
    return LaunchSpec(argv=argv, **(given | changes))


def shell(text: str, **changes: Any) -> LaunchSpec:
    return spec("/bin/sh", "-c", text, **changes)


def python(code: str, *args: str, **changes: Any) -> LaunchSpec:
    mounts = (*python_mounts(Path(PYTHON)), *changes.pop("mounts", ()))
    return spec(PYTHON, "-I", "-u", "-c", code, *args, mounts=mounts, **changes)


def texts(run: RawRun) -> list[str]:
    return [line.text for line in run.lines]


@pytest.fixture(scope="session")
def run() -> Callable[..., RawRun]:
    if why_not := sandbox_works():
        pytest.skip(why_not)
    return LocalLauncher().run

"""No program that the product starts gets the key of a model's API: looked at child by child, with a key planted."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rsi_tui import environment
from rsi_tui import library as lib
from rsi_tui.config import ClaudeSettings
from rsi_tui.contract.load import load_contract
from rsi_tui.launch import doctor, host, sandbox
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.spec import LaunchSpec
from rsi_tui.locations import Home
from rsi_tui.loop import hooks
from rsi_tui.minds.claude.api import require_access
from rsi_tui.minds.claude.workbench import Workbench
from rsi_tui.repo.git import clean_environment, isolated_environment
from rsi_tui.repo.mirror import Mirror
from tests.support.campaigns import tiny_repository
from tests.support.model import Journal, room
from tests.support.story import write_home

ROOT = Path(__file__).parents[1]
PLANTED = "planted-key-0123456789abcdef"
ID = "20261130-1"


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key under the usual name, the settings' own, and a third one."""
    monkeypatch.setattr(environment, "_KEYS", set(environment._KEYS))
    for name in ("ANTHROPIC_API_KEY", "MY_GATEWAY_KEY", "A_COPY"):
        monkeypatch.setenv(name, PLANTED)
    monkeypatch.setenv("HARMLESS", "stays")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """The environment of each child that is started from now on."""
    seen: list[dict[str, str]] = []
    children: list[Any] = []
    real = subprocess.Popen.__init__

    def begin(self: Any, *args: Any, **more: Any) -> None:
        seen.append(dict(os.environ if more.get("env") is None else more["env"], ARGV=str(args or more.get("args"))))
        real(self, *args, **more)
        children.append(self)

    monkeypatch.setattr(subprocess.Popen, "__init__", begin)
    yield seen
    for child in children:
        child.wait(20)


def keyless(environments: list[dict[str, str]]) -> bool:
    told = [env.get("ARGV", "?") for env in environments if PLANTED in str({k: v for k, v in env.items() if k != "ARGV"})]
    assert not told, f"got the key: {told}"
    return bool(environments)


def test_the_keys_are_left_out_under_any_name_and_the_rest_stays() -> None:
    left = environment.for_child()
    assert PLANTED not in left.values() and left["HARMLESS"] == "stays" and left["PATH"] == os.environ["PATH"]


def test_a_key_of_another_name_is_withheld_once_settings_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "A_COPY"):
        monkeypatch.delenv(name)
    assert environment.for_child()["MY_GATEWAY_KEY"] == PLANTED
    assert "MY_GATEWAY_KEY" not in environment.for_child("MY_GATEWAY_KEY")
    require_access(ClaudeSettings(key_env="MY_GATEWAY_KEY"))
    assert "MY_GATEWAY_KEY" not in environment.for_child()


def test_git_does_not_get_it(tmp_path: Path, started: list[dict[str, str]]) -> None:
    place = tiny_repository(tmp_path / "tiny")
    started.clear()
    mirror = Mirror.open(Home(tmp_path / "home"), place, committed=True)
    mirror.commit_files(mirror.base, {"model.py": "x = 1\n"}, "c1", "refs/rsi/test/c1")
    assert len(started) > 3 and keyless(started)
    assert keyless([clean_environment(), isolated_environment()])


def test_a_hook_does_not_get_it(tmp_path: Path, started: list[dict[str, str]]) -> None:
    home = write_home(tmp_path / "home")
    (home.root / "config.toml").write_text(f"[claude]\nkey_env = 'MY_GATEWAY_KEY'\n[hooks]\nfinished = 'env > {tmp_path}/seen.part; mv {tmp_path}/seen.part {tmp_path}/seen'\n")
    hooks.call_hook(home, ID, "finished", pytest.fail)
    for _ in range(400):
        if (tmp_path / "seen").exists():
            break
        subprocess.run(["sleep", "0.05"], env={})
    seen = (tmp_path / "seen").read_text()
    assert PLANTED not in seen and "HARMLESS=stays" in seen and "RSI_EVENT=finished" in seen and keyless(started)


def test_the_librarys_server_does_not_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSI_LIBRARY", raising=False)
    home = write_home(tmp_path / "home")
    library = lib.open_library(home)
    try:
        pid = int((home.library / "server.lock").read_text())
        seen = Path(f"/proc/{pid}/environ").read_bytes()
        assert PLANTED.encode() not in seen and b"HARMLESS=stays" in seen
    finally:
        library.close()
        lib.end_server(home)


@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_trial_does_not_get_it(tmp_path: Path, sandboxed: bool, started: list[dict[str, str]]) -> None:
    if sandboxed and sandbox.sandbox_works():
        pytest.skip(sandbox.sandbox_works())
    spec = LaunchSpec(argv=("/bin/sh", "-c", "cat /proc/self/environ /proc/1/environ /proc/$PPID/environ | tr '\\0' '\\n'; env"),
                      cwd="/" if sandboxed else str(tmp_path), mounts=(), env={"PATH": "/usr/bin:/bin"}, timeout_s=20.0, memory_limit_bytes=2**28)  # fmt: skip
    run = LocalLauncher(sandboxed=sandboxed).run(spec)
    said = "\n".join(line.text for line in run.lines)
    assert "PATH=" in said and keyless(started or [{"none": "started by other means"}])
    if sandboxed:
        assert PLANTED not in said


def test_a_command_of_the_executor_does_not_get_it(tmp_path: Path) -> None:
    if why_not := sandbox.sandbox_works():
        pytest.skip(why_not)
    contract = load_contract(tiny_repository(tmp_path / "tiny"), "quick")
    lent = room(tmp_path, Journal(), files={"train.py": "print(1)\n"}, python=Path(sys.executable))
    said = Workbench(lent, contract, "base", {"train.py": "print(1)\n"}).run("env; cat /proc/*/environ", 20)
    assert "PATH=" in said and PLANTED not in said


def test_questions_to_drivers_and_interpreters_do_not_get_it(tmp_path: Path, started: list[dict[str, str]]) -> None:
    for known in (host.gpus, host.torch_version, sandbox.bwrap_version, sandbox.sandbox_works, sandbox.python_mounts):
        known.cache_clear()
    doctor.examine(Home(tmp_path))
    linker = [env for env in started if env["ARGV"].startswith(("(['ld'", "(['/usr/bin/gcc'", "(['gcc'", "(['/sbin/ldconfig'"))]  # ctypes.util's
    started[:] = [env for env in started if env not in linker]
    host.gpus()
    host.torch_version(Path(sys.executable))
    sandbox.bwrap_version()
    sandbox.sandbox_works()
    sandbox.python_mounts(Path(sys.executable))
    assert keyless(started)


def test_every_child_is_given_an_environment_of_its_own() -> None:
    """Nothing is started that inherits ours by default; code of the red team runs within sandboxes."""
    wrong = []
    for path in [*ROOT.glob("rsi_tui/**/*.py"), *ROOT.glob("experience/**/*.py")]:
        if "redteam" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.run", "subprocess.Popen", "subprocess.check_output", "subprocess.call", "os.system", "os.popen"):
                wrong += [] if any(keyword.arg == "env" for keyword in node.keywords) else [f"{path.name}:{node.lineno}"]
    assert wrong == []

"""A person's command at the end of a campaign: it gets the facts, and can do no harm."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from rsi_tui.config import load_settings
from rsi_tui.errors import UsageError
from rsi_tui.locations import Home
from rsi_tui.loop import hooks
from tests.support.story import write_home

ID = "20261130-1"


def ready(folder: Path, text: str) -> Home:
    home = write_home(folder / "home")
    (home.root / "config.toml").write_text(text)
    return home


@pytest.fixture(autouse=True)
def _reaped(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Nobody waits for a hook but the test."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args: object, **more: object) -> subprocess.Popen[bytes]:
        started.append(real(*args, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(hooks.subprocess, "Popen", popen)
    yield started
    for one in started:
        one.wait(20)


def test_the_command_gets_the_facts_as_variables_and_json(tmp_path: Path, _reaped: list) -> None:  # type: ignore[type-arg]
    home = ready(tmp_path, f"[hooks]\nfinished = 'cat > {tmp_path}/facts; echo $RSI_EVENT $RSI_CAMPAIGN > {tmp_path}/said'\n")
    hooks.call_hook(home, ID, "finished", pytest.fail)
    _reaped[0].wait(20)
    facts = json.loads((tmp_path / "facts").read_text())
    assert (facts["event"], facts["id"]) == ("finished", ID)
    assert (tmp_path / "said").read_text() == f"finished {ID}\n"


def test_nobody_waits_and_a_command_that_hangs_is_killed(tmp_path: Path, _reaped: list) -> None:  # type: ignore[type-arg]
    home = ready(tmp_path, "[hooks]\nstopped = 'sleep 600'\ntimeout_s = 0.5\n")
    began = time.monotonic()
    hooks.call_hook(home, ID, "stopped", pytest.fail)
    assert time.monotonic() - began < 0.5
    _reaped[0].wait(20)
    assert "killed after 0.5 seconds" in (home.campaign(ID).root / "hook.log").read_text()


def test_a_command_that_fails_leaves_a_line_in_the_log(tmp_path: Path, _reaped: list) -> None:  # type: ignore[type-arg]
    home = ready(tmp_path, "[hooks]\nfinished = 'exit 3'\n")
    hooks.call_hook(home, ID, "finished", pytest.fail)
    _reaped[0].wait(20)
    assert "exit code 3" in (home.campaign(ID).root / "hook.log").read_text()


def test_wrong_settings_are_a_note_and_no_error(tmp_path: Path, _reaped: list) -> None:  # type: ignore[type-arg]
    home = ready(tmp_path, "[hooks]\nfinish = 'x'\n")
    notes: list[str] = []
    hooks.call_hook(home, ID, "finished", notes.append)
    assert "hooks.finished" in notes[0] and not _reaped
    with pytest.raises(UsageError, match="nearest"):
        load_settings(home.root)


def test_without_a_setting_nothing_is_started(tmp_path: Path, _reaped: list) -> None:  # type: ignore[type-arg]
    hooks.call_hook(write_home(tmp_path), ID, "finished", pytest.fail)
    assert not _reaped

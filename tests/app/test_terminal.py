"""The app in a real terminal (tmux): keys sent, screen read, the terminal left as it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.story import write_home

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
START = "import sys; from pathlib import Path; from rsi_tui.app.main import run_app; from rsi_tui.locations import Home; run_app(Home(Path(sys.argv[1])))"


class Terminal:
    """One tmux session on a server of its own, with a shell that starts the app."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._socket = str(folder / "tmux")
        self._folder = folder
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "-s", "s", "env PS1='$ ' sh")

    def _tmux(self, *args: str) -> str:
        return subprocess.run(["tmux", "-S", self._socket, *args], capture_output=True, text=True, check=True).stdout

    def start(self, home: Path, env: str = "") -> None:
        script = self._folder / "start.py"
        script.write_text(f"import os; Path = __import__('pathlib').Path; Path({str(self._folder / 'pid')!r}).write_text(str(os.getpid()))\n{START}")
        self.send(f"{env} {sys.executable} {script} {home}")

    def send(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def key(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def screen(self, *options: str) -> str:
        return self._tmux("capture-pane", "-p", *options)

    def wait_for(self, text: str, seconds: float = 15.0) -> str:
        give_up = time.monotonic() + seconds
        while text not in (seen := self.screen()):
            assert time.monotonic() < give_up, f"never saw {text!r} in:\n{seen}"
            time.sleep(0.1)
        return seen

    @property
    def in_full_screen(self) -> bool:
        return self._tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    @property
    def pid(self) -> int:
        return int((self._folder / "pid").read_text())

    def hang_up(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, 80, 24)
    yield terminal
    terminal.hang_up()


def gone(pid: int, seconds: float = 10.0) -> bool:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def coloured(screen: str) -> set[str]:
    """Codes of colours in a screen captured with its escape sequences."""
    codes = {code for part in screen.split("\x1b[")[1:] for code in part.split("m")[0].split(";")}
    return {c for c in codes if c.isdigit() and (30 <= int(c) <= 38 or 40 <= int(c) <= 48 or 90 <= int(c) <= 107)}


def test_keys_work_and_leaving_says_how_to_come_back(terminal: Terminal, tmp_path: Path) -> None:
    """With NO_COLOR, under which no screen on the way is coloured."""
    write_home(tmp_path / "home")
    terminal.start(tmp_path / "home", env="NO_COLOR=1")
    terminal.wait_for("1.93x faster (99 % interval 1.81 to 2.02)")
    assert terminal.in_full_screen
    assert not coloured(terminal.screen("-e"))
    terminal.key("j", "j", "Enter")
    terminal.wait_for("c1: Scaled-dot-product attention")
    assert not coloured(terminal.screen("-e"))
    terminal.key("Escape")
    terminal.wait_for("Directions and rounds")
    terminal.key("?")
    terminal.wait_for("leave; the engine runs on")
    terminal.key("q")
    terminal.wait_for("Directions and rounds")
    terminal.key("q")
    terminal.wait_for("rsi attach 20261130-1")
    assert not terminal.in_full_screen


def test_signals_give_the_terminal_back(terminal: Terminal, tmp_path: Path) -> None:
    write_home(tmp_path / "home")
    for number in (signal.SIGTERM, signal.SIGHUP):
        terminal.start(tmp_path / "home")
        terminal.wait_for("1.93x faster")
        assert coloured(terminal.screen("-e"))
        os.kill(terminal.pid, number)
        terminal.wait_for("rsi attach")
        assert not terminal.in_full_screen
        terminal.send("clear; echo al''ive")
        terminal.wait_for("alive")


def test_a_lost_terminal_ends_the_app(terminal: Terminal, tmp_path: Path) -> None:
    write_home(tmp_path / "home")
    terminal.start(tmp_path / "home")
    terminal.wait_for("1.93x faster")
    pid = terminal.pid
    terminal.hang_up()
    assert gone(pid)

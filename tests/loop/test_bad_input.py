"""Everything a person can get wrong ends as one sentence, the right exit code, and nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rsi_tui.launch.sandbox import bwrap_path
from tests.support.campaigns import git, tiny_repository


def rsi(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it, in a home of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rsi_tui", *args],
        env={**os.environ, "RSI_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        git(folder, "commit", "-qam", "an edit")

    return change


def dirty(folder: Path) -> None:
    (folder / "train.py").write_text((folder / "train.py").read_text() + "\n# not committed\n")


def no_contract(folder: Path) -> None:
    git(folder, "rm", "-q", "workload.toml")
    git(folder, "commit", "-qm", "no contract")


def shallow(folder: Path) -> None:
    (folder / "notes.txt").write_text("a second commit")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "second")
    whole = folder.with_name("whole")
    folder.rename(whole)
    git(folder.parent, "clone", "-q", "--depth", "1", whole.as_uri(), str(folder))


CASES: list[tuple[str, Callable[[Path], None], int, tuple[str, ...]]] = [
    ("no workload.toml", no_contract, 2, ("workload.toml",)),
    ("unknown key", edit("workload.toml", "threads = 1", "thraeds = 1"), 2, ("thraeds", "threads")),
    ("broken toml", edit("workload.toml", "[launch]", "[launch"), 2, ("workload.toml",)),
    ("no such command", edit("workload.toml", "python train.py", "pyhton train.py"), 2, ("pyhton",)),
    ("no such program", edit("workload.toml", "python train.py", "python trian.py"), 2, ("trian.py",)),
    ("crashes at once", edit("train.py", "def main():", "def main():\n    raise SystemExit(3)"), 2, ("3",)),
    ("progress never matches", edit("workload.toml", "step (?P<step>", "iteration (?P<step>"), 2, ("progress",)),
    ("checkpoint never appears", edit("workload.toml", "{out}/final.pt", "{out}/last.pt"), 2, ("last.pt", "final.pt")),
    ("dirty", dirty, 2, ("train.py", "--snapshot", "--committed")),
    ("shallow", shallow, 2, ("shallow", "unshallow")),
]


LONG = ("checkpoint never appears", "crashes at once")
"""cases that run the program to its end; one of the kind runs each time"""


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in LONG else []) for name, *case in CASES],
)
def test_what_is_wrong_is_said_in_one_sentence_and_nothing_is_left(
    tmp_path: Path, change: Callable[[Path], None], code: int, words: tuple[str, ...]
) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    change(folder)
    done = rsi(tmp_path / "home", "run", str(folder), "--preset", "quick")
    assert done.returncode == code, done.stdout + done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("rsi: ")
    assert all(word in said for word in words), said
    assert "Traceback" not in done.stderr
    campaigns = tmp_path / "home" / "campaigns"
    assert not campaigns.exists() or not list(campaigns.iterdir())
    assert rsi(tmp_path / "home", "campaigns", "--json").stdout.strip() == "[]"


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "workload.toml").write_text((Path(__file__).parents[1] / "workloads/tiny/workload.toml").read_text())
    done = rsi(tmp_path / "home", "run", str(folder))
    assert done.returncode == 2
    assert "git" in done.stderr


def test_without_bubblewrap_nothing_runs_and_the_way_out_is_named(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    bwrap = bwrap_path()
    hidden = (bwrap, "--dev-bind", "/", "/", "--ro-bind", "/dev/null", bwrap) if bwrap else ()
    command = [*hidden, sys.executable, "-m", "rsi_tui", "run", str(folder)]
    env = {**os.environ, "RSI_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "--unsandboxed" in done.stderr and "bubblewrap" in done.stderr
    assert not (tmp_path / "home" / "campaigns").exists()


def test_an_unknown_mind_and_nothing_to_resume_are_usage_errors(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    for args in (("--mind", "oracle"), ("--mind", "claude"), ("--resume",)):
        done = rsi(tmp_path / "home", "run", str(folder), "--preset", "quick", *args)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("rsi: ") and done.stderr.count("\n") == 1


def test_unknown_ids_name_the_nearest(tmp_path: Path) -> None:
    done = rsi(tmp_path / "home", "show", "c7")
    assert done.returncode == 2
    assert "no campaign" in done.stderr


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    (tmp_path / "file").write_text("no folder")
    done = rsi(tmp_path / "file" / "home", "run", str(folder), "--preset", "quick")
    assert done.returncode == 1
    assert done.stderr.startswith("rsi: ") and "RSI_HOME" in done.stderr and "Traceback" not in done.stderr

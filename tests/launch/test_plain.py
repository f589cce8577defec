import os
import subprocess
import time
from pathlib import Path

import pytest

from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.plain import nested_mounts, translate
from rsi_tui.launch.spec import Mount

from .conftest import PYTHON, needs_cgroup, shell, spec, texts


@pytest.fixture
def bare():
    return LocalLauncher(sandboxed=False)


@pytest.mark.parametrize(
    ("given", "real"),
    [
        ("/job", "/home/u/tree"),
        ("/job/train.py", "/home/u/tree/train.py"),
        ("--out=/job/out/final.pt", "--out=/scratch/final.pt"),
        ("/jobs", "/jobs"),
        ("/x/job", "/x/job"),
        ("/job.old", "/job.old"),
        ("a:/job:/job/out", "a:/home/u/tree:/scratch"),
    ],
)
def test_paths_are_translated_as_whole_paths(given, real):
    mounts = (Mount(Path("/home/u/tree"), "/job"), Mount(Path("/scratch"), "/job/out", writable=True))
    bare = translate(spec(given, cwd="/job", mounts=mounts, env={"P": given}))
    assert (bare.argv, bare.cwd, bare.env) == ((real,), "/home/u/tree", {"P": real})


def test_inputs_inside_a_tree_are_links_for_the_time_of_the_run(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "data.bin").write_text("tokens")
    mounts = (Mount(tmp_path / "tree", "/job"), Mount(tmp_path / "data.bin", "/job/data/data.bin"))
    with nested_mounts(spec("/bin/true", mounts=mounts)):
        assert (tmp_path / "tree" / "data" / "data.bin").read_text() == "tokens"
    assert not (tmp_path / "tree" / "data" / "data.bin").exists()


def test_it_runs_plainly_with_the_given_environment_and_descriptors(bare, tmp_path):
    mounts = (Mount(tmp_path, "/job"),)
    code = "import os; print(os.getcwd(), sorted(os.environ), [f for f in range(64) if os.path.exists(f'/proc/self/fd/{f}')])"
    seen = bare.run(spec(PYTHON, "-I", "-c", code, cwd="/job", mounts=mounts, env={"A": "1"}))
    assert texts(seen) == [f"{tmp_path} ['A', 'LC_CTYPE', 'PWD'] [0, 1, 2]"]


@pytest.mark.parametrize(("text", "ending"), [("exit 137", (137, None)), ("kill -9 $$", (None, 9))])
def test_exit_codes_and_signals_are_exact(bare, text, ending):
    seen = bare.run(shell(text))
    assert (seen.exit_code, seen.signal) == ending


@needs_cgroup
def test_detached_children_are_gone_here_too(bare, tmp_path):
    text = f"(trap '' TERM HUP; setsid sh -c 'while :; do date +%N > {tmp_path}/alive; sleep 0.05; done' &) ; sleep 0.4"
    seen = bare.run(shell(text))
    assert (seen.exit_code, seen.wall_s < 1.5) == (0, True)
    before = (tmp_path / "alive").read_text()
    time.sleep(0.2)
    assert (tmp_path / "alive").read_text() == before


def test_timeout_ends_it_here_too(bare):
    seen = bare.run(shell("trap '' TERM; echo here; sleep 61", timeout_s=0.4))
    assert (seen.killed_for, texts(seen), seen.wall_s < 1.5) == ("timeout", ["here"], True)
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "sleep 61"], capture_output=True, text=True)
    assert found.stdout == ""

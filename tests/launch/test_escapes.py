"""Nothing gets out of a trial: every attempt to escape runs through the real launcher, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rsi_tui.evaluator.redteam.escapes import ESCAPES, EscapeFacts, run_escapes

from .conftest import needs_sandbox

pytestmark = needs_sandbox
SOME = ("read_vault", "read_keyrings", "signal_outside", "reach_network", "change_priority", "use_interfaces", "stay",
        "fill_disk_unlinked")  # fmt: skip
PYTHON = Path("/usr/bin/python3")


def attempts(names: tuple[str, ...]) -> tuple[EscapeFacts, ...]:
    # A folder of its own: the names of pytest's would be long, and its folder is not removed at once.
    folder = Path(tempfile.mkdtemp(prefix="rsi-escapes-"))
    return run_escapes(Path(sys.executable), folder, [e for e in ESCAPES if e.name in names])


def succeeded(found: tuple[EscapeFacts, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(facts.name, facts.seen) for facts in found if facts.succeeded]


def test_there_are_many_attempts_and_each_tries_several_ways():
    assert len({escape.name for escape in ESCAPES}) == len(ESCAPES) >= 25
    assert sum(escape.code.count("def way_") for escape in ESCAPES) > 3 * len(ESCAPES)


def test_what_is_tried_most_often_does_not_succeed():
    found = attempts(SOME)
    assert succeeded(found) == []
    assert [facts.name for facts in found if facts.broken] == []


@pytest.mark.slow
def test_no_attempt_succeeds():
    found = attempts(tuple(escape.name for escape in ESCAPES))
    assert succeeded(found) == []
    assert [facts.broken for facts in found if facts.broken] == []


def test_what_succeeds_is_seen(monkeypatch):
    """Without the filter of system calls some attempts succeed, and the ground says so: it can see."""
    from rsi_tui.launch import local

    monkeypatch.setattr(local, "_filter", lambda: "")
    found = attempts(("change_priority", "read_keyrings"))
    assert {facts.name for facts in found if facts.succeeded}, [facts.said for facts in found]


ORDINARY = """
import json, os, sys
from pathlib import Path
import encodings.idna, shutil, psutil, zoneinfo
from rsi_tui.evaluator.redteam.escapes import ESCAPES, run_escapes
folder, names = Path(sys.argv[1]), sys.argv[2].split(",")
os.setgroups([]); os.setgid(54321); os.setuid(54321)
os.environ["HOME"] = str(folder)
for facts in run_escapes(Path("/usr/bin/python3"), folder / "ground", [e for e in ESCAPES if e.name in names]):
    print(json.dumps([facts.name, facts.succeeded, facts.seen, facts.broken]), flush=True)
"""


def as_an_ordinary_user(names: tuple[str, ...], timeout_s: float) -> list[list[object]]:
    folder = Path(tempfile.mkdtemp(prefix="rsi-escapes-"))
    os.chown(folder, 54321, 54321)
    try:
        command = [sys.executable, "-c", ORDINARY, str(folder), ",".join(names)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


ordinary = pytest.mark.skipif(os.geteuid() != 0 or not PYTHON.exists(), reason="the other tests run as an ordinary user")


@ordinary
@pytest.mark.slow
def test_no_attempt_of_an_ordinary_user_succeeds():
    found = as_an_ordinary_user(tuple(escape.name for escape in ESCAPES), 290)
    assert [(facts[0], facts[2]) for facts in found if facts[1]] == []
    assert len(found) == len(ESCAPES)

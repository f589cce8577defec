import importlib.metadata
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rsi_tui.launch import doctor, host, load, sandbox
from rsi_tui.launch.load import Reading
from rsi_tui.locations import Home


def test_the_fingerprint_names_processor_cores_memory_and_software():
    facts = host.fingerprint()
    assert re.search(r"\S.*, \d+ cores, \d+ GiB$", facts["hardware"])
    assert re.fullmatch(r"Linux \d+\.\d+, Python 3\.\d+", facts["software"])
    assert host.fingerprint() == facts


def test_the_hash_follows_the_facts_and_not_their_order():
    assert host.fingerprint_hash({"a": "1", "b": "2"}) == host.fingerprint_hash({"b": "2", "a": "1"})
    assert host.fingerprint_hash({"a": "1"}) != host.fingerprint_hash({"a": "2"})


def test_torch_is_asked_for_without_importing_it():
    assert host.torch_version(Path(sys.executable)) == importlib.metadata.version("torch")
    assert host.torch_version(Path("/bin/false")) == ""


@pytest.mark.parametrize(
    ("busy", "own", "ours", "load_"),
    [(2.0, 0.0, 0.0, 1.0), (2.0, 0.5, 0.0, 0.75), (2.0, 0.0, 2.0, 0.0), (2.0, 0.0, 3.0, 0.0), (0.0, 0.0, 0.0, 0.0)],
)
def test_foreign_load_is_what_is_left_and_never_negative(busy, own, ours, load_):
    assert load.foreign_load(Reading(10, 100, 5), Reading(12, 100 + busy, 5 + own), ours) == pytest.approx(load_)


def test_our_own_work_is_not_foreign():
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    before = load.read_load()
    thread = threading.Thread(target=spin)
    thread.start()
    time.sleep(0.6)
    stop.set()
    thread.join()
    after = load.read_load()
    busy = (after.busy_s - before.busy_s) / (after.at_s - before.at_s)
    assert load.foreign_load(before, after) < busy - 0.2


def test_the_doctor_looks_at_everything_and_every_fault_has_a_mend(tmp_path):
    checks = {check.name: check for check in doctor.examine(Home(tmp_path / "new" / "home"))}
    assert list(checks) == [
        *("python", "git", "sandbox", "calls", "memory", "nodes", "allocators", "home"),
        *("disk", "cores", "gpu", "torch", "encoder"),
    ]
    assert all(check.mend for check in checks.values() if check.status != "ok")
    assert checks["python"].status == checks["home"].status == checks["torch"].status == "ok"
    assert not (tmp_path / "new").exists()


def test_the_doctor_says_what_is_missing(tmp_path, monkeypatch):
    sandbox.sandbox_works.cache_clear()
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: "")
    monkeypatch.setattr(doctor, "_ENCODER", "no_such_package")
    (tmp_path / "file").write_text("")
    try:
        checks = {check.name: check for check in doctor.examine(Home(tmp_path / "file"))}
    finally:
        sandbox.sandbox_works.cache_clear()
    assert [checks[name].status for name in ("sandbox", "home", "encoder")] == ["missing"] * 3
    assert "apt install bubblewrap" in checks["sandbox"].mend


def test_the_doctor_fails_when_something_is_missing(tmp_path):
    """Exit code 1 where rsi can't work, 0 where it is only limited."""
    (tmp_path / "file").write_text("")
    for home, code in (("home", 0), ("file", 1)):
        env = {**os.environ, "RSI_HOME": str(tmp_path / home)}
        done = subprocess.run([sys.executable, "-m", "rsi_tui", "doctor"], capture_output=True, text=True, env=env)
        lines = done.stdout.splitlines()
        missing = any(line.startswith("missing") for line in lines)
        assert done.returncode == (1 if missing else 0), done.stderr
        assert missing or code == 0
        assert not done.stderr


def test_the_doctor_says_what_a_filter_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "filter_works", lambda: "a filter is refused (no); use another kernel.")
    check = {check.name: check for check in doctor.examine(Home(tmp_path))}["calls"]
    if not sandbox.sandbox_works():
        assert (check.status, check.what) == ("limited", "a filter is refused (no)")
        assert "another kernel" in check.mend


def test_nothing_heavy_is_imported():
    code = (
        "import sys, rsi_tui.launch.doctor, rsi_tui.launch.local, rsi_tui.launch.lease\n"
        "heavy = 'torch sentence_transformers lancedb duckdb botorch ray anthropic numpy'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"

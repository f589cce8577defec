"""The same launcher as a user who is not root: modules are loaded first, then the process gives root up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import needs_sandbox

pytestmark = [
    needs_sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs an interpreter that every user can read"),
]

SCRIPT = """
import os, sys, json, encodings.idna, shutil, psutil
from pathlib import Path
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.spec import LaunchSpec, Mount
scratch = Path(sys.argv[1])
os.chown(scratch, 54321, 54321)
os.setgroups([]); os.setgid(54321); os.setuid(54321)
launcher = LocalLauncher()
out = Mount(scratch, '/out', writable=True)

def go(*argv, **changes):
    return launcher.run(LaunchSpec(argv, '/', (out,), {'PATH': '/usr/bin:/bin'}, 20.0, **changes))

def show(name, run):
    print(json.dumps([name, run.exit_code, run.signal, run.killed_for, run.memory_source, run.peak_bytes,
                      [line.text for line in run.lines], round(run.wall_s, 2), round(run.cpu_s, 2)]), flush=True)

show('plain', go('/bin/sh', '-c', 'id -u; grep CapEff /proc/self/status; unshare -U true 2>/dev/null && echo ESCAPED; echo x > /out/x'))
show('memory', go('/usr/bin/python3', '-c', 'import time; x = bytearray(400 * 2**20); time.sleep(20)', memory_limit_bytes=150 * 2**20))
detach = "import os, time\\nfor n in range(50):\\n if os.fork() == 0:\\n  os.setsid(); os.fork()\\n  while True: time.sleep(0.1); open(f'/out/d{n}', 'w')\\ntime.sleep(0.5)"
show('detach', go('/usr/bin/python3', '-c', detach))
"""


def test_all_of_it_holds_for_an_ordinary_user(tmp_path):
    # Below /tmp itself: pytest's own folder is closed to others.
    scratch = Path(f"/tmp/rsi-ordinary-{os.getpid()}")
    scratch.mkdir()
    try:
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(scratch)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        import json

        plain, memory, detach = map(json.loads, done.stdout.splitlines())
        left = {place: place.stat().st_mtime_ns for place in scratch.iterdir()}
        import time

        time.sleep(0.3)
        assert {place: place.stat().st_mtime_ns for place in scratch.iterdir()} == left
        assert (scratch / "x").read_text() == "x\n"
    finally:
        subprocess.run(["rm", "-rf", str(scratch)], check=True)
    assert plain[1] == 0 and plain[6][0] == "65534" and plain[6][1].endswith("0" * 16) and "ESCAPED" not in plain[6]
    assert memory[2:5] == [9, "memory", "sampled"] and memory[5] >= 150 * 2**20 and memory[7] < 5
    assert detach[1] == 0 and detach[7] < 3.5

"""A trial that wants to stay: fifty children that detach, ignore every signal that can be ignored, and write."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.evaluator.redteam.escape_watch import marked
from rsi_tui.launch.folders import remove_tree
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.spec import LaunchSpec, Mount, RawRun

PYTHON = "/usr/bin/python3"
CHILDREN = 50
_MEMORY = 2**30
_CODE = f"""
import os, signal, sys, time
size = int(sys.argv[1]) // {CHILDREN}
for n in range({CHILDREN}):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        block = bytearray(2**20)
        with open(f"/out/{{n}}", "wb", buffering=0) as file:
            for _ in range(size // 2**20):
                file.write(block)
        while True:
            time.sleep(1)
until = time.monotonic() + float(sys.argv[2])
written = lambda: sum(os.stat(f"/out/{{n}}").st_size for n in range({CHILDREN}) if os.path.exists(f"/out/{{n}}"))
while time.monotonic() < until and written() < int(sys.argv[3]):
    time.sleep(0.05)
print("leaving")
"""


@dataclass(frozen=True)
class WildTrial:
    """What became of it."""

    run: RawRun
    ended_s: float
    """from its own end until its tree was gone"""
    deleted_s: float
    """what it took to delete its files"""
    processes_left: int
    disk_left_bytes: int
    """space that the disk had before and has no more; others write to it too"""


def wild_trial(folder: Path, size: int, limit: int | None = None, patience_s: float = 150.0, *, leaves: bool = True) -> WildTrial:
    """Run one that writes `size` bytes, below a folder on the disk in question, and clean up after it.

    `limit`: of its disk, twice the size where none is given. It leaves when all is written, or, without `leaves`, never.
    """
    place = Path(tempfile.mkdtemp(prefix="rsi-wild-", dir=folder))
    out, free = place / "out", shutil.disk_usage(folder).free
    out.mkdir()
    mark = f"rsi-wild-{os.getpid()}"
    wanted = size if leaves else 2**60
    spec = LaunchSpec(
        argv=(PYTHON, "-c", _CODE, str(size), str(patience_s), str(wanted)),
        cwd="/",
        mounts=(Mount(out, "/out", writable=True),),
        env={"PATH": "/usr/bin:/bin", "MARK": mark},
        timeout_s=patience_s + 30,
        memory_limit_bytes=_MEMORY,
        scratch_limit_bytes=limit if limit is not None else 2 * size,
    )
    try:
        run = LocalLauncher().run(spec)
        left, after = len(marked(mark)), time.monotonic()
        remove_tree(out)
        # The launcher returns when the tree is gone: what it needed after the last line is the time of its end.
        ended = run.lines[-1].at_s if run.lines else run.wall_s
        ended_s, deleted_s = run.wall_s - ended, time.monotonic() - after
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return WildTrial(run, ended_s, deleted_s, left, max(0, free - shutil.disk_usage(folder).free))


def deleting_takes(folder: Path, size: int) -> float:
    """Seconds to delete as many files of as many bytes that an ordinary program wrote to the same disk."""
    place = Path(tempfile.mkdtemp(prefix="rsi-plain-", dir=folder))
    try:
        block = bytes(2**20)
        for number in range(CHILDREN):
            with (place / str(number)).open("wb", buffering=0) as file:
                for _ in range(size // CHILDREN // 2**20):
                    file.write(block)
                os.fsync(file.fileno())
        began = time.monotonic()
        shutil.rmtree(place)
        return time.monotonic() - began
    finally:
        shutil.rmtree(place, ignore_errors=True)

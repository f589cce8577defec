import os
import resource
import threading
import time
from pathlib import Path

import pytest

from rsi_tui.launch.spec import Mount

from .conftest import needs_cgroup, python, shell, spec, texts

MIB = 2**20


def test_lines_are_stamped_when_they_were_printed(run):
    seen = run(shell("echo one; sleep 0.3; echo two >&2; sleep 0.2; echo three"))
    assert texts(seen) == ["one", "two", "three"]
    one, two, three = (line.at_s for line in seen.lines)
    assert two - one == pytest.approx(0.3, abs=0.08)
    assert three - two == pytest.approx(0.2, abs=0.08)
    assert three <= seen.wall_s < three + 0.2


def test_both_streams_keep_their_order(run):
    seen = run(shell("for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"))
    assert texts(seen) == [f"{s}{i}" for i in range(1, 6) for s in "oe"]


@pytest.mark.parametrize(
    ("text", "exit_code", "signal"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("kill -SEGV $$", None, 11),
        ("kill -TERM $$", None, 15),
        ("kill -KILL $$", None, 9),
    ],
)
def test_how_it_ended_is_told(run, text, exit_code, signal):
    seen = run(shell(text))
    assert (seen.exit_code, seen.signal, seen.killed_for, texts(seen)) == (exit_code, signal, "", [])


def test_a_command_that_does_not_exist_says_so(run):
    seen = run(spec("/no/such/program"))
    assert seen.exit_code == 127
    assert "/no/such/program" in texts(seen)[-1]


def test_timeout_ends_the_tree_and_keeps_its_lines(run):
    seen = run(shell("trap '' TERM INT; echo here; sleep 60", timeout_s=0.5))
    assert (seen.killed_for, seen.exit_code, seen.signal, texts(seen)) == ("timeout", None, 9, ["here"])
    assert 0.5 <= seen.wall_s < 1.5


def test_silence_is_counted_from_the_last_line(run):
    seen = run(shell("for i in 1 2 3 4; do sleep 0.2; echo $i; done; sleep 60", silence_timeout_s=0.5))
    assert (seen.killed_for, len(seen.lines)) == ("silence", 4)
    assert 1.2 <= seen.wall_s < 3.0


def test_a_line_without_end_is_silence(run):
    seen = run(shell("while :; do printf x; sleep 0.05; done", silence_timeout_s=0.5))
    assert seen.killed_for == "silence"


def test_cancel_ends_it_soon(run):
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    seen = run(shell("sleep 60"), cancel)
    assert seen.killed_for == "cancelled"
    assert seen.wall_s < 1.5


def test_an_interrupted_engine_leaves_nothing(run, monkeypatch, tmp_path):
    from rsi_tui.launch import local

    def interrupt(self, now):
        if now > 0.3:
            raise KeyboardInterrupt

    monkeypatch.setattr(local._Watch, "_enforce", interrupt)
    mark = tmp_path / "alive"
    mount = Mount(tmp_path, "/out", writable=True)
    with pytest.raises(KeyboardInterrupt):
        run(shell("trap '' TERM; while :; do date +%s%N > /out/alive; sleep 0.05; done", mounts=(mount,)))
    before = mark.read_text()
    time.sleep(0.3)
    assert mark.read_text() == before


def test_a_tree_that_detaches_and_ignores_signals_is_gone_at_its_end(run, tmp_path):
    code = """
import os, signal, sys, time
for n in range(50):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(s, signal.SIG_IGN)
        for fd in (0, 1, 2):
            os.close(fd)
        while True:
            open(f'/out/{n}', 'w').write(str(time.time()))
            time.sleep(0.1)
time.sleep(0.7)
"""
    seen = run(python(code, mounts=(Mount(tmp_path, "/out", writable=True),)))
    assert seen.exit_code == 0
    marks = {place.name: place.stat().st_mtime_ns for place in tmp_path.iterdir()}
    assert len(marks) > 40
    assert seen.wall_s < 3.7
    time.sleep(0.4)
    assert {place.name: place.stat().st_mtime_ns for place in tmp_path.iterdir()} == marks


@needs_cgroup
def test_processes_are_limited(run):
    code = """
import os, time
for n in range(200):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError as error:
        print('refused', error.errno, 1 + n)
        break
"""
    seen = run(python(code, max_processes=64))
    assert texts(seen) == ["refused 11 64"]
    assert seen.wall_s < 3


ALLOCATE = """
import sys, time
size = int(sys.argv[1]) * 2**20
with open('/in/big', 'rb') as big:
    while big.read(4 * 2**20):
        pass
block = bytearray(size)
block[::4096] = b'x' * len(block[::4096])
time.sleep(float(sys.argv[2]))
del block
print('done')
"""


@pytest.fixture
def big_file(tmp_path):
    """400 MiB that fill the page cache when read, without lying on the disk."""
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(400 * MIB)
    return Mount(path, "/in/big")


@needs_cgroup
def test_peak_counts_what_was_allocated_and_not_what_was_read(run, big_file):
    seen = run(python(ALLOCATE, "300", "0", memory_limit_bytes=2000 * MIB, mounts=(big_file,)))
    assert texts(seen) == ["done"]
    assert 300 * MIB <= seen.peak_bytes <= 325 * MIB


@needs_cgroup
def test_page_cache_does_not_kill(run, big_file):
    seen = run(python(ALLOCATE, "100", "0.1", memory_limit_bytes=200 * MIB, mounts=(big_file,)))
    assert (seen.exit_code, seen.oom_kill) == (0, False)
    assert 100 * MIB <= seen.peak_bytes <= 130 * MIB


@needs_cgroup
def test_shared_memory_counts_towards_the_peak(run):
    code = "open('/dev/shm/x', 'wb').write(bytes(80 * 2**20)); import time; time.sleep(0.2)"
    seen = run(python(code, memory_limit_bytes=500 * MIB))
    assert seen.peak_bytes >= 80 * MIB


@needs_cgroup
def test_too_much_memory_ends_the_tree_and_is_told(run):
    seen = run(python("x = bytearray(400 * 2**20); print('survived')", memory_limit_bytes=200 * MIB))
    assert (seen.oom_kill, seen.killed_for, seen.signal, texts(seen)) == (True, "memory", 9, [])
    assert seen.peak_bytes <= 200 * MIB


@needs_cgroup
def test_an_oom_kill_of_a_child_ends_the_whole_tree(run):
    code = "import os, time\nif os.fork() == 0:\n    x = bytearray(400 * 2**20)\ntime.sleep(60)"
    seen = run(python(code, memory_limit_bytes=200 * MIB))
    assert (seen.oom_kill, seen.killed_for) == (True, "memory")
    assert seen.wall_s < 5


def test_one_file_can_not_be_larger_than_the_limit(run, tmp_path):
    mount = Mount(tmp_path, "/out", writable=True)
    seen = run(shell("head -c 30000000 /dev/zero > /out/f; echo ended", mounts=(mount,), scratch_limit_bytes=10 * MIB))
    assert (tmp_path / "f").stat().st_size <= 10 * MIB
    assert texts(seen)[-1] == "ended"


def test_many_files_together_can_not_be_larger_than_the_limit(run, tmp_path):
    mount = Mount(tmp_path, "/out", writable=True)
    text = "for i in 1 2 3 4 5 6; do head -c 9000000 /dev/zero > /out/$i; done; sleep 60"
    seen = run(shell(text, mounts=(mount,), scratch_limit_bytes=10 * MIB))
    assert seen.killed_for == "disk"
    assert seen.wall_s < 5


def test_open_files_are_limited(run):
    seen = run(shell("ulimit -n; ulimit -c", max_open_files=77))
    assert texts(seen) == ["77", "0"]


def test_cores_are_those_of_the_spec(run):
    seen = run(python("import os; print(sorted(os.sched_getaffinity(0)))", cores=(0,)))
    assert texts(seen) == ["[0]"]


@needs_cgroup
def test_cores_can_not_be_taken_back(run):
    code = (
        "import os\ntry:\n    os.sched_setaffinity(0, range(64))\nexcept OSError: pass\nprint(os.sched_getaffinity(0))"
    )
    assert texts(run(python(code, cores=(0,)))) == ["{0}"]


def test_cpu_time_of_detached_children_is_counted(run):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: pass
    os._exit(0)
time.sleep(0.8)
"""
    assert run(python(code)).cpu_s >= 0.2


def test_waiting_costs_the_trial_nothing(run):
    before = time.process_time()
    seen = run(shell("sleep 1.5"))
    assert time.process_time() - before < 0.05 * seen.wall_s


def test_a_hundred_megabytes_of_output_do_not_fill_our_memory(run):
    line = "x" * 99
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = run(shell(f"yes {line} | head -c 100000000"))
    assert "lines_dropped" in seen.flags
    assert len(seen.lines) == 200_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024


def test_the_live_log_follows(run, tmp_path):
    log = tmp_path / "live.log"
    done = threading.Event()
    found: list[float] = []

    def watch() -> None:
        begun = time.monotonic()
        while not done.is_set() and not found:
            if log.exists() and b"hello" in log.read_bytes():
                found.append(time.monotonic() - begun)
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    run(shell("echo hello; sleep 1.2; echo bye", live_log=log))
    done.set()
    thread.join()
    assert found and found[0] < 1.0
    assert log.read_text() == "hello\nbye\n"


def test_the_sandbox_costs_little(run):
    costs = []
    for _ in range(5):
        seen = run(shell("exit 0"))
        costs.append(seen.wall_s + seen.launcher_s)
    assert sorted(costs)[2] < 0.15


def _our_groups():
    return Path("/sys/fs/cgroup").glob(f"**/rsi-{os.getpid()}-*")


def test_nothing_is_left_behind(run):
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    run(shell("sleep 0.1"))
    run(shell("sleep 60", timeout_s=0.2))
    assert list(_our_groups()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors

"""v1 or v2, whichever this machine has, with real processes; the files of the other by their format alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rsi_tui.launch import memory
from rsi_tui.launch.memory import (
    NO_HUGE_LIMIT,
    NO_SWAP_LIMIT,
    CgroupV2,
    Controllers,
    find_controllers,
    open_group,
    reclaim,
)
from rsi_tui.launch.sampled import SampledGroup

from .conftest import needs_cgroup, needs_sandbox, shell

MIB = 2**20


def ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(true, seconds: float = 3.0) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


@needs_cgroup
def test_a_group_ends_all_that_is_in_it_and_goes():
    group = open_group(shell("true", max_processes=40))
    process = subprocess.Popen(
        ["/bin/sh", "-c", "read x; for i in 1 2 3; do setsid sleep 60 & done; wait"], stdin=subprocess.PIPE
    )
    group.attach(process.pid)
    process.stdin.close()
    assert wait_until(lambda: len(group.pids()) == 4)
    group.remove()
    assert process.wait(2) == -signal.SIGKILL
    assert not any(folder.exists() for folder in group.folders.values())


@needs_cgroup
def test_orphans_of_a_dead_engine_are_reclaimed_and_those_of_a_living_one_are_not():
    code = (
        "import subprocess, sys\n"
        "from rsi_tui.launch.memory import open_group\n"
        "from rsi_tui.launch.spec import LaunchSpec\n"
        "group = open_group(LaunchSpec(('/bin/true',), '/', (), {}, 1.0))\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "group.attach(child.pid)\n"
        "print(next(iter(group.folders.values())).name, child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with engine:
        name, pid = engine.stdout.readline().split()
        assert name not in reclaim()
        assert not ended(int(pid))
        engine.kill()
        engine.wait()
        assert name in reclaim()
    assert wait_until(lambda: ended(int(pid)))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{name}"))


@needs_sandbox
def test_a_trial_dies_with_its_engine(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from rsi_tui.launch.local import LocalLauncher\n"
        "from rsi_tui.launch.spec import LaunchSpec, Mount\n"
        f"out = Mount(Path({str(tmp_path)!r}), '/out', writable=True)\n"
        "text = 'trap \"\" TERM HUP; while :; do date +%N > /out/alive; sleep 0.05; done'\n"
        "LocalLauncher().run(LaunchSpec(('/bin/sh', '-c', text), '/', (out,), {'PATH': '/bin'}, 60.0))\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code])
    alive = tmp_path / "alive"
    assert wait_until(lambda: alive.exists() and alive.read_text() != "", 10)
    engine.kill()
    engine.wait()
    time.sleep(0.2)
    before = alive.read_text()
    time.sleep(0.2)
    assert alive.read_text() == before
    reclaim()


@pytest.fixture
def v2(tmp_path):
    """The files of a v2 group as Linux writes them. The kernel behind them is not there."""
    group = CgroupV2.__new__(CgroupV2)
    group.folder = tmp_path
    group.folders = {"unified": tmp_path}
    group.limit, group._peak, group._noncache, group._slack, group._peak_fd = 500 * MIB, None, (0, 0), 0, None
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 0\noom_group_kill 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    return group


def stat(group: CgroupV2, **mib: int) -> None:
    values = {"anon": 0, "file": 0, "shmem": 0, "kernel": 0, "sock": 0} | mib
    (group.folder / "memory.stat").write_text("".join(f"{name} {n * MIB}\n" for name, n in values.items()))


def test_v2_counts_anonymous_and_shared_and_no_cache(v2):
    stat(v2, anon=100, file=250, shmem=50, kernel=5)
    assert v2.sample() is False
    assert (v2.peak(), v2.cpu_s()) == (150 * MIB, 1.5)


def test_v2_finds_a_spike_between_samples_by_its_mark(v2, monkeypatch):
    marks = iter([110 * MIB, 480 * MIB])
    monkeypatch.setattr(v2, "_mark", lambda: next(marks))
    stat(v2, anon=100, kernel=5)
    v2.sample()
    stat(v2, anon=90, file=150, kernel=10)
    v2.sample()
    assert v2.peak() == (480 - 150 - 10) * MIB


def test_v2_says_when_the_controller_killed(v2):
    stat(v2, anon=100)
    assert v2.sample() is False
    (v2.folder / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert v2.sample() is True


def test_without_a_controller_memory_is_sampled():
    group = open_group(shell("true"), Controllers("none"))
    assert isinstance(group, SampledGroup)


def test_where_a_limit_cannot_be_set_memory_is_sampled_and_marked(tmp_path):
    """Controllers that look usable and are not: a read-only mount, or limits of the host."""
    file = tmp_path / "no folder can be made here"
    file.write_text("")
    for kind, name in (("cgroup1", "memory"), ("cgroup2", "unified")):
        assert open_group(shell("true", memory_limit_bytes=MIB), Controllers(kind, ((name, file),))).source == "sampled"


def test_sampling_sees_the_whole_tree_and_follows_what_detaches():
    code = (
        "import os, sys, time\n"
        "x = bytearray(60 * 2**20)\n"
        "if os.fork() == 0:\n"
        "    y = bytearray(80 * 2**20)\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print('detached', os.getpid(), flush=True)\n"
        "        time.sleep(60)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    group = SampledGroup(100 * MIB)
    with process:
        group.attach(process.pid)
        assert process.stdout.readline() == "ready\n"
        assert group.sample() is True
        assert group.peak() >= 140 * MIB
        process.stdin.write("go\n")
        process.stdin.flush()
        pid = int(process.stdout.readline().split()[1])
        group.sample()
        parent = parent_of(pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert wait_until(lambda: parent_of(pid) != parent)
        group.kill()
        assert wait_until(lambda: ended(pid))


@pytest.mark.parametrize("filled", [True, False])
def test_sampling_sees_what_is_held_in_buffers_of_sockets(filled: bool):
    code = (
        "import socket, sys\n"
        "kept = []\n"
        "for n in range(400):\n"
        "    for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):\n"
        "        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)\n"
        "        end.setblocking(False)\n"
        "        kept.append(end)\n"
        "        try:\n"
        f"            while {filled}:\n"
        "                end.send(bytes(60000))\n"
        "        except OSError:\n"
        "            pass\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    group = SampledGroup(80 * MIB)
    process = subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        group.attach(process.pid)
        assert process.stdout.readline() == "ready\n"
        assert group.sample() is filled
        process.stdin.close()


def test_why_there_is_no_controller_is_said_with_a_mend(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = find_controllers()
    assert found.kind == "none"
    assert "; " in found.why_not


def test_a_limit_that_cannot_hold_swap_or_huge_pages_says_so(tmp_path, monkeypatch):
    """A folder stands for a v2 group whose kernel lacks the controls for both, on a machine that has both."""
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nSwapTotal: 4096 kB\n")
    pool = tmp_path / "hugepages" / "hugepages-2048kB"
    pool.mkdir(parents=True)
    (pool / "nr_hugepages").write_text("16\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_HUGE_PAGES", tmp_path / "hugepages")
    found = Controllers("cgroup2", (("unified", tmp_path),))
    assert CgroupV2(found, "limited", shell("true", memory_limit_bytes=MIB)).flags == (NO_SWAP_LIMIT, NO_HUGE_LIMIT)
    assert CgroupV2(found, "unlimited", shell("true")).flags == ()
    (pool / "nr_hugepages").write_text("0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nSwapTotal: 0 kB\n")
    assert CgroupV2(found, "nothing to hold", shell("true", memory_limit_bytes=MIB)).flags == ()


@needs_cgroup
def test_a_limit_on_this_machine_keeps_out_of_swap_and_huge_pages():
    group = open_group(shell("true", memory_limit_bytes=100 * MIB))
    try:
        assert group.flags == ()
        for folder in set(group.folders.values()):
            written = [*folder.glob("memory.swappiness"), *folder.glob("memory.swap.max"), *folder.glob("hugetlb.*.max"),
                       *folder.glob("hugetlb.*.limit_in_bytes")]  # fmt: skip
            assert all(path.read_text().strip() == "0" for path in written)
    finally:
        group.remove()

"""A run of several nodes: joined by a link of the rate asked for, apart in everything else, gone at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rsi_tui.errors import SandboxError
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.network import FLAG_UNLIMITED, Network, Wiring, burst_bytes, rate_bits, wiring
from rsi_tui.launch.nodes import node_log, run_nodes
from rsi_tui.launch.sandbox import sandbox_works
from rsi_tui.launch.spec import LaunchSpec, RawRun
from tests.launch.conftest import python, shell

pytestmark = pytest.mark.skipif(bool(sandbox_works()), reason=sandbox_works())
needs_links = pytest.mark.skipif(
    bool(sandbox_works()) or bool(wiring().why_unlimited), reason="links can't be limited on this machine"
)

SEND = """
import socket, sys, time
own, count = sys.argv[1], int(sys.argv[2])
if own == "0":
    server = socket.create_server(("10.77.0.1", 4000))
    peer = server.accept()[0]
    seen = 0
    while data := peer.recv(1 << 20):
        seen += len(data)
    print("got", seen)
else:
    for _ in range(100):
        try:
            s = socket.create_connection(("10.77.0.1", 4000))
            break
        except OSError:
            time.sleep(0.05)
    began = time.monotonic()
    s.sendall(bytes(count))
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
    print("sent in", time.monotonic() - began)
"""


def both(zero: str, one: str, link: str = "", cancel: threading.Event | None = None, **changes: object) -> RawRun:
    return run_nodes(LocalLauncher(), [shell(zero, **changes), shell(one, **changes)], link, cancel)


@needs_links
def test_a_link_carries_the_rate_that_was_asked_for() -> None:
    count = 6_000_000
    run = run_nodes(LocalLauncher(), [python(SEND, "0", str(count)), python(SEND, "1", str(count))], "80mbit")
    assert run.exit_code == 0, run.lines
    took = float(next(line.text for line in run.lines if line.node == 1).split()[-1])
    at_rate = (count - burst_bytes(80e6)) / (80e6 / 8)
    assert at_rate < took < 1.3 * at_rate + 0.3
    assert run.nodes[1].sent_bytes is not None and count < run.nodes[1].sent_bytes < 1.1 * count
    assert run.nodes[0].sent_bytes is not None and run.nodes[0].sent_bytes < 0.1 * count
    assert FLAG_UNLIMITED not in run.flags


def test_nodes_share_nothing_but_the_link(tmp_path: Path) -> None:
    """No folder, no memory, no process of another node, and no other network."""
    look = "ls /tmp /dev/shm | grep -c mark; grep -c : /proc/net/dev; ls /proc | grep -c '^[0-9]'"
    run = both(f"touch /tmp/mark /dev/shm/mark; sleep 0.5 & {look}; wait", f"sleep 0.2; {look}")
    zero, one = ([line.text for line in run.lines if line.node == node] for node in (0, 1))
    assert zero[0] == "2"
    assert one[0] == "0"
    assert one[1] == "2"  # lo and the link
    assert int(one[2]) < int(zero[2])  # the other's sleep is not seen


def test_every_node_has_a_memory_limit_of_its_own() -> None:
    hog = "x = bytearray(200 << 20); x[::4096] = b'x' * len(x[::4096]); import time; time.sleep(0.3)"
    run = run_nodes(LocalLauncher(), [python(hog, memory_limit_bytes=300 << 20) for _ in range(2)], "")
    assert run.exit_code == 0
    assert run.peak_bytes is not None and 200 << 20 < run.peak_bytes < 300 << 20


def test_the_node_that_failed_first_is_the_end_of_the_run() -> None:
    run = both("sleep 0.6; echo connection closed by peer >&2; exit 7", "sleep 0.1; echo the cause; exit 3")
    assert run.exit_code == 3
    assert [node.exit_code for node in run.nodes] == [7, 3]
    assert [(line.node, line.text) for line in run.lines] == [(1, "the cause"), (0, "connection closed by peer")]


def test_nodes_that_wait_for_a_dead_one_are_ended_soon() -> None:
    began = time.monotonic()
    run = both("sleep 60", "exit 9")
    assert time.monotonic() - began < 12
    assert run.exit_code == 9 and not run.killed_for
    assert run.nodes[0].killed_for == "peer"


def test_a_node_out_of_memory_is_told_from_the_one_that_lost_it() -> None:
    hog = "import time; time.sleep(0.3); x = bytearray(400 << 20); x[::4096] = b'x' * len(x[::4096]); time.sleep(60)"
    lost = "import time, sys; time.sleep(1.5); sys.exit('Connection closed by peer')"
    run = run_nodes(LocalLauncher(), [python(lost, memory_limit_bytes=200 << 20), python(hog, memory_limit_bytes=200 << 20)], "")
    assert run.killed_for == "memory" or run.oom_kill
    assert run.nodes[1].oom_kill and not run.nodes[0].oom_kill


def test_a_person_ends_all_nodes() -> None:
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    began = time.monotonic()
    run = both("sleep 60", "sleep 60", cancel=cancel)
    assert run.killed_for == "cancelled"
    assert {node.killed_for for node in run.nodes} == {"cancelled"}
    assert time.monotonic() - began < 5


def test_the_silence_of_a_node_that_need_not_print_is_no_hang() -> None:
    run = both("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done", "sleep 1.2", silence_timeout_s=0.8)
    assert run.exit_code == 0 and not run.killed_for


def test_each_node_has_a_log_of_its_own(tmp_path: Path) -> None:
    both("echo zero", "echo one", live_log=tmp_path / "live.log")
    assert (tmp_path / "live.log").read_text() == "zero\n"
    assert node_log(tmp_path / "live.log", 1).read_text() == "one\n"


def test_a_sandbox_that_can_not_be_built_is_an_error_and_no_hang() -> None:
    broken = LaunchSpec(argv=("/bin/true",), cwd="/nowhere", mounts=(), env={}, timeout_s=20)
    with pytest.raises(SandboxError):
        run_nodes(LocalLauncher(), [shell("sleep 60"), broken], "")


def test_without_links_the_nodes_share_a_loopback_and_it_says_so() -> None:
    network = Network(2, 0.0, Wiring("lo", "127.0.0.1", "why"))
    try:
        assert network.flags == (FLAG_UNLIMITED,)
        seen = subprocess.run([*network.entry(0), "/bin/cat", "/proc/net/dev"], capture_output=True, text=True, check=True)
        assert [row.split(":")[0].strip() for row in seen.stdout.splitlines()[2:]] == ["lo"]
        assert network.sent_bytes(0) is None
    finally:
        network.close()


def test_rates_are_read_in_bits_a_second() -> None:
    assert rate_bits("400mbit") == 400e6
    assert rate_bits("2.5gbit") == 2.5e9
    assert rate_bits("") == 0


_RUNS = """
import sys
sys.path.insert(0, sys.argv[1])
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.nodes import run_nodes
from tests.launch.conftest import shell
print("on", flush=True)
run_nodes(LocalLauncher(), [shell("echo up; exec sleep 4711"), shell("exec sleep 4711")], "100mbit")
"""


def _ours(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_text().replace("\0", " ") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("after_s", [0.15, 0.4, 1.0])
def test_nothing_is_left_after_kill_9(after_s: float) -> None:
    root = str(Path(__file__).parents[2])
    engine = subprocess.Popen([sys.executable, "-c", _RUNS, root], stdout=subprocess.PIPE)
    assert engine.stdout is not None
    engine.stdout.readline()
    time.sleep(after_s)
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    deadline = time.monotonic() + 5
    while (left := _ours("sleep 4711") + _ours("ip link add name switch")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left

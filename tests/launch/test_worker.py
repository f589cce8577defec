import time

from rsi_tui.launch.local import LocalLauncher

from .conftest import needs_cgroup, needs_sandbox, python, shell

pytestmark = needs_sandbox

ECHO = """
import sys, os
print('noise', file=sys.stderr)
for line in sys.stdin:
    print(os.getuid(), line.strip()[::-1], flush=True)
"""


def ask(worker, text: bytes) -> bytes:
    worker.stdin.write(text + b"\n")
    worker.stdin.flush()
    return worker.stdout.readline()


def test_a_worker_answers_from_inside_the_sandbox(tmp_path):
    with LocalLauncher().open_worker(python(ECHO, live_log=tmp_path / "err")) as worker:
        assert ask(worker, b"abc") == b"65534 cba\n"
        assert ask(worker, b"xyz") == b"65534 zyx\n"
    assert worker.returncode == 0
    assert (tmp_path / "err").read_text() == "noise\n"


def test_a_worker_that_does_not_listen_is_ended():
    worker = LocalLauncher().open_worker(shell("trap '' TERM HUP; sleep 60"))
    begun = time.monotonic()
    worker.close()
    worker.close()
    assert time.monotonic() - begun < 3
    assert worker.poll() is not None


@needs_cgroup
def test_a_worker_has_its_memory_limit():
    code = "input(); x = bytearray(300 * 2**20); print('survived', flush=True); input()"
    with LocalLauncher().open_worker(python(code, memory_limit_bytes=100 * 2**20)) as worker:
        assert ask(worker, b"go") == b""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rsi_tui.errors import ContractError, SandboxError
from rsi_tui.launch import sandbox
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.sandbox import bwrap_argv, python_mounts
from rsi_tui.launch.spec import Mount

from .conftest import PYTHON, needs_sandbox, python, shell, spec, texts

# Every attempt must be harmless where it succeeds: it writes back what it read, touches, or asks.
REWRITE = "rewrite() { value=$(cat $1) && echo $value > $1; }; rewrite"

ATTEMPTS = {
    "mount the memory cgroup": "mkdir /tmp/c && mount -t cgroup -o memory c /tmp/c",
    "mount the unified cgroup": "mkdir /tmp/c && mount -t cgroup2 c /tmp/c",
    "mount a proc of its own": "mount -t proc proc /tmp",
    "make a user namespace": "unshare -U true",
    "make a user namespace with root in it": "unshare -Ur true",
    "make a mount namespace": "unshare -m true",
    "enter another namespace": "nsenter -t 1 -m true",
    "change the program that handles core dumps": f"{REWRITE} /proc/sys/kernel/core_pattern",
    "turn on overcommit": f"{REWRITE} /proc/sys/vm/overcommit_memory",
    "escape the out-of-memory killer": f"{REWRITE} /proc/self/oom_score_adj",
    "make /proc writable": "mount -o remount,rw /proc",
    "write to the root": "touch /",
    "write to the system": "touch /usr",
    "write to /dev": "touch /dev",
    "make a device": "mknod /tmp/sda b 8 0",
    "set the clock": "date -s now",
    "set the name of the host": "hostname $(hostname)",
    "take a higher priority": "nice -n -5 sh -c '[ $(nice) -lt 0 ]'",
    "see another process": "[ $(ls -d /proc/[0-9]* | wc -l) -gt 8 ]",
    "raise its limits": "ulimit -c unlimited",
    "become root": "setpriv --reuid 0 true",
    "take a capability": "setpriv --inh-caps +all true",
    "read the kernel's log": "cat /dev/kmsg || dmesg | grep .",
    "see devices": "ls /sys | grep . || ls /dev/vda /dev/sda /dev/nvme0n1 2>/dev/null | grep .",
}


@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_trial_can_not(run, what):
    seen = run(shell(f"( {ATTEMPTS[what]} ) 2>/dev/null && echo ESCAPED; echo tried"))
    assert "ESCAPED" not in texts(seen)
    assert texts(seen)[-1] == "tried"


def test_the_tools_of_these_attempts_are_there(run):
    """Otherwise the attempts fail for want of a program, which shows nothing."""
    tools = "mount unshare nsenter mknod date hostname nice setpriv dmesg grep touch"
    assert texts(run(shell(f"for t in {tools}; do command -v $t >/dev/null || echo $t is missing; done"))) == []


def test_the_first_process_of_the_sandbox_can_not_be_killed_from_inside(run):
    # Only where that process is surely the sandbox's own: it names this command.
    seen = run(shell("grep -qa 'exec 3>&2' /proc/1/cmdline && kill -9 1; sleep 0.2; echo alive"))
    assert texts(seen) == ["alive"]


def test_no_sysctl_can_be_written(run):
    code = """
import os
opened = []
for top, folders, names in os.walk('/proc', onerror=lambda e: None):
    folders[:] = [f for f in folders if not f.isdigit() and f not in ('self', 'thread-self')]
    for name in names:
        try:
            os.close(os.open(os.path.join(top, name), os.O_WRONLY))
            opened.append(os.path.join(top, name))
        except OSError:
            pass
print(opened)
"""
    assert texts(run(python(code))) == ["[]"]


def test_it_is_nobody_without_capabilities(run):
    seen = texts(run(shell("id -u; id -g; grep -E 'Cap|NoNewPrivs' /proc/self/status; cat /proc/sys/kernel/hostname")))
    assert seen[:2] == ["65534", "65534"]
    assert {line.split()[1] for line in seen if line.startswith("Cap")} == {"0" * 16}
    assert "NoNewPrivs:\t1" in seen
    assert seen[-1] == "trial"


def test_the_network_is_its_own(run):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0rsi-test-{os.getpid()}")
        local.listen()
        code = """
import socket, sys
for family, address in ((socket.AF_INET, ('127.0.0.1', int(sys.argv[1]))), (socket.AF_UNIX, chr(0) + sys.argv[2]),
                        (socket.AF_INET, ('1.1.1.1', 53))):
    with socket.socket(family) as s:
        s.settimeout(2)
        try:
            s.connect(address)
            print('reached', address)
        except OSError:
            pass
print(sorted(name for _, name in socket.if_nameindex()))
with socket.create_server(('localhost', 0)) as s, socket.create_connection(s.getsockname()):
    print('loopback works')
"""
        seen = run(python(code, str(server.getsockname()[1]), f"rsi-test-{os.getpid()}"))
    assert texts(seen) == ["['lo']", "loopback works"]


def test_home_and_evaluator_are_not_there(run, tmp_path):
    secret = tmp_path / "evaluator" / "vault.jsonl"
    tree = tmp_path / "evaluator" / "trees" / "t1"
    tree.mkdir(parents=True)
    secret.write_text("the order is ABBA")
    (tree / "train.py").write_text("pass")
    home = Path.home()
    code = f"""
import os
for place in ({str(secret)!r}, {str(tmp_path)!r}, '/job/../vault.jsonl', {str(home / ".bashrc")!r}, '/home', '/srv', '/var',
              '/etc/shadow', '/etc/passwd-', {str(Path.cwd() / "pyproject.toml")!r}, '/proc/1/root{secret}', '/proc/1/cwd/vault.jsonl'):
    if os.path.exists(place):
        print(place, 'is there')
print(os.listdir('/job'), os.environ.get('HOME'), [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 5])
"""
    seen = run(python(code, mounts=(Mount(tree, "/job"),), cwd="/job"))
    assert texts(seen) == ["['train.py'] None []"]


def test_read_only_is_read_only_and_scratch_is_not(run, tmp_path):
    (tmp_path / "tree" / "out").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    mounts = (Mount(tmp_path / "scratch", "/job/out", writable=True), Mount(tmp_path / "tree", "/job"))
    seen = run(shell("touch /job/x 2>/dev/null; echo kept > out/y; ls", mounts=mounts, cwd="/job"))
    assert texts(seen) == ["out"]
    assert (tmp_path / "scratch" / "y").read_text() == "kept\n"


def test_a_mount_below_tmp_is_seen_and_tmp_is_private(run, tmp_path):
    place = Path("/tmp") / f"rsi-test-{os.getpid()}"
    place.mkdir()
    try:
        (place / "input").write_text("here")
        seen = run(shell(f"cat {place}/input; ls /tmp; echo > /tmp/left", mounts=(Mount(place, str(place)),)))
    finally:
        (place / "input").unlink()
        place.rmdir()
    assert texts(seen) == [f"here{place.name}"]
    assert not Path("/tmp/left").exists()


def test_nothing_is_carried_over_to_the_next_trial(run):
    run(shell("echo > /tmp/a; echo > /dev/shm/a"))
    assert texts(run(shell("ls /tmp /dev/shm"))) == ["/dev/shm:", "", "/tmp:"]


def test_the_environment_is_what_was_given(run, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("LD_PRELOAD", "")
    seen = run(python("import os; print(sorted(os.environ.items()))", env={"A": "1 2\n3", "PATH": "/usr/bin"}))
    assert texts(seen)[0] == str(sorted({"A": "1 2\n3", "PATH": "/usr/bin", "PWD": "/", "LC_CTYPE": "C.UTF-8"}.items()))


def test_only_three_descriptors_are_open(run, tmp_path):
    with (tmp_path / "secret").open("w") as kept:
        os.set_inheritable(kept.fileno(), True)
        code = "import os; print([f for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')])"
        first = (
            "import os; print(sorted(os.readlink(f'/proc/1/fd/{f}').split(':')[0] for f in os.listdir('/proc/1/fd')))"
        )
        assert texts(run(python(code))) == ["['0', '1', '2']"]
        assert texts(run(python(first))) == ["['/dev/null', '/dev/null', 'pipe', 'pipe']"]


def test_input_is_empty(run):
    assert run(shell("cat; echo $?", timeout_s=5)).lines[0].text == "0"


def test_a_missing_mount_is_a_sentence(run, tmp_path):
    with pytest.raises(SandboxError, match=r"could not be built: .*nowhere"):
        run(shell("true", mounts=(Mount(tmp_path / "nowhere", "/job"),)))


def test_without_bubblewrap_it_refuses_and_says_how_to_mend(monkeypatch):
    sandbox.sandbox_works.cache_clear()
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: "")
    try:
        with pytest.raises(SandboxError, match=r"apt install bubblewrap.*--unsandboxed"):
            LocalLauncher()
        bare = LocalLauncher(sandboxed=False)
    finally:
        sandbox.sandbox_works.cache_clear()
    assert (bare.trust_cap(), bare.describe().startswith("no sandbox")) == ("C", True)


@needs_sandbox
def test_with_the_sandbox_it_says_what_isolates():
    launcher = LocalLauncher()
    assert launcher.trust_cap() == "A"
    assert "no capabilities" in launcher.describe()


def test_mounts_go_from_the_outside_in():
    mounts = (Mount(Path("/b"), "/job/data/x"), Mount(Path("/a"), "/job"), Mount(Path("/c"), "/job/data"))
    argv = bwrap_argv(spec("/bin/true", mounts=mounts))
    places = [argv.index(target) for target in ("/job", "/job/data", "/job/data/x")]
    assert places == sorted(places)
    assert argv.index("/tmp") < places[0]


def test_the_interpreter_with_its_packages_works_inside(run):
    code = "import sys, numpy, ctypes, ssl; print(sys.prefix, numpy.ones(2).sum())"
    assert texts(run(python(code))) == [f"{sys.prefix} 2.0"]


def test_an_environment_in_a_project_does_not_bring_the_project(run, tmp_path):
    project = tmp_path / "project"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(project)], check=True)
    (project / "secret.py").write_text("KEY = 1")
    mounts = python_mounts(project / "bin" / "python")
    seen = run(spec(str(project / "bin" / "python"), "-c", "import sys; print(sys.prefix)", mounts=mounts))
    assert texts(seen) == [str(project)]
    assert texts(run(shell(f"ls {project}", mounts=mounts))) == sorted(["bin", "include", "lib", "lib64", "pyvenv.cfg"])


@pytest.mark.parametrize("path", ["/no/python", "/bin/false", "/bin/echo"])
def test_what_is_no_interpreter_is_named(path):
    with pytest.raises(ContractError, match=path):
        python_mounts(Path(path))


def test_trials_in_threads_do_not_disturb_each_other(run):
    results: dict[int, str] = {}

    def trial(n: int) -> None:
        results[n] = texts(run(shell(f"sleep 0.2; echo {n}")))[0]

    threads = [threading.Thread(target=trial, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: str(n) for n in range(4)}

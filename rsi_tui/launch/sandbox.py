"""The sandbox of a trial: which arguments make bubblewrap build it, and whether it can here.

Inside there is: the system's programs and libraries, read-only; the mounts that were asked for; a
private /proc that is read-only, a minimal /dev, an empty /sys; /tmp and /dev/shm of its own, in
memory that is charged to the trial; a filter of system calls (`syscall_filter`), where the machine has one. There is not: the home, any other folder, the network, another
process, a capability, a way to make namespaces. /proc is read-only because a trial started by root
still owns root's files to the kernel, sysctls such as core_pattern among them; for the same reason what only
root may read in it is covered up.

Not promised: the names (not the contents) of mounted folders can be read in /proc/self/mountinfo;
libraries outside /usr (Nix, Guix) are not seen. GPU devices are bound as NVIDIA's driver lays them
out, which has not been tried on a machine with a GPU.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

from rsi_tui.environment import for_child
from rsi_tui.errors import ContractError
from rsi_tui.launch.spec import LaunchSpec, Mount
from rsi_tui.launch.syscall_filter import open_program, program

NOBODY = 65534
OLDEST = (0, 8, 0)
"""first bubblewrap that can forbid nested user namespaces"""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_OWN_FILES = ("passwd", "group", "hosts", "nsswitch.conf")
_ETC = Path(__file__).with_name("etc")
_DEFAULT_TMP = 2**30
_PROBED = 42

# The first process of the pid namespace. When it ends the kernel ends all others, whatever they ignore,
# and only then does bubblewrap see its end. Its own stderr goes nowhere, so that "Killed" is not mixed into
# the program's output.
INIT = 'exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); exit $?'

_ISOLATION = (
    *("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--disable-userns"),
    *("--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--hostname", "trial"),
    *("--unshare-cgroup", "--cap-drop", "ALL"),
    *("--new-session", "--die-with-parent", "--clearenv"),
)


def bwrap_argv(spec: LaunchSpec, report_fd: str = "", filter_fd: str = "") -> list[str]:
    """The command that runs `spec.argv` in the strict sandbox; reads the file system, changes nothing.

    `report_fd` is the descriptor on which bubblewrap tells (as JSON) the pid of the sandbox's first process
    and, once the program has run, its exit code; `filter_fd` the one from which it reads the filter.
    Where a mount's target lies inside another mount, its place must exist there already: bubblewrap
    can't make it in a read-only folder.
    """
    size = ("--size", str(spec.memory_limit_bytes or _DEFAULT_TMP), "--tmpfs")
    network = () if spec.entry else ("--unshare-net",)
    argv = [*spec.entry, bwrap_path() or "bwrap", *_ISOLATION, *network]
    if report_fd:
        argv += ["--json-status-fd", report_fd]
    if filter_fd:
        argv += ["--seccomp", filter_fd]
    argv += ["--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", "--tmpfs", "/sys", *size, "/tmp"]
    argv += _system()
    if spec.gpus:
        argv += _gpu_devices()
    # A mount over a parent hides what was bound below it, so parents go first.
    for mount in sorted(spec.mounts, key=lambda m: len(PurePosixPath(m.target).parts)):
        argv += ["--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target]
    for name in _closed_proc():
        argv += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for place in ("/proc", "/sys", "/dev", "/"):
        argv += ["--remount-ro", place]
    for name, value in sorted(spec.env.items()):
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", spec.cwd, "--", "/bin/sh", "-c", INIT, "sh", *spec.argv]


def _system() -> list[str]:
    argv: list[str] = []
    for place in map(Path, SYSTEM):
        if place.is_symlink():
            argv += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            argv += ["--ro-bind", str(place), str(place)]
    for name in _SYSTEM_FILES:
        argv += ["--ro-bind-try", name, name]
    for name in _OWN_FILES:
        argv += ["--ro-bind", str(_ETC / name), f"/etc/{name}"]
    return argv


@functools.cache
def _closed_proc() -> tuple[str, ...]:
    """Files of /proc that are not everybody's to read (memory and pages of the kernel), and the keys."""
    found = [entry for entry in os.scandir("/proc") if entry.is_file(follow_symlinks=False)]
    closed = {entry.name for entry in found if not entry.stat().st_mode & 0o004}
    return tuple(sorted(closed | ({"keys", "key-users"} & {entry.name for entry in found})))


def _gpu_devices() -> list[str]:
    argv: list[str] = []
    for device in sorted(Path("/dev").glob("nvidia*")):
        argv += ["--dev-bind", str(device), str(device)]
    for place in ("/sys/devices", "/sys/bus/pci", "/sys/module/nvidia", "/sys/module/nvidia_uvm"):
        argv += ["--ro-bind-try", place, place]
    return argv


@functools.cache
def bwrap_path() -> str:
    """Absolute path of bubblewrap, '' when it is not installed."""
    return shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin") or shutil.which("bwrap") or ""


@functools.cache
def bwrap_version() -> tuple[int, ...]:
    """Version of bubblewrap, () when it is not installed."""
    if not bwrap_path():
        return ()
    out = subprocess.run([bwrap_path(), "--version"], capture_output=True, text=True, check=False, env=for_child()).stdout
    return tuple(int(n) for n in re.findall(r"\d+", out)[:3])


@functools.cache
def sandbox_works() -> str:
    """'' when a trial can be sandboxed here, else a sentence that says why not and how to mend it."""
    if not bwrap_path():
        return "bubblewrap is not installed; install it (Debian, Ubuntu: apt install bubblewrap)."
    if bwrap_version() < OLDEST:
        version = ".".join(map(str, bwrap_version()))
        return f"bubblewrap {version} can't forbid nested namespaces; install 0.8 or newer (Debian 12, Ubuntu 24.04)."
    try:
        done = _probe()
    except subprocess.TimeoutExpired:
        return "bubblewrap did not answer within 10 s; try `bwrap --unshare-all --ro-bind / / true` by hand."
    if done.returncode == _PROBED:
        return ""
    return f"bubblewrap can't build a sandbox here ({_last_line(done.stderr)}); {_mend_namespaces()}"


@functools.cache
def filter_works() -> str:
    """'' when system calls can be filtered in a sandbox here, else a sentence that says why not and how to mend it."""
    if not program():
        return "the numbers of this machine's system calls are not known to rsi; use x86_64 or aarch64."
    fd = open_program(uncounted=False)
    try:
        done = _probe(fd)
    except (OSError, subprocess.TimeoutExpired):
        return "bubblewrap did not answer when it was given a filter; look at its version."
    finally:
        os.close(fd)
    if done.returncode == _PROBED:
        return ""
    return f"a filter of system calls is refused ({_last_line(done.stderr)}); use a kernel with CONFIG_SECCOMP_FILTER."


def _probe(filter_fd: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a shell in the sandbox; it exits with _PROBED when all is well."""
    spec = LaunchSpec(argv=("/bin/sh", "-c", f"exit {_PROBED}"), cwd="/", mounts=(), env={}, timeout_s=10)
    argv = bwrap_argv(spec, filter_fd="" if filter_fd is None else str(filter_fd))
    passed = () if filter_fd is None else (filter_fd,)
    return subprocess.run(argv, capture_output=True, text=True, timeout=10, env={}, check=False, pass_fds=passed)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _mend_namespaces() -> str:
    """What most often forbids user namespaces, by looking at the switches that there are."""
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are off: sysctl kernel.unprivileged_userns_clone=1."
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor forbids user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0."
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "user namespaces are off: sysctl user.max_user_namespaces=15000."
    return "in a container, start it so that it may make user namespaces (docker: --security-opt seccomp=unconfined)."


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


_ASK = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({"prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
                  "extra": [paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib", "include")]}))
"""
_PARTS = ("bin", "lib", "lib64", "include", "pyvenv.cfg")


@functools.lru_cache(maxsize=32)
def python_mounts(python: Path) -> tuple[Mount, ...]:
    """Read-only mounts that an interpreter needs: its environment, its base, its standard library.

    Only bin, lib, include and pyvenv.cfg of each prefix, so that an environment made in a project's
    own root does not bring the project along; packages installed editable stay outside. Raises
    ContractError when `python` does not run.
    """
    try:
        done = subprocess.run([str(python), "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True, env=for_child())
        told = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ContractError(
            f"{python} is not a Python interpreter that runs here: set launch.python. ({error})"
        ) from None
    mounts: dict[str, Mount] = {}
    for prefix in told["prefixes"]:
        for root in (Path(prefix), Path(prefix).resolve()):
            for part in _PARTS:
                _add(mounts, root / part)
    for path in (*map(Path, told["extra"]), *_links(python)):
        _add(mounts, path)
    return tuple(mounts.values())


def _links(python: Path) -> list[Path]:
    """The executable and every link that leads from it to the real file."""
    hops = [python.absolute()]
    while hops[-1].is_symlink() and len(hops) < 20:
        hops.append(Path(_normal(hops[-1].parent / hops[-1].readlink())))
    return hops


def _normal(path: Path) -> str:
    """Without '..', as text: links inside the path are kept as the interpreter will walk them."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(*parts))


def _add(mounts: dict[str, Mount], path: Path) -> None:
    """Add a mount unless the system or an earlier mount brings it already."""
    covered = any(path.is_relative_to(place) for place in (*SYSTEM, *mounts))
    if path.exists() and not covered:
        mounts[str(path)] = Mount(path.resolve(), str(path))

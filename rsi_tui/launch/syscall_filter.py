"""The filter of system calls in the sandbox: what no training program needs, and what namespaces do not hold.

Keyrings belong to a user, not to a namespace; a trial may raise its own priority of input and output; io_uring, bpf,
perf events and userfaultfd reach deep into the kernel; sockets of a hypervisor know no network namespace; `fallocate`
takes a whole disk in an instant (the C library then writes zeros instead). Refused calls return an error and end
nothing. Programs for another instruction set of the same processor are refused, since their calls have other numbers.

A classic BPF program, as seccomp(2) takes it. Before Linux 5.16 a filter also switches on a mitigation that costs some
processors a few percent of speed; both arms of every comparison pay it.
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import struct

from rsi_tui.launch.syscalls import numbers

REFUSED = (
    "add_key", "request_key", "keyctl", "ioprio_set", "sched_setattr", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "bpf", "perf_event_open", "userfaultfd", "syslog", "memfd_secret", "migrate_pages",
    "fanotify_init", "open_by_handle_at", "mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "open_tree",
    "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "init_module", "finit_module",
    "delete_module", "kexec_load", "kexec_file_load", "swapon", "swapoff", "reboot", "acct", "quotactl", "quotactl_fd",
    "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "iopl", "ioperm",
    "modify_ldt", "lookup_dcookie", "uselib",
)  # fmt: skip
"""with EPERM; names that a machine lacks are left out"""
UNCOUNTED = ("shmget",)
"""memory that sampling can't see: refused as well where no control group counts it"""
FAMILIES = (1, 2, 10, 16)
"""sockets that there may be: Unix, IPv4, IPv6, netlink"""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal"""
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(code: int) -> bytes:
    return _op(_RETURN, _ERROR | code)


@functools.cache
def program(uncounted: bool = False, machine: str = "") -> bytes:
    """The filter for a machine ('' for this one), b'' where its system calls are not known; refuses UNCOUNTED on demand."""
    machine = machine or platform.machine()
    calls = numbers(machine)
    if not calls or machine not in _ARCH:
        return b""
    parts = [_op(_LOAD, _ARCH_AT), _op(_EQUAL, _ARCH[machine], 1, 0), _refuse(errno.ENOSYS), _op(_LOAD, _NUMBER_AT)]
    if machine == "x86_64":
        parts += [_op(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)]
    for name in (*REFUSED, *(UNCOUNTED if uncounted else ())):
        if name in calls:
            parts += [_op(_EQUAL, calls[name], 0, 1), _refuse(errno.EPERM)]
    parts += [_op(_EQUAL, calls["fallocate"], 0, 1), _refuse(errno.EOPNOTSUPP)]
    for name in ("socket", "socketpair"):
        tests = [_op(_EQUAL, family, len(FAMILIES) - n, 0) for n, family in enumerate(FAMILIES)]
        parts += _when(calls[name], [_op(_LOAD, _FIRST_AT), *tests, _refuse(errno.EAFNOSUPPORT), _op(_RETURN, _ALLOW)])
    tests = [_op(_EQUAL, request, len(_TERMINAL_INPUT) - n, 0) for n, request in enumerate(_TERMINAL_INPUT)]
    parts += _when(calls["ioctl"], [_op(_LOAD, _SECOND_AT), *tests, _op(_RETURN, _ALLOW), _refuse(errno.EPERM)])
    return b"".join((*parts, _op(_RETURN, _ALLOW)))


def _when(number: int, block: list[bytes]) -> list[bytes]:
    """A block that ends by returning, run for one call alone."""
    return [_op(_EQUAL, number, 0, len(block)), *block]


def open_program(uncounted: bool) -> int:
    """A descriptor from which the filter can be read once; the caller closes it."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(fd, program(uncounted))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd

"""Numbers of system calls, by name, for the machines that a sandbox filters them on.

From the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
Calls from 424 on have one number everywhere. A name that a machine lacks is not in its table.
"""

from __future__ import annotations

import platform

_NEW = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434,
    "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
_X86_64 = {
    "shmget": 29, "ptrace": 101, "syslog": 103, "personality": 135, "uselib": 134, "pivot_root": 155, "modify_ldt": 154,
    "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
    "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "migrate_pages": 256,
    "unshare": 272, "fallocate": 285, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    "ioctl": 16, "socket": 41, "socketpair": 53,
}  # fmt: skip
_AARCH64 = {
    "shmget": 194, "ptrace": 117, "syslog": 116, "personality": 92, "pivot_root": 41, "adjtimex": 171, "chroot": 51,
    "acct": 89, "settimeofday": 170, "mount": 40, "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142,
    "sethostname": 161, "setdomainname": 162, "init_module": 105, "delete_module": 106, "quotactl": 60,
    "lookup_dcookie": 18, "clock_settime": 112, "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219,
    "ioprio_set": 30, "migrate_pages": 238, "unshare": 97, "fallocate": 47, "perf_event_open": 241,
    "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "sched_setattr": 274,
    "kexec_file_load": 294, "bpf": 280, "userfaultfd": 282, "ioctl": 29, "socket": 198, "socketpair": 199,
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def numbers(machine: str = "") -> dict[str, int]:
    """name -> number on a machine ('' for this one); {} where the table is not known."""
    table = _TABLES.get(machine or platform.machine())
    return {} if table is None else _NEW | table

"""Rules for code that reaches for the machine: calls that change it, raw system calls, places of the system."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rsi_tui.loop.review_rules.escapes import LONGEST_TEXT, suspect
from rsi_tui.loop.review_rules.source import Program, Suspect

POWERS = re.compile(
    r"os\.(?:chroot|fchdir|chdir|mknod|mkfifo|link|symlink|l?chmod|fchmod|[lf]?chown|set\w*id\w*|setgroups|setpriority"
    r"|setxattr|nice|sched_\w+|pidfd_\w+|memfd_create|openpty|umask|close|closerange|killpg|kill|abort|_exit|fork\w*"
    r"|exec\w*|posix_\w+|initgroups|readlink|set_inheritable|truncate|ftruncate|utime|unshare|setns|O_TMPFILE|O_PATH"
    r"|environb|dup\d?|pipe\d?|popen|system|spawn\w*|(?:path\.)?pardir)|socket\.sethostname|time\.clock_set\w+|threading\.stack_size"
)
"""what a program can do to the machine, whether it is called or handed on"""
SYSTEM_PLACES = re.compile(
    r"^(?:/proc|/sys|/etc|/root|/home|/run|/var|/boot|/usr|/rsi|/dev/(?!null|shm|stdout|stderr))(?:/|$)|^/dev$"
    r"|^\.\.(?:/|$)|/\.\.(?:/|$)|^file:/|(?:^|/)\.(?:ssh|netrc|git|aws|bashrc|profile|cache|triton|nv|torch)(?:/|$)"
    r"|(?:^|/)torchinductor_|\.sock$"
)


def powers(program: Program) -> Iterator[Suspect]:
    """Suspects of a program; a place counts only as a text that begins with it, not where one is written about."""
    for source in program.sources:
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and node.attr == "syscall":
                yield suspect(source, node, "power", "exploit", "It makes system calls of its own.", "syscall")
            elif isinstance(node, ast.Attribute) and POWERS.fullmatch(name := source.dotted(node)):
                yield suspect(source, node, "power", "exploit", f"It uses {name}, which no training needs.", name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                text = node.value if isinstance(node.value, str) else node.value.decode("utf-8", "replace")
                if len(text) < LONGEST_TEXT and SYSTEM_PLACES.search(text):
                    shown = text[:80]
                    yield suspect(source, node, "system_place", "exploit", f"It names {shown}, a place of the system.", text)


SCANS = (powers,)

"""The `rsi` command: parse, call, print. No logic, and nothing heavy imported before it is needed.

Errors that a person can cause end as one sentence on stderr; the exit codes are those of
`rsi_tui.errors`. The commands are listed in the order in which their files are imported here.
"""

from __future__ import annotations

import errno
import os
import sys

# isort: off
from rsi_tui.cli import measuring, reading, steering, keeping, library  # noqa: F401 - their commands
# isort: on
from rsi_tui.cli.base import app
from rsi_tui.errors import RsiError
from rsi_tui.locations import find_home

__all__ = ["app", "main"]
UNUSABLE = (errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EDQUOT, errno.EEXIST)
"""errors of a home that can't be written, or a disk that is full"""


def main() -> None:
    """Entry point: errors of rsi become one sentence and an exit code."""
    try:
        app()
    except RsiError as error:
        print(f"rsi: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("rsi: stopped.", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno in UNUSABLE:
            where = error.filename or find_home().root
            print(f"rsi: {where}: {error.strerror}; RSI_HOME names the folder that rsi keeps its files in.", file=sys.stderr)
            sys.exit(1)
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        # Whoever read this is gone: the interpreter must not try to flush to it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

"""Leaving when told to: SIGTERM and SIGHUP give the terminal back, and a terminal that is gone holds nobody.

Textual writes to the terminal in a thread of its own; when the terminal has hung up that thread is dead and
the next writers wait for it for ever. The app has nothing to save, so it then simply ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from types import FrameType

_PATIENCE_S = 3.0
"""time for an orderly way out before it ends at once"""


def leave_on_signals(leave: Callable[[], object]) -> None:
    """Call `leave` in the running loop on SIGTERM or SIGHUP; end at once when the terminal is gone."""
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: FrameType | None) -> None:
        if _hung_up():
            os._exit(128 + number)
        watchdog = threading.Timer(_PATIENCE_S, os._exit, (128 + number,))
        watchdog.daemon = True
        watchdog.start()
        loop.call_soon_threadsafe(leave)

    # Not the loop's own handlers: they never run while the main thread waits to write.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _hung_up() -> bool:
    """Whether standard error, where the screen is drawn, was a terminal that no longer answers."""
    try:
        termios.tcgetattr(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    except termios.error as error:
        return error.args[:1] == (errno.EIO,)  # ENOTTY would be no terminal at all
    except (OSError, ValueError):
        return False
    return False

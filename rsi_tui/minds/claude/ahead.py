"""Thinking ahead: a question that will be asked soon is asked now, in a thread beside the campaign's own.

It is a call like any other, with money set aside and a record; the same question, asked later, finds its answer. Such a
call is never waited or tried again for: at the first trouble it is given up, and the campaign's own thread, which has the
patience and heeds people, asks itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from rsi_tui.errors import RsiError

ENDS_WITHIN_S = 5.0


class _GivenUp(RsiError):
    """An answer that nobody waits for is not worth a wait."""


class Ahead:
    """The threads beside a campaign's own."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._own = threading.local()

    @property
    def here(self) -> bool:
        """Is this one of those threads?"""
        return bool(getattr(self._own, "ahead", False))

    def begin(self, question: Callable[[], object]) -> None:
        """Ask in a thread of its own."""
        self._over.clear()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=self._ask, args=(question,), name="think ahead", daemon=True))
        self._threads[-1].start()

    def _ask(self, question: Callable[[], object]) -> None:
        self._own.ahead = True
        with contextlib.suppress(RsiError):  # the campaign's own thread meets the same trouble, and says so
            question()

    def look(self, own: Callable[[], None]) -> None:
        """While an answer arrives: what the campaign's own thread does, or whether all this is over."""
        if not self.here:
            own()
        elif self._over.is_set():
            raise _GivenUp("the campaign has ended")

    def wait(self, own: Callable[[float], None], seconds: float) -> None:
        """Between attempts."""
        if self.here:
            raise _GivenUp("asked ahead, not tried again")
        own(seconds)

    def end(self) -> None:
        """Give up what is still asked; a thread that hears nothing of it is left to the process's end."""
        self._over.set()
        for thread in self._threads:
            thread.join(ENDS_WITHIN_S)
        self._threads = []

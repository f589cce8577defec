"""Durable steps: every decision and measurement is recorded under a name and never made twice.

A campaign is ordinary code that calls `once("d1/r2/hypothesis", make)`. On the first pass `make`
runs and its body is flushed to the journal before it is returned; after a crash the same code runs
from the top and finds what was decided, so a resumed campaign continues from its record instead of
recomputing it. What people ask for comes at any time and is no step of that code: it is acted on only when
the code has caught up with its record (`live`), under the name of the place where it was acted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from rsi_tui.errors import JournalError
from rsi_tui.journal.events import Event, PersonActed
from rsi_tui.journal.facts import Fact

B = TypeVar("B", bound=Fact)


class Appender(Protocol):
    """Where events go: `journal.chain.JournalWriter`."""

    def append(self, body: Fact, step: str = "") -> Event:
        """Write one event, flush it to disk, return it."""


class Steps:
    """The journal of one campaign as a memory of named steps."""

    def __init__(self, writer: Appender, events: Iterable[Event]) -> None:
        self._writer = writer
        self._done: dict[str, Fact] = {event.step: event.body for event in events if event.step}
        decided = [step for step, body in self._done.items() if not isinstance(body, PersonActed)]
        self._last = decided[-1] if decided else ""
        """the newest step that the code has not come to again; '' once it has"""

    @property
    def live(self) -> bool:
        """Has the code come to the end of its record, so that what it does now is done for the first time?"""
        return not self._last

    def find(self, step: str) -> Fact | None:
        """What a step recorded, None when it has not happened."""
        if step == self._last:
            self._last = ""
        return self._done.get(step)

    def once(self, step: str, kind: type[B], make: Callable[[], B]) -> B:
        """The recorded body of a step, made and flushed now if there is none.

        Raises JournalError when the record holds another kind of event there, which means that it
        was written by a different version of this program.
        """
        known = self.find(step)
        if known is None:
            return self.append(make(), step)
        if not isinstance(known, kind):
            raise JournalError(
                f"step {step} was recorded as {type(known).__name__}, not {kind.__name__}: "
                "this campaign was written by another version of rsi; resume it with that version."
            )
        return known

    def append(self, body: B, step: str = "") -> B:
        """Record a body; with a step name that name must be new."""
        if step and step in self._done:
            raise JournalError(f"step {step} is recorded already; this is a fault of rsi, please report it.")
        self._writer.append(body, step)
        if step:
            self._done[step] = body
            self._last = self._last if isinstance(body, PersonActed) else ""
        return body

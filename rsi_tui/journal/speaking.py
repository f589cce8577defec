"""What a model says while it says it: a small file beside the journal, for people who watch. Nothing rests on it.

`mind.jsonl` in the campaign's folder, one JSON object a line, appended and flushed:

    {"at": "2026-12-01T12:00:00Z", "call": "m3", "role": "executor", "direction": "d1", "state": "writing", "text": "First the"}

`call` is the id that the journal will have it under; calls may overlap, and each line belongs to its own. `state`:

    asking    a request was sent; nothing has come yet, and what came of an earlier attempt is void
    writing   `text` goes on; a tool that is called stands as "[edit_file]"
    waiting   `text` says what is wrong (429, 529, a cut stream), `wait_s` how long until it is tried again
    done      `text` says how it ended: answered, refused, ...; the call runs no longer

Secrets are left out before they come here. The file begins anew with each engine, and once it has grown beyond 1 MiB
(another inode): what was said earlier is gone, the journal has the answers. A reader skips lines that it can't read.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

SpeakingState = Literal["asking", "writing", "waiting", "done"]
MOST_BYTES = 2**20
EVERY_S = 0.25
"""text is gathered so long before it is written"""
KEPT = 2000
"""characters of a running answer that a reader keeps"""


class Spoken(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(frozen=True)

    at: str = ""
    """UTC, ISO 8601; the writer's"""
    call: str
    role: str
    direction: str = ""
    state: SpeakingState
    text: str = ""
    wait_s: float = 0.0
    """seconds until the next attempt, while waiting"""


class SpeakingWriter:
    """Writes the file; threads may share it. What can't be written is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._held: dict[str, Spoken] = {}
        """text of a call that waits to be written"""
        self._flushed: dict[str, float] = {}
        self._begin()

    def __call__(self, spoken: Spoken) -> None:
        with self._lock:
            held = self._held.pop(spoken.call, None)
            if spoken.state != "writing":
                self._write(*([held] if held else []), spoken)
                self._flushed[spoken.call] = time.monotonic()
                return
            whole = spoken if held is None else spoken.model_copy(update={"text": held.text + spoken.text})
            if time.monotonic() - self._flushed.get(spoken.call, -EVERY_S) < EVERY_S:
                self._held[spoken.call] = whole
                return
            self._flushed[spoken.call] = time.monotonic()
            self._write(whole)

    def _begin(self) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        with contextlib.suppress(OSError):
            fresh.write_bytes(b"")
            fresh.replace(self._path)

    def _write(self, *lines: Spoken) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._begin()
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.writelines(line.model_copy(update={"at": at}).model_dump_json() + "\n" for line in lines)


@dataclass(frozen=True)
class LiveCall:
    """A call that runs, as far as its file tells."""

    call: str
    role: str
    direction: str
    state: SpeakingState
    text: str
    """the end of what it has written"""
    trouble: str = ""
    """what it waits for"""
    until: datetime | None = None
    """when it is tried again"""

    def words(self, now: datetime | None = None) -> str:
        """One line: who, and what it does or says."""
        who = f"{self.role} {self.call}"
        if self.state == "waiting":
            left = max(0.0, (self.until - (now or datetime.now(UTC))).total_seconds()) if self.until else 0.0
            return f"{who} waits {left:.0f} s more for the API: {self.trouble}"
        said = " ".join(self.text.split())
        return f"{who}: {said}" if said else f"{who}: no word yet"


class SpeakingTail:
    """The calls that run, kept up with the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.running: dict[str, LiveCall] = {}
        """by call, oldest first"""
        self._inode, self._offset, self._rest = -1, 0, b""

    def poll(self) -> bool:
        """Take in what is new; True when anything changed."""
        try:
            with self._path.open("rb") as file:
                known = os.fstat(file.fileno())
                anew = known.st_ino != self._inode or known.st_size < self._offset
                if anew:
                    self._inode, self._offset, self._rest = known.st_ino, 0, b""
                    self.running.clear()
                file.seek(self._offset)
                data = file.read()
        except OSError:
            gone = bool(self.running)
            self.running.clear()
            return gone
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            with contextlib.suppress(ValidationError):
                self._take(Spoken.model_validate_json(line))
        return anew or bool(whole)

    def _take(self, spoken: Spoken) -> None:
        if spoken.state == "done":
            self.running.pop(spoken.call, None)
            return
        known = self.running.get(spoken.call) or LiveCall(spoken.call, spoken.role, spoken.direction, "asking", "")
        match spoken.state:
            case "asking":
                known = replace(known, state="asking", text="", trouble="", until=None)
            case "writing":
                known = replace(known, state="writing", text=(known.text + spoken.text)[-KEPT:])
            case "waiting":
                until = None
                with contextlib.suppress(ValueError):
                    until = datetime.fromisoformat(spoken.at) + timedelta(seconds=spoken.wait_s)
                known = replace(known, state="waiting", trouble=spoken.text, until=until)
        self.running[spoken.call] = known


Speak = Callable[[Spoken], None]
"""takes what is said"""

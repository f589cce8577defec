"""Waiting for the API without keeping people waiting: a pause or stop is heeded within a second."""

from __future__ import annotations

import time

from rsi_tui.minds.room import Room

LOOK_S = 0.5


class Waiting:
    """Waits in a room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._looked = time.monotonic()

    def look(self) -> None:
        """Heed people, but not more often than is of use; only where a campaign's own thread asks."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._room.heed()

    def clock(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Return after so long; raises what the room raises when the campaign is to stop."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._room.heed()
            time.sleep(min(LOOK_S, left))

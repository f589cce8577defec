"""Merged output of a process tree: cut into lines, stamped on arrival, bounded in memory.

A carriage return ends a line as a newline does, so that a progress bar is many lines. Bytes that are
not UTF-8 are replaced. Kept are the last 200,000 lines and the last 48 MiB; of one line the first
64 KiB. `flags` says when something was left out.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import BinaryIO

from rsi_tui.launch.spec import Line

MAX_LINES = 200_000
MAX_BYTES = 48 * 2**20
MAX_LINE_BYTES = 64 * 2**10
LOG_BYTES = 8 * 2**20
LOG_FLUSH_S = 0.2


class Output:
    """Collects what arrives. `feed` stamps every line that a piece of output ends with that piece's time."""

    def __init__(self, live_log: Path | None) -> None:
        self._kept: deque[tuple[float, bytes]] = deque()
        self._kept_bytes = 0
        self._partial = bytearray()
        self._after_return = False
        self._log = _LiveLog(live_log) if live_log else None
        self.last_line_s = 0.0
        """when the last line ended"""
        self._last_feed_s = 0.0
        self._flags: dict[str, None] = {}

    @property
    def flags(self) -> tuple[str, ...]:
        """'lines_dropped', 'long_lines_cut'"""
        return tuple(self._flags)

    def feed(self, data: bytes, at_s: float) -> None:
        """Take one piece of output that arrived at `at_s`."""
        self._last_feed_s = at_s
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
            self._after_return = False
        if not data:
            return
        self._after_return = data.endswith(b"\r")
        pieces = data.splitlines()
        rest = b"" if data[-1:] in b"\r\n" else pieces.pop()
        for piece in pieces:
            self._end_line(piece, at_s)
        self._grow(rest)

    def finish(self) -> None:
        """The stream has ended: what has no line end yet is a line, stamped when it arrived."""
        if self._partial:
            self._end_line(b"", self._last_feed_s)
        if self._log:
            self._log.close()

    def tick(self, now_s: float) -> None:
        """Let people see what has arrived; call it a few times a second."""
        if self._log:
            self._log.flush(now_s)

    def lines(self) -> tuple[Line, ...]:
        return tuple(Line(at, text.decode("utf-8", "replace")) for at, text in self._kept)

    def _grow(self, piece: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._partial)
        if len(piece) > room:
            self._flags["long_lines_cut"] = None
        self._partial += piece[:room]

    def _end_line(self, piece: bytes, at_s: float) -> None:
        if self._partial or len(piece) > MAX_LINE_BYTES:
            self._grow(piece)
            piece = bytes(self._partial)
            self._partial.clear()
        self.last_line_s = at_s
        self._kept.append((at_s, piece))
        self._kept_bytes += len(piece)
        if len(self._kept) > MAX_LINES or self._kept_bytes > MAX_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
            self._flags["lines_dropped"] = None
        if self._log:
            self._log.add(piece)


class _LiveLog:
    """A file for people: starts empty, escapes as they are; begins anew when it has grown too large."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written = 0
        self._flushed_s = 0.0

    def add(self, line: bytes) -> None:
        self._pending.append(line + b"\n")
        self._pending_bytes += len(line) + 1
        if self._pending_bytes > 2**20:
            self._write()

    def flush(self, now_s: float) -> None:
        if self._pending and now_s - self._flushed_s >= LOG_FLUSH_S:
            self._flushed_s = now_s
            self._write()

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._written + len(data) > LOG_BYTES:
            self._file.seek(0)
            self._file.truncate()
            self._written = self._file.write(b"[earlier lines were left out of this log]\n")
        self._file.write(data)
        self._written += len(data)

"""What the app reads: a campaign's journal and the running trial's log, each only as far as it is new."""

from __future__ import annotations

import codecs
from collections import deque
from pathlib import Path

from rsi_tui.audit.words import clean
from rsi_tui.journal import chain
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import CampaignPaths, Home

_FIRST_READ = 256 * 1024
"""bytes of a log that are read when it is met for the first time"""
_LONGEST_LINE = 2000


class JournalTail:
    """A campaign's view, kept up with its journal."""

    def __init__(self, paths: CampaignPaths) -> None:
        self.paths = paths
        self.view = CampaignView()
        self.engine: int | None = None
        """PID of the engine that works on it"""
        self._offset = 0

    def poll(self) -> bool:
        """Take in what is new; True when anything changed. Raises JournalError for a damaged journal."""
        new, self._offset = chain.follow(self.paths.journal, self._offset)
        self.view.feed_all(new)
        engine = chain.holder(self.paths.journal)
        changed = bool(new) or engine != self.engine
        self.engine = engine
        return changed


class LogTail:
    """The last lines of a file that grows and is written anew with each trial."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self.lines: deque[str] = deque(maxlen=keep)
        self._inode = -1
        self._offset = 0
        self._partial = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def poll(self) -> tuple[bool, list[str]]:
        """Whether the log began anew, and its new whole lines, clean of control characters."""
        try:
            stat = self._path.stat()
        except OSError:
            return False, []
        anew = stat.st_ino != self._inode or stat.st_size < self._offset
        if anew:
            self._begin(stat.st_ino, stat.st_size)
        if stat.st_size == self._offset:
            return anew, []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(stat.st_size - self._offset)
        self._offset += len(data)
        *whole, self._partial = (self._partial + self._decoder.decode(data)).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._partial = self._partial[-_LONGEST_LINE:]
        lines = [clean(line[:_LONGEST_LINE]) for line in whole]
        self.lines.extend(lines)
        return anew, lines

    def _begin(self, inode: int, size: int) -> None:
        self.lines.clear()
        self._inode, self._partial = inode, ""
        self._offset = max(0, size - _FIRST_READ)
        self._decoder.reset()


def first_campaign(home: Home, ids: list[str]) -> str | None:
    """The campaign to open with: the newest that an engine works on, else the newest."""
    for name in ids:
        if chain.holder(home.campaign(name).journal) is not None:
            return name
    return ids[0] if ids else None

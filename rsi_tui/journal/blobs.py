"""What is too large for a journal's lines: files named by the sha256 of what they hold, compressed.

Promises: a blob that `put` returned is on disk, whole; `get` returns what its name says or raises. An event names a blob
only after it was put, so that a journal never names what was not written; a blob that no event names is left over from a
crash and does no harm. The same content is one file. What is compressed here unpacks to no more than it says.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from rsi_tui.errors import JournalError
from rsi_tui.journal.events import BlockClosed, Event, SecretsRevealed, TrialFinished
from rsi_tui.journal.facts import BlobFacts, TrialFacts

SUFFIX = ".gz"
MOST_BYTES = 2**30
"""unpacked; a blob that claims more is not opened"""
LOG_HEAD = 256 * 2**10
LOG_TAIL = 768 * 2**10
"""bytes that are kept of a long log, of its begin and of its end"""


class Blobs:
    """The blobs of one folder, which is made with the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, facts: BlobFacts) -> Path:
        return self._folder / f"{facts.sha256}{SUFFIX}"

    def put(self, content: bytes, left_out: int = 0) -> BlobFacts:
        """Keep it, flushed; JournalError when it can't be written, and then nothing of it stays."""
        facts = BlobFacts(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), left_out=left_out)
        path = self.path(facts)
        if not self.problem(facts):
            return facts
        half = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with half.open("wb") as file:
                file.write(gzip.compress(content, 6, mtime=0))
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
            _flush(self._folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                half.unlink()
            raise JournalError(f"cannot write {path}: {error.strerror}; free some space and resume the campaign.") from error
        return facts

    def get(self, facts: BlobFacts) -> bytes:
        """What was put. Raises JournalError when it is gone, or is not what was put."""
        path = self.path(facts)
        if facts.bytes > MOST_BYTES:
            raise JournalError(f"{path} is said to unpack to more than {MOST_BYTES >> 20} MiB: nothing of rsi is as large.")
        try:
            with gzip.open(path) as file:
                content = file.read(facts.bytes + 1)
        except FileNotFoundError as error:
            raise JournalError(f"{path} is missing.") from error
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise JournalError(f"{path} is damaged, it can't be unpacked.") from error
        if len(content) != facts.bytes or hashlib.sha256(content).hexdigest() != facts.sha256:
            raise JournalError(f"{path} is damaged, its content does not match its name.")
        return content

    def problem(self, facts: BlobFacts) -> str:
        """'' when it is there and whole, else what is wrong, a sentence."""
        try:
            self.get(facts)
        except JournalError as error:
            return str(error)
        return ""

    def has(self, facts: BlobFacts) -> bool:
        return self.path(facts).exists()

    def put_log(self, lines: Iterable[str]) -> BlobFacts:
        """A run's output; of a long one its begin and its end. Raises JournalError when it can't be written."""
        content = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        left_out = len(content) - LOG_HEAD - LOG_TAIL
        if left_out <= 0:
            return self.put(content)
        between = f"\n[{left_out} bytes were left out here]\n".encode()
        return self.put(content[:LOG_HEAD] + between + content[-LOG_TAIL:], left_out)


def revealed_in(events: Iterable[Event]) -> Iterator[tuple[int, BlobFacts]]:
    """(line, blob) of what the verification of a journal needs beside its lines."""
    for event in events:
        if isinstance(event.body, SecretsRevealed) and event.body.blob is not None:
            yield event.seq + 1, event.body.blob


def logs_in(events: Iterable[Event]) -> Iterator[tuple[int, BlobFacts]]:
    """(line, blob) of the output of failed runs, which may have been dropped since."""
    for event in events:
        runs: tuple[TrialFacts | None, ...] = ()
        if isinstance(event.body, TrialFinished):
            runs = (event.body.facts,)
        elif isinstance(event.body, BlockClosed):
            runs = event.body.trials
        yield from ((event.seq + 1, run.log) for run in runs if run is not None and run.log is not None)


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

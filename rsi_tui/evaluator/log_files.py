"""Logs of one failed run: opened, read once each, and put into the order of causality.

Promises: gzip and UTF-16 are read as they are, gzip from a pipe too; holes of NULs are looked
through; what can't be a log is refused in one sentence; with several logs the one that failed first
with a cause of its own comes first, then symptoms (who waited in vain), then consequences, then logs
that say nothing. Times decide between causes where all of them print comparable ones, else the tier
of the rule. Does not promise that clocks of hosts agree.
"""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from rsi_tui.errors import UsageError
from rsi_tui.evaluator.explaining import Explanation, explain
from rsi_tui.evaluator.scanning import CHUNK, Scanner

MAX_LOGS = 512
_SUFFIXES = (".log", ".out", ".err", ".txt", ".gz")
_NAMES = ("stdout", "stderr")
_RANK = re.compile(r"rank[_.-]?(\d+)|attempt_\d+/(\d+)/|[_.-](\d+)\.(?:log|out|err|txt)(?:\.gz)?$")
_ATTEMPT = re.compile(r"attempt_(\d+)/")
_HOLE = re.compile(rb"\0{64,}")
_HOLES = 256
"""chunks of nothing but NULs that are skipped before a log's first line"""
_DATED = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"\[?[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{3,9})")


@dataclass(frozen=True)
class Log:
    """One log, explained."""

    path: str
    """'-' for stdin"""
    explanation: Explanation
    rank: int | None
    attempt: int
    """of torchelastic's restarts, from 0"""
    at: tuple[str, float] | None
    """when its cause was printed: kind of timestamp, and seconds that are comparable within the kind"""

    @property
    def role(self) -> str:
        """cause, symptom, consequence or silent."""
        tier = self.explanation.tier
        return "cause" if tier <= 2 else "symptom" if tier == 3 else "consequence" if tier == 4 else "silent"


def explain_logs(paths: Sequence[str]) -> tuple[Log, ...]:
    """All logs, the root cause first; UsageError for what can't be read as a log."""
    files = [file for path in paths for file in _files(path)]
    if len(files) > MAX_LOGS:
        raise UsageError(f"{len(files)} logs are too many to be explained together (at most {MAX_LOGS}); name the folder of one run.")
    return in_order([_read(file) for file in files])


def in_order(logs: Sequence[Log]) -> tuple[Log, ...]:
    """Logs in the order of causality: the last attempt first, causes before symptoms before consequences."""
    roles = ("cause", "symptom", "consequence", "silent")
    causes = [log for log in logs if log.role == "cause"]
    kinds = {log.at[0] if log.at else None for log in causes}
    timed = len(kinds) == 1 and None not in kinds

    def key(log: Log) -> tuple[int, int, float, int]:
        seconds = log.at[1] if timed and log.at and log.role == "cause" else 0.0
        return (roles.index(log.role), -log.attempt, seconds, log.explanation.tier)

    return tuple(sorted(logs, key=key))


def _files(path: str) -> list[str]:
    if path == "-":
        return [path]
    place = Path(path)
    if not place.is_dir():
        return [path]
    found = sorted(p for p in place.rglob("*") if p.is_file() and (p.suffix in _SUFFIXES or p.stem in _NAMES) and p.stat().st_size)
    if not found:
        raise UsageError(f"{path} is a folder without logs (*.log, *.out, *.err, *.txt, or compressed as .gz); name the file itself.")
    return [str(p) for p in found]


def _read(path: str) -> Log:
    scanner, empty = Scanner(), True
    for data in _chunks(path):
        empty = False
        scanner.feed(data)
    if empty:
        raise UsageError(f"{'stdin' if path == '-' else path} is empty: there is nothing to explain.")
    explanation = explain(scanner.finish())
    named = _RANK.search(path)
    rank = explanation.facts.get("rank", int(next(g for g in named.groups() if g)) if named else None)
    attempt = _ATTEMPT.search(path)
    return Log(path, explanation, int(rank) if isinstance(rank, (int, float)) else None, int(attempt[1]) if attempt else 0, when(explanation.around))


def _chunks(path: str) -> Iterator[bytes]:
    """A log's bytes as UTF-8, a chunk at a time."""
    try:
        if path == "-":
            yield from _unpacked(sys.stdin.buffer, "stdin")
            return
        with Path(path).open("rb") as file:
            yield from _unpacked(file, path)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; name a log, a folder of logs, or - for stdin.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is a damaged gzip file ({error}); unpack what is left of it with zcat and give that.") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {(error.strerror or str(error)).rstrip('.')}.") from None


def _unpacked(file: BinaryIO, name: str) -> Iterator[bytes]:
    """What is in a file that may be compressed; a pipe too, so nothing is read twice."""
    peek = getattr(file, "peek", None)
    if peek is not None and peek(2)[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from _decoded(unpacked, name)  # type: ignore[arg-type]
        return
    yield from _decoded(file, name)


def _decoded(file: BinaryIO, name: str) -> Iterator[bytes]:
    first = file.read(CHUNK)
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        while first:
            yield decoder.decode(first).encode("utf-8", "replace")
            first = file.read(CHUNK)
        return
    # A log that was rotated or torn by a crash has holes: long runs of NULs, and text around them.
    skipped = 0
    while first and not first.strip(b"\0"):
        skipped += 1
        following = file.read(CHUNK)
        if not following or skipped > _HOLES:
            raise UsageError(f"{name} is a binary file, no log.")
        first = following
    if first[:8192].count(b"\0") > 8 and _HOLE.sub(b"", first)[:8192].count(b"\0") > 8:
        raise UsageError(f"{name} is a binary file, no log.")
    while first:
        yield first.replace(b"\0", b"") if b"\0" in first else first
        first = file.read(CHUNK)


def when(lines: Sequence[str]) -> tuple[str, float] | None:
    """The first timestamp in these lines; kinds are 'date' (seconds since 1970) and 'glog' (of a year)."""
    for line in lines:
        if dated := _DATED.search(line):
            year, month, day, hour, minute, second = (int(part) for part in dated.groups()[:6])
            try:
                moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
            except ValueError:
                continue
            return ("date", moment.timestamp() + float(f"0.{dated[7] or 0}"))
        if glog := _GLOG.search(line):
            month, day, hour, minute, second = (int(part) for part in glog.groups()[:5])
            return ("glog", ((month * 31 + day) * 24 + hour) * 3600 + minute * 60 + second + float(f"0.{glog[6]}"))
    return None

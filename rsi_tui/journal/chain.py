"""The journal file: one JSON line per event, each carrying the hash of the line before.

Promises: an event returned by `append` is on disk; one writer at a time; a line that a crash tore is
kept aside and removed; every other damage is an error that names its line. A hash is the sha256 of the
line's bytes up to its `hash` member, closed with `}`, so that any tool can check it without a JSON
writer of its own. Plain reads check order and links and recompute no hash; `verify` recomputes all.

A journal cut at a line's end is noticed where its newest line is noted elsewhere (see `anchors`).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rsi_tui.errors import JournalError
from rsi_tui.journal.anchors import Anchor, disagreement, is_damaged, read_anchor, write_anchor
from rsi_tui.journal.events import SCHEMA_VERSION, Event
from rsi_tui.journal.facts import Fact

ZERO = "0" * 64
"""`prev` of the first line"""

_HASH_OPEN = b',"hash":"'
_HASH_BYTES = len(_HASH_OPEN) + 64 + len(b'"}')
_TAIL_CHECKED = 64
"""lines whose hashes a writer recomputes when it opens a journal"""
_ONE = TypeAdapter(Event)
_MANY = TypeAdapter(list[Event])


def now_utc() -> str:
    """The time now, UTC, ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def read_events(path: Path, anchor: Path | None = None) -> list[Event]:
    """All events of a journal, oldest first; a torn last line is left out.

    Raises JournalError when the file is missing, or naming the first damaged line, or the one that `anchor` knows
    and the journal does not hold.
    """
    known = read_anchor(anchor) if anchor is not None else None  # before the file: a writer may be at work
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}.") from error
    complete, _ = _split_torn(data)
    events = _parse(path, complete, first_line=1, seq=0, prev=ZERO)
    if known is not None and (problem := disagreement(known, [event.hash for event in events])):
        raise JournalError(f"{path}, {problem}; restore the file from a copy, or move its folder away.")
    return events


def follow(path: Path, after_offset: int) -> tuple[list[Event], int]:
    """Events written since a byte offset (0 = from the start) and the offset to ask from next.

    A line that is still being written is left for the next call. A missing file has no events.
    Raises JournalError when the file has become shorter, or naming the damaged line.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < after_offset:
                raise JournalError(f"the journal {path} has become shorter while it was watched; open it again.")
            if size == after_offset:
                return [], after_offset
            file.seek(after_offset)
            data = file.read(size - after_offset)
    except FileNotFoundError:
        return [], 0
    complete, _ = _split_torn(data)
    if not complete:
        return [], after_offset
    events = _parse(path, complete, first_line=None, seq=None, prev=None)
    return events, after_offset + len(complete)


def head(path: Path) -> tuple[int, str]:
    """Sequence number and hash of the last whole line; (-1, 64 zeros) when there is none."""
    try:
        with path.open("rb") as file:
            line = _last_line(file.fileno())
    except FileNotFoundError:
        return -1, ZERO
    if line is None:
        return -1, ZERO
    try:
        event = _ONE.validate_json(line)
    except ValidationError as error:
        raise JournalError(f"the last line of {path} is damaged; restore the file from a copy, or move its folder away.") from error
    return event.seq, event.hash


def verify(path: Path, anchor: Path | None = None, known: Sequence[Anchor] = ()) -> list[str]:
    """Every problem of a journal, each named with its line number; empty when the chain is whole.

    `anchor` is the file that notes its newest line, `known` are lines that others know (reports, bundles).
    """
    noted = read_anchor(anchor) if anchor is not None else None
    try:
        data = path.read_bytes()
    except OSError as error:
        return [f"cannot read {path}: {error.strerror}"]
    complete, torn = _split_torn(data)
    problems: list[str] = []
    seq, prev, number = 0, ZERO, 0
    hashes: list[str] = []
    for number, line in enumerate(_lines(complete), start=1):
        found, seq, prev = _verify_line(line, seq, prev)
        hashes.append(prev)
        problems += [f"line {number}: {text}" for text in found]
    if torn:
        problems.append(f"line {number + 1}: torn, it has no line end ({len(torn)} bytes)")
    if anchor is not None and is_damaged(anchor):
        problems.append(f"the note of its newest line, {anchor}, is damaged")
    problems += [text for one in (noted, *known) if one is not None and (text := disagreement(one, hashes))]
    return problems


def holder(path: Path) -> int | None:
    """PID of the process that holds a journal for writing, None when nobody does.

    Reads the lock file and takes no lock, so that looking never gets in a writer's way.
    """
    try:
        words = path.with_suffix(".lock").read_text().split()
        pid, started = int(words[0]), words[1]
    except (OSError, ValueError, IndexError):
        return None
    return pid if process_start(pid) == started else None


class JournalWriter:
    """The one writer of a journal; holds its lock from `open` to `close`."""

    def __init__(self, path: Path, fd: int, lock: int, events: list[Event], size: int, anchor: Path | None) -> None:
        self.path = path
        self._anchor = anchor
        self.events = events
        """those that were there when it was opened, oldest first"""
        self._fd = fd
        self._lock = lock
        self._size = size
        self._seq = events[-1].seq + 1 if events else 0
        self._prev = events[-1].hash if events else ZERO
        self._broken = ""
        self._appending = threading.Lock()

    @classmethod
    def open(cls, path: Path, wait_s: float = 0.0, anchor: Path | None = None) -> JournalWriter:
        """Take the lock, mend a torn last line, check the chain, its last hashes and its newest line against `anchor`.

        `wait_s` is how long to wait for another writer; `anchor` is where each append notes the newest line. Raises
        JournalError when another process holds the journal (naming its PID), or when a line is damaged or lost
        (naming it).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path, wait_s)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            os.close(lock)
            raise JournalError(f"cannot open the journal {path}: {error.strerror}.") from error
        try:
            _flush_folder(path.parent)
            size = _mend(path, fd)
            events = read_events(path, anchor)
            _check_tail(path)
        except BaseException:
            os.close(fd)
            os.close(lock)
            raise
        return cls(path, fd, lock, events, size, anchor)

    def append(self, body: Fact, step: str = "") -> Event:
        """Write one event, flush it to disk, return it as it will be read back. Threads take turns.

        Raises JournalError when the disk is full (no half line stays behind) or a number is not finite.
        """
        with self._appending:
            if self._broken:
                raise JournalError(self._broken)
            line = _encode(self._seq, body, step, self._prev)
            event = _ONE.validate_json(line)
            self._write(line + b"\n")
            if self._anchor is not None:
                write_anchor(self._anchor, self._seq, event.hash)
            self._seq += 1
            self._prev = event.hash
            return event

    def close(self) -> None:
        """Give the lock back; the writer can't be used any more."""
        if self._fd < 0:
            return
        self._broken = f"the journal {self.path} was closed; this is a fault of rsi, please report it."
        os.close(self._fd)
        self._fd = -1
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._size + done)
            os.fsync(self._fd)
        except OSError as error:
            self._take_back()
            raise JournalError(
                f"cannot write to the journal {self.path}: {error.strerror}; free some space and resume the campaign."
            ) from error
        self._size += len(data)

    def _take_back(self) -> None:
        """Remove a half-written line; where even that fails, nothing may be written after it."""
        try:
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
        except OSError as error:
            self._broken = f"cannot mend the journal {self.path}: {error.strerror}; start the engine again."


def _encode(seq: int, body: Fact, step: str, prev: str) -> bytes:
    """One line without its end. Text that is no valid Unicode (torn log output) is replaced by '?'."""
    content = {"seq": seq, "at": now_utc(), "v": SCHEMA_VERSION, "step": step, "body": body.model_dump(mode="json"), "prev": prev}
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise JournalError(
            f"{type(body).__name__} holds a number that is not finite; this is a fault of rsi, please report it."
        ) from error
    plain = text.encode("utf-8", "replace")
    return plain[:-1] + _HASH_OPEN + hashlib.sha256(plain).hexdigest().encode() + b'"}'


def _split_torn(data: bytes) -> tuple[bytes, bytes]:
    """The whole lines, and what follows the last line end."""
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


def _lines(complete: bytes) -> list[bytes]:
    return complete[:-1].split(b"\n") if complete else []


def _parse(path: Path, complete: bytes, first_line: int | None, seq: int | None, prev: str | None) -> list[Event]:
    """Events of whole lines; the first may be anything when `seq` is None (a journal read from its middle)."""
    lines = _lines(complete)
    try:
        with uncollected():
            events = _MANY.validate_json(b"[" + b",".join(lines) + b"]") if lines else []
    except ValidationError:
        events = []
    if len(events) != len(lines):
        events = [_parse_line(path, line, _name(first_line, n)) for n, line in enumerate(lines)]
    for n, event in enumerate(events):
        if (seq is not None and event.seq != seq) or (prev is not None and event.prev != prev):
            raise JournalError(
                f"{path}, {_name(first_line, n, event)}: it does not follow the line before; restore the file from a copy, or move its folder away."
            )
        seq, prev = event.seq + 1, event.hash
    return events


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within it Python's garbage collector rests: it walks the growing events again and again, which takes longer than reading them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _name(first_line: int | None, n: int, event: Event | None = None) -> str:
    if first_line is not None:
        return f"line {first_line + n}"
    return f"line {event.seq + 1}" if event else f"new line {n + 1}"


def _parse_line(path: Path, line: bytes, name: str) -> Event:
    try:
        return _ONE.validate_json(line)
    except ValidationError as error:
        version = _version(line)
        if version is not None and version > SCHEMA_VERSION:
            raise JournalError(
                f"{path}, {name}: written by a newer rsi (schema {version}, this one knows {SCHEMA_VERSION}); update rsi."
            ) from error
        raise JournalError(
            f"{path}, {name}: damaged ({_first_problem(error)}); restore the file from a copy, or move its folder away."
        ) from error


def _version(line: bytes) -> int | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    version = value.get("v") if isinstance(value, dict) else None
    return version if isinstance(version, int) else None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])


def _verify_line(line: bytes, seq: int, prev: str) -> tuple[list[str], int, str]:
    """Problems of one line; the sequence number and hash that the next line must continue."""
    own = line[-66:-2].decode("ascii", "replace")
    plain = line[:-_HASH_BYTES] + b"}"
    if line[-_HASH_BYTES : -66] != _HASH_OPEN or line[-2:] != b'"}':
        return ["damaged, its hash is not where it belongs"], seq + 1, prev
    found: list[str] = []
    if hashlib.sha256(plain).hexdigest() != own:
        found.append("its content does not match its hash")
    try:
        event = _ONE.validate_json(line)
    except ValidationError as error:
        return [*found, f"damaged ({_first_problem(error)})"], seq + 1, own
    if event.seq != seq:
        found.append(f"numbered {event.seq}, {seq} was expected (a line is missing, repeated or moved)")
    if event.prev != prev:
        found.append("it does not continue the line before")
    return found, event.seq + 1, own


def _mend(path: Path, fd: int) -> int:
    """Cut a torn last line off after keeping a copy; the size of what is whole."""
    size = os.fstat(fd).st_size
    whole = size - len(_torn_tail(fd, size))
    if whole == size:
        return size
    _keep_aside(path, os.pread(fd, size - whole, whole))
    os.ftruncate(fd, whole)
    os.fsync(fd)
    return whole


def _keep_aside(path: Path, data: bytes) -> None:
    copy = path.with_name(f"{path.name}.torn-{time.time_ns()}")
    with copy.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _torn_tail(fd: int, size: int) -> bytes:
    """What follows the last line end, read backwards in growing steps."""
    step = 1 << 16
    while True:
        start = max(0, size - step)
        data = os.pread(fd, size - start, start)
        cut = data.rfind(b"\n")
        if cut >= 0 or start == 0:
            return data[cut + 1 :]
        step *= 4


def _last_line(fd: int) -> bytes | None:
    size = os.fstat(fd).st_size
    end = size - len(_torn_tail(fd, size)) - 1
    return _torn_tail(fd, end) if end > 0 else None


def _check_tail(path: Path) -> None:
    lines = _lines(_split_torn(path.read_bytes())[0])
    first = max(0, len(lines) - _TAIL_CHECKED)
    for number, line in enumerate(lines[first:], start=first + 1):
        if hashlib.sha256(line[:-_HASH_BYTES] + b"}").hexdigest().encode() != line[-66:-2]:
            raise JournalError(f"{path}, line {number}: its content does not match its hash; restore the file from a copy, or move its folder away.")


def _take_lock(path: Path, wait_s: float) -> int:
    lock_path = path.with_suffix(".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise JournalError(f"cannot lock the journal {path}: {error.strerror}.") from error
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() < give_up:
                time.sleep(0.02)
                continue
            who = (os.pread(lock, 64, 0).split() or [b"unknown"])[0].decode("ascii", "replace")
            os.close(lock)
            raise JournalError(
                f"the journal {path} is held by process {who}; watch it with `rsi`, or stop it before starting another."
            ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {process_start(os.getpid())}\n".encode(), 0)
    return lock


def process_start(pid: int) -> str:
    """Start time of a living process in clock ticks since boot, '' when it is gone; PIDs are reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat[stat.rfind(")") + 2 :].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _flush_folder(folder: Path) -> None:
    """Make a new file's name durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

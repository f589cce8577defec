"""The host-wide lease: one timed trial at a time on a machine, over all campaigns, homes and users.

An advisory lock on one file that everybody may write. The lock dies with its holder, so a stale file
means nothing; what is written in it only tells the others whom they wait for. A thread that holds the
lease and asks for it again waits for itself: take it once, around everything that is timed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rsi_tui import locations
from rsi_tui.errors import GateError

_POLL_S = 0.25


@contextlib.contextmanager
def host_lease(
    who: str,
    wait: bool = True,
    on_wait: Callable[[str], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[Lease]:
    """Hold this machine's cores for timed trials.

    `on_wait` is given one sentence when the lease is not free at once; `meanwhile` is called while
    waiting and may raise, to give up. Who waits has a place in a queue of one, so that a campaign which
    takes the lease block after block lets others in between. Raises GateError, naming the holder, when
    it is not free and `wait` is False, or when the lock file can't be used.
    """
    lease = Lease(who, on_wait, meanwhile)
    lease.take(wait)
    try:
        yield lease
    finally:
        lease.give_back()


class Lease:
    """A held lease, as `host_lease` gives it."""

    def __init__(self, who: str, on_wait: Callable[[str], None] | None, meanwhile: Callable[[], None] | None) -> None:
        self._who = who
        self._on_wait = on_wait
        self._meanwhile = meanwhile
        self._descriptor: int | None = None

    def take(self, wait: bool) -> None:
        """Queue for the lease and hold it; raises as `host_lease` does."""
        path = locations.host_lease()
        place = _acquire(path.with_suffix(".queue"), wait, self._on_wait, self._meanwhile)
        try:
            self._descriptor = _acquire(path, wait, self._on_wait, self._meanwhile)
        finally:
            os.close(place)
        os.truncate(self._descriptor, 0)
        note = f"{self._who} (process {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)\n"
        os.pwrite(self._descriptor, note.encode(), 0)

    def give_back(self) -> None:
        """Let others have the machine; nothing happens when it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.truncate(descriptor, 0)
            os.close(descriptor)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Others may have the machine meanwhile, as in a pause; afterwards it is ours again if it was before.

        Whoever gives up meanwhile, by an exception, does not queue once more.
        """
        held = self._descriptor is not None
        self.give_back()
        yield
        if held:
            self.take(wait=True)


def holder() -> str:
    """Who holds the lease now, '' when it is free."""
    try:
        descriptor = os.open(locations.host_lease(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _note(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _acquire(
    path: Path, wait: bool, on_wait: Callable[[str], None] | None, meanwhile: Callable[[], None] | None
) -> int:
    told = False
    while True:
        descriptor = _open(path)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                return descriptor
            # Somebody cleaned the folder between opening and locking: this lock guards nothing.
            os.close(descriptor)
            continue
        other = _note(descriptor)
        os.close(descriptor)
        if not wait:
            raise GateError(f"Timed trials of {other} hold this machine; wait for them, or stop them.")
        if on_wait and not told:
            on_wait(f"waiting for this machine: timed trials of {other} hold it")
            told = True
        if meanwhile is not None:
            meanwhile()
        time.sleep(_POLL_S)


def _open(path: Path) -> int:
    """The lock file, made if need be, writable by everybody.

    First without O_CREAT: in a sticky folder the kernel may refuse to open another user's file with it.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(path, flags)
        # The umask has cut the mode.
        os.fchmod(descriptor, 0o666)
        return descriptor
    except OSError as error:
        raise GateError(
            f"The lock file {path} can't be opened ({error.strerror}): remove it, or ask its owner to (chmod 666)."
        ) from None


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _note(descriptor: int) -> str:
    return os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip() or "another campaign"

"""Where a library's server listens: a Unix socket of its user alone, or a port for a team."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experience.errors import ExperienceError

_LONGEST = 100
"""bytes of a Unix socket's path; systems allow 104 or 108"""


@dataclass(frozen=True)
class Address:
    """A Unix socket's path, or host and port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected socket; OSError when nobody listens."""
        if self.path is None:
            return socket.create_connection((self.host, self.port), timeout_s)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            made.connect(str(self.path))
        except OSError:
            made.close()
            raise
        return made

    def listen(self) -> socket.socket:
        """A listening socket, in place of a stale one; only for who holds the server's lock.

        Raises ExperienceError when that can't be had.
        """
        try:
            if self.path is None:
                return socket.create_server((self.host, self.port), backlog=128)
            self.path.unlink(missing_ok=True)
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o177)
            try:
                made.bind(str(self.path))
            finally:
                os.umask(before)
            made.listen(128)
        except OSError as error:
            raise ExperienceError(f"the library's server can't listen at {self}: {error.strerror or error}.") from error
        return made

    def forget(self, listener: socket.socket) -> None:
        """Close a listening socket and remove its file."""
        listener.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else f"{self.host}:{self.port}"


def address_of(folder: Path) -> Address:
    """The Unix socket of a library's folder: in it, or, where its path is too long for one, in a private folder of the user.

    Raises ExperienceError when that folder belongs to somebody else.
    """
    inside = folder / "server.socket"
    if len(os.fsencode(inside)) <= _LONGEST:
        return Address(inside)
    name = f"{hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]}.socket"
    rooms = [Path(room) / f"rsi-{os.getuid()}" for room in (tempfile.gettempdir(), "/tmp")]
    private = next((room for room in rooms if len(os.fsencode(room / name)) <= _LONGEST), rooms[-1])
    with contextlib.suppress(FileExistsError):
        private.mkdir(mode=0o700)
    found = private.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or private.is_symlink():
        raise ExperienceError(f"{private} belongs to somebody else or is open to others; remove it, or set TMPDIR.")
    return Address(private / name)

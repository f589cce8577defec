"""Folders that a program wrote to, which may hold anything: too deep for any path, closed, full of odd names.

Nothing here follows a link, recurses, or builds a path longer than the kernel takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DEEPEST = 100
"""folders within one another; an honest program stays far below"""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Size:
    """What lies below a folder."""

    blocks_bytes: int
    """on the disk, names included"""
    entries: int
    too_deep: bool
    """there are folders deeper than DEEPEST, which are not counted"""
    closed: bool
    """there are folders that could not be opened, so that what they hold is not counted"""


def measure(folder: Path, most_entries: int = 10**9) -> Size:
    """Size of a folder, which may be changing; counting stops beyond `most_entries`.

    One descriptor a level is open, however many folders lie beside one another.
    """
    counted = _Counted(most_entries)
    waiting: list[tuple[int, list[str]]] = []
    counted.open(waiting, folder)
    while waiting:
        fd, names = waiting[-1]
        if not names or counted.entries > most_entries:
            waiting.pop()
            os.close(fd)
        elif len(waiting) > DEEPEST:
            counted.too_deep = True
            names.clear()
        else:
            counted.open(waiting, names.pop(), fd)
    return Size(counted.blocks_bytes, counted.entries, counted.too_deep, counted.closed)


@dataclass
class _Counted:
    most_entries: int
    blocks_bytes: int = 0
    entries: int = 0
    too_deep: bool = False
    closed: bool = False

    def open(self, waiting: list[tuple[int, list[str]]], name: str | Path, within: int | None = None) -> None:
        """Count what a folder holds, and put it on top of those whose folders are still to be opened."""
        try:
            fd = os.open(name, _FOLDER, dir_fd=within)
        except OSError as error:
            # gone by now, or something else than a folder by now: it holds nothing that is not counted elsewhere
            self.closed = self.closed or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
            return
        names: list[str] = []
        waiting.append((fd, names))
        try:
            with os.scandir(fd) as found:
                for entry in found:
                    with contextlib.suppress(OSError):
                        seen = entry.stat(follow_symlinks=False)
                        self.blocks_bytes, self.entries = self.blocks_bytes + seen.st_blocks * 512, self.entries + 1
                        if stat.S_ISDIR(seen.st_mode):
                            names.append(entry.name)
                    if self.entries > self.most_entries:
                        break
        except OSError:
            self.closed = True


def disk_room(folder: Path) -> tuple[int, int]:
    """(bytes, files) that the disk of a folder still takes; the second is 0 where the file system sets no number."""
    with contextlib.suppress(OSError):
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize, room.f_favail
    return 0, 0


def written_bytes(pids: Iterable[int]) -> int:
    """Bytes that processes, and the children that they waited for, have dirtied on disks, as the kernel counts them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            found = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            total += int(found["write_bytes"]) - int(found["cancelled_write_bytes"])
    return total


def remove_tree(path: Path) -> None:
    """Delete a file or folder whatever it holds and whatever rights were set; nothing happens when it is gone.

    Nobody else may be writing there. Raises OSError when something can't be deleted (immutable, no permission).
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
        return
    _flatten(path)


def _flatten(path: Path) -> None:
    """Delete a folder of any depth: each folder found is first moved up to the top, so that nothing nests."""
    path.chmod(0o700)
    top = os.open(path, _FOLDER)
    count = 0
    try:
        waiting = ["."]
        while waiting:
            name = waiting.pop()
            fd = os.open(name, _FOLDER, dir_fd=top)
            try:
                for entry in os.listdir(fd):  # noqa: PTH208 - a descriptor is no path
                    if not stat.S_ISDIR(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode):
                        os.unlink(entry, dir_fd=fd)
                        continue
                    os.chmod(entry, 0o700, dir_fd=fd)
                    count += 1
                    moved = f".rsi-{count}-{os.getpid()}"
                    os.rename(entry, moved, src_dir_fd=fd, dst_dir_fd=top)
                    waiting.append(moved)
            finally:
                os.close(fd)
            if name != ".":
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def plain_content(path: Path, inside: Path) -> bool:
    """Is this a regular file, or a folder of regular files only, that really lies inside `inside`?

    A link would let a trial name a file of the evaluator as its checkpoint; a pipe would block the reader.
    """
    try:
        if not path.resolve().is_relative_to(inside.resolve()):
            return False
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            return all(stat.S_ISDIR(m) or stat.S_ISREG(m) for m in (p.lstat().st_mode for p in path.rglob("*")))
        return stat.S_ISREG(mode)
    except (OSError, RecursionError):  # the second from folders that nest without end
        return False

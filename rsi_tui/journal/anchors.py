"""A journal's newest line, noted outside its folder, so that a lost or replaced end is noticed.

A file of one fixed-size record, rewritten in place after every append. It is not flushed: it outlives a killed
process, and after a power loss it may be older than its journal, never newer. What it promises is only as good as its
place: somebody who can write both files can make them agree. Reports and bundles carry the head as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_RECORD = re.compile(rb"(\d{20}) ([0-9a-f]{64})\n")


@dataclass(frozen=True)
class Anchor:
    """A line that a journal must hold."""

    seq: int
    hash: str
    where: str
    """who says so, for a message: a file, a report"""


def write_anchor(path: Path, seq: int, hash: str) -> None:
    """Note the newest line; where that can't be done (a full disk) the older note stays."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        os.pwrite(descriptor, f"{seq:020d} {hash}\n".encode(), 0)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def read_anchor(path: Path) -> Anchor | None:
    """The note, None when there is none or it is no note."""
    try:
        found = _RECORD.fullmatch(path.read_bytes())
    except OSError:
        return None
    return Anchor(int(found[1]), found[2].decode(), str(path)) if found else None


def is_damaged(path: Path) -> bool:
    """Is there a file that is no note?"""
    return path.exists() and read_anchor(path) is None


def disagreement(anchor: Anchor, hashes: Sequence[str]) -> str:
    """What the anchor says against a journal whose lines have these hashes, one clause; '' when they agree."""
    if anchor.seq >= len(hashes):
        lost = anchor.seq + 1 - len(hashes)
        return (
            f"line {len(hashes) + 1}: lost, with {lost - 1} after it, the journal's end: {anchor.where} knows line {anchor.seq + 1}"
            if lost > 1
            else f"line {len(hashes) + 1}: lost, the journal's end: {anchor.where} knows it"
        )
    if hashes[anchor.seq] != anchor.hash:
        return f"line {anchor.seq + 1}: not the one that {anchor.where} knows; it or a line before it was replaced"
    return ""

"""Newest lines of journals, noted as refs of a mirror: what cuts a journal and its note off does not reach these.

Written now and then (states, verdicts, an engine's end), so that they are as old as the last of those. The ref of a
campaign points at a few bytes that say line and hash. Who can write the whole home can make all of them agree.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from rsi_tui.errors import RepositoryError
from rsi_tui.journal.anchors import Anchor
from rsi_tui.repo.git import SAFE, isolated_environment, run_git

_PREFIX = "refs/rsi-heads/"
_TEXT = re.compile(rb"(\d+) ([0-9a-f]{64})\n")


def note_head(git_dir: Path, campaign: str, seq: int, hash: str) -> None:
    """Note a line; where that can't be done (a full disk, a lock that somebody holds) the older one stays."""
    with suppress(RepositoryError):
        blob = _git(git_dir, "hash-object", "-w", "--stdin", stdin=f"{seq} {hash}\n".encode()).decode().strip()
        _git(git_dir, "update-ref", _PREFIX + campaign, blob)


def noted_head(git_dir: Path, campaign: str) -> Anchor | None:
    """The line that was noted last; None where there is no mirror, no ref, or one that says nothing."""
    with suppress(RepositoryError):
        found = _TEXT.fullmatch(_git(git_dir, "cat-file", "blob", _PREFIX + campaign))
        if found is not None:
            return Anchor(int(found[1]), found[2].decode(), f"{_PREFIX}{campaign} in {git_dir}")
    return None


def _git(git_dir: Path, *args: str, stdin: bytes = b"") -> bytes:
    return run_git((*SAFE, "--git-dir", str(git_dir.absolute())), *args, env=isolated_environment(), stdin=stdin)

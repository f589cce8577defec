"""Did a run change what the contract froze? Digests of a tree's files outside the scope, before and after.

Links are digested by where they point, never followed; pipes and devices are named, never opened.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from rsi_tui.contract.model import Contract
from rsi_tui.contract.scope import in_scope

_SKIPPED = frozenset({".git", "__pycache__"})


def tree_digest(tree: Path, contract: Contract) -> dict[str, str]:
    """path -> digest of every file of a tree that a candidate may not change.

    sha256 of the content; "link:TARGET" for links; a word for what can't be read or is no file.
    """
    return {path: _digest(tree / path) for path in _files(tree) if not in_scope(contract, path)}


def changed_frozen(before: Mapping[str, str], tree: Path, contract: Contract) -> tuple[str, ...]:
    """Frozen paths that are missing or differ now, and new Python files outside the scope, sorted.

    Other new files are a run's own business (caches, logs). Files that moved into the scope through a
    link above them count as missing.
    """
    now = set(_files(tree))
    wrong = {path for path, digest in before.items() if path not in now or _digest(tree / path) != digest}
    wrong |= {path for path in now - before.keys() if path.endswith(".py") and not in_scope(contract, path)}
    return tuple(sorted(wrong))


def _files(tree: Path) -> Iterator[str]:
    """Paths of everything in a tree that is not a real folder."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            entries = list(os.scandir(tree / prefix))
        except OSError:
            continue  # what was frozen in there is missing, and is reported as that
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield prefix + entry.name
            elif entry.name not in _SKIPPED:
                waiting.append(f"{prefix}{entry.name}/")


def _digest(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return f"link:{path.readlink()}"
        if not stat.S_ISREG(mode):
            return "no regular file"
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"

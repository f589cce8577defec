"""Views of long journals, kept beside them, so that opening a campaign of very many runs takes no reading of them all.

A kept view is derived and disposable: it is bound to the code that folded it and to the journal's line it was folded up
to, whose hash must still stand at that place; the lines after it are read and folded as always. Where anything does not
match, the journal is read whole. What is damaged before that line is not noticed here, as in any plain read: `rsi verify`
recomputes every hash. The file is read back into plain values of the journal's own types and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
from functools import lru_cache
from pathlib import Path
from typing import Any

from rsi_tui.contract import model
from rsi_tui.errors import JournalError
from rsi_tui.journal import chain, events, facts, view
from rsi_tui.journal.anchors import Anchor, read_anchor
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import CampaignPaths

KEPT_FROM = 8 * 2**20
"""bytes of a journal, or of what came since, that are worth keeping a view for"""
_MAGIC = b"rsi view 1\n"
_PLAIN = {("builtins", "set"), ("builtins", "frozenset"), ("builtins", "object"), ("collections", "Counter")}


def load_view(paths: CampaignPaths) -> CampaignView:
    """The view of a campaign's journal; JournalError when it is missing, damaged, or its end is lost."""
    try:
        size = paths.journal.stat().st_size
    except OSError as error:
        raise JournalError(f"cannot read the journal {paths.journal}: {error.strerror}.") from error
    if size < KEPT_FROM:
        return CampaignView().feed_all(chain.read_events(paths.journal, paths.anchor))
    noted = read_anchor(paths.anchor)  # before the journal: a writer may be at work
    found, offset = _kept(paths)
    if found is None:
        found, offset = CampaignView().feed_all(chain.read_events(paths.journal, paths.anchor)), 0
        end = size
    else:
        end = _continue(found, paths.journal, offset, noted)
    if noted is not None and noted.seq > found.last_seq:
        raise JournalError(
            f"{paths.journal}, line {found.last_seq + 2}: lost, the journal's end: {noted.where} knows it; "
            "restore the file from a copy, or move its folder away."
        )
    if end - offset >= KEPT_FROM:
        _keep(found, paths)
    return found


def _continue(found: CampaignView, journal: Path, offset: int, noted: Anchor | None) -> int:
    """Fold what came after a kept view; returns the offset behind it. JournalError when it is not what the note knows."""
    new, end = chain.follow(journal, offset)
    if new and (new[0].prev != found.last_hash or new[0].seq != found.last_seq + 1):
        raise JournalError(f"{journal}, line {found.last_seq + 2}: it does not follow the line before; restore the file from a copy, or move its folder away.")
    hashes = {found.last_seq: found.last_hash} | {event.seq: event.hash for event in new}
    if noted is not None and hashes.get(noted.seq, noted.hash) != noted.hash:
        raise JournalError(
            f"{journal}, line {noted.seq + 1}: not the one that {noted.where} knows; it or a line before it was replaced; "
            "restore the file from a copy, or move its folder away."
        )
    found.feed_all(new)
    return end


def _place(paths: CampaignPaths) -> Path:
    return paths.root / "view.kept"


def _kept(paths: CampaignPaths) -> tuple[CampaignView | None, int]:
    """The kept view and the journal's offset behind its last line; (None, 0) where none fits."""
    try:
        with _place(paths).open("rb") as file:
            if file.readline() != _MAGIC:
                return None, 0
            head = json.loads(file.readline())
            if head["code"] != _code() or not _stands(paths.journal, head["offset"], head["hash"]):
                return None, 0
            with chain.uncollected():
                found = _Reader(io.BytesIO(file.read())).load()
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, pickle.UnpicklingError):
        return None, 0
    fits = isinstance(found, CampaignView) and found.last_hash == head["hash"]
    return (found, head["offset"]) if fits else (None, 0)


def _stands(journal: Path, offset: int, hash: str) -> bool:
    """Does the line that ends at the offset still have that hash?"""
    tail = f'"hash":"{hash}"}}\n'.encode()
    with journal.open("rb") as file:
        file.seek(offset - len(tail))
        return file.read(len(tail)) == tail


def _keep(found: CampaignView, paths: CampaignPaths) -> None:
    """Write a view down, whole or not at all; a home that can't be written has none."""
    offset = _offset_behind(paths.journal, found.last_hash)
    if offset is None:
        return
    head = {"code": _code(), "offset": offset, "hash": found.last_hash}
    half = _place(paths).with_name(f".view.kept.{os.getpid()}")
    try:
        half.write_bytes(_MAGIC + json.dumps(head).encode() + b"\n" + pickle.dumps(found, 5))
        half.replace(_place(paths))
    except OSError:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def _offset_behind(journal: Path, hash: str) -> int | None:
    """Where the line with that hash ends; it is among the last ones."""
    tail = f'"hash":"{hash}"}}\n'.encode()
    with journal.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - 2**20)
        file.seek(start)
        at = file.read().rfind(tail)
    return start + at + len(tail) if at >= 0 else None


@lru_cache(maxsize=1)
def _code() -> str:
    """Hash of what decides how events are folded."""
    digest = hashlib.sha256()
    for module in (facts, events, view, model):
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()


class _Reader(pickle.Unpickler):
    """Reads values of the journal's own types; any other name is an error, so that a file can't make anything run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in (facts.__name__, events.__name__, view.__name__, model.__name__) or (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a kept view")

"""Reclaiming disk: what may go, how much that frees, and a record of what went.

Promises: nothing goes that an engine works on, or that any claim or its verification needs: journals, anchors, reports,
vaults, blobs, and every mirror that a journal names are kept. What goes is noted in the home's journal before it goes.
A campaign that was interrupted keeps all of its files, so that it can go on. While one journal can't be read, mirrors are
left alone, since nobody knows which of them it needs.
"""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rsi_tui.audit import words
from rsi_tui.errors import JournalError, UsageError
from rsi_tui.journal import chain
from rsi_tui.journal.events import Dropped, DroppedFile
from rsi_tui.journal.home import note_dropped
from rsi_tui.journal.view import CampaignView, load_campaign
from rsi_tui.launch.folders import measure, remove_tree
from rsi_tui.locations import Home

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_FRESH_S = 3600.0
"""a mirror without a journal that is younger may belong to a campaign that is being opened"""


@dataclass(frozen=True)
class Item:
    """One file or folder that may go."""

    path: Path
    bytes: int
    why: str
    campaign: str = ""


def size_of(text: str) -> int:
    """'20GiB', '500M', '1024' in bytes; UsageError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size; give one like 20GiB or 500MiB.")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def reclaimable(home: Home, *, older_than_days: float = 0.0, quota: int | None = None) -> list[Item]:
    """What may go, oldest campaigns first; with a quota only as much as brings the home below it."""
    items = [*_campaigns(home, older_than_days), *_strays(home), *_mirrors(home)]
    items = [item for item in items if item.bytes > 0]
    if quota is None:
        return items
    over, chosen = measure(home.root).blocks_bytes - quota, []
    for item in items:
        if over <= 0:
            break
        chosen.append(item)
        over -= item.bytes
    return chosen


def reclaim(home: Home, items: Sequence[Item], who: str) -> tuple[int, list[str]]:
    """Note what goes, then remove it; (bytes freed, one sentence for each that could not go).

    What an engine has taken up meanwhile stays.
    """
    problems: list[str] = []
    freed = 0
    going = [item for item in items if _still_free(home, item)]
    if not going:
        return 0, problems
    files = tuple(DroppedFile(path=str(item.path.relative_to(home.root)), bytes=item.bytes, why=item.why) for item in going)
    note_dropped(home, Dropped(who=who, files=files))
    for item in going:
        try:
            with _held(home, item):
                remove_tree(item.path)
            freed += item.bytes
        except (OSError, JournalError) as error:
            problems.append(f"{item.path} stays: {error}.")
    return freed, problems


def gc_data(home: Home, items: Sequence[Item], *, done: bool, freed: int = 0, problems: Sequence[str] = ()) -> dict[str, Any]:
    """What `rsi gc --json` prints."""
    return {
        "home": str(home.root),
        "bytes": sum(item.bytes for item in items),
        "items": [{"path": str(i.path), "bytes": i.bytes, "why": i.why, "campaign": i.campaign} for i in items],
        "done": done,
        "freed": freed,
        "problems": list(problems),
    }


def gc_page(home: Home, items: Sequence[Item]) -> str:
    """What would go, for a person."""
    if not items:
        return "Nothing to reclaim: all that lies in this home is needed."
    lines = [f"  {words.size(i.bytes):>10}  {words.one_line(str(i.path.relative_to(home.root)))}: {i.why}" for i in items]
    return "\n".join([*lines, f"{words.size(sum(i.bytes for i in items))} in all; journals, reports and code of proven changes stay."])


# --- what may go ------------------------------------------------------------------------------------------


def _campaigns(home: Home, days: float) -> Iterator[Item]:
    """Leftovers of campaigns that are over, those that ended first first."""
    found = [view for name in _names(home) if (view := _readable(home, name)) is not None and view.over]
    for view in sorted(found, key=lambda v: v.last_at):
        paths = home.campaign(view.id)
        if _age_days(view.last_at) < days or chain.holder(paths.journal) is not None:
            continue
        for path, why in (
            (paths.scratch, "scratch of trials that ended"),
            (paths.trees, "copies of the program, made again when needed"),
            (paths.worktrees, "worktrees of a search that is over"),
            (paths.logs, "whole output of runs that failed, whose telling lines are in the journal"),
            (paths.live_log, "output of the last trial, whose telling lines are in the journal"),
        ):
            yield _item(path, why, view.id)


def _strays(home: Home) -> Iterator[Item]:
    """Folders of the evaluator whose campaign left no journal."""
    for folder in sorted((home.root / "evaluator").glob("*")):
        if folder.is_dir() and not folder.is_symlink() and not home.campaign(folder.name).root.exists() and _old(folder):
            yield _item(folder, "its campaign left no journal")


def _mirrors(home: Home) -> Iterator[Item]:
    """Mirrors that no journal names."""
    views = [_readable(home, name) for name in _names(home)]
    if any(view is None for view in views):
        return
    needed = {view.created.workload_key for view in views if view is not None and view.created is not None}
    for mirror in sorted(home.mirrors.glob("*.git")):
        if mirror.stem not in needed and not mirror.is_symlink() and _old(mirror):
            yield _item(mirror, "no campaign uses this mirror")


def _names(home: Home) -> list[str]:
    return sorted(path.name for path in home.campaigns.glob("*") if path.is_dir())


def _readable(home: Home, name: str) -> CampaignView | None:
    try:
        return load_campaign(home, name)
    except JournalError:
        return None


def _item(path: Path, why: str, campaign: str = "") -> Item:
    if path.is_symlink():
        return Item(path, 0, why, campaign)
    size = measure(path).blocks_bytes if path.is_dir() else path.stat().st_blocks * 512 if path.exists() else 0
    return Item(path, size, why, campaign)


def _age_days(at: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds() / 86400


def _old(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > _FRESH_S
    return False


def _still_free(home: Home, item: Item) -> bool:
    return not item.campaign or chain.holder(home.campaign(item.campaign).journal) is None


@contextmanager
def _held(home: Home, item: Item) -> Iterator[None]:
    """Keep engines out while something is removed: a mirror by its lock, a campaign by its journal's."""
    if item.campaign:
        paths = home.campaign(item.campaign)
        with chain.JournalWriter.open(paths.journal, anchor=paths.anchor):
            yield
    elif item.path.parent == home.mirrors:
        with (home.mirrors / f"{item.path.stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    else:
        yield

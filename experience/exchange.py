"""Libraries that travel: an export is a folder of Parquet files, one a table, and Markdown for people.

    NAME/campaigns.parquet ... entries.parquet, heads.parquet, library.md

A campaign's rows come out of an export as they went in. What an export holds is data of somebody else: its columns are
checked, nothing of it is run. Reading takes pyarrow, loaded when something is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from experience.errors import ExperienceError, UnreadableJournalError
from experience.interface import Head
from experience.records import Batch, CampaignRow, CandidateRow, DirectionRow, Entry, RetrievalRow, TrialRow

FILES: Mapping[str, type[Any]] = {
    "campaigns": CampaignRow,
    "directions": DirectionRow,
    "candidates": CandidateRow,
    "trials": TrialRow,
    "entries": Entry,
    "retrievals": RetrievalRow,
}
TUPLES, DICTS = {"techniques", "base_stack", "bundle_of", "hits", "used"}, {"knobs", "base_knobs", "profile"}
"""columns that are JSON text"""
_CAMPAIGN = re.compile(r"[\w.-]{1,100}")
_T = TypeVar("_T")


def row_of(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """A record from a table's columns; columns that it does not know are left out, missing ones take their defaults."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    plain = {name: _deep(name, value) for name, value in values.items() if name in known}
    return kind(**plain)


def _deep(name: str, value: Any) -> Any:
    if name in TUPLES:
        return tuple(json.loads(value))
    return json.loads(value) if name in DICTS else value


def heads_of(folder: Path) -> list[Head]:
    """Where the journals of an export's campaigns ended; ExperienceError when it is none."""
    return [Head(str(row["campaign"]), int(row["last_seq"]), str(row["head"])) for row in _rows(folder, "heads") if _CAMPAIGN.fullmatch(str(row["campaign"]))]


def batch_of(folder: Path, campaign: str) -> Batch:
    """All rows of one campaign of an export; UnreadableJournalError when they can't be read."""
    try:
        head = next(head for head in heads_of(folder) if head.campaign == campaign)
        mine: dict[str, Sequence[Any]] = {
            name: [row_of(kind, row) for row in _rows(folder, name, ("id" if name == "campaigns" else "campaign", campaign))]
            for name, kind in FILES.items()
        }
        if any(not row.id.startswith(f"{campaign}/") for name, rows in mine.items() for row in rows if name != "campaigns"):
            raise ValueError("a row has the id of another campaign")
        return Batch(
            campaign=mine["campaigns"][0], last_seq=head.last_seq, head=head.head, directions=tuple(mine["directions"]),
            candidates=tuple(mine["candidates"]), trials=tuple(mine["trials"]), entries=tuple(mine["entries"]), retrievals=tuple(mine["retrievals"]),
        )  # fmt: skip
    except (ExperienceError, StopIteration, IndexError, TypeError, ValueError, KeyError) as error:
        raise UnreadableJournalError(f"{campaign} of the import {folder.name} can't be read: {error}") from error


def knowledge_of(folder: Path) -> list[Entry]:
    """Knowledge and notes of no campaign."""
    return [row_of(Entry, row) for row in _rows(folder, "entries") if row["campaign"] in ("", "home")]


def _rows(folder: Path, name: str, where: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(folder / f"{name}.parquet", filters=None if where is None else [(where[0], "==", where[1])])
    except (OSError, pyarrow.ArrowException) as error:
        raise ExperienceError(f"{folder} is no export of a library ({name}.parquet: {str(error).splitlines()[0][:120]}).") from error
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def check(folder: Path) -> int:
    """Read all of an export; the number of its campaigns. ExperienceError for what is none or can't be read."""
    heads = [head for head in heads_of(folder) if head.campaign != "home"]
    for head in heads:
        batch_of(folder, head.campaign)
    knowledge_of(folder)
    return len(heads)


def markdown(campaigns: Sequence[CampaignRow], candidates: Sequence[CandidateRow], lessons: Sequence[Entry]) -> str:
    """What a person reads of a library: campaigns, what was proven, what failed, lessons."""
    lines = ["# Experience", "", "## Campaigns", "", "| campaign | workload | state | proven speed-up | candidates |", "|---|---|---|---|---|"]
    for row in campaigns:
        proven = f"{row.speedup:.3f} ({row.speedup_low:.3f} to {row.speedup_high:.3f})" if row.speedup and row.speedup_low and row.speedup_high else "none"
        lines.append(f"| {row.id} | {_cell(row.workload)} | {row.state} | {proven} | {row.candidates} |")
    for title, verdicts in (("Proven", ("adopted", "leaner")), ("Refuted and failed", ("slower", "not_proven", "invalid", "failed"))):
        lines += ["", f"## {title}", ""]
        lines += [f"- {row.id}, {row.verdict}: {_line(row.statement)} ({_line(row.reason)})" for row in candidates if row.verdict in verdicts]
    lines += ["", "## Lessons", "", *(f"- {entry.id}: {_line(entry.text)}" for entry in lessons)]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")

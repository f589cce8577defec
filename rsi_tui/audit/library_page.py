"""What `rsi search` and `rsi library` print: hits with their reasons, and what the library holds."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from rsi_tui import library as room
from rsi_tui.audit import words
from rsi_tui.errors import UsageError
from rsi_tui.locations import Home

KINDS = ("hypothesis", "failure", "diff", "lesson", "knowledge", "note")
SHOWN_LINES = 6


def search_data(
    home: Home,
    text: str,
    kinds: Sequence[str] = (),
    *,
    workload: str = "",
    layer: str = "",
    outcome: str = "",
    since: str = "",
    limit: int = 10,
    light: bool = False,
) -> dict[str, Any]:
    """The hits as `rsi search --json` prints them. `light`: UsageError rather than load the library into this process."""
    if not text.strip():
        raise UsageError('say what to look for: rsi search "out of memory in attention"')
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"there is no kind '{unknown[0]}'; the kinds are {', '.join(KINDS)}.")
    if light and not room.is_served(home):
        raise UsageError("the library of this home has no server ([library] server = false); `rsi search` asks it.")
    if since and not re.fullmatch(r"\d{4}(-\d\d){0,2}", since):
        raise UsageError(f"--since {since}: give a year, month or day, like 2026, 2026-11 or 2026-11-30.")
    library = room.open_library(home, patient=False)
    try:
        with room.translated():
            filters = room.Filters(workload_key=room.key_of(library, workload), layer=layer, outcome=outcome, since=since)
            found = library.search(text, kinds=list(kinds) or None, filters=filters, limit=limit)  # type: ignore[arg-type]
    finally:
        library.close()
    return {
        "query": text,
        "hits": [
            {
                "id": hit.entry.id, "kind": hit.entry.kind, "score": hit.score, "why": hit.why, "text": hit.entry.text,
                "campaign": hit.entry.campaign, "workload": hit.entry.workload, "layer": hit.entry.layer, "outcome": hit.entry.outcome,
                "hardware": hit.entry.hardware, "software": hit.entry.software, "at": hit.entry.at, "source": hit.entry.source,
            }
            for hit in found
        ],
    }  # fmt: skip


def search_page(data: dict[str, Any]) -> str:
    """The hits for a person."""
    if not data["hits"]:
        return "Nothing like it was found. `rsi library stats` says what the library holds."
    width, lines = words.columns(), []
    for number, hit in enumerate(data["hits"], 1):
        about = ", ".join(part for part in (hit["kind"], hit["outcome"].replace("_", " "), hit["workload"], hit["layer"], hit["at"][:10]) if part)
        lines.append(words.one_line(f"{number}. {hit['id']}  ({about})", width))
        body = [line for line in words.clean(hit["text"]).splitlines() if line.strip()]
        for line in body[:SHOWN_LINES]:
            lines += textwrap.wrap(line, width - 3, initial_indent="   ", subsequent_indent="     ") if len(line) > width - 3 else [f"   {line}"]
        lines += [f"   ({len(body) - SHOWN_LINES} more lines)" for _ in range(len(body) > SHOWN_LINES)]
        lines += [words.one_line(f"   from {hit['source']}", width)] if hit["source"] else []
        lines += [*textwrap.wrap(f"why: {hit['why']}", width - 3, initial_indent="   ", subsequent_indent="     "), ""]
    lines.append("`rsi show ID` and `rsi why ID` tell more of hypotheses and failures.")
    return "\n".join(lines)


def stats_data(home: Home) -> dict[str, Any]:
    """What the library holds, as `rsi library stats --json` prints it."""
    library = room.open_library(home)
    try:
        with room.translated():
            found = library.stats()
    finally:
        library.close()
    return {
        "folder": str(home.library), "campaigns": found.campaigns, "directions": found.directions, "candidates": found.candidates,
        "trials": found.trials, "entries": dict(found.entries), "vectors": found.vectors, "disk_bytes": found.disk_bytes,
        "encoder": found.encoder, "notes": list(found.notes),
    }  # fmt: skip


def stats_page(data: dict[str, Any]) -> str:
    """The same for a person."""
    entries = ", ".join(f"{count} {kind}" for kind, count in data["entries"].items()) or "none"
    total = sum(data["entries"].values())
    lines = [
        f"library    {data['folder']}, {words.size(data['disk_bytes'])}",
        f"holds      {words.plural(data['campaigns'], 'campaign')}, {words.plural(data['directions'], 'direction')}, "
        f"{words.plural(data['candidates'], 'candidate')}, {words.plural(data['trials'], 'run')}",
        f"texts      {total}: {entries}",
        f"by meaning {data['vectors']} of {total}, encoder {data['encoder']}",
    ]
    return "\n".join(words.one_line(line) for line in [*lines, *(f"note       {note}" for note in data["notes"])])


def calibration_data(home: Home) -> list[dict[str, Any]]:
    """How predictions came true, as `rsi library calibration --json` prints it."""
    library = room.open_library(home)
    try:
        with room.translated():
            return [{**vars(found), "predictions": found.predictions} for found in library.calibration()]
    finally:
        library.close()


def calibration_page(data: Sequence[dict[str, Any]]) -> str:
    """The same for a person."""
    if not data:
        return "Nothing was predicted and measured yet."
    head = f"{'':10} {'':32} {'predicted':>9} {'hit':>4} {'less':>5} {'more':>5} {'miss':>5} {'failed':>6} {'factor':>7}"
    lines = [
        f"{row['by']:10} {row['name'][:32]:32} {row['predictions']:9} {row['hits']:4} {row['overshoots']:5} {row['undershoots']:5} "
        f"{row['misses']:5} {row['failed']:6} {row['factor']:7.2f}"
        for row in data
    ]
    note = "less, more: faster, by less or more than was predicted; factor: what a prediction is worth multiplied by."
    return "\n".join([head, *lines, "", note])


def retrievals_data(home: Home, campaign: str = "", limit: int = 50) -> list[dict[str, Any]]:
    """What the library was asked, as `rsi library retrievals --json` prints it."""
    library = room.open_library(home)
    try:
        with room.translated():
            return [dict(vars(row)) for row in library.retrievals(campaign, limit)]
    finally:
        library.close()


def retrievals_page(data: Sequence[dict[str, Any]]) -> str:
    """The same for a person."""
    if not data:
        return "Nothing was asked yet."
    width, lines = words.columns(), []
    for row in data:
        what = f"for {row['about']}, {row['paid']}" if row["about"] else "nothing followed"
        lines.append(words.one_line(f"{row['at'][:16]}  {row['id']}  {row['role']}: {len(row['hits'])} found, {len(row['used'])} used, {what}", width))
        lines.append(words.one_line(f"   asked   {row['query']}", width))
        lines += [words.one_line(f"   used    {name}", width) for name in row["used"]]
        lines += [words.one_line(f"   changed {row['changed']}", width)] if row["changed"] else []
    return "\n".join(lines)

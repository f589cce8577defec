"""What `rsi search` and `rsi library` print: hits with their reasons, and what the library holds."""

from __future__ import annotations

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
    library = room.open_library(home, patient=False)
    try:
        with room.translated():
            filters = room.Filters(workload_key=room.key_of(library, workload), layer=layer, outcome=outcome)
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

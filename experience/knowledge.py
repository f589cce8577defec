"""Documents as entries: Markdown cut by heading, so that a hit names the section it comes from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from experience.chunk import prose_pieces
from experience.records import Entry

_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_FENCE = re.compile(r"^\s*(```|~~~)")


def sections(markdown: str) -> Iterator[tuple[str, str]]:
    """(path of headings, body) of each section with a body; '#' inside code blocks is no heading."""
    path: list[tuple[int, str]] = []
    body: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            body.append(line)
            continue
        yield from _section(path, body)
        body = []
        level = len(heading[1])
        path = [(depth, title) for depth, title in path if depth < level] + [(level, heading[2])]
    yield from _section(path, body)


def _section(path: list[tuple[int, str]], body: list[str]) -> Iterator[tuple[str, str]]:
    if text := "\n".join(body).strip():
        yield " > ".join(title for _, title in path), text


def entries_of(markdown: str, source: str, at: str = "", layer: str = "") -> list[Entry]:
    """Entries of one document; ids depend on source and text alone, so adding it twice changes nothing."""
    entries = []
    for title, body in sections(markdown):
        for number, piece in enumerate(prose_pieces(body)):
            text = f"{title}\n{piece}" if title else piece
            digest = hashlib.sha256(f"{source}\n{title}\n{number}\n{piece}".encode()).hexdigest()[:16]
            entries.append(
                Entry(id=f"knowledge/{digest}", kind="knowledge", text=text, source=source, at=at, layer=layer)
            )
    return list({entry.id: entry for entry in entries}.values())

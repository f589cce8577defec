"""Texts cut so that the encoder sees all of them: it reads 256 tokens and drops the rest.

Code takes about a token for three characters, prose one for four and a half; the limits below stay
under 256 tokens for both. A diff becomes a summary (files, functions, names that came and went) and
one text a hunk. Full-text search sees the same pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

CODE_LIMIT = 600
"""characters"""
PROSE_LIMIT = 950
"""characters"""
MAX_HUNKS = 12
"""a generated or vendored file must not flood the library"""

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@ ?(.*)$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{2,}")


@dataclass(frozen=True)
class Hunk:
    """One hunk of a unified diff."""

    path: str
    context: str
    """function or class that the header names, '' when none"""
    removed: tuple[str, ...]
    added: tuple[str, ...]


def hunks_of(diff: str) -> list[Hunk]:
    """Hunks in order; lines that are no unified diff are passed over."""
    hunks: list[Hunk] = []
    path = ""
    lines = diff.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if header := _HUNK.match(line):
            old, new = int(header[1] or 1), int(header[2] or 1)
            removed, added = list[str](), list[str]()
            while at < len(lines) and (old > 0 or new > 0):
                line = lines[at]
                at += 1
                old -= not line.startswith(("+", "\\"))
                new -= not line.startswith(("-", "\\"))
                if line.startswith("-"):
                    removed.append(line[1:])
                elif line.startswith("+"):
                    added.append(line[1:])
            hunks.append(Hunk(path, header[3].strip(), tuple(removed), tuple(added)))
        elif line.startswith(("--- ", "+++ ")) and "/dev/null" not in line:
            path = re.sub(r"^[ab]/", "", line[4:].split("\t")[0].strip())
    return hunks


def _squeeze(lines: tuple[str, ...], sign: str) -> list[str]:
    return [f"{sign} {' '.join(line.split())}" for line in lines if line.strip()]


def _hunk_text(hunk: Hunk) -> str:
    head = f"{hunk.path} {hunk.context}".strip()
    body = _squeeze(hunk.added, "+") + _squeeze(hunk.removed, "-")
    return "\n".join([head, *body])[:CODE_LIMIT]


def _names(hunks: list[Hunk], side: str) -> list[str]:
    lines = (line for hunk in hunks for line in (hunk.added if side == "+" else hunk.removed))
    return list(dict.fromkeys(name for line in lines for name in _NAME.findall(line.split("#")[0])))


def summary_of(diff: str, lead: str = "") -> str:
    """What a diff changes, within the encoder's reach: files, functions, names that came and went."""
    hunks = hunks_of(diff)
    came, went = _names(hunks, "+"), _names(hunks, "-")
    files = list(dict.fromkeys(hunk.path for hunk in hunks))
    where = list(dict.fromkeys(hunk.context for hunk in hunks if hunk.context))
    lines = [
        lead,
        "files: " + ", ".join(files),
        "in: " + "; ".join(where) if where else "",
        "new names: " + ", ".join(name for name in came if name not in went),
        "removed names: " + ", ".join(name for name in went if name not in came),
    ]
    return "\n".join(line for line in lines if line and not line.endswith(": "))[:CODE_LIMIT]


def diff_texts(diff: str, lead: str = "") -> list[str]:
    """Summary first, then one text a hunk, at most MAX_HUNKS; [] without changes."""
    hunks = hunks_of(diff)
    if not hunks:
        return []
    return [summary_of(diff, lead), *(_hunk_text(hunk) for hunk in hunks[:MAX_HUNKS])]


def prose_pieces(text: str, limit: int = PROSE_LIMIT) -> list[str]:
    """Pieces of at most `limit` characters, cut between paragraphs, lines, sentences or words."""
    return list(_cut(text.strip(), limit))


def _cut(text: str, limit: int) -> Iterator[str]:
    while len(text) > limit:
        at = _break(text, limit)
        yield text[:at].strip()
        text = text[at:].strip()
    if text:
        yield text


def _break(text: str, limit: int) -> int:
    for mark in ("\n\n", "\n", ". ", " "):
        at = text.rfind(mark, limit // 3, limit - len(mark))
        if at > 0:
            return at + len(mark)
    return limit

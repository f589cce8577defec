"""Untrusted text as data: logs, files and library entries reach a prompt between fences that they can't close.

A fence is named after the hash of the text in it, so that no text can hold its own closing fence, and the same
text gives the same prompt, which keeps the prompt cache warm. What a prompt says of fences stands in each role's file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

CUT = "\n[... {n} characters left out ...]\n"
FENCED = re.compile(r"<data ([0-9a-f]{16})[^>\n]*>\n(.*?)\n</data \1>", re.DOTALL)


def quote(text: str, what: str, most: int = 0) -> str:
    """The text as data, with what it is; of more than `most` characters (0: all) the middle is left out."""
    body = shortened(text, most)
    label = re.sub(r"[^\w ./:,()-]", "?", what)[:120]
    fence = hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"<data {fence} {label}>\n{body}\n</data {fence}>"


def shortened(text: str, most: int) -> str:
    """The text, or its begin and end where it is longer than `most` characters (0: never)."""
    if not most or len(text) <= most:
        return text
    head, tail = most * 2 // 3, most - most * 2 // 3
    return text[:head] + CUT.format(n=len(text) - most) + text[len(text) - tail :]


def quote_files(files: Mapping[str, str], most: int = 0) -> str:
    """Files, each as data of its own; their names are data as well."""
    return "\n".join(quote(f"path: {path}\n{text}", "a file", most) for path, text in sorted(files.items()))


def quote_lines(lines: Iterable[str], what: str, most: int = 0) -> str:
    """Lines as one piece of data; '(none)' for none."""
    return quote("\n".join(lines) or "(none)", what, most)

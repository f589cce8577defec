"""Which files a candidate may change: the contract's `editable` patterns, and what they can never open.

Patterns are relative to the workload's folder: `*` and `?` stay within one name, `**` crosses
folders, `dir/` means everything below it. Links are the business of `repo`, which refuses them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from rsi_tui.contract.model import Contract

_NEVER = frozenset({".git", ".gitattributes", ".gitmodules"})
"""names, in any folder and any case, through which git itself would be steered"""


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_translate(pattern), re.DOTALL)


def _translate(pattern: str) -> str:
    """A regular expression for one glob."""
    if pattern.endswith("/"):
        pattern += "**"
    out, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif rest.startswith("**"):
            out, at = out + ".+", at + 2
        elif (found := re.match(r"\[(!?)([^\]/]+)\]", rest)) is not None:
            inner = re.sub(r"([\\^\[])", r"\\\1", found[2])
            out, at = out + f"[{'^/' if found[1] else ''}{inner}]", at + found.end()
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(rest[0]) or re.escape(rest[0])
            at += 1
    return out


def glob_match(pattern: str, path: str) -> bool:
    """Does the whole path, relative and with slashes, match the pattern?"""
    return _compiled(pattern.removeprefix("./")).fullmatch(path) is not None


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Does the path match one of the patterns?"""
    return any(glob_match(pattern, path) for pattern in patterns)


def plain_path(path: str) -> bool:
    """Is this a relative path without empty, '.' or '..' parts and without anything of git's own?"""
    parts = path.split("/")
    return "\0" not in path and all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts)


def in_scope(contract: Contract, path: str) -> bool:
    """May a candidate change the file at this path (relative to the workload's folder, slashes)?"""
    if not plain_path(path) or path.lower() == "workload.toml":
        return False
    if any(part.lower() in _NEVER for part in path.split("/")):
        return False
    return matches_any(contract.editable, path)

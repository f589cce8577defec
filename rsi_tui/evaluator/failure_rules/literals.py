"""Which words a line must hold before a rule can match it: read from the rule's own pattern.

Most lines of a log hold none of them and are never given to a regular expression. Derived, not listed,
so that a new rule can't be forgotten here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_MANY = 64
"""strings that a part of a pattern may stand for before it counts as anything"""
_RUN = re.compile(r"[a-z]+")


def _exact(code: int, argument: Any) -> set[str] | None:
    """All strings, in lower case, that one item of a parsed pattern matches; None when that is unbounded."""
    if code is op.LITERAL:
        return {chr(argument).lower()}
    if code is op.IN:
        if any(kind is not op.LITERAL for kind, _ in argument):
            return None
        return {chr(value).lower() for _, value in argument}
    if code is op.AT or code in (op.ASSERT, op.ASSERT_NOT):
        return {""}
    if code is op.SUBPATTERN:
        return _all_exact(argument[3])
    if code is op.BRANCH:
        branches = [_all_exact(branch) for branch in argument[1]]
        return _small(set().union(*[b for b in branches if b is not None])) if None not in branches else None
    if code is op.MAX_REPEAT and argument[0] == 0 and argument[1] == 1:
        inner = _all_exact(argument[2])
        return _small({"", *inner}) if inner is not None else None
    return None


def _small(strings: set[str]) -> set[str] | None:
    return strings if len(strings) <= _MANY else None


def _all_exact(items: Iterable[tuple[Any, Any]]) -> set[str] | None:
    strings = {""}
    for code, argument in items:
        more = _exact(code, argument)
        if more is None or len(strings) * len(more) > _MANY:
            return None
        strings = {a + b for a, b in product(strings, more)}
    return strings


def _worth(strings: Iterable[str]) -> int:
    """The length of the shortest of the longest words: what every match is sure to hold."""
    return min((len(_word(text)) for text in strings), default=0)


def _word(text: str) -> str:
    return max(_RUN.findall(text), key=len, default="")


def _required(items: Iterable[tuple[Any, Any]]) -> set[str]:
    """Strings of which every match holds at least one; empty when nothing is sure."""
    found: list[set[str]] = []
    run = {""}
    for code, argument in items:
        more = _exact(code, argument)
        if more is not None and len(run) * len(more) <= _MANY:
            run = {a + b for a, b in product(run, more)}
            continue
        found.append(run)
        run = more if more is not None else {""}
        if more is None:
            found.append(_inside(code, argument))
    found.append(run)
    return max(found, key=_worth)


def _inside(code: int, argument: Any) -> set[str]:
    if code is op.SUBPATTERN:
        return _required(argument[3])
    if code is op.BRANCH:
        branches = [_required(branch) for branch in argument[1]]
        return set().union(*branches) if all(_worth(branch) for branch in branches) else set()
    if code in (op.MAX_REPEAT, op.MIN_REPEAT) and argument[0] >= 1:
        return _required(argument[2])
    return set()


@lru_cache(maxsize=1024)
def strings_of(pattern: str) -> tuple[str, ...]:
    """Lower-case strings of which any match of the pattern holds one; empty when none is sure."""
    strings = _required(parser.parse(pattern))
    return tuple(sorted(strings)) if _worth(strings) else ()


def words_of(pattern: str) -> frozenset[bytes]:
    """The longest word, or part of a word, in each of `strings_of`."""
    return frozenset(_word(text).encode() for text in strings_of(pattern))

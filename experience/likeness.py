"""How alike two changes of a program are, whatever their variables are called.

A change is its hunks as `experience.chunk` writes them. Of each added and removed line the runs of three tokens count, and
the names that are called, passed by keyword or read as attributes; comments, strings and the names of variables don't.
What was removed and added alike cancels out. The measure is Dice's coefficient over what is left: 1 for changes that
differ in names, layout and comments alone.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable

_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|[A-Za-z_]\w*|\d+(?:\.\d+)?|\*\*|[=!<>]=|->|[^\w\s]")
_NAME = re.compile(r"[A-Za-z_]\w*")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
_RUN = 3
_NAMES_COUNT = 3
"""a name of the interface says more than a run of punctuation"""
Features = Counter[tuple[str, ...]]


def features_of(hunks: Iterable[str]) -> Features:
    """What a change consists of; empty when no line of it is code."""
    came: Features = Counter()
    went: Features = Counter()
    for line in (line for hunk in hunks for line in hunk.split("\n")):
        sign, code = line[:2], line[2:].split("#")[0].strip()
        if sign in ("+ ", "- ") and code:
            _count(code, came if sign == "+ " else went)
    return Counter({("+", *feature): count for feature, count in (came - went).items()}) + Counter(
        {("-", *feature): count for feature, count in (went - came).items()}
    )


def _count(code: str, found: Features) -> None:
    tokens, names = _tokens(code)
    padded = ["", *tokens, ""]
    for at in range(len(padded) - _RUN + 1):
        found[tuple(padded[at : at + _RUN])] += 1
    for name in names:
        found[(name,)] += _NAMES_COUNT


def _tokens(code: str) -> tuple[list[str], list[str]]:
    """(tokens with variables made alike, names of the interface) of a line."""
    raw = _TOKEN.findall(code)
    tokens, names, depth = [], [], 0
    for at, token in enumerate(raw):
        depth += (token == "(") - (token == ")")
        before, after = raw[at - 1] if at else "", raw[at + 1] if at + 1 < len(raw) else ""
        if not _NAME.fullmatch(token):
            tokens.append("''" if token[0] in "'\"" else token)
        elif keyword.iskeyword(token):
            tokens.append(token)
        elif before == "." or after == "(" or (after == "=" and depth > 0) or _CONSTANT.fullmatch(token):
            tokens.append(token)
            names.append(token)
        else:
            tokens.append("v")
    return tokens, names


def likeness(one: Features, other: Features) -> float:
    """0..1; 0 when either is empty."""
    size = one.total() + other.total()
    return 2 * (one & other).total() / size if one and other else 0.0

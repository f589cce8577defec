"""Words of a text as people type them: identifiers and flags whole, in parts and joined.

`--micro-batch`, `micro_batch`, `microBatch` and `microbatch` meet in the word `microbatch`;
`torch.nn.functional` is found whole and by each of its parts. The full-text index and the query go
through the same function, so that they can't disagree.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"\w(?:[\w.:/+-]*\w)?")
_SEPARATOR = re.compile(r"[_.:/+-]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ENDING = re.compile(r"(?:ings?|ed|es|s)$")
LONGEST = 80
"""characters of a word; what is longer is base64 or a hash that nobody types"""


def parts_of(word: str) -> list[str]:
    """Parts of an identifier, in lower case: separators and changes of case end a part."""
    return [part.lower() for piece in _SEPARATOR.split(word) for part in _CAMEL.split(piece) if part]


@lru_cache(maxsize=50_000)  # texts of this trade share their words
def _forms(word: str) -> tuple[str, ...]:
    parts = parts_of(word)
    forms = [word.lower()]
    if len(parts) > 1 and not all(part.isdigit() for part in parts):
        forms += [part for part in parts if len(part) > 1] + ["".join(parts)]
    return tuple(forms)


def words_of(text: str) -> list[str]:
    """All forms of all words, in order, repeats kept (they count in ranking)."""
    return [form for word in _WORD.findall(text) for form in _forms(word) if len(form) <= LONGEST]


def shared_words(query: str, text: str) -> list[str]:
    """Words of the query that the text has too, endings apart, each once, in the query's order."""
    there = {_stem(word) for word in words_of(text)}
    found = [word for word in words_of(query) if len(word) > 2 and _stem(word) in there]
    return list(dict.fromkeys(found))


def _stem(word: str) -> str:
    return _ENDING.sub("", word) if len(word) > 4 else word

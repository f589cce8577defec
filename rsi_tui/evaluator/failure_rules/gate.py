"""Which rules a line could match at all, by the words in it: most lines are never given to one.

Promises: what the gate stops, no rule matches. Does not promise that a rule which it lets through does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rsi_tui.evaluator.failure_rules import RULES
from rsi_tui.evaluator.failure_rules.literals import strings_of, words_of
from rsi_tui.evaluator.failure_rules.rule import Rule

FIGURES = bytes(sorted({*b"0123456789.,+-%:|#= \t", *range(128, 256)}))
"""what a line's shape leaves out"""
_LETTERS = bytes(c + 32 if 65 <= c <= 90 else c if 97 <= c <= 122 else 32 for c in range(256))
_REMEMBERED = 200_000
"""words that are remembered before memory is cleared"""


@dataclass(frozen=True)
class Compiled:
    """One rule, ready for use."""

    rule: Rule
    pattern: re.Pattern[str]
    near: re.Pattern[str] | None
    strings: tuple[str, ...]
    """of which a line, in lower case, must hold one"""
    figures: bool
    """whether the rule reads figures, so that lines of one shape may differ for it"""
    bare: tuple[bytes, ...]
    """`strings` without figures: where a shape holds none of them, none of its lines can match"""


def _bounded(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(".*?", ".{0,400}?").replace(".*", ".{0,400}"))


@lru_cache(maxsize=1)
def compiled() -> tuple[Compiled, ...]:
    """All rules, in their order."""
    return tuple(
        Compiled(rule, _bounded(rule.pattern), re.compile(rule.near) if rule.near else None,
                 strings_of(rule.pattern), bool(re.search(r"\d", re.sub(r"\\d|\{[\d,]+\}", "", rule.pattern))),
                 tuple(text.encode().translate(None, FIGURES) for text in strings_of(rule.pattern)))
        for rule in RULES
    )  # fmt: skip


def words(line: bytes) -> list[bytes]:
    """The words of a line, or of several, in lower case."""
    return line.translate(_LETTERS).split()


class Gate:
    """Which rules a line could match, by the words in it."""

    def __init__(self, rules: Sequence[Compiled]) -> None:
        self._by_start: dict[bytes, list[tuple[bytes, int]]] = {}
        for number, one in enumerate(rules):
            wanted = words_of(one.rule.pattern)
            assert wanted, f"the rule {one.rule.name} names no word that its lines must hold"
            for word in wanted:
                self._by_start.setdefault(word[:3], []).append((word, number))
        self._known: dict[bytes, frozenset[int]] = {}

    def telling(self, said: Iterable[bytes]) -> set[bytes]:
        """Those words that any rule looks for."""
        return {word for word in said if self._rules(word)}

    def rules(self, said: Iterable[bytes]) -> list[int]:
        """Numbers of the rules that look for one of these words."""
        return sorted(set().union(*[self._rules(word) for word in said]))

    def _rules(self, word: bytes) -> frozenset[int]:
        found = self._known.get(word)
        if found is None:
            starts = self._by_start
            found = frozenset(
                number
                for at in range(len(word) - 2)
                if (some := starts.get(word[at : at + 3]))
                for wanted, number in some
                if word.startswith(wanted, at)
            )
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known[word] = found
        return found


@lru_cache(maxsize=1)
def gate() -> Gate:
    """The gate of all rules."""
    return Gate(compiled())

"""Review of a diff by rules: is it within its scope, and does it train what the program trained? Knows no score.

Only what a change adds or alters counts: what the program did before is no finding, comments, docstrings and the
names of variables never matter. `exploit` and `scope` findings refuse a candidate before it runs; a `warning` is a
thing that can be honest. A reviewer of text can be fooled; what it misses, the evaluator's invariants must catch.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rsi_tui.contract.model import Contract
from rsi_tui.journal.facts import FindingFacts
from rsi_tui.loop.review_rules import comparison, escapes, learning, powers, storage
from rsi_tui.loop.review_rules.files import Changed, paths
from rsi_tui.loop.review_rules.source import Program, Suspect, parse

SCANS = (*escapes.SCANS, *storage.SCANS, *powers.SCANS, *learning.SCANS)
MOST_FINDINGS = 200


def review_diff(
    before: Mapping[str, str],
    after: Mapping[str, str],
    changed: Sequence[Changed] | None,
    contract: Contract,
) -> tuple[FindingFacts, ...]:
    """Findings of a change, worst first; lines are those of `after`.

    `before` and `after` map the paths of the editable text files to their text. `changed` lists every path that
    differs, with its git modes; None takes the difference of the two maps, all as plain files.
    """
    if changed is None:
        changed = [
            (path, "100644" if path in before else "000000", "100644" if path in after else "000000")
            for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)
        ]
    reviewed = _before(before, contract)
    old, new = reviewed.program, parse(after, contract)
    found = list(paths(before, after, changed, contract))
    for path in new.broken:
        if path not in old.broken:
            text = "The file does not parse, so that it can't be reviewed."
            found.append(FindingFacts(rule="unreadable", severity="warning", path=path, line=1, text=text))
    for scan, already in zip(SCANS, reviewed.known, strict=True):
        known = already.copy()
        for suspect in scan(new):
            if known[suspect.identity] > 0:
                known[suspect.identity] -= 1
            else:
                found.append(_fact(suspect))
    # A file that parses on one side only is not a file whose calls came or went: it is left out of both.
    one_sided = {*old.broken, *new.broken}
    old, new = _without(old, one_sided), _without(new, one_sided)
    for compare in (*comparison.COMPARISONS, storage.new_places):
        found += [_fact(s) for s in compare(old, new)]
    order = ("exploit", "scope", "off_direction", "warning")
    unique = sorted(dict.fromkeys(found), key=lambda f: (order.index(f.severity), f.path, f.line, f.rule))
    return tuple(unique[:MOST_FINDINGS])


@dataclass(frozen=True)
class _Before:
    """What a program holds before it is changed."""

    sources: Mapping[str, str]
    contract: Contract
    program: Program
    known: tuple[Counter[tuple[str, str, str]], ...]
    """of each scan: how often each suspect occurs"""


_last: list[_Before] = []


def _before(sources: Mapping[str, str], contract: Contract) -> _Before:
    """The side of a diff that does not change: many changes of one program are reviewed one after the other."""
    if not _last or _last[0].contract != contract or _last[0].sources != sources:
        program = parse(sources, contract)
        known = tuple(Counter(s.identity for s in scan(program)) for scan in SCANS)
        _last[:] = [_Before(dict(sources), contract, program, known)]
    return _last[0]


def _without(program: Program, left_out: set[str]) -> Program:
    """The program without some files, which other files may still import."""
    return replace(program, sources=tuple(s for s in program.sources if s.path not in left_out)) if left_out else program


def _fact(suspect: Suspect) -> FindingFacts:
    return FindingFacts(
        rule=suspect.rule, severity=suspect.severity, path=suspect.path, line=suspect.line, text=suspect.text
    )


def blind(text: str) -> str:
    """The text without comments and docstrings, line for line, so that nobody argues with who judges it.

    Text that is not Python loses the lines that begin with '#'.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError):
        return "".join(
            "\n" if line.lstrip().startswith(("#", "//")) else line for line in io.StringIO(text)
        )
    lines = list(io.StringIO(text))
    starts = {(n.lineno, n.col_offset) for n in ast.walk(tree) if _is_docstring(n)}  # type: ignore[attr-defined]
    in_string = False
    for token in tokens:
        row, column = token.start
        at = (row, len(lines[row - 1][:column].encode()) if row <= len(lines) else 0)
        in_string = token.type == tokenize.STRING and (in_string or at in starts)
        if token.type == tokenize.COMMENT:
            _cut(lines, token.start, token.end, "")
        elif in_string:
            _cut(lines, token.start, token.end, '"."' if at in starts else "")
    return "".join(lines)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _cut(lines: list[str], start: tuple[int, int], end: tuple[int, int], instead: str) -> None:
    """Replace a span by spaces, keeping line ends and columns; what is left blank loses its spaces."""
    for row in range(start[0], end[0] + 1):
        line = lines[row - 1]
        body = line.rstrip("\n")
        first = start[1] if row == start[0] else 0
        last = end[1] if row == end[0] else len(body)
        mark = instead if row == start[0] else ""
        lines[row - 1] = body[:first] + mark.ljust(last - first)[: max(last - first, len(mark))] + body[last:] + line[len(body):]
        if not lines[row - 1].strip():
            lines[row - 1] = line[len(body):]

"""A failed run's output read once, from beginning to end: which lines which rules match.

Promises: output of any size is read in bounded memory; a line of any length is read in pieces of
4 KiB; escapes and carriage returns are gone before a rule sees a line. Lines that differ in their
figures alone are one shape, and one of a shape stands for all, except where a rule reads figures. Of
each rule the first fifty lines are kept. Where a log is new in every line its beginning and its end are
read, and `left_out` counts the rest. Does not promise the losses of every line of a long log: they
are sampled.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rsi_tui.evaluator.failure_rules import RULES, Rule
from rsi_tui.evaluator.failure_rules.literals import strings_of, words_of
from rsi_tui.evaluator.progress import plain

CHUNK = 2**20
"""bytes that are looked at together"""
PIECE = 4096
OVERLAP = 512
"""bytes that two pieces of one line share, so that no message is lost in a cut"""
ABOVE, BELOW = 12, 8
"""lines around a hit that are kept"""
HITS_PER_RULE = 50
_REMEMBERED = 200_000
"""shapes, words and lines that are remembered before memory is cleared"""
_LONG = 1024
_LONG_READINGS = 500
"""how often a rule is given a line of more than 1,024 characters that no line of its shape came before: what a
hostile line costs is bounded so"""
_BUDGET = 30_000
"""lines of new shapes that are read one by one (a long one counts for several); after that only the end of the log is"""
_END_LINES, _END_BYTES = 4_000, 2**18
_END_BUDGET = 10_000
_ALL_LOSSES = 5_000
"""lines up to which every loss is read"""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_LETTERS = bytes(c + 32 if 65 <= c <= 90 else c if 97 <= c <= 122 else 32 for c in range(256))
_FIGURES = bytes(sorted({*b"0123456789.,+-%:|#= \t", *range(128, 256)}))
"""what a shape leaves out"""
_LONG_FIGURES = re.compile(rb"\d+[.:]\d+|\d{4,}")
_LEVELS = r"(?:(?:ERROR|WARNING|WARN|INFO|CRITICAL|FATAL)\s*[:|-]\s*(?:[\w.]+:(?=\S))?\s*)"
_PREFIX = re.compile(
    r"^(?:\s*(?:"
    r"\[[^\]]{1,80}\](?:\[rank\d+\])?\s*:?\s"  # [rank3]: [1,3]<stderr>: [2026-01-01 00:00:00,000] [ERROR]
    r"|\[(?:rank|default|node)?\d+\](?:\[rank\d+\])?:"
    r"|\[\d+,\d+\]<std\w+>:"
    r"|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?:?\s(?:std(?:err|out) [FP]\s)?"
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ [^\]]{1,120}\]\s"  # glog
    r"|\([\w.]+(?: [\w.]+){0,4},? pid=[^)]{1,60}\)"  # Ray
    rf"|{_LEVELS}"
    r"|(?=[\w.-]{0,40}\d)[A-Za-z][\w.-]{0,40}(?:: |\s*\| )"  # node-3: and trainer-1 |
    r"|>{1,3}|\d+:(?=\s)|E {3,}))+\s?"
)
_WARNED = re.compile(
    r"\b\w*Warning: |(?:^|[\s\]|\[:])(?:WARNING|WARN|INFO|DEBUG)\b(?!.{0,80}[Cc]aught signal)|^\[?[WI]\d{0,4} (?:\d\d:|\w+\.cpp)|^\S+ \S+: [WI] "
)
_NO_WARNING = re.compile(r"NCCL WARN|torch[./]distributed[./]elastic|(?:srun|slurmstepd|sbatch): |raylet|OP_REQUIRES failed")
LOSS = re.compile(r"(?<![\w])(?:train(?:ing)?[ _]|lm )?loss['\"]?\s*[=:]?\s*([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))", re.IGNORECASE)


@dataclass(frozen=True)
class LogLine:
    """One line of output, clean."""

    number: int
    """from 1"""
    text: str


@dataclass(frozen=True)
class Hit:
    """One line that a rule matches."""

    rule: Rule
    tier: int
    """the rule's, or that of a symptom where a warning says it"""
    line: LogLine
    match: re.Match[str]
    above: tuple[LogLine, ...]
    below: tuple[LogLine, ...]


@dataclass(frozen=True)
class Reading:
    """What was found in one log."""

    hits: tuple[Hit, ...]
    """in order"""
    losses: tuple[tuple[float, LogLine], ...]
    tail: tuple[LogLine, ...]
    """the last lines that are not empty"""
    lines: int
    left_out: int = 0
    """lines of new shapes that were too many to be read"""


@dataclass(frozen=True)
class _Compiled:
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
def _compiled() -> tuple[_Compiled, ...]:
    return tuple(
        _Compiled(rule, _bounded(rule.pattern), re.compile(rule.near) if rule.near else None,
                  strings_of(rule.pattern), bool(re.search(r"\d", re.sub(r"\\d|\{[\d,]+\}", "", rule.pattern))),
                  tuple(text.encode().translate(None, _FIGURES) for text in strings_of(rule.pattern)))
        for rule in RULES
    )  # fmt: skip


class _Gate:
    """Which rules a line could match, by the words in it."""

    def __init__(self, rules: Sequence[_Compiled]) -> None:
        self._by_start: dict[bytes, list[tuple[bytes, int]]] = {}
        for number, compiled in enumerate(rules):
            words = words_of(compiled.rule.pattern)
            assert words, f"the rule {compiled.rule.name} names no word that its lines must hold"
            for word in words:
                self._by_start.setdefault(word[:3], []).append((word, number))
        self._known: dict[bytes, frozenset[int]] = {}

    def telling(self, words: Iterable[bytes]) -> set[bytes]:
        """Those words that any rule looks for."""
        return {word for word in words if self._rules(word)}

    def rules(self, words: Iterable[bytes]) -> list[int]:
        return sorted(set().union(*[self._rules(word) for word in words]))

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
def _gate() -> _Gate:
    return _Gate(_compiled())


class Scanner:
    """Takes output as it comes (`feed`) and says at its end what was found (`finish`)."""

    def __init__(self) -> None:
        self._rules = _compiled()
        self._gate = _gate()
        self.left_out = 0
        """lines that were not read because there were too many of new shapes, or too many long ones"""
        self._left = _BUDGET
        self._long_left = _LONG_READINGS
        self._rest = b""
        self._line = 1
        self._pieces = 0
        """read so far"""
        self._window: list[bytes] = []
        self._numbers: list[int] = []
        self._read_to = 0
        self._hits: list[Hit] = []
        self._count = [0] * len(self._rules)
        self._seen: set[int] = set()
        self._figured: set[int] = set()
        self._variants: set[int] = set()
        self._losses: list[tuple[float, LogLine]] = []
        self._tail: deque[LogLine] = deque(maxlen=8)

    def feed(self, data: bytes) -> None:
        """Take one piece of output, of any size."""
        for start in range(0, len(data), CHUNK):
            self._feed(data[start : start + CHUNK])

    def _feed(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        # A carriage return at the very end may be the first half of a line end.
        cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if cut:
            self._block(data[:cut])
            self._rest = data[cut:]
        elif len(data) >= CHUNK:
            self._block(data)
            self._rest = data[-OVERLAP:]
        else:
            self._rest = data

    def finish(self) -> Reading:
        if self._rest:
            self._block(self._rest)
        if self._left <= 0:
            self._left, self._long_left = _END_BUDGET, self._long_left + _LONG_READINGS
        self._look(len(self._window))
        lines = self._line - 1 + (1 if self._rest and not self._rest.endswith(b"\n") else 0)
        return Reading(tuple(self._hits), tuple(self._losses), tuple(self._tail), lines, self.left_out)

    def _block(self, block: bytes) -> None:
        first, self._line = self._line, self._line + block.count(b"\n")
        block = block.replace(b"\r\n", b"\n")
        if b"\x1b" in block:
            block = _ESCAPES.sub(b"", block)
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if b"\r" in block or max(map(len, lines), default=0) > PIECE:
            for number, line in enumerate(lines, first):
                for piece in _pieces(line):
                    self._window.append(piece)
                    self._numbers.append(number)
        else:
            self._window += lines
            self._numbers += range(first, first + len(lines))
        self._look(len(self._window) - BELOW)

    def _look(self, stop: int) -> None:
        """Read the window's lines up to `stop`; keep those that a later hit may need around it."""
        start = self._read_to
        if stop <= start:
            return
        if self._left <= 0:
            self._pass_over()
            return
        part = self._window[start:stop]
        shapes = list(map(hash, b"\n".join(part).translate(None, _FIGURES).split(b"\n")))
        fresh = set(shapes) - self._seen
        if fresh:
            self._look_at([start + i for i, shape in enumerate(shapes) if shape in fresh], shapes, start)
        self._read_losses(start, stop)
        for index in range(max(start, stop - 24), stop):
            text = self._text(index)
            if text.strip():
                self._tail.append(LogLine(self._numbers[index], text[:400]))
        drop = max(0, stop - ABOVE)
        del self._window[:drop], self._numbers[:drop]
        self._read_to = stop - drop

    def _pass_over(self) -> None:
        """Too much of this log is new: keep its end for `finish`, where the cause is most often said."""
        mean = sum(map(len, self._window)) // len(self._window) + 1
        drop = max(0, len(self._window) - min(_END_LINES, _END_BYTES // mean + 1))
        self.left_out += max(0, drop - self._read_to)
        del self._window[:drop], self._numbers[:drop]
        self._read_to = max(0, self._read_to - drop)

    def _look_at(self, indices: list[int], shapes: list[int], start: int) -> None:
        words = set(b" ".join([self._window[i] for i in indices]).translate(_LETTERS).split())
        telling = self._gate.telling(words)
        for index in indices:
            shape, line = shapes[index - start], self._window[index]
            if shape in self._seen:
                continue
            self._left -= 1 + len(line) // 64
            if shape in self._figured:
                self._read_variant(index)
                continue
            its = telling.intersection(line.translate(_LETTERS).split()) if telling else telling
            rules = self._gate.rules(its) if its else []
            if self._figures_tell(line, rules):
                self._figured.add(shape)
                self._variants.add(hash(_LONG_FIGURES.sub(b"0", line)))
            else:
                self._seen.add(shape)
            if rules:
                self._read(index, rules)
        for remembered in (self._seen, self._figured, self._variants):
            if len(remembered) > _REMEMBERED:
                remembered.clear()

    def _figures_tell(self, line: bytes, rules: Sequence[int]) -> bool:
        """Whether another line of this one's shape could match a rule that this one does not."""
        figured = [self._rules[number] for number in rules if self._rules[number].figures]
        shape = line.lower().translate(None, _FIGURES) if figured else b""
        return any(text in shape for compiled in figured for text in compiled.bare)

    def _read_variant(self, index: int) -> None:
        line = self._window[index]
        variant = hash(_LONG_FIGURES.sub(b"0", line))
        if variant not in self._variants:
            self._variants.add(variant)
            self._read(index, self._gate.rules(line.translate(_LETTERS).split()))

    def _read(self, index: int, rules: Sequence[int]) -> None:
        """Give one line to the rules that could match it; the best of them keeps it."""
        wanted = [number for number in rules if self._count[number] < HITS_PER_RULE]
        if not wanted:
            return
        text = self._text(index)
        low = text.lower()
        wanted = [number for number in wanted if any(string in low for string in self._rules[number].strings)]
        if not wanted:
            return
        if len(text) > _LONG:
            if self._long_left <= 0:
                self.left_out += 1
                return
            self._long_left -= len(wanted)
        bare = _PREFIX.sub("", text)
        warned = _WARNED.search(text[:200]) is not None and not _NO_WARNING.search(text)
        best: tuple[int, int, re.Match[str]] | None = None
        for number in wanted:
            compiled = self._rules[number]
            tier = max(compiled.rule.tier, 3) if warned else compiled.rule.tier
            if best is not None and tier >= best[0]:
                continue
            match = compiled.pattern.search(bare) or (compiled.pattern.search(text) if bare is not text else None)
            if match and (compiled.near is None or self._near(index, compiled.near)):
                best = (tier, number, match)
        if best is not None:
            self._count[best[1]] += 1
            around = [LogLine(self._numbers[i], self._text(i)) for i in range(max(0, index - ABOVE), min(len(self._window), index + BELOW + 1))]
            at = min(index, ABOVE)
            self._hits.append(Hit(self._rules[best[1]].rule, best[0], around[at], best[2], tuple(around[:at]), tuple(around[at + 1 :])))

    def _text(self, index: int) -> str:
        return plain(self._window[index].decode("utf-8", "replace"))

    def _near(self, index: int, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(self._text(i)) for i in range(max(0, index - 8), min(len(self._window), index + 9)))

    def _read_losses(self, start: int, stop: int) -> None:
        # Pieces, not lines: a progress bar redraws one line a million times.
        every = 1 if self._pieces < _ALL_LOSSES else max(1, (stop - start) // 64)
        self._pieces += stop - start
        for index in range(start, stop, every):
            if b"oss" in self._window[index] or b"OSS" in self._window[index]:
                text = self._text(index)
                if match := LOSS.search(text):
                    self._losses.append((float(match[1]), LogLine(self._numbers[index], text[:400])))


def _pieces(line: bytes) -> Iterable[bytes]:
    """A line at its carriage returns, and what is still long in pieces that overlap."""
    for part in line.split(b"\r") if b"\r" in line else (line,):
        if len(part) <= PIECE:
            yield part
        else:
            for at in range(0, len(part), PIECE - OVERLAP):
                yield part[at : at + PIECE]


def without_prefix(text: str) -> str:
    """A line without rank, timestamp and log level before it."""
    return _PREFIX.sub("", text)


def scan_lines(lines: Iterable[str]) -> Reading:
    """Read output that is there as lines of text."""
    scanner, waiting, size = Scanner(), [], 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= CHUNK:
            scanner.feed(("\n".join(waiting) + "\n").encode("utf-8", "replace"))
            waiting, size = [], 0
    scanner.feed(("\n".join(waiting) + "\n").encode("utf-8", "replace"))
    return scanner.finish()

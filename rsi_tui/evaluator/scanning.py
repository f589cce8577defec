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

from rsi_tui.evaluator.failure_rules.gate import FIGURES, compiled, gate, words
from rsi_tui.evaluator.log_lines import Hit, LogLine, Reading, is_warning, quoted, uncapital, without_prefix
from rsi_tui.evaluator.progress import plain

CHUNK = 2**20
"""bytes that are taken together"""
PART = 2**17
"""bytes that are looked at together: where none of their shapes is new, none of their lines is touched"""
PIECE = 4096
OVERLAP = 512
"""bytes that two pieces of one line share, so that no message is lost in a cut"""
ABOVE, BELOW = 12, 8
"""lines around a hit that are kept"""
HITS_PER_RULE = 50
_REMEMBERED = 200_000
"""shapes and lines that are remembered before memory is cleared"""
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
_SAMPLES = 8
"""losses that are read in a part after that"""
_LAST = 24
"""lines of which the last that are not empty are the tail"""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_ENDS = bytes(10 if c == 13 else c for c in range(256))
"""a carriage return ends a piece as a newline ends a line"""
_LONG_FIGURES = re.compile(rb"\d+[.:]\d+|\d{4,}")
_UNSAID = re.compile(r"(?:^|[\s.])\w+(?:Error|Exception):\s*$")
"""an exception whose text begins on the next line"""
LOSS = re.compile(r"(?<![\w])(?:train(?:ing)?[ _]|lm )?loss['\"]?\s*[=:]?\s*([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))", re.IGNORECASE)


class Scanner:
    """Takes output as it comes (`feed`) and says at its end what was found (`finish`)."""

    def __init__(self) -> None:
        self._rules = compiled()
        self._gate = gate()
        self.left_out = 0
        """lines that were not read because there were too many of new shapes, or too many long ones"""
        self._left = _BUDGET
        self._long_left = _LONG_READINGS
        self._rest = b""
        """of a line that is not complete"""
        self._window = b""
        """lines that a later hit may need above it, then what is not read"""
        self._flat = b""
        """the window with a newline after each piece"""
        self._unread = 0
        self._number = 1
        """of the first line that is not read"""
        self._pieces_read = 0
        self._lines: list[bytes] = []
        """the pieces that are looked at, and those around them"""
        self._numbers: list[int] = []
        self._hits: list[Hit] = []
        self._count = [0] * len(self._rules)
        self._seen = {hash(b"")}
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
            self._rest = data[cut:]
            self._take(data[:cut])
            self._look(_back(self._flat, len(self._flat), BELOW, self._unread))
        elif len(data) >= CHUNK:
            self._rest = data[-OVERLAP:]
            self._take(data + b"\r")
            self._look(len(self._flat))
        else:
            self._rest = data

    def finish(self) -> Reading:
        whole = not self._rest or self._rest.endswith(b"\n")
        self._take(self._rest if whole or self._rest.endswith(b"\r") else self._rest + b"\r")
        end = len(self._flat)
        self._look(end)
        if self._unread < end:
            self._left, self._long_left = _END_BUDGET, self._long_left + _LONG_READINGS
            self._skip(_back(self._flat, end, _END_LINES, self._unread))
            self._look(len(self._flat))
        return Reading(tuple(self._hits), tuple(self._losses), tuple(self._tail), self._number - whole, self.left_out)

    def _take(self, block: bytes) -> None:
        """Add pieces to the window."""
        self._window += block.replace(b"\r\n", b"\n") if b"\r" in block else block
        self._flat = self._window.translate(_ENDS) if b"\r" in self._window else self._window

    def _look(self, stop: int) -> None:
        """Read the window up to `stop`; keep the lines that a later hit may need above it."""
        top = _back(self._flat, stop, _LAST, self._unread)
        while self._unread < stop and self._left > 0:
            end, long = _part(self._flat, self._unread, stop)
            self._read_part(self._unread, end, long)
            self._number += self._window.count(b"\n", self._unread, end)
            self._unread = end
        if self._unread < stop:
            self._pass_over()
            return
        first = self._number - self._window.count(b"\n", top, stop)
        for piece, number in zip(self._flat[top:stop].split(b"\n"), self._numbered(top, stop, first), strict=False):
            text = _text(piece[-PIECE:])
            if text.strip():
                self._tail.append(LogLine(number, text[:400]))
        self._drop(max(_back(self._flat, stop, ABOVE), stop - ABOVE * PIECE))

    def _pass_over(self) -> None:
        """Too much of this log is new: keep its end for `finish`, where the cause is most often said."""
        end = len(self._flat)
        if end - self._unread > _END_BYTES:
            self._skip(self._flat.find(b"\n", end - _END_BYTES) + 1 or end - _END_BYTES)

    def _skip(self, to: int) -> None:
        self.left_out += self._flat.count(b"\n", self._unread, to)
        self._number += self._window.count(b"\n", self._unread, to)
        self._unread = to
        self._drop(to)

    def _drop(self, top: int) -> None:
        self._window, self._flat, self._unread = self._window[top:], self._flat[top:], self._unread - top

    def _numbered(self, start: int, stop: int, first: int) -> Sequence[int]:
        """The line number of each piece between two ends of pieces."""
        part = self._window[start:stop]
        if b"\r" not in part:
            return range(first, first + part.count(b"\n"))
        numbers: list[int] = []
        for number, line in enumerate(part.split(b"\n"), first):
            numbers += [number] * (line.count(b"\r") + 1)
        return numbers[:-1]

    def _read_part(self, at: int, end: int, long: bool) -> None:
        part = self._flat[at : end - 1]
        pieces = [part[cut : cut + PIECE] for cut in range(0, len(part), PIECE - OVERLAP)] if long else []
        shapes = [piece.translate(None, FIGURES) for piece in pieces] if long else part.translate(None, FIGURES).split(b"\n")
        fresh = {shape for shape in set(shapes) if hash(shape) not in self._seen}
        if fresh:
            top, bottom = _back(self._flat, at, ABOVE), _forward(self._flat, end, BELOW)
            above, below = _split(self._flat[top:at]), _split(self._flat[end:bottom])
            body = pieces or part.split(b"\n")
            self._lines = [*above, *body, *below]
            after = self._number + self._window.count(b"\n", at, end)
            self._numbers = [
                *self._numbered(top, at, self._number - self._window.count(b"\n", top, at)),
                *([self._number] * len(body) if long else self._numbered(at, end, self._number)),
                *self._numbered(end, bottom, after),
            ]
            self._look_at([(len(above) + i, hash(shape)) for i, shape in enumerate(shapes) if shape in fresh])
        self._read_losses(at, end, len(shapes))
        self._pieces_read += len(shapes)

    def _look_at(self, fresh: Sequence[tuple[int, int]]) -> None:
        """Read lines of new shapes: (where among `_lines`, shape)."""
        lines = [_ESCAPES.sub(b"", line) if b"\x1b" in line else line for line in (self._lines[index] for index, _ in fresh)]
        telling = self._gate.telling(set(words(b" ".join(lines))))
        for line, (index, shape) in zip(lines, fresh, strict=True):
            if shape in self._seen:
                continue
            self._left -= 1 + len(line) // 64
            if shape in self._figured:
                self._read_variant(index, line)
                continue
            its = telling.intersection(words(line)) if telling else telling
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
        shape = line.lower().translate(None, FIGURES) if figured else b""
        return any(text in shape for one in figured for text in one.bare)

    def _read_variant(self, index: int, line: bytes) -> None:
        variant = hash(_LONG_FIGURES.sub(b"0", line))
        if variant not in self._variants:
            self._variants.add(variant)
            self._read(index, self._gate.rules(words(line)))

    def _read(self, index: int, rules: Sequence[int]) -> None:
        """Give one line to the rules that could match it; the best of them keeps it."""
        wanted = [number for number in rules if self._count[number] < HITS_PER_RULE]
        if not wanted:
            return
        text = self._said(index)
        low = text.lower()
        wanted = [number for number in wanted if any(string in low for string in self._rules[number].strings)]
        if not wanted:
            return
        if len(text) > _LONG:
            if self._long_left <= 0:
                self.left_out += 1
                return
            self._long_left -= len(wanted)
        bare = without_prefix(text)
        readings = tuple(dict.fromkeys(form for form in (bare, text, quoted(text), uncapital(bare)) if form))
        warned = is_warning(text)
        best: tuple[int, int, re.Match[str]] | None = None
        for number in sorted(wanted, key=lambda number: self._rules[number].rule.fallback):
            one = self._rules[number]
            if one.rule.fallback and best is not None and not self._rules[best[1]].rule.fallback:
                break
            tier = max(one.rule.tier, 3) if warned else one.rule.tier
            if (best is not None and tier >= best[0]) or (warned and one.rule.aside):
                continue
            match = next((found for form in readings if (found := one.pattern.search(form))), None)
            if match and (one.near is None or self._near(index, one.near)):
                best = (tier, number, match)
        if best is not None:
            self._count[best[1]] += 1
            first = max(0, index - ABOVE)
            around = [self._at(i) for i in range(first, min(len(self._lines), index + BELOW + 1))]
            at = index - first
            self._hits.append(Hit(self._rules[best[1]].rule, best[0], around[at], best[2], tuple(around[:at]), tuple(around[at + 1 :])))

    def _said(self, index: int) -> str:
        """A line; of an exception whose text begins below its name, with the two lines below it."""
        text = _text(self._lines[index])
        if not _UNSAID.search(text) or len(text) > _LONG:
            return text
        return " ".join([text.rstrip(), *(self._at(i).text.strip()[:200] for i in range(index + 1, min(index + 3, len(self._lines))))])

    def _at(self, index: int) -> LogLine:
        return LogLine(self._numbers[index], _text(self._lines[index][:PIECE]))

    def _near(self, index: int, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(self._at(i).text) for i in range(max(0, index - 8), min(len(self._lines), index + 9)))

    def _read_losses(self, start: int, stop: int, pieces: int) -> None:
        # Pieces, not lines: a progress bar redraws one line a million times.
        if self._flat.find(b"oss", start, stop) < 0 and self._flat.find(b"OSS", start, stop) < 0:
            return
        if self._pieces_read < _ALL_LOSSES:
            for piece, number in zip(self._flat[start:stop].split(b"\n"), self._numbered(start, stop, self._number), strict=False):
                self._read_loss(piece[:PIECE], number)
            return
        number, counted = self._number, start
        for place in range(start, stop, max((stop - start) // _SAMPLES, PART // (2 * _SAMPLES))):
            first = self._flat.rfind(b"\n", start, place) + 1 or start
            number, counted = number + self._window.count(b"\n", counted, first), first
            self._read_loss(self._flat[first : min(self._flat.find(b"\n", place), first + PIECE)], number)

    def _read_loss(self, piece: bytes, number: int) -> None:
        if b"oss" in piece or b"OSS" in piece:
            text = _text(piece)
            if match := LOSS.search(text):
                self._losses.append((float(match[1]), LogLine(number, text[:400])))


def _back(flat: bytes, at: int, pieces: int, least: int = 0) -> int:
    """Where the last so many pieces before `at` begin, not before `least`."""
    while pieces and at > least:
        at, pieces = max(flat.rfind(b"\n", least, at - 1) + 1, least), pieces - 1
    return at


def _forward(flat: bytes, at: int, pieces: int) -> int:
    """Where the next so many pieces after `at` end."""
    while pieces and at < len(flat):
        at, pieces = flat.find(b"\n", at) + 1, pieces - 1
    return at


def _split(part: bytes) -> list[bytes]:
    return part.split(b"\n")[:-1]


def _part(flat: bytes, at: int, stop: int) -> tuple[int, bool]:
    """The end of the next whole pieces; with True, of one that is too long to be looked at whole."""
    end = at
    while end < stop and end - at < PART:
        cut = flat.rfind(b"\n", end, min(end + PIECE + 1, stop)) + 1
        if not cut:
            return (end, False) if end > at else (flat.find(b"\n", at, stop) + 1, True)
        end = cut
    return end, False


def _text(line: bytes) -> str:
    return plain(line.decode("utf-8", "replace"))


def scan_lines(lines: Iterable[str]) -> Reading:
    """Read output that is there as lines of text."""
    scanner = Scanner()
    waiting: list[str] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= CHUNK:
            scanner.feed(("\n".join(waiting) + "\n").encode("utf-8", "replace"))
            waiting, size = [], 0
    scanner.feed(("\n".join(waiting) + "\n").encode("utf-8", "replace"))
    return scanner.finish()

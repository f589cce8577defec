"""How numbers and names are said to a person: one place, so that app, command line and report agree.

Text that came out of a sandbox, a diff or a mind goes through `clean` before it reaches a terminal.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, chop_cells

from rsi_tui.contract.model import KnobValue
from rsi_tui.journal.facts import Interval, InvariantFacts

WIDTH = 79
"""columns of a page for a terminal"""
_LABEL = 10
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")

TRUST_WORDS = {
    "A": "every run sandboxed, the final checkpoint compared, hidden validation data",
    "B": "every run sandboxed, but no checkpoint compared, or no hidden validation: weaker invariants",
    "C": "only what the program itself reports, or runs without a sandbox",
}


def columns() -> int:
    """Columns of a page on this terminal: at most WIDTH, at least 40."""
    return max(40, min(WIDTH, shutil.get_terminal_size((WIDTH + 1, 24)).columns - 1))


def strip(text: str) -> str:
    """Text without escape sequences, control characters and marks that reorder a line; tabs and line ends stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def clean(text: str) -> str:
    """`strip`, and tabs become spaces: what a terminal may be given."""
    return strip(text).expandtabs(4)


def one_line(text: str, width: int = 0) -> str:
    """Clean text on one line, cut with an ellipsis at `width` columns (0 = not cut)."""
    line = " ".join(clean(text).split())
    return chop_cells(line, width - 1)[0] + "…" if width and cell_len(line) > width else line


def padded(text: str, width: int) -> str:
    """Text with spaces after it up to a width; a wide character takes two columns."""
    return text + " " * max(0, width - cell_len(text))


def sentence(text: str) -> str:
    """Text on one line with exactly one full stop at its end; '?' and '!' stay as they are."""
    line = one_line(text).rstrip(" .;,")
    return line if not line or line[-1] in "?!" else f"{line}."


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def times(value: float) -> str:
    return f"{value:.2f}x"


def confidence(value: float) -> str:
    return f"{value * 100:.4g} %"


def interval(value: Interval) -> str:
    """'1.93x faster (99 % interval 1.81 to 2.02)'."""
    side = "faster" if value.estimate >= 1 else "as fast: slower"
    return f"{times(value.estimate)} {side} ({confidence(value.confidence)} interval {value.low:.2f} to {value.high:.2f})"


def about(value: float) -> str:
    """A speed-up that is an estimate, without a claim of its precision: 'about 1.9x faster'."""
    return f"about {value:.1f}x faster" if value >= 1.2 else f"about {(value - 1) * 100:.0f} % faster" if value >= 1 else f"about {1 / value:.2f}x slower"


def short_interval(value: Interval) -> str:
    """'1.93x (99 %: 1.81 to 2.02)'."""
    return f"{times(value.estimate)} ({confidence(value.confidence)}: {value.low:.2f} to {value.high:.2f})"


def change(log_ratio: float) -> str:
    """A log-ratio as a change in percent: '-17.4 %'; what rounds to nothing has no sign."""
    text = f"{math.expm1(log_ratio) * 100:+.1f} %"
    return "0.0 %" if text in ("-0.0 %", "+0.0 %") else text


def percent(fraction: float) -> str:
    return f"{fraction * 100:.3g} %"


def step_time(seconds: float | None) -> str:
    """Time of a step: '118 ms', '1.42 s'; '?' where there is none."""
    if seconds is None:
        return "?"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration(seconds: float) -> str:
    """'8 s', '6 min 12 s', '2 h 5 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(value: int | None) -> str:
    """Bytes in binary units; 'not measured' for None."""
    if value is None:
        return "not measured"
    if value < 2**20:
        return f"{value / 2**10:.1f} KiB" if value >= 2**10 else f"{value} bytes"
    if value < 2**30:
        return f"{value / 2**20:.0f} MiB"
    unit, name = next((pair for pair in ((2**50, "PiB"), (2**40, "TiB")) if value >= pair[0]), (2**30, "GiB"))
    return f"{value / unit:.2f} {name}"


def plural(number: int, word: str) -> str:
    """'1 run', '3 runs', '2 candidates'."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def knobs(values: Mapping[str, KnobValue]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def how_to_set(knob: Mapping[str, Any], value: KnobValue) -> str:
    """How a person gives one knob this value, from the contract's own words."""
    if flag := knob.get("flag"):
        if value == "" or (value is False and "{}" not in flag):
            return f"leave {flag.replace('{}', '').strip()} out"
        return str(flag).replace("{}", str(value).lower() if isinstance(value, bool) else str(value))
    if env := knob.get("env"):
        return f"{env}={int(value) if isinstance(value, bool) else value}" if value != "" else f"leave {env} unset"
    if preload := knob.get("preload"):
        return f"LD_PRELOAD={preload}" if value else f"without {preload} in LD_PRELOAD"
    place = knob.get("file") or knob.get("global_") or ""
    return f"{place} = {value}" if place else f"{knob.get('name', '')} = {value}"


def go_on(kind: str, folder: str, preset: str, options: Sequence[str] = (), called: str = "rsi") -> str:
    """The command, quoted for a shell, that goes on with a campaign or evaluation that was interrupted; a check or a baseline begins anew.

    `options`: flags that it was begun with and needs again.
    """
    command = {"campaign": ("run", "--resume"), "evaluation": ("evaluate", "--resume"), "check": ("check",), "baseline": ("baseline",)}[kind]
    chosen = ("--preset", preset) if preset else ()
    return f"{called} {shlex.join((*command, *options, *chosen, folder))}"


def contents(techniques: tuple[str, ...], changed: Mapping[str, KnobValue]) -> str:
    """What is in a candidate: 'sdpa, fused-adamw; threads=2'."""
    plain = [t for t in techniques if t.removeprefix("setting:") not in {f"{name}={value}" for name, value in changed.items()}]
    return "; ".join(part for part in (", ".join(plain), knobs(changed)) if part) or "no change"


def invariant(value: InvariantFacts) -> str:
    """'update size: held, 0.0112 of at most 0.021'."""
    if value.status == "not_covered":
        return f"{value.name}: not covered ({value.how})"
    measured = "" if value.value is None else f", {value.value:.4g}"
    limit = "" if value.limit is None else f" (limit {value.limit:.4g})"
    return f"{value.name}: {value.status}{measured}{limit}"


def entry(label: str, text: str, width: int = WIDTH) -> list[str]:
    """A label and a text beside it, wrapped; a figure keeps its unit on its line."""
    glued = one_line(text).replace(" %", "\u00a0%")
    body = fold(glued, width - _LABEL - 2, break_words=False) or [""]
    return [f"  {label if number == 0 else '':<{_LABEL}}{line}".replace("\u00a0", " ").rstrip() for number, line in enumerate(body)]


def wrapped(text: str, width: int, first: str, rest: str = "") -> list[str]:
    """Text in lines of a width, with what to put before the first and before the others."""
    return fold(one_line(text), width, first, rest or first)


def fold(text: str, width: int, first: str = "", rest: str = "", *, break_words: bool = True) -> list[str]:
    """Text in lines of a width, after `first` on the first and `rest` on the others; a wide character takes two columns.

    `break_words`: words longer than a line are broken. Where characters are wide they always are: such text has no spaces.
    """
    if cell_len(text) == len(text):
        return textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=rest, break_long_words=break_words, break_on_hyphens=False
        )
    lines: list[str] = []
    line, started = first, False
    for word in text.split():
        glued = f"{line} {word}" if started else f"{line}{word}"
        if cell_len(glued) <= width:
            line, started = glued, True
            continue
        if started:
            lines, line = [*lines, line], rest
        for number, part in enumerate(chop_cells(word, max(2, width - max(len(first), len(rest))))):
            if number:
                lines, line = [*lines, line], rest
            line, started = f"{line}{part}", True
    return [*lines, line]

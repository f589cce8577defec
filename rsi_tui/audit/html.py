"""The report as one page for a browser: no network, no scripts, readable on paper, in light and dark.

A function of the canonical JSON, which the page carries: `rsi verify` reads it back from there.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsi_tui.audit import plots, words

if TYPE_CHECKING:
    import jinja2

_DATA = re.compile(r'<script type="application/json" id="report">\n(.*?)\n</script>', re.DOTALL)


def render_html(data: dict[str, Any]) -> str:
    """The page; text from programs, logs and people is escaped, control characters are removed."""
    from markupsafe import Markup

    drawn = {name: Markup(plot(data)) for name, plot in PLOTS.items()}
    return _template().render(data, plots=drawn, diff_lines=_diff_lines, canonical=Markup(_embedded(data)))


@cache
def _template() -> jinja2.Template:
    """Compiled once a process: `rsi verify` renders many."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: words.strip(value) if type(value) is str else value,
    )
    environment.filters.update(
        change=words.change, duration=words.duration, size=words.size, step_time=words.step_time, percent=words.percent,
        times=words.times, about=words.about, sentence=lambda text: words.sentence(str(text)), listed=words.listed,
        confidence=words.confidence, when=_when, result=lambda text: str(text).replace("_", " "),
    )  # fmt: skip
    return environment.get_template("report.html.j2")


PLOTS = {
    "best": plots.best_so_far,
    "memory": plots.time_against_memory,
    "intervals": plots.all_intervals,
    "parts": plots.contributions,
    "phases": plots.phases,
    "course_of_memory": plots.memory_course,
}


def canonical_json(page: str) -> str | None:
    """The JSON that a page carries; None where there is none."""
    found = _DATA.search(page)
    return found[1] if found else None


def _embedded(data: dict[str, Any]) -> str:
    """JSON that no text in it can break out of."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _when(at: str) -> str:
    return at[:19].replace("T", " ") + " UTC"


def _diff_lines(diff: str) -> list[tuple[str, str]]:
    """(class, line) of a unified diff."""
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    found = []
    for line in diff.rstrip("\n").split("\n"):
        head = line.startswith(("diff ", "--- ", "+++ ", "index ", "new file", "deleted file"))
        found.append(("file" if head else kinds.get(line[:1], "same"), line))
    return found

"""A report file against the journal it was written from: the first places where it says something else.

A report names the events it follows from and the hash of the last one; what it should say is derived again from
exactly those. Nothing in the file is believed but that name, and it is checked first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rsi_tui.audit import html
from rsi_tui.audit.payback import Usage
from rsi_tui.audit.report import SCHEMA, as_json, render_markdown, report_data
from rsi_tui.journal.anchors import Anchor
from rsi_tui.journal.events import Event
from rsi_tui.journal.view import CampaignView

SHOWN = 10
"""differences that are named; a file that differs in everything needs no more"""
_CLOSING = re.compile(r"(?m)^Every figure above follows from (\d+) events of the campaign's journal, whose last line has the hash `([0-9a-f]{64})` \(report format (\d+)(?:, usage ([^)]*))?\)\.$")


@dataclass(frozen=True)
class Difference:
    """One place where a report does not say what follows from its journal."""

    place: str
    """path in the JSON, or line of the readable form"""
    says: str
    follows: str


@dataclass(frozen=True)
class Compared:
    """What became of one report file."""

    file: str
    differences: tuple[Difference, ...]
    note: str = ""
    """why it was not compared, one sentence; '' when it was"""
    anchor: Anchor | None = None
    """the journal's line that the report knows"""

    @property
    def follows(self) -> bool:
        """Nothing in it says something else; one that was not compared says nothing either way."""
        return not self.differences


def compare(name: str, text: str, events: Sequence[Event]) -> Compared:
    """A report file ('.json', '.md' or '.html' by its name) against the events of its campaign."""
    if name.endswith(".json"):
        return _compare_json(name, text, events)
    if name.endswith((".html", ".htm")):
        return _compare_html(name, text, events)
    return _compare_markdown(name, text, events)


def _compare_json(name: str, text: str, events: Sequence[Event]) -> Compared:
    compared, derived = _compare_data(name, text, events)
    if derived is None or compared.differences or text == as_json(derived):
        return compared
    return replace(compared, differences=(_first_line(text, as_json(derived)),))


def _compare_data(name: str, text: str, events: Sequence[Event]) -> tuple[Compared, dict[str, Any] | None]:
    """What the values of a report's JSON are compared to, and the report as it should be."""
    try:
        data = json.loads(text)
        record, schema = data["record"], data["schema"]
        count, head = int(record["events"]), str(record["head"])
        usage = Usage.read(data.get("usage"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Compared(name, (Difference("the file", "no report in JSON", "an object with schema and record"),)), None
    if schema != SCHEMA:
        return _of_this_format(name, {**data, "schema": SCHEMA}, str(schema), events) or _other_format(name, str(schema)), None
    prefix, problem = _prefix(events, count, head)
    if problem is not None:
        return Compared(name, (problem,)), None
    derived = derive(prefix, usage)
    found = tuple(_differences(data, derived, ""))[:SHOWN]
    return Compared(name, found, anchor=Anchor(count - 1, head, name)), derived


def _compare_markdown(name: str, text: str, events: Sequence[Event]) -> Compared:
    closing = _CLOSING.search(text)
    if closing is None:
        if "Every figure above follows from" in text and "(report format" not in text:
            return _other_format(name, "1")
        return Compared(name, (Difference("its last line", "no events and hash that it follows from", "both"),))
    if int(closing[3]) != SCHEMA:
        as_ours = text[: closing.start(3)] + str(SCHEMA) + text[closing.end(3) :]
        if _compare_markdown(name, as_ours, events).follows:
            return Compared(name, (Difference("its last line", f"report format {closing[3]}", f"report format {SCHEMA}"),))
        return _other_format(name, closing[3])
    prefix, problem = _prefix(events, int(closing[1]), closing[2])
    if problem is not None:
        return Compared(name, (problem,))
    usage = Usage.parse(closing[4] or "")
    if closing[4] and usage is None:
        return Compared(name, (Difference("its last line", closing[4], "a usage"),))
    found = tuple(differing_lines(text, render_markdown(derive(prefix, usage))))
    return Compared(name, found[:SHOWN], anchor=Anchor(int(closing[1]) - 1, closing[2], name))


def _compare_html(name: str, text: str, events: Sequence[Event]) -> Compared:
    inside = html.canonical_json(text)
    if inside is None:
        return Compared(name, (Difference("the file", "no report data", "the report's JSON, which its page is made of"),))
    compared, derived = _compare_data(name, inside, events)
    if derived is None or compared.differences:
        return compared
    return replace(compared, differences=tuple(differing_lines(text, html.render_html(derived)))[:SHOWN])


def _of_this_format(name: str, data: dict[str, Any], schema: str, events: Sequence[Event]) -> Compared | None:
    """A report of this format that says it has another: no way round being compared. None when it has another indeed."""
    compared, derived = _compare_data(name, json.dumps(data), events)
    if derived is None or compared.differences:
        return None
    return Compared(name, (Difference("schema", schema, str(SCHEMA)),))


def _other_format(name: str, schema: str) -> Compared:
    note = f"{name} has report format {schema[:10]}, this version writes {SCHEMA}: it is not compared; write it anew with `rsi report`."
    return Compared(name, (), note)


def derive(events: Sequence[Event], usage: Usage | None) -> dict[str, Any]:
    """The canonical report of these events, as it reads back from a file."""
    derived: dict[str, Any] = json.loads(as_json(report_data(CampaignView().feed_all(events), events, usage)))
    return derived


def _prefix(events: Sequence[Event], count: int, head: str) -> tuple[Sequence[Event], Difference | None]:
    """The first `count` events, where the last of them has that hash."""
    if not 0 < count <= len(events):
        return (), Difference("record.events", str(count), f"at most {len(events)}, which the journal holds")
    if events[count - 1].hash != head:
        return (), Difference("record.head", head, events[count - 1].hash)
    return events[:count], None


def _differences(says: Any, follows: Any, path: str) -> Iterator[Difference]:
    """Depth first; a list or table that is longer or shorter is named as such."""
    if isinstance(says, dict) and isinstance(follows, dict):
        for key in [*follows, *(k for k in says if k not in follows)]:
            where = f"{path}.{key}" if path else str(key)
            if key not in says or key not in follows:
                yield Difference(where, _shown(says[key]) if key in says else "nothing", _shown(follows[key]) if key in follows else "nothing")
            else:
                yield from _differences(says[key], follows[key], where)
    elif isinstance(says, list) and isinstance(follows, list):
        for number, (one, other) in enumerate(zip(says, follows, strict=False)):
            yield from _differences(one, other, f"{path}[{number}]")
        if len(says) != len(follows):
            yield Difference(path, f"{len(says)} entries", f"{len(follows)} entries")
    elif says != follows or type(says) is not type(follows):
        yield Difference(path, _shown(says), _shown(follows))


def differing_lines(text: str, wanted: str) -> Iterator[Difference]:
    """Where two texts differ, line by line."""
    says, follows = text.split("\n"), wanted.split("\n")
    for number, (one, other) in enumerate(zip(says, follows, strict=False), 1):
        if one != other:
            yield Difference(f"line {number}", *_around(one, other))
    if len(says) != len(follows):
        yield Difference(f"line {min(len(says), len(follows)) + 1}", f"{len(says)} lines", f"{len(follows)} lines")


def _first_line(text: str, wanted: str) -> Difference:
    return next(differing_lines(text, wanted))


def _around(one: str, other: str) -> tuple[str, str]:
    """The part of two lines where they begin to differ."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - 40)
    return one[start : at + 60], other[start : at + 60]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."

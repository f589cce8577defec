"""Is what was changed caught? Random changes of reports in every form, and of figures in the record itself.

    scripts/bench/mutations.py [--quick] [--json] [--home DIR]... [--seed N]

A digit, a word or a line of a report is changed; verification has to say so and to name the place. The campaigns are
those of each DIR that have a verdict (they are read, never written); without it three are run on a simulated
machine, whose figures are made up and consistent. 300 changes; --quick makes 30.

In the record single numbers are changed, so that every hash fits again: what is left is whether they follow from the runs.
Three kinds are told apart: figures, which must follow; what was committed to before it was used (sealed runs, draws);
and facts of runs that lie open, which are believed unless a figure depends on them. 120 changes; --quick makes 12.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.audit.payback import Usage
from rsi_tui.audit.recomputed import recompute
from rsi_tui.audit.record import Record
from rsi_tui.audit.report import render_report
from rsi_tui.audit.written_reports import compare
from rsi_tui.errors import JournalError
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import Event
from rsi_tui.journal.view import CampaignView, campaign_ids
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request, silent
from scripts.bench.common import Figure, show
from tests.support.campaigns import PatchMind
from tests.support.simulated import PATCHES, simulated, simulated_repository

FORMS = ("json", "md", "html")
MOST = 6
"""campaigns of a home that are used, newest first"""


def digit(text: str, rng: random.Random) -> str:
    at = rng.choice([n for n, letter in enumerate(text) if letter in "0123456789"])
    return text[:at] + str((int(text[at]) + rng.randrange(1, 10)) % 10) + text[at + 1 :]


def word(text: str, rng: random.Random) -> str:
    found = list(re.finditer(r"\b(adopted|failed|oom|held|proven|faster|slower|dropped|promoted|ok|setting|code)\b", text))
    chosen = rng.choice(found)
    other = rng.choice([w for w in ("adopted", "failed", "held", "slower", "dropped") if w != chosen[0]])
    return text[: chosen.start()] + other + text[chosen.end() :]


def line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.choice([n for n, content in enumerate(lines) if content.strip()])
    return "\n".join(lines[:at] + lines[at + 1 :])


def swapped(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    while True:
        first, second = rng.sample(range(len(lines)), 2)
        if lines[first] != lines[second]:
            lines[first], lines[second] = lines[second], lines[first]
            return "\n".join(lines)


KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "a digit changed": digit, "a word changed": word, "a line left out": line, "two lines swapped": swapped,
}  # fmt: skip


class Recorded(NamedTuple):
    """A campaign's events, and what lies beside its journal."""

    events: Sequence[Event]
    blobs: Blobs


def recorded(home: Home) -> list[Recorded]:
    """Campaigns that came to a verdict."""
    found: list[Recorded] = []
    for id in campaign_ids(home):
        try:
            events = read_events(home.campaign(id).journal)
        except JournalError:
            continue
        if CampaignView().feed_all(events).verdicts and len(found) < MOST:
            found.append(Recorded(events, Blobs(home.campaign(id).blobs)))
    return found


def simulated_campaigns(folder: Path) -> list[Recorded]:
    """Three campaigns: everything tried, what is slower or fails alone, one change alone."""
    found: list[Recorded] = []
    for number, patches in enumerate((PATCHES, PATCHES[1:3], PATCHES[:1])):
        home = Home(folder / f"home{number}")
        with simulated(same_draws=True):
            request = Request(simulated_repository(folder / f"program{number}"), preset="simulated", candidates=len(patches))
            ended = run(home, request, PatchMind(list(patches)), silent)
        paths = home.campaign(ended.campaign)
        found.append(Recorded(read_events(paths.journal), Blobs(paths.blobs)))
    return found


# --- the record itself ----------------------------------------------------------------------------

FIGURES = ("screened", "verdict_reached", "claimed", "left_out", "calibrated", "alpha_granted")
BELIEVED = re.compile(
    r"seconds$|noise\.fingerprint|runs_needed|predicted_gain|memory\.|verdict\.blocks|attribution\..*confidence|scale\."
)
"""what is taken as it stands, or (bets of older records, runs that would be needed) can't be recomputed and is said to be so"""


@dataclass(frozen=True)
class Place:
    """One number in the record."""

    event: int
    path: tuple[str | int, ...]
    what: str
    """figures, committed or facts"""


def places(events: Sequence[Event]) -> list[Place]:
    """Every number that a change is tried on, by event and path."""
    found: list[Place] = []
    for number, event in enumerate(events):
        body = event.body.model_dump(mode="json")
        kind = body["type"]
        sealed = kind == "block_closed" and bool(body["trials"])
        what = "figures" if kind in FIGURES else "committed" if sealed else "facts" if kind == "trial_finished" and body["facts"] else ""
        root = {"block_closed": "trials", "trial_finished": "facts"}.get(kind, "")
        if what:
            inside = body[root] if root else body
            start = (root,) if root else ()
            found += [Place(number, path, what) for path in numbers(inside, start) if what == "facts" or not BELIEVED.search(".".join(map(str, path)))]
    return found


def numbers(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int | float):
        yield path


def changed(events: Sequence[Event], place: Place, rng: random.Random) -> list[Event]:
    """The record with another number at one place."""
    data = events[place.event].model_dump(mode="json")
    inside = data["body"]
    for key in place.path[:-1]:
        inside = inside[key]
    value = inside[place.path[-1]]
    if isinstance(value, bool):
        other: Any = not value
    elif isinstance(value, int):
        other = rng.choice([value + 1, value * 10 + 1, 0 if value else 2])
    else:
        other = rng.choice([value * 1.02 + 1e-6, -value - 1e-3, value * 10 + 1e-3])
    inside[place.path[-1]] = other
    return [*events[: place.event], Event.model_validate(data), *events[place.event + 1 :]]


def records(campaigns: Sequence[Recorded], count: int, seed: int, notes: list[str]) -> list[Figure]:
    """Changed records: how many of each kind recomputing finds."""
    chosen = [(events, blobs, places(events)) for events, blobs in campaigns]
    false = sum(check.right is False for events, blobs in campaigns for check in recompute(Record(events, blobs)))
    made: dict[str, int] = dict.fromkeys(("figures", "committed", "facts"), 0)
    caught = dict.fromkeys(made, 0)
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        events, blobs, known = chosen[number % len(chosen)]
        what = list(made)[number // len(chosen) % 3]
        where = [place for place in known if place.what == what]
        if not where:
            continue
        # One of each path alike first, so that the many differences of the noise do not crowd out the rest.
        alike = sorted({tuple(key for key in place.path if isinstance(key, str)) for place in where})
        path = rng.choice(alike)
        place = rng.choice([p for p in where if tuple(key for key in p.path if isinstance(key, str)) == path])
        found = recompute(Record(changed(events, place, rng), blobs))
        made[what] += 1
        caught[what] += (ok := any(check.right is False for check in found))
        if not ok and what != "facts":
            notes.append(f"record, seed {seed}, number {number}: line {place.event + 1}, {'.'.join(map(str, place.path))} not caught")
    return [
        Figure("records as written that were called wrong", false, "figures", "0", false == 0),
        Figure("record: figures changed and caught", caught["figures"], f"of {made['figures']}", "all", caught["figures"] == made["figures"]),
        Figure("record: sealed runs changed and caught", caught["committed"], f"of {made['committed']}", "all", caught["committed"] == made["committed"]),
        Figure("record: facts of open runs changed and caught", caught["facts"], f"of {made['facts']}", "", None),
    ]


def measure(campaigns: Sequence[Recorded], count: int, seed: int, notes: list[str]) -> list[Figure]:
    texts = [
        (events, {form: render_report(CampaignView().feed_all(events), events, form, Usage(100.0, 2.0)) for form in FORMS})
        for events, _ in campaigns
    ]
    false = sum(not compare(f"r.{form}", text, events).follows for events, forms in texts for form, text in forms.items())
    caught = dict.fromkeys(((form, kind) for form in FORMS for kind in KINDS), 0)
    made = dict.fromkeys(caught, 0)
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        events, forms = texts[number % len(texts)]
        form = FORMS[number // len(texts) % len(FORMS)]
        kind = list(KINDS)[rng.randrange(len(KINDS))]
        changed = KINDS[kind](forms[form], rng)
        found = compare(f"r.{form}", changed, events)
        made[form, kind] += 1
        ok = not found.follows and bool(found.differences[0].place)
        caught[form, kind] += ok
        if not ok:
            notes.append(f"{form}, {kind}, seed {seed}, number {number}: {found.note or 'not caught'}")
    total = sum(caught.values())
    return [
        Figure("changed reports caught", total, f"of {count}", "all", total == count),
        Figure("reports as written that were called wrong", false, f"of {len(texts) * len(FORMS)}", "0", false == 0),
        *(Figure(f"{form}: {kind}", caught[form, kind], f"of {made[form, kind]}", "all", caught[form, kind] == made[form, kind]) for form, kind in caught),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--home", type=Path, action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    notes = ["--quick made 30 changes of 300 in reports, 12 of 120 in records"] if args.quick else []
    with tempfile.TemporaryDirectory(prefix="rsi-mutations-") as folder:
        campaigns = [one for home in args.home for one in recorded(Home(home))] if args.home else simulated_campaigns(Path(folder))
        if not campaigns:
            parser.error(f"{', '.join(map(str, args.home))} holds no campaign with a verdict.")
        figures = measure(campaigns, 30 if args.quick else 300, args.seed, notes)
        figures += records(campaigns, 12 if args.quick else 120, args.seed, notes)
    return show("mutations", figures, args.json, notes)


if __name__ == "__main__":
    sys.exit(main())

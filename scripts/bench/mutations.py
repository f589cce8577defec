"""Is a report that was changed caught? Random changes of reports in every form, each verified against its journal.

    scripts/bench/mutations.py [--quick] [--json] [--home DIR] [--seed N]

A digit, a word or a line of a report is changed; verification has to say so and to name the place. The campaigns are
those of DIR that have a claim or verdict (they are read, never written); without it three are run on a simulated
machine, whose figures are made up and consistent. 300 changes; --quick makes 30.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.audit.payback import Usage
from rsi_tui.audit.report import render_report
from rsi_tui.audit.written_reports import compare
from rsi_tui.errors import JournalError
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


def recorded(home: Home) -> list[Sequence[Event]]:
    """The events of campaigns that came to a verdict."""
    found: list[Sequence[Event]] = []
    for id in campaign_ids(home):
        try:
            events = read_events(home.campaign(id).journal)
        except JournalError:
            continue
        if CampaignView().feed_all(events).verdicts and len(found) < MOST:
            found.append(events)
    return found


def simulated_campaigns(folder: Path) -> list[Sequence[Event]]:
    """Three campaigns: everything tried, what is slower or fails alone, one change alone."""
    found: list[Sequence[Event]] = []
    for number, patches in enumerate((PATCHES, PATCHES[1:3], PATCHES[:1])):
        home = Home(folder / f"home{number}")
        with simulated(same_draws=True):
            request = Request(simulated_repository(folder / f"program{number}"), preset="simulated", candidates=len(patches))
            ended = run(home, request, PatchMind(list(patches)), silent)
        found.append(read_events(home.campaign(ended.campaign).journal))
    return found


def measure(campaigns: Sequence[Sequence[Event]], count: int, seed: int, notes: list[str]) -> list[Figure]:
    texts = [
        (events, {form: render_report(CampaignView().feed_all(events), events, form, Usage(100.0, 2.0)) for form in FORMS})
        for events in campaigns
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
    parser.add_argument("--home", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    notes = ["--quick made 30 changes of 300"] if args.quick else []
    with tempfile.TemporaryDirectory(prefix="rsi-mutations-") as folder:
        campaigns = recorded(Home(args.home)) if args.home else simulated_campaigns(Path(folder))
        if not campaigns:
            parser.error(f"{args.home} holds no campaign with a verdict.")
        figures = measure(campaigns, 30 if args.quick else 300, args.seed, notes)
    return show("mutations", figures, args.json, notes)


if __name__ == "__main__":
    sys.exit(main())

"""Is a campaign where it was after it was killed, at any point? SIGKILL at events, full disks, and kills of a real campaign.

    scripts/bench/kills.py [--quick] [--json] [--parts events,library,disk,live] [--count N] [--seed N]

events: an engine process is killed before, in the middle of, or after writing an event (before and after its newest
line is noted elsewhere), resumed, and killed again a few events later, to the campaign's end; then the record is laid
beside that of a campaign that nobody killed. 300 kills over whole campaigns. The machine is simulated: engine, journal,
mirror and evaluator are the real ones, runs take no time, and what is drawn for a block depends on the block alone.
library: engines killed while they open, ask or write the experience library, whose files then are damaged or deleted
(scripts/bench/kills_library.py); 50 times, and 50 kills of the library's server while engines use it.
disk: the home lies on a small file system that is full when an event is written; 20 times.
live: the engine of `rsi run` on a small real program, killed ten times within its runs and between them. Takes ten minutes.
--quick: 40 kills, 4 in the library, 4 full disks, no live ones.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.audit.verify import verify_campaign
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.view import campaign_ids, load_campaign
from rsi_tui.library import end_server
from rsi_tui.locations import Home
from scripts.bench.common import Figure, show
from scripts.bench.kills_common import KILLED, engine, grants, lines_of, repeated, told
from scripts.bench.kills_library import at_the_server, in_the_library
from tests.support.campaigns import tiny_repository
from tests.support.simulated import simulated_repository

MODES = ("before", "half written", "written, not noted", "written and noted")
LEAST, MOST = 3, 5
"""events that an engine gets on before it is killed again; fewer would use up the three attempts of one run"""
FULL_MIB = 24
LIVE_MOST = 14
"""events that a real campaign gets on between two kills"""


@dataclass
class Course:
    """What was seen on the way of one campaign."""

    kills: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    """(kind of event, mode) -> times"""
    changed: int = 0
    """resumptions that found or made another past"""
    trouble: list[str] = field(default_factory=list)


def writing(hook: Callable[[JournalWriter, bytes, Any], None]) -> AbstractContextManager[object]:
    """Within it the hook writes lines: it is given the writer, the line and what writes it."""
    write = JournalWriter._write
    return patch.object(JournalWriter, "_write", lambda self, data: hook(self, data, write))


def killer(least: int, kind: str, mode: str, met: Path) -> Callable[[JournalWriter, bytes, Any], None]:
    """Kills its own process at the first event of a kind ('' for any) whose number is at least `least`, and notes what it met."""
    last: list[int] = []

    def hook(writer: JournalWriter, data: bytes, write: Any) -> None:
        if writer.path.name != "journal.jsonl":
            write(writer, data)
            return
        if last:  # the line before was written, and its note after it
            os.kill(os.getpid(), signal.SIGKILL)
        found = json.loads(data)["body"]["type"]
        if writer._seq < least or kind not in ("", found):
            write(writer, data)
            return
        met.write_text(found)
        if mode == "half written":
            os.pwrite(writer._fd, data[: len(data) // 2], writer._size)
            os.fsync(writer._fd)
        elif mode != "before":
            write(writer, data)
        if mode == "written and noted":
            last.append(writer._seq)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def killed_all_the_way(home: Home, place: Path, budget: int, rng: random.Random, kinds: list[str], done: set[tuple[str, str]]) -> Course:
    """Kill, resume, kill again, to the campaign's end; at most `budget` kills, then it may end.

    Every other kill is at a kind of event of `kinds` (in the order of a campaign) that is not `done` in its mode.
    """
    course, before, met = Course(), list[bytes](), home.root.with_suffix(".met")
    while True:
        past = len(before)
        mode = MODES[rng.randrange(len(MODES))]
        least = past + rng.randint(LEAST, MOST) if past > 3 else rng.randint(past, 3)
        seen = len({line[line.find(b'"step":') : line.find(b',"body":')] for line in before})
        missing = [kind for kind in dict.fromkeys(kinds[seen:]) if (kind, mode) not in done]
        hook = killer(least, missing[0] if missing and rng.random() < 0.5 else "", mode, met)
        met.unlink(missing_ok=True)
        code = engine(home, place, past > 0, writing(hook) if sum(course.kills.values()) < budget else None)
        now = lines_of(home)
        course.changed += now[:past] != before
        if code != KILLED:
            if code != 0:
                course.trouble.append(f"an engine ended with {code} after {past} events")
            return course
        course.kills[met.read_text(), mode] += 1
        done.add((met.read_text(), mode))
        before = now


def at_events(folder: Path, count: int, seed: int, notes: list[str]) -> Iterator[Figure]:
    place = simulated_repository(folder / "program")
    whole = Home(folder / "whole")
    if engine(whole, place, False) != 0:
        raise SystemExit("the campaign that nobody kills does not end well.")
    wanted = told(load_campaign(whole, campaign_ids(whole)[0]))
    kinds = [json.loads(line)["body"]["type"] for line in lines_of(whole)]
    done: set[tuple[str, str]] = set()
    kills: collections.Counter[tuple[str, str]] = collections.Counter()
    same = campaigns = changed = twice = unsound = spent = 0
    began = time.monotonic()
    while sum(kills.values()) < count:
        rng = random.Random(seed * 1000 + campaigns)
        home = Home(folder / f"killed{campaigns}")
        course = killed_all_the_way(home, place, count - sum(kills.values()), rng, kinds, done)
        kills += course.kills
        changed += course.changed
        found = told(load_campaign(home, campaign_ids(home)[0]))
        differing = [key for key in wanted if wanted[key] != found[key]]
        wrong = repeated(home)
        notes += [*course.trouble, *(f"campaign {campaigns}: {key} differs" for key in differing), *wrong[:5]]
        same += not differing
        twice += len(wrong)
        verified = verify_campaign(home, campaign_ids(home)[0])
        unsound += not verified.follows
        notes += [f"campaign {campaigns}: {check}" for check in verified.wrong[:5]]
        spent += grants(home) != 1
        campaigns += 1
    total = sum(kills.values())
    yield Figure("engines killed at an event", total, f"over {campaigns} campaigns", f"at least {count}", total >= count)
    yield Figure("campaigns that came to the same end", same, f"of {campaigns}", "all", same == campaigns)
    yield Figure("runs lost or repeated", twice, "", "0", twice == 0)
    yield Figure("resumptions that changed the past", changed, "", "0", changed == 0)
    yield Figure("records that `rsi verify` does not confirm", unsound, "", "0", unsound == 0)
    yield Figure("campaigns that drew error probability twice", spent, "", "0", spent == 0)
    for mode in MODES:
        met = {kind for kind, how in kills if how == mode}
        yield Figure(f"kills {mode}", sum(n for (_, how), n in kills.items() if how == mode), f"at {len(met)} of {len(set(kinds))} kinds", "", None)
    yield Figure("time", time.monotonic() - began, "s", "", None)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of FULL_MIB of its own; needs root."""
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FULL_MIB}m", "tmpfs", str(place)], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def fills(target: int, filler: Path) -> Callable[[JournalWriter, bytes, Any], None]:
    """Fills the disk when the event of that number is about to be written."""

    def hook(writer: JournalWriter, data: bytes, write: Any) -> None:
        if writer.path.name == "journal.jsonl" and writer._seq == target:
            with filler.open("wb", buffering=0) as file:
                for size in (1 << 20, 1 << 12, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(b"x" * size)
        write(writer, data)

    return hook


def on_a_full_disk(folder: Path, count: int, seed: int, notes: list[str]) -> Iterator[Figure]:
    place = simulated_repository(folder / "program")
    whole = Home(folder / "whole")
    engine(whole, place, False)
    wanted = told(load_campaign(whole, campaign_ids(whole)[0]))
    length = len(lines_of(whole))
    held = same = 0
    for number in range(count):
        target = random.Random(seed * 77 + number).randrange(3, length - 2)
        with small_disk(folder) as disk:
            home, filler = Home(disk / "home"), disk / "filler"
            code = engine(home, place, False, writing(fills(target, filler)))
            lines = lines_of(home)
            # The journal's last page may hold some lines more.
            stopped = code not in (0, KILLED) and target <= len(lines) < length and home.campaign(campaign_ids(home)[0]).journal.read_bytes() == b"".join(lines)
            filler.unlink(missing_ok=True)
            again = engine(home, place, True)
            found = told(load_campaign(home, campaign_ids(home)[0])) if again == 0 else {}
            held += stopped
            same += found == wanted and lines_of(home)[: len(lines)] == lines
            if not (stopped and found == wanted):
                notes.append(f"full at event {target}: exit {code}, {len(lines)} lines, resumed with {again}")
        (folder / "disk").rmdir()
    yield Figure("full disks met without half a line", held, f"of {count}", "all", held == count)
    yield Figure("campaigns that came to the same end once there was room", same, f"of {count}", "all", same == count)


def live(folder: Path, count: int, seed: int, notes: list[str]) -> Iterator[Figure]:
    """Kills of the engine of `rsi run` on a real program, each some events and up to two seconds after the one before."""
    place, home = tiny_repository(folder / "program"), Home(folder / "home")
    rng, kills, most_left, longest = random.Random(seed), 0, 0, 0.0
    command = [sys.executable, "-m", "rsi_tui", "run", str(place), "--preset", "quick", "--candidates", "4"]
    environment = os.environ | {"RSI_HOME": str(home.root)}
    while True:
        resume = ["--resume"] if campaign_ids(home) else []
        until = len(lines_of(home)) + rng.randint(LEAST, LIVE_MOST) if kills < count else sys.maxsize
        child = subprocess.Popen([*command, *resume], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while child.poll() is None and len(lines_of(home)) < until:
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(rng.uniform(0.0, 2.0) if child.returncode is None else None)
        if child.returncode is not None:
            said = child.stderr.read() if child.stderr else ""
            if child.returncode:
                notes.append(f"rsi run ended with {child.returncode}: {said[-300:]}")
            break
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        kills += 1
        most_left, took = max(most_left, len(processes_of(folder))), gone_after(folder)
        longest = max(longest, took)
    if not campaign_ids(home):
        yield Figure("it came to its end", "no", "", "finished", False)
        return
    end_server(home)
    view, wrong, found = load_campaign(home, campaign_ids(home)[0]), repeated(home), verify_campaign(home, campaign_ids(home)[0])
    notes += wrong
    left = [path for path in (home.root / "evaluator" / view.id).iterdir() if path.name != "vault.jsonl"]
    yield Figure("kills of a real campaign", kills, f"of {count}, over {len(lines_of(home))} events", "all", kills == count)
    yield Figure("it came to its end", view.state, "", "finished", view.state == "finished")
    yield Figure("... runs lost or repeated", len(wrong), "", "0", not wrong)
    yield Figure("... `rsi verify` confirms it", "yes" if found.follows else "no", "", "yes", found.follows)
    yield Figure("... longest until all processes of a killed engine were gone", longest, "s", "< 5", longest < 5)
    yield Figure("... processes left", len(processes_of(folder)), f"{most_left} at most just after a kill", "0", not processes_of(folder))
    yield Figure("... trees, checkpoints and hidden data left", len(left), "", "0", not left)


def processes_of(folder: Path) -> list[str]:
    """Processes whose command line names a folder, the library's server apart, which outlives engines."""
    found = subprocess.run(["pgrep", "-af", str(folder)], capture_output=True, text=True, check=False).stdout.splitlines()
    return [line for line in found if " rsi_tui.library " not in line]


def gone_after(folder: Path) -> float:
    """Seconds until no process names a folder any more; 10 at most."""
    began = time.monotonic()
    while processes_of(folder) and time.monotonic() < began + 10:
        time.sleep(0.02)
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--parts", default="events,library,disk,live")
    parser.add_argument("--count", type=int, default=0, help="kills at events, instead of 300")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    notes = ["--quick: 40 kills of 300, 4 in the library of 50, 6 of its server of 50, 4 full disks of 20, none of a real campaign"] if args.quick else []
    parts: dict[str, Callable[[Path], Iterator[Figure]]] = {
        "events": lambda folder: at_events(folder, args.count or (40 if args.quick else 300), args.seed, notes),
        "library": lambda folder: itertools.chain(
            in_the_library(folder / "engine", args.count or (4 if args.quick else 50), args.seed, notes),
            at_the_server(folder / "server", args.count or (6 if args.quick else 50), args.seed, notes),
        ),
        "disk": lambda folder: on_a_full_disk(folder, 4 if args.quick else 20, args.seed, notes),
        "live": lambda folder: live(folder, 10, args.seed, notes),
    }
    chosen = [part for part in args.parts.split(",") if part != "live" or not args.quick]
    figures: list[Figure] = []
    for part in chosen:
        with tempfile.TemporaryDirectory(prefix=f"rsi-kills-{part}-") as folder:
            figures += parts[part](Path(folder))
    return show("kills", figures, args.json, notes, f"scripts/bench/kills.py --parts {','.join(chosen)}")


if __name__ == "__main__":
    sys.exit(main())

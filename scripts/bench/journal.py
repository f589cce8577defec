"""What does the record cost? Time of an event, bytes of a run, and opening a campaign of very many runs.

    scripts/bench/journal.py [--quick] [--json] [--journal FILE] [--trials N]

Appends the events of a campaign (FILE, else one on a simulated machine) to a journal on the disk of the temporary folder,
each flushed, and times every append, checks and note of the newest line included. Bytes of a run are its share of the whole
journal, diffs included; what lies beside it (revealed secrets, output of failed runs) is told apart. Opening is measured on a journal of N runs (100,000).
--quick appends a tenth as many events and opens 2,000 runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter, _encode, read_events
from rsi_tui.journal.folded import load_view
from rsi_tui.locations import Home
from scripts.bench.common import Figure, show
from scripts.bench.mutations import simulated_campaigns

APPENDED = 3000


def appended(path: Path, events: Sequence[ev.Event], count: int) -> list[float]:
    """Seconds of each append."""
    seconds = []
    with JournalWriter.open(path, anchor=path.with_suffix(".anchor")) as journal:
        for number in range(count):
            body = events[number % len(events)].body
            began = time.perf_counter()
            journal.append(body)
            seconds.append(time.perf_counter() - began)
    return seconds


def bytes_of_runs(events: Sequence[ev.Event]) -> tuple[float, int]:
    """(bytes a run of the whole journal, runs)."""
    size = sum(len(_encode(event.seq, event.body, event.step, event.prev)) + 1 for event in events)
    runs = sum(isinstance(event.body, ev.TrialFinished) for event in events)
    return size / max(1, runs), runs


def long_journal(path: Path, events: Sequence[ev.Event], trials: int) -> int:
    """Write a journal of at least so many runs, not flushed; its size in bytes."""
    prev, seq, done = "0" * 64, 0, 0
    head = next(i for i, event in enumerate(events) if isinstance(event.body, ev.TrialStarted))
    runs = [e for e in events if isinstance(e.body, ev.TrialStarted | ev.TrialFinished | ev.BlockOpened | ev.BlockClosed)]
    with path.open("wb") as file:
        for event in events[:head]:
            line = _encode(seq, event.body, event.step, prev)
            file.write(line + b"\n")
            seq, prev = seq + 1, line[-66:-2].decode()
        while done < trials:
            for event in runs:
                body = _renamed(event.body, done)
                line = _encode(seq, body, "", prev)
                file.write(line + b"\n")
                seq, prev = seq + 1, line[-66:-2].decode()
            done += sum(isinstance(e.body, ev.TrialFinished) for e in runs)
    return path.stat().st_size


def _renamed(body: object, offset: int) -> ev.TrialStarted | ev.TrialFinished | ev.BlockOpened | ev.BlockClosed:
    """The same event of other runs."""
    if isinstance(body, ev.TrialStarted):
        return body.model_copy(update={"trial": _id(body.trial, offset), "block": f"{body.block}-{offset}"})
    if isinstance(body, ev.TrialFinished):
        facts = body.facts.model_copy(update={"id": _id(body.trial, offset), "block": f"{body.facts.block}-{offset}"}) if body.facts else None
        return body.model_copy(update={"trial": _id(body.trial, offset), "facts": facts})
    if isinstance(body, ev.BlockClosed):
        trials = tuple(t.model_copy(update={"id": _id(t.id, offset), "block": f"{t.block}-{offset}"}) for t in body.trials)
        return body.model_copy(update={"block": f"{body.block}-{offset}", "trials": trials})
    assert isinstance(body, ev.BlockOpened)
    return body.model_copy(update={"block": f"{body.block}-{offset}"})


def _id(trial: str, offset: int) -> str:
    return f"t{int(trial[1:]) + offset * 10}"


def measure(folder: Path, events: Sequence[ev.Event], beside: int, count: int, trials: int) -> list[Figure]:
    """The figures; `beside` is what lies beside the journal, bytes."""
    seconds = sorted(appended(folder / "appended.jsonl", events, count))
    p50, p95, p99 = (1000 * seconds[int(len(seconds) * share)] for share in (0.5, 0.95, 0.99))
    each, runs = bytes_of_runs(events)
    paths = Home(folder).campaign("long")
    paths.root.mkdir(parents=True)
    size = long_journal(paths.journal, events, trials)
    took = []
    for _ in range(4):
        began = time.perf_counter()
        view = load_view(paths)
        took.append(time.perf_counter() - began)
    first, opening = took[0], statistics.median(took[1:])
    return [
        Figure("an event, median", p50, "ms", "", None),
        Figure("an event, 95 of 100", p95, "ms", "at most 2", p95 <= 2),
        Figure("an event, 99 of 100", p99, "ms", "", None),
        Figure("a run's share of the journal", each, f"bytes, mean of {runs}", "at most 3000", each <= 3000),
        Figure("... beside it, compressed", beside / max(1, runs), "bytes", "", None),
        Figure("... for the first time", first, "s", "", None),
        Figure(f"opening a campaign of {len(view.trials):,} runs", opening, f"s, {size / 2**20:.0f} MiB", "at most 2 for 100,000", opening <= 2 if trials >= 100_000 else None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--trials", type=int, default=100_000)
    args = parser.parse_args()
    count, trials = (APPENDED // 10, 2000) if args.quick else (APPENDED, args.trials)
    with tempfile.TemporaryDirectory(prefix="rsi-journal-") as folder:
        if args.journal:
            events, home = read_events(args.journal), args.journal.parent
        else:
            simulated_campaigns(Path(folder) / "simulated")
            home = next((Path(folder) / "simulated/home0/campaigns").iterdir())
            events = read_events(home / "journal.jsonl")
        beside = sum(path.stat().st_size for part in ("blobs", "logs") for path in (home / part).glob("*"))
        figures = measure(Path(folder), events, beside, count, trials)
    notes = [f"--quick appended {count} events and opened {trials} runs"] if args.quick else []
    return show("journal", figures, args.json, notes)


if __name__ == "__main__":
    sys.exit(main())

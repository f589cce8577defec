"""How fast the experience library is when it is large, and what is lost when its server is killed.

    scripts/bench/library.py [--entries N] [--quick] [--json] [--home DIR] [--seconds S]

Loads N entries (a million; 20,000 of them really encoded, the rest perturbed vectors of those), starts the home's server
cold, asks it, and compares what its index finds with exact search. Then, on a library of its own, 32 clients write and
search while the server is killed ten times. With --home it goes on where it was interrupted; --seconds ends a call after
about so long while something is left to do (exit code 3: call again). --quick loads 4,000 entries, without an index, and kills twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from experience.client import RemoteLibrary
from experience.encoder import MiniLM
from experience.errors import ExperienceError
from experience.interface import ExperienceLibrary
from experience.library import DirectLibrary, open_library
from experience.records import Entry
from rsi_tui import library as room
from rsi_tui.locations import Home
from scripts.bench import corpus
from scripts.bench.common import Figure, show

QUERIES = 200
COMPARED = 100
"""queries whose answers are compared with exact search"""
CLIENTS, KILLS = 32, 10
AGAIN = 3
"""exit code: something is left to do"""


class NoJournals:
    """A reader of a home without campaigns: what was loaded stays as it is."""

    def heads(self) -> list[Any]:
        return []

    def batch(self, campaign: str) -> Any:
        raise KeyError(campaign)

    def knowledge(self) -> list[Entry]:
        return []


@dataclass
class Spent:
    """What earlier calls did, kept in a file of the bench's home."""

    path: Path
    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path) -> Spent:
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def add(self, name: str, value: float) -> None:
        self.values[name] = self.values.get(name, 0.0) + value
        self.path.write_text(json.dumps(self.values))


def queries(count: int) -> list[str]:
    """Questions as people type them, in turn: an error line, an idea, a flag, a symptom. None of them is a stored text."""
    rng, made = random.Random(7), list[str]()
    while len(made) < count:
        text, kind = rng.choice(corpus.texts(200, seed=99)), len(made) % 4
        if kind == 0:
            made.append(corpus.filled(rng, rng.choice(corpus.LINES)))
        elif kind == 1:
            made.append(text.text.split("\n")[0][:120])
        elif kind == 2:
            made.append(f"{rng.choice(corpus.FLAGS)} {rng.choice(corpus.FUNCTIONS)}")
        else:
            made.append(corpus.filled(rng, rng.choice(corpus.WHY)))
    return made


def load(home: Home, entries: int, spent: Spent, until: float) -> None:
    """Store what is not stored yet, then make the indices."""
    stored = int(spent.values.get("stored", 0))
    if stored < entries:
        base = corpus.texts(min(entries, corpus.BASE))
        encoder = corpus.Perturbed(home.root / "encoded", base, until)
        library = open_library(home.library, NoJournals(), encoder)
        for number, batch in enumerate(corpus.batches(entries, base)):
            if number * corpus.IN_A_CAMPAIGN < stored:
                continue
            if time.monotonic() > until:
                library.close()
                raise corpus.LaterError
            began = time.monotonic()
            library.ingest(batch)
            spent.add("ingest_s", time.monotonic() - began)
            spent.add("stored", len(batch.entries))
        library.close()
    if "tended_s" not in spent.values:
        if time.monotonic() > until - 0.5 * entries / 1000 * 0.4:
            raise corpus.LaterError
        library = open_library(home.library, NoJournals())
        began = time.monotonic()
        library.compact()
        spent.add("tended_s", time.monotonic() - began)
        library.close()


def asked(home: Home) -> tuple[list[float], float, float, float, int]:
    """(seconds of each query, seconds to the first answer, to the first by meaning, of one by words, peak bytes of the server), cold."""
    began = time.monotonic()
    words = room.open_library(home)
    words.search("warm-up of nothing in particular")
    first = time.monotonic() - began
    patient = room.open_library(home, patient=True)
    patient.search("the router waits")
    meaning = time.monotonic() - began
    for text in queries(20):
        patient.search(text)
    times = []
    for text in queries(QUERIES + 20)[20:]:
        began = time.monotonic()
        hits = patient.search(text)
        times.append(time.monotonic() - began)
        assert all("by words only" not in hit.why for hit in hits)
    began = time.monotonic()
    patient.campaigns()
    listing = time.monotonic() - began
    peak = peak_bytes(server_of(home))
    words.close()
    end(home, patient)
    return times, first, meaning, listing, peak


def end(home: Home, library: ExperienceLibrary) -> None:
    """End a home's server, and wait until its files are free."""
    assert isinstance(library, RemoteLibrary)
    pid = server_of(home)
    library.end_server()
    while psutil.pid_exists(pid):
        time.sleep(0.1)


def server_of(home: Home) -> int:
    """Process that serves a home's library."""
    return int((home.library / "server.lock").read_text())


def peak_bytes(pid: int) -> int:
    """Largest resident size of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return psutil.Process(pid).memory_info().rss


def recall(home: Home) -> float:
    """Share of the ten nearest, by exact search, that the library's own search by meaning finds."""
    library = open_library(home.library, NoJournals())
    assert isinstance(library, DirectLibrary)
    vectors = MiniLM().encode(queries(COMPARED))
    table = library._vectors._table
    best: list[list[tuple[float, str]]] = [[] for _ in vectors]
    for part in table.search().select(["id", "vector"]).to_batches(20_000):
        ids = part.column("id").to_pylist()
        stored = np.asarray(part.column("vector").flatten(), np.float32).reshape(len(ids), -1)
        close = stored @ vectors.T
        for number in range(len(vectors)):
            top = np.argpartition(-close[:, number], min(10, len(ids) - 1))[:10]
            best[number] = sorted([*best[number], *((float(close[at, number]), ids[at]) for at in top)], reverse=True)[:10]
    found = [{item.id for item in library._vectors.by_meaning(vector, "", 10)} for vector in vectors]
    library.close()
    return sum(len(got & {name for _, name in exact}) for got, exact in zip(found, best, strict=True)) / (10 * len(vectors))


@dataclass
class Client:
    """One of many: writes and searches in turn, and notes what was acknowledged and how long it took."""

    number: int
    home: Home
    acknowledged: list[str] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(when a call began, how long it took)"""
    errors: list[str] = field(default_factory=list)

    def work(self, stop: threading.Event) -> None:
        library, rng = room.open_library(self.home), random.Random(self.number)
        while not stop.is_set():
            name = f"knowledge/{self.number}/{len(self.acknowledged)}"
            began = time.monotonic()
            try:
                if rng.random() < 0.5:
                    text = corpus.filled(rng, rng.choice(corpus.WHY))
                    library.add_knowledge([Entry(id=name, kind="knowledge", text=f"{text} ({name})", source=name)])
                    self.acknowledged.append(name)
                else:
                    library.search(corpus.filled(rng, rng.choice(corpus.LINES)))
            except ExperienceError as error:
                self.errors.append(str(error))
            self.waits.append((began, time.monotonic() - began))
            time.sleep(rng.uniform(0.05, 0.3))
        library.close()


def killed(home: Home, kills: int) -> tuple[int, int, list[float], list[str], list[float]]:
    """(acknowledged, of those lost, seconds of calls that met a kill, errors, seconds of others)."""
    first = room.open_library(home, patient=True)
    first.search("until the encoder is there")
    clients, stop, struck = [Client(number, home) for number in range(CLIENTS)], threading.Event(), list[float]()
    threads = [threading.Thread(target=client.work, args=(stop,)) for client in clients]
    for thread in threads:
        thread.start()
    for _ in range(kills):
        time.sleep(random.Random(len(struck)).uniform(1.0, 2.5))
        _alive(home)
        os.kill(server_of(home), signal.SIGKILL)
        struck.append(time.monotonic())
        time.sleep(1.0)
        _alive(home)
    time.sleep(2.0)
    stop.set()
    for thread in threads:
        thread.join(60)
    names = [name for client in clients for name in client.acknowledged]
    held = sum(first.record_of(name) is not None for name in names)
    met, others = list[float](), list[float]()
    for began, took in (wait for client in clients for wait in client.waits):
        (met if any(began <= at <= began + took for at in struck) else others).append(took)
    end(home, first)
    return len(names), len(names) - held, met, [error for client in clients for error in client.errors], others


def _alive(home: Home) -> None:
    """Wait until a server answers, as a client would."""
    room.open_library(home).last_seq("")


def _gb(value: float) -> float:
    return value / 1e9


def figures(home: Home, entries: int, kills: int, until: float) -> Iterator[Figure]:
    spent = Spent.at(home.root / "bench.json")
    load(home, entries, spent, until)
    rate = entries / spent.values["ingest_s"]
    yield Figure("entries", entries, "", "", None)
    yield Figure("ingest, vectors given", rate, "/s", "at least 2000", rate >= 2000)
    yield Figure("compact and index", spent.values["tended_s"], "s", "", None)
    times, first, meaning, listing, peak = asked(home)
    p50, p95 = np.percentile(times, [50, 95]) * 1000
    limit = 60 if entries > 100_000 else 40
    yield Figure("first answer by words, cold server", first, "s", "at most 3" if entries <= 100_000 else "", first <= 3 if entries <= 100_000 else None)
    yield Figure("first answer by meaning, cold server", meaning, "s", "at most 10" if entries <= 100_000 else "", meaning <= 10 if entries <= 100_000 else None)
    yield Figure("hybrid query, warm, median", p50, "ms", "", None)
    yield Figure("hybrid query, warm, p95", p95, "ms", f"at most {limit}", bool(p95 <= limit))
    yield Figure("all campaigns", 1000 * listing, "ms", "", None)
    yield Figure("peak memory of the server", _gb(peak), "GB", "at most 2.5", _gb(peak) <= 2.5)
    share = recall(home)
    yield Figure("recall@10 against exact search", share, "", "at least 0.95", share >= 0.95)
    if kills:
        names, lost, met, errors, others = killed(Home(home.root / "killed"), kills)
        longest = max(met, default=0.0)
        yield Figure("kills of the server under 32 clients", kills, "", "", None)
        yield Figure("... writes acknowledged", names, "", "", None)
        yield Figure("... of those lost", lost, "", "0", lost == 0)
        yield Figure("... calls that met a kill", len(met), "", "", None)
        yield Figure("... longest of them", longest, "s", "at most 6", longest <= 6)
        yield Figure("... calls that got an error", len(errors), "", "0", not errors)
        yield Figure("... other calls, p95", float(np.percentile(others, 95)), "s", "", None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--no-kills", action="store_true")
    told = parser.parse_args()
    entries, kills = (4000, 2) if told.quick else (told.entries, KILLS)
    os.environ.pop("RSI_LIBRARY", None)
    if told.no_kills:
        kills = 0
    if told.home is not None:
        told.home.mkdir(parents=True, exist_ok=True)
        return _run(told.home, entries, kills, told)
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), entries, kills, told)


def _run(folder: Path, entries: int, kills: int, told: argparse.Namespace) -> int:
    found: list[Figure] = []
    try:
        for figure in figures(Home(folder), entries, kills, time.monotonic() + told.seconds):
            print(f"{figure.name}: {figure.value} {figure.unit}", file=sys.stderr)
            found.append(figure)
    except corpus.LaterError:
        print("not done: call it again with the same --home", file=sys.stderr)
        return AGAIN
    notes = [f"--quick: {entries} entries, no index, {kills} kills"] if told.quick else []
    return show("library", found, told.json, notes, "" if entries == 1_000_000 or told.quick else f"--entries {entries}")


if __name__ == "__main__":
    sys.exit(main())

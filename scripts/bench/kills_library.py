"""Kills of whoever has the experience library open, and damage to its files between two engines.

First the engine opens the files itself, so that killing it is killing their owner. Then the library's server has them and
is killed, while it stores, answers or does nothing; in every third campaign the engine as well. A campaign must come to the
same end whatever becomes of the library, and the library must hold in the end what one that is made from the journals anew
holds. Tables and vectors are the real ones; a stand-in makes vectors of texts, since the encoder takes seconds to load in
each process.

    python -m scripts.bench.kills_library HOME      the server of such a home
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rsi_tui.journal.view import campaign_ids, load_campaign
from rsi_tui.locations import Home
from scripts.bench.common import Figure
from scripts.bench.kills_common import KILLED, engine, lines_of, repeated, told
from tests.support.simulated import simulated_repository

WRITES = ("replace", "replace_entries", "put_knowledge")
VECTOR_CALLS = ("open", "remove", "put", "by_words", "by_meaning")
MODES = ("before", "within", "after")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "none": lambda folder: None,
    "tables deleted": lambda folder: (folder / "experience.duckdb").unlink(missing_ok=True),
    "tables overwritten": lambda folder: _overwrite(folder / "experience.duckdb"),
    "log overwritten": lambda folder: (folder / "experience.duckdb.wal").write_bytes(os.urandom(500)),
    "vectors deleted": lambda folder: shutil.rmtree(folder / "vectors.lance", ignore_errors=True),
    "vectors' data deleted": lambda folder: shutil.rmtree(folder / "vectors.lance/entries.lance/data", ignore_errors=True),
    "everything deleted": lambda folder: shutil.rmtree(folder, ignore_errors=True),
}
FINISHED = 2
"""exit code of an engine that is asked to go on with what has ended"""


class Hashes:
    """Vectors from hashes of texts."""

    name = "hashes"
    sha256 = "0" * 64

    def load(self) -> None:
        return None

    def encode(self, texts: Sequence[str]) -> Any:
        import numpy as np

        rows = [np.random.default_rng(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)).standard_normal(384) for text in texts]
        found = np.array(rows, dtype=np.float32).reshape(len(texts), 384)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


@contextlib.contextmanager
def calling(hook: Callable[[str, Callable[[], Any]], Any]) -> Iterator[None]:
    """Within it the hook makes each call that opens, asks or writes tables and vectors: it is given a name and the call."""
    from experience.store import Store
    from experience.vectors import VectorTable

    def hooked(name: str, real: Any) -> Any:
        return lambda *args, **kwargs: hook(name, lambda: real(*args, **kwargs))

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch("experience.library.MiniLM", Hashes))
        stack.enter_context(patch.object(Store, "open", hooked("tables.open", Store.open)))
        for kind, name in (*((Store, name) for name in WRITES), *((VectorTable, name) for name in VECTOR_CALLS)):
            label = f"{'tables' if kind is Store else 'vectors'}.{name}"
            stack.enter_context(patch.object(kind, name, hooked(label, getattr(kind, name))))
        yield


def counting(names: Path) -> AbstractContextManager[None]:
    """Notes each call's name, one a line."""

    def hook(name: str, call: Callable[[], Any]) -> Any:
        with names.open("a") as file:
            file.write(f"{name}\n")
        return call()

    return calling(hook)


def killing(number: int, mode: str, after_s: float, met: Path) -> AbstractContextManager[None]:
    """Kills its own process before, within or after the call of that number, and notes which it was."""
    seen = [0]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(name: str, call: Callable[[], Any]) -> Any:
        seen[0] += 1
        if seen[0] != number:
            return call()
        met.write_text(name)
        if mode == "before":
            die()
        if mode == "within":
            threading.Timer(after_s, die).start()
        result = call()
        die()
        return result

    return calling(hook)


def in_the_library(folder: Path, count: int, seed: int, notes: list[str]) -> Iterator[Figure]:
    """The figures of so many kills, each in a campaign of its own; every third one is killed once more as it goes on."""
    os.environ["RSI_LIBRARY"] = "direct"
    folder.mkdir(exist_ok=True)
    place, names, began = simulated_repository(folder / "program"), folder / "names", time.monotonic()
    whole = Home(folder / "whole")
    if engine(whole, place, False, counting(names), library=True) != 0:
        raise SystemExit("the campaign that nobody kills does not end well.")
    wanted, calls = told(load_campaign(whole, campaign_ids(whole)[0])), len(names.read_text().splitlines())
    met, met_calls, kills, same, equal, twice = folder / "met", set[str](), 0, 0, 0, 0
    damages = list(DAMAGES)
    for number in range(count):
        rng, home, damage = random.Random(seed * 101 + number), Home(folder / f"home{number}"), damages[number % len(damages)]
        at = 1 + (number * calls // count + rng.randrange(3)) % calls
        code = engine(home, place, False, killing(at, rng.choice(MODES), rng.uniform(0, 0.02), met), library=True)
        kills += code == KILLED
        met_calls.add(met.read_text())
        DAMAGES[damage](home.library)
        if number % 3 == 0:
            kills += engine(home, place, True, killing(rng.randint(1, 4), "within", 0.002, met), library=True) == KILLED
        again = engine(home, place, True, calling(lambda _, call: call()), library=True)
        found = told(load_campaign(home, campaign_ids(home)[0]))
        wrong, held = repeated(home), as_from_journals(home)
        same += found == wanted and again in (0, FINISHED)
        equal += held == ""
        twice += len(wrong)
        if found != wanted or held or again not in (0, FINISHED):
            notes.append(f"killed at call {at} ({met.read_text()}), {damage}: went on with {again}, {len(lines_of(home))} events; {held}")
        shutil.rmtree(home.root, ignore_errors=True)
    yield Figure("engines killed with the library open", kills, f"at {len(met_calls)} of {len(set(names.read_text().split()))} kinds of calls", f"at least {count}", kills >= count)
    yield Figure("... campaigns that came to the same end", same, f"of {count}", "all", same == count)
    yield Figure("... runs lost or repeated", twice, "", "0", twice == 0)
    yield Figure("... libraries that hold what the journals say", equal, f"of {count}", "all", equal == count)
    yield Figure("... kinds of damage between two engines", len(DAMAGES) - 1, "", "", None)
    yield Figure("... time", time.monotonic() - began, "s", "", None)


def serving_killed(rng: random.Random, kills: Path, most: int) -> AbstractContextManager[object]:
    """Within it the server of the process's library is killed up to `most` times, some milliseconds into a call or just before one."""
    from experience.client import RemoteLibrary

    real, done = RemoteLibrary._ask, [0]

    def die(library: Any) -> None:
        try:
            pid = int((library._address.path.parent / "server.lock").read_text())
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            return  # it is on its way already
        with kills.open("a") as file:
            file.write("x")

    def hooked(self: Any, method: str, body: bytes) -> Any:
        if done[0] < most and rng.random() < 0.6:
            done[0] += 1
            if rng.random() < 0.3:
                die(self)
            else:
                threading.Timer(rng.uniform(0, 0.03), die, args=(self,)).start()
        return real(self, method, body)

    stack = contextlib.ExitStack()
    stack.enter_context(patch("rsi_tui.library.SERVER", "scripts.bench.kills_library"))
    stack.enter_context(patch.object(RemoteLibrary, "_ask", hooked))
    return stack


def at_the_server(folder: Path, count: int, seed: int, notes: list[str]) -> Iterator[Figure]:
    """The figures of so many kills of the library's server, a few in each campaign."""
    folder.mkdir(exist_ok=True)
    place, kills, began = simulated_repository(folder / "program"), folder / "kills", time.monotonic()
    os.environ["RSI_LIBRARY"] = "direct"
    whole = Home(folder / "whole")
    if engine(whole, place, False, calling(lambda _, call: call()), library=True) != 0:
        raise SystemExit("the campaign that nobody kills does not end well.")
    wanted = told(load_campaign(whole, campaign_ids(whole)[0]))
    kills.touch()
    campaigns = same = equal = twice = 0
    slowest = 0.0
    while len(kills.read_text()) < count and campaigns < 2 * count:
        rng, home = random.Random(seed * 313 + campaigns), Home(folder / f"served{campaigns}")
        os.environ["RSI_LIBRARY"] = "server"
        started = time.monotonic()
        code = engine(home, place, False, serving_killed(rng, kills, 6), library=True)
        slowest = max(slowest, time.monotonic() - started)
        if campaigns % 3 == 0:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((home.library / "server.lock").read_text()), signal.SIGKILL)
        _end(home)
        os.environ["RSI_LIBRARY"] = "direct"
        found, held, wrong = told(load_campaign(home, campaign_ids(home)[0])), as_from_journals(home), repeated(home)
        campaigns, same, equal, twice = campaigns + 1, same + (found == wanted and code == 0), equal + (held == ""), twice + len(wrong)
        if found != wanted or held or code:
            notes.append(f"server killed in campaign {campaigns - 1}: it ended with {code}; {held}")
        shutil.rmtree(home.root, ignore_errors=True)
    done = len(kills.read_text())
    yield Figure("servers of the library killed", done, f"over {campaigns} campaigns", f"at least {count}", done >= count)
    yield Figure("... campaigns that came to the same end", same, f"of {campaigns}", "all", same == campaigns)
    yield Figure("... runs lost or repeated", twice, "", "0", twice == 0)
    yield Figure("... libraries that hold what the journals say", equal, f"of {campaigns}", "all", equal == campaigns)
    yield Figure("... slowest campaign", slowest, "s", "", None)
    yield Figure("... time of the kills of servers", time.monotonic() - began, "s", "", None)


def _end(home: Home) -> None:
    """End the server and wait until it let go of the files."""
    from rsi_tui.library import end_server

    end_server(home)
    with (home.library / "server.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def as_from_journals(home: Home) -> str:
    """'' when the library, opened once more, holds what a new one of the same journals holds; else what differs."""
    done = subprocess.run([sys.executable, "-c", _COMPARE, str(home.root)], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    return str(json.loads(done.stdout)["differs"]) if done.returncode == 0 else done.stderr[-300:]


_COMPARE = """
import json, sys
from pathlib import Path
from unittest.mock import patch
from rsi_tui import library as room
from rsi_tui.locations import Home
from rsi_tui.techniques.registry import all_techniques
from scripts.bench.kills_library import Hashes

def contents(home, folder):
    from experience.library import open_library
    library = open_library(folder, room.HomeReader(home))
    room.add_technique_cards(library, all_techniques())
    library.search("attention")
    held = library._store.contents(), sorted((name, str(stamp)) for name, stamp in library._vectors.stamps().items())
    library.close()
    return held

home = Home(Path(sys.argv[1]))
with patch("experience.library.MiniLM", Hashes):
    ours, fresh = contents(home, home.library), contents(home, home.root / "fresh")
differs = [table for table in fresh[0] if sorted(map(str, ours[0][table])) != sorted(map(str, fresh[0][table]))]
print(json.dumps({"differs": ", ".join([*differs, *(["vectors"] if ours[1] != fresh[1] else [])])}))
"""


def _overwrite(path: Path) -> None:
    if path.exists():
        with path.open("r+b") as file:
            file.write(os.urandom(20_000))


if __name__ == "__main__":
    with patch("experience.server.MiniLM", Hashes):
        from rsi_tui.library import main

        sys.exit(main())

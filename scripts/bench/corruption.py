"""Is every damage to a journal found, and its place named? Random corruptions of a campaign's journal.

    scripts/bench/corruption.py [--quick] [--json] [--journal FILE] [--seed N]

Flips bits, cuts, removes, repeats and swaps lines, loses the end, rewrites a line with all hashes after it, alters the
note of the newest line; each time the journal is verified against that note, and read as a campaign is read. 1,000
corruptions take about a minute; --quick makes 90. FILE is the journal of a campaign of yours (it is copied); without
it one is written whose figures are invented.

200 more of what lies around the journal of a campaign on a simulated machine: the files it names, the home's own journal,
its end lost together with the note of the newest line; --quick makes 16.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.audit.verify import verify_campaign
from rsi_tui.errors import JournalError
from rsi_tui.journal.anchors import write_anchor
from rsi_tui.journal.chain import JournalWriter, head, read_events, verify
from rsi_tui.journal.events import TrialFinished
from rsi_tui.journal.view import CampaignView, campaign_ids
from rsi_tui.locations import CampaignPaths, Home
from scripts.bench.common import Figure, show
from scripts.bench.mutations import simulated_campaigns
from tests.support.story import story, trial

TRIALS = 300
"""runs in the journal that is written where none is given"""


@dataclass(frozen=True)
class Damage:
    """A damaged journal, and the lines at one of which that has to show."""

    data: bytes
    places: frozenset[int]
    """line numbers from 1; empty when it is the note that was altered"""
    note: bytes | None = None
    """the altered note"""


Corrupt = Callable[[list[bytes], random.Random], Damage]


def flipped_bit(lines: list[bytes], rng: random.Random) -> Damage:
    data = bytearray(b"".join(lines))
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    line = data[:at].count(b"\n") + 1 if at else 1
    return Damage(bytes(data), frozenset({line, line + 1}))


def cut_line(lines: list[bytes], rng: random.Random) -> Damage:
    at = rng.randrange(len(lines))
    kept = rng.randrange(len(lines[at]) - 1)
    return Damage(b"".join([*lines[:at], lines[at][:kept] + b"\n", *lines[at + 1 :]]), frozenset({at + 1}))


def removed_line(lines: list[bytes], rng: random.Random) -> Damage:
    at = rng.randrange(len(lines) - 1)
    return Damage(b"".join(lines[:at] + lines[at + 1 :]), frozenset({at + 1}))


def repeated_line(lines: list[bytes], rng: random.Random) -> Damage:
    at = rng.randrange(len(lines))
    return Damage(b"".join([*lines[: at + 1], *lines[at:]]), frozenset({at + 2}))


def swapped_lines(lines: list[bytes], rng: random.Random) -> Damage:
    first, second = sorted(rng.sample(range(len(lines)), 2))
    changed = list(lines)
    changed[first], changed[second] = changed[second], changed[first]
    return Damage(b"".join(changed), frozenset({first + 1}))


def torn_end(lines: list[bytes], rng: random.Random) -> Damage:
    kept = rng.randrange(1, len(lines[-1]))
    return Damage(b"".join(lines[:-1]) + lines[-1][:kept], frozenset({len(lines)}))


def lost_end(lines: list[bytes], rng: random.Random) -> Damage:
    kept = rng.randrange(max(1, len(lines) - 50), len(lines))
    return Damage(b"".join(lines[:kept]), frozenset({kept + 1}))


def rewritten_line(lines: list[bytes], rng: random.Random) -> Damage:
    """A digit of a line changed, its hash and all after it made anew: only the note of the newest line tells."""
    at = rng.randrange(len(lines))
    while not (digits := [m.start() for m in re.finditer(rb"(?<=[:.\d])\d(?=[\d.,}])", _body(lines[at]))]):
        at = rng.randrange(len(lines))
    start = lines[at].find(b'"body":')
    where = start + rng.choice(digits)
    digit = bytes([48 + (lines[at][where] - 48 + rng.randrange(1, 9)) % 10])
    forged = [*lines[:at], lines[at][:where] + digit + lines[at][where + 1 :], *lines[at + 1 :]]
    return Damage(_hashed_anew(forged, at), frozenset({at + 1, len(lines)}))


def altered_note(lines: list[bytes], rng: random.Random) -> Damage:
    note = bytearray(NOTE[0])
    at = rng.randrange(len(note) - 1)
    note[at] = rng.choice([c for c in b"0123456789abcdefx" if c != note[at]])
    return Damage(b"".join(lines), frozenset(), bytes(note))


KINDS: dict[str, Corrupt] = {
    "a bit flipped": flipped_bit,
    "a line cut short": cut_line,
    "a line removed": removed_line,
    "a line repeated": repeated_line,
    "two lines swapped": swapped_lines,
    "the last line torn": torn_end,
    "the end lost, up to 50 whole lines": lost_end,
    "a line rewritten with all later hashes": rewritten_line,
    "the note of the newest line altered": altered_note,
}
NOTE = [b""]
"""what the note holds of the whole journal"""


def _body(line: bytes) -> bytes:
    return line[line.find(b'"body":') : line.rfind(b',"prev":')]


def _hashed_anew(lines: Sequence[bytes], first: int) -> bytes:
    out = list(lines[:first])
    prev = out[-1][-67:-3] if out else b"0" * 64
    for line in lines[first:]:
        plain = re.sub(rb'"prev":"[0-9a-f]{64}","hash":"[0-9a-f]{64}"}\n$', b'"prev":"' + prev + b'"}', line)
        prev = hashlib.sha256(plain).hexdigest().encode()
        out.append(plain[:-1] + b',"hash":"' + prev + b'"}\n')
    return b"".join(out)


def written(path: Path, anchor: Path) -> None:
    """A finished campaign with some hundred runs more."""
    with JournalWriter.open(path, anchor=anchor) as journal:
        for body in story("20261201-1"):
            journal.append(body)
        for number in range(TRIALS):
            journal.append(TrialFinished(trial=f"t{1000 + number}", facts=trial(1000 + number, "c1", "screen", "candidate", 0.1)))


def measure(folder: Path, source: Path | None, count: int, seed: int, notes: list[str]) -> list[Figure]:
    """The figures; what was not found or not named goes to `notes`."""
    path, anchor = folder / "journal.jsonl", folder / "anchors" / "one"
    if source is None:
        written(path, anchor)
    else:
        shutil.copy(source, path)
        write_anchor(anchor, *head(path))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    NOTE[0] = anchor.read_bytes()
    assert not verify(path, anchor), "the journal is damaged as it is"
    found, named, crashed = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), 0
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        kind = list(KINDS)[number % len(KINDS)]
        damage = KINDS[kind](lines, rng)
        path.write_bytes(damage.data)
        anchor.write_bytes(damage.note or NOTE[0])
        problems, broke = _looked_at(path, anchor)
        crashed += broke
        found[kind] += bool(problems)
        named[kind] += (places := _names(problems, damage))
        if not places:
            notes.append(f"{kind}, seed {seed}, number {number}: {problems[:2]}, expected at line {sorted(damage.places)}")
    each = {kind: len(range(n, count, len(KINDS))) for n, kind in enumerate(KINDS)}
    rows = [
        Figure(kind, found[kind], f"of {each[kind]} found, {named[kind]} with the place", "all", found[kind] == named[kind] == each[kind])
        for kind in KINDS
    ]
    total, placed = sum(found.values()), sum(named.values())
    return [
        Figure("corruptions found", total, f"of {count}", "all", total == count),
        Figure("the place named", placed, f"of {count}", "all", placed == count),
        Figure("crashes of a reader", crashed, "", "0", crashed == 0),
        Figure("lines of the journal", len(lines), "", "", None),
        *rows,
    ]


# --- around the journal -----------------------------------------------------------------------------


def _bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size - 1)])


def _other(path: Path, rng: random.Random) -> None:
    """Another content, packed as it should be."""
    plain = bytearray(gzip.decompress(path.read_bytes()))
    plain[rng.randrange(len(plain))] ^= 1
    path.write_bytes(gzip.compress(bytes(plain)))


def _end(paths: CampaignPaths, rng: random.Random) -> None:
    """Lines after the last that the mirror was told of are known by nothing but the note and the reports."""
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    paths.journal.write_bytes(b"".join(lines[: -rng.randrange(1, 50)]))
    paths.anchor.unlink()
    for report in paths.reports.iterdir():
        report.unlink()


Around = Callable[[Home, CampaignPaths, random.Random], None]
AROUND: dict[str, Around] = {
    "secrets: a bit flipped": lambda home, paths, rng: _bit(next(paths.blobs.iterdir()), rng),
    "secrets: cut": lambda home, paths, rng: _cut(next(paths.blobs.iterdir()), rng),
    "secrets: others": lambda home, paths, rng: _other(next(paths.blobs.iterdir()), rng),
    "secrets: removed": lambda home, paths, rng: next(paths.blobs.iterdir()).unlink(),
    "the home's journal: a bit flipped": lambda home, paths, rng: _bit(home.journal, rng),
    "the home's journal: cut": lambda home, paths, rng: _cut(home.journal, rng),
    "the home's journal: removed": lambda home, paths, rng: home.journal.unlink(),
    "the end lost with its note and all reports": lambda home, paths, rng: _end(paths, rng),
}


def around(folder: Path, count: int, seed: int, notes: list[str]) -> list[Figure]:
    """Damage around a journal: what of it `rsi verify` finds; a bit that changes no content is told apart."""
    simulated_campaigns(folder / "simulated")
    whole = Home(folder / "simulated/home0")
    campaign = campaign_ids(whole)[0]
    before = gzip.decompress(next(whole.campaign(campaign).blobs.iterdir()).read_bytes())
    assert verify_campaign(whole, campaign).follows, "the campaign does not verify as it is"
    found, harmless, crashed = 0, 0, 0
    for number in range(count):
        kind, rng, home = list(AROUND)[number % len(AROUND)], random.Random(seed * 7_000_003 + number), Home(folder / "damaged")
        shutil.copytree(whole.root, home.root, symlinks=True)
        AROUND[kind](home, home.campaign(campaign), rng)
        try:
            caught = not verify_campaign(home, campaign).follows
        except Exception as error:  # noqa: BLE001 - what it must not do, whatever it is
            crashed, caught = crashed + 1, False
            notes.append(f"{kind}, seed {seed}, number {number}: {type(error).__name__}")
        same = kind == "secrets: a bit flipped" and not caught and gzip.decompress(next(home.campaign(campaign).blobs.iterdir()).read_bytes()) == before
        found, harmless = found + caught, harmless + same
        if not caught and not same:
            notes.append(f"{kind}, seed {seed}, number {number}: not found")
        shutil.rmtree(home.root)
    return [
        Figure("around the journal: found", found, f"of {count - harmless}", "all", found == count - harmless),
        Figure("around the journal: bits that hold nothing", harmless, "", "", None),
        Figure("around the journal: crashes", crashed, "", "0", crashed == 0),
    ]


def _looked_at(path: Path, anchor: Path) -> tuple[list[str], bool]:
    """What verification says, and whether a reader ended otherwise than by a view or a sentence."""
    problems = verify(path, anchor)
    try:
        CampaignView().feed_all(read_events(path, anchor))
    except JournalError as error:
        return problems, "\n" in str(error)
    except Exception:  # noqa: BLE001 - what a reader must not do, whatever it is
        return problems, True
    return problems, False


def _names(problems: Sequence[str], damage: Damage) -> bool:
    if not damage.places:
        return any("note" in problem or "line" in problem for problem in problems)
    first = re.match(r"line (\d+)", problems[0]) if problems else None
    return first is not None and int(first[1]) in damage.places


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rsi-corruption-") as folder:
        notes = ["--quick made 90 corruptions of 1,000, 16 of 200 around the journal"] if args.quick else []
        figures = measure(Path(folder), args.journal, 90 if args.quick else 1000, args.seed, notes)
        figures += around(Path(folder), 16 if args.quick else 200, args.seed, notes)
    return show("corruption", figures, args.json, notes)


if __name__ == "__main__":
    sys.exit(main())

"""Measures many candidates of a bundled workload, as a surface that policies of search can be compared on. Real runs.

    scripts/bench/collect_surface.py WORKLOAD [--candidates 400] [--minutes M] [--home DIR] [--out FILE] [--quick]

A candidate is a set of techniques that change code, and a value for every knob. Candidates come in batches of five
with two runs of a reference (the stack of headroom.py, whose runs scatter less than the original's), in random order
under the machine's lease; a candidate's log-ratio is to the reference's runs of its own batch. First every technique
and every knob value alone and the reference without each of its parts, then random sets, then neighbours and crossings of the best so far, so that the pool holds
good stacks as well as what runs out of memory; at last the best twenty four times more. Every batch is written to a
Parquet file (a row a run, what the space is in its metadata) before the next begins: killed at any time, it goes on
from the file. Runs are short; what a candidate costs is the wall time of its run, failed or not.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.contract.model import KnobValue
from rsi_tui.contract.rules import violations
from rsi_tui.errors import PatchError
from rsi_tui.evaluator.trial import TrialRunner
from rsi_tui.journal.facts import TrialFacts
from rsi_tui.launch.lease import host_lease
from rsi_tui.loop.context import Context
from rsi_tui.techniques.base import Change, Situation, Technique
from rsi_tui.techniques.registry import all_techniques
from scripts.bench.common import machine
from scripts.bench.headroom import STACKS
from scripts.bench.stacked import candidate, look, opened, runner, situation

WORKLOADS = ("dense_single", "moe_single", "dense_multi", "moe_multi")
STEPS = {"dense_single": (8, 3), "moe_single": (10, 3), "dense_multi": (6, 2), "moe_multi": (6, 2)}
"""updates of a run, and how many of those are warm-up"""
PRESET = """
[preset.surface.objective]
steps = [{0}, 60]
warmup = {1}

[preset.surface.proof]
canaries = false
red_team = false
"""
BATCH, REFERENCES = 5, 2
RANDOM_SHARE, BEST, REPEATS = 0.45, 20, 5
COMPILED = ("torch-compile", "regional-compile", "compile-max-autotune")
RARELY = 0.03
"""share of sets that compile: such a run takes a minute on two cores"""
FOLDER = Path(__file__).parent / "surfaces"


@dataclass(frozen=True, order=True)
class Point:
    """A place in the space: techniques in registry order, a value for every knob in the contract's order."""

    techniques: tuple[str, ...]
    knobs: tuple[KnobValue, ...]


@dataclass(frozen=True)
class Run:
    """One row: a run of a point, or of the reference."""

    point: int
    """number of the point, from 0; -1 for the reference"""
    techniques: list[str]
    knobs: str
    """JSON, every knob with its value"""
    batch: int
    place: int
    """in the order of its batch"""
    outcome: str
    cause: str
    step_s: float | None
    score_s: float | None
    """step time with what start and end of the program cost, spread over the whole training"""
    log_ratio: float | None
    """of score_s, to the mean of the reference's runs in this batch; null for a run without a time"""
    peak_bytes: int | None
    requested_bytes: int | None
    """what an out-of-memory error had asked for, where printed"""
    wall_s: float
    foreign_load: float
    started_at: str


class Space:
    """What may be combined for one workload."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.here: Situation = situation(ctx, None)
        self.knobs = ctx.usable.knobs
        self.defaults = tuple(knob.default for knob in self.knobs)
        self._settled: dict[tuple[Any, ...], tuple[Point, Change] | None] = {}
        self.needs: dict[str, list[str]] = {}
        """techniques that find something to change only after one of those"""
        alone = [t for t in all_techniques() if t.apply(self.here).sources]
        found = {t.id: t for t in alone}
        for first in alone:
            after = replace(self.here, sources={**self.here.sources, **first.apply(self.here).sources})
            for other in all_techniques():
                if other.id not in {t.id for t in alone} and other.apply(after).sources:
                    found[other.id] = other
                    self.needs.setdefault(other.id, []).append(first.id)
        self.techniques: tuple[Technique, ...] = tuple(t for t in all_techniques() if t.id in found)

    def named(self, values: Sequence[KnobValue]) -> dict[str, KnobValue]:
        return {knob.name: value for knob, value in zip(self.knobs, values, strict=True)}

    def allowed(self, values: Sequence[KnobValue]) -> bool:
        return not violations(self.ctx.usable, self.named(values))

    def settle(self, wanted: Mapping[str, float], values: Sequence[KnobValue]) -> tuple[Point, Change] | None:
        """The point with the wanted techniques, those with a smaller number first where two exclude each other; what
        finds nothing to change is left out. None where the rules forbid the knobs."""
        key = (tuple(sorted(wanted.items())), tuple(values))
        if key not in self._settled:
            self._settled[key] = self._settle(wanted, values) if self.allowed(values) else None
        return self._settled[key]

    def _settle(self, wanted: Mapping[str, float], values: Sequence[KnobValue]) -> tuple[Point, Change]:
        kept: list[Technique] = []
        for technique in sorted((t for t in self.techniques if t.id in wanted), key=lambda t: wanted[t.id]):
            if not any(technique.id in k.conflicts or k.id in technique.conflicts for k in kept):
                kept.append(technique)
        now, done = replace(self.here, knobs={**self.here.knobs, **self.named(values)}), []
        sources: dict[str, str] = {}
        for technique in (t for t in self.techniques if t in kept):
            change = technique.apply(replace(now, sources={**self.here.sources, **sources}))
            if change.sources:
                sources |= change.sources
                done.append(technique.id)
        return Point(tuple(done), tuple(values)), Change(sources, self.named(values))

    def metadata(self, workload: str) -> dict[str, Any]:
        """What the space is, for whoever searches it without the workload."""
        effects = {t.id: asdict(t.predict(self.here)) for t in self.techniques if t.id not in self.needs}
        return {
            "workload": workload, "machine": machine(), "steps": STEPS[workload],
            "memory_limit_bytes": self.ctx.contract.launch.memory_limit_bytes,
            "amortise_over": self.ctx.contract.objective.amortise_over,
            "techniques": [{"id": t.id, "layer": t.layer, "conflicts": list(t.conflicts), "needs": self.needs.get(t.id, []),
                            "predicted": effects.get(t.id)} for t in self.techniques],
            "knobs": [{"name": k.name, "values": list(k.values), "default": k.default, "layer": k.layer} for k in self.knobs],
            "rules": list(self.ctx.contract.rules),
            "reference": "the stack of headroom.py",
            "how": f"{BATCH} candidates and {REFERENCES} runs of the reference a batch, in random order, nothing else at work",
        }  # fmt: skip


def alone(space: Space) -> Iterator[tuple[dict[str, float], tuple[KnobValue, ...]]]:
    """The original, every technique alone (with what it needs), every knob value alone."""
    yield {}, space.defaults
    for technique in space.techniques:
        yield {technique.id: 0.0, **dict.fromkeys(space.needs.get(technique.id, [])[:1], 1.0)}, space.defaults
    for at, knob in enumerate(space.knobs):
        for value in knob.values:
            if value != knob.default:
                yield {}, (*space.defaults[:at], value, *space.defaults[at + 1 :])


def drawn(space: Space, rng: random.Random) -> tuple[dict[str, float], tuple[KnobValue, ...]]:
    """A random set: few techniques or many, and knobs that differ from the defaults as often."""
    share = rng.uniform(0.1, 0.8)
    wanted = {t.id: rng.random() for t in space.techniques if rng.random() < (RARELY if t.id in COMPILED else share)}
    return wanted, tuple(rng.choice(k.values) if rng.random() < share else k.default for k in space.knobs)


def bred(space: Space, best: Sequence[Point], rng: random.Random) -> tuple[dict[str, float], tuple[KnobValue, ...]]:
    """A neighbour of a good point (one to three changes), or what two of them have."""
    one, two = rng.choice(best), rng.choice(best)
    techniques, values = set(one.techniques), list(one.knobs)
    if rng.random() < 0.4:
        techniques = {t.id for t in space.techniques if t.id in (one if rng.random() < 0.5 else two).techniques}
        values = [rng.choice(pair) for pair in zip(one.knobs, two.knobs, strict=True)]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            flipped = rng.choice([t.id for t in space.techniques if t.id not in COMPILED or rng.random() < RARELY])
            techniques ^= {flipped}
        else:
            at = rng.randrange(len(space.knobs))
            values[at] = rng.choice(space.knobs[at].values)
    return {name: rng.random() for name in sorted(techniques)}, tuple(values)


class Collector:
    """Chooses, builds, runs, writes; all it knows is in the file."""

    def __init__(self, workload: str, ctx: Context, out: Path, wanted: int) -> None:
        self.space, self.out, self.wanted, self.workload = Space(ctx), out, wanted, workload
        self.trials: TrialRunner = runner(ctx)
        self.runs: list[Run] = read(out)[0] if out.exists() else []
        stack = STACKS[workload]
        values = tuple({**self.space.named(self.space.defaults), **stack.knobs}[k.name] for k in self.space.knobs)
        settled = self.space.settle(dict.fromkeys(stack.techniques, 0.0), values)
        if settled is None or set(settled[0].techniques) != set(stack.techniques):
            raise PatchError(f"the reference of {workload} can't be built: {settled and settled[0].techniques}")
        self.reference = settled

    @property
    def points(self) -> dict[int, Point]:
        return {
            run.point: Point(tuple(run.techniques), tuple(json.loads(run.knobs)[k.name] for k in self.space.knobs))
            for run in self.runs
            if run.point >= 0
        }

    def next_batch(self) -> list[tuple[int, Point, Change]]:
        """What to run next, [] when all is measured; the same again when asked again of the same file."""
        known = self.points
        if len(known) >= self.wanted:
            return self._repeats(known)
        batch: list[tuple[int, Point, Change]] = []
        seen, rng = set(known.values()), random.Random(f"{self.workload} {len(known)}")
        singles = [*alone(self.space), *self._known_stack()]
        best = self._best(known, 2 * BEST)
        while len(batch) < min(BATCH, self.wanted - len(known)):
            number = len(known) + len(batch)
            wanted, values = singles.pop(0) if singles else (
                drawn(self.space, rng) if number < RANDOM_SHARE * self.wanted or not best else bred(self.space, best, rng)
            )  # fmt: skip
            settled = self.space.settle(wanted, values)
            if settled is not None and settled[0] not in seen:
                seen.add(settled[0])
                batch.append((number, *settled))
        return batch

    def _known_stack(self) -> Iterator[tuple[dict[str, float], tuple[KnobValue, ...]]]:
        """The reference, and the reference without each of its techniques and settings."""
        point = self.reference[0]
        for left_out in ("", *point.techniques):
            yield {name: 0.0 for name in point.techniques if name != left_out}, point.knobs
        for at, (value, default) in enumerate(zip(point.knobs, self.space.defaults, strict=True)):
            if value != default:
                yield dict.fromkeys(point.techniques, 0.0), (*point.knobs[:at], default, *point.knobs[at + 1 :])

    def _best(self, known: Mapping[int, Point], count: int) -> list[Point]:
        ratios = self.ratios()
        return [known[number] for number in sorted(ratios, key=lambda n: statistics.fmean(ratios[n]))[:count]]

    def ratios(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for run in self.runs:
            if run.point >= 0 and run.log_ratio is not None:
                found.setdefault(run.point, []).append(run.log_ratio)
        return found

    def _repeats(self, known: Mapping[int, Point]) -> list[tuple[int, Point, Change]]:
        """Of the points that were best in their first runs, those with the fewest runs."""
        first = {number: found[0] for number, found in self.ratios().items()}
        chosen = sorted(first, key=lambda number: first[number])[:BEST]
        counts = {n: sum(run.point == n for run in self.runs) for n in chosen}
        due = sorted((n for n in chosen if counts[n] < REPEATS), key=lambda n: (counts[n], n))[:BATCH]
        settled = [(n, self.space.settle(dict.fromkeys(known[n].techniques, 0.0), known[n].knobs)) for n in due]
        return [(n, *found) for n, found in settled if found is not None]

    def measure(self, batch: Sequence[tuple[int, Point, Change]]) -> None:
        number = 1 + max((run.batch for run in self.runs), default=-1)
        ctx = self.space.ctx
        built = [(at, point, candidate(ctx, f"s{at}", change, point.techniques)) for at, point, change in batch]
        point, change = self.reference
        built += [(-1, point, candidate(ctx, "reference", change, point.techniques))] * REFERENCES
        random.Random(f"{self.workload} order {number}").shuffle(built)
        with host_lease(f"the surface of {self.workload}"):
            done = [(at, point, look(self.trials, c, STEPS[self.workload][0], 1 + number).facts) for at, point, c in built]
        scores = [facts.score_s for at, _, facts in done if at < 0 and facts.score_s is not None]
        if not scores:
            raise SystemExit(f"the reference does not run: {[f.detail for at, _, f in done if at < 0]}")
        base = statistics.fmean(math.log(score) for score in scores)
        self.runs += [self._row(at, point, facts, number, place, base) for place, (at, point, facts) in enumerate(done)]
        write(self.out, self.runs, self.space.metadata(self.workload))

    def _row(self, at: int, point: Point, facts: TrialFacts, batch: int, place: int, base: float) -> Run:
        return Run(
            at, list(point.techniques), json.dumps(self.space.named(point.knobs)), batch, place, facts.outcome, facts.cause, facts.step_s,
            facts.score_s, None if facts.score_s is None else math.log(facts.score_s) - base, facts.peak_bytes, facts.requested_bytes,
            facts.wall_s, facts.foreign_load, facts.started_at,
        )  # fmt: skip


def write(path: Path, runs: Sequence[Run], metadata: Mapping[str, Any]) -> None:
    """The whole file again, in place at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"point": pa.int32(), "techniques": pa.list_(pa.string()), "batch": pa.int32(), "place": pa.int32(),
             "step_s": pa.float64(), "score_s": pa.float64(), "log_ratio": pa.float64(), "peak_bytes": pa.int64(),
             "requested_bytes": pa.int64(), "wall_s": pa.float64(), "foreign_load": pa.float64()}  # fmt: skip
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in Run.__dataclass_fields__])
    table = pa.Table.from_pylist([asdict(run) for run in runs], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    pq.write_table(table.replace_schema_metadata({"surface": json.dumps(metadata)}), fresh)
    fresh.replace(path)


def read(path: Path) -> tuple[list[Run], dict[str, Any]]:
    """(runs in the order in which they were written, what the space is)."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return [Run(**row) for row in table.to_pylist()], json.loads(table.schema.metadata[b"surface"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no batch after so long")
    parser.add_argument("--home", type=Path, help="keep the workload's mirror and journal here")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one batch, written nowhere that is kept")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rsi-surface-") as scratch:
        folder = args.home or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        out = Path(scratch) / "quick.parquet" if args.quick else args.out or FOLDER / f"{args.workload}.parquet"
        campaign = opened(args.workload, folder, PRESET.format(*STEPS[args.workload]), "surface")
        try:
            collector = Collector(args.workload, campaign.context, out, args.candidates)
            print(f"{len(collector.space.techniques)} techniques, {len(collector.space.knobs)} knobs", flush=True)
            while (batch := collector.next_batch()) and time.monotonic() - began < 60 * args.minutes:
                collector.measure(batch)
                done, ratios = len(collector.points), collector.ratios()
                failed = done - len(ratios)
                fastest = min((statistics.fmean(found) for found in ratios.values()), default=math.nan)
                print(f"{time.monotonic() - began:7.0f} s  {done} candidates, {failed} without a time, {len(collector.runs)} runs; "
                      f"the fastest takes {math.exp(fastest):.3f} of the reference's time", flush=True)  # fmt: skip
                if args.quick:
                    break
        finally:
            campaign.context.evaluator.close(finished=False)
            campaign.writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

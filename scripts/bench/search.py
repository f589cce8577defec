"""How much trial time does each policy of search need to find a candidate as good as the best? Replay on surfaces.

    scripts/bench/search.py [--surface NAME ...] [--seeds 20] [--trials 150] [--policy NAME ...] [--quick] [--json]

Surfaces are pools of measured candidates (collect_surface.py) or synthetic. Every policy has the same pool, seeds and
noise, and pays for failed trials as well. A policy is done when it has measured a candidate whose true time is within
5 % of the pool's best; the figure is the trial time until then, as a median over seeds with its 90 % interval, and the
trials out of memory on the way. A seed that does not get there within the budget counts with all that it spent.
--quick runs three seeds on one synthetic surface.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.bench.collect_surface import WORKLOADS
from scripts.bench.common import Figure, show
from scripts.bench.search_policies import POLICIES, Policy, Rsi
from scripts.bench.search_surfaces import Surface, misled, recorded, synthetic

NEAR = math.log(1.05)


@dataclass(frozen=True)
class Course:
    """What one seed of a policy came to."""

    seconds: float
    """of trial time until a candidate within 5 % of the best was measured, or all that was spent"""
    trials: int
    ooms: int
    arrived: bool
    thinking_s: float
    """longest that one choice took"""


def course(surface: Surface, make: Callable[[Surface, int], Policy], seed: int, trials: int) -> Course:
    """Let a policy choose until it arrives or its trials are used up."""
    policy, rng = make(surface, seed), random.Random(f"{surface.name} {seed}")
    left = list(range(len(surface.pool)))
    spent, ooms, longest = 0.0, 0, 0.0
    for number in range(1, min(trials, len(left)) + 1):
        began = time.perf_counter()
        chosen = policy.ask(left)
        longest = max(longest, time.perf_counter() - began)
        left.remove(chosen)
        found = surface.pool[chosen]
        policy.tell(chosen, surface.told(chosen, rng))
        spent += found.cost_s
        ooms += found.outcome == "oom"
        if found.outcome == "ok" and found.log_time is not None and found.log_time <= surface.best + NEAR:
            return Course(spent, number, ooms, True, longest)
    return Course(spent, trials, ooms, False, longest)


def interval(values: list[float], rng: random.Random) -> tuple[float, float]:
    """90 % bootstrap interval of the median."""
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(1000))
    return medians[50], medians[949]


def compare(surface: Surface, names: list[str], seeds: int, trials: int, say: Callable[[str], None]) -> dict[str, list[Course]]:
    found: dict[str, list[Course]] = {}
    for name in names:
        make = (lambda s, seed: Rsi(s, seed, misled(s))) if name == "rsi, predictions turned round" else POLICIES[name]
        found[name] = [course(surface, make, seed, trials) for seed in range(seeds)]
        courses = found[name]
        low, high = interval([c.seconds for c in courses], random.Random(0))
        say(f"{surface.name:14} {name:30} {statistics.median(c.seconds for c in courses):8.0f} s ({low:.0f} to {high:.0f})  "
            f"{statistics.median(c.trials for c in courses):5.0f} trials, {statistics.fmean(c.ooms for c in courses):5.1f} out of memory, "
            f"{sum(c.arrived for c in courses)} of {seeds} arrived, a choice at most {max(c.thinking_s for c in courses):.2f} s")  # fmt: skip
    return found


def figures(results: dict[str, dict[str, list[Course]]]) -> list[Figure]:
    rows, shares = [], []
    for surface, found in results.items():
        for name, courses in found.items():
            low, high = interval([c.seconds for c in courses], random.Random(0))
            middle = statistics.median(c.seconds for c in courses)
            ooms = statistics.fmean(c.ooms for c in courses)
            arrived = sum(c.arrived for c in courses)
            rows.append(Figure(f"{surface}: {name}", middle, f"s ({low:.0f} to {high:.0f}), {ooms:.1f} out of memory, {arrived} of {len(courses)} arrived", "", None))
        peers = {n: c for n, c in found.items() if not n.startswith("rsi")}
        if "rsi" in found and peers:
            best = min(peers, key=lambda n: statistics.median(c.seconds for c in peers[n]))
            share = statistics.median(c.seconds for c in found["rsi"]) / statistics.median(c.seconds for c in peers[best])
            shares.append(share)
            rows.append(Figure(f"{surface}: rsi over the best peer ({best})", share, "of its trial time", "at most 0.9", share <= 0.9))
            ooms = statistics.fmean(c.ooms for c in found["rsi"]) / max(1e-9, statistics.fmean(c.ooms for c in peers[best]))
            rows.append(Figure(f"{surface}: trials out of memory over the best peer's", ooms, "", "at most 0.33", ooms <= 1 / 3))
    if shares:
        mean = math.exp(statistics.fmean(math.log(share) for share in shares))
        rows.insert(0, Figure("rsi over the best peer, geometric mean over surfaces", mean, "of its trial time", "at most 0.5", mean <= 0.5))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surface", nargs="*", default=[*WORKLOADS], help="a bundled workload, or synthetic-N")
    parser.add_argument("--policy", nargs="*", default=[*POLICIES])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    notes = []
    names, seeds, trials = (["synthetic-0"], 3, 60) if args.quick else (args.surface, args.seeds, args.trials)
    results = {}
    for name in names:
        surface = synthetic(int(name.rpartition("-")[2])) if name.startswith("synthetic") else recorded(name)
        if surface is None:
            notes.append(f"no surface of {name} is recorded; collect_surface.py {name} makes it")
            continue
        notes.append(f"{surface.name}: {len(surface.pool)} candidates; {surface.how}")
        results[surface.name] = compare(surface, args.policy, seeds, trials, lambda text: print(text, file=sys.stderr, flush=True))
    if args.quick:
        notes.append("--quick left out the recorded surfaces and most seeds")
    return show("search", figures(results), args.json, notes)


if __name__ == "__main__":
    sys.exit(main())

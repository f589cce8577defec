"""Error rates and power of the measuring procedure, by simulation of the very code that decides.

    scripts/bench/measurement.py [--quick] [--json]

Prints one line a figure, or one JSON document. --quick simulates fewer campaigns and stays under a minute; all takes
some ten minutes of one core. An error rate is shown with an upper 95 % bound (Clopper and Pearson) of what it can be
after so many simulations; it is missed when even the lower one is above its limit. Unless said otherwise the
world is CV 2 %, AR(1) drift of the same size, 2 % of all runs slowed 1.5 to 2.5 times.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import special

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.evaluator.claim import eliminate, fewest_blocks, hodges_lehmann, mean_total_ratio, simultaneous
from rsi_tui.evaluator.eprocess import EProcess, draw_order
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.slow_runs import judge_slow_runs
from rsi_tui.evaluator.speedup import speedup_interval
from scripts.bench.common import Figure, show
from scripts.bench.simulation import (
    INCUMBENT,
    MARGIN,
    Machine,
    Program,
    World,
    calibrate,
    campaign,
    claimed_pairs,
    left_out,
    verify,
)

SEED = 3
BOUNDARY = -math.log1p(-MARGIN)
"""log gain of the worst null: as fast as the margin allows"""
SHARE = campaign_alpha(1) / 40
"""error probability of one verification of a first campaign"""
BROKEN = {
    "candidate three times as noisy": World(candidate_noise=3.0),
    "candidate a third as noisy": World(candidate_noise=1 / 3),
    "incumbent's noise skewed": World(skew=0.9),
    "carry-over of 1 %": World(carry_over=0.01),
}
"""worlds that break the assumptions of the e-process"""


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, round(value, 4), unit, f"at most {limit}", value <= limit)


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, round(value, 4), unit, f"at least {limit}", value >= limit)


def told(name: str, value: float, unit: str) -> Figure:
    """A figure without a target."""
    return Figure(name, round(value, 4), unit, "", None)


def rate(name: str, count: int, of: int, limit: float) -> Figure:
    """An error rate with its upper 95 % bound; missed when it is above its limit beyond what chance explains."""
    lower = float(special.betaincinv(count, of - count + 1, 0.05)) if count else 0.0
    upper = float(special.betaincinv(count + 1, of - count, 0.95)) if count < of else 1.0
    return Figure(name, round(count / of, 4), f"of {of}, at most {upper:.4f}", f"at most {limit}", lower <= limit)


def share(name: str, count: int, of: int, limit: float) -> Figure:
    """A rate of success; missed when it is below its limit beyond what chance explains."""
    upper = float(special.betaincinv(count + 1, of - count, 0.95)) if count < of else 1.0
    return Figure(name, round(count / of, 4), f"of {of}", f"at least {limit}", upper >= limit)


def machine(world: World, *key: int) -> Machine:
    return Machine(world, np.random.default_rng([SEED, *key]))


def logs(candidate: list[float], baseline: list[float]) -> list[float]:
    return [math.log(c / b) for c, b in zip(candidate, baseline, strict=True)]


def nulls(world: World, name: str, key: int, campaigns: int, limit: float) -> list[Figure]:
    """Family-wise false adoption over 200 candidates at the boundary of the null."""
    ended = [campaign(machine(world, 1, key, i), [Program(BOUNDARY)] * 200) for i in range(campaigns)]
    false = sum(bool(e.adopted) for e in ended)
    return [rate(f"false adoption over 200 nulls at the margin, {name}", false, campaigns, limit)]


def cost(campaigns: int) -> list[Figure]:
    """Runs for 200 candidates that change nothing."""
    ended = [campaign(machine(World(), 2, i), [Program()] * 200) for i in range(campaigns)]
    false = sum(bool(e.adopted) for e in ended)
    return [
        rate("false adoption over 200 candidates that change nothing", false, campaigns, 0.01),
        at_most("runs for 200 nulls", float(np.mean([e.runs for e in ended])), "runs", 900),
    ]


def power(gain: float, cv: float, repeats: int, limit: float | None) -> list[Figure]:
    """Screening, verification and endurance together, among three nulls."""
    programs = [Program(-math.log1p(-gain)), Program(), Program(), Program()]
    key = (round(gain * 1e3), round(cv * 1e3))
    ended = [campaign(machine(World(cv=cv), 3, *key, i), programs) for i in range(repeats)]
    found, name = sum(0 in e.adopted for e in ended), f"power at a true {gain:.0%}, CV {cv:.0%}"
    if limit is None:
        return [told(name, found / repeats, f"of {repeats}")]
    further = [runs for e in ended for runs in e.endurance_runs]
    return [share(name, found, repeats, limit),
            told(f"endurance runs of a proven candidate at a true {gain:.0%}", float(np.mean(further)), "runs")]


def mean_evalue(world: World, name: str, repeats: int) -> list[Figure]:
    """Expectation of one block's e-value at the boundary; 1 where the assumptions hold."""
    total = []
    for i in range(repeats):
        host = machine(world, 4, i)
        order = draw_order(3, lambda below, host=host: int(host.rng.integers(below)))  # type: ignore[misc]
        host.run()
        times = [host.run(Program(BOUNDARY) if arm == "B" else INCUMBENT) for arm in order]
        total.append(EProcess(0.01, 1.15 * math.sqrt(2) * world.cv, MARGIN, 0.05).add_block(order, times))
    mean, error = float(np.mean(total)), float(np.std(total) / math.sqrt(repeats))
    return [told(f"mean e-value of a block, {name}", mean, f"+- {error:.3f}")]


def disasters(repeats: int) -> list[Figure]:
    """Nine runs 10 % faster, one three times slower, in turn or at random: adopted, and still there after the claim."""
    gain = -math.log1p(-0.1)
    found = []
    for number, (how, program) in enumerate({
        "in turn": Program(gain, disaster_every=10),
        "at random": Program(gain, disaster_rate=0.1),
    }.items()):
        ended = [_disaster(machine(World(), 5, number, i), program, i) for i in range(repeats)]
        screened = [campaign(machine(World(), 7, number, i), [program, *[Program()] * 3]) for i in range(repeats)]
        found += [
            rate(f"rare disaster adopted by a verification, one run in ten {how}", sum(a for a, _ in ended), repeats, 0.05),
            rate(f"rare disaster adopted by a campaign, {how}", sum(0 in e.adopted for e in screened), repeats, 0.05),
            rate(f"rare disaster claimed after the verification, {how}", sum(c for _, c in ended), repeats, 0.05),
        ]
    return found


def _disaster(host: Machine, program: Program, phase: int) -> tuple[bool, bool]:
    for _ in range(phase % 10):
        host.run(program)
    result = verify(host, program, SHARE, calibrate(host).scale, -program.gain)
    if not result.adopted:
        return False, False
    candidate, baseline = claimed_pairs(host, program)
    ours, theirs = [*result.candidate_times, *candidate], [*result.incumbent_times, *baseline]
    slow = judge_slow_runs([*ours, *result.endurance_times], theirs).decision == "refuted"
    wins = mean_total_ratio(ours, theirs) < 1 and hodges_lehmann(logs(candidate, baseline)).low > 1
    return True, wins and not slow


def intervals(repeats: int) -> list[Figure]:
    """The interval of a verification, however it stopped: coverage, and what a person sees of it."""
    found = []
    for gain in (0.0, 0.05, 0.10):
        shown, adopted = [], []
        truth = -math.log1p(-gain)
        for i in range(repeats):
            host = machine(World(), 8, round(gain * 100), i)
            scale = calibrate(host).scale
            result = verify(host, Program(truth), SHARE, scale, -truth + scale * float(host.rng.standard_normal()) / 1.5)
            interval = speedup_interval(result.blocks, scale)
            if interval is None:
                continue
            shown.append(interval.low <= math.exp(truth) <= interval.high)
            if result.adopted:
                adopted.append((shown[-1], math.log(interval.high / interval.low) * 50, interval.low > 1))
        found.append(rate(f"99 % interval of a verification misses a true {gain:.0%}", shown.count(False), repeats, 0.01))
        found.append(told(f"verifications with an interval at a true {gain:.0%}", len(shown) / repeats, f"of {repeats}"))
        if adopted:
            covered, half_width, above = (float(x) for x in np.mean(adopted, axis=0))
            found += [told(f"coverage among the adopted, true {gain:.0%}", covered, f"of {len(adopted)}"),
                      told(f"interval above 1 among the adopted, true {gain:.0%}", above, f"of {len(adopted)}"),
                      told(f"its half width, true {gain:.0%}", half_width, "points")]
    return found


def claims(repeats: int) -> list[Figure]:
    """Coverage and bias of the claim on fresh pairs."""
    gain = -math.log1p(-0.1)
    estimates, covered = [], 0
    for i in range(repeats):
        interval = hodges_lehmann(logs(*claimed_pairs(machine(World(), 6, i), Program(gain))))
        estimates.append(-math.log(interval.estimate))
        covered += interval.low <= math.exp(gain) <= interval.high
    bias = abs(float(np.mean([-math.expm1(e) for e in estimates])) - 0.1) * 100
    return [rate("99 % interval of the claim misses a true 10 %, 16 pairs", repeats - covered, repeats, 0.01),
            at_most("bias of the claim at a true 10 %", bias, "points", 0.5)]


def leave_one_out(repeats: int) -> list[Figure]:
    """Four members worth 0, 3, 5 and 10 %: intervals that hold together, and what they prove."""
    worth = {f"{gain:.0%}": -math.log1p(-gain) for gain in (0.0, 0.03, 0.05, 0.10)}
    found = []
    for blocks in (fewest_blocks(len(worth)), 16):
        missed, proven, dropped = 0, dict.fromkeys(worth, 0), 0
        for i in range(repeats):
            ends = simultaneous(left_out(machine(World(), 9, blocks, i), worth, blocks))
            missed += any(not ends[name].low <= math.exp(log) <= ends[name].high for name, log in worth.items())
            dropped += eliminate(ends) == "0%"
            proven = {name: count + (ends[name].low > 1) for name, count in proven.items()}
        found += [rate(f"leave-one-out, {blocks} blocks of 5: some interval misses", missed, repeats, 0.05),
                  told(f"leave-one-out, {blocks} blocks: the useless member is dropped first", dropped / repeats, ""),
                  *(told(f"leave-one-out, {blocks} blocks: a member worth {name} is proven", count / repeats, "")
                    for name, count in proven.items())]
    return found


def figures(quick: bool) -> list[Figure]:
    def some(full: int) -> int:
        return max(20, full // 20) if quick else full

    parts: list[Callable[[], list[Figure]]] = [
        lambda: nulls(World(), "CV 2 %", 0, some(600), 0.01),
        lambda: cost(some(400)),
        lambda: power(0.05, 0.02, some(3000), 0.75),
        lambda: power(0.10, 0.02, some(3000), 0.93),
        lambda: power(0.05, 0.01, some(1000), None),
        lambda: power(0.02, 0.01, some(1000), None),
        lambda: power(0.10, 0.05, some(1000), None),
        *(lambda w=w, n=n, k=k: nulls(w, n, k, some(300), 0.02) for k, (n, w) in enumerate(BROKEN.items(), 1)),
        *(lambda w=w, n=n: mean_evalue(w, n, some(20_000)) for n, w in {"CV 2 %": World(), **BROKEN}.items()),
        lambda: disasters(some(2000)),
        lambda: intervals(some(1500)),
        lambda: claims(some(4000)),
        lambda: leave_one_out(some(1000)),
    ]
    return [figure for part in parts for figure in part()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the simulations")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    notes = ("quick: a twentieth of the simulations; small error rates are bounded, not resolved",) if options.quick else ()
    return show("measurement", figures(options.quick), options.json, notes)


if __name__ == "__main__":
    raise SystemExit(main())

"""Error rates and power of the measuring procedure, by simulation of the very code that decides.

    scripts/bench/measurement.py [--quick] [--json]

Prints one line a figure, or one JSON document. --quick simulates fewer campaigns and stays under a minute.
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

from rsi_tui.evaluator.claim import hodges_lehmann, mean_total_ratio
from rsi_tui.evaluator.eprocess import EProcess, draw_order
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.noise import pair_scale
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
    verify,
)

SEED = 3
BOUNDARY = -math.log1p(-MARGIN)
"""log gain of the worst null: as fast as the margin allows"""


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, round(value, 4), unit, f"at most {limit}", value <= limit)


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, round(value, 4), unit, f"at least {limit}", value >= limit)


def rate(name: str, count: int, of: int, limit: float) -> Figure:
    """An error rate; missed when it is above its limit beyond what chance explains (lower 95 % bound)."""
    lower = float(special.betaincinv(count, of - count + 1, 0.05)) if count else 0.0
    return Figure(name, round(count / of, 4), f"of {of}", f"at most {limit}", lower <= limit)


def machine(world: World, *key: int) -> Machine:
    return Machine(world, np.random.default_rng([SEED, *key]))


def nulls(world: World, name: str, campaigns: int, limit: float) -> list[Figure]:
    """Family-wise false adoption over 200 candidates at the boundary of the null, and what they cost."""
    ended = [campaign(machine(world, 1, i), [Program(BOUNDARY)] * 200) for i in range(campaigns)]
    false = sum(bool(e.adopted) for e in ended)
    return [rate(f"false adoption over 200 nulls at the margin, {name}", false, campaigns, limit)]


def cost(campaigns: int) -> list[Figure]:
    """Runs for 200 candidates that change nothing."""
    ended = [campaign(machine(World(), 2, i), [Program()] * 200) for i in range(campaigns)]
    return [
        rate("false adoption over 200 candidates that change nothing, CV 2 %",
             sum(bool(e.adopted) for e in ended), campaigns, 0.01),
        at_most("runs for 200 nulls, CV 2 %", float(np.mean([e.runs for e in ended])), "runs", 900),
    ]


def power(gain: float, repeats: int, limit: float) -> list[Figure]:
    """Screening and verification together, among three nulls."""
    programs = [Program(-math.log1p(-gain)), Program(), Program(), Program()]
    found = sum(0 in campaign(machine(World(), 3, round(gain * 1e3), i), programs).adopted for i in range(repeats))
    return [at_least(f"power at a true {gain:.0%}, CV 2 %", found / repeats, "probability", limit)]


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
    return [Figure(f"mean e-value of a block, {name}", round(mean, 4), "", "", None),
            Figure(f"its standard error, {name}", round(error, 4), "", "", None)]


def disasters(repeats: int) -> list[Figure]:
    """Nine runs 10 % faster, one three times slower, in turn or at random: adopted, and still there after the claim."""
    gain = -math.log1p(-0.1)
    found = []
    for number, (how, program) in enumerate({
        "one run in ten, in turn": Program(gain, disaster_every=10),
        "one run in ten, at random": Program(gain, disaster_rate=0.1),
    }.items()):
        ended = [_disaster(machine(World(), 5, number, i), program, i) for i in range(repeats)]
        found += [
            rate(f"rare disaster adopted by a verification, {how}", sum(a for a, _ in ended), repeats, 0.05),
            rate(f"rare disaster proven by verification and claim, {how}", sum(c for _, c in ended), repeats, 0.05),
        ]
    return found


def _disaster(host: Machine, program: Program, phase: int) -> tuple[bool, bool]:
    for _ in range(phase % 10):
        host.run(program)
    result = verify(host, program, campaign_alpha(1) / 40, pair_scale(calibrate(host)), -program.gain)
    if not result.adopted:
        return False, False
    candidate, baseline = claimed_pairs(host, program)
    totals = mean_total_ratio([*result.candidate_times, *candidate], [*result.incumbent_times, *baseline])
    ratios = [math.log(c / b) for c, b in zip(candidate, baseline, strict=True)]
    return True, totals < 1 and hodges_lehmann(ratios).low > 1


def claims(repeats: int) -> list[Figure]:
    """Coverage and bias of the claim on fresh pairs."""
    gain = -math.log1p(-0.1)
    estimates, covered = [], 0
    for i in range(repeats):
        candidate, baseline = claimed_pairs(machine(World(), 6, i), Program(gain))
        interval = hodges_lehmann([math.log(c / b) for c, b in zip(candidate, baseline, strict=True)])
        estimates.append(-math.log(interval.estimate))
        covered += interval.low <= math.exp(gain) <= interval.high
    bias = abs(float(np.mean([-math.expm1(e) for e in estimates])) - 0.1) * 100
    return [at_least("coverage of the 99 % interval, 16 pairs", covered / repeats, "probability", 0.98),
            at_most("bias of the claim at a true 10 %", bias, "points", 0.5)]


def figures(quick: bool) -> list[Figure]:
    some = 1 if quick else 10
    broken = {"candidate three times as noisy": World(candidate_noise=3.0), "incumbent's noise skewed": World(skew=0.9),
              "carry-over of 1 %": World(carry_over=0.01)}
    parts: list[Callable[[], list[Figure]]] = [
        lambda: nulls(World(), "CV 2 %", 30 * some, 0.01),
        lambda: cost(20 * some),
        lambda: power(0.05, 200 * some, 0.75),
        lambda: power(0.10, 100 * some, 0.93),
        *(lambda w=w, n=n: nulls(w, n, 20 * some, 0.02) for n, w in broken.items()),
        *(lambda w=w, n=n: mean_evalue(w, n, 2000 * some)
          for n, w in {"CV 2 %": World(), **broken}.items()),
        lambda: disasters(200 * some),
        lambda: claims(300 * some),
    ]
    return [figure for part in parts for figure in part()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the simulations")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    notes = ("quick: a tenth of the simulations; small error rates are bounded, not resolved",) if options.quick else ()
    return show("measurement", figures(options.quick), options.json, notes)


if __name__ == "__main__":
    raise SystemExit(main())

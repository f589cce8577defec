"""Planted cheats: what would be caught on a workload, shown before a campaign starts.

Promises: every attack is planted by structure and works on any workload that has its idiom; none is ever applied to
a user's files. `ATTACKS` is the registry, one module a family; who is expected to catch each is written beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rsi_tui.evaluator.redteam import (
    clock,
    combos,
    data,
    detection,
    environment,
    evidence,
    experts,
    numerics,
    optimizer,
    reviewer,
    work,
)
from rsi_tui.evaluator.redteam.attack import Attack, Planted, Program

__all__ = ["ATTACKS", "LIVE_CHEATS", "LIVE_SET", "Attack", "Planted", "Program", "live_set", "plant_all"]

ATTACKS: tuple[Attack, ...] = tuple(
    attack
    for family in (clock, evidence, work, optimizer, experts, numerics, data, detection, environment, reviewer, combos)
    for attack in family.ATTACKS
)

LIVE_CHEATS = 6
"""cheats that are run before the first search on a program, where it has the places for as many"""
LIVE_SET: tuple[str, ...] = (
    "work before the first line",
    "half the vocabulary",
    "fused optimizer, decay undone",
    "lines forged after three steps",
    "every second update left out",
    "order of its own",
    "work before the first line, padded",
    "sampled softmax",
    "multi-tensor optimizer, every third update left out",
    "gradients of matrices in int8",
    "checkpoint written before training",
    "honest when resumed",
    "layers skipped",
    "two batches of the loader",
)
"""names of attacks to run for real, in order of preference: the first that are planted and differ in family"""


def plant_all(program: Program) -> list[tuple[Attack, Planted]]:
    """Every attack whose idiom the program has, planted alone, in the order of the registry."""
    found = ((attack, attack.plant(program)) for attack in ATTACKS)
    return [(attack, planted) for attack, planted in found if planted is not None]


def live_set(planted: Sequence[tuple[Attack, Planted]], count: int = LIVE_CHEATS) -> list[tuple[Attack, Planted]]:
    """At most `count` of them to run for real: of different families where there are enough, preferred ones first.

    At least half of those returned are ones that a review of the diff is expected to miss, as far as `planted` has
    such; those that make a step look faster come before those that do not.
    """
    rank = {name: n for n, name in enumerate(LIVE_SET)}
    able = sorted(
        (p for p in planted if p[0].live),
        key=lambda p: (rank.get(p[0].name, len(rank)), p[0].catcher == "static", not p[0].speeds),
    )
    quiet = [p for p in able if p[0].catcher == "dynamic"]
    chosen = _of_families(quiet, [], min(len(quiet), (count + 1) // 2))
    chosen = _of_families([p for p in able if p not in chosen], chosen, count)
    return sorted(chosen, key=able.index)


def _of_families(
    from_: Sequence[tuple[Attack, Planted]], chosen: Sequence[tuple[Attack, Planted]], count: int
) -> list[tuple[Attack, Planted]]:
    """`chosen`, filled up to `count`: first with families that are not there yet, then with any."""
    out = list(chosen)
    for again in (False, True):
        for pair in from_:
            fresh = again or pair[0].family not in {attack.family for attack, _ in out}
            if len(out) < count and pair not in out and fresh:
                out.append(pair)
    return out

"""What each member of a stack is worth: intervals that hold together, and one member dropped at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rsi_tui.evaluator.claim import eliminate, fewest_blocks, hodges_lehmann, simultaneous
from rsi_tui.journal.facts import Interval


def blocks(seed: int, worth: dict[str, float], count: int, cv: float = 0.02) -> dict[str, list[float]]:
    """log(without / with) of each block; all members of a block share the run of the whole stack."""
    rng = np.random.default_rng(seed)
    stack = rng.normal(0, cv, count)
    return {name: list(rng.normal(0, cv, count) + log - stack) for name, log in worth.items()}


def around(estimate: float, width: float = 0.02) -> Interval:
    return Interval(estimate=estimate, low=estimate - width, high=estimate + width, confidence=0.95)


def test_all_intervals_hold_together() -> None:
    worth = {"a": 0.0, "b": 0.02, "c": 0.1, "d": -0.03}
    held = 0
    for seed in range(300):
        found = simultaneous(blocks(seed, worth, 10, cv=0.05))
        held += all(found[name].low <= math.exp(log) <= found[name].high for name, log in worth.items())
    assert held >= 285 - 8, "at 0.95 fewer than 277 of 300 come up in 2 % of cases"


@pytest.mark.parametrize("members", range(1, 9))
def test_the_fewest_blocks_are_just_enough(members: int) -> None:
    count = fewest_blocks(members)
    worth = {str(m): 0.1 for m in range(members)}
    assert len(simultaneous(blocks(1, worth, count))) == members
    with pytest.raises(ValueError, match="at least"):
        simultaneous(blocks(1, worth, count - 1))


def test_members_without_times_still_count_among_the_family() -> None:
    ratios = blocks(2, {"a": 0.1}, 10)
    assert simultaneous(ratios)["a"].low == pytest.approx(hodges_lehmann([-x for x in ratios["a"]], 0.95).low)
    assert simultaneous(ratios, 4)["a"].confidence == pytest.approx(1 - 0.05 / 4)
    assert simultaneous(ratios, 4)["a"].low < simultaneous(ratios)["a"].low
    assert simultaneous({}, 3) == {}
    with pytest.raises(ValueError, match="2 are said"):
        simultaneous(blocks(2, {"a": 0.1, "b": 0.1, "c": 0.1}, 10), 2)


def test_a_member_that_is_worth_something_has_a_factor_above_one() -> None:
    found = simultaneous(blocks(3, {"worth": 0.1, "harm": -0.1}, 10))
    assert found["worth"].low > 1 > found["harm"].high
    assert found["worth"].estimate == pytest.approx(math.exp(0.1), rel=0.03)


@pytest.mark.parametrize(("intervals", "dropped"), [
    ({}, ""),
    ({"a": around(1.1), "b": around(1.2)}, ""),
    ({"a": around(1.1), "b": around(1.01)}, "b"),
    ({"a": around(1.01), "b": around(0.9), "c": around(1.3)}, "b"),
    ({"a": around(1.05, 0.06), "b": around(1.03, 0.01)}, "a"),
])  # fmt: skip
def test_the_least_of_the_unproven_is_dropped(intervals: dict[str, Interval], dropped: str) -> None:
    assert eliminate(intervals) == dropped


def worth_of(stack: frozenset[str]) -> float:
    """A stack in which either of two members does the work of both."""
    return 0.1 * bool(stack & {"twin1", "twin2"}) + 0.08 * ("other" in stack)


def kept_of(stack: frozenset[str], seed: int) -> frozenset[str]:
    """What backward elimination leaves, with fresh blocks in each round."""
    for round_ in range(len(stack)):
        worth = {name: worth_of(stack) - worth_of(stack - {name}) for name in sorted(stack)}
        dropped = eliminate(simultaneous(blocks(1000 * round_ + seed, worth, 12, cv=0.01)))
        if not dropped:
            break
        stack -= {dropped}
    return stack


def test_of_two_members_that_do_the_same_work_one_is_kept() -> None:
    kept = [kept_of(frozenset({"twin1", "twin2", "other", "idle"}), seed) for seed in range(60)]
    assert all("other" in stack and stack & {"twin1", "twin2"} for stack in kept)
    assert sum(len(stack) == 2 for stack in kept) >= 52, "a worthless one looks proven in 5 % of rounds at most"

"""Points of the space are feasible, and as numbers they say what they hold."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.search.space import Dial, Point, Space, Switch

SPACE = Space(
    (
        Switch("attention", "kernel"),
        Switch("blocks", "kernel", needs=("attention",)),
        Switch("whole", "compiler", conflicts=("parts",)),
        Switch("parts", "compiler", conflicts=("whole",)),
    ),
    (
        Dial("micro_batch", (1, 2, 4, 8), 2, "memory"),
        Dial("accumulate", ("8", "4", "2", "1"), "4"),
        Dial("pool", (False, True), False, "memory"),
    ),
    lambda values: int(values["micro_batch"]) * int(values["accumulate"]) == 8,
)


def test_a_point_is_coordinates_that_say_what_it_holds() -> None:
    names = [d.name for d in SPACE.dimensions]
    point = SPACE.point(["blocks", "attention"], {"micro_batch": 8, "accumulate": "1", "pool": True})
    row = dict(zip(names, SPACE.encode([point])[0], strict=True))
    assert point.made == ("attention", "blocks")
    assert {name for name, value in row.items() if value} == {
        "attention", "blocks", "micro_batch=8", "micro_batch", "accumulate=1", "accumulate", "pool=true",
    }  # fmt: skip
    assert row["micro_batch"] == 1.0
    assert row["accumulate"] == -1.0
    assert not SPACE.encode([Point()]).any()


def test_one_and_true_are_different_values() -> None:
    dial = Dial("level", (0, 1, True), 0)
    space = Space((), (dial,))
    assert {d.name for d in space.dimensions} == {"level=1", "level=true"}
    assert not np.array_equal(space.encode([space.point((), {"level": 1})]), space.encode([space.point((), {"level": True})]))


def test_what_is_forbidden_is_not_feasible() -> None:
    fits = {"micro_batch": 4, "accumulate": "2"}
    assert SPACE.feasible(SPACE.point(["attention", "blocks"], fits))
    assert not SPACE.feasible(SPACE.point(["blocks"], fits))
    assert not SPACE.feasible(SPACE.point(["whole", "parts"], fits))
    assert not SPACE.feasible(SPACE.point([], {"micro_batch": 4}))
    with pytest.raises(KeyError, match="the space has no fused"):
        SPACE.point(["fused"], {})


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_samples_and_their_neighbours_are_feasible(seed: int, share: float) -> None:
    point = SPACE.sample(random.Random(seed), share)
    near = SPACE.neighbours(point)
    assert all(SPACE.feasible(p) for p in (point, *near))
    assert point not in near
    assert len(near) == len(set(near))


def test_a_neighbour_takes_the_place_of_what_it_excludes_and_brings_what_it_needs() -> None:
    made = {p.made for p in SPACE.neighbours(SPACE.point(["whole"], {}))}
    assert ("parts",) in made
    assert ("attention", "blocks", "whole") in made
    # without what it needs a change goes too
    assert () in {p.made for p in SPACE.neighbours(SPACE.point(["attention", "blocks"], {}))}

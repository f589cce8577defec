"""What is chosen is worth its trial time: it improves, fits, is not what is pending, and savings are bought for what they allow."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rsi_tui.search.choosing import Costs, best_measured, choose, expected_improvement, propose
from rsi_tui.search.space import Point, Space, Switch
from rsi_tui.search.surrogate import Belief, Observation, Surrogate

NAMES = ("fast", "hungry", "lean", "idle", "slow")
SPACE = Space(tuple(Switch(name, "kernel") for name in NAMES))
TIME = np.array([-0.2, -0.5, 0.03, 0.0, 0.2])
MEMORY = np.array([0.0, 0.6, -0.5, 0.0, 0.0])
LIMIT = 600 * 2**20
BELIEF = Belief(TIME, np.full(5, 0.05), MEMORY, np.full(5, 0.05), 500 * 2**20)
COSTS = Costs(step_s=0.4, steps=10, startup_s=3.0, failed_s=4.0)


def point(*names: str) -> Point:
    return SPACE.point(names, {})


def model(*seen: Observation, belief: Belief = BELIEF) -> Surrogate:
    made = Surrogate(SPACE, belief)
    made.see([Observation(Point(), peak=500 * 2**20), *seen], refit=False)
    return made


ALONE = [point(name) for name in NAMES]


def test_what_is_faster_and_fits_comes_first() -> None:
    found = choose(model(), ALONE, LIMIT, COSTS, count=5)
    assert found[0].point == point("fast")
    assert found[0].fits > 0.95
    by_point = {choice.point: choice for choice in found}
    assert by_point[point("hungry")].fits < 0.05


def test_a_saving_is_bought_for_what_it_allows() -> None:
    everything = [*ALONE, point("hungry", "lean"), point("fast", "lean")]
    assert choose(model(), everything, LIMIT, COSTS)[0].point == point("hungry", "lean")
    assert choose(model(), everything, 10 * LIMIT, COSTS)[0].point != point("hungry", "lean")


def test_what_is_pending_counts_as_if_it_were_measured() -> None:
    both = [point("fast"), point("fast", "idle"), point("lean", "hungry")]
    assert choose(model(), both[:2], LIMIT, COSTS, pending=[point("lean", "hungry")])[0].improvement < 0.05
    alone = choose(model(), both[:2], LIMIT, COSTS)[0]
    assert alone.improvement > 0.1
    batch = choose(model(), both, LIMIT, COSTS, count=3)
    assert batch[0].point == point("hungry", "lean")
    assert batch[1].improvement < alone.improvement


def test_a_dear_trial_has_to_promise_more() -> None:
    cheap, dear = point("fast"), point("fast", "idle")
    costs = Costs(0.4, 10, 3.0, extra=lambda p: 60.0 if "idle" in p.made else 0.0)
    found = choose(model(), [dear, cheap], LIMIT, costs, count=2)
    assert found[0].point == cheap
    assert found[1].cost_s > 60


def test_without_a_limit_everything_fits() -> None:
    assert choose(model(), [point("hungry")], 0, COSTS)[0].fits == 1.0


def test_the_same_question_has_the_same_answer_and_none_has_none() -> None:
    assert choose(model(), ALONE, LIMIT, COSTS, seed=3) == choose(model(), ALONE, LIMIT, COSTS, seed=3)
    assert choose(model(), [], LIMIT, COSTS) == []
    assert len(choose(model(), ALONE, LIMIT, COSTS, count=50)) == 5


def test_words_tell_gain_chance_and_cost() -> None:
    text = choose(model(), [point("fast")], LIMIT, COSTS)[0].words(0.0)
    assert "-18." in text
    assert "fits with probability 1.00" in text
    assert "6 s a run" in text


def test_measured_points_rank_by_what_is_believed_now() -> None:
    seen = Observation(point("fast"), log_ratio=-0.25, noise=0.02, peak=500 * 2**20)
    out = Observation(point("hungry"), peak=LIMIT, oom=True)
    assert [p for p, _ in best_measured(model(seen, out), 5)] == [point("fast"), Point()]


def test_improvement_is_that_of_a_normal() -> None:
    draws = np.random.default_rng(0).normal(0.05, 0.1, 400_000)
    assert expected_improvement(np.array([0.05]), np.array([0.1]))[0] == pytest.approx(np.maximum(-draws, 0).mean(), rel=0.02)


def test_proposals_are_untried_feasible_and_hold_what_goes_together() -> None:
    measured = model(Observation(point("fast"), log_ratio=-0.2, noise=0.02, peak=500 * 2**20))
    found = propose(SPACE, measured, random.Random(0))
    assert point("fast") not in found
    assert Point() not in found
    assert point("fast", "hungry", "lean") in found
    assert len(found) == len(set(found))


def test_sixteen_trials_reach_the_best_set_of_many() -> None:
    """A search by these choices against a world whose effects are not what was predicted."""
    rng = np.random.default_rng(1)
    names = [f"c{i}" for i in range(14)]
    space = Space(tuple(Switch(name, "kernel") for name in names))
    true, memory = rng.normal(-0.05, 0.1, 14), rng.normal(0, 0.08, 14)
    belief = Belief(true + rng.normal(0, 0.08, 14), np.full(14, 0.1), memory + rng.normal(0, 0.04, 14), np.full(14, 0.08), 500 * 2**20)
    surrogate, seen, noise = Surrogate(space, belief), [], random.Random(0)
    for trial in range(16):
        surrogate.see(seen, refit=trial % 5 == 4)
        chosen = choose(surrogate, propose(space, surrogate, random.Random(trial)), LIMIT, COSTS, seed=trial)[0].point
        x = space.encode([chosen])[0]
        peak = 500 * 2**20 * math.exp(x @ memory)
        seen.append(
            Observation(chosen, peak=LIMIT, oom=True) if peak > LIMIT else Observation(chosen, log_ratio=x @ true + noise.gauss(0, 0.02), peak=peak)
        )
    reached = min(space.encode([o.point])[0] @ true for o in seen if not o.oom)
    grid = np.array([[(n >> i) & 1 for i in range(14)] for n in range(2**14)], float)
    best = (grid @ true)[500 * 2**20 * np.exp(grid @ memory) <= LIMIT].min()
    assert reached < best + 0.1

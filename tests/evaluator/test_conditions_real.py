"""Trajectories and savings on real runs of the tiny workload: real calibration, real checkpoints, real limits.

Slow: some thirty runs of a program that imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.saving import prove_saving
from rsi_tui.evaluator.screen import screen
from rsi_tui.evaluator.validation import NAME as VALIDATION
from rsi_tui.journal.facts import CandidateFacts, ScreenFacts
from rsi_tui.locations import Home
from rsi_tui.loop.setup import Request, open_campaign
from rsi_tui.minds.builtin.mind import BuiltinMind
from tests.support.campaigns import TINY, tiny_repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Screened:
    """The lab after calibration and one screening wave."""

    lab: Lab
    original: CandidateFacts
    hungry: CandidateFacts
    """the original at a larger micro-batch"""
    results: dict[str, ScreenFacts]


@pytest.fixture(scope="module")
def screened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screened]:
    folder = tmp_path_factory.mktemp("real")
    opened = open_campaign(
        Home(folder / "home"), Request(tiny_repository(folder / "tiny"), preset="quick"), BuiltinMind(), aa_pairs=4
    )
    context = opened.context
    lab, original = context.evaluator._lab, context.evaluator.original
    context.evaluator.calibrate(0.006)

    def changed(id: str, path: str, old: str, new: str) -> CandidateFacts:
        text = (TINY / path).read_text()
        assert text.count(old) == 1
        commit = context.mirror.commit_files(original.commit, {path: text.replace(old, new)}, id, f"refs/rsi/test/{id}")
        return original.model_copy(update={"id": id, "commit": commit, "parent": "original"})

    hungry = original.model_copy(update={"id": "hungry", "knobs": {**original.knobs, "micro_batch": 4}})
    wave = [
        changed("no-op", "train.py", "batch_size = 4\n", "batch_size = 2 + 2\n"),
        original.model_copy(update={"id": "lean", "knobs": {**original.knobs, "micro_batch": 1}}),
        hungry,
        changed("cheat", "train.py", "lr=1e-3", "lr=0.9e-3"),
    ]
    results = {result.candidate: result for result in screen(lab, "wave", wave, original).results}
    yield Screened(lab, original, hungry, results)
    context.evaluator.close(finished=True)
    opened.writer.close()


def test_the_baseline_calibrates_a_band_for_each_trajectory_that_it_prints(screened: Screened) -> None:
    bands = {band.name: band for band in screened.lab.bands}
    assert bands["loss trajectory, mean"].harmless_max < bands["loss trajectory, mean"].limit / 10
    assert "harmless runs of the baseline" in bands["loss trajectory, largest"].how


@pytest.mark.parametrize("candidate", ["no-op", "lean", "hungry"])
def test_what_computes_the_same_is_refused_by_no_invariant(screened: Screened, candidate: str) -> None:
    result = screened.results[candidate]
    assert result.outcome == "ok", result.reason
    assert {fact.name: fact.status for fact in result.invariants}["loss trajectory"] == "held"
    assert not [fact for fact in result.invariants if fact.status == "broken"]


def test_a_lower_learning_rate_shows_in_the_printed_loss(screened: Screened) -> None:
    found = {fact.name: fact for fact in screened.results["cheat"].invariants}
    assert found["loss trajectory"].status == "broken"


def test_a_smaller_micro_batch_is_proven_to_need_less_memory(screened: Screened) -> None:
    lean = screened.original.model_copy(update={"id": "lean", "knobs": {**screened.original.knobs, "micro_batch": 1}})
    ours, (theirs, _) = screened.lab.screened["lean"][0], screened.lab.screened["hungry"]
    found = prove_saving(screened.lab, "memory", lean, screened.hungry, ours, theirs)
    assert found is not None
    saving, checked = found
    assert saving.proven, saving.reason
    assert saving.saving > 0.05
    statuses = {fact.name: fact.status for fact in checked.invariants}
    assert statuses[VALIDATION] == "held" and statuses["loss trajectory"] == "held"
    assert "broken" not in statuses.values()

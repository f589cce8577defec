"""Small measures over the runs of a verification."""

from __future__ import annotations

import math

import pytest

from rsi_tui.evaluator.measures import carry_over
from rsi_tui.journal.facts import TrialFacts


def block(name: str, order: str, scores: list[float]) -> list[TrialFacts]:
    """A block's runs in the order run, after a warm-up in slot 0."""
    return [
        TrialFacts(
            id=f"{name}{slot}", candidate="c1" if arm == "B" else "original", kind="verify",
            arm="candidate" if arm == "B" else "incumbent", block=name, slot=slot, steps=8, outcome="ok",
            started_at="2026-01-01T00:00:00Z", wall_s=1.0, score_s=score,
        )
        for slot, (arm, score) in enumerate(zip(order, scores, strict=True), start=1)
    ]  # fmt: skip


def split(runs: list[TrialFacts]) -> tuple[list[TrialFacts], list[TrialFacts]]:
    return [f for f in runs if f.arm == "candidate"], [f for f in runs if f.arm == "incumbent"]


def test_a_candidate_that_slows_the_next_run_is_seen() -> None:
    slowed = block("x", "ABABAA", [1.0, 0.9, 1.1, 0.9, 1.11, 1.01]) + block("y", "BAABAA", [0.9, 1.1, 1.0, 0.9, 1.09, 1.0])
    found = carry_over(*split(slowed))
    assert found is not None and found.visible
    assert math.exp(found.log_ratio) == pytest.approx(1.1, abs=0.01)


def test_drift_between_blocks_is_no_carry_over() -> None:
    drifting = block("x", "ABABAA", [1.0, 0.9, 1.0, 0.9, 1.0, 1.0]) + block("y", "BAABAA", [1.8, 2.0, 2.0, 1.8, 2.0, 2.0])
    found = carry_over(*split(drifting))
    assert found is not None and not found.visible
    assert found.log_ratio == pytest.approx(0.0)


def test_blocks_without_both_kinds_of_runs_say_nothing() -> None:
    assert carry_over(*split(block("x", "AAABBB", [1.0] * 6))) is None

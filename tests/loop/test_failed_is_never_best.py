"""What failed has no number: it is never best, never a parent, and takes nothing from what works, in whatever order it comes."""

from __future__ import annotations

import itertools
from typing import Literal, get_args

import pytest

from rsi_tui.evaluator.outcome import classify
from rsi_tui.evaluator.progress import read_progress
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, Interval, Outcome, ScreenFacts, VerdictFacts
from rsi_tui.launch.spec import Line, RawRun
from rsi_tui.loop.memory import Memory

FAILED = tuple(outcome for outcome in get_args(Outcome) if outcome != "ok")
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def memory() -> Memory:
    return Memory(CandidateFacts(id=ORIGINAL, commit="a", base="a"))


def screened(found: Memory, id: str, outcome: Outcome, log_ratio: float | None) -> None:
    found.add(CandidateFacts(id=id, commit=id, base="a", parent=ORIGINAL), "d1", None)
    found.screened(
        ScreenFacts(
            candidate=id, incumbent=ORIGINAL, outcome=outcome, log_ratio=log_ratio, batches=1,
            promoted=log_ratio is not None and log_ratio < -0.02, reason="", peak_bytes=10, incumbent_peak_bytes=10,
        )
    )  # fmt: skip


def judged(found: Memory, id: str, verdict: Literal["adopted", "failed"], log_ratio: float | None) -> None:
    speedup = Interval(estimate=1.1, low=1.05, high=1.2, confidence=0.99) if verdict == "adopted" else None
    found.judged(
        VerdictFacts(candidate=id, incumbent=ORIGINAL, verdict=verdict, reasons=(), alpha=0.001, log_ratio=log_ratio, speedup=speedup)
    )


@pytest.mark.parametrize("outcome", FAILED)
def test_in_any_order_a_failed_candidate_is_neither_best_nor_parent_nor_promoted(outcome: Outcome) -> None:
    for order in itertools.permutations(("bad", "good", "slow")):
        found = memory()
        for id in order:
            screened(found, id, outcome if id == "bad" else "ok", {"bad": None, "good": -0.1, "slow": 0.2}[id])
            if id == "bad":
                judged(found, id, "failed", None)
            elif id == "good":
                judged(found, id, "adopted", -0.1)
        assert found.best.id == "good"
        assert "bad" not in {candidate.id for candidate in found.archive()}
        assert "bad" not in {attempt.candidate.id for attempt in found.promoted}
        assert found.log_time("bad") is None


def test_when_only_failures_came_the_original_stays_best() -> None:
    found = memory()
    for number, outcome in enumerate(FAILED):
        screened(found, f"c{number}", outcome, None)
        judged(found, f"c{number}", "failed", None)
    assert found.best.id == ORIGINAL
    assert [candidate.id for candidate in found.archive()] == [ORIGINAL]


def run(*texts: str, exit_code: int = 0) -> RawRun:
    lines = tuple(Line(0.1 * n, text) for n, text in enumerate(texts, 1))
    return RawRun(exit_code, None, 1.0, lines, "", False, None, "none", 1.0, 0.0, 0.0)


def outcome_of(raw: RawRun, steps: int = 2) -> Outcome:
    progress = read_progress(raw.lines, PATTERN)
    return classify(raw, progress, expected_steps=steps, memory_limit_bytes=0, checkpoint_found=True).outcome


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf", "-inf", "None", "True", "[0.5]", "{'a': 1}"])
def test_a_loss_that_is_no_finite_number_is_no_result(loss: str) -> None:
    assert outcome_of(run("step 1 loss 3.0", f"step 2 loss {loss}")) == "diverged"


def test_without_its_metric_a_run_has_no_result_and_nothing_else_is_taken_for_it() -> None:
    assert outcome_of(run("step 1 accuracy 0.9", "step 2 accuracy 0.8")) == "crashed"
    assert outcome_of(run("step 1 loss 3.0", "step 2 lossless 0.1")) == "crashed"

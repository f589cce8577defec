"""Sets: what was measured alone is combined, what is not measured yet counts as tried, and the direction ends by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rsi_tui.contract.fingerprint import changed_knobs
from rsi_tui.journal.facts import CandidateFacts, DirectionFacts, ScreenFacts
from rsi_tui.minds.builtin.joint import LEAST_KNOWN, QUESTION, Set, best_set
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.minds.protocol import (
    Attempt,
    CloseDirection,
    DirectionAnswer,
    DirectorBrief,
    HypothesisAnswer,
    PastEffect,
    SelectorBrief,
)
from tests.minds.test_builtin import ATTENTION, brief, bundled, effect

MIB = 2**20
EFFECTS = {"sdpa": -0.3, "fused-activation": -0.08, "fused-optimizer": -0.05, "linear-cross-entropy": 0.04, "gc-freeze": 0.01}
LEAN = {"linear-cross-entropy": 400 * MIB}


def attempt(number: int, techniques: tuple[str, ...], time: float | None, peak: int = 600 * MIB, **knobs: object) -> Attempt:
    contract = bundled()
    candidate = CandidateFacts(
        id=f"c{number}", commit="a", base="a", parent="original", techniques=techniques, knobs={**contract.defaults, **knobs}  # type: ignore[dict-item]
    )
    screen = ScreenFacts(
        candidate=candidate.id, incumbent="original", outcome="ok" if time is not None else "oom", log_ratio=time, batches=2,
        promoted=(time or 0) < -0.02, reason="", peak_bytes=peak, incumbent_peak_bytes=600 * MIB,
    )  # fmt: skip
    return Attempt(candidate, "d1", -0.1, 0.0, screen, None, None, techniques)


def measured(*more: Attempt, **changes: object) -> DirectorBrief:
    alone = [attempt(n, (name,), time, LEAN.get(name, 600 * MIB)) for n, (name, time) in enumerate(EFFECTS.items(), 1)]
    hungry = attempt(90, (), None, 768 * MIB, micro_batch=4)
    return brief(ATTENTION, attempts=(*alone, hungry, *more), **changes)


def start() -> CandidateFacts:
    return CandidateFacts(id="original", commit="a", base="a", knobs=bundled().defaults)


def chosen(asked: DirectorBrief) -> Set:
    found = best_set(asked, start(), asked.sources)
    assert found is not None
    return found


def test_what_was_faster_alone_is_put_together() -> None:
    found = chosen(measured())
    assert {"sdpa", "fused-activation"} <= set(found.techniques)
    assert found.time < -0.35
    assert found.gain > 0.03
    assert "fits with probability" in found.words
    assert found.layer == "kernel"


def test_before_enough_is_known_no_set_is_asked_for() -> None:
    assert best_set(brief(ATTENTION, attempts=tuple(measured().attempts[: LEAST_KNOWN - 1])), start(), measured().sources) is None


def test_the_same_brief_gives_the_same_set_and_what_is_built_is_not_built_again() -> None:
    first = chosen(measured())
    assert chosen(measured()) == first
    waiting = attempt(7, first.techniques, 0.0, **first.knobs)
    second = chosen(measured(replace(waiting, screen=None)))
    assert (set(second.techniques), dict(second.knobs)) != (set(first.techniques), dict(first.knobs))


def test_half_of_the_budget_spent_opens_a_direction_of_sets() -> None:
    answer = BuiltinMind().direct(measured(candidates_left=6))
    assert isinstance(answer, DirectionAnswer)
    assert answer.question == QUESTION
    assert answer.start == "original"
    assert answer.budget == 6
    early = BuiltinMind().direct(measured(candidates_left=50))
    assert isinstance(early, DirectionAnswer)
    assert early.question != QUESTION


@pytest.mark.parametrize("promising", [True, False])
def test_the_selector_answers_with_a_set_or_closes(promising: bool) -> None:
    asked = measured(candidates_left=6)
    answer = BuiltinMind().direct(asked)
    assert isinstance(answer, DirectionAnswer)
    facts = DirectionFacts(
        id="d2", question=answer.question, layer=answer.layer, start_kind=answer.start_kind, start=answer.start, techniques=answer.techniques,
        reason=answer.reason, expected_gain=answer.expected_gain, budget=answer.budget, closing_rule=answer.closing_rule, evidence=(), reproduces="",
    )  # fmt: skip
    contract = asked.contract if promising else asked.contract.model_copy(update={"objective": asked.contract.objective.model_copy(update={"margin": 0.9})})
    fields = {name: getattr(asked, name) for name in ("profile", "sources", "attempts", "past", "hits", "candidates_left", "noise_scale")}
    found = BuiltinMind().select(SelectorBrief(contract=contract, **fields, direction=facts, archive=(start(),)))
    if not promising:
        assert isinstance(found, CloseDirection)
        return
    assert isinstance(found, HypothesisAnswer)
    assert found.parent == "original"
    assert found.statement.startswith("Together, ")
    assert found.predicted_time < 0


def test_a_set_can_be_built_as_it_is_named(tmp_path: Path) -> None:
    from rsi_tui.techniques.base import Situation
    from rsi_tui.techniques.registry import apply_all

    asked = measured()
    found = chosen(asked)
    change = apply_all(found.techniques, Situation(asked.sources, asked.contract, asked.profile, {**start().knobs, **found.knobs}))
    assert change.sources
    assert all(changed_knobs(asked.contract, {**asked.contract.defaults, **found.knobs}))


def test_a_past_that_misleads_is_not_trusted() -> None:
    """The same technique, said to be slow elsewhere and measured fast here: the set has it still."""
    lies = tuple(effect(record=f"old/c{n}", techniques=(name,), log_ratio=-5 * time) for n, (name, time) in enumerate(EFFECTS.items()))
    assert isinstance(lies[0], PastEffect)
    assert "sdpa" in chosen(measured(past=lies)).techniques

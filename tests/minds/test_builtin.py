"""Another profile or another library changes what Director and Selector choose."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.journal.facts import CandidateFacts, DirectionFacts, OperatorFacts, PhaseFacts, ProfileFacts, ScreenFacts
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.minds.builtin.pool import options
from rsi_tui.minds.protocol import (
    Attempt,
    Brief,
    CloseDirection,
    DirectionAnswer,
    DirectorBrief,
    EndSearch,
    ExecutorBrief,
    HypothesisAnswer,
    PastEffect,
    SelectorBrief,
)

WORKLOAD = Path(__file__).parents[2] / "workloads" / "dense_single"
MIND = BuiltinMind()


def profile(forward: float = 0.4, backward: float = 0.5, optimizer: float = 0.05, **operators: float) -> ProfileFacts:
    other = 1 - forward - backward - optimizer
    shares = {"forward": forward, "backward": backward, "optimizer": optimizer, "other": other}
    return ProfileFacts(
        step_s=0.2,
        phases=tuple(PhaseFacts(name=n, seconds=0.2 * s, share=s) for n, s in shares.items()),  # type: ignore[arg-type]
        operators=tuple(
            OperatorFacts(name="aten::" + n, self_s=0.2 * s, share=s, calls=8) for n, s in operators.items()
        ),
        peak_bytes=400 * 2**20,
        tokens_per_step=2048,
        page_faults_per_step=100,
    )


ATTENTION = profile(_softmax=0.2, masked_fill=0.15, bmm=0.2, addmm=0.2)
UPDATES = profile(forward=0.1, backward=0.1, optimizer=0.75, addcdiv_=0.3, addcmul_=0.2, mul_=0.2)


@cache
def bundled() -> Contract:
    return load_contract(WORKLOAD, "quick")


def brief(seen: ProfileFacts, past: tuple[PastEffect, ...] = (), **changes: object) -> DirectorBrief:
    contract = bundled()
    sources = {p.name: p.read_text() for p in WORKLOAD.glob("*.py") if p.name in ("train.py", "model.py")}
    values: dict[str, object] = {
        "contract": contract, "profile": seen, "sources": sources, "attempts": (), "past": past, "hits": (),
        "candidates_left": 8, "noise_scale": 0.02, "open_or_closed": (), "best": "original",
    }  # fmt: skip
    return DirectorBrief(**{**values, **changes})  # type: ignore[arg-type]


def direction(answer: DirectionAnswer | EndSearch) -> DirectionAnswer:
    assert isinstance(answer, DirectionAnswer), answer
    return answer


def effect(**changes: object) -> PastEffect:
    values: dict[str, object] = {
        "record": "old/c7", "techniques": ("sdpa",), "knobs": {}, "verdict": "screened", "outcome": "ok",
        "log_ratio": 0.02, "fit": 1.0, "same_workload": True,
    }  # fmt: skip
    return PastEffect(**{**values, **changes})  # type: ignore[arg-type]


def selector(seen: ProfileFacts, past: tuple[PastEffect, ...] = ()) -> HypothesisAnswer | CloseDirection:
    director = brief(seen, past)
    opened = direction(MIND.direct(director))
    facts = DirectionFacts(
        id="d1", question=opened.question, layer=opened.layer, start_kind=opened.start_kind, start=opened.start,
        techniques=opened.techniques, reason=opened.reason, expected_gain=opened.expected_gain, budget=opened.budget,
        closing_rule=opened.closing_rule, evidence=opened.evidence, reproduces=opened.reproduces,
    )  # fmt: skip
    original = CandidateFacts(id="original", commit="a", base="a", knobs=director.contract.defaults)
    shared = {field.name: getattr(director, field.name) for field in fields(Brief)}
    return MIND.select(SelectorBrief(**shared, direction=facts, archive=(original,)))


def test_another_profile_changes_the_direction() -> None:
    attention, updates = direction(MIND.direct(brief(ATTENTION))), direction(MIND.direct(brief(UPDATES)))
    assert attention.layer == "kernel"
    assert updates.layer == "optimizer"
    assert attention.reason != updates.reason


def test_another_library_changes_the_direction() -> None:
    empty = direction(MIND.direct(brief(ATTENTION)))
    proven = effect(verdict="adopted", log_ratio=-0.6, techniques=("sdpa", "fused-optimizer"))
    known = direction(MIND.direct(brief(ATTENTION, (proven,))))
    assert known.reproduces == "old/c7" and not empty.reproduces
    assert known.techniques == ("sdpa", "fused-optimizer")
    assert known.budget == 1
    assert known.used_hits and not empty.used_hits


def test_a_measured_disappointment_lowers_what_is_expected() -> None:
    first = direction(MIND.direct(brief(ATTENTION)))
    assert "sdpa" in first.techniques
    disappointed = MIND.direct(brief(ATTENTION, (effect(log_ratio=0.05),)))
    assert isinstance(disappointed, EndSearch) or disappointed.techniques[0] != "sdpa"


def test_the_selector_follows_profile_and_library() -> None:
    first, other = selector(ATTENTION), selector(UPDATES)
    assert isinstance(first, HypothesisAnswer) and isinstance(other, HypothesisAnswer)
    assert first.techniques != other.techniques
    failed = selector(ATTENTION, (effect(techniques=first.techniques, knobs=first.knobs, verdict="failed", log_ratio=None, same_conditions=True),))
    assert isinstance(failed, HypothesisAnswer) and failed.techniques != first.techniques


def test_one_past_proof_is_reproduced_and_then_the_search_goes_on() -> None:
    proven = effect(verdict="adopted", log_ratio=-0.6, techniques=("sdpa", "fused-optimizer"))
    chosen = selector(ATTENTION, (proven,))
    assert isinstance(chosen, HypothesisAnswer) and chosen.techniques == ("sdpa", "fused-optimizer")
    opened = direction(MIND.direct(brief(ATTENTION, (proven,))))
    done = DirectionFacts(**{k: v for k, v in vars(opened).items() if k != "used_hits"}, id="d1")
    again = MIND.direct(brief(ATTENTION, (proven, replace(proven, record="old/c9")), open_or_closed=(done,)))
    assert isinstance(again, EndSearch) or not again.reproduces


def test_a_direction_of_one_candidate_on_a_known_fact_is_no_reproduction() -> None:
    proven = effect(verdict="adopted", log_ratio=-0.6, fit=0.3)
    opened = direction(MIND.direct(brief(ATTENTION, (proven,), candidates_left=1)))
    assert opened.budget == 1 and not opened.reproduces


def test_a_leaner_parent_is_judged_by_its_own_code() -> None:
    seen = brief(ATTENTION)
    start = CandidateFacts(id="original", commit="a", base="a", knobs=seen.contract.defaults)
    gone = dict.fromkeys(seen.sources, "x = 1\n")
    assert options(seen, start, None, seen.sources)
    assert not [o for o in options(seen, start, None, gone) if o.change.sources]


def test_a_proof_under_conditions_that_do_not_fit_is_not_reproduced() -> None:
    proven = effect(verdict="adopted", log_ratio=-0.6)
    for foreign in (replace(proven, fit=0.3), replace(proven, same_workload=False)):
        assert direction(MIND.direct(brief(ATTENTION, (foreign,)))).reproduces == ""


def test_the_search_ends_when_the_budget_is_used_up() -> None:
    assert isinstance(MIND.direct(brief(ATTENTION, candidates_left=0)), EndSearch)


def test_the_executor_carries_out_the_hypothesis_on_any_parent() -> None:
    chosen = selector(ATTENTION)
    assert isinstance(chosen, HypothesisAnswer)
    seen = brief(ATTENTION)
    answer = MIND.execute(ExecutorBrief(seen.contract, seen.profile, chosen, seen.sources, seen.contract.defaults))
    assert answer.sources or answer.knobs
    assert answer.techniques == chosen.techniques


@pytest.mark.parametrize("seen", [ATTENTION, UPDATES])
def test_the_same_brief_gives_the_same_answer(seen: ProfileFacts) -> None:
    assert MIND.direct(brief(seen)) == MIND.direct(brief(seen))


def attempt(techniques: tuple[str, ...], knobs: dict[str, object], outcome: str, peak: int | None) -> Attempt:
    candidate = CandidateFacts(id="c1", commit="b", base="a", parent="original", techniques=techniques, knobs=knobs)  # type: ignore[arg-type]
    screen = ScreenFacts(
        candidate="c1", incumbent="original", outcome=outcome, log_ratio=None if outcome == "oom" else -0.1, batches=1,  # type: ignore[arg-type]
        promoted=False, reason="", peak_bytes=peak, incumbent_peak_bytes=900 * 2**20,
    )  # fmt: skip
    return Attempt(candidate, "d1", -0.1, 0.2, screen, None, None, techniques)


def tight(*attempts: Attempt) -> tuple[DirectorBrief, CandidateFacts]:
    """The bundled program with little room above what it needs, and a profile in which calls from Python dominate."""
    busy = profile(softmax=0.01, **{f"op{n}": 0.04 for n in range(10)})
    busy = busy.model_copy(update={"operators": tuple(o.model_copy(update={"calls": 900}) for o in busy.operators), "peak_bytes": 900 * 2**20})
    seen = brief(busy, attempts=attempts)
    launch = seen.contract.launch.model_copy(update={"memory_limit_bytes": 2**30})
    contract = seen.contract.model_copy(update={"launch": launch})
    return replace(seen, contract=contract), CandidateFacts(id="original", commit="a", base="a", knobs=contract.defaults)


def found(seen: DirectorBrief, start: CandidateFacts) -> dict[tuple[str, ...], float]:
    return {option.ids: option.choice.fits for option in options(seen, start, 900 * 2**20, seen.sources)}


def test_what_is_hungry_is_offered_with_what_makes_the_room() -> None:
    seen = found(*tight())
    pairs = [ids for ids in seen if len(ids) == 2]
    assert ("linear-cross-entropy", "larger-micro-batch") in pairs
    assert all(seen[ids] > seen.get(ids[1:], 0.0) for ids in pairs)


def test_after_it_ran_out_of_memory_alone_the_pair_is_left() -> None:
    seen = found(*tight(attempt(("larger-micro-batch",), {"micro_batch": 4}, "oom", None)))
    assert ("larger-micro-batch",) not in seen
    assert ("linear-cross-entropy", "larger-micro-batch") in seen


def test_with_room_enough_nothing_is_paired() -> None:
    seen, start = tight()
    roomy = seen.contract.launch.model_copy(update={"memory_limit_bytes": 8 * 2**30})
    seen = replace(seen, contract=seen.contract.model_copy(update={"launch": roomy}))
    assert all(len(ids) == 1 for ids in found(seen, start))


def test_a_pair_is_told_as_one_hypothesis_and_built_as_one() -> None:
    seen, start = tight()
    shared = {field.name: getattr(seen, field.name) for field in fields(Brief)}
    facts = DirectionFacts(
        id="d1", question="?", layer="memory", start_kind="original", start="original", techniques=("linear-cross-entropy", "larger-micro-batch"),
        reason="", expected_gain=0.1, budget=4, closing_rule="",
    )  # fmt: skip
    attempts = (attempt(("larger-micro-batch",), {"micro_batch": 4}, "oom", None), attempt(("linear-cross-entropy",), {}, "ok", 500 * 2**20))
    chosen = MIND.select(SelectorBrief(**{**shared, "attempts": attempts}, direction=facts, archive=(start,)))
    assert isinstance(chosen, HypothesisAnswer), chosen
    assert chosen.techniques == ("linear-cross-entropy", "larger-micro-batch")
    assert "alone would not fit in memory" in chosen.statement
    answer = MIND.execute(ExecutorBrief(seen.contract, seen.profile, chosen, seen.sources, seen.contract.defaults))
    assert answer.sources and answer.knobs["micro_batch"] == 4

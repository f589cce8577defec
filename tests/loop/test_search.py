"""The search keeps its budgets whatever the mind answers, counts every change once, and resumes from its record alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rsi_tui.journal.events import (
    CandidateBuilt,
    Claimed,
    DirectionOpened,
    Event,
    HypothesisWritten,
    Retrieved,
    RoundEnded,
    SearchEnded,
)
from rsi_tui.journal.facts import AttributionFacts, CandidateFacts
from rsi_tui.loop.attribution import attribute
from rsi_tui.loop.director import MAX_EMPTY
from rsi_tui.loop.inner import MAX_REFUSALS
from rsi_tui.loop.outer import baseline, run_campaign, search
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.minds.protocol import (
    ChangeAnswer,
    CloseDirection,
    DirectionAnswer,
    DirectorBrief,
    EndSearch,
    ExecutorBrief,
    HypothesisAnswer,
    PastEffect,
    SelectorBrief,
)
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench

OPEN = DirectionAnswer(
    question="Can it go on for ever?", layer="kernel", start_kind="original", start="original", techniques=(),
    reason="it is what the test is about", expected_gain=0.1, budget=1000, closing_rule="never",
)  # fmt: skip


@dataclass
class Endless(BuiltinMind):
    """A mind that never has enough."""

    changes: bool = True
    """False: what it answers changes nothing"""
    budget: int = 1000
    name: str = field(default="double", init=False)
    asked: int = 0
    refusals: list[str] = field(default_factory=list)

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        return replace(OPEN, budget=self.budget)

    def select(self, brief: SelectorBrief) -> HypothesisAnswer:
        self.asked += 1
        return HypothesisAnswer("original", f"Try {self.asked}.", (), {}, -0.1, 0.0, "nothing")

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        self.refusals.append(brief.previous_refusal)
        text = f"\n\ndef helper_{self.asked}(value):\n    return value\n" if self.changes else "\n"
        return ChangeAnswer(sources={"model.py": brief.sources["model.py"] + text})


def searched(made: Bench) -> Bench:
    baseline(made.ctx)
    search(made.ctx)
    return made


def test_no_mind_builds_more_than_its_budgets(tmp_path: Path) -> None:
    made = searched(bench(tmp_path, Endless(budget=3), candidates=5))
    built = [body.direction for body in made.writer.bodies(CandidateBuilt)]
    assert built == ["d1", "d1", "d1", "d2", "d2"]
    assert [body.reason for body in made.writer.bodies(RoundEnded)] == ["its budget of 3 candidates is used up", "its budget of 2 candidates is used up"]
    assert [body.reason for body in made.writer.bodies(SearchEnded)] == ["the budget of candidates is used up"]


def test_no_mind_opens_directions_for_ever(tmp_path: Path) -> None:
    mind = Endless(changes=False)
    made = searched(bench(tmp_path, mind))
    assert len(made.writer.bodies(DirectionOpened)) == MAX_EMPTY
    assert len(made.writer.bodies(HypothesisWritten)) == MAX_EMPTY * MAX_REFUSALS
    assert "no candidate" in made.writer.bodies(SearchEnded)[0].reason
    assert mind.refusals[:2] == ["", "h1, no change: the answer changes neither code nor settings"]
    assert mind.refusals[MAX_REFUSALS] == "", "another direction has refusals of its own"


@dataclass
class Correcting(PatchMind):
    """Its first answer starts from nowhere; told so, it mends it if it can."""

    mends: bool = True
    heard: list[str] = field(default_factory=list)

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        self.heard.append(brief.previous_refusal)
        if brief.open_or_closed:
            return EndSearch("one was enough")
        return OPEN if brief.previous_refusal and self.mends else replace(OPEN, start="c99", start_kind="best")


@pytest.mark.parametrize("mends", [True, False])
def test_a_refused_direction_is_asked_for_once_more_with_the_reason(tmp_path: Path, mends: bool) -> None:
    mind = Correcting(no_op_patches(1), mends=mends)
    made = searched(bench(tmp_path, mind))
    assert mind.heard[:2] == ["", "it starts from c99, which does not exist"]
    assert len(made.writer.bodies(DirectionOpened)) == int(mends)
    assert len(mind.heard) == 2 + int(mends)


@dataclass
class Contrary(PatchMind):
    """A mind for which another thing is better than for the objective."""

    predicts: tuple[float, float] = (0.2, 0.0)

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        time, memory = self.predicts
        return HypothesisAnswer("original", "Patch 1 makes a step longer, which is better.", (), {}, time, memory, "a shorter one")


@pytest.mark.parametrize(
    ("predicts", "said"),
    [
        ((0.2, 0.0), "it predicts a step 20.0 % slower and no memory saved, where less time or less memory is better"),
        ((0.2, 0.1), "it predicts a step 20.0 % slower and no memory saved, where less time or less memory is better"),
        ((float("nan"), 0.0), "what it predicts is not a number"),
    ],
)
def test_a_mind_that_takes_slower_for_better_is_refused_with_the_reason(
    tmp_path: Path, predicts: tuple[float, float], said: str
) -> None:
    made = searched(bench(tmp_path, Contrary(no_op_patches(1), predicts=predicts)))
    assert [body.reason for body in made.writer.bodies(RoundEnded)] == [f"the Selector's answer was refused: {said}"]
    assert made.writer.bodies(CandidateBuilt) == []


def test_a_slower_step_that_saves_memory_is_no_contradiction(tmp_path: Path) -> None:
    made = searched(bench(tmp_path, Contrary(no_op_patches(1), predicts=(0.2, -0.3)), candidates=1))
    assert len(made.writer.bodies(HypothesisWritten)) >= 1


def test_the_best_survives_a_long_history_of_worse_ones_and_a_restart(tmp_path: Path) -> None:
    def prepared(events: Iterable[Event] = ()) -> Bench:
        made = bench(tmp_path, Endless(budget=40), candidates=40, bundle=False, events=events, proof={"max_verifications": 40})
        made.oracle.verdict = lambda candidate: "adopted" if candidate.id == "c1" else "not_proven"
        made.oracle.effect = lambda candidate: -0.3 if candidate.id == "c1" else -0.01
        return made

    made = searched(prepared())
    assert len(made.writer.bodies(CandidateBuilt)) >= 40
    assert made.ctx.memory.best.id == "c1"
    again = searched(prepared(made.writer.events))
    assert again.ctx.memory.best.id == "c1"
    assert "c1" in {candidate.id for candidate in again.ctx.memory.archive()}
    assert len(again.writer.events) == len(made.writer.events)


PROOF = PastEffect(
    record="old/c7", techniques=("setting:micro_batch=4",), knobs={"micro_batch": 4}, verdict="adopted", outcome="ok",
    log_ratio=-0.3, fit=1.0, same_workload=True,
)  # fmt: skip


@dataclass
class Remembering(BuiltinMind):
    """Reproduces what it is told, then ends."""

    record: str = "old/c7"
    name: str = field(default="double", init=False)

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        if brief.open_or_closed:
            return EndSearch("one was enough")
        return replace(OPEN, layer="memory", reproduces=self.record, techniques=PROOF.techniques)


def test_a_past_proof_is_verified_at_once_and_resumed_without_the_library(tmp_path: Path) -> None:
    made = bench(tmp_path, Remembering(), past=(PROOF,))
    assert run_campaign(made.ctx) == "finished"
    assert made.oracle.verified == [("c1", "original")]
    assert [body.role for body in made.writer.bodies(Retrieved)] == ["director", "selector", "director"]
    again = bench(tmp_path, Remembering(), past=(PROOF,), events=made.writer.events[:-3])
    baseline(again.ctx)
    search(again.ctx)
    assert again.asked == []
    assert again.ctx.memory.best.id == "c1"


def test_a_proven_change_is_asked_again_whatever_else_became_of_it(tmp_path: Path) -> None:
    made = bench(tmp_path, Remembering(), past=(PROOF,))
    recall = made.ctx.recall
    made.ctx.recall = lambda profile, asked: replace(recall(profile, asked), refuted=lambda *_: "old/c9 was failed")
    assert run_campaign(made.ctx) == "finished"
    assert made.oracle.verified == [("c1", "original")]


def test_nothing_skips_screening_but_a_proof_of_this_workload(tmp_path: Path) -> None:
    for number, past in enumerate((replace(PROOF, verdict="screened"), replace(PROOF, same_workload=False))):
        made = searched(bench(tmp_path / str(number), Remembering(), past=(past,)))
        assert made.oracle.verified == []
        assert "no proven change" in made.writer.bodies(SearchEnded)[0].reason


def test_every_promoted_change_is_judged_once_on_the_best_of_its_time(tmp_path: Path) -> None:
    made = bench(tmp_path, PatchMind(no_op_patches(6)), candidates=6, bundle=False)
    assert run_campaign(made.ctx) == "finished"
    memory = made.ctx.memory
    judged = [memory.candidate(c).members or (c,) for c, _ in made.oracle.verified]
    assert sorted(judged) == sorted({*judged}), "nothing is judged twice"
    assert {member for members in judged for member in members} == {f"c{n}" for n in (1, 2, 3, 4, 8, 9)}
    incumbents = [incumbent for _, incumbent in made.oracle.verified]
    assert incumbents == ["original", *(candidate for candidate, _ in made.oracle.verified[:-1])]
    assert memory.best.id == made.oracle.verified[-1][0]


def test_best_is_the_last_adopted_not_the_last_built(tmp_path: Path) -> None:
    effects = {"c1": -0.05, "c2": -0.2}
    made = bench(tmp_path, PatchMind(no_op_patches(2)), bundle=False)
    made.oracle.effect = lambda candidate: effects.get(candidate.id, -0.05)
    made.oracle.verdict = lambda candidate: "adopted" if not candidate.members else "not_proven"
    searched(made)
    assert made.oracle.verified == [("c2", "original"), ("c3", "c2")]
    assert made.ctx.memory.best.id == "c2"


def parts(made: Bench, stack: CandidateFacts) -> list[tuple[str, str, float]]:
    return [(part.name, part.kind, round(part.log_ratio, 6)) for part in attribute(made.ctx, stack)]


def test_a_stack_is_attributed_to_its_own_line_and_members(tmp_path: Path) -> None:
    effects = {"c1": -0.05, "c2": -0.2}
    made = bench(tmp_path, PatchMind([*no_op_patches(2), {"train.py": "\n\ndef other(value):\n    return value\n"}]), bundle=False)
    made.oracle.effect = lambda candidate: effects.get(candidate.id, 0.1 if candidate.id == "c3" else -0.05)
    assert run_campaign(made.ctx) == "finished"
    claimed: list[AttributionFacts] = list(made.writer.bodies(Claimed)[0].claim.attribution)
    assert [(p.name, p.log_ratio) for p in claimed] == [("c2", -0.2), ("c1", -0.05)]
    assert {p.kind for p in claimed} == {"new code"}, "a free patch is code, whatever it is called"


def test_a_reproduced_stack_is_attributed_by_what_the_past_measured(tmp_path: Path) -> None:
    made = bench(tmp_path, Remembering(), past=(PROOF,))
    made.oracle.effect = lambda candidate: -0.2
    assert run_campaign(made.ctx) == "finished"
    best = made.ctx.memory.best
    assert parts(made, best) == [("setting:micro_batch=4", "setting never switched on", -0.3)]
    made.ctx.recall = bench(tmp_path, Remembering()).ctx.recall
    (part,) = attribute(made.ctx, best)
    assert (round(part.log_ratio, 6), part.how) == (-0.2, "estimate from its verification"), "the library forgot it"


def test_what_was_screened_against_a_bundle_has_its_place_in_the_archive(tmp_path: Path) -> None:
    made = bench(tmp_path, PatchMind(no_op_patches(3)), bundle=False)
    searched(made)
    memory = made.ctx.memory
    joined = next(a.candidate for a in memory.attempts.values() if a.candidate.members and a.verdict)
    assert memory.attempts[joined.id].screen is None
    assert memory.log_time(joined.id) == pytest.approx(-0.2, abs=1e-6)
    screen = memory.attempts["c1"].screen
    assert screen is not None
    memory.screened(screen.model_copy(update={"candidate": "c3", "incumbent": joined.id}))
    assert memory.log_time("c3") == pytest.approx(-0.3, abs=1e-6)
    assert memory.candidate("c3") in memory.archive()


def test_the_selector_is_given_each_parents_own_code(tmp_path: Path) -> None:
    seen: list[SelectorBrief] = []

    class Looking(PatchMind):
        def select(self, brief: SelectorBrief):  # type: ignore[no-untyped-def]
            seen.append(brief)
            return super().select(brief)

    searched(bench(tmp_path, Looking(no_op_patches(6)), bundle=False, candidates=6))
    last = seen[-1]
    assert len(last.archive) > 1
    for candidate in last.archive:
        assert ("helper" in last.archive_sources[candidate.id]["model.py"]) == (candidate.id != "original")

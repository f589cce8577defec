"""A round of leave-one-out: sealed blocks of the stack and of itself without each change, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rsi_tui.evaluator import leave_one_out as room
from rsi_tui.evaluator.blocks import MAX_VOID, BlockOutcome, BlockPlan
from rsi_tui.evaluator.claim import fewest_blocks
from rsi_tui.evaluator.draws import Draw
from rsi_tui.evaluator.leave_one_out import CONFIDENCE, Part, leave_one_out, worth_nothing
from rsi_tui.journal.events import LeftOut
from rsi_tui.journal.facts import CandidateFacts, Interval, TrialFacts
from rsi_tui.journal.steps import Steps
from tests.support.loops import Writer
from tests.support.story import failed_trial, trial

STACK = CandidateFacts(id="c9", commit="9", base="0")
SECONDS = {"c9": 0.100, "c1": 0.112, "c2": 0.100, "c3": 0.104}
"""score of the stack, and of the stack without each change"""


def part(name: str, without: str) -> Part:
    return Part(name, "new code", f"of {name}", CandidateFacts(id=without, commit=without, base="0"))


PARTS = [part("sdpa", "c1"), part("passenger", "c2"), part("fused", "c3")]


class Machine:
    """Runs blocks at once: a little noise that differs from block to block, and whatever else is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str, int], bool] = lambda id, block: False,
                 void: Callable[[int], str] = lambda block: "") -> None:  # fmt: skip
        self.plans: list[BlockPlan] = []
        self.fails, self.void = fails, void
        self.writer = Writer()
        objective = SimpleNamespace(margin=0.005)
        self.lab: Any = SimpleNamespace(
            steps=Steps(self.writer, ()), contract=SimpleNamespace(objective=objective), randbelow=lambda n: (7 * len(self.plans) + 3) % n
        )
        monkeypatch.setattr(room, "draw_block", self.draw)
        monkeypatch.setattr(room, "run_block", self.run)

    def draw(self, lab: object, step: str, order: Callable[[], Any]) -> tuple[str, Draw, str]:
        return step.replace("/", "-"), Draw(seed=len(self.plans), steps=30, order=tuple(order())), "c" * 64

    def run(self, lab: object, plan: BlockPlan) -> BlockOutcome:
        self.plans.append(plan)
        block = len(self.plans)
        timed: list[TrialFacts] = []
        for number, slot in enumerate(plan.timed):
            id, at = slot.candidate.id, 100 * block + number
            noise = 1 + 0.002 * math.sin(at)
            timed.append(failed_trial(at, id) if self.fails(id, block) else trial(at, id, "claim", slot.arm, SECONDS[id] * noise))
        return BlockOutcome(plan, timed=timed, void=self.void(block))


def facts(found: LeftOut) -> dict[str, Any]:
    return {part.name: part for part in found.parts}


def test_each_block_runs_the_stack_and_itself_without_each_change_once_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    leave_one_out(machine.lab, "e/r1", STACK, PARTS, last=False)
    assert len(machine.plans) == fewest_blocks(3, CONFIDENCE)
    for plan in machine.plans:
        assert plan.sealed and plan.purpose == "leave-one-out" and plan.kind == "claim" and plan.setup == ()
        assert sorted(slot.candidate.id for slot in plan.timed) == ["c1", "c2", "c3", "c9"]
        assert [slot.candidate.id for slot in plan.timed if slot.arm == "incumbent"] == ["c9"]
        assert plan.halt is None and not plan.judge.compare
    assert len({tuple(s.candidate.id for s in plan.timed) for plan in machine.plans}) > 1, "the order is drawn anew"
    assert len({plan.draw.seed for plan in machine.plans}) == len(machine.plans)


def test_what_a_change_is_worth_is_the_time_without_it_over_the_time_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    found = leave_one_out(machine.lab, "e/r1", STACK, PARTS, last=False)
    known = facts(found)
    assert known["sdpa"].interval.estimate == pytest.approx(1.12, abs=0.01) and known["sdpa"].proven
    assert known["sdpa"].log_ratio == pytest.approx(-math.log(known["sdpa"].interval.estimate))
    assert known["fused"].interval.low > 1 and known["fused"].proven
    assert known["passenger"].interval.low <= 1 and not known["passenger"].proven
    assert known["sdpa"].interval.confidence == pytest.approx(1 - 0.05 / 3)
    assert found.dropped == "passenger" and (known["sdpa"].candidate, known["sdpa"].how) == ("of sdpa", "leave-one-out")
    assert found.trials and machine.writer.bodies(LeftOut) == [found]


def test_the_last_round_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leave_one_out(Machine(monkeypatch).lab, "e/r4", STACK, PARTS, last=True).dropped == ""


def test_a_stack_that_does_not_run_without_a_change_needs_it_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, fails=lambda id, block: id == "c1" and block == 2)
    known = facts(leave_one_out(machine.lab, "e/r1", STACK, PARTS, last=False))
    assert known["sdpa"].proven and known["sdpa"].interval is None and known["sdpa"].log_ratio is None
    assert known["sdpa"].note.startswith("without it the run ends as oom: the run was killed at its memory limit")
    assert [len(plan.timed) for plan in machine.plans[:3]] == [4, 4, 3], "its runs are over"
    assert known["fused"].interval.confidence == pytest.approx(1 - 0.05 / 3), "it was asked, and counts among those that were"


def test_when_every_change_is_needed_no_further_block_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, fails=lambda id, block: id != "c9")
    found = leave_one_out(machine.lab, "e/r1", STACK, PARTS, last=False)
    assert len(machine.plans) == 1 and found.dropped == "" and all(part.proven for part in found.parts)


def test_a_fault_of_the_host_voids_a_block_which_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, void=lambda block: "the machine slept" if block in (2, 3) else "")
    found = leave_one_out(machine.lab, "e/r1", STACK, PARTS, last=False)
    assert len(machine.plans) == fewest_blocks(3, CONFIDENCE) + 2 and found.trouble == "" and len(found.parts) == 3
    assert len({plan.id for plan in machine.plans}) == len(machine.plans), "under a draw of its own"


def test_too_many_of_them_teach_nothing_and_drop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, void=lambda block: "the machine slept" if block > 3 else "")
    found = leave_one_out(machine.lab, "e/r1", STACK, PARTS, last=False)
    assert len(machine.plans) == 3 + MAX_VOID + 1
    assert (found.parts, found.dropped) == ((), "") and "the machine slept" in found.trouble


def around(estimate: float, low: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=2 * estimate - low, confidence=0.95)


@pytest.mark.parametrize(
    ("intervals", "dropped"),
    [
        ({}, ""),
        ({"a": around(1.10, 1.05), "b": around(1.02, 1.01)}, ""),
        ({"a": around(1.10, 1.05), "b": around(1.002, 0.98)}, "b"),
        ({"a": around(1.10, 0.99), "b": around(1.03, 0.98)}, ""),
        ({"a": around(0.95, 0.90), "b": around(1.0, 0.98)}, "a"),
        ({"a": around(1.001, 1.0005)}, ""),
    ],
    ids=["none", "all proven", "a passenger", "unproven but visibly worth something", "the worst of two", "tiny and proven"],
)  # fmt: skip
def test_only_what_shows_no_worth_is_left_out(intervals: dict[str, Interval], dropped: str) -> None:
    assert worth_nothing(intervals, 0.005) == dropped

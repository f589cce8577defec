"""Before the claim the stack is measured without each of its changes; what is left is what the claim proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rsi_tui.audit.report import render_report, report_data
from rsi_tui.journal.events import CandidateBuilt, CandidateRefused, Claimed, Event, LeftOut, VerdictReached
from rsi_tui.journal.facts import LEAVE_ONE_OUT, AttributionFacts
from rsi_tui.journal.rows import batch_of
from rsi_tui.journal.view import CampaignView, campaign_summary
from rsi_tui.loop.elimination import ROUNDS
from rsi_tui.loop.outer import run_campaign
from rsi_tui.minds.protocol import ChangeAnswer, ExecutorBrief, PastEffect
from tests.loop.test_search import Remembering
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench

ON = {"canaries": False, "leave_one_out": True}
WORTH = (0.1, 0.08)
NOTHING = (0.001, -0.02)
UNSURE = (0.02, -0.01)
"""visibly worth something, and not proven"""


def helper(name: str) -> str:
    return f"\n\ndef {name}(value):\n    return value\n"


APART = [{"model.py": helper("one")}, {"train.py": helper("two")}, {"model.py": helper("three")}]


def campaign(
    folder: Path, worth: Mapping[str, tuple[float, float] | str], *, bundle: bool = True, patches: Sequence[dict[str, str]] = APART,
    mind: type[PatchMind] = PatchMind, events: Sequence[Event] = (),
) -> Bench:  # fmt: skip
    made = bench(folder, mind(list(patches)), bundle=bundle, candidates=len(patches), events=events, proof=ON)
    made.oracle.worth = lambda name: worth.get(name, WORTH)
    return made


def claimed(made: Bench) -> dict[str, AttributionFacts]:
    return {part.name: part for part in made.writer.bodies(Claimed)[-1].claim.attribution}


def view_of(made: Bench) -> tuple[CampaignView, list[Event]]:
    first = made.writer.events[0].model_copy(update={"body": made.ctx.created, "step": "created"})
    events = [first, *made.writer.events]
    return CampaignView().feed_all(events), events


def files(made: Bench, candidate: str) -> str:
    return "\n".join(made.ctx.sources(made.ctx.memory.candidate(candidate).commit).values())


@pytest.mark.parametrize("bundle", [True, False])
def test_what_contributes_is_measured_and_proven_part_by_part(tmp_path: Path, bundle: bool) -> None:
    made = campaign(tmp_path, {}, bundle=bundle)
    assert run_campaign(made.ctx) == "finished"
    (round_,) = made.writer.bodies(LeftOut)
    best = made.ctx.memory.best
    assert (round_.stack, round_.dropped) == (best.id, "")
    assert made.oracle.claimed == [best.id], "nothing was left out: the stack as it was adopted"
    assert made.oracle.unverified == []
    assert {part.name for part in round_.parts} == {"c1", "c2", "c3"}
    for part in claimed(made).values():
        assert part.how == "leave-one-out" and part.proven and part.interval is not None and part.candidate == part.name


def test_the_stack_without_a_change_is_the_other_changes_on_the_original(tmp_path: Path) -> None:
    made = campaign(tmp_path, {})
    run_campaign(made.ctx)
    probes = [body.candidate for body in made.writer.bodies(CandidateBuilt) if body.direction == LEAVE_ONE_OUT]
    assert [probe.members for probe in probes] == [("c2", "c3"), ("c1", "c3"), ("c1", "c2")]
    for probe in probes:
        assert probe.parent == "original"
        text = files(made, probe.id)
        present = {name for name, id in (("one", "c1"), ("two", "c2"), ("three", "c3")) if id in probe.members}
        assert {name for name in ("one", "two", "three") if f"def {name}(" in text} == present


@pytest.mark.parametrize("bundle", [True, False])
def test_a_passenger_is_left_out_and_the_claim_proves_what_is_left(tmp_path: Path, bundle: bool) -> None:
    made = campaign(tmp_path, {"c2": NOTHING}, bundle=bundle)
    assert run_campaign(made.ctx) == "finished"
    adopted = next(b.verdict.candidate for b in reversed(made.writer.bodies(VerdictReached)) if b.verdict.alpha > 0)
    first, second = made.writer.bodies(LeftOut)
    assert (first.stack, first.dropped, second.dropped) == (adopted, "c2", "")
    (final,) = made.oracle.claimed
    assert second.stack == final != adopted
    assert made.oracle.unverified == [final], "it must show what a verification asks of every other adoption"
    text = files(made, final)
    assert "def one(" in text and "def three(" in text and "def two(" not in text
    assert set(claimed(made)) == {"c1", "c3"}
    assert made.ctx.memory.best.id == final, "proven by its claim, it is what is applied"
    view, events = view_of(made)
    best = view.best()
    assert best is not None and best.id == final and view.candidates[adopted].superseded == final
    rows = {row["id"]: row for row in batch_of(events).candidates}
    assert rows[f"c/{final}"]["verdict"] == "adopted"
    if bundle:
        assert rows["c/c2"]["reason"] == f"left out of {adopted}: it contributed nothing that could be measured"
    assert (rows[f"c/{adopted}"]["verdict"], rows[f"c/{adopted}"]["reason"]) == ("superseded", f"proven without c2 as {final}")


def test_probes_are_no_candidates_of_the_campaign(tmp_path: Path) -> None:
    made = campaign(tmp_path, {})
    run_campaign(made.ctx)
    view, events = view_of(made)
    assert campaign_summary(view)["candidates"] == 4, "three and their bundle"
    assert len(view.apart) == 3 and len(view.bundles) == 1
    assert {row["id"] for row in batch_of(events).candidates} == {"c/c1", "c/c2", "c/c3", "c/c4"}
    assert report_data(view, events)["pending"] == []


def test_changes_are_left_out_one_at_a_time_and_measured_anew(tmp_path: Path) -> None:
    made = campaign(tmp_path, {"c1": NOTHING, "c2": (0.0, -0.03)})
    run_campaign(made.ctx)
    rounds = made.writer.bodies(LeftOut)
    assert [round_.dropped for round_ in rounds] == ["c2", "c1"]
    assert len({round_.stack for round_ in rounds}) == 2
    assert made.oracle.claimed == ["c3"], "what is left is a change that stands for itself"
    view, events = view_of(made)
    assert "the only change, proven by its verification" in render_report(view, events)


def test_the_last_round_leaves_nothing_out(tmp_path: Path) -> None:
    patches = [{"model.py": helper(name)} for name in ("a", "b", "c", "d", "e", "f")]
    made = campaign(tmp_path, {f"c{n}": NOTHING for n in range(1, 7)}, patches=patches)
    run_campaign(made.ctx)
    rounds = made.writer.bodies(LeftOut)
    assert len(rounds) == ROUNDS and [bool(round_.dropped) for round_ in rounds] == [True] * (ROUNDS - 1) + [False]
    assert len(claimed(made)) == 6 - ROUNDS + 1
    assert all(part.how == "leave-one-out" and not part.proven for part in claimed(made).values())


def test_a_change_that_only_seems_to_be_worth_something_stays_unproven_alone(tmp_path: Path) -> None:
    made = campaign(tmp_path, {"c2": UNSURE})
    run_campaign(made.ctx)
    assert not claimed(made)["c2"].proven and claimed(made)["c1"].proven
    view, events = view_of(made)
    report = render_report(view, events)
    table = report.split("| change | kind |")[1].split("\n\n")[0]
    unproven = [line for line in table.splitlines() if "unproven alone" in line]
    assert len(unproven) == 1 and "c2" in unproven[0]
    assert "leave-one-out proved c1 and c3, the others are **unproven alone**" in report


def test_a_change_without_which_the_stack_does_not_run_is_needed(tmp_path: Path) -> None:
    made = campaign(tmp_path, {"c2": "without it the run ends as oom: out of memory"})
    run_campaign(made.ctx)
    part = claimed(made)["c2"]
    assert part.proven and part.log_ratio is None and part.interval is None
    view, events = view_of(made)
    report = render_report(view, events)
    assert "leave-one-out: without it the run ends as oom: out of memory" in report and "None" not in report.replace("-> None", "")


class OnTop(PatchMind):
    """Its second patch changes what the first one put there."""

    def select(self, brief):  # type: ignore[no-untyped-def]
        answer = super().select(brief)
        if brief.round != 2:
            return answer
        from dataclasses import replace

        return replace(answer, parent="c1")

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        number = int(brief.hypothesis.statement.split()[1])
        text = brief.sources["model.py"]
        if number == 2:
            return ChangeAnswer(sources={"model.py": text.replace("def one(value):\n    return value", "def one(value):\n    return value + 0")})
        return super().execute(brief)


def test_a_change_that_others_build_on_is_named_and_stays(tmp_path: Path) -> None:
    made = campaign(tmp_path, {"c3": NOTHING}, mind=OnTop)
    assert run_campaign(made.ctx) == "finished"
    refused = [body for body in made.writer.bodies(CandidateRefused) if body.direction == LEAVE_ONE_OUT]
    assert refused and all("c2 can't be applied" in body.reason for body in refused)
    measured = {part.name for round_ in made.writer.bodies(LeftOut) for part in round_.parts}
    assert "c1" not in measured and {"c2", "c3"} <= measured
    part = claimed(made)["c1"]
    assert part.how == "estimate from screening" and not part.proven and "c2 can't be applied to original without it" in part.note


def test_a_reproduced_proof_is_taken_apart_into_its_techniques(tmp_path: Path) -> None:
    proof = PastEffect(
        record="old/c7", techniques=("sdpa", "setting:micro_batch=4"), knobs={"micro_batch": 4}, verdict="adopted", outcome="ok",
        log_ratio=-0.3, fit=1.0, same_workload=True,
    )  # fmt: skip
    made = bench(tmp_path, Remembering(), past=(proof,), proof=ON)
    made.oracle.worth = lambda name: NOTHING if name.startswith("setting") else WORTH
    assert run_campaign(made.ctx) == "finished"
    (round_,) = made.writer.bodies(LeftOut)
    assert {(part.name, part.kind, part.candidate) for part in round_.parts} == {
        ("sdpa", "new code", "c1"), ("setting:micro_batch=4", "setting never switched on", "c1"),
    }  # fmt: skip
    assert round_.dropped == "setting:micro_batch=4"
    final = made.ctx.memory.candidate(made.oracle.claimed[0])
    assert final.techniques == ("sdpa",) and final.knobs == made.ctx.contract.defaults


@pytest.mark.parametrize(("patches", "on"), [(APART[:1], True), (APART, False)], ids=["a single change", "not asked for"])
def test_nothing_is_measured_where_there_is_nothing_to_learn(tmp_path: Path, patches: list[dict[str, str]], on: bool) -> None:
    made = bench(tmp_path, PatchMind(patches), candidates=len(patches), proof={"canaries": False, "leave_one_out": on})
    assert run_campaign(made.ctx) == "finished"
    assert made.writer.bodies(LeftOut) == []
    assert all(part.how == "estimate from screening" for part in claimed(made).values())
    view, events = view_of(made)
    assert ("each is **unproven alone**" in render_report(view, events)) == (not on)


def test_where_what_is_left_turns_out_broken_the_stack_as_it_was_adopted_is_claimed(tmp_path: Path) -> None:
    made = campaign(tmp_path, {"c2": NOTHING})
    made.oracle.refuted = lambda stack: "run t40 of the stack has no time (oom)" if "c2" not in stack.members else ""
    assert run_campaign(made.ctx) == "finished"
    assert len(made.oracle.claimed) == 2 and made.oracle.claimed[-1] == made.ctx.memory.best.id == "c4"
    assert made.oracle.unverified == made.oracle.claimed[:1]
    assert {part.how for part in claimed(made).values()} == {"estimate from screening"}


def test_an_elimination_that_was_killed_anywhere_is_resumed(tmp_path: Path) -> None:
    whole = campaign(tmp_path, {"c2": NOTHING}, bundle=False, patches=no_op_patches(3))
    run_campaign(whole.ctx)
    steps = [event.step for event in whole.writer.events if event.step]
    begun = next(n for n, event in enumerate(whole.writer.events) if event.step == "state/claiming")
    for cut in range(begun, len(whole.writer.events)):
        again = campaign(tmp_path, {"c2": NOTHING}, bundle=False, patches=no_op_patches(3), events=whole.writer.events[:cut])
        assert run_campaign(again.ctx) == "finished"
        assert [event.step for event in again.writer.events if event.step] == steps
        assert again.ctx.memory.best == whole.ctx.memory.best

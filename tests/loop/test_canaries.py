"""Canaries are measured like any candidate, seen by no mind and counted by nobody; an adopted one ends the campaign."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rsi_tui.app.plain import lines_of
from rsi_tui.audit.pages import page, why_page
from rsi_tui.audit.report import render_report
from rsi_tui.errors import RsiError
from rsi_tui.journal.events import (
    CanaryPlanted,
    CandidateBuilt,
    CandidateRefused,
    DirectionOpened,
    Event,
    Revoked,
    Screened,
    StateChanged,
    VerdictReached,
)
from rsi_tui.journal.facts import CANARY, CandidateFacts, Verdict
from rsi_tui.journal.rows import batch_of
from rsi_tui.journal.view import CampaignView, campaign_summary
from rsi_tui.loop import canaries, engine
from rsi_tui.loop.outer import run_campaign
from rsi_tui.minds.protocol import (
    CloseDirection,
    DirectionAnswer,
    DirectorBrief,
    EndSearch,
    HypothesisAnswer,
    SelectorBrief,
)
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench

ON = {"canaries": True, "leave_one_out": False}


def calm(candidate: CandidateFacts) -> float:
    """Nothing is faster than anything."""
    return 0.0


@dataclass
class Watching(PatchMind):
    """Remembers every candidate that it was shown."""

    seen: set[str] = field(default_factory=set)

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        self.seen |= {attempt.candidate.id for attempt in brief.attempts}
        return super().direct(brief)

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        self.seen |= {candidate.id for candidate in brief.archive} | {attempt.candidate.id for attempt in brief.attempts}
        return super().select(brief)


def campaign(
    folder: Path,
    count: int = 6,
    *,
    effect: Callable[[CandidateFacts], float] = calm,
    verdict: Callable[[CandidateFacts], Verdict] = lambda candidate: "not_proven",
    events: tuple[Event, ...] = (),
    bundle: bool = False,
) -> Bench:
    made = bench(folder, Watching(no_op_patches(count)), candidates=count, bundle=bundle, events=events, proof=ON)
    made.oracle.effect, made.oracle.verdict = effect, verdict
    return made


def canary(candidate: CandidateFacts) -> bool:
    return candidate.id.startswith("k")


def test_the_first_one_is_verified_before_the_search_with_error_probability_of_its_own(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    assert run_campaign(made.ctx) == "finished"
    kinds = [type(event.body) for event in made.writer.events]
    assert kinds.index(VerdictReached) < kinds.index(DirectionOpened)
    (planted,) = made.writer.bodies(CanaryPlanted)
    assert (planted.candidate, planted.kind, planted.forced) == ("k1", "no-op", True)
    assert made.oracle.verified == [("k1", "original")] and made.oracle.forced == ["k1"], "its first block is run to its end"
    assert made.writer.bodies(VerdictReached)[0].verdict.alpha == canaries.ALPHA
    assert made.ctx.ledger.settled == [], "nothing of the campaign's error probability is spent"


def test_it_is_a_commit_of_the_mirror_that_differs_from_its_parent(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    run_campaign(made.ctx)
    built = next(body for body in made.writer.bodies(CandidateBuilt) if body.direction == CANARY)
    assert made.ctx.mirror.refs()["refs/rsi/c/k1"] == built.candidate.commit != made.ctx.mirror.base
    assert built.diff == made.ctx.mirror.diff(made.ctx.mirror.base, built.candidate.commit)
    assert built.candidate.knobs == made.ctx.contract.defaults


@pytest.mark.slow
def test_one_in_twenty_does_nothing_and_one_in_fifty_is_slower(tmp_path: Path) -> None:
    made = campaign(tmp_path, 50)
    run_campaign(made.ctx)
    planted = made.writer.bodies(CanaryPlanted)
    assert sorted(body.kind for body in planted) == ["no-op", "no-op", "no-op", "slower"]
    assert [body.candidate for body in planted if body.forced] == ["k1"]
    waves = [{result.candidate for result in body.results} for body in made.writer.bodies(Screened)]
    assert all(len(wave) <= 4 for wave in waves)
    assert {"k2", "k3", "k4"} <= set().union(*waves), "each is screened"
    assert sum(not wave - {"k2", "k3", "k4"} for wave in waves) <= 1, "beside ordinary candidates, but for the last"


def test_no_mind_sees_them_and_no_budget_counts_them(tmp_path: Path) -> None:
    made = campaign(tmp_path, 30)
    run_campaign(made.ctx)
    mind = made.ctx.mind
    assert isinstance(mind, Watching)
    assert mind.seen and not any(id.startswith("k") for id in mind.seen)
    assert len(made.ctx.memory.attempts) == 30 and made.ctx.candidates_left == 0
    assert sum(planted is not None for _, planted in made.ctx.memory.canaries) == 3


def test_no_list_count_or_library_holds_them_and_the_report_has_a_section_of_its_own(tmp_path: Path) -> None:
    made = campaign(tmp_path, 30)
    run_campaign(made.ctx)
    events = recorded(made)
    view = CampaignView().feed_all(events)
    assert campaign_summary(view)["candidates"] == 30
    assert view.adopted() == [] and view.best() is None
    rows = batch_of(events)
    assert len(rows.candidates) == 30 and not any("/k" in row["id"] for row in (*rows.candidates, *rows.texts, *rows.trials))
    assert not any("/k" in diff.candidate for diff in rows.diffs)
    report = render_report(view, events)
    assert "3 planted, none adopted" in report
    assert "k1" in report.split("## Canaries")[1].split("##")[0]
    assert "k1" not in report.split("## Canaries")[0]


def test_a_person_can_read_of_each(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    run_campaign(made.ctx)
    view = CampaignView().feed_all(recorded(made))
    text = page(view, "k1").text()
    assert "a canary, a change that does nothing" in text and "not proven" in text and "+++ b/" in text
    assert "k1, a change that does nothing, forced: verified: not proven" in page(view, "").text()
    assert "k1" in why_page(view, "k1").title
    line = "\n".join(text for event in recorded(made) for _, text in lines_of(view, event))
    assert "canary k1: a change that does nothing, which must not be adopted" in line
    assert "verdict on canary k1: not proven, as it must be" in line


def recorded(made: Bench) -> list[Event]:
    """The record as a journal holds it: the campaign's contract first."""
    first = made.writer.events[0].model_copy(update={"body": made.ctx.created, "step": "created"})
    return [first, *made.writer.events]


@pytest.mark.slow
def test_one_that_screening_promotes_is_verified_on_what_screening_saw(tmp_path: Path) -> None:
    made = campaign(tmp_path, 10, effect=lambda c: -0.1 if canary(c) else 0.0)
    assert run_campaign(made.ctx) == "finished"
    assert made.oracle.verified == [("k1", "original")], "the forced one is not screened as well"
    more = campaign(tmp_path / "more", 30, effect=lambda c: -0.1 if canary(c) else 0.0)
    run_campaign(more.ctx)
    assert more.oracle.verified == [("k1", "original"), ("k2", "original"), ("k3", "original")]
    assert more.oracle.forced == ["k1"]


@pytest.mark.parametrize("bundle", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_adopted_one_stops_the_campaign_and_takes_every_adoption_back(tmp_path: Path, bundle: bool) -> None:
    made = campaign(
        tmp_path, 30, bundle=bundle, effect=lambda c: -0.1,
        verdict=lambda c: "adopted" if c.id == "k2" or not canary(c) else "not_proven",
    )  # fmt: skip
    assert run_campaign(made.ctx) == "stopped"
    revoked = [body.candidate for body in made.writer.bodies(Revoked)]
    adopted = [body.verdict.candidate for body in made.writer.bodies(VerdictReached) if body.verdict.verdict == "adopted"]
    assert revoked == [id for id in reversed(adopted) if id != "k2"] and (bundle or revoked)
    assert made.ctx.memory.best.id == "original"
    view = CampaignView().feed_all(recorded(made))
    assert view.adopted() == [] and view.state_words.startswith("stopped (canary k2")
    assert made.writer.bodies(StateChanged)[-1].state == "stopped"
    assert made.oracle.claimed == []


def test_a_machine_that_proves_nothings_is_found_before_hours_are_spent(tmp_path: Path) -> None:
    made = campaign(tmp_path, verdict=lambda c: "adopted")
    state, code, sentence = engine._search(made.ctx)
    assert (state, code) == ("stopped", RsiError.exit_code)
    assert made.writer.bodies(DirectionOpened) == []
    assert "k1" in sentence and "cores of their own" in sentence and ". " not in sentence


def test_without_a_place_for_one_that_is_said_once_and_the_search_goes_on(tmp_path: Path) -> None:
    made = bench(tmp_path, Watching(no_op_patches(30)), candidates=30, bundle=False, proof=ON)
    made.oracle.effect, made.oracle.verdict = calm, lambda c: "not_proven"
    quiet = made.ctx.contract.launch.model_copy(update={"progress": "never (?P<step>x)(?P<loss>y)"})
    made.ctx.contract = made.ctx.contract.model_copy(update={"launch": quiet})
    assert run_campaign(made.ctx) == "finished"
    (refused,) = made.writer.bodies(CandidateRefused)
    assert (refused.direction, refused.reason) == (CANARY, "no loop that prints the progress lines was found")
    assert [body.kind for body in made.writer.bodies(CanaryPlanted)] == ["no-op", "no-op"]


def test_a_quick_campaign_plants_none(tmp_path: Path) -> None:
    made = bench(tmp_path, Watching(no_op_patches(4)))
    run_campaign(made.ctx)
    assert made.writer.bodies(CanaryPlanted) == [] and made.ctx.memory.canaries == []


@pytest.mark.slow
def test_a_campaign_that_was_killed_anywhere_plants_the_same_ones(tmp_path: Path) -> None:
    effect: Callable[[CandidateFacts], float] = lambda c: -0.1 if canary(c) or c.id in ("c2", "c9") else 0.0  # noqa: E731
    whole = campaign(tmp_path, 26, effect=effect)
    assert run_campaign(whole.ctx) == "finished"
    for cut in range(4, len(whole.writer.events) - 1, 9):
        again = campaign(tmp_path, 26, effect=effect, events=tuple(whole.writer.events[:cut]))
        with contextlib.suppress(StopIteration):
            assert run_campaign(again.ctx) == "finished"
        assert [body.candidate for body in again.writer.bodies(CanaryPlanted)] == ["k1", "k2"]
        steps = [event.step for event in again.writer.events if event.step]
        assert len(steps) == len(set(steps))
        assert [s for s in steps if "retrieved" not in s] == [e.step for e in whole.writer.events if e.step and "retrieved" not in e.step]

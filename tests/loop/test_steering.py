"""People steer: ideas are tried or declined, a pin and a budget bind the loop, all of it over a crash."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.audit import pages
from rsi_tui.cli import app
from rsi_tui.errors import UsageError
from rsi_tui.journal.commands import send_command, take_commands
from rsi_tui.journal.events import DirectionOpened, PersonActed, ProposalDeclined, SearchEnded
from rsi_tui.journal.facts import ORIGINAL
from rsi_tui.journal.view import CampaignView, load_campaign
from rsi_tui.loop.outer import baseline, search
from rsi_tui.loop.steering import Steering, budget_text, check_pin, pinned, read_budget
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.minds.protocol import DirectionAnswer, DirectorBrief, EndSearch
from tests.loop.test_search import OPEN, Endless
from tests.support.loops import Bench, bench
from tests.support.story import write_home

ID = "20261130-1"


def said(made: Bench, action: str, text: str) -> None:
    send_command(made.ctx.paths, "ada", action, text)  # type: ignore[arg-type]


def searched(made: Bench) -> Bench:
    baseline(made.ctx)
    search(made.ctx)
    return made


def directions(made: Bench) -> list[DirectionOpened]:
    return made.writer.bodies(DirectionOpened)


def test_an_idea_is_tried_before_anything_else_and_the_record_says_so(tmp_path: Path) -> None:
    made = bench(tmp_path, BuiltinMind(), candidates=3)
    said(made, "propose", "use clip-foreach, please")
    first = directions(searched(made))[0].direction
    assert first.proposal == "p1"
    assert first.question == "use clip-foreach, please"
    assert "clip-foreach" in first.techniques
    view = CampaignView().feed_all(made.writer.events)
    assert view.proposals()[0][:3] == ("p1", "ada", "use clip-foreach, please")
    assert view.proposals()[0][3] == "direction d1"
    assert "Ideas of people" in str(pages.campaign_page(view))


@pytest.mark.parametrize("idea", ["paint the office green", "rewrite it in Rust"])
def test_what_can_not_be_tried_is_declined_with_a_reason_once(tmp_path: Path, idea: str) -> None:
    made = bench(tmp_path, BuiltinMind(), candidates=2)
    said(made, "propose", idea)
    searched(made)
    (declined,) = made.writer.bodies(ProposalDeclined)
    assert declined.proposal == "p1"
    assert "no technique" in declined.reason
    assert directions(made), "the search goes on"
    assert not any(d.direction.proposal for d in directions(made))


def test_an_idea_that_was_tried_already_is_not_tried_again(tmp_path: Path) -> None:
    made = bench(tmp_path, BuiltinMind(), candidates=8)
    said(made, "propose", "clip-foreach")
    said(made, "propose", "clip-foreach again")
    searched(made)
    assert directions(made)[0].direction.proposal == "p1"
    assert [d.proposal for d in made.writer.bodies(ProposalDeclined)] == ["p2"]
    assert "was tried on original" in made.writer.bodies(ProposalDeclined)[0].reason


def test_a_setting_is_proposed_by_its_value(tmp_path: Path) -> None:
    made = bench(tmp_path, BuiltinMind(), candidates=2)
    said(made, "propose", "what about micro_batch=4?")
    first = directions(searched(made))[0].direction
    assert first.techniques == ("larger-micro-batch",)


def test_ideas_are_heard_by_the_engine_that_takes_the_campaign_up(tmp_path: Path) -> None:
    first = bench(tmp_path, BuiltinMind(), candidates=1)
    said(first, "propose", "paint the office green")
    searched(first)
    past = [e for e in first.writer.events if not isinstance(e.body, SearchEnded)]
    steering = Steering.of(past)
    assert [p.text for p in steering.proposals] == ["paint the office green"]
    again = bench(tmp_path, BuiltinMind(), events=past, candidates=1)
    again.ctx.steering = steering
    searched(again)
    assert len(again.writer.bodies(ProposalDeclined)) == 1


class Wanders(Endless):
    """Starts from the original whatever it is told, until it is told that it is wrong."""

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        self.asked_refusals = [*getattr(self, "asked_refusals", []), brief.previous_refusal]
        start = brief.pinned if brief.previous_refusal else ORIGINAL
        kind = "original" if start == ORIGINAL else "intermediate"
        return replace(OPEN, budget=1, start=start, start_kind=kind)  # type: ignore[arg-type]


def test_a_pin_binds_whatever_the_mind_answers(tmp_path: Path) -> None:
    mind = Wanders()
    made = bench(tmp_path, mind, candidates=1)
    searched(made)
    made.ctx.steering.candidates = 2
    made.ctx.steering.pinned = "c1"
    made.ctx.steps._done.pop("d2/opened")
    search(made.ctx)
    assert directions(made)[-1].direction.start == "c1"
    assert "a person pinned c1" in mind.asked_refusals[-1]


def test_a_pin_of_what_does_not_exist_any_more_binds_nobody(tmp_path: Path) -> None:
    made = bench(tmp_path, BuiltinMind(), candidates=1)
    made.ctx.steering.pinned = "c99"
    assert directions(searched(made))[0].direction.start == ORIGINAL


def test_a_smaller_budget_ends_the_search_and_a_larger_one_prolongs_it(tmp_path: Path) -> None:
    for folder, text, count in ((tmp_path / "a", "candidates=2", 2), (tmp_path / "b", "candidates=6", 6)):
        folder.mkdir()
        made = bench(folder, Endless(), candidates=4)
        said(made, "budget", text)
        searched(made)
        assert made.ctx.memory.searched == count


def test_hours_count_from_the_beginning(tmp_path: Path) -> None:
    made = bench(tmp_path, Endless(), candidates=1)
    said(made, "budget", "hours=2")
    made.ctx.take()
    assert made.ctx.deadline == pytest.approx(made.ctx.began + 7200, abs=1)
    said(made, "budget", "hours=3")
    made.ctx.take()
    assert made.ctx.deadline == pytest.approx(time.monotonic() + 3 * 3600, abs=60)


@pytest.mark.parametrize(("candidates", "hours", "text"), [(40, None, "candidates=40"), (None, 1.5, "hours=1.5"), (2, 3.0, "candidates=2 hours=3")])
def test_a_budget_is_written_and_read(candidates: int | None, hours: float | None, text: str) -> None:
    assert budget_text(candidates, hours) == text
    assert read_budget(text) == (candidates, hours)


@pytest.mark.parametrize(("candidates", "hours"), [(None, None), (0, None), (10**9, None), (None, 0.0), (None, float("nan")), (None, float("inf"))])
def test_a_budget_that_can_not_be_meant_is_one_sentence(candidates: int | None, hours: float | None) -> None:
    with pytest.raises(UsageError, match="budget"):
        budget_text(candidates, hours)


def test_only_what_may_be_built_on_is_pinned(tmp_path: Path) -> None:
    view = load_campaign(write_home(tmp_path), ID)
    assert check_pin(view, "original") == "original"
    assert check_pin(view, "none") == ""
    best = view.best()
    assert best is not None
    assert check_pin(view, best.id) == best.id
    with pytest.raises(UsageError, match="has no candidate c99"):
        check_pin(view, "c99")
    failed = next(c.id for c in view.candidates.values() if c.standing == "invalid")
    with pytest.raises(UsageError, match=f"{failed} is invalid"):
        check_pin(view, failed)
    assert pinned(view) == ""


def test_without_an_engine_nobody_would_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write_home(tmp_path)
    monkeypatch.setenv("RSI_HOME", str(home.root))
    for command in (["propose", "fused optimizer"], ["pin", "original"], ["budget", "--candidates", "3"]):
        result = CliRunner().invoke(app, command)
        assert isinstance(result.exception, UsageError), result.output
        assert "No engine works on" in str(result.exception)
    assert take_commands(home.campaign(ID)) == []


def test_commands_of_older_versions_are_read(tmp_path: Path) -> None:
    assert PersonActed.model_validate({"type": "person_acted", "who": "x", "action": "propose"}).text == ""
    assert Steering.of([]).proposals == []

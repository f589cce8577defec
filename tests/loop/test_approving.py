"""With --approval nothing counts before a person said so; vetoes, stops and dead engines included."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rsi_tui.errors import UsageError
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import Event, PersonActed, Revoked, StateChanged, VerdictReached
from rsi_tui.journal.view import CampaignView, load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.approving import UNAPPROVED, approve
from rsi_tui.loop.engine import run
from rsi_tui.loop.outer import run_campaign
from rsi_tui.loop.resuming import seconds_spent
from rsi_tui.loop.setup import Request, silent
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench
from tests.support.simulated import PATCHES, simulated, simulated_repository

OFF = {"canaries": False, "leave_one_out": False}


def campaign(folder: Path, events: Sequence[Event] = ()) -> Bench:
    made = bench(folder, PatchMind(no_op_patches(2)), candidates=2, events=events, bundle=False, proof=OFF)
    made.ctx.created = made.ctx.created.model_copy(update={"approval": True})
    made.ctx.approvals = [e.body for e in events if isinstance(e.body, PersonActed) and e.body.action == "approve"]
    return made


def waits(made: Bench) -> list[str]:
    return [body.waits for body in made.writer.bodies(StateChanged) if body.waits]


def saying(made: Bench, *words: tuple[str, str]) -> None:
    """What a person says within the first verification, before anything waits."""
    sent: list[str] = []

    def during(what: str) -> None:
        if what == "verify" and not sent:
            for action, text in words:
                sent.append(text)
                send_command(made.ctx.paths, "ann", action, text)  # type: ignore[arg-type]

    made.oracle.during = during


def test_what_is_approved_counts_and_each_is_asked_for_once(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    saying(made, ("approve", "c1"), ("approve", "c2"), ("approve", "c3"))
    assert run_campaign(made.ctx) == "finished"
    assert waits(made) == [verdict.verdict.candidate for verdict in made.writer.bodies(VerdictReached)] != []
    assert not made.writer.bodies(Revoked) and made.ctx.memory.adopted
    assert "c1 was approved by ann" in [body.reason for body in made.writer.bodies(StateChanged)]


def test_a_veto_takes_it_back_before_anything_rests_on_it(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    saying(made, ("veto", "c1: not in our house"), ("approve", "c2"), ("approve", "c3"))
    assert run_campaign(made.ctx) == "finished"
    kinds = made.writer.bodies(Revoked)
    assert [(body.candidate, body.who, body.reopened) for body in kinds] == [("c1", "ann", ())]
    assert {incumbent for _, incumbent in made.oracle.verified} == {"original"}


def test_a_stop_while_it_waits_takes_it_back(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    saying(made, ("stop", ""))
    assert run_campaign(made.ctx) == "stopped"
    assert [(body.candidate, body.who, body.reason) for body in made.writer.bodies(Revoked)] == [("c1", "rsi", UNAPPROVED)]
    assert not made.ctx.memory.adopted and made.oracle.revealed


def test_an_engine_that_died_while_it_waited_goes_on_waiting_and_asks_nobody_twice(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    threading.Timer(1.0, made.ctx.cancel.set).start()
    with pytest.raises(Interrupted, match="c1 waits for approval"):
        run_campaign(made.ctx)
    assert CampaignView().feed_all(made.writer.events).waiting == "c1"
    send_command(made.ctx.paths, "ann", "approve", "c1")
    again = campaign(tmp_path, made.writer.events)
    saying(again, ("approve", "c2"), ("approve", "c3"))
    assert run_campaign(again.ctx) == "finished"
    assert waits(again) == list(dict.fromkeys(waits(again))) and waits(again)[0] == "c1"
    once_more = campaign(tmp_path, again.writer.events)
    assert run_campaign(once_more.ctx) == "finished" and len(once_more.writer.events) == len(again.writer.events)


def test_without_the_option_nobody_is_asked(tmp_path: Path) -> None:
    made = bench(tmp_path, PatchMind(no_op_patches(2)), candidates=2, bundle=False, proof=OFF)
    assert run_campaign(made.ctx) == "finished" and not waits(made)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the hook's minder outlives the test
def test_a_whole_campaign_waits_calls_its_hook_and_goes_on(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    told = tmp_path / "told"
    (home.root / "config.toml").write_text(f"[hooks]\nneeds_approval = 'echo $RSI_EVENT >> {told}'\n")
    place, ends = simulated_repository(tmp_path / "program"), []
    said: list[str] = []

    def person() -> None:
        while not ends:
            threading.Event().wait(0.1)
            for path in home.campaigns.glob("*"):
                view = load_campaign(home, path.name) if (path / "journal.jsonl").exists() else None
                if view is not None and view.waiting and view.waiting not in said:
                    with pytest.raises(UsageError, match=f"c99 of {path.name} does not wait for approval; {view.waiting} does"):
                        approve(home, path.name, "c99", "ann")
                    said.append(view.waiting)
                    assert f"{view.waiting} waits for approval" in view.state_words
                    approve(home, path.name, view.waiting, "ann")

    watcher = threading.Thread(target=person)
    watcher.start()
    try:
        with simulated(same_draws=True):
            ended = run(home, Request(place, preset="simulated", candidates=2, approval=True), PatchMind(list(PATCHES[:2])), silent)
    finally:
        ends.append(1)
        watcher.join()
    assert ended.exit_code == 0 and said
    assert told.read_text().split() == ["needs_approval"] * len(said)
    view = load_campaign(home, ended.campaign)
    assert view.best() is not None and not view.waiting
    with pytest.raises(UsageError, match="nothing there does"):
        approve(home, ended.campaign, "c1", "ann")


def test_waiting_takes_nothing_of_the_hours(tmp_path: Path) -> None:
    events = [
        Event(seq=n, at=f"2026-12-01T12:{minute:02d}:00.000000+00:00", body=body, prev="", hash="")
        for n, (minute, body) in enumerate([
            (0, StateChanged(state="searching")), (10, StateChanged(state="searching", waits="c1")),
            (50, StateChanged(state="searching", reason="c1 was approved by ann")), (55, StateChanged(state="claiming")),
        ])
    ]  # fmt: skip
    assert seconds_spent(events) == 15 * 60

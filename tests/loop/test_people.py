"""People pause, resume and stop a campaign at any time, and their hours are kept, over engines that die."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rsi_tui.errors import JournalError
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import PersonActed, StateChanged
from rsi_tui.loop.context import Stopped
from rsi_tui.loop.outer import run_campaign
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench


def states(bench: Bench) -> list[str]:
    return [body.state for body in bench.writer.bodies(StateChanged)]


def actions(bench: Bench) -> list[str]:
    return [body.action for body in bench.writer.bodies(PersonActed)]


@pytest.fixture
def campaign(tmp_path: Path) -> Bench:
    return bench(tmp_path, PatchMind(no_op_patches(2)))


@pytest.mark.parametrize("where", ["profile", "calibrate", "screen", "verify", "claim"])
def test_a_stop_is_heeded_within_every_measurement(campaign: Bench, where: str) -> None:
    def between(what: str) -> None:
        if what == where:
            send_command(campaign.ctx.paths, "ann", "stop")
        campaign.ctx.heed_people()

    campaign.oracle.during = between
    assert run_campaign(campaign.ctx) == "stopped"
    assert campaign.writer.bodies(StateChanged)[-1].reason == "stopped by ann"
    assert campaign.oracle.revealed


@pytest.mark.parametrize(("where", "ends"), [("profile", "stopped"), ("screen", "stopped"), ("claim", "finished")])
def test_hours_end_the_search_and_never_a_claim_that_was_begun(campaign: Bench, where: str, ends: str) -> None:
    def between(what: str) -> None:
        if what == where:
            campaign.ctx.deadline = time.monotonic() - 1
        campaign.ctx.heed_people()

    campaign.oracle.during = between
    assert run_campaign(campaign.ctx) == ends
    assert campaign.ctx.out_of_time == (ends == "stopped")


def test_what_was_said_beside_a_stop_is_recorded_too(campaign: Bench) -> None:
    for action in ("stop", "note", "pause"):
        send_command(campaign.ctx.paths, "ann", action, "enough")  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        campaign.ctx.heed_people()
    assert actions(campaign) == ["stop", "note", "pause"]
    assert not list(campaign.ctx.paths.commands.iterdir())


def test_a_command_is_recorded_before_its_file_goes(campaign: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send_command(campaign.ctx.paths, "ann", "note", "remember")

    def full(*_: object) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(campaign.writer, "append", full)
        with pytest.raises(JournalError):
            campaign.ctx.heed_people()
    campaign.ctx.heed_people()
    campaign.ctx.heed_people()
    assert actions(campaign) == ["note"]


@pytest.mark.parametrize("where", ["profile", "calibrate", "claim"])
def test_a_pause_returns_to_the_state_it_was_in(campaign: Bench, where: str) -> None:
    def between(what: str) -> None:
        if what == where and "pause" not in actions(campaign):
            send_command(campaign.ctx.paths, "ann", "pause")
            threading.Timer(0.2, send_command, (campaign.ctx.paths, "ann", "resume")).start()
        campaign.ctx.heed_people()

    campaign.oracle.during = between
    assert run_campaign(campaign.ctx) == "finished"
    at = states(campaign).index("paused")
    assert states(campaign)[at + 1] == states(campaign)[at - 1]


def test_a_stop_meant_for_a_dead_engine_does_not_end_the_next_one(campaign: Bench) -> None:
    for action in ("stop", "note"):
        send_command(campaign.ctx.paths, "ann", action, "kept")  # type: ignore[arg-type]
    dropped = campaign.ctx.forget_the_past()
    assert [sentence.split()[1] for sentence in dropped] == ["stop"]
    assert actions(campaign) == ["note"]
    assert run_campaign(campaign.ctx) == "finished"


def test_a_pause_that_a_dead_engine_never_took_holds_the_next_one(campaign: Bench) -> None:
    send_command(campaign.ctx.paths, "ann", "pause")
    assert campaign.ctx.forget_the_past() == ()
    assert campaign.ctx.paused and states(campaign) == ["paused"]
    for action in ("resume", "pause", "resume"):
        send_command(campaign.ctx.paths, "ann", action)  # type: ignore[arg-type]
    campaign.ctx.forget_the_past()
    assert not campaign.ctx.paused


def test_hours_stand_still_while_people_pause(campaign: Bench) -> None:
    campaign.ctx.deadline = time.monotonic() + 0.4
    send_command(campaign.ctx.paths, "ann", "pause")
    threading.Timer(0.6, send_command, (campaign.ctx.paths, "ann", "resume")).start()
    campaign.ctx.heed_people()
    assert "resume" in actions(campaign) and campaign.ctx.deadline > time.monotonic()


def test_a_signal_ends_a_pause_as_an_interruption(campaign: Bench) -> None:
    send_command(campaign.ctx.paths, "ann", "pause")
    threading.Timer(0.1, campaign.ctx.cancel.set).start()
    with pytest.raises(Interrupted):
        campaign.ctx.heed_people()

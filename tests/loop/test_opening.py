"""Opening and ending a campaign: under the conditions it began with, leaving nothing half-made, whoever still listens."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.errors import ContractError, LibraryError, RsiError, UsageError
from rsi_tui.journal.chain import JournalWriter, holder, read_events
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import EngineStarted, Event, PersonActed, StateChanged
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop import engine, resuming, setup
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.engine import Ended, run
from rsi_tui.loop.outer import end
from rsi_tui.loop.recall import Recall
from rsi_tui.loop.setup import Request, open_campaign
from tests.support.campaigns import tiny_repository
from tests.support.loops import PROFILE, Writer
from tests.support.story import write_home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    return tiny_repository(tmp_path / "tiny")


def asked(workload: Path, **more: object) -> Request:
    return Request(workload, **{"preset": "quick", "candidates": 4, "hours": 1.0, **more})  # type: ignore[arg-type]


def begin(home: Home, workload: Path) -> Path:
    """A campaign that was interrupted at once; its journal."""
    opened = open_campaign(home, asked(workload))
    opened.writer.close()
    return opened.context.paths.journal


@pytest.mark.parametrize(
    ("again", "word"),
    [
        ({"unsandboxed": True}, "--unsandboxed"), ({"candidates": 5}, "4 candidates"), ({"hours": 2.0}, "1.0 hours"),
        ({"mind": "oracle"}, "builtin mind"),
    ],
)  # fmt: skip
def test_a_campaign_goes_on_only_as_it_was_begun(home: Home, workload: Path, again: dict[str, object], word: str) -> None:
    journal = begin(home, workload)
    before = journal.read_bytes()
    with pytest.raises(UsageError) as refused:
        open_campaign(home, asked(workload, resume=True, **again))
    assert word in str(refused.value) and str(refused.value).count(". ") == 0
    assert journal.read_bytes() == before


@pytest.mark.parametrize("name", ["hardware", "software"])
def test_measurements_of_another_machine_are_not_added(
    home: Home, workload: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    begin(home, workload)
    here = setup.fingerprint()
    monkeypatch.setattr(setup, "fingerprint", lambda: {**here, name: "something else"})
    with pytest.raises(UsageError, match="something else"):
        open_campaign(home, asked(workload, resume=True))


def test_what_is_not_said_again_stays_as_it_was(home: Home, workload: Path) -> None:
    begin(home, workload)
    opened = open_campaign(home, Request(workload, preset="quick", resume=True))
    opened.writer.close()
    assert opened.context.created.max_candidates == 4
    assert opened.context.deadline is not None


def test_a_pause_outlives_its_engine_and_is_said(home: Home, workload: Path) -> None:
    journal = begin(home, workload)
    with JournalWriter.open(journal) as writer:
        for state in ("contracted", "baselined", "paused"):
            writer.append(StateChanged(state=state))  # type: ignore[arg-type]
    opened = open_campaign(home, Request(workload, preset="quick", resume=True))
    id = opened.context.created.campaign
    assert opened.notes[-1] == f"Campaign {id} is paused: `rsi resume {id}` lets it go on."
    threading.Timer(0.2, send_command, (opened.context.paths, "ann", "resume")).start()
    opened.context.heed_people()
    opened.writer.close()
    view = CampaignView().feed_all(read_events(journal))
    assert (view.state, view.paused) == ("baselined", False)


def test_a_stop_that_was_recorded_ends_the_next_engine_too(home: Home, workload: Path) -> None:
    """The evaluator's secrets are published between a stop and the last state: nothing may be measured after them."""
    journal = begin(home, workload)
    with JournalWriter.open(journal) as writer:
        writer.append(PersonActed(who="ann", action="stop"), "command/1")
    opened = open_campaign(home, Request(workload, preset="quick", resume=True))
    with pytest.raises(Stopped, match="stopped by ann"):
        opened.context.heed_people()
    opened.writer.close()


def test_hours_count_while_an_engine_works_and_not_between_two() -> None:
    writer = Writer()
    for _ in range(2):
        writer.append(EngineStarted(pid=1, resumed=False))
        writer.append(StateChanged(state="contracted"))
    times = ("10:00:00", "10:30:00", "18:00:00", "18:10:00")
    events = [e.model_copy(update={"at": f"2026-11-30T{t}+00:00"}) for e, t in zip(writer.events, times, strict=True)]
    assert resuming.seconds_spent(events) == 40 * 60
    paused = events[1].model_copy(update={"body": StateChanged(state="paused")})
    assert resuming.seconds_spent([events[0], paused, *events[2:]]) == 30 * 60, "until somebody says that it goes on"
    assert resuming.seconds_spent([]) == 0


def test_an_opening_that_fails_leaves_nothing_new_and_nothing_locked(
    home: Home, workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = begin(home, workload)

    def fails(*_: object) -> None:
        raise RsiError("no evaluator")

    with monkeypatch.context() as patch:
        patch.setattr(setup, "_lab", fails)
        for resume in (False, True):
            with pytest.raises(RsiError, match="no evaluator"):
                open_campaign(home, Request(workload, preset="quick", resume=resume))
    assert [folder.name for folder in home.campaigns.iterdir()] == [journal.parent.name]
    assert [folder.name for folder in (home.root / "evaluator").iterdir()] == [journal.parent.name]
    assert holder(journal) is None


def search_ends(how: Callable[[Context], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an end in place of the search, and keep the library out."""
    monkeypatch.setattr(engine, "run_campaign", how)
    monkeypatch.setattr(Recall, "sync", lambda self: None)


def test_a_lost_terminal_does_not_end_a_campaign(home: Home, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_ends(lambda ctx: end(ctx, "finished", ""), monkeypatch)
    told: list[Event] = []

    def listen(event: Event) -> None:
        told.append(event)
        raise OSError(errno.EIO, "Input/output error")

    def note(sentence: str) -> None:
        raise BrokenPipeError

    (workload / "train.py").write_text((workload / "train.py").read_text() + "\n# a change that is left out, with a note\n")
    ended = run(home, Request(workload, preset="quick", committed=True), listen=lambda past: listen, on_note=note)
    assert ended.state == "finished" and ended.report is not None and ended.report.exists()
    assert len(told) == 1


def test_a_library_that_can_not_be_opened_is_a_note(home: Home, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_ends(lambda ctx: end(ctx, "finished", ""), monkeypatch)

    def locked(self: Recall) -> None:
        raise LibraryError("it is open in process 1")

    monkeypatch.setattr(Recall, "sync", locked)
    notes: list[str] = []
    ended = run(home, Request(workload, preset="quick"), on_note=notes.append)
    assert ended.exit_code == 0
    assert "open in process 1" in notes[-1]


def test_a_program_that_breaks_its_contract_later_ends_the_campaign_with_all_it_owes(
    home: Home, workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(ctx: Context) -> str:
        ctx.profile = PROFILE
        raise ContractError("the validation does not work.")

    search_ends(breaks, monkeypatch)
    ended = run(home, Request(workload, preset="quick"))
    assert (ended.state, ended.exit_code) == ("stopped", 2)
    assert ended.report is not None and ended.report.exists()
    assert "the validation does not work" in ended.sentence
    events = read_events(home.campaign(ended.campaign).journal)
    assert [event.step for event in events][-2:] == ["secrets", "state/stopped"]
    assert not home.campaign(ended.campaign).trees.exists()


def test_hours_that_ran_out_are_exit_code_five(home: Home, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs_out(ctx: Context) -> str:
        ctx.out_of_time = True
        return end(ctx, "stopped", "the hours are used up")

    search_ends(runs_out, monkeypatch)
    ended = run(home, Request(workload, preset="quick"))
    assert ended.exit_code == 5 and "hours ran out" in ended.sentence


def test_json_is_printed_however_a_campaign_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rsi_tui.cli import app

    home = write_home(tmp_path)
    report = tmp_path / "report.md"
    monkeypatch.setenv("RSI_HOME", str(home.root))
    monkeypatch.setattr(engine, "run", lambda *_, **__: Ended("20261130-1", "stopped", report, 5, "The hours ran out."))
    done = CliRunner().invoke(app, ["run", str(tmp_path), "--json"])
    assert done.exit_code == 5
    assert json.loads(done.stdout)["id"] == "20261130-1"
    assert "The hours ran out." in done.stderr
    assert "The hours ran out." not in done.stdout


@pytest.mark.parametrize("action", ["pause", "resume", "stop"])
def test_a_command_that_no_engine_would_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    from rsi_tui.cli import app

    home = write_home(tmp_path)
    monkeypatch.setenv("RSI_HOME", str(home.root))
    done = CliRunner().invoke(app, [action])
    assert isinstance(done.exception, UsageError) and "No engine" in str(done.exception)
    assert CliRunner().invoke(app, ["note", "this one waits for the next engine"]).exit_code == 0

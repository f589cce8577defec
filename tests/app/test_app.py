"""The app by its own driver: what each screen shows, what each key does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from textual.pilot import Pilot

from rsi_tui.app.actions import LIVE, PAGER
from rsi_tui.app.main import RsiApp, run_app
from rsi_tui.app.watch import LogTail
from rsi_tui.config import AppSettings, load_settings
from rsi_tui.errors import UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.commands import take_commands
from rsi_tui.journal.speaking import SpeakingWriter, Spoken
from rsi_tui.locations import Home
from tests.support.story import story, write_home, write_story

SNAPSHOTS = Path(__file__).parent / "snapshots"
FAST = AppSettings(poll_hz=20)


def text_of(app: RsiApp) -> str:
    """The screen as text, times replaced."""
    lines = [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", "\n".join(lines)) + "\n"


async def seen(app: RsiApp, pilot: Pilot[None], text: str) -> str:
    """The screen as soon as it holds a text; a busy machine is given time."""
    for _ in range(200):
        if text in (now := text_of(app)):
            return now
        await pilot.pause(0.05)
    raise AssertionError(f"never saw {text!r} in:\n{text_of(app)}")


async def gone(app: RsiApp, pilot: Pilot[None], text: str) -> None:
    """Returns as soon as the screen no longer holds a text."""
    for _ in range(200):
        if text not in text_of(app):
            return
        await pilot.pause(0.05)
    raise AssertionError(f"still there: {text!r} in:\n{text_of(app)}")


def app_on(home: Home, campaign: str | None = None) -> RsiApp:
    return RsiApp(home, campaign, FAST)


@pytest.mark.parametrize(
    ("stage", "size"), [("finished", (60, 20)), ("finished", (80, 24)), ("searching", (80, 24)), ("finished", (200, 50))]
)
async def test_the_first_screen_looks_as_it_should(tmp_path: Path, stage: str, size: tuple[int, int]) -> None:
    app = app_on(write_home(tmp_path, until=stage))  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await seen(app, pilot, "dense-single")
        expected = SNAPSHOTS / f"{stage}-{size[0]}x{size[1]}.txt"
        if os.environ.get("RSI_UPDATE_SNAPSHOTS"):
            await pilot.pause(0.5)
            expected.parent.mkdir(exist_ok=True)
            expected.write_text(text_of(app))
        for _ in range(40):  # the first screen may still be settling on a busy machine
            if (shown := text_of(app)) == expected.read_text():
                break
            await pilot.pause(0.05)
    assert shown == expected.read_text()
    assert all(len(line) <= size[0] for line in shown.splitlines())


async def test_an_empty_home_says_how_to_start_and_takes_up_the_first_campaign(tmp_path: Path) -> None:
    home = Home(tmp_path)
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "rsi run WORKLOAD")
        write_story(home.campaign("c1").journal, campaign="c1", until="baselined")
        await seen(app, pilot, "dense-single")
        await gone(app, pilot, "rsi run WORKLOAD    start")


async def test_a_running_campaign_is_followed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    paths = home.campaign("c")
    app = app_on(home, "c")
    with JournalWriter.open(paths.journal) as journal:
        bodies = list(story("c", until="verifying"))
        for body in bodies[:6]:
            journal.append(body)
        async with app.run_test(size=(100, 30)) as pilot:
            await seen(app, pilot, "baseline: 119 ms a step")
            for body in bodies[6:]:
                journal.append(body)
            await seen(app, pilot, "adopted, about 1.9x, not yet claimed")
            journal.append(
                ev.TrialStarted(trial="t99", candidate="c6", kind="claim", arm="candidate", block="k", slot=1, of=16, attempt=1)
            )
            paths.live_log.write_bytes(b"\x1b[31mstep 1 loss 8.3\x1b[0m\x07\nstep 2 loss \xff8.2\nstep 3")
            await seen(app, pilot, "running: t99 of c6 (claim, run 2 of 16)")
            assert "step 3" not in await seen(app, pilot, "step 1 loss 8.3")
            assert app.farewell().startswith("Campaign c runs on (process ")


async def test_pause_and_stop_leave_commands_for_the_engine(tmp_path: Path) -> None:
    home = write_home(tmp_path, campaign="c", until="searching")
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "--resume")
        await pilot.press("p")
        await seen(app, pilot, "no engine works on this campaign")
        assert take_commands(home.campaign("c")) == []
        with JournalWriter.open(home.campaign("c").journal) as journal:
            await seen(app, pilot, "selector works on d4")
            await pilot.press("p")
            await seen(app, pilot, "asked for: pause")
            await pilot.press("s", "n")
            assert [c.action for c in take_commands(home.campaign("c"))] == ["pause"]
            journal.append(ev.StateChanged(state="paused"))
            await seen(app, pilot, "searching (paused)")
            await pilot.press("p")
            await pilot.press("s")
            await seen(app, pilot, "y  yes")
            await pilot.press("y")
            await seen(app, pilot, "asked for: stop")
            assert [c.action for c in take_commands(home.campaign("c"))] == ["resume", "stop"]


async def test_ideas_pin_budget_and_notes_leave_commands_for_the_engine(tmp_path: Path) -> None:
    home = write_home(tmp_path, campaign="c", until="searching")
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        with JournalWriter.open(home.campaign("c").journal):
            await seen(app, pilot, "selector works on d4")
            await pilot.press("o")
            await seen(app, pilot, "What should be tried?")
            await pilot.press(*"sdpa", "enter")
            await seen(app, pilot, "propose sent: sdpa")
            await pilot.press("o", "escape", "b")
            await seen(app, pilot, "Budget in all")
            await pilot.press(*"many", "enter")
            await seen(app, pilot, "say what the budget is")
            await pilot.press("b", *"candidates=40", "enter")
            await seen(app, pilot, "budget sent: candidates=40")
            await pilot.press("n", *"busy", "space", *"noon", "enter")
            await seen(app, pilot, "note sent: busy noon")
            await pilot.press("a")
            await seen(app, pilot, "nothing waits for approval")
            await pilot.press("v")
            await seen(app, pilot, "put the cursor on what was adopted")
            await pilot.press("g", "i")
            await seen(app, pilot, "directions will start from original")
            found = [(c.action, c.text) for c in take_commands(home.campaign("c"))]
            assert found == [("propose", "sdpa"), ("budget", "candidates=40"), ("note", "busy noon"), ("pin", "original")]


async def test_keys_walk_the_tree_and_open_what_lies_under_the_cursor(tmp_path: Path) -> None:
    app = app_on(write_home(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("g", "j", "j", "enter")
        assert "predicted -17.3 % step time, screened -16.4 %" in await seen(app, pilot, "c1: Scaled-dot-product attention")
        await pilot.press("G")
        await seen(app, pilot, "t22 screen ok")
        await pilot.press("escape")
        await seen(app, pilot, "c1 promoted")
        await pilot.press("h", "h")
        await pilot.pause(0.1)
        assert "c1 promoted" not in text_of(app).split("Adopted")[0]
        await pilot.press("question_mark")
        await seen(app, pilot, "leave; the engine runs on")
        await pilot.press("q", "r")
        await seen(app, pilot, "Trust level A")


async def test_another_campaign_can_be_chosen(tmp_path: Path) -> None:
    home = write_home(tmp_path, campaign="old", until="baselined")
    write_story(home.campaign("new").journal, campaign="new")
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "+ c6 bundle")
        await pilot.press("c", "j", "enter")
        assert "c6" not in await seen(app, pilot, "nothing proven yet")
        assert "Campaign old" in app.farewell()


async def test_a_damaged_journal_is_said_and_does_not_end_the_app(tmp_path: Path) -> None:
    home = write_home(tmp_path, campaign="c", until="baselined")
    app = app_on(home)
    async with app.run_test(size=(120, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        with home.campaign("c").journal.open("ab") as file:
            file.write(b"{}\n")
        await seen(app, pilot, "damaged")
        await pilot.press("p", "s", "r", "enter")
        await pilot.pause(0.2)
        assert app.is_running


async def test_a_quiet_campaign_paints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_on(write_home(tmp_path, until="searching"))
    painted: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        monkeypatch.setattr(app, "_display", lambda screen, renderable: painted.append(renderable))
        for _ in range(10):  # the first screen may still be settling on a busy machine
            painted.clear()
            await pilot.pause(0.25)
            if not painted:
                break
        await pilot.pause(0.25)  # five looks at the journal
        assert painted == []


def test_every_key_is_bound_once_on_its_screen() -> None:
    for actions in (LIVE, PAGER):
        keys = [key for action in actions for key in action.keys.split(",")]
        assert len(keys) == len(set(keys))
        assert all(action.help for action in actions)


def test_a_log_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "live.log"
    tail = LogTail(path, keep=3)
    assert tail.poll() == (False, [])
    path.write_text("a\nb\nc\nd\nhal")
    assert tail.poll() == (True, ["a", "b", "c", "d"])
    assert list(tail.lines) == ["b", "c", "d"]
    with path.open("a") as file:
        file.write("f\n")
    assert tail.poll() == (False, ["half"])
    path.write_text("x\n")
    assert tail.poll() == (True, ["x"])


def test_an_unknown_campaign_or_setting_is_one_sentence_before_the_screen_opens(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    with pytest.raises(UsageError, match="nearest is 20261130-1"):
        run_app(home, "20261130-9")
    for text, message in (("[app]\nthem = 'x'", "app.theme"), ("[app]\npoll_hz = 99", "poll_hz"), ("[app", "no TOML")):
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(UsageError, match=message):
            load_settings(tmp_path)
    (tmp_path / "config.toml").write_text("[app]\ntheme = 'nord'")
    assert load_settings(tmp_path).app.theme == "nord"


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, rsi_tui.app.main, rsi_tui.app.plain, rsi_tui.audit.reading;"
        "print(sorted({'torch','sentence_transformers','lancedb','duckdb','anthropic','botorch','ray','numpy','scipy','jinja2'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_what_models_say_stands_under_the_state_and_goes_with_them(tmp_path: Path) -> None:
    home = write_home(tmp_path, until="searching")
    writer = SpeakingWriter(home.campaign("20261130-1").speaking)
    app = app_on(home, "20261130-1")
    with JournalWriter.open(home.campaign("20261130-1").journal):
        async with app.run_test(size=(80, 24)) as pilot:
            await seen(app, pilot, "dense-single")
            writer(Spoken(call="m3", role="executor", state="writing", text="First the files. "))
            await seen(app, pilot, "executor m3: First the files.")
            writer(Spoken(call="m3", role="executor", state="waiting", text="529 Overloaded", wait_s=60))
            assert "529 Overloaded" in await seen(app, pilot, "executor m3 waits")
            writer(Spoken(call="m3", role="executor", state="done", text="answered"))
            await gone(app, pilot, "executor m3")

"""Lists of hypotheses and failures: what they show, how they are narrowed, and what a line opens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rsi_tui.app.browse import BrowseScreen, RowList
from rsi_tui.app.main import RsiApp
from rsi_tui.app.rows import BAD, Row, failures, matching, notebook
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.events import TrialFinished
from rsi_tui.journal.view import CampaignView, load_campaign
from rsi_tui.library import end_server
from rsi_tui.locations import Home
from tests.app.test_app import app_on, gone, seen, text_of
from tests.support.story import trial, write_home, write_story

OLD = "20261129-1"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Two campaigns, the newer one still searching."""
    made = write_home(tmp_path, until="searching")
    write_story(made.campaign(OLD).journal, campaign=OLD)
    return made


def views(home: Home) -> list[CampaignView]:
    return [load_campaign(home, name) for name in ("20261130-1", OLD)]


def listed(app: RsiApp) -> list[Row]:
    return list(app.screen.query_one(RowList).rows)


# --- rows and filters


def test_every_hypothesis_is_listed_newest_first_under_its_campaign(home: Home) -> None:
    rows = notebook(views(home))
    headings = [row.cells[0] for row in rows if row.is_heading]
    assert [text.split()[0] for text in headings] == ["20261130-1", OLD] and "1.93x" in headings[1]
    old = [row.id for row in rows if row.campaign == OLD]
    assert old == ["c6", "c5", "c4", "c3", "h3", "c2", "c1"]
    by_id = {row.id: row for row in rows if row.campaign == OLD}
    assert by_id["c6"].fields["status"] == "adopted" and by_id["h3"].fields["status"] == "refused" and by_id["c3"].fields["status"] == "failed"


def test_failures_are_listed_by_cause_the_costliest_first_with_what_memory_they_asked_for(home: Home) -> None:
    rows = failures(views(home))
    assert rows[0].is_heading and rows[0].cells[0].startswith("host oom killed: ") and "of trial time" in rows[0].cells[0]
    assert {row.fields["cause"] for row in rows[1:] if row.campaign == OLD} == {"host_oom_killed", "duplicate", "invalid"}
    assert "asked for" in next(row for row in rows if row.id == "t23").cells[-2]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["c6", "c5", "c4", "c3", "h3", "c2", "c1"]),
        ("status:adopted", ["c6"]),
        ("layer:memory", ["c4", "c3"]),
        ("layer:memory status:failed", ["c3"]),
        ("AdamW", ["c6", "c2"]),
        ("technique:sdpa", ["c6", "c1"]),
        ("id:c1", ["c1"]),
        ("nothing:here", []),
        ("zebra", []),
    ],
)
def test_a_filter_takes_words_and_fields(home: Home, query: str, ids: list[str]) -> None:
    found = matching(notebook(views(home)[1:]), query)
    assert [row.id for row in found if not row.is_heading] == ids
    assert sum(row.is_heading for row in found) == (1 if ids else 0)


def test_twenty_thousand_rows_are_narrowed_while_one_types() -> None:
    rows = [Row("k", f"c{n}", ("x", f"c{n}", "", "", f"statement {n}"), BAD, {"status": "slower"}, f"c{n} statement {n} slower") for n in range(20_000)]
    began = time.perf_counter()
    assert len(matching(rows, "status:slower statement 1999")) == 12
    assert time.perf_counter() - began < 1.0


# --- the screens


@pytest.mark.parametrize(("key", "title", "size"), [("2", "Hypotheses", (80, 24)), ("3", "Failures", (80, 24)), ("2", "Hypotheses", (200, 50)), ("3", "Failures", (60, 20))])
async def test_a_number_opens_a_list_that_fits_the_terminal(home: Home, key: str, title: str, size: tuple[int, int]) -> None:
    app = app_on(home)
    async with app.run_test(size=size) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press(key)
        shown = await seen(app, pilot, title)
        assert "2 campaigns" in shown and all(len(line) <= size[0] for line in shown.splitlines())
        await pilot.press("escape")
        await seen(app, pilot, "Directions and rounds")


async def test_a_line_opens_its_detail_its_why_and_its_output(home: Home) -> None:
    paths = home.campaign("20261130-1")
    facts = trial(900, "c1", "screen", "candidate", 0.1, outcome="crashed").model_copy(
        update={"cause": "code_error", "detail": "NameError: q", "log": Blobs(paths.logs).put_log(["step 1", "NameError: q"])}
    )
    with JournalWriter.open(paths.journal) as journal:
        journal.append(TrialFinished(trial="t900", facts=facts))
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("3", "slash", *"code_error", "enter")
        await seen(app, pilot, "NameError")
        await pilot.press("o")
        assert "step 1" in await seen(app, pilot, "NameError: q")
        await pilot.press("escape", "enter")
        await seen(app, pilot, "a run of c1")
        await pilot.press("escape", "w")
        await seen(app, pilot, "Why c1")
        await pilot.press("escape", "escape", "2", "end", "enter")
        await seen(app, pilot, "Scaled-dot-product attention")


async def test_the_filter_works_as_it_is_typed_and_escape_takes_it_away(home: Home) -> None:
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("2", "slash", *"status:adopted")
        await seen(app, pilot, "filter 'status:adopted'")
        assert [row.id for row in listed(app) if not row.is_heading] == ["c6"]
        await pilot.press("escape")
        await gone(app, pilot, "filter '")
        assert len(listed(app)) > 3
        await pilot.press("a")
        assert "this campaign" in await seen(app, pilot, "this campaign")
        assert {row.campaign for row in listed(app) if not row.is_heading} == {OLD}, "the one that was written last is watched"


async def test_the_cursor_stays_on_its_row_while_the_campaign_goes_on(home: Home) -> None:
    app = app_on(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("2", "j")
        screen = app.screen
        assert isinstance(screen, BrowseScreen)
        before = screen.selected
        with JournalWriter.open(home.campaign(OLD).journal) as journal:
            journal.append(TrialFinished(trial="t901", facts=trial(901, "c1", "screen", "candidate", 0.1)))
        await pilot.pause(0.4)
        assert screen.selected == before


async def test_a_home_where_nothing_was_tried_says_so(tmp_path: Path) -> None:
    app = app_on(write_home(tmp_path, until="baselined"))
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("2")
        await seen(app, pilot, "Nothing was tried yet.")
        await pilot.press("enter", "w", "o", "j", "G", "q")
        assert "Directions and rounds" in await seen(app, pilot, "Directions") or text_of(app)


# --- workload and library


async def test_the_workload_page_says_what_must_hold_and_where_the_time_goes(home: Home) -> None:
    app = app_on(home, OLD)
    async with app.run_test(size=(80, 60)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("6")
        shown = await seen(app, pilot, "What must hold")
        for part in ("python train.py", "micro_batch (memory): 1, 2, 4, 8, default 2", "update size: limit 0.021", "backward", "Settings that exist and are off"):
            assert part in shown, part
        assert all(len(line) <= 80 for line in shown.splitlines())


async def test_the_library_answers_in_the_app_and_loads_nothing_heavy(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSI_LIBRARY", raising=False)
    app = app_on(home, OLD)
    try:
        async with app.run_test(size=(100, 30)) as pilot:
            await seen(app, pilot, "dense-single")
            await pilot.press("4", *"kind:failure memory limit", "enter")
            for _ in range(10):
                if "1 found" in text_of(app):
                    break
                await pilot.pause(1.0)
            shown = await seen(app, pilot, "1 found")
            assert "oom" in shown and "why: words: memory, limit" in shown
            await pilot.press("enter")
            await seen(app, pilot, f"{OLD}/failure/t23")
            await pilot.press("escape", "escape", "escape")
            await seen(app, pilot, "Directions and rounds")
    finally:
        end_server(home)


async def test_without_a_server_the_app_says_how_to_ask(home: Home) -> None:
    app = app_on(home, OLD)
    async with app.run_test(size=(100, 30)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("4", *"memory", "enter")
        await seen(app, pilot, "has no server")

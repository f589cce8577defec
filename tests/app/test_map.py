"""Plots of the map say what the record says, at any size; palette, remapped keys and export do what they promise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from textual.widgets import Input

from rsi_tui.app import plots
from rsi_tui.app.actions import ACTIONS, checked_keys, help_lines
from rsi_tui.app.canvas import Canvas, Scale, framed, thinned
from rsi_tui.app.main import RsiApp, export
from rsi_tui.config import AppSettings, load_settings
from rsi_tui.errors import UsageError
from rsi_tui.journal.view import CampaignView, load_campaign
from tests.app.test_app import FAST, app_on, gone, seen
from tests.support.story import write_home

ID = "20261130-1"


@pytest.fixture
def view(tmp_path: Path) -> CampaignView:
    return load_campaign(write_home(tmp_path / "home"), ID)


# --- the field ------------------------------------------------------------------------------------


def test_a_dot_lies_where_its_value_is() -> None:
    canvas = Canvas(4, 2, Scale(0, 1), Scale(0, 1))
    canvas.dot(0.0, 1.0)
    canvas.dot(0.999, 0.0)
    canvas.dot(2.0, 0.5)
    assert [line.plain for line in canvas.lines()] == ["\u2801   ", "   \u2880"]


def test_signs_lie_on_top_and_plain_fields_are_ascii() -> None:
    canvas = Canvas(10, 3, Scale(0, 1), Scale(0, 1), plain=True)
    canvas.line((0, 0.5), (1, 0.5))
    canvas.sign(0.5, 0.5, "+")
    middle = canvas.lines()[1].plain
    assert middle == ".....+...."


def test_ticks_are_round_and_stand_at_their_places() -> None:
    assert Scale(0.93, 2.1).ticks(4) == [1.0, 1.5, 2.0]
    rows = framed(Canvas(40, 6, Scale(0, 10), Scale(0, 1)), lambda v: f"{v:g}", lambda v: f"{v:g}", "minutes")
    assert len(rows) == 7
    bottom = rows[-1].plain
    assert bottom.endswith("minutes")
    assert bottom.index("5") == pytest.approx(rows[0].plain.index(" ", 3) + 0.5 * 40, abs=4)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [math.inf, 2.0], [0.0]])
def test_any_values_have_a_scale(values: list[float]) -> None:
    scale = Scale.over(values)
    assert scale.high > scale.low
    assert scale.ticks(4)


def test_thinning_keeps_the_last() -> None:
    points = [(float(n), float(n)) for n in range(1000)]
    assert len(thinned(points, 50)) == 50
    assert thinned(points, 50)[-1] == points[-1]
    assert thinned(points[:10], 50) == points[:10]


# --- the plots ------------------------------------------------------------------------------------


def test_results_are_along_the_chain_of_incumbents(view: CampaignView) -> None:
    found = {r.id: r for r in plots.results(view)}
    bundle = view.best()
    assert bundle is not None and bundle.verdict is not None and bundle.verdict.log_ratio is not None
    assert found[bundle.id].log_time == pytest.approx(bundle.verdict.log_ratio)
    assert found[bundle.id].standing == "adopted"
    assert [r.seconds for r in plots.results(view)] == sorted(r.seconds for r in found.values())


def test_the_random_order_ends_at_the_best_and_rises_as_draws_do() -> None:
    values = [1.0, 1.1, 1.3, 2.0]
    line = plots._random_order(values, 100.0)
    assert line[0] == (0.0, 1.0)
    assert line[1][1] == pytest.approx(sum(values) / 4)  # one of four
    pairs = [max(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
    assert line[2][1] == pytest.approx(sum(pairs) / len(pairs))
    assert line[-1] == (100.0, pytest.approx(2.0))


@pytest.mark.parametrize("size", [(56, 9), (76, 9), (96, 22)])
@pytest.mark.parametrize("plain", [False, True])
def test_every_plot_fits_its_size(view: CampaignView, size: tuple[int, int], plain: bool) -> None:
    for make in (plots.best_so_far, plots.time_against_memory, plots.machine, plots.lineage):
        lines = make(view, *size, plain=plain).plain.split("\n")
        assert all(len(line) <= size[0] for line in lines), make.__name__
        assert 1 < len(lines) <= size[1] + 1, make.__name__
        if plain:
            assert all(character.isascii() for line in lines for character in line), (make.__name__, lines)


def test_what_is_drawn_is_what_happened(view: CampaignView) -> None:
    best = plots.best_so_far(view, 76, 12).plain
    kept = view.best()
    assert kept is not None and kept.verdict is not None
    assert f"+ adopted {math.exp(-(kept.verdict.log_ratio or 0)):.2f}x" in best
    memory = plots.time_against_memory(view, 76, 12).plain
    assert "1 run out of memory" in memory
    assert "o" in memory
    assert f"{kept.id} bundle of" in plots.lineage(view, 76, 12).plain
    assert "runs of the original" in plots.machine(view, 76, 12).plain


def test_with_nothing_to_draw_it_is_said() -> None:
    for make in (plots.best_so_far, plots.time_against_memory, plots.machine, plots.lineage):
        assert make(CampaignView(), 76, 10).plain.startswith("Nothing to draw: ")


# --- on the screen --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (200, 50)])
async def test_the_map_is_shown_at_any_size(tmp_path: Path, size: tuple[int, int]) -> None:
    app = app_on(write_home(tmp_path))
    async with app.run_test(size=size) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("5")
        shown = await seen(app, pilot, "Best so far")
        assert ("The machine" in shown) == (size == (200, 50))
        await pilot.press("1")
        await seen(app, pilot, "Directions and rounds")


async def test_the_palette_finds_an_action_by_its_words(tmp_path: Path) -> None:
    app = app_on(write_home(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("colon")
        await seen(app, pilot, "Search for commands")
        await pilot.press(*"lineage")
        await seen(app, pilot, "plots: best so far")
        await pilot.press("enter")
        await seen(app, pilot, "Time against memory")


async def test_a_key_that_was_changed_works_and_the_old_one_does_not(tmp_path: Path) -> None:
    app = RsiApp(write_home(tmp_path), None, FAST.model_copy(update={"keys": {"map": "m", "help": "f1"}}))
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("5")
        await pilot.press("m")
        await seen(app, pilot, "Best so far")
        await pilot.press("q", "f1")
        assert "m            plots" in await seen(app, pilot, "First screen")


def test_keys_that_can_not_be_meant_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no action 'paus'; the nearest is 'pause'"):
        checked_keys({"paus": "P"})
    with pytest.raises(UsageError, match="First screen: 's' is the key of pause and of stop"):
        checked_keys({"pause": "s"})
    (tmp_path / "config.toml").write_text('[app.keys]\npause = "P"\n')
    assert load_settings(tmp_path).app.keys == {"pause": "P"}
    assert any(line.split()[:1] == ["P"] for line in help_lines({"pause": "P"}))
    assert checked_keys({}) == {}


def test_every_action_is_named_once_in_its_place() -> None:
    for place, actions in ACTIONS.items():
        names = [action.name for action in actions]
        assert len(names) == len(set(names)), place


def test_a_report_is_written_as_its_ending_says(tmp_path: Path) -> None:
    home = write_home(tmp_path / "home")
    for ending in ("md", "html", "json"):
        target = tmp_path / "out" / f"r.{ending}"
        assert str(target) in export(home, ID, str(target))
        assert target.stat().st_size > 1000
    assert json.loads((tmp_path / "out" / "r.json").read_text())["campaign"]
    with pytest.raises(UsageError, match=r"ends in none of \.md, \.html and \.json"):
        export(home, ID, str(tmp_path / "r.pdf"))


async def test_the_report_is_exported_from_the_app(tmp_path: Path) -> None:
    app = app_on(write_home(tmp_path / "home"))
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(app, pilot, "dense-single")
        await pilot.press("7", "e")
        await seen(app, pilot, "Write the report to which file?")
        app.screen.query_one(Input).value = str(tmp_path / "mine.html")
        await pilot.press("enter")
        await seen(app, pilot, "Written:")
        assert (tmp_path / "mine.html").exists()
        await pilot.press("q", "e", "escape")
        await gone(app, pilot, "Write the report")


def test_plain_plots_are_a_setting() -> None:
    assert AppSettings(ascii=True).ascii

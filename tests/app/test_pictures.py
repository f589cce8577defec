"""The README's example and picture come from a campaign's record and name no path of the machine they were made on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.journal.view import load_campaign
from scripts import pictures
from tests.support.story import write_home


async def test_the_picture_shows_the_campaign_and_loads_nothing(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    picture = await pictures.draw(home, "20261130-1")
    assert "1.93x" in picture
    assert "@font-face" not in picture
    assert "cdn" not in picture
    assert str(tmp_path) not in picture


def test_the_example_is_the_summary_with_everybodys_paths(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    text = pictures.example(home, load_campaign(home, "20261130-1"))
    assert "1.93x faster (99 % interval 1.81 to 2.02), claimed on 8 fresh pairs" in text
    assert "~/.local/share/rsi/campaigns/20261130-1/reports/report.md" in text
    assert "rsi attach 20261130-1" in text
    assert str(tmp_path) not in text


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    readme = "before\n<!-- example -->\nold \\1\n<!-- /example -->\nafter\n"
    assert pictures.with_example(readme, "new \\1") == "before\n<!-- example -->\nnew \\1\n<!-- /example -->\nafter\n"
    with pytest.raises(SystemExit, match="marks"):
        pictures.with_example("nothing", "new")


def test_an_unfinished_campaign_is_no_example(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="finished"):
        pictures.newest_finished(write_home(tmp_path, until="searching"))


def test_the_report_stands_between_its_own_marks(tmp_path: Path) -> None:
    text = pictures.report_example(load_campaign(write_home(tmp_path), "20261130-1"))
    assert "1.93x faster, proven" in text
    readme = pictures.with_example("<!-- example -->\nleft\n<!-- /example -->\n<!-- report -->\n<!-- /report -->\n", text, "report")
    assert "left" in readme and text in readme


def test_without_a_browser_the_script_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="--only app"):
        pictures.photograph("<html></html>", tmp_path / "report.png")

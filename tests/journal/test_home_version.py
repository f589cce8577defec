"""Homes of other versions: newer ones are refused, older ones are brought up, journals stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.errors import JournalError
from rsi_tui.journal.home_version import VERSION, check_home
from rsi_tui.locations import Home
from tests.support.story import write_home


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    check_home(Home(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_an_older_home_is_brought_up_and_its_journals_stay(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    before = home.campaign("20261130-1").journal.read_bytes()
    check_home(home)
    check_home(home)
    assert (home.root / "version").read_text() == f"{VERSION}\n"
    assert home.campaign("20261130-1").journal.read_bytes() == before


@pytest.mark.parametrize(("text", "why"), [(str(VERSION + 1), "newer rsi"), ("one", "no version"), ("", "no version")])
def test_a_newer_or_unreadable_home_is_refused_in_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "version").write_text(text)
    with pytest.raises(JournalError, match=why):
        check_home(Home(tmp_path))
    assert (tmp_path / "version").read_text() == text

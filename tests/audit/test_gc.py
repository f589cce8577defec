"""Housekeeping: what goes, and what never does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rsi_tui.audit.housekeeping import gc_page, reclaim, reclaimable, size_of
from rsi_tui.errors import UsageError
from rsi_tui.journal import chain
from rsi_tui.journal.events import Dropped
from rsi_tui.locations import Home
from tests.support.story import write_home

ID = "20261130-1"


def filled(folder: Path, until: str = "finished") -> Home:
    home = write_home(folder / "home", until=until)  # type: ignore[arg-type]
    paths = home.campaign(ID)
    for place in (paths.scratch, paths.trees, paths.reports, paths.blobs, home.mirrors / "dense-single-77ab.git", home.mirrors / "unused.git"):
        place.mkdir(parents=True)
        (place / "file").write_bytes(b"x" * 5000)
    paths.live_log.write_text("step 1\n")
    paths.vault.write_text("secret\n")
    os.utime(home.mirrors / "unused.git", (0, 0))
    os.utime(home.mirrors / "dense-single-77ab.git", (0, 0))
    return home


def test_leftovers_go_and_what_a_claim_needs_stays(tmp_path: Path) -> None:
    home = filled(tmp_path)
    paths = home.campaign(ID)
    items = reclaimable(home)
    assert {item.path for item in items} == {paths.scratch, paths.trees, paths.live_log, home.mirrors / "unused.git"}
    assert "evaluator/20261130-1/scratch" in gc_page(home, items)
    freed, problems = reclaim(home, items, "a person")
    assert freed == sum(item.bytes for item in items) and not problems
    assert not any(item.path.exists() for item in items)
    for kept in (paths.journal, paths.vault, paths.reports / "file", paths.blobs / "file", home.mirrors / "dense-single-77ab.git" / "file"):
        assert kept.exists()
    assert reclaimable(home) == []


def test_what_goes_is_noted_in_the_homes_journal(tmp_path: Path) -> None:
    home = filled(tmp_path)
    reclaim(home, reclaimable(home), "a person")
    noted = [e.body for e in chain.read_events(home.journal, home.anchor) if isinstance(e.body, Dropped)]
    assert "evaluator/20261130-1/scratch" in {file.path for file in noted[0].files}


def test_a_campaign_that_can_go_on_keeps_its_files(tmp_path: Path) -> None:
    home = filled(tmp_path, "verifying")
    assert {item.path.name for item in reclaimable(home)} == {"unused.git"}


def test_a_campaign_that_an_engine_holds_is_left_alone(tmp_path: Path) -> None:
    home = filled(tmp_path)
    items = reclaimable(home)
    paths = home.campaign(ID)
    with chain.JournalWriter.open(paths.journal, anchor=paths.anchor):
        assert {item.path.name for item in reclaimable(home)} == {"unused.git"}
        reclaim(home, items, "a person")
        assert paths.scratch.exists()


def test_mirrors_stay_while_a_journal_cannot_be_read(tmp_path: Path) -> None:
    home = filled(tmp_path)
    journal = home.campaign(ID).journal
    journal.write_bytes(b"no event\n" + journal.read_bytes())
    assert reclaimable(home) == []


def test_a_quota_takes_no_more_than_it_needs(tmp_path: Path) -> None:
    home = filled(tmp_path)
    whole = sum(path.stat().st_size for path in home.root.rglob("*") if path.is_file())
    assert reclaimable(home, quota=10 * whole) == []
    assert len(reclaimable(home, quota=0)) == 4
    assert reclaimable(home, older_than_days=10_000_000)[0].path.name == "unused.git"


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    home = filled(tmp_path)
    paths = home.campaign(ID)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x" * 9000)
    paths.worktrees.symlink_to(outside)
    reclaim(home, reclaimable(home), "a person")
    assert (outside / "file").exists()


@pytest.mark.parametrize(("text", "value"), [("20GiB", 20 * 2**30), ("500M", 500 * 2**20), ("1.5k", 1536), ("7", 7)])
def test_sizes_are_read(text: str, value: int) -> None:
    assert size_of(text) == value
    with pytest.raises(UsageError):
        size_of(f"{text} apples")

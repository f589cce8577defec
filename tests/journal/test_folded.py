"""A kept view is the folded one, and is used only where it fits the journal and the code."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rsi_tui.errors import JournalError
from rsi_tui.journal import chain, folded
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.folded import load_view
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import CampaignPaths, Home
from tests.support.story import story


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignPaths:
    monkeypatch.setattr(folded, "KEPT_FROM", 20_000)
    return Home(tmp_path).campaign("20261201-1")


def write(paths: CampaignPaths, first: int, last: int | None = None) -> None:
    with JournalWriter.open(paths.journal, anchor=paths.anchor) as journal:
        for body in list(story("20261201-1"))[first:last]:
            journal.append(body)


def whole(paths: CampaignPaths) -> CampaignView:
    return CampaignView().feed_all(chain.read_events(paths.journal))


def test_at_every_event_the_kept_view_with_what_came_since_is_the_folded_one(paths: CampaignPaths) -> None:
    count = len(list(story("20261201-1")))
    kept = 0
    for number in range(0, count, 7):
        write(paths, number, number + 7)
        assert load_view(paths) == load_view(paths) == whole(paths)
        kept += (paths.root / "view.kept").exists()
    assert kept > 3


def test_it_is_used_and_not_read_anew(paths: CampaignPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    write(paths, 0)
    wanted = load_view(paths)
    monkeypatch.setattr(chain, "read_events", lambda *_: pytest.fail("the journal was read whole"))
    assert load_view(paths) == wanted


def test_a_line_that_changed_at_its_end_or_other_code_makes_it_useless(paths: CampaignPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    write(paths, 0, 60)
    load_view(paths)
    monkeypatch.setattr(folded, "_code", lambda: "another")
    write(paths, 60)
    assert load_view(paths) == whole(paths)
    head = (paths.root / "view.kept").read_bytes().split(b"\n")[1]
    assert b"another" in head, "it was kept anew"


def test_a_lost_end_is_found_behind_a_kept_view(paths: CampaignPaths) -> None:
    write(paths, 0)
    load_view(paths)
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    paths.journal.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(JournalError, match="lost"):
        load_view(paths)


def test_a_line_rewritten_behind_a_kept_view_is_found(paths: CampaignPaths) -> None:
    write(paths, 0, -1)
    load_view(paths)
    write(paths, -1)
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    last = chain.read_events(paths.journal)[-1]
    forged = chain._encode(last.seq, ev.NoteTaken(who="ann", text="another"), "", last.prev) + b"\n"
    paths.journal.write_bytes(b"".join(lines[:-1]) + forged)
    with pytest.raises(JournalError, match=f"line {len(lines)}: not the one"):
        load_view(paths)


def test_what_follows_must_continue_it(paths: CampaignPaths) -> None:
    write(paths, 0, 80)
    load_view(paths)
    kept = paths.journal.read_bytes()
    write(paths, 80)
    lines = paths.journal.read_bytes()[len(kept) :].splitlines(keepends=True)
    paths.journal.write_bytes(kept + b"".join(lines[1:]))
    with pytest.raises(JournalError, match="does not follow"):
        load_view(paths)


@pytest.mark.parametrize("content", [b"", b"rsi view 1\n", b"rsi view 1\n{}\n", b"\x00" * 100])
def test_a_damaged_file_is_passed_over(paths: CampaignPaths, content: bytes) -> None:
    write(paths, 0)
    load_view(paths)
    (paths.root / "view.kept").write_bytes(content)
    assert load_view(paths) == whole(paths)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("something was run",)


def test_a_file_can_make_nothing_run(paths: CampaignPaths) -> None:
    write(paths, 0)
    load_view(paths)
    place = paths.root / "view.kept"
    magic, head, _ = place.read_bytes().split(b"\n", 2)
    place.write_bytes(magic + b"\n" + head + b"\n" + pickle.dumps(Evil()))
    assert load_view(paths) == whole(paths)


def test_a_short_journal_has_none(tmp_path: Path) -> None:
    paths = Home(tmp_path).campaign("20261201-1")
    write(paths, 0)
    assert load_view(paths) == whole(paths) and not (paths.root / "view.kept").exists()

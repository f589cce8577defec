"""The note of a journal's newest line: a lost or replaced end is noticed, whoever opens or reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.errors import JournalError
from rsi_tui.journal import events as ev
from rsi_tui.journal.anchors import Anchor, read_anchor
from rsi_tui.journal.chain import JournalWriter, _encode, read_events, verify
from rsi_tui.journal.view import damaged_campaigns, load_campaign
from rsi_tui.locations import Home
from tests.support.story import write_story


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path]:
    """A journal of five notes and where its newest line is noted."""
    path, anchor = tmp_path / "journal.jsonl", tmp_path / "anchors" / "j"
    with JournalWriter.open(path, anchor=anchor) as journal:
        for number in range(5):
            journal.append(ev.NoteTaken(who="ann", text=f"note {number}"))
    return path, anchor


@pytest.mark.parametrize("lines", [1, 3, 5])
def test_a_lost_tail_is_found_by_reader_writer_and_verification(written: tuple[Path, Path], lines: int) -> None:
    path, anchor = written
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: 5 - lines]))
    assert read_events(path) is not None and verify(path) == []
    (problem,) = verify(path, anchor)
    assert problem.startswith(f"line {6 - lines}: lost") and str(anchor) in problem
    with pytest.raises(JournalError, match=f"line {6 - lines}: lost"):
        read_events(path, anchor)
    with pytest.raises(JournalError, match=f"line {6 - lines}: lost"):
        JournalWriter.open(path, anchor=anchor)


def test_a_line_that_was_rewritten_with_all_hashes_after_it_is_found(written: tuple[Path, Path]) -> None:
    path, anchor = written
    bodies = [event.body for event in read_events(path)]
    bodies[2] = ev.NoteTaken(who="ann", text="another")
    lines, prev = [], "0" * 64
    for seq, body in enumerate(bodies):
        lines.append(_encode(seq, body, "", prev))
        prev = lines[-1][-66:-2].decode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert verify(path) == []
    assert verify(path, anchor)[0].startswith("line 5: not the one")
    with pytest.raises(JournalError, match="not the one"):
        JournalWriter.open(path, anchor=anchor)


def test_a_note_that_is_older_than_its_journal_is_fine(written: tuple[Path, Path]) -> None:
    path, anchor = written
    older = anchor.read_bytes()
    with JournalWriter.open(path, anchor=anchor) as journal:
        journal.append(ev.NoteTaken(who="ann", text="one more"))
    anchor.write_bytes(older)
    assert verify(path, anchor) == []
    with JournalWriter.open(path, anchor=anchor) as journal:
        newest = journal.append(ev.NoteTaken(who="ann", text="and one"))
    assert read_anchor(anchor) == Anchor(newest.seq, newest.hash, str(anchor))


def test_a_damaged_note_is_named_and_holds_nobody_up(written: tuple[Path, Path]) -> None:
    path, anchor = written
    anchor.write_bytes(anchor.read_bytes().replace(b"0", b"x", 1))
    assert "damaged" in verify(path, anchor)[0]
    with JournalWriter.open(path, anchor=anchor) as journal:
        journal.append(ev.NoteTaken(who="ann", text="one more"))
    assert verify(path, anchor) == []


def test_a_home_names_the_campaign_whose_end_is_lost(tmp_path: Path) -> None:
    home = Home(tmp_path)
    paths = home.campaign("20261201-100000-aaaa")
    write_story(paths.journal, anchor=paths.anchor)
    assert load_campaign(home, "20261201-100000-aaaa").over
    paths.journal.write_bytes(b"".join(paths.journal.read_bytes().splitlines(keepends=True)[:-2]))
    assert "lost, with 1 after it" in damaged_campaigns(home)["20261201-100000-aaaa"]

"""The journal file: what it promises about damage, crashes, a second writer and a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsi_tui.errors import JournalError
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import ZERO, JournalWriter, follow, head, holder, read_events, verify
from rsi_tui.journal.home import add_note, grant_alpha
from rsi_tui.locations import Home
from tests.support.story import trial, write_story


@pytest.fixture(scope="module")
def story_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("story") / "journal.jsonl"
    write_story(path, until="searching")
    return path.read_bytes()


def note(text: str = "hello") -> ev.NoteTaken:
    return ev.NoteTaken(who="ann", text=text)


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter.open(path) as journal:
        written = [journal.append(note(text), step) for text, step in (("a\nb", "s1"), ("ü漢\u2028", ""), ("\udce9", ""))]
    assert read_events(path) == written
    assert [e.seq for e in written] == [0, 1, 2]
    assert written[0].prev == ZERO
    assert written[1].prev == written[0].hash
    assert head(path) == (2, written[2].hash)
    assert verify(path) == []


def test_a_line_is_proven_by_its_own_bytes_alone(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "journal.jsonl"
    with JournalWriter.open(path) as journal:
        event = journal.append(note("é"))
    plain, _, _ = path.read_bytes().partition(b',"hash":')
    assert hashlib.sha256(plain + b"}").hexdigest() == event.hash


def test_a_number_that_is_not_finite_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    bad = trial(1, "c1", "screen", "candidate", 0.1, final_loss=float("nan"))
    with JournalWriter.open(path) as journal:
        with pytest.raises(JournalError, match="not finite"):
            journal.append(ev.TrialFinished(trial="t1", facts=bad))
        journal.append(note())
    assert len(read_events(path)) == 1


def test_a_second_writer_is_told_who_holds_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert holder(path) is None
    with JournalWriter.open(path):
        assert holder(path) == os.getpid()
        with pytest.raises(JournalError, match=f"held by process {os.getpid()}"):
            JournalWriter.open(path)
    assert holder(path) is None
    JournalWriter.open(path).close()


def test_a_writer_that_was_killed_leaves_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import sys, os, signal; from pathlib import Path; from rsi_tui.journal.chain import JournalWriter;"
        "JournalWriter.open(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.with_suffix(".lock").read_text().strip()
    assert holder(path) is None
    JournalWriter.open(path).close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 10_000), zeros=st.integers(0, 40))
def test_a_torn_last_line_is_kept_aside_and_repaired(tmp_path: Path, story_bytes: bytes, cut: int, zeros: int) -> None:
    path = tmp_path / "journal.jsonl"
    last = story_bytes.rstrip(b"\n").rfind(b"\n") + 1
    kept = min(len(story_bytes) - 1, last + cut % (len(story_bytes) - last))
    torn = story_bytes[last:kept] + b"\0" * zeros
    path.write_bytes(story_bytes[:last] + torn)
    whole = story_bytes[:last].count(b"\n")
    assert len(read_events(path)) == whole
    assert any("torn" in p and f"line {whole + 1}:" in p for p in verify(path)) == bool(torn)
    for old in tmp_path.glob("*.torn-*"):
        old.unlink()
    with JournalWriter.open(path) as journal:
        assert len(journal.events) == whole
        journal.append(note())
    assert verify(path) == []
    assert [p.read_bytes() for p in tmp_path.glob("*.torn-*")] == ([torn] if torn else [])


def flip(lines: list[bytes], where: int, place: int, bit: int) -> None:
    line = bytearray(lines[where])
    line[place % len(line)] ^= 1 << bit
    lines[where] = bytes(line)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["flip", "remove", "repeat", "swap", "cut"]),
    where=st.integers(0, 10_000), place=st.integers(0, 10_000), bit=st.integers(0, 7),
)  # fmt: skip
def test_damage_is_found_with_its_line(tmp_path: Path, story_bytes: bytes, kind: str, where: int, place: int, bit: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines = story_bytes.splitlines(keepends=True)
    where %= len(lines) - 1
    expected = where + 1
    if kind == "flip":
        flip(lines, where, place, bit)
    elif kind == "remove":
        del lines[where]
    elif kind == "repeat":
        lines.insert(where, lines[where])
        expected += 1
    elif kind == "swap":
        lines[where], lines[where + 1] = lines[where + 1], lines[where]
    else:
        lines[where] = lines[where][: place % (len(lines[where]) - 1)] + b"\n"
    path.write_bytes(b"".join(lines))
    problems = verify(path)
    assert problems
    assert int(problems[0].split()[1].rstrip(":")) == expected, problems


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines.__setitem__(3, b"{}\n"), "line 4: damaged .*; restore the file from a copy"),
        (lambda lines: lines.__delitem__(3), "line 4.*does not follow"),
        (lambda lines: lines.__setitem__(3, b"\xff\xfe\n"), "line 4"),
        (lambda lines: lines.__setitem__(3, lines[3].replace(b'"v":1', b'"v":2').replace(b'"type":"', b'"type":"x')), "newer rsi"),
    ],
)
def test_reading_a_damaged_journal_names_the_line(tmp_path: Path, story_bytes: bytes, damage: object, message: str) -> None:
    path = tmp_path / "journal.jsonl"
    lines = story_bytes.splitlines(keepends=True)
    damage(lines)  # type: ignore[operator]
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=message):
        read_events(path)
    with pytest.raises(JournalError, match=message):
        JournalWriter.open(path)


def test_a_writer_refuses_a_tail_whose_content_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter.open(path) as journal:
        journal.append(note("the truth"))
    path.write_bytes(path.read_bytes().replace(b"the truth", b"a fiction"))
    with pytest.raises(JournalError, match="line 1: its content does not match"):
        JournalWriter.open(path)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = """
import resource, sys
from pathlib import Path
from rsi_tui.errors import JournalError
from rsi_tui.journal.chain import JournalWriter, verify
from rsi_tui.journal.events import NoteTaken
path = Path(sys.argv[1])
journal = JournalWriter.open(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
journal.append(NoteTaken(who="ann", text="x" * 500))
try:
    journal.append(NoteTaken(who="ann", text="y" * 3000))
except JournalError as error:
    print(error)
assert verify(path) == [], verify(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append(NoteTaken(who="ann", text="z"))
assert verify(path) == []
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "free some space" in done.stdout
    assert [e.body.text for e in read_events(path) if isinstance(e.body, ev.NoteTaken)] == ["x" * 500, "z"]


def test_following_gives_each_event_once_and_waits_for_whole_lines(tmp_path: Path, story_bytes: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    assert follow(path, 0) == ([], 0)
    seen: list[ev.Event] = []
    offset = 0
    with path.open("ab") as file:
        for start in range(0, len(story_bytes), 701):
            file.write(story_bytes[start : start + 701])
            file.flush()
            new, offset = follow(path, offset)
            seen += new
    assert seen == read_events(path)
    path.write_bytes(b"")
    with pytest.raises(JournalError, match="shorter"):
        follow(path, offset)


def test_the_ledger_counts_each_campaign_of_a_workload_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    drawn = [
        grant_alpha(home, key, campaign, lambda k: 0.01 / k)
        for key, campaign in (("w", "a"), ("w", "b"), ("other", "c"), ("w", "a"))
    ]
    assert [g.ordinal for g in drawn] == [1, 2, 1, 1]
    assert drawn[1].alpha == pytest.approx(0.005)
    add_note(home, "ann", "tcmalloc is installed", "apt")
    assert [json.loads(line)["body"]["type"] for line in home.journal.read_text().splitlines()] == ["alpha_granted"] * 3 + ["note_taken"]

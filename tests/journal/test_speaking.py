"""The file of running calls: several at once, states that people see, begun anew, never in the way."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rsi_tui.journal import speaking
from rsi_tui.journal.speaking import SpeakingTail, SpeakingWriter, Spoken


def said(call: str, state: str, text: str = "", **more: object) -> Spoken:
    return Spoken.model_validate({"call": call, "role": "executor", "state": state, "text": text, **more})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mind.jsonl"


def test_calls_that_overlap_are_told_apart_and_leave_when_they_are_done(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "EVERY_S", 0.0)
    writer, tail = SpeakingWriter(place), SpeakingTail(place)
    for spoken in (said("m1", "asking"), said("m2", "asking"), said("m1", "writing", "First "), said("m2", "writing", "Second"), said("m1", "writing", "the files.")):
        writer(spoken)
    assert tail.poll()
    assert [call.words() for call in tail.running.values()] == ["executor m1: First the files.", "executor m2: Second"]
    assert not tail.poll()
    writer(said("m1", "done", "answered"))
    assert tail.poll() and list(tail.running) == ["m2"]


def test_what_it_waits_for_is_seen_and_a_new_attempt_begins_from_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "EVERY_S", 0.0)
    writer, tail = SpeakingWriter(place), SpeakingTail(place)
    writer(said("m1", "writing", "half an answ"))
    writer(said("m1", "waiting", "429 rate limit", wait_s=90.0))
    tail.poll()
    call = tail.running["m1"]
    assert call.until is not None and timedelta(seconds=80) < call.until - datetime.now(UTC) <= timedelta(seconds=90)
    assert call.words(call.until - timedelta(seconds=30)) == "executor m1 waits 30 s more for the API: 429 rate limit"
    writer(said("m1", "asking"))
    tail.poll()
    assert tail.running["m1"].words() == "executor m1: no word yet"


def test_text_is_gathered_and_none_is_lost(place: Path) -> None:
    writer, tail = SpeakingWriter(place), SpeakingTail(place)
    for number in range(200):
        writer(said("m1", "writing", f"{number} "))
    assert len(place.read_text().splitlines()) < 20
    writer(said("m1", "waiting", "cut"))
    tail.poll()
    assert tail.running["m1"].text.split() == [str(n) for n in range(200)]


def test_an_engine_begins_the_file_anew(place: Path) -> None:
    tail = SpeakingTail(place)
    SpeakingWriter(place)(said("m1", "asking"))
    assert tail.poll() and "m1" in tail.running
    SpeakingWriter(place)
    assert tail.poll() and tail.running == {}


def test_a_file_that_has_grown_large_begins_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "MOST_BYTES", 2000)
    writer = SpeakingWriter(place)
    for number in range(100):
        writer(said(f"m{number}", "asking", "x" * 50))
    assert place.stat().st_size < 2400


def test_lines_that_can_not_be_read_are_left_out_and_half_lines_waited_for(place: Path) -> None:
    tail = SpeakingTail(place)
    line = said("m1", "writing", "héllo").model_dump_json().encode() + b"\n"
    place.write_bytes(b"{}\nnonsense\n\xff\n" + line[:-9])
    tail.poll()
    assert tail.running == {}
    with place.open("ab") as file:
        file.write(line[-9:])
    tail.poll()
    assert tail.running["m1"].text == "héllo"


def test_nothing_is_raised_where_nothing_can_be_written(tmp_path: Path) -> None:
    writer = SpeakingWriter(tmp_path / "missing" / "mind.jsonl")
    writer(said("m1", "asking"))
    assert not SpeakingTail(tmp_path / "missing" / "mind.jsonl").poll()


def test_each_line_is_json_with_the_documented_keys(place: Path) -> None:
    SpeakingWriter(place)(said("m1", "asking", direction="d1"))
    line = json.loads(place.read_text())
    assert set(line) == {"at", "call", "role", "direction", "state", "text", "wait_s"} and line["at"].endswith("Z")

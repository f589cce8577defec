"""Times are stored in UTC and shown as such; durations come from a clock that nobody sets, and are never negative."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path

import pytest

from rsi_tui.app.plain import PlainLog
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import EngineStarted, Event
from rsi_tui.launch.sandbox import sandbox_works
from rsi_tui.loop.resuming import seconds_spent
from tests.evaluator.small_program import make_bench
from tests.support.story import write_story

NOW = "from rsi_tui.journal.chain import now_utc; print(now_utc())"


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "Pacific/Chatham"])
def test_what_is_stored_is_utc_wherever_the_person_is(zone: str) -> None:
    said = subprocess.run([sys.executable, "-c", NOW], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True)
    assert said.stdout.strip().endswith("+00:00")
    assert abs(datetime.fromisoformat(said.stdout.strip()) - datetime.now(UTC)) < timedelta(minutes=2)


def story(folder: Path, *minutes: float) -> list[Event]:
    """Events of a campaign, stamped so many minutes after midnight."""
    path = folder / "journal.jsonl"
    write_story(path, proven=True)
    midnight = datetime(2026, 3, 29, tzinfo=UTC)
    return [
        event.model_copy(update={"at": (midnight + timedelta(minutes=minute)).isoformat()})
        for event, minute in zip(read_events(path), minutes, strict=False)
    ]


def test_a_clock_that_is_set_back_shortens_nothing(tmp_path: Path) -> None:
    events = story(tmp_path, 10, 11, 12, -48, -47, -46)
    assert [isinstance(event.body, EngineStarted) for event in events] == [False, True, False, False, False, False]
    assert seconds_spent(events) == 3 * 60

    stream = io.StringIO()
    log = PlainLog(stream=stream, colour=False)
    for event in events:
        log(event)
    stamps = [line[:5] for line in stream.getvalue().splitlines() if line[:1].strip()]
    assert stamps
    assert all(stamp[2] == ":" and stamp.replace(":", "").isdigit() for stamp in stamps)


def test_a_run_is_timed_by_a_clock_that_nobody_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox_works():
        pytest.skip(sandbox_works())
    program = make_bench(tmp_path)
    back = count(time.time(), -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(back)))
    result = program.run()
    assert result.facts.outcome == "ok"
    assert 0.2 < result.facts.wall_s < 20
    assert all(first.at_s <= second.at_s for first, second in pairwise(result.run.lines))
    assert result.facts.step_s is not None
    assert 0.01 < result.facts.step_s < 1

"""The read-only commands: what they print, and their one sentence for an id that does not exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rsi_tui.audit import reading
from rsi_tui.errors import RsiError, UsageError
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.events import TrialFinished
from rsi_tui.journal.view import load_campaign
from rsi_tui.locations import Home
from tests.support.story import trial, write_home, write_story


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = write_home(tmp_path_factory.mktemp("home"), campaign="20261129-1", until="screening")
    write_story(home.campaign("20261130-1").journal)
    return home


def test_campaigns_as_json_are_a_list_newest_first(home: Home) -> None:
    found = json.loads(reading.campaigns(home, as_json=True))
    assert [c["id"] for c in found] == ["20261130-1", "20261129-1"]
    assert found[0]["speedup"] == {"estimate": 1.9296, "low": 1.8103, "high": 2.0218, "confidence": 0.99}
    assert found[1]["speedup"] is None
    assert found[0]["trials"] == {"ok": 45, "failed": 1, "total": 46}


@pytest.mark.parametrize(
    ("id", "says"),
    [
        (None, "1.93x faster (99 % interval 1.81 to 2.02), claimed on 8 fresh pairs"),
        ("20261129-1", "nothing proven yet"),
        ("c3", "the run was killed at its memory limit"),
        ("20261129-1/c1", "predicted -17.3 % step time, screened -16.4 %"),
        ("20261130-1/hypothesis/h3", "the same change was slower"),
        ("c5", "exploit, train.py:171"),
        ("c6", "+        y = F.scaled_dot_product_attention"),
        ("d2", "lesson: the optimizer's loop"),
        ("t23", "host_oom_killed"),
        ("original", "4be1c0d5"),
    ],
)
def test_show_knows_every_kind_of_id(home: Home, id: str | None, says: str) -> None:
    text = reading.show(home, id)
    assert says in text
    assert "\x1b" not in text
    assert json.loads(reading.show(home, id, as_json=True))


def test_the_output_of_a_failed_trial_is_printed_without_what_would_act_on_a_terminal(tmp_path: Path) -> None:
    home = write_home(tmp_path, campaign="20261129-1", until="screening")
    paths = home.campaign("20261129-1")
    facts = trial(900, "c1", "screen", "candidate", 0.1, outcome="crashed").model_copy(
        update={"log": Blobs(paths.logs).put_log(["step 1", "\x1b[31mTraceback\x1b[0m", "\tValueError: no"])}
    )
    with JournalWriter.open(paths.journal) as journal:
        journal.append(TrialFinished(trial="t900", facts=facts))
    assert reading.log(home, "t900") == "step 1\nTraceback\n    ValueError: no"
    assert "`rsi show t900 --log` prints it" in reading.show(home, "t900")
    with pytest.raises(UsageError, match="leave out --json"):
        reading.log(home, "t900", as_json=True)
    with pytest.raises(UsageError, match="is for a trial"):
        reading.log(home, "c1")
    with pytest.raises(UsageError, match="ended well"):
        reading.log(home, next(name for name, t in load_campaign(home, "20261129-1").trials.items() if t.outcome == "ok"))
    shutil.rmtree(paths.logs)
    with pytest.raises(UsageError, match="no longer kept"):
        reading.log(home, "t900")


def test_why_tells_the_story_in_order(home: Home) -> None:
    text = reading.why(home, "c1")
    order = [text.index(part) for part in ("Retrieved for d1", "Direction d1", "Hypothesis", "Diff", "Trials", "Screening", "So\n")]
    assert order == sorted(order)
    assert json.loads(reading.why(home, "c1", as_json=True))["retrieved"][0]["for"] == "d1"
    assert "Why c6" in reading.why(home)
    assert "duplicate" in reading.why(home, "h3")


@pytest.mark.parametrize(
    ("id", "nearest"),
    [("c9", "c6"), ("20261130-2", "20261130-1"), ("2026113/c1", "20261130-1"), ("20261130-1/h9", "h6"), ("nonsense", "2026")],
)
def test_an_unknown_id_gets_one_sentence_with_the_nearest(home: Home, id: str, nearest: str) -> None:
    for command in (reading.show, reading.why):
        with pytest.raises(UsageError, match=nearest) as error:
            command(home, id)
        assert "\n" not in str(error.value)


def test_an_empty_home_says_how_to_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert "rsi run WORKLOAD" in reading.campaigns(home)
    assert json.loads(reading.campaigns(home, as_json=True)) == []
    for command in (reading.show, reading.why, reading.status, reading.report):
        with pytest.raises(UsageError, match="rsi run WORKLOAD"):
            command(home)


def test_status_tells_whether_an_engine_works(home: Home) -> None:
    path = home.campaign("20261129-1").journal
    assert "--resume" in reading.status(home, "20261129-1")
    with JournalWriter.open(path):
        assert "engine: running, process" in reading.status(home, "20261129-1")
        assert json.loads(reading.status(home, "20261129-1", as_json=True))["engine_pid"]
    assert "engine: done" in reading.status(home)


def test_a_report_is_written_whole_or_not_at_all(home: Home, tmp_path: Path) -> None:
    target = reading.write_report(home)
    assert target == home.campaign("20261130-1").reports / "report.md"
    assert target.read_text() == reading.report(home)
    (tmp_path / "file").touch()
    with pytest.raises(RsiError, match="cannot write the report"):
        reading.write_report(home, path=tmp_path / "file" / "r.md")

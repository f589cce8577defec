"""The plain log and the summary: calm, complete, safe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rsi_tui.app.plain import PlainLog, final_summary
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.view import CampaignView
from tests.support.story import write_story


def log_of(tmp_path: Path, colour: bool = False, proven: bool = True) -> str:
    path = tmp_path / "journal.jsonl"
    write_story(path, proven=proven)
    stream = io.StringIO()
    log = PlainLog(stream=stream, colour=colour)
    for event in read_events(path):
        log(event)
    return stream.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        "trust level A", "direction d1 (kernel)", "h1: Scaled-dot-product attention", "(predicted -17.3 % step time)",
        "h3 refused (duplicate)", "c5 reviewed: invalid", "t23 of c3: oom (host_oom_killed)",
        "screened c1 sdpa: promoted: -16.4 % step time (predicted -17.3 %)", "verdict on c6: adopted, about 1.9x faster (an estimate)",
        "claim: 1.93x faster (99 % interval 1.81 to 2.02) on 8 fresh pairs",
    ],
)  # fmt: skip
def test_what_matters_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert line in log_of(tmp_path)


@pytest.mark.parametrize("columns", [40, 80, 132])
def test_lines_wrap_at_the_terminals_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = log_of(tmp_path).splitlines()
    assert max(len(line) for line in lines) < columns + 1
    assert all(line[:6].strip() == "" or line[2] == ":" for line in lines)


def test_no_escape_reaches_a_plain_stream(tmp_path: Path) -> None:
    assert "\x1b" not in log_of(tmp_path)
    (tmp_path / "journal.jsonl").unlink()
    coloured = log_of(tmp_path, colour=True)
    assert "\x1b[32m" in coloured
    assert "\x07" not in coloured


def test_sealed_runs_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = log_of(tmp_path)
    between = text[text.index("verifying c6") : text.index("verdict on c6")]
    assert between.count("\n") == 1


def test_the_summary_has_what_a_person_wants(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path)
    text = final_summary(CampaignView().feed_all(read_events(path)), Path("/r/report.md"), "rsi attach 20261130-1")
    for part in ("118 ms", "61.1 ms", "1.93x faster (99 % interval 1.81 to 2.02)", "c6: sdpa", "unproven alone", "memory limit",
                 "trains on half", "duplicate", "/r/report.md", "rsi attach 20261130-1"):  # fmt: skip
        assert part in text


def test_the_summary_of_nothing_proven_claims_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path, proven=False)
    text = final_summary(CampaignView().feed_all(read_events(path)), Path("r.md"), "rsi")
    assert "nothing was proven" in text
    assert "faster" not in text

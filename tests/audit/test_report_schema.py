"""The published schema holds every report there is, and says what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rsi_tui.audit.html import render_html
from rsi_tui.audit.payback import Usage
from rsi_tui.audit.report import render_markdown, report_data
from rsi_tui.audit.report_schema import Report, json_schema
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from tests.support.story import STAGES, story, write_story


def valid(path: Path, usage: Usage | None = None) -> None:
    events = read_events(path)
    data = report_data(CampaignView().feed_all(events), events, usage)
    Report.model_validate_json(json.dumps(data))


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a_report_of_every_stage_is_as_published(tmp_path: Path, stage: str, proven: bool) -> None:
    write_story(tmp_path / "journal.jsonl", until=stage, proven=proven)  # type: ignore[arg-type]
    valid(tmp_path / "journal.jsonl", Usage(100.0, 2.0))


@pytest.mark.parametrize("kind", ["evaluation", "check", "baseline", "replay"])
def test_a_report_of_every_kind_of_record_is_as_published(tmp_path: Path, kind: str) -> None:
    with JournalWriter.open(tmp_path / "journal.jsonl") as journal:
        for body in story("20261130-1"):
            journal.append(body.model_copy(update={"kind": kind}) if isinstance(body, ev.CampaignCreated) else body)
    valid(tmp_path / "journal.jsonl")


ENDS: dict[str, tuple[tuple[ev.Fact, ...], str]] = {
    "taken back": ((ev.Revoked(candidate="c6", who="Mary", reason="it diverges at night", reopened=()),), "it diverges at night"),
    "stopped": ((ev.StateChanged(state="stopped", reason="the disk is full"),), "stopped"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ended_otherwise_is_as_published_and_said_in_both_forms(tmp_path: Path, end: str) -> None:
    bodies, said = ENDS[end]
    write_story(tmp_path / "journal.jsonl")
    with JournalWriter.open(tmp_path / "journal.jsonl") as journal:
        for body in bodies:
            journal.append(body)
    valid(tmp_path / "journal.jsonl")
    events = read_events(tmp_path / "journal.jsonl")
    data = report_data(CampaignView().feed_all(events), events)
    assert said in render_markdown(data) and said in render_html(data).split("<script")[0]


def test_a_report_of_a_campaign_of_the_whole_engine_is_as_published(finished: tuple[Home, str]) -> None:
    valid(finished[0].campaign(finished[1]).journal)


def test_the_published_file_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "report.schema.json"
    assert json.loads(page.read_text()) == json_schema(), "run scripts/report_schema.py"

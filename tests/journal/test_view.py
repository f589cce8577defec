"""The folded view: the same by parts and at once, and true to the events."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.commands import send_command, take_commands
from rsi_tui.journal.facts import Interval, VerdictFacts
from rsi_tui.journal.view import CampaignView, campaign_summary, damaged_campaigns, list_campaigns
from rsi_tui.locations import Home
from tests.support.story import STAGES, write_story


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[ev.Event]:
    path = tmp_path_factory.mktemp("story") / "journal.jsonl"
    write_story(path)
    return read_events(path)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=5))
def test_folding_by_parts_equals_folding_at_once(events: list[ev.Event], cuts: list[int]) -> None:
    view, start = CampaignView(), 0
    for cut in sorted(min(c, len(events)) for c in cuts):
        view.feed_all(events[start:cut])
        start = max(start, cut)
    assert view.feed_all(events[start:]) == CampaignView().feed_all(events)


def test_the_view_says_what_the_events_say(events: list[ev.Event]) -> None:
    view = CampaignView().feed_all(events)
    assert (view.state, view.trust, view.workload) == ("finished", "A", "dense-single")
    assert view.outcomes == {"ok": 45, "oom": 1}
    assert view.trial_seconds == pytest.approx(sum(t.wall_s for t in view.trials.values()))
    assert not view.sealed
    assert not view.running
    assert [d.rounds for d in view.directions.values()] == [["h1"], ["h2", "h3"], ["h4", "h5"], ["h6"]]
    best = view.best()
    assert best is not None
    assert best.id == "c6"
    assert view.changed_knobs("c6") == {"threads": 2}
    assert [c.id for c in view.turned_down()] == ["c3", "c5"]
    assert {(f.about, f.kind) for f in view.failures()} == {("t23", "oom"), ("h3", "duplicate"), ("c5", "invalid")}
    assert view.retrievals[0].before == "d1"


def test_a_summary_has_no_speedup_before_the_claim(tmp_path: Path) -> None:
    for stage in STAGES:
        path = tmp_path / stage / "journal.jsonl"
        write_story(path, until=stage)
        summary = campaign_summary(CampaignView().feed_all(read_events(path)))
        assert {"id", "workload", "state", "trust", "speedup", "candidates", "trials", "adopted", "started_at"} <= summary.keys()
        assert (summary["speedup"] is not None) == (stage == "finished")
        assert summary["trials"].keys() == {"ok", "failed", "total"}


def test_sealed_trials_count_as_trials_but_tell_nothing(events: list[ev.Event]) -> None:
    view = CampaignView()
    for event in events:
        if isinstance(event.body, ev.BlockClosed) and event.body.block == "v1":
            break
        view.feed(event)
    assert len(view.sealed) == 7
    assert not view.sealed & view.trials.keys()


def test_a_verification_gives_an_estimate_and_never_a_proven_speedup(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path, until="screening")
    with JournalWriter.open(path) as journal:
        for candidate, incumbent in (("c1", "original"), ("c4", "c1")):
            journal.append(ev.VerdictReached(verdict=VerdictFacts(
                candidate=candidate, incumbent=incumbent, verdict="adopted", reasons=(), alpha=0.001,
                speedup=Interval(estimate=1.2, low=1.1, high=1.3, confidence=0.99),
            )))  # fmt: skip
    view = CampaignView().feed_all(read_events(path))
    assert view.proven_speedup() is None
    assert view.estimated_speedup() == pytest.approx(1.44)


def test_a_claim_replaces_the_estimate(events: list[ev.Event]) -> None:
    view = CampaignView().feed_all(events)
    speedup = view.proven_speedup()
    assert speedup is not None
    assert speedup.estimate == 1.9296
    assert view.estimated_speedup() is None


def test_an_adoption_that_is_revoked_is_not_best(events: list[ev.Event]) -> None:
    view = CampaignView().feed_all(events)
    revoked = VerdictFacts(candidate="c6", incumbent="original", verdict="not_proven", reasons=("refuted",), alpha=0.001)
    view.feed(events[-1].model_copy(update={"body": ev.VerdictReached(verdict=revoked)}))
    assert view.best() is None


def test_pausing_keeps_the_state_it_returns_to(events: list[ev.Event]) -> None:
    view = CampaignView()
    for state in ("searching", "paused"):
        view.feed(events[0].model_copy(update={"body": ev.StateChanged(state=state)}))  # type: ignore[arg-type]
    assert view.state_words == "searching (paused)"
    view.feed(events[0].model_copy(update={"body": ev.StateChanged(state="searching")}))
    assert view.state_words == "searching"


def test_campaigns_are_listed_newest_first(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert list_campaigns(home) == []
    for name in ("z-first", "a-second"):
        write_story(home.campaign(name).journal, campaign=name, until="created")
    home.campaign("empty").root.mkdir()
    home.campaign("empty").journal.touch()
    assert [view.id for view in list_campaigns(home)] == ["a-second", "z-first"]
    home.campaign("z-first").journal.write_bytes(b"{}\n")
    assert [view.id for view in list_campaigns(home)] == ["a-second"], "one damaged journal hides no other campaign"
    assert "z-first" in damaged_campaigns(home)["z-first"]


def test_commands_are_taken_once_and_in_order(tmp_path: Path) -> None:
    paths = Home(tmp_path).campaign("c")
    assert take_commands(paths) == []
    for action in ("pause", "resume", "stop"):
        send_command(paths, "ann", action)  # type: ignore[arg-type]
    (paths.commands / "0-bad.json").write_text("{")
    (paths.commands / ".half.tmp").write_text('{"who"')
    assert [c.action for c in take_commands(paths)] == ["pause", "resume", "stop"]
    assert take_commands(paths) == []
    assert (paths.commands / "0-bad.bad").exists()

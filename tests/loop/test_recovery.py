"""An engine that was killed leaves things half-done: the next one clears up what is its own, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import TrialFinished, TrialStarted
from rsi_tui.locations import CampaignPaths, Home
from rsi_tui.loop.setup import Opened, Request, open_campaign
from tests.support.simulated import simulated, simulated_repository


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return simulated_repository(tmp_path / "program")


def opened(home: Home, place: Path, *, resume: bool = True) -> Opened:
    return open_campaign(home, Request(place, preset="simulated", resume=resume))


def start(campaign: Opened, number: int) -> TrialStarted:
    """Record that a profile run began."""
    body = TrialStarted(
        trial=f"t{number}", candidate="original", kind="profile", arm="profile", block="", slot=0, of=1, attempt=number,
    )  # fmt: skip
    return campaign.context.steps.append(body, f"profile/a{number}/started")


def fill(paths: CampaignPaths) -> None:
    """What runs leave while they run, in their folders and beside them."""
    for name in ("t1", "t2", "t3", "setup-c1", "beside"):
        for part in ("tree", "out", "cache", "tree.1", "kept"):
            (paths.scratch / name / part).mkdir(parents=True)
            (paths.scratch / name / part / "file").write_text("x")
    for place in (paths.scratch / "states" / "8", paths.scratch / "a person's", paths.trees / "abc", paths.trees / ".abc.4711"):
        place.mkdir(parents=True)


def test_half_done_runs_go_and_what_later_runs_need_stays(home: Home, place: Path) -> None:
    with simulated():
        campaign = opened(home, place, resume=False)
        for number in (1, 2, 3):
            start(campaign, number)
        facts = campaign.context.evaluator._lost(start(campaign, 4))
        campaign.context.steps.append(TrialFinished(trial="t1", facts=facts), "profile/a1/finished")
        campaign.context.evaluator._lab.vault.put("trial/t3", {"sealed": True})
        campaign.writer.close()
        fill(campaign.context.paths)
        opened(home, place).writer.close()
    paths = campaign.context.paths
    assert sorted(folder.name for folder in paths.scratch.iterdir()) == ["a person's", "states", "t1", "t3"]
    assert [part.name for trial in ("t1", "t3") for part in (paths.scratch / trial).iterdir()] == ["kept", "kept"]
    assert [tree.name for tree in paths.trees.iterdir() if len(tree.name) < 10] == ["abc"]


def test_engines_that_die_while_profiling_do_not_use_up_its_attempts(home: Home, place: Path) -> None:
    with simulated():
        campaign = opened(home, place, resume=False)
        for number in range(1, 6):
            start(campaign, number)
        campaign.writer.close()
        again = opened(home, place)
        again.context.evaluator.profile()
        again.writer.close()
    ends = [event.body for event in read_events(again.context.paths.journal) if isinstance(event.body, TrialFinished)]
    assert [end.facts.outcome for end in ends if end.facts] == ["not_measured"] * 5 + ["ok"]

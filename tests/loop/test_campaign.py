"""Whole campaigns on the tiny workload: real trials, real sandbox, real library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import (
    CandidateBuilt,
    Event,
    Retrieved,
    Screened,
    TrialFinished,
    TrialStarted,
    VerdictReached,
)
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request
from rsi_tui.minds.builtin.mind import BuiltinMind
from tests.support.campaigns import TINY, PatchMind, no_op_patches, tiny_repository


def view_of(home: Home, campaign: str) -> tuple[CampaignView, list[Event]]:
    events = read_events(home.campaign(campaign).journal)
    return CampaignView().feed_all(events), events


def bodies(events: list[Event], kind: type) -> list:  # type: ignore[type-arg]
    return [event.body for event in events if isinstance(event.body, kind)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_campaign_over_patches_that_change_nothing_adopts_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    workload = tiny_repository(tmp_path / "tiny")
    mind = PatchMind(no_op_patches(4))
    ended = run(home, Request(workload, preset="quick", candidates=4), mind)
    view, events = view_of(home, ended.campaign)
    assert ended.state == "finished"
    assert len(bodies(events, CandidateBuilt)) >= 4
    assert len(bodies(events, Screened)) >= 1
    assert view.adopted() == []
    assert view.claim is None
    assert not any(body.verdict.verdict in ("adopted", "invalid") for body in bodies(events, VerdictReached))


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_an_interrupted_campaign_goes_on_without_repeating_a_finished_trial(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    workload = tiny_repository(tmp_path / "tiny")
    command = [sys.executable, "-m", "rsi_tui", "run", str(workload), "--preset", "quick", "--candidates", "2"]
    env = {**os.environ, "RSI_HOME": str(home.root)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    journal = _wait_for_trials(home, 9, process)  # the first block, whose checkpoints were compared, is closed
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "--resume" in output
    before = read_events(journal)
    finished_before = {body.trial for body in bodies(before, TrialFinished) if body.facts and body.facts.outcome == "ok"}
    resumed = subprocess.Popen([*command, "--resume"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    _wait_for_trials(home, len(bodies(before, TrialFinished)) + 8, resumed)
    resumed.send_signal(signal.SIGINT)  # how a campaign ends is the business of the test of a real gain
    output, _ = resumed.communicate(timeout=60)
    assert "--resume" in output, output
    after = read_events(journal)
    assert len(bodies(after, TrialFinished)) > len(bodies(before, TrialFinished))
    assert [e.hash for e in after[: len(before)]] == [e.hash for e in before]
    started = Counter(body.trial for body in bodies(after, TrialStarted))
    assert all(started[trial] == 1 for trial in finished_before)
    slots = Counter(
        (f.facts.block, f.facts.slot) for f in bodies(after, TrialFinished) if f.facts and f.facts.outcome == "ok"
    )
    assert all(count == 1 for count in slots.values()), "a slot that was measured is not measured again"


def _wait_for_trials(home: Home, count: int, process: subprocess.Popen[str]) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = list(home.campaigns.glob("*/journal.jsonl"))
        if found and len(bodies(read_events(found[0]), TrialFinished)) >= count:
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"no {count} trials: {process.communicate()[0] if process.poll() is not None else 'too slow'}")


def attention_bound(folder: Path) -> Path:
    """The tiny workload with longer sequences, so that materialised attention is most of a step."""
    data = (TINY / "data.py").read_text().replace("BLOCK_SIZE = 256", "BLOCK_SIZE = 512")
    contract = (TINY / "workload.toml").read_text().replace("steps = [8, 12]", "steps = [6, 8]")
    return tiny_repository(folder, data__py=data, workload__toml=contract)


def candidates_until_proof(events: list[Event]) -> int:
    """Candidates built before the first one was adopted, that one included."""
    built = 0
    for body in (event.body for event in events):
        built += isinstance(body, CandidateBuilt)
        if isinstance(body, VerdictReached) and body.verdict.verdict == "adopted":
            return built
    raise AssertionError("nothing was adopted")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_real_gain_is_proven_and_a_second_campaign_starts_from_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    workload = attention_bound(tmp_path / "tiny")
    first = run(home, Request(workload, preset="quick", candidates=2), BuiltinMind())
    view, events = view_of(home, first.campaign)
    assert view.claim is not None, [body.verdict for body in bodies(events, VerdictReached)]
    assert view.claim.proven, view.claim.reasons
    assert view.claim.speedup is not None and view.claim.speedup.low > 1.2
    second = run(home, Request(workload, preset="quick", candidates=2), BuiltinMind())
    again, later = view_of(home, second.campaign)
    assert again.claim is not None and again.claim.proven
    assert next(iter(again.directions.values())).facts.reproduces, "what was proven before is tried first"
    assert any(body.changed for body in bodies(later, Retrieved))
    assert candidates_until_proof(later) < candidates_until_proof(events)


SMALL_FULL = """
[preset.small.proof]
aa_pairs = 4
max_verifications = 4
final_pairs = 8
max_candidates = 6
bundle = false
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_bundling_each_gain_is_proven_on_the_one_before(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    contract = (Path(__file__).parents[1] / "workloads" / "tiny" / "workload.toml").read_text() + SMALL_FULL
    workload = tiny_repository(tmp_path / "tiny", workload__toml=contract)
    ended = run(home, Request(workload, preset="small"), BuiltinMind())
    view, events = view_of(home, ended.campaign)
    assert ended.exit_code == 0
    verdicts = [body.verdict for body in bodies(events, VerdictReached) if body.verdict.alpha > 0]
    subjects = [view.candidates[v.candidate].facts.members or (v.candidate,) for v in verdicts]
    assert len(subjects) == len(set(subjects)), "nothing is judged twice"
    best = "original"
    for verdict in verdicts:
        assert verdict.incumbent == best, "the incumbent is the best of its time"
        best = verdict.candidate if verdict.verdict == "adopted" else best
    assert best != "original"
    assert view.claim is not None and view.claim.candidate == best and view.claim.proven
    assert view.claim.attribution

"""Replays: what agrees, what refutes, and what another machine can't say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rsi_tui.audit.reading import find_campaign
from rsi_tui.journal import chain
from rsi_tui.journal.events import Calibrated, CandidateBuilt, Claimed, Replayed, Revoked
from rsi_tui.journal.facts import CandidateFacts, ClaimFacts, Interval
from rsi_tui.journal.view import CampaignView, campaign_ids, load_campaign, newest_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.replaying import Replay, judged, measured_again, replay_page
from rsi_tui.loop.revoking import record_replay
from rsi_tui.minds.builtin.mind import BuiltinMind
from tests.support.loops import Bench, Oracle, bench
from tests.support.story import story, write_home

ID = "20261130-1"
PROVEN = Interval(estimate=1.25, low=1.2, high=1.3, confidence=0.99)


def interval(low: float, high: float) -> Interval:
    return Interval(estimate=(low + high) / 2, low=low, high=high, confidence=0.99)


def claim(now: Interval | None, *, refuted: str = "", reasons: tuple[str, ...] = ()) -> ClaimFacts:
    return ClaimFacts(
        candidate="c1", pairs=8, baseline_step_s=0.1, candidate_step_s=0.08, speedup=now, total_wall_ratio=None, slope_ratio=None,
        baseline_peak_bytes=None, candidate_peak_bytes=None, slow_run_bound=0.1, invariants=(), proven=not (reasons or refuted),
        reasons=reasons or ((refuted,) if refuted else ()), refuted=refuted,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "elsewhere", "outcome"),
    [
        (claim(interval(1.18, 1.28)), False, "agrees"),
        (claim(interval(1.18, 1.28)), True, "agrees"),
        (claim(interval(0.98, 1.28), reasons=("the interval does not lie above 1",)), False, "undecided"),
        (claim(interval(1.05, 1.1)), False, "undecided"),
        (claim(interval(0.8, 0.9), reasons=("the interval does not lie above 1",)), False, "refuted"),
        (claim(interval(0.8, 0.9), reasons=("the interval does not lie above 1",)), True, "undecided"),
        (claim(None, refuted="update direction is broken"), False, "refuted"),
        (claim(None, refuted="update direction is broken"), True, "undecided"),
        (claim(None, reasons=("only 2 pairs count",)), False, "undecided"),
    ],
)
def test_only_the_same_machine_refutes(made: ClaimFacts, elsewhere: bool, outcome: str) -> None:
    assert judged(PROVEN, made, ("cpu: one then, another here",) if elsewhere else ())[0] == outcome


@dataclass
class Again(Oracle):
    """The stand-in, with what a replay asks besides."""

    now: Interval | None = None
    fails: str = ""

    def check_runs(self, step: str, candidate: CandidateFacts) -> str:
        return self.fails

    def recalibrate(self, known: object, alpha: float) -> Calibrated:
        return self.calibrate(alpha)

    def claim(self, step: str, stack: CandidateFacts, attribution: tuple, *, verified: bool = True) -> ClaimFacts:  # type: ignore[type-arg]
        self.claimed.append(stack.id)
        return self.steps.once(step, Claimed, lambda: Claimed(claim=claim(self.now))).claim


def ready(folder: Path, now: Interval | None, fails: str = "") -> tuple[Bench, Again, CampaignView, CandidateFacts]:
    made = bench(folder, BuiltinMind())
    oracle = Again(made.oracle.original, made.ctx.steps, now=now, fails=fails)
    made.ctx.evaluator = oracle  # type: ignore[assignment]
    view = load_campaign(write_home(folder / "proven"), ID)
    known = view.best()
    assert known is not None and view.created is not None
    made.ctx.created = made.ctx.created.model_copy(update={"host": view.created.host})
    return made, oracle, view, known.facts


def test_a_replay_is_a_claim_of_the_same_code_on_fresh_pairs(tmp_path: Path) -> None:
    made, oracle, view, facts = ready(tmp_path, None)
    proven = view.claim.speedup if view.claim else None
    oracle.now = proven
    found = measured_again(made.ctx.home, made.ctx, view, facts)
    assert found.outcome == "agrees" and found.before == proven and not found.differences
    built = made.writer.bodies(CandidateBuilt)[0].candidate
    assert (built.commit, built.knobs, built.members) == (facts.commit, facts.knobs, ())
    again = measured_again(made.ctx.home, made.ctx, view, facts)
    assert again == found and len(made.writer.bodies(Replayed)) == 1


def test_a_change_that_does_not_run_any_more_is_refuted_without_timing(tmp_path: Path) -> None:
    made, oracle, view, facts = ready(tmp_path, None, fails="it ended with exit code 1")
    assert measured_again(made.ctx.home, made.ctx, view, facts).outcome == "refuted"
    assert oracle.claimed == []


def noted(home: Home, outcome: str) -> tuple[str, ...]:
    view = load_campaign(home, ID)
    best = view.best()
    assert best is not None
    body = Replayed.model_validate({
        "campaign": ID, "candidate": best.id, "replay": "r1", "outcome": outcome, "reason": "it is slower", "before": None, "now": None,
    })  # fmt: skip
    assert record_replay(home, body) == record_replay(home, body) or outcome == "refuted"
    return tuple(known.id for known in load_campaign(home, ID).adopted())


def test_a_refutation_is_recorded_and_takes_the_adoption_back_once(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    assert noted(home, "refuted") == ()
    paths = home.campaign(ID)
    bodies = [event.body for event in chain.read_events(paths.journal, paths.anchor)]
    assert sum(isinstance(body, Replayed) for body in bodies) == 1
    (revoked,) = [body for body in bodies if isinstance(body, Revoked)]
    assert "refuted by replay r1" in revoked.reason
    assert load_campaign(home, ID).proven_claim is None


@pytest.mark.parametrize("outcome", ["agrees", "undecided"])
def test_what_does_not_refute_leaves_the_adoption(tmp_path: Path, outcome: str) -> None:
    home = write_home(tmp_path)
    before = tuple(known.id for known in load_campaign(home, ID).adopted())
    assert noted(home, outcome) == before
    assert len(load_campaign(home, ID).replays) == 1


def test_a_replay_is_not_the_newest_campaign(tmp_path: Path) -> None:
    home = write_home(tmp_path / "home")
    opening = next(story("20261130-2")).model_copy(update={"kind": "replay", "replays": f"{ID}/c1"})
    with chain.JournalWriter.open(home.campaign("20261130-2").journal) as writer:
        writer.append(opening)
    assert set(campaign_ids(home)) == {ID, "20261130-2"}
    assert newest_campaign(home) == ID
    assert find_campaign(home, "20261130-2") == "20261130-2"


def test_a_person_reads_the_outcome_and_the_difference_of_machines() -> None:
    body = Replayed(
        campaign=ID, candidate="c3", replay="r1", outcome="undecided", reason="it is slower", before=PROVEN, now=interval(0.8, 0.9),
        differences=("cpu: one then, another here",),
    )  # fmt: skip
    page = replay_page(Replay("r1", body, (), 4))
    assert "Undecided" in page and "another machine: cpu: one then, another here" in page

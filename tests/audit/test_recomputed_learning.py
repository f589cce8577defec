"""Limits and invariants are computed again from the comparisons of checkpoints that a campaign reveals at its end."""

from __future__ import annotations

from typing import Any

import pytest

from rsi_tui.audit.checks import Check
from rsi_tui.audit.recomputed import recompute
from rsi_tui.audit.recomputed_learning import Learning
from rsi_tui.audit.record import Record
from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.bands import calibrate, judge
from rsi_tui.evaluator.compare import TensorUpdate, UpdateReport
from rsi_tui.evaluator.trajectories import Trajectory, calibrate_trajectories, judge_trajectories
from rsi_tui.evaluator.validation import judge_validation
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import ORIGINAL, Fact, InvariantFacts, NoiseFacts, ScreenFacts, TrialFacts
from tests.support import story

NOISE = NoiseFacts(pair_scale=0.01, run_cv=0.01, pairs=4, differences=(0.01, -0.02, 0.0, 0.01), smallest_provable=0.05, fingerprint="f")
LOSSES = {"reference": ("8.1", "7.9", "7.7"), "harmless": ("8.1", "7.9003", "7.7"), "candidate": ("8.1", "7.9001", "7.7001")}


def report(error: float) -> UpdateReport:
    row = TensorUpdate(
        name="w", shape=(4, 4), numel=16, error=error, row_error=error, along_update=0.0, along_weights=0.0, update_norm=1.0,
        difference_norm=error, weight_norm=1.0,
    )  # fmt: skip
    return UpdateReport(error=error, rows=(row,), counters=(3.0,), reference_counters=(3.0,))


def run(number: int, block: str, slot: int, arm: str, candidate: str = ORIGINAL) -> TrialFacts:
    return story.trial(number, candidate, "screen", arm, 0.1, block=block, slot=slot)


REPORTS = {"t2": report(3e-6), "t4": report(1e-6)}
"""of the harmless run, of the candidate"""
PRINTED = {"t1": "reference", "t2": "harmless", "t3": "reference", "t4": "candidate"}


def events(revealed: dict[str, Any], invariants: tuple[InvariantFacts, ...] | None = None, **band: float) -> list[ev.Event]:
    """A calibration with one harmless run, then one screened candidate; `band` changes the first limit."""
    contract: Contract = story.contract()
    said = {name: Trajectory(texts={"loss": texts}) for name, texts in LOSSES.items()}
    bands = (*calibrate([REPORTS["t2"]], [], contract), *calibrate_trajectories(said["reference"], [said["harmless"]], []))
    found = (
        *judge(REPORTS["t4"], bands, contract),
        *judge_trajectories(said["candidate"], said["reference"], bands, None, bf16=True),
    )
    bodies: list[tuple[Fact, str]] = [
        (_created(contract), ""),
        (ev.BlockOpened(block="calibration-pair0", purpose="calibration", candidates=(ORIGINAL,), incumbent=ORIGINAL, slots=2, commitment="c"), "calibration/pair0/opened"),
        *[(ev.TrialFinished(trial=facts.id, facts=facts), "") for facts in (run(1, "calibration-pair0", 0, "incumbent"), run(2, "calibration-pair0", 1, "harmless"))],
        (ev.BlockClosed(block="calibration-pair0", trials=()), ""),
        (ev.Calibrated(noise=NOISE, bands=(bands[0].model_copy(update=band), *bands[1:])), ""),
        (ev.BlockOpened(block="d1-b1", purpose="screen", candidates=("c1",), incumbent=ORIGINAL, slots=2, commitment="c"), "d1/b1/opened"),
        *[(ev.TrialFinished(trial=facts.id, facts=facts), "") for facts in (run(3, "d1-b1", 0, "incumbent"), run(4, "d1-b1", 1, "candidate", "c1"))],
        (ev.BlockClosed(block="d1-b1", trials=()), ""),
        (ev.Screened(results=(ScreenFacts(candidate="c1", incumbent=ORIGINAL, outcome="ok", log_ratio=0.0, batches=1, promoted=False, reason="", invariants=found if invariants is None else invariants, trials=("t4",)),)), ""),
        (ev.SecretsRevealed(blocks=revealed), ""),
    ]  # fmt: skip
    return [ev.Event(seq=n, at="", step=step, body=body, prev="", hash="") for n, (body, step) in enumerate(bodies)]


def _created(contract: Contract) -> Fact:
    return ev.CampaignCreated(
        campaign="k", workload="w", workload_key="w", folder="/f", contract_hash=contract.hash, contract=contract.model_dump(mode="json"),
        base_commit=story.BASE, preset="quick", mind="builtin", seed=0, max_candidates=1, trust="A", sandbox="", host={}, version="0",
    )  # fmt: skip


def secrets(**errors: float) -> dict[str, Any]:
    reports = REPORTS | {trial: report(error) for trial, error in errors.items()}
    compared = {f"compared/{trial}": {"value": one.model_dump(mode="json")} for trial, one in reports.items()}
    return compared | {f"printed/{trial}": {"value": {"texts": {"loss": list(LOSSES[which])}}} for trial, which in PRINTED.items()}


def about(found: list[Check], *words: str) -> list[Check]:
    return [check for check in found if any(word in check.figure for word in words)]


ABOUT = ("limit of", "harmless runs", "screening: learned", "screening: loss", "screening: number", "screening: stored", "screening: parameters")


def test_limits_and_invariants_follow_from_the_comparisons() -> None:
    found = about(recompute(Record(events(secrets()))), *ABOUT)
    assert len(found) > 15 and all(check.right for check in found), [check for check in found if not check.right]


@pytest.mark.parametrize(("errors", "named"), [({"t2": 1e-3}, "limit of fp32"), ({"t4": 2e-6}, "learned update, all tensors, value"), ({"t4": 0.5}, "status")])
def test_a_comparison_that_says_something_else_is_named(errors: dict[str, float], named: str) -> None:
    wrong = [check.figure for check in recompute(Record(events(secrets(**errors)))) if check.right is False]
    assert any(named in figure for figure in wrong), wrong


def test_a_limit_that_harmless_runs_do_not_set_is_named() -> None:
    wrong = [check for check in recompute(Record(events(secrets(), limit=1.0))) if check.right is False]
    assert any(check.figure.startswith("limit of") and check.recorded == 1.0 for check in wrong)


def test_what_is_broken_can_not_be_left_out() -> None:
    wrong = [check.figure for check in recompute(Record(events(secrets(t4=0.5), invariants=()))) if check.right is False]
    assert any("learned update" in figure for figure in wrong)


def test_while_the_comparisons_are_sealed_their_figures_are_not_called_right() -> None:
    sealed = [event for event in events(secrets()) if not isinstance(event.body, ev.SecretsRevealed)]
    found = recompute(Record(sealed))
    assert {check.right for check in about(found, "limits of the invariants", ", value")} == {None}
    ended = ev.Event(seq=len(sealed), at="", body=ev.StateChanged(state="finished"), prev="", hash="")
    wrong = [check for check in recompute(Record([*sealed, ended])) if check.right is False]
    assert any(check.follows == "revealed before the last state" for check in wrong)


def test_a_hidden_loss_that_was_worse_is_judged_again() -> None:
    losses = {"validated/d1/b1": {"value": {"trial": "t4", "incumbent": 7.1, "twin": None, "candidate": 8.0}}}
    record = Record(events(secrets() | losses))
    found = {fact.name: fact.status for fact in Learning(record).of_block(record.blocks["d1-b1"])}
    assert found[judge_validation(8.0, 7.1, 0.0).name] == "broken" and found["loss trajectory"] == "held"

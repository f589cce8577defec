"""What an evaluation tells of itself: no verdict before it is over, and of what is not proven the cause and what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.audit.verdict_page import verdict_data, verdict_page
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import BlockClosed, CampaignCreated, Claimed, VerdictReached
from rsi_tui.journal.facts import VerdictFacts
from rsi_tui.journal.view import CampaignView, campaign_summary
from rsi_tui.loop import evaluating
from rsi_tui.loop.executor import Refusal
from tests.loop.test_evaluate import Trial, trial
from tests.support.loops import Writer


def carried(folder: Path, **told: object) -> Trial:
    """An evaluation without runs, carried to its verdict."""
    one = trial(folder, **told)
    one.verdict()
    return one


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """One that its verification did not prove."""
    return carried(tmp_path_factory.mktemp("undecided"), verdict=lambda candidate: "not_proven")


# --- the claim --------------------------------------------------------------------------------


def test_the_pairs_of_a_claim_are_those_that_count_and_its_saving_is_told(tmp_path: Path) -> None:
    data = verdict_data(carried(tmp_path, claim_saves=True).view)
    assert data["claim"] == {"proven": True, "pairs": 8, "speedup": data["speedup"], "reasons": []}
    assert data["memory_saving"]["proven"] and data["memory_saving"]["limit_bytes"] == 184 * 2**20
    page = " ".join(verdict_page(data).split())
    assert "claimed on 8 fresh pairs of runs" in page
    assert "proven: 3 fresh runs ended well" in page


@pytest.mark.parametrize(
    ("engine", "state", "headline", "next_"),
    [(None, "interrupted", "NO VERDICT", "--resume"), (4711, "running", "RUNNING", "rsi attach")],
)
def test_what_a_verification_adopts_is_no_verdict_before_the_claim_is_made(
    tmp_path: Path, engine: int | None, state: str, headline: str, next_: str
) -> None:
    one = trial(tmp_path)

    def dies(what: str) -> None:
        if what == "claim":
            raise Interrupted("the terminal is gone")

    one.judge.during = dies
    with pytest.raises(Interrupted):
        one.verdict()
    assert one.view.verdicts[-1].verdict == "adopted"
    data = verdict_data(one.view, engine=engine)
    assert (data["state"], data["verdict"], data["reasons"], data["speedup"], data["speedup_from"]) == (state, None, [], None, None)
    assert data["verification"]["verdict"] == "adopted" and data["claim"] is None
    page = verdict_page(data)
    assert page.startswith(headline) and next_ in page
    assert "ADOPTED" not in page and "before the claim" in " ".join(page.split())
    summary = campaign_summary(one.view)
    assert (summary["verdict"], summary["adopted"]) == (None, [])


# --- what is not proven -----------------------------------------------------------------------


def retold(one: Trial, verdict: VerdictFacts, voids: tuple[str, ...], invariants: dict[str, object]) -> CampaignView:
    """The evaluation as it would have been with another verdict of its verification, blocks that do not count before it,
    and other invariants in its contract."""
    writer = Writer()
    for event in one.room.writer.events:
        body = event.body
        if isinstance(body, CampaignCreated):
            body = body.model_copy(update={"contract": body.contract | {"invariants": body.contract["invariants"] | invariants}})
        if isinstance(body, VerdictReached):
            for number, why in enumerate(voids):
                writer.append(BlockClosed(block=f"verify-c1-b{number}", trials=(), void=why))
            body = VerdictReached(verdict=verdict)
        writer.append(body, event.step)
    return CampaignView().feed_all(writer.events)


def not_proven(evalue: float | None, reason: str, **more: object) -> VerdictFacts:
    """The word of a verification whose e-value had to reach 1 / 0.006."""
    return VerdictFacts.model_validate(
        {"candidate": "c1", "incumbent": "original", "verdict": "not_proven", "reasons": (reason,), "alpha": 0.006, "evalue": evalue} | more
    )


LOAD = "t31 was not measured: another process took 80 % of a core"
QUIET = "nothing else runs on this machine"
UNPROVEN: list[tuple[VerdictFacts, tuple[str, ...], dict[str, object], str, str, str]] = [
    (not_proven(3.0, "too few runs", runs_needed=40), (), {}, "no_gain", "no gain was shown", "about 40 more runs"),
    (not_proven(None, "visibly no faster"), (), {}, "no_gain", "no gain was shown", "a larger effect is needed"),
    (not_proven(3.0, "too few runs"), (LOAD,), {}, "no_gain", "no gain was shown", "a larger effect is needed"),
    (not_proven(2000.0, "9 of 40 runs are slow", runs_needed=0), (), {}, "conditions", "a gain was shown", "gain of time itself was shown"),
    (not_proven(3.0, f"3 blocks did not count, the last because {LOAD}", runs_needed=40), (LOAD,), {}, "not_measured", "not be measured", QUIET),
    (not_proven(2000.0, f"3 blocks of endurance did not count: {LOAD}"), (LOAD,), {}, "not_measured", "not be measured", QUIET),
    (
        not_proven(2000.0, "the contract names no validation"), (), {"weights": "statistical", "validation": ""}, "contract",
        "did not suffice", "mend the program or workload.toml",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "voids", "invariants", "cause", "headline", "next_"), UNPROVEN)
def test_headline_and_advice_of_what_is_not_proven_follow_its_cause(
    undecided: Trial, verdict: VerdictFacts, voids: tuple[str, ...], invariants: dict[str, object], cause: str, headline: str, next_: str
) -> None:
    data = verdict_data(retold(undecided, verdict, voids, invariants))
    lines = verdict_page(data).splitlines()
    assert data["cause"] == cause
    assert lines[0].startswith("NOT PROVEN") and headline in lines[0] and max(map(len, lines)) <= 80
    assert next_ in " ".join(" ".join(lines).split())


def test_screening_that_the_machine_failed_is_not_measured(tmp_path: Path) -> None:
    data = verdict_data(carried(tmp_path, outcome="not_measured", promoted=False).view)
    assert data["cause"] == "not_measured" and "it could not be measured" in verdict_page(data)


@pytest.mark.parametrize(
    ("claim", "cause", "headline"),
    [
        ({}, "claim", "not confirmed on fresh pairs"),
        ({"pairs": 3, "speedup": None}, "not_measured", "it could not be measured"),
        ({"speedup": {"estimate": 1.1, "low": 1.05, "high": 1.2, "confidence": 0.99}}, "conditions", "not all that adoption needs"),
    ],
)
def test_a_claim_that_falls_short_is_told_by_what_it_lacks(tmp_path: Path, claim: dict[str, object], cause: str, headline: str) -> None:
    writer = Writer()
    for event in carried(tmp_path, claim_holds=False).room.writer.events:
        body = event.body
        if isinstance(body, Claimed):
            body = Claimed.model_validate({"claim": body.claim.model_dump() | claim})
        writer.append(body, event.step)
    data = verdict_data(CampaignView().feed_all(writer.events))
    page = verdict_page(data)
    assert data["cause"] == cause and headline in page.splitlines()[0] and max(map(len, page.splitlines())) <= 80


def test_a_change_of_nothing_is_told_to_change_something(tmp_path: Path) -> None:
    one = trial(tmp_path)
    one.change = evaluating._Change(one.change.own, Refusal("no_change", "only comments change"))
    assert one.verdict() == "not_proven"
    page = verdict_page(verdict_data(one.view))
    assert page.startswith("NOT PROVEN: nothing was run") and "change something that runs" in page


def test_an_evaluation_that_was_stopped_before_its_first_run_is_told_to_ask_again(tmp_path: Path) -> None:
    one = trial(tmp_path)
    send_command(one.room.ctx.paths, "ann", "stop")
    assert one.verdict() == "not_proven" and one.judge.asked == []
    data = verdict_data(one.view)
    page = " ".join(verdict_page(data).split())
    assert data["cause"] == "stopped" and page.startswith("STOPPED")
    assert "let it come to its end; this cost no error probability" in page and "change something" not in page

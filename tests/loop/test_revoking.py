"""An adoption is taken back with what rests on it: in the search, at the claim, by a person at any time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.audit.report import render_report
from rsi_tui.cli import app
from rsi_tui.errors import UsageError
from rsi_tui.evaluator.ledger import AlphaLedger
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import Event, PersonActed, Revoked, StateChanged, VerdictReached
from rsi_tui.journal.rows import batch_of
from rsi_tui.journal.view import CampaignView, campaign_summary
from rsi_tui.loop.outer import run_campaign
from rsi_tui.loop.revoking import Adoption, fall, read_veto, veto_text
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench
from tests.support.story import write_home

OFF = {"canaries": False, "leave_one_out": False}


def adoption(id: str, incumbent: str, *made_of: str) -> Adoption:
    return Adoption(id, incumbent, {id, *made_of})


CHAIN = (adoption("c1", "original"), adoption("c2", "c1", "c1"), adoption("c3", "c2", "c2", "c1"))


@pytest.mark.parametrize(
    ("adopted", "evalues", "revoked", "falls"),
    [
        (CHAIN, (1e9, 1e9, 1e9), "c3", ()),
        (CHAIN, (1e9, 1e9, 1e9), "c2", ("c3",)),
        (CHAIN, (1e9, 1e9, 1e9), "c1", ("c2", "c3")),
        # proven against what fell, made of something else
        ((adoption("c1", "original"), adoption("c2", "c1")), (1e9, 1e9), "c1", ("c2",)),
        # made of what fell, proven against the original
        ((adoption("c1", "original"), adoption("c2", "original", "c1")), (1e9, 1e9), "c1", ("c2",)),
        # resting on nothing but error probability: it stays where its e-value reaches 1 / its own share of 0.001
        ((adoption("c1", "original"), adoption("c2", "original")), (1e9, 800.0), "c1", ("c2",)),
        ((adoption("c1", "original"), adoption("c2", "original")), (1e9, 1200.0), "c1", ()),
        # adopted by its claim: the ledger does not know it
        ((adoption("c1", "original"), adoption("c9", "original", "c1")), (1e9,), "c1", ("c9",)),
    ],
)  # fmt: skip
def test_what_rests_on_an_adoption_falls_with_it(
    adopted: Sequence[Adoption], evalues: Sequence[float], revoked: str, falls: tuple[str, ...]
) -> None:
    ledger, order = AlphaLedger(0.004, 4), [known.candidate for known in adopted[: len(evalues)]]
    for evalue in evalues:
        ledger.settle(True, evalue)
    assert fall(revoked, adopted, ledger, order) == falls
    proven = {id for id, (_, holds) in zip(order, ledger.settled, strict=True) if holds}
    assert proven == set(order) - {revoked, *falls}, "the ledger counts their shares as spent"


@pytest.mark.parametrize(("text", "read"), [
    (veto_text("c3", "it breaks our loader: badly"), ("c3", "it breaks our loader: badly")), (veto_text("c3", ""), ("c3", "by a person's veto")),
])  # fmt: skip
def test_a_veto_names_candidate_and_reason(text: str, read: tuple[str, str]) -> None:
    assert read_veto(text) == read


# --- in the search


def campaign(folder: Path, count: int = 8, events: Sequence[Event] = (), *, bundle: bool = False) -> Bench:
    return bench(folder, PatchMind(no_op_patches(count)), candidates=count, events=events, bundle=bundle, proof=OFF)


def vetoing(made: Bench, when: str, candidate: str) -> None:
    """A person vetoes a candidate within the first measurement of a kind after it was adopted."""
    sent: list[str] = []

    def during(what: str) -> None:
        adopted = {attempt.candidate.id for attempt in made.ctx.memory.adopted}
        if what == when and candidate in adopted and not sent:
            sent.append(candidate)
            send_command(made.ctx.paths, "ann", "veto", veto_text(candidate, "not in our house"))
        made.ctx.heed_people()

    made.oracle.during = during


def verdicts(made: Bench) -> dict[str, str]:
    return {body.verdict.candidate: body.verdict.incumbent for body in made.writer.bodies(VerdictReached)}


def test_a_veto_is_heeded_at_the_next_safe_point_and_the_search_goes_on_without(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    vetoing(made, "verify", "c1")
    assert run_campaign(made.ctx) == "finished"
    (revoked,) = made.writer.bodies(Revoked)
    assert (revoked.candidate, revoked.who, revoked.reason) == ("c1", "ann", "not in our house")
    assert revoked.reopened, "what was being verified against it when the veto came"
    kinds = [event.body for event in made.writer.events]
    at = kinds.index(revoked)
    assert isinstance(kinds[at - 1], VerdictReached), "the verification that ran is brought to its end"
    later = [b.verdict.incumbent for b in kinds[at:] if isinstance(b, VerdictReached)]
    assert later[0] == "original" and not {"c1", *revoked.reopened} & set(later)
    final = made.oracle.claimed[-1]
    assert not made.ctx.memory.made_of(final) & {"c1", *revoked.reopened}
    assert not {"c1"} & set(made.ctx.memory.made_of(made.ctx.memory.best.id))


def test_nothing_is_built_on_what_was_taken_back(tmp_path: Path) -> None:
    made = campaign(tmp_path)
    vetoing(made, "verify", "c1")
    run_campaign(made.ctx)
    memory = made.ctx.memory
    assert not memory.knows("c1")
    assert not {"c1"} & {c.id for c in memory.archive()}
    attempt = memory.attempts["c1"]
    assert attempt.verdict is not None and attempt.verdict.verdict == "not_proven" and "taken back by ann" in attempt.verdict.reasons[0]


@pytest.mark.slow
def test_a_resumed_campaign_takes_it_back_at_the_same_place(tmp_path: Path) -> None:
    whole = campaign(tmp_path)
    vetoing(whole, "verify", "c1")
    run_campaign(whole.ctx)
    steps = [event.step for event in whole.writer.events if event.step]
    heard = next(n for n, event in enumerate(whole.writer.events) if isinstance(event.body, PersonActed))
    for cut in range(heard + 1, len(whole.writer.events) - 1, 3):
        again = campaign(tmp_path, events=whole.writer.events[:cut])
        assert run_campaign(again.ctx) == "finished"
        assert sorted(event.step for event in again.writer.events if event.step) == sorted(steps)
        assert again.writer.bodies(Revoked) == whole.writer.bodies(Revoked)


@pytest.mark.parametrize("bundle", [True, False])
def test_a_veto_of_the_stack_that_is_being_claimed_ends_its_claim(tmp_path: Path, bundle: bool) -> None:
    made = campaign(tmp_path, 2, bundle=bundle)
    best = "c3"  # the two joined, or the second rebuilt on the first
    vetoing(made, "claim", best)
    assert run_campaign(made.ctx) == "finished"
    assert [body.candidate for body in made.writer.bodies(Revoked)] == [best]
    assert made.oracle.claimed == [best] if bundle else [best, "c1"], "what was adopted before it is claimed instead"
    reason = made.writer.bodies(StateChanged)[-1].reason
    assert reason == ("what was adopted had to be taken back" if bundle else "")


def test_a_veto_beside_a_stop_is_carried_out_too(tmp_path: Path) -> None:
    made = campaign(tmp_path)

    def during(what: str) -> None:
        if what == "verify" and made.ctx.memory.adopted:
            send_command(made.ctx.paths, "ann", "stop")
            send_command(made.ctx.paths, "ann", "veto", "c1")
        made.ctx.heed_people()

    made.oracle.during = during
    assert run_campaign(made.ctx) == "stopped"
    assert [body.candidate for body in made.writer.bodies(Revoked)] == ["c1"]


def test_a_veto_that_comes_when_all_is_done_is_still_heard(tmp_path: Path) -> None:
    made = campaign(tmp_path, 2, bundle=True)
    made.oracle.during = lambda what: send_command(made.ctx.paths, "ann", "veto", "c3") if what == "claim" else None
    assert run_campaign(made.ctx) == "finished"
    assert [body.candidate for body in made.writer.bodies(Revoked)] == ["c3"]


@pytest.mark.parametrize("how", ["hours", "stop"])
@pytest.mark.parametrize("veto", ["recorded", "waiting"])
def test_a_veto_outlives_a_resumed_campaign_that_ends_at_once(tmp_path: Path, how: str, veto: str) -> None:
    whole = campaign(tmp_path)
    run_campaign(whole.ctx)
    first = next(n for n, event in enumerate(whole.writer.events) if isinstance(event.body, VerdictReached))
    again = campaign(tmp_path, events=whole.writer.events[: first + 1])
    if veto == "recorded":
        again.ctx.vetoes = [PersonActed(who="ann", action="veto", text="c1: not in our house")]
    else:
        send_command(again.ctx.paths, "ann", "veto", veto_text("c1", "not in our house"))
    if how == "stop":
        send_command(again.ctx.paths, "ann", "stop")
    else:
        again.ctx.deadline = time.monotonic() - 1
    assert run_campaign(again.ctx) == "stopped"
    assert [(body.candidate, body.who) for body in again.writer.bodies(Revoked)] == [("c1", "ann")]
    assert again.ctx.memory.best.id == "original"
    assert again.oracle.verified == [], "nothing was measured after the end was asked for"
    assert again.ctx.out_of_time == (how == "hours")


# --- at the claim


def test_a_claim_that_finds_the_stack_broken_takes_it_back_and_claims_what_was_adopted_before(tmp_path: Path) -> None:
    made = campaign(tmp_path, 2)
    made.oracle.refuted = lambda stack: "run t40 of the stack has no time (oom)" if stack.id == "c3" else ""
    assert run_campaign(made.ctx) == "finished"
    (revoked,) = made.writer.bodies(Revoked)
    assert (revoked.candidate, revoked.who) == ("c3", "rsi") and "t40" in revoked.reason
    assert made.oracle.claimed == ["c3", "c1"]
    assert made.ctx.memory.best.id == "c1"
    assert made.writer.bodies(StateChanged)[-1].reason == ""


def test_when_everything_is_taken_back_the_campaign_says_so(tmp_path: Path) -> None:
    made = campaign(tmp_path, 2)
    made.oracle.refuted = lambda stack: "learned update is broken"
    assert run_campaign(made.ctx) == "finished"
    assert [body.candidate for body in made.writer.bodies(Revoked)] == ["c3", "c1"]
    assert made.writer.bodies(StateChanged)[-1].reason == "what was adopted had to be taken back"


# --- by a person, of a campaign that is over


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = write_home(tmp_path)
    monkeypatch.setenv("RSI_HOME", str(home.root))
    return home.campaign("20261130-1").journal


def test_what_a_finished_campaign_proved_can_be_taken_back(told: Path) -> None:
    done = CliRunner().invoke(app, ["veto", "c6", "--reason", "it breaks our data loader"])
    assert done.exit_code == 0 and "c6 of 20261130-1 is taken back" in done.output
    events = read_events(told)
    assert [type(event.body) for event in events[-2:]] == [PersonActed, Revoked]
    view = CampaignView().feed_all(events)
    assert view.best() is None and view.proven_speedup() is None and campaign_summary(view)["speedup"] is None
    report = render_report(view, events)
    assert "# dense-single: nothing proven" in report and "it breaks our data loader" in report.split("## What was taken back")[1]
    assert "faster (99" not in report
    shown = CliRunner().invoke(app, ["show", "c6"]).output
    assert "revoked: taken back by" in shown


def test_the_library_no_longer_calls_it_proven(told: Path) -> None:
    rows = {row["id"]: row for row in batch_of(read_events(told)).candidates}
    assert rows["20261130-1/c6"]["verdict"] == "adopted"
    CliRunner().invoke(app, ["veto", "c6"])
    batch = batch_of(read_events(told))
    rows = {row["id"]: row for row in batch.candidates}
    assert (rows["20261130-1/c6"]["verdict"], batch.campaign["speedup"]) == ("revoked", None)
    assert "its bundle c6 is revoked" in rows["20261130-1/c1"]["reason"]


@pytest.mark.parametrize(("candidate", "says"), [("c1", "adopted there: c6"), ("c99", "adopted there: c6"), ("20261130-1/c2", "adopted there: c6")])
def test_only_an_adoption_can_be_taken_back(told: Path, candidate: str, says: str) -> None:
    before = told.read_bytes()
    done = CliRunner().invoke(app, ["veto", candidate])
    assert isinstance(done.exception, UsageError) and says in str(done.exception)
    assert told.read_bytes() == before


def test_it_is_taken_back_once(told: Path) -> None:
    CliRunner().invoke(app, ["veto", "c6"])
    done = CliRunner().invoke(app, ["veto", "c6"])
    assert isinstance(done.exception, UsageError) and "nothing is adopted there" in str(done.exception)


def test_an_interrupted_campaign_keeps_the_veto_for_its_next_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write_home(tmp_path, until="verifying")
    monkeypatch.setenv("RSI_HOME", str(home.root))
    paths = home.campaign("20261130-1")
    done = CliRunner().invoke(app, ["veto", "c6", "--reason", "no"])
    assert "when it is resumed" in done.output
    with JournalWriter.open(paths.journal) as writer:
        assert not any(isinstance(event.body, Revoked) for event in writer.events)
    made = campaign(tmp_path / "other")
    made.ctx.paths = paths
    assert made.ctx.forget_the_past() == ()
    assert [veto.text for veto in made.ctx.vetoes] == ["c6: no"]
    assert [body.text for body in made.writer.bodies(PersonActed)] == ["c6: no"]

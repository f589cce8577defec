"""From a person's change to its verdict: which measurements are asked for, in which order, and what they decide."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rsi_tui.audit.verdict_page import HEADLINES, verdict_data, verdict_page
from rsi_tui.errors import ContractError, UsageError
from rsi_tui.evaluator.recheck import APART_SCALES, LEVEL_FLOOR, Known, agrees
from rsi_tui.evaluator.screen import Alone
from rsi_tui.evaluator.screening import look_alone
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import (
    AlphaGranted,
    Calibrated,
    Claimed,
    Event,
    PersonActed,
    Revoked,
    Screened,
    StateChanged,
    VerdictReached,
)
from rsi_tui.journal.facts import (
    AttributionFacts,
    CandidateFacts,
    ClaimFacts,
    Interval,
    InvariantFacts,
    MemorySavingFacts,
    Outcome,
    ScreenFacts,
    Verdict,
    VerdictFacts,
)
from rsi_tui.journal.view import CampaignView, load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop import evaluating
from rsi_tui.loop.evaluating import Asked, carry_to_verdict, evaluate
from rsi_tui.loop.known_noise import MAX_AGE, find_calibration
from rsi_tui.loop.own_change import apply_change, read_change
from tests.support.campaigns import PatchMind, tiny_repository
from tests.support.loops import Bench, Oracle, bench
from tests.support.story import write_home

BROKEN = InvariantFacts(name="learned update, all tensors", status="broken", value=0.3, limit=5e-5, how="ten times the largest harmless one")

SAVING = MemorySavingFacts(
    limit_bytes=184 * 2**20, incumbent_peak_bytes=200 * 2**20, peak_bytes=180 * 2**20, runs=3, proven=True,
    reason="3 fresh runs ended well under a hard limit of 184 MiB",
)  # fmt: skip


@dataclass
class Judge(Oracle):
    """An evaluator that knows what screening, verification and claim will say."""

    fails: str = ""
    outcome: Outcome = "ok"
    promoted: bool = True
    broken: bool = False
    saves: bool = False
    claim_holds: bool = True
    claim_breaks: bool = False
    claim_finds: str = ""
    """what is wrong with the change itself"""
    claim_saves: bool = False
    asked: list[str] = field(default_factory=list)
    """measurements that were made, not read back"""
    alphas: list[float] = field(default_factory=list)

    def _fresh(self, step: str, what: str) -> None:
        self.during(what)
        if self.steps.find(step) is None:
            self.asked.append(what)

    def check_runs(self, step: str, candidate: CandidateFacts) -> str:
        self.during("check")
        return self.fails

    def recalibrate(self, known: Known | None, alpha: float) -> Calibrated:
        self._fresh("calibration", "calibrate")
        return self.calibrate(alpha)

    def screen_alone(self, step: str, candidate: CandidateFacts, incumbent: CandidateFacts) -> Alone:
        self._fresh(step, "screen")
        facts = ScreenFacts(
            candidate=candidate.id, incumbent=incumbent.id, outcome=self.outcome,
            log_ratio=self.effect(candidate) if self.outcome == "ok" else None, batches=2, promoted=self.promoted,
            reason="what screening saw", invariants=(BROKEN,) if self.broken else (),
        )  # fmt: skip
        return Alone(self.steps.once(step, Screened, lambda: Screened(results=(facts,))).results[0], (), ())

    def judge_slower(self, step: str, screened: Alone, candidate: CandidateFacts, incumbent: CandidateFacts) -> VerdictFacts:
        self._fresh(step, "slower")
        facts = VerdictFacts(
            candidate=candidate.id, incumbent=incumbent.id, verdict="leaner" if self.saves else "slower",
            reasons=(screened.facts.reason,), alpha=0.0,
        )  # fmt: skip
        return self.steps.once(step, VerdictReached, lambda: VerdictReached(verdict=facts)).verdict

    def verify(  # type: ignore[override]
        self, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, alpha: float, predicted_gain: float
    ) -> VerdictFacts:
        self._fresh(step, "verify")
        self.alphas.append(alpha)
        return super().verify(step, candidate, incumbent, alpha, predicted_gain)

    def claim(self, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...]) -> ClaimFacts:
        self._fresh(step, "claim")
        facts = ClaimFacts(
            candidate=stack.id, pairs=8, baseline_step_s=0.1, candidate_step_s=0.09, total_wall_ratio=1.1, slope_ratio=1.1,
            speedup=Interval(estimate=1.11, low=1.08 if self.claim_holds else 0.98, high=1.14, confidence=0.99),
            baseline_peak_bytes=200 * 2**20, candidate_peak_bytes=180 * 2**20, slow_run_bound=0.3,
            invariants=(BROKEN,) if self.claim_breaks else (), proven=self.claim_holds, refuted=self.claim_finds,
            reasons=() if self.claim_holds else (self.claim_finds or "the interval does not lie above 1",),
            memory=SAVING if self.claim_saves else None,
        )  # fmt: skip
        return self.steps.once(step, Claimed, lambda: Claimed(claim=facts)).claim


PATCH = "--- a/train.py\n+++ b/train.py\n@@ -9,3 +9,4 @@\n from model import Model\n \n batch_size = 4\n+spare = 1\n"


@dataclass
class Trial:
    """One evaluation without runs."""

    room: Bench
    judge: Judge
    home: Home
    change: evaluating._Change

    def verdict(self) -> Verdict:
        return carry_to_verdict(self.home, self.room.ctx, self.change)

    @property
    def view(self) -> CampaignView:
        return CampaignView().feed_all(self.room.writer.events)


def trial(folder: Path, events: tuple[Event, ...] = (), **told: object) -> Trial:
    room = bench(folder, PatchMind([]), events=events)
    ctx = room.ctx
    ctx.created = ctx.created.model_copy(update={"kind": "evaluation", "mind": "person"})
    ctx.steps.once("created", type(ctx.created), lambda: ctx.created)
    judge = Judge(ctx.evaluator.original, ctx.steps, **told)  # type: ignore[arg-type]
    ctx.evaluator = judge  # type: ignore[assignment]
    (folder / "change.diff").write_text(PATCH)
    own = read_change(ctx.contract, str(folder / "change.diff"), "", ("micro_batch=4",))
    return Trial(room, judge, Home(folder / "home"), evaluating._Change(own, apply_change(ctx.contract, ctx.mirror, own)))


COURSES: list[tuple[str, dict[str, object], Verdict, list[str]]] = [
    ("adopted", {}, "adopted", ["calibrate", "screen", "verify", "claim"]),
    ("does not run", {"fails": "crashed: no such module"}, "failed", []),
    ("clearly slower", {"promoted": False}, "slower", ["calibrate", "screen", "slower"]),
    ("slower and leaner", {"promoted": False, "saves": True}, "leaner", ["calibrate", "screen", "slower"]),
    ("out of memory", {"outcome": "oom", "promoted": False}, "failed", ["calibrate", "screen"]),
    ("breaks an invariant", {"broken": True, "promoted": False}, "invalid", ["calibrate", "screen"]),
    ("the machine failed", {"outcome": "not_measured", "promoted": False}, "not_proven", ["calibrate", "screen"]),
    ("not proven", {"verdict": lambda c: "not_proven"}, "not_proven", ["calibrate", "screen", "verify"]),
    ("leaner", {"verdict": lambda c: "leaner"}, "leaner", ["calibrate", "screen", "verify"]),
    ("fails in verification", {"verdict": lambda c: "failed"}, "failed", ["calibrate", "screen", "verify"]),
    ("no claim", {"claim_holds": False}, "not_proven", ["calibrate", "screen", "verify", "claim"]),
    ("breaks late", {"claim_holds": False, "claim_breaks": True}, "invalid", ["calibrate", "screen", "verify", "claim"]),
    (
        "dies late", {"claim_holds": False, "claim_finds": "run t90 of the stack has no time (crashed): no such file"}, "failed",
        ["calibrate", "screen", "verify", "claim"],
    ),
]  # fmt: skip


IDS = [course[0] for course in COURSES]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trial]:
    """Each course, carried through once for all tests."""
    told = {name: more for name, more, _, _ in COURSES}

    @functools.cache
    def run(name: str) -> Trial:
        one = trial(tmp_path_factory.mktemp("course"), **told[name])
        one.verdict()
        return one

    return run


@pytest.mark.parametrize(("name", "verdict", "asked"), [(c[0], c[2], c[3]) for c in COURSES], ids=IDS)
def test_each_course_ends_in_its_verdict_with_no_more_runs_than_it_needs(
    course: Callable[[str], Trial], name: str, verdict: Verdict, asked: list[str]
) -> None:
    one = course(name)
    assert one.judge.asked == asked
    assert one.view.verdicts[-1].verdict == verdict and one.view.state == "finished"
    assert one.judge.revealed


@pytest.mark.parametrize(("name", "drawn"), [(c[0], "verify" in c[3]) for c in COURSES], ids=IDS)
def test_error_probability_is_drawn_when_a_verification_begins_and_spent_whole(
    course: Callable[[str], Trial], name: str, drawn: bool
) -> None:
    one = course(name)
    granted = one.room.writer.bodies(AlphaGranted)
    assert len(granted) == drawn
    assert one.judge.alphas == [body.alpha for body in granted]


def test_the_change_is_judged_against_the_program_as_it_is(course: Callable[[str], Trial]) -> None:
    one = course("adopted")
    assert one.judge.verified == [("c1", "original")]
    built = one.view.candidates["c1"]
    assert built.facts.knobs["micro_batch"] == 4 and "+spare = 1" in built.diff
    assert [body.state for body in one.room.writer.bodies(StateChanged)] == ["contracted", "baselined", "claiming", "finished"]


@pytest.mark.parametrize("last", ["screen", "claim"])
def test_what_was_interrupted_goes_on_and_measures_nothing_twice(tmp_path: Path, last: str) -> None:
    first = trial(tmp_path)

    def dies(what: str) -> None:
        if what == last:
            raise Interrupted("the terminal is gone")

    first.judge.during = dies
    with pytest.raises(Interrupted):
        first.verdict()
    second = trial(tmp_path, tuple(first.room.writer.events))
    assert second.verdict() == "adopted"
    assert first.judge.asked + second.judge.asked == ["calibrate", "screen", "verify", "claim"]
    third = trial(tmp_path, tuple(second.room.writer.events))
    assert third.verdict() == "adopted" and third.judge.asked == []


def test_an_evaluation_that_a_person_stops_has_proven_nothing(tmp_path: Path) -> None:
    one = trial(tmp_path)
    one.judge.during = lambda what: send_command(one.room.ctx.paths, "ann", "stop") if what == "screen" else None
    assert one.verdict() == "not_proven"
    assert one.view.state == "stopped" and "stopped by ann" in one.view.verdicts[-1].reasons[0]
    assert not one.room.writer.bodies(AlphaGranted)


@pytest.mark.parametrize("when", ["calibrate", "verify"])
def test_a_contract_that_breaks_once_something_was_measured_ends_the_evaluation_on_record(tmp_path: Path, when: str) -> None:
    one = trial(tmp_path)

    def breaks(what: str) -> None:
        if what == when:
            raise ContractError("the validation does not work.")

    one.judge.during = breaks
    if when == "calibrate":
        with pytest.raises(ContractError):
            one.verdict()
    else:
        assert one.verdict() == "not_proven"
        assert one.view.state == "stopped" and "validation does not work" in one.view.state_reason


# --- on disk ----------------------------------------------------------------------------------


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    folder = tiny_repository(tmp_path / "tiny")
    (tmp_path / "change.diff").write_text(PATCH)
    return folder


def interrupts(*_: object) -> VerdictFacts:
    raise Interrupted("a signal")


@pytest.mark.parametrize("given", [False, True])
def test_an_interrupted_evaluation_needs_no_patch_to_go_on_and_takes_no_other(
    tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    home = Home(tmp_path / "home")
    asked = Asked(workload, str(tmp_path / "change.diff"), preset="quick")
    with monkeypatch.context() as patch:
        patch.setattr(evaluating, "_measured", interrupts)
        begun = evaluate(home, asked)
    assert (begun.verdict, begun.exit_code) == (None, 1)
    for other in ({"settings": ("micro_batch=1",)}, {"patch": str(tmp_path / "change.diff"), "settings": ("micro_batch=4",)}):
        with pytest.raises(UsageError, match="another change"):
            evaluate(home, Asked(workload, preset="quick", resume=True, **other))  # type: ignore[arg-type]
    monkeypatch.setattr(evaluating, "_measured", lambda home, ctx, c: evaluating._record(ctx, "told", "slower", ("told",)))
    ended = evaluate(home, Asked(workload, asked.patch if given else "", preset="quick", resume=True))
    assert (ended.evaluation, ended.verdict, ended.exit_code) == (begun.evaluation, "slower", 4)
    assert load_campaign(home, begun.evaluation).engine_starts == 2
    with pytest.raises(UsageError, match="No interrupted evaluation"):
        evaluate(home, Asked(workload, preset="quick", resume=True))


def test_campaigns_and_evaluations_do_not_take_each_other_up(
    tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rsi_tui.loop.setup import Request, open_campaign

    home = Home(tmp_path / "home")
    monkeypatch.setattr(evaluating, "_measured", interrupts)
    begun = evaluate(home, Asked(workload, str(tmp_path / "change.diff"), preset="quick"))
    with pytest.raises(UsageError, match="No interrupted campaign"):
        open_campaign(home, Request(workload, preset="quick", resume=True))
    assert read_events(home.campaign(begun.evaluation).journal)[0].body.kind == "evaluation"  # type: ignore[union-attr]


def test_an_evaluation_reaches_the_library_as_a_person_s(course: Callable[[str], Trial]) -> None:
    from rsi_tui.journal.rows import batch_of

    for name, verdict in (("adopted", "adopted"), ("breaks an invariant", "invalid")):
        one = course(name)
        rows = batch_of(one.room.writer.events)
        assert rows.campaign["mind"] == "person"
        (candidate,) = rows.candidates
        assert candidate["verdict"] == verdict and candidate["direction"] == ""
        assert any(text["kind"] == "hypothesis" and "change.diff" in text["text"] for text in rows.texts)
        assert [diff.diff for diff in rows.diffs] == [one.view.candidates["c1"].diff]


# --- calibrations of the past -----------------------------------------------------------------


def past(tmp_path: Path) -> tuple[Home, object]:
    home = write_home(tmp_path, until="screening")
    created = read_events(home.campaign("20261130-1").journal)[0].body
    return home, created.model_copy(update={"campaign": "now"})


def test_a_calibration_of_the_same_conditions_is_asked_about_again(tmp_path: Path) -> None:
    home, created = past(tmp_path)
    known = find_calibration(home, created)  # type: ignore[arg-type]
    assert known is not None and known.origin == "20261130-1"
    assert known.calibrated.noise.pairs == 8


@pytest.mark.parametrize(
    "change",
    [
        {"base_commit": "0" * 40}, {"host": {"cpu": "another"}}, {"version": "9"}, {"sandbox": "none"}, {"trust": "C"},
        {"workload_key": "another"},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_calibration_of_other_conditions_is_not(tmp_path: Path, change: dict[str, object]) -> None:
    home, created = past(tmp_path)
    assert find_calibration(home, created.model_copy(update=change)) is None  # type: ignore[attr-defined]


def test_a_calibration_under_other_terms_or_with_fewer_pairs_is_not(tmp_path: Path) -> None:
    home, created = past(tmp_path)
    terms = created.contract | {"objective": {**created.contract["objective"], "steps": [100, 200]}}  # type: ignore[attr-defined]
    pairs = created.contract | {"proof": {**created.contract["proof"], "aa_pairs": 20}}  # type: ignore[attr-defined]
    for contract in (terms, pairs):
        assert find_calibration(home, created.model_copy(update={"contract": contract})) is None  # type: ignore[attr-defined]


def test_a_calibration_holds_for_a_day_from_its_own_runs(tmp_path: Path) -> None:
    home, created = past(tmp_path)
    at = datetime.now(UTC)
    assert find_calibration(home, created, at + MAX_AGE - timedelta(minutes=1)) is not None  # type: ignore[arg-type]
    assert find_calibration(home, created, at + MAX_AGE + timedelta(minutes=1)) is None  # type: ignore[arg-type]


def test_what_was_taken_over_is_not_handed_on(tmp_path: Path) -> None:
    home, created = past(tmp_path)
    known = find_calibration(home, created)  # type: ignore[arg-type]
    assert known is not None
    with JournalWriter.open(home.campaign("20261130-2").journal) as journal:
        journal.append(created.model_copy(update={"campaign": "20261130-2"}))  # type: ignore[attr-defined]
        for event in read_events(home.campaign("20261130-1").journal):
            if isinstance(event.body, Calibrated):
                journal.append(event.body.model_copy(update={"origin": "20261130-1"}))
    found = find_calibration(home, created)  # type: ignore[arg-type]
    assert found is not None and found.origin == "20261130-1"


@pytest.mark.parametrize(
    ("pairs", "holds"),
    [
        (((1.0, 1.01), (1.02, 0.99)), True),
        (((1.0, 1.01), (1.0, 1.0 + APART_SCALES * 0.01 * 1.2)), False),
        (((1.1, 1.1), (1.1, 1.1)), False),
        (((0.98, 0.97), (0.97, 0.98)), True),
    ],
)
def test_fresh_pairs_agree_in_noise_and_in_level(pairs: tuple[tuple[float, float], ...], holds: bool) -> None:
    assert LEVEL_FLOOR < 0.09
    assert agrees(pairs, scale=0.01, log_level=0.0) is holds


# --- screening of a lone candidate ------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "decision"),
    [
        ((0.5,), "again"), ((-0.1,), "again"), ((0.0, 0.005), "promote"), ((-0.1, -0.1), "promote"), ((0.019, 0.019), "promote"),
        ((0.05, 0.04), "drop"), ((0.5, 0.0), "again"), ((0.5, 0.0, 0.001), "promote"), ((0.5, 0.06, 0.07), "drop"),
    ],
)  # fmt: skip
def test_a_lone_candidate_is_dropped_only_when_more_than_one_run_is_clearly_slower(ratios: tuple[float, ...], decision: str) -> None:
    assert look_alone(ratios, scale=0.01).decision == decision


# --- the page ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "verdict"), [(c[0], c[2]) for c in COURSES], ids=IDS)
def test_the_page_begins_with_the_verdict_and_fits_80_columns(course: Callable[[str], Trial], name: str, verdict: Verdict) -> None:
    data = verdict_data(course(name).view)
    lines = verdict_page(data).splitlines()
    assert max(map(len, lines)) <= 80
    word = HEADLINES[verdict].partition(":")[0]
    assert lines[0].startswith(word) and "trust level A" in lines[0]
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_speed_up_of_an_adopted_change_is_the_claim_s(course: Callable[[str], Trial]) -> None:
    data = verdict_data(course("adopted").view)
    assert data["speedup"] == {"estimate": 1.11, "low": 1.08, "high": 1.14, "confidence": 0.99}
    assert data["peak_memory"] == {"baseline": 200 * 2**20, "candidate": 180 * 2**20}
    assert verdict_data(course("no claim").view)["speedup_from"] == "verification"


def test_an_adoption_that_is_taken_back_is_said_first(tmp_path: Path) -> None:
    one = trial(tmp_path)
    one.verdict()
    one.room.writer.append(Revoked(candidate="c1", who="ann", reason="it breaks the loader", reopened=()))
    page = verdict_page(verdict_data(one.view))
    assert page.startswith("TAKEN BACK") and "it breaks the loader" in page and "leave it out" in page and "keep it" not in page


def vetoed(folder: Path, events: tuple[Event, ...] = (), **told: object) -> Trial:
    """An evaluation whose adoption a person vetoes while it is being claimed."""
    one = trial(folder, events, **told)

    def during(what: str) -> None:
        if what == "claim" and not one.room.writer.bodies(PersonActed):
            send_command(one.room.ctx.paths, "ann", "veto", "c1: it breaks the loader")
        one.room.ctx.heed_people()

    one.judge.during = during
    return one


def test_a_veto_of_an_evaluation_under_way_decides_it(tmp_path: Path) -> None:
    one = vetoed(tmp_path)
    assert one.verdict() == "not_proven" and evaluating.EXIT_CODES["not_proven"] == 4
    (revoked,) = one.room.writer.bodies(Revoked)
    assert (revoked.candidate, revoked.who, revoked.reason, revoked.reopened) == ("c1", "ann", "it breaks the loader", ())
    assert one.view.best() is None and one.view.proven_speedup() is None and one.view.state == "finished"
    assert verdict_page(verdict_data(one.view)).startswith("TAKEN BACK")
    again = vetoed(tmp_path, tuple(one.room.writer.events[:-2]))
    assert again.verdict() == "not_proven" and again.room.writer.bodies(Revoked) == [revoked]


def test_a_veto_of_what_its_claim_refuses_changes_nothing(tmp_path: Path) -> None:
    one = vetoed(tmp_path, claim_holds=False, claim_breaks=True)
    assert one.verdict() == "invalid"
    assert one.room.writer.bodies(Revoked) == []


KEYS: dict[str, Callable[[object], bool]] = {
    "verdict": lambda v: isinstance(v, str),
    "reasons": lambda v: isinstance(v, list),
    "trust": lambda v: v in ("A", "B", "C"),
    "invariants": lambda v: isinstance(v, list) and all({"name", "status", "value", "limit", "how"} <= i.keys() for i in v),
    "findings": lambda v: isinstance(v, list),
    "trials": lambda v: isinstance(v, list),
    "evaluation": lambda v: isinstance(v, str),
    "contract_hash": lambda v: isinstance(v, str),
    "base": lambda v: isinstance(v, str),
}


@pytest.mark.parametrize("name", IDS)
def test_json_holds_what_is_promised_for_every_verdict(course: Callable[[str], Trial], name: str) -> None:
    data = verdict_data(course(name).view)
    assert all(holds(data[name]) for name, holds in KEYS.items())
    more = {"speedup", "peak_memory", "alpha", "evalue", "runs_needed", "smallest_provable", "noise", "calibration", "report"}
    assert more <= data.keys()

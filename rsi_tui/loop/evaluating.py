"""The verdict on one change of a person's own: gates that cost no run, one run that shows that it runs, then baseline,
screening, verification, claim.

One journal for each evaluation, in the same folders as campaigns and made of the same events and durable
steps, so that every reader of campaigns reads evaluations, and an interrupted one goes on. What the gates
turn down costs no run; the workload's error probability is drawn only when a verification begins. The
change is judged against the program as it is; duplicates are not refused, since a person asks on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.audit.reading import write_report
from rsi_tui.contract.fingerprint import launch_fingerprint
from rsi_tui.errors import ContractError, UsageError
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.screen import Alone
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import (
    AlphaGranted,
    CandidateBuilt,
    CandidateRefused,
    HypothesisWritten,
    Reviewed,
    State,
    VerdictReached,
)
from rsi_tui.journal.facts import (
    HOST_FAULTS,
    ORIGINAL,
    CandidateFacts,
    ClaimFacts,
    FindingFacts,
    HypothesisFacts,
    ReviewFacts,
    Verdict,
    VerdictFacts,
)
from rsi_tui.journal.home import next_ordinal
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.engine import conclude, interruptible
from rsi_tui.loop.executor import Refusal
from rsi_tui.loop.hooks import call_hook
from rsi_tui.loop.known_noise import find_calibration
from rsi_tui.loop.outer import end
from rsi_tui.loop.own_change import Applied, OwnChange, apply_change, read_change
from rsi_tui.loop.reviewer import exploited, static_findings
from rsi_tui.loop.revoking import heed_veto_of
from rsi_tui.loop.setup import Listen, Opened, Prepared, Request, forget, open_prepared, outliving, prepare, silent
from rsi_tui.repo.patch import normalised_diff_hash

CANDIDATE = "c1"
TURNED_DOWN: dict[str, Verdict] = {
    "no_change": "not_proven",
    "does_not_apply": "failed",
    "broken": "failed",
    "scope": "invalid",
    "constraint": "invalid",
}
"""verdict of what a gate refuses"""
EXIT_CODES: dict[Verdict, int] = {
    "adopted": 0, "leaner": 0, "failed": 1, "invalid": 3, "off_direction": 3, "not_proven": 4, "slower": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a person asked for on the command line."""

    workload: Path
    patch: str = ""
    """file, or '-' for stdin"""
    commit: str = ""
    settings: tuple[str, ...] = ()
    """'knob=value'"""
    preset: str = ""
    snapshot: bool = False
    committed: bool = False
    unsandboxed: bool = False
    resume: bool = False

    @property
    def opening(self) -> Request:
        """The same for opening a journal."""
        return Request(
            self.workload, self.preset, "evaluation", resume=self.resume, snapshot=self.snapshot,
            committed=self.committed, unsandboxed=self.unsandboxed,
        )  # fmt: skip


@dataclass(frozen=True)
class Evaluated:
    """How an evaluation ended."""

    evaluation: str
    verdict: Verdict | None
    """None when it was interrupted, or the machine failed it: `--resume` goes on"""
    report: Path | None
    exit_code: int
    sentence: str = ""
    """what the machine did not allow, where that ended it without a verdict; '' else"""


def evaluate(
    home: Home,
    asked: Asked,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> Evaluated:
    """Give the verdict on a change, or go on with one that was interrupted.

    Raises UsageError for a command line that can't be meant, and another RsiError when the evaluation can't be
    opened or the unchanged program does not run; such an evaluation leaves nothing behind.
    """
    tell = outliving(on_note)
    prepared = prepare(home, asked.opening, tell=tell)
    change = _change(prepared, asked)
    opened = open_prepared(prepared, listen)
    for note in opened.notes:
        tell(note)
    try:
        with interruptible(opened.context.cancel):
            return _carry(home, opened, change, tell)
    finally:
        opened.recall.close()
        opened.writer.close()


@dataclass(frozen=True)
class _Change:
    """A change as it was asked for, and what the gates made of it."""

    own: OwnChange
    result: Applied | Refusal


def _change(prepared: Prepared, asked: Asked) -> _Change | None:
    """What is to be judged; None when an interrupted evaluation goes on with what it recorded."""
    if asked.resume and not (asked.patch or asked.commit or asked.settings):
        if _recorded(prepared) is None:
            raise UsageError(f"Evaluation {prepared.created.campaign} has not recorded its change yet: give it again.")
        return None
    own = read_change(prepared.contract, asked.patch, asked.commit, asked.settings)
    try:
        result: Applied | Refusal = apply_change(prepared.contract, prepared.mirror, own)
    except Refusal as refusal:
        result = refusal
    known = _recorded(prepared) if asked.resume else None
    if known is not None and not (isinstance(result, Applied) and _same(prepared, known, result)):
        raise UsageError(
            f"Evaluation {prepared.created.campaign} was begun with another change: leave --patch, --commit and --set "
            "away to go on with that one, or start anew without --resume."
        )
    return _Change(own, result)


def _recorded(prepared: Prepared) -> CandidateFacts | None:
    """The candidate of an evaluation that was begun."""
    events = read_events(prepared.paths.journal)
    return next((event.body.candidate for event in events if isinstance(event.body, CandidateBuilt)), None)


def _same(prepared: Prepared, known: CandidateFacts, now: Applied) -> bool:
    """Is this the change that the candidate was built from? A commit is a function of what is in it."""
    ref = f"refs/rsi/{prepared.created.campaign}/again"
    return known.knobs == now.knobs and known.commit == _commit(prepared.mirror.base, now, prepared, ref)


def _commit(base: str, applied: Applied, where: Prepared | Context, ref: str) -> str:
    return where.mirror.commit_files(base, applied.files, f"{CANDIDATE}: evaluation", ref) if applied.files else base


# --- to the verdict ---------------------------------------------------------------------------


def _carry(home: Home, opened: Opened, change: _Change | None, tell: Callable[[str], None]) -> Evaluated:
    ctx = opened.context
    evaluation = ctx.created.campaign
    over = False
    try:
        verdict = carry_to_verdict(home, ctx, change)
        over = True
    except Interrupted as stop:
        return Evaluated(evaluation, None, None, 1, str(stop) if isinstance(stop, HostFault) else "")
    except ContractError:
        # The unchanged program does not run: nothing was learned of the change.
        opened.writer.close()
        forget(ctx.paths)
        raise
    finally:
        ctx.evaluator.close(finished=over)
    measured = ctx.noise is not None
    # What cost next to nothing is in the library when that is opened next; its encoder is not loaded for it.
    report = conclude(home, opened, tell) if measured else write_report(home, evaluation)
    call_hook(home, evaluation, ctx.state, tell)
    return Evaluated(evaluation, verdict, report, EXIT_CODES[verdict])


def carry_to_verdict(home: Home, ctx: Context, change: _Change | None) -> Verdict:
    """Carry the evaluation to its last state; returns the verdict."""
    state: State = "finished"
    try:
        verdict = verdict_on(home, ctx, change)
    except Stopped as stop:
        state, verdict = "stopped", _record(ctx, "stopped", "not_proven", (f"{stop} before the evidence sufficed",))
    except ContractError as error:
        if ctx.noise is None:
            raise
        state, verdict = "stopped", _record(ctx, "broken contract", "not_proven", (str(error),))
    verdict = heed_veto_of(ctx, verdict)
    end(ctx, state, "; ".join(verdict.reasons) if state == "stopped" else verdict.verdict.replace("_", " "))
    return verdict.verdict


def verdict_on(home: Home, ctx: Context, change: _Change | None) -> VerdictFacts:
    """The verdict, from record or gates or runs."""
    candidate = _built(ctx, change)
    if candidate is None:
        return _refused(ctx)
    review = ctx.steps.once("review", Reviewed, lambda: Reviewed(review=_review(ctx, candidate))).review
    if review.decision != "pass":
        return _record(ctx, "review/verdict", review.decision, (review.summary,))
    return _measured(home, ctx, candidate)


def _built(ctx: Context, change: _Change | None) -> CandidateFacts | None:
    """The candidate, committed and recorded; None when a gate turned it down."""
    known = ctx.steps.find("built")
    if known is None:
        assert change is not None
        ctx.steps.once("hypothesis", HypothesisWritten, lambda: HypothesisWritten(hypothesis=_hypothesis(change.own)))
        known = ctx.steps.append(_build(ctx, change.result), "built")
    return known.candidate if isinstance(known, CandidateBuilt) else None


def _build(ctx: Context, result: Applied | Refusal) -> CandidateBuilt | CandidateRefused:
    if isinstance(result, Refusal):
        return CandidateRefused(
            hypothesis="h1", direction="", kind=result.kind, reason=result.reason, attempt=result.attempt,
            findings=result.findings,
        )  # fmt: skip
    base = ctx.mirror.base
    commit = _commit(base, result, ctx, f"refs/rsi/{ctx.created.campaign}/{CANDIDATE}")
    diff = ctx.mirror.diff(base, commit) if commit != base else ""
    candidate = CandidateFacts(
        id=CANDIDATE,
        commit=commit,
        base=base,
        parent=ORIGINAL,
        knobs=result.knobs,
        affects=result.affects,
        diff_hash=normalised_diff_hash(diff) if diff else "",
        launch_fingerprint=launch_fingerprint(ctx.contract, result.knobs),
    )
    return CandidateBuilt(candidate=candidate, hypothesis="h1", direction="", diff=diff)


def _hypothesis(own: OwnChange) -> HypothesisFacts:
    """A person's change as a falsifiable sentence; a person predicts no size of effect."""
    return HypothesisFacts(
        id="h1", direction="", round=1, parent=ORIGINAL, statement=f"A person's change ({own.label}) makes a step faster.",
        techniques=(), knobs=own.knobs, predicted_time=0.0, predicted_memory=0.0, refuted_by="no proven gain of time or memory",
    )  # fmt: skip


def _refused(ctx: Context) -> VerdictFacts:
    refused = ctx.steps.find("built")
    assert isinstance(refused, CandidateRefused)
    return _record(ctx, "built/verdict", TURNED_DOWN[refused.kind], (refused.reason,))


def _review(ctx: Context, candidate: CandidateFacts) -> ReviewFacts:
    """The static rules on the diff, as the Reviewer has them; there is no direction to leave."""
    findings: tuple[FindingFacts, ...] = static_findings(ctx, candidate)
    passed = ReviewFacts(candidate=candidate.id, decision="pass", findings=findings, summary="no rule of the review refuses it")
    return exploited(candidate, findings) or passed


def _record(ctx: Context, step: str, verdict: Verdict, reasons: Sequence[str]) -> VerdictFacts:
    """A verdict that rests on no runs of its own."""
    facts = VerdictFacts(candidate=CANDIDATE, incumbent=ORIGINAL, verdict=verdict, reasons=tuple(reasons), alpha=0.0)
    return ctx.steps.once(step, VerdictReached, lambda: VerdictReached(verdict=facts)).verdict


# --- runs -------------------------------------------------------------------------------------


def _measured(home: Home, ctx: Context, candidate: CandidateFacts) -> VerdictFacts:
    original = ctx.evaluator.original
    ctx.enter("contracted")
    ctx.heed_people()
    if how := ctx.evaluator.check_runs("check", candidate):
        return _record(ctx, "check/verdict", "failed", (how,))
    measure_noise(home, ctx)
    if ctx.no_rounding and "precision" in candidate.affects:
        return _record(ctx, "rounding/verdict", "slower", (ctx.no_rounding,))
    screened = ctx.evaluator.screen_alone("screen", candidate, original)
    if (ended := _screened_out(ctx, candidate, screened)) is not None:
        return ended
    ctx.heed_people()
    alpha = ctx.steps.once("alpha", AlphaGranted, ctx.draw_alpha).alpha
    verdict = ctx.evaluator.verify(f"verify/{candidate.id}", candidate, original, alpha, -(screened.facts.log_ratio or 0.0))
    if verdict.verdict != "adopted":
        return verdict
    ctx.heed_people()
    ctx.enter("claiming")
    claim = ctx.evaluator.claim("claim", candidate, ())
    return verdict if claim.proven else _unclaimed(ctx, verdict, claim)


def measure_noise(home: Home, ctx: Context) -> None:
    """Noise and bands, taken over from a recent calibration of the same conditions where fresh pairs agree with it."""
    ctx.heed_people()
    known = find_calibration(home, ctx.created) if ctx.steps.find("calibration") is None else None
    ahead = campaign_alpha(next_ordinal(home, ctx.created.workload_key))
    ctx.baselined(ctx.evaluator.recalibrate(known, ahead))
    ctx.enter("baselined")
    ctx.heed_people()


def _screened_out(ctx: Context, candidate: CandidateFacts, screened: Alone) -> VerdictFacts | None:
    """The verdict where no verification is worth it: broken, failed, clearly slower; None when it is to be verified."""
    facts = screened.facts
    if any(i.status == "broken" for i in facts.invariants):
        return _record(ctx, "screen/verdict", "invalid", tuple(filter(None, (facts.reason, ctx.no_rounding))))
    if facts.outcome in HOST_FAULTS:
        return _record(ctx, "screen/verdict", "not_proven", (facts.reason,))
    if facts.outcome != "ok":
        return _record(ctx, "screen/verdict", "failed", (facts.reason,))
    if not facts.promoted:
        return ctx.evaluator.judge_slower("slower", screened, candidate, ctx.evaluator.original)
    return None


def _unclaimed(ctx: Context, verdict: VerdictFacts, claim: ClaimFacts) -> VerdictFacts:
    """A proven gain that did not hold on fresh pairs; there a run of the change may also have failed, or an invariant broken."""
    broken = [f"{i.name} is broken on fresh pairs: {i.how}" for i in claim.invariants if i.status == "broken"]
    told: Verdict = "invalid" if broken else "failed" if claim.refuted else "not_proven"
    reasons = broken or ["it was proven in its verification, but what follows did not hold on fresh pairs", *claim.reasons]
    facts = verdict.model_copy(update={"verdict": told, "reasons": tuple(reasons)})
    return ctx.steps.once("claim/verdict", VerdictReached, lambda: VerdictReached(verdict=facts)).verdict

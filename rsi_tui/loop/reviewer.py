"""The Reviewer's role: scope and exploits by static rules, direction by the mind; blind to the score."""

from __future__ import annotations

from rsi_tui.journal.events import Reviewed, VerdictReached
from rsi_tui.journal.facts import (
    CandidateFacts,
    DirectionFacts,
    FindingFacts,
    HypothesisFacts,
    ReviewFacts,
    Verdict,
    VerdictFacts,
)
from rsi_tui.loop.context import Context
from rsi_tui.loop.static_review import blind, review_diff
from rsi_tui.minds.protocol import ReviewBrief


def review(ctx: Context, direction: DirectionFacts, hypothesis: HypothesisFacts, candidate: CandidateFacts) -> bool:
    """True when the candidate may be measured; a refusal is recorded as its verdict."""
    step = f"{hypothesis.direction}/r{hypothesis.round}/review"
    made = ctx.steps.once(step, Reviewed, lambda: Reviewed(review=_judge(ctx, direction, hypothesis, candidate)))
    ctx.memory.reviewed(made.review)
    if made.review.decision == "pass":
        return True
    refuse(ctx, f"{step}/verdict", candidate, made.review.decision, (made.review.summary,))
    return False


def refuse(ctx: Context, step: str, candidate: CandidateFacts, verdict: Verdict, reasons: tuple[str, ...]) -> None:
    """Record a verdict that needs no measurement."""
    facts = VerdictFacts(
        candidate=candidate.id,
        incumbent=ctx.memory.best.id,
        verdict=verdict,
        reasons=reasons,
        alpha=0.0,
    )
    ctx.memory.judged(ctx.steps.once(step, VerdictReached, lambda: VerdictReached(verdict=facts)).verdict)


def _judge(
    ctx: Context, direction: DirectionFacts, hypothesis: HypothesisFacts, candidate: CandidateFacts
) -> ReviewFacts:
    parent = ctx.memory.candidate(candidate.parent or "original")
    before, after = ctx.sources(parent.commit), ctx.sources(candidate.commit)
    changed = [
        (item.path, item.mode_before, item.mode_after)
        for item in (ctx.mirror.changed_paths(parent.commit, candidate.commit) if parent.commit != candidate.commit else ())
    ]
    findings = list(review_diff(before, after, changed, ctx.contract))
    exploits = [f for f in findings if f.severity in ("exploit", "scope")]
    if exploits:
        return ReviewFacts(candidate=candidate.id, decision="invalid", findings=tuple(findings), summary=_say(exploits[0]))
    diff = ctx.mirror.diff(parent.commit, candidate.commit) if parent.commit != candidate.commit else ""
    answer = ctx.mind.review(
        ReviewBrief(
            direction=direction,
            statement=hypothesis.statement,
            diff=diff,
            before={path: blind(text) for path, text in before.items()},
            after={path: blind(text) for path, text in after.items()},
            knobs_before=parent.knobs,
            knobs_after=candidate.knobs,
            contract=ctx.usable,
        )
    )
    if answer.exploit == "yes":
        return ReviewFacts(candidate=candidate.id, decision="invalid", findings=tuple(findings), summary=answer.reason)
    off = [f for f in findings if f.severity == "off_direction"]
    if off or not answer.on_direction:
        reason = answer.reason if not answer.on_direction else _say(off[0])
        return ReviewFacts(candidate=candidate.id, decision="off_direction", findings=tuple(findings), summary=reason)
    return ReviewFacts(candidate=candidate.id, decision="pass", findings=tuple(findings), summary=answer.reason)


def _say(finding: FindingFacts) -> str:
    return f"{finding.path}:{finding.line}: {finding.text}"

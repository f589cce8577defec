"""The Reviewer's role: scope and exploits by static rules, direction by the mind; blind to the score.

Whatever is about to be measured passes here: a candidate of a round by rules and mind, a join of
changes that passed before by the rules alone, since parts that are honest can be a cheat together.
"""

from __future__ import annotations

from collections.abc import Callable

from rsi_tui.errors import PatchError
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
from rsi_tui.repo.patch import make_diff
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import apply_all


def review(ctx: Context, direction: DirectionFacts, hypothesis: HypothesisFacts, candidate: CandidateFacts) -> bool:
    """True when the candidate may be measured; a refusal is recorded as its verdict."""
    step = f"{hypothesis.direction}/r{hypothesis.round}/review"
    return _passes(ctx, step, candidate, lambda: _judge(ctx, direction, hypothesis, candidate))


def review_joined(ctx: Context, step: str, candidate: CandidateFacts) -> bool:
    """True when a join of changes breaks no rule in what it changes of its parent; a refusal is its verdict."""

    def judge() -> ReviewFacts:
        findings = static_findings(ctx, candidate)
        return exploited(candidate, findings) or ReviewFacts(
            candidate=candidate.id, decision="pass", findings=findings, summary="its parts joined break no rule"
        )

    return _passes(ctx, f"{step}/review", candidate, judge)


def _passes(ctx: Context, step: str, candidate: CandidateFacts, judge: Callable[[], ReviewFacts]) -> bool:
    made = ctx.steps.once(step, Reviewed, lambda: Reviewed(review=judge()))
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


def static_findings(ctx: Context, candidate: CandidateFacts) -> tuple[FindingFacts, ...]:
    """What the rules find in what a candidate changes of its parent.

    What the library's own techniques make of the parent is code that this product vouches for: where a change is
    that and nothing else, it is left to the evaluator. Of a join the rest is reviewed, on top of what they make; a mind that
    only says that it applied a technique is reviewed in full.
    """
    parent = ctx.memory.parent(candidate)
    if parent.commit == candidate.commit:
        return ()
    changed = [(c.path, c.mode_before, c.mode_after) for c in ctx.mirror.changed_paths(parent.commit, candidate.commit)]
    before, after = ctx.sources(parent.commit), ctx.sources(candidate.commit)
    made = made_by_techniques(ctx, parent, candidate)
    if made == after or (made is not None and candidate.members):
        before = made
    return review_diff(before, after, changed, ctx.contract)


def made_by_techniques(ctx: Context, parent: CandidateFacts, candidate: CandidateFacts) -> dict[str, str] | None:
    """The sources that a candidate's new techniques make of its parent's; None where it has none, or they don't apply."""
    new = tuple(id for id in candidate.techniques if id not in parent.techniques)
    situation = Situation(ctx.sources(parent.commit), ctx.usable, ctx.profile, parent.knobs)
    try:
        return {**situation.sources, **apply_all(new, situation).sources} if new else None
    except PatchError:
        return None


def exploited(candidate: CandidateFacts, findings: tuple[FindingFacts, ...]) -> ReviewFacts | None:
    """The refusal of a change that leaves its scope or cheats; None when it does neither."""
    worst = next((f for f in findings if f.severity in ("exploit", "scope")), None)
    if worst is None:
        return None
    return ReviewFacts(candidate=candidate.id, decision="invalid", findings=findings, summary=_say(worst))


def _judge(
    ctx: Context, direction: DirectionFacts, hypothesis: HypothesisFacts, candidate: CandidateFacts
) -> ReviewFacts:
    findings = static_findings(ctx, candidate)
    if (refusal := exploited(candidate, findings)) is not None:
        return refusal
    answer = ctx.mind.review(_brief(ctx, direction, hypothesis, candidate))
    if answer.exploit == "yes":
        return ReviewFacts(candidate=candidate.id, decision="invalid", findings=findings, summary=answer.reason)
    off = [f for f in findings if f.severity == "off_direction"]
    if off or not answer.on_direction:
        reason = answer.reason if not answer.on_direction else _say(off[0])
        return ReviewFacts(candidate=candidate.id, decision="off_direction", findings=findings, summary=reason)
    return ReviewFacts(candidate=candidate.id, decision="pass", findings=findings, summary=answer.reason)


def _brief(
    ctx: Context, direction: DirectionFacts, hypothesis: HypothesisFacts, candidate: CandidateFacts
) -> ReviewBrief:
    """What the mind may see of a change: texts and diff without comments, so that nobody argues with who judges."""
    parent = ctx.memory.parent(candidate)
    before = {path: blind(text) for path, text in ctx.sources(parent.commit).items()}
    after = {path: blind(text) for path, text in ctx.sources(candidate.commit).items()}
    return ReviewBrief(
        direction=direction,
        statement=hypothesis.statement,
        diff=make_diff(before, after),
        before=before,
        after=after,
        knobs_before=parent.knobs,
        knobs_after=candidate.knobs,
        contract=ctx.usable,
    )


def _say(finding: FindingFacts) -> str:
    return f"{finding.path}:{finding.line}: {finding.text}"

"""Claiming: the adopted stack against the original, with what each part is estimated to contribute."""

from __future__ import annotations

from rsi_tui.journal.facts import AttributionFacts, CandidateFacts, ClaimFacts
from rsi_tui.loop.context import Context
from rsi_tui.search.estimate import same_change


def claim(ctx: Context, stack: CandidateFacts) -> ClaimFacts:
    """Prove the stack on fresh pairs."""
    return ctx.evaluator.claim("claim", stack, attribute(ctx, stack))


def attribute(ctx: Context, stack: CandidateFacts) -> tuple[AttributionFacts, ...]:
    """What screening, here or in an earlier campaign, said of each part of the stack."""
    parts = []
    explained: set[str] = set()
    for attempt in ctx.memory.attempts.values():
        member = attempt.candidate
        added = ctx.memory.added(member)
        if member.members or attempt.screen is None or attempt.screen.log_ratio is None:
            continue
        if not added or not set(added) <= set(stack.techniques):
            continue
        settings_only = member.commit == ctx.memory.candidate(member.parent or "original").commit
        explained |= set(added)
        parts.append(_part(", ".join(added), settings_only, attempt.screen.log_ratio))
    for technique in stack.techniques:
        if technique not in explained and (known := _from_library(ctx, technique)) is not None:
            parts.append(known)
    return tuple(sorted(parts, key=lambda part: part.log_ratio))


def _from_library(ctx: Context, technique: str) -> AttributionFacts | None:
    for past in ctx.memories().past:
        if past.log_ratio is not None and past.same_workload and same_change((technique,), {}, past):
            return _part(technique, bool(past.knobs), past.log_ratio)
    return None


def _part(name: str, settings_only: bool, log_ratio: float) -> AttributionFacts:
    return AttributionFacts(
        name=name,
        kind="setting never switched on" if settings_only else "new code",
        log_ratio=log_ratio,
        how="estimate from screening",
    )

"""Claiming: the adopted stack against the original, with what each part is estimated to contribute.

Parts are those of the stack itself: its own line of parents, and the members where one of them is a
join. What was tried elsewhere on the same idea is not a part of it.
"""

from __future__ import annotations

from rsi_tui.journal.facts import ORIGINAL, AttributionFacts, CandidateFacts, ClaimFacts
from rsi_tui.loop.context import Context
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import get


def claim(ctx: Context, stack: CandidateFacts) -> ClaimFacts:
    """Prove the stack on fresh pairs."""
    return ctx.evaluator.claim("claim", stack, attribute(ctx, stack))


def attribute(ctx: Context, stack: CandidateFacts) -> tuple[AttributionFacts, ...]:
    """What was measured of each part of the stack, here or, of a reproduced proof, in earlier campaigns."""
    parts: list[AttributionFacts] = []
    while stack.id != ORIGINAL:
        parts += _parts(ctx, stack)
        stack = ctx.memory.parent(stack)
    return tuple(sorted(parts, key=lambda part: part.log_ratio))


def _parts(ctx: Context, candidate: CandidateFacts) -> list[AttributionFacts]:
    """What a candidate adds to its parent, part by part; nothing where no part has a time."""
    if candidate.members:
        return [part for member in candidate.members for part in _parts(ctx, ctx.memory.candidate(member))]
    attempt = ctx.memory.attempts[candidate.id]
    reproduced = ctx.memory.reproduces(attempt.direction)
    if reproduced and (known := _remembered(ctx, candidate)):
        return known
    effect = ctx.memory.effect(candidate.id)
    if effect is None:
        return []
    screened = attempt.screen is not None and attempt.screen.log_ratio is not None
    return [
        AttributionFacts(
            name=_name(ctx, candidate),
            kind="setting never switched on" if ctx.memory.parent(candidate).commit == candidate.commit else "new code",
            log_ratio=effect[1],
            how="estimate from screening" if screened else "estimate from its verification",
        )
    ]


def _name(ctx: Context, candidate: CandidateFacts) -> str:
    """Its techniques; of a bare setting knob=value, of a free patch the candidate's id."""
    parent = ctx.memory.parent(candidate)
    if added := ctx.memory.added(candidate):
        return ", ".join(added)
    if candidate.commit != parent.commit:
        return candidate.id
    return ", ".join(f"{name}={value}" for name, value in candidate.knobs.items() if parent.knobs.get(name) != value)


def _remembered(ctx: Context, candidate: CandidateFacts) -> list[AttributionFacts]:
    """What earlier campaigns measured of each technique of a proof that was reproduced as a whole."""
    original = ctx.memory.original
    situation = Situation(ctx.sources(original.commit), ctx.contract, ctx.profile, original.knobs)
    parts = []
    for technique in ctx.memory.added(candidate):
        alone = (p for p in ctx.memories().past if p.techniques == (technique,) and p.same_workload)
        ratio = next((p.log_ratio for p in alone if p.log_ratio is not None), None)
        if ratio is None:
            continue
        code = get(technique, ctx.contract).apply(situation).sources
        parts.append(
            AttributionFacts(
                name=technique,
                kind="new code" if code else "setting never switched on",
                log_ratio=ratio,
                how="estimate from screening",
            )
        )
    return parts

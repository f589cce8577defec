"""What a stack is made of, and what was measured of each part before anything is left out.

Parts are those of the stack itself: its own line of parents, and the members where one of them is a
join. What was tried elsewhere on the same idea is not a part of it. A proof of an earlier campaign that was
reproduced as a whole is taken apart into its techniques.
"""

from __future__ import annotations

from typing import Literal

from rsi_tui.journal.facts import ORIGINAL, AttributionFacts, CandidateFacts
from rsi_tui.loop.context import Context
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import get

Kind = Literal["setting never switched on", "new code"]


def attribute(ctx: Context, stack: CandidateFacts) -> tuple[AttributionFacts, ...]:
    """Estimates of each part of the stack, from here or, of a reproduced proof, from earlier campaigns.

    Where they say nothing of its techniques, the proof is one part.
    """
    found = pieces(ctx, stack)
    parts = [part for piece in found if (part := estimate(ctx, piece)) is not None]
    silent = {candidate_of(piece) for piece in found} - {part.candidate for part in parts}
    parts += [part for id in sorted(silent) if (part := estimate(ctx, ctx.memory.candidate(id))) is not None]
    return tuple(sorted(parts, key=lambda part: part.log_ratio or 0.0))


def pieces(ctx: Context, stack: CandidateFacts) -> list[CandidateFacts]:
    """The single changes that a stack is made of, those that were adopted first first; each can be joined anew."""
    line: list[CandidateFacts] = []
    while stack.id != ORIGINAL:
        line.insert(0, stack)
        stack = ctx.memory.parent(stack)
    return [piece for candidate in line for piece in _within(ctx, candidate)]


def name_of(ctx: Context, piece: CandidateFacts) -> str:
    """Its techniques; of a bare setting knob=value, of a free patch the candidate's id."""
    parent = ctx.memory.parent(piece)
    if added := ctx.memory.added(piece):
        return ", ".join(added)
    if piece.commit != parent.commit:
        return piece.id
    return ", ".join(f"{name}={value}" for name, value in piece.knobs.items() if parent.knobs.get(name) != value)


def kind_of(ctx: Context, piece: CandidateFacts) -> Kind:
    """Does it change code?"""
    if _part_of_proof(piece):
        code = bool(get(piece.techniques[0], ctx.contract).apply(_situation(ctx)).sources)
    else:
        code = ctx.memory.parent(piece).commit != piece.commit
    return "new code" if code else "setting never switched on"


def candidate_of(piece: CandidateFacts) -> str:
    """Id of the candidate that a piece is, or is a technique of."""
    return piece.id.partition(":")[0]


def _within(ctx: Context, candidate: CandidateFacts) -> list[CandidateFacts]:
    """The pieces of what a candidate adds to its parent."""
    if candidate.members:
        return [piece for member in candidate.members for piece in _member(ctx, member)]
    added = ctx.memory.added(candidate)
    if len(added) < 2 or not ctx.memory.reproduces(ctx.memory.attempts[candidate.id].direction):
        return [candidate]
    return [_technique_of(ctx, candidate, name) for name in added]


def _member(ctx: Context, id: str) -> list[CandidateFacts]:
    """The pieces of a member of a join: a candidate, or one technique of a reproduced proof ('c1:sdpa')."""
    candidate, _, technique = id.partition(":")
    known = ctx.memory.candidate(candidate)
    return [_technique_of(ctx, known, technique)] if technique else _within(ctx, known)


def _technique_of(ctx: Context, proof: CandidateFacts, technique: str) -> CandidateFacts:
    """One technique of a reproduced proof as a change of its own to the original."""
    change = {"id": f"{proof.id}:{technique}", "parent": ORIGINAL, "techniques": (technique,), "affects": proof.affects}
    return ctx.memory.original.model_copy(update=change)


def _part_of_proof(piece: CandidateFacts) -> bool:
    return ":" in piece.id


def _situation(ctx: Context) -> Situation:
    original = ctx.memory.original
    return Situation(ctx.sources(original.commit), ctx.contract, ctx.profile, original.knobs)


def estimate(ctx: Context, piece: CandidateFacts) -> AttributionFacts | None:
    """What was measured of a piece; None when it has no time."""
    candidate = candidate_of(piece)
    attempt = ctx.memory.attempts[candidate]
    how: Literal["estimate from screening", "estimate from its verification"] = "estimate from screening"
    effect = _remembered(ctx, piece) if ctx.memory.reproduces(attempt.direction) else None
    if effect is None and not _part_of_proof(piece):
        measured = ctx.memory.effect(candidate)
        effect = measured[1] if measured is not None else None
        screened = attempt.screen is not None and attempt.screen.log_ratio is not None
        how = how if screened else "estimate from its verification"
    if effect is None:
        return None
    return AttributionFacts(name=name_of(ctx, piece), kind=kind_of(ctx, piece), log_ratio=effect, how=how, candidate=candidate)


def _remembered(ctx: Context, piece: CandidateFacts) -> float | None:
    """What earlier campaigns measured of a technique of a proof that was reproduced."""
    added = ctx.memory.added(piece)
    alone = (p for p in ctx.memories().past if p.techniques == added and p.same_workload) if added else ()
    return next((p.log_ratio for p in alone if p.log_ratio is not None), None)

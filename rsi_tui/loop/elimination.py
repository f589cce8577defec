"""Backward elimination: what each change of the adopted stack contributes, and which contributes nothing (holes H11).

Before the claim the stack is measured against itself without each of its changes. The one that shows nothing is
left out, the rest is measured again on fresh runs, and so on, one at a time. A stack without a change is the
other changes merged on the original: techniques applied anew, free patches as diffs. A change that others build
on can't be left out alone; it stays, 'unproven alone', with the reason.

What is left is another commit than what was adopted, and the claim proves that very commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rsi_tui.evaluator.service import Part
from rsi_tui.journal.events import CandidateRefused
from rsi_tui.journal.facts import LEAVE_ONE_OUT, AttributionFacts, CandidateFacts
from rsi_tui.loop.attribution import attribute, candidate_of, estimate, kind_of, name_of, pieces
from rsi_tui.loop.context import Context
from rsi_tui.loop.joining import join, merged

ROUNDS = 4
"""measurements of a stack and of what is left of it; the last one drops nothing"""

Parts = tuple[AttributionFacts, ...]


def eliminate(ctx: Context, stack: CandidateFacts) -> tuple[CandidateFacts, Parts]:
    """The stack that is left, and what is known of each of its changes.

    A stack of one change is returned as it is: its claim is the proof of that change.
    """
    step = f"elimination/{stack.id}"
    left = pieces(ctx, stack)
    whole = _put_together(ctx, f"{step}/whole", stack, left) if len(left) > 1 else None
    if whole is None:
        return stack, attribute(ctx, stack)
    for number in range(1, ROUNDS + 1):
        ctx.heed_people()
        names = _names(ctx, left)
        built = {piece.id: _without(ctx, step, left, piece) for piece in left}
        parts = [
            Part(names[piece.id], kind_of(ctx, piece), candidate_of(piece), other)
            for piece in left
            if isinstance(other := built[piece.id], CandidateFacts)
        ]
        if not parts:
            return whole, _complete(ctx, left, names, (), built)
        found = ctx.evaluator.leave_one_out(f"{step}/r{number}", whole, parts, last=number == ROUNDS)
        dropped = next((piece for piece in left if names[piece.id] == found.dropped), None)
        if dropped is None:
            reasons = {id: why if isinstance(why, str) else found.trouble for id, why in built.items()}
            return whole, _complete(ctx, left, names, found.parts, reasons)
        whole = next(part.without for part in parts if part.name == found.dropped)
        left = [piece for piece in left if piece is not dropped]
        if len(left) < 2:
            break
    return whole, attribute(ctx, whole)


def _complete(
    ctx: Context,
    parts: Sequence[CandidateFacts],
    names: Mapping[str, str],
    measured: Parts,
    reasons: Mapping[str, CandidateFacts | str],
) -> Parts:
    """What leave-one-out measured, and of the other parts what was known before, with the reason why it says nothing.

    What the stack does not run without comes first, then the largest effect.
    """
    by_name = {part.name: part for part in measured}
    known = [by_name.get(names[piece.id]) or _unmeasured(ctx, piece, names[piece.id], reasons[piece.id]) for piece in parts]
    return tuple(sorted(known, key=lambda part: part.log_ratio if part.log_ratio is not None else -math.inf if part.proven else 0.0))


def _unmeasured(ctx: Context, piece: CandidateFacts, name: str, reason: CandidateFacts | str) -> AttributionFacts:
    why = f"not left out alone: {reason}" if isinstance(reason, str) and reason else ""
    before = estimate(ctx, piece)
    if before is not None:
        return before.model_copy(update={"name": name, "note": why})
    return AttributionFacts(
        name=name, kind=kind_of(ctx, piece), log_ratio=None, how="estimate from screening", candidate=candidate_of(piece), note=why
    )


def _put_together(
    ctx: Context, step: str, stack: CandidateFacts, parts: list[CandidateFacts]
) -> CandidateFacts | None:
    """The stack as its parts merged on the original make it; None when they make another program or none.

    Where the text comes out otherwise (parts in another order), that is a candidate of its own, and what the parts
    are left out of.
    """
    original = ctx.memory.original
    answer, joined = merged(ctx, original, parts)
    if len(joined) < len(parts) or {**original.knobs, **answer.knobs} != stack.knobs:
        return None
    if {**ctx.sources(original.commit), **answer.sources} == ctx.sources(stack.commit):
        return stack
    return join(ctx, step, original, parts, LEAVE_ONE_OUT, all_of_them=True)


def _without(
    ctx: Context, step: str, parts: list[CandidateFacts], out: CandidateFacts
) -> CandidateFacts | str:
    """The stack without one part; why there is none where the others need it."""
    others = [piece for piece in parts if piece is not out]
    if (known := _built_before(ctx, others)) is not None:
        return known
    name = f"{step}/{'+'.join(piece.id for piece in others)}"
    built = join(ctx, name, ctx.memory.original, others, LEAVE_ONE_OUT, all_of_them=True)
    if built is not None:
        return built
    refused = ctx.steps.find(name)
    return refused.reason if isinstance(refused, CandidateRefused) else "the review refuses what is left"


def _built_before(ctx: Context, parts: Sequence[CandidateFacts]) -> CandidateFacts | None:
    """A candidate of this campaign that is exactly these changes on the original: a lone one, or an adopted stack."""
    wanted = {piece.id for piece in parts}
    if len(parts) == 1 and parts[0].id in ctx.memory.attempts and parts[0].parent == ctx.memory.original.id:
        return parts[0]
    for attempt in ctx.memory.adopted:
        if {piece.id for piece in pieces(ctx, attempt.candidate)} == wanted:
            return attempt.candidate
    return None


def _names(ctx: Context, parts: Iterable[CandidateFacts]) -> dict[str, str]:
    """A name of its own for each part, by id."""
    names = {piece.id: name_of(ctx, piece) for piece in parts}
    count = Counter(names.values())
    return {id: name if count[name] == 1 else f"{name} ({id})" for id, name in names.items()}

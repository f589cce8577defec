"""The Director's role: build the brief, ask the mind, check the answer, record it."""

from __future__ import annotations

from rsi_tui.journal.events import DirectionClosed, DirectionOpened, Retrieved, SearchEnded
from rsi_tui.journal.facts import ORIGINAL, DirectionFacts, LessonFacts, RetrievedFacts
from rsi_tui.loop.context import Context
from rsi_tui.minds.protocol import DirectionAnswer, DirectorBrief, EndSearch, LessonBrief


def next_direction(ctx: Context) -> DirectionFacts | None:
    """The next direction, or None when the Director ends the search."""
    number = len(ctx.memory.directions) + 1
    step = f"d{number}/opened"
    known = ctx.steps.find(step)
    if known is None:
        known = _ask(ctx, number, step)
    if isinstance(known, SearchEnded):
        return None
    if not isinstance(known, DirectionOpened):
        raise TypeError(f"step {step} holds {type(known).__name__}")
    ctx.memory.directions.append(known.direction)
    return known.direction


def _ask(ctx: Context, number: int, step: str) -> DirectionOpened | SearchEnded:
    best = ctx.memory.best
    common = ctx.brief(best)
    brief = DirectorBrief(**vars(common), open_or_closed=tuple(ctx.memory.directions), best=best.id)
    answer = ctx.mind.direct(brief)
    used = dict(answer.used_hits) if isinstance(answer, DirectionAnswer) else {}
    record_retrieval(ctx, f"d{number}/retrieved", "director", used)
    if isinstance(answer, EndSearch):
        return ctx.steps.append(SearchEnded(reason=answer.reason), step)
    if (wrong := _wrong(ctx, answer)) is not None:
        return ctx.steps.append(SearchEnded(reason=f"the Director's answer was refused: {wrong}"), step)
    direction = DirectionFacts(
        id=f"d{number}",
        question=answer.question,
        layer=answer.layer,
        start_kind=answer.start_kind,
        start=answer.start,
        techniques=answer.techniques,
        reason=answer.reason,
        expected_gain=answer.expected_gain,
        budget=min(answer.budget, ctx.candidates_left),
        closing_rule=answer.closing_rule,
        evidence=answer.evidence,
    )
    return ctx.steps.append(DirectionOpened(direction=direction), step)


def _wrong(ctx: Context, answer: DirectionAnswer) -> str | None:
    """What makes an answer unusable, None when it can be followed."""
    if not ctx.memory.knows(answer.start):
        return f"it starts from {answer.start}, which does not exist"
    if answer.start_kind == "original" and answer.start != ORIGINAL:
        return f"it calls {answer.start} the original"
    if answer.budget < 1:
        return "it gives itself no candidate"
    return None


def record_retrieval(ctx: Context, step: str, role: str, used: dict[str, str]) -> None:
    """Write down what the library was asked, what it answered, and what that changed."""
    memories = ctx.memories()
    hits = [hit.model_copy(update={"used_for": used.get(hit.record, "")}) for hit in memories.hits]
    listed = {hit.record for hit in hits}
    for past in memories.past:
        if past.record in used and past.record not in listed:
            hits.append(
                RetrievedFacts(
                    record=past.record,
                    kind="candidate",
                    text=f"{', '.join(past.techniques) or 'settings'}: {past.verdict}",
                    score=past.fit,
                    why=f"same change; conditions fit by {past.fit:.2f}",
                    used_for=used[past.record],
                )
            )
    changed = "; ".join(f"{record}: {what}" for record, what in used.items())
    ctx.steps.once(
        step, Retrieved, lambda: Retrieved(role=role, query=memories.query, hits=tuple(hits), changed=changed)
    )


def close_direction(ctx: Context, direction: DirectionFacts, reason: str) -> None:
    """Close a direction with the lesson it taught and the conditions that lesson holds under."""
    attempts = ctx.memory.within(direction.id)

    def make() -> DirectionClosed:
        text = ctx.mind.lesson(LessonBrief(direction, attempts, reason))
        conditions = {**ctx.created.host, "workload": ctx.created.workload, "start": direction.start}
        lesson = LessonFacts(
            id=f"l{direction.id[1:]}",
            direction=direction.id,
            text=text,
            conditions=conditions,
            evidence=tuple(a.candidate.id for a in attempts),
        )
        return DirectionClosed(direction=direction.id, reason=reason, candidates=len(attempts), lesson=lesson)

    ctx.steps.once(f"{direction.id}/closed", DirectionClosed, make)

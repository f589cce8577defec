"""The Director's role: build the brief, ask the mind, check the answer, record it.

The budget is kept here, whatever the mind answers: no mind can search for ever.
"""

from __future__ import annotations

from dataclasses import replace

from rsi_tui.journal.events import DirectionClosed, DirectionOpened, ProposalDeclined, Retrieved, SearchEnded
from rsi_tui.journal.facts import ORIGINAL, DirectionFacts, LessonFacts, RetrievedFacts
from rsi_tui.loop.context import Context
from rsi_tui.minds.protocol import Decline, DirectionAnswer, DirectorBrief, EndSearch, Foreseeing, LessonBrief, Proposal

MAX_EMPTY = 4
"""directions in a row without a candidate after which the search ends"""
MAX_ANSWERS = 2
"""a refused answer is asked for once more, with the reason"""


def next_direction(ctx: Context) -> DirectionFacts | None:
    """The next direction, or None when the search is to end."""
    step = f"d{len(ctx.memory.directions) + 1}/opened"
    known = ctx.steps.find(step)
    if known is None:
        spent = _spent(ctx)
        known = ctx.steps.append(SearchEnded(reason=spent), step) if spent else _ask(ctx, step)
    if isinstance(known, SearchEnded):
        return None
    if not isinstance(known, DirectionOpened):
        raise TypeError(f"step {step} holds {type(known).__name__}")
    ctx.memory.directions.append(known.direction)
    return known.direction


def _spent(ctx: Context) -> str:
    """Why no further direction may be opened; '' while one may."""
    if ctx.candidates_left <= 0:
        return "the budget of candidates is used up"
    last = ctx.memory.directions[-MAX_EMPTY:]
    if len(last) == MAX_EMPTY and not any(ctx.memory.tried(direction.id) for direction in last):
        return f"{MAX_EMPTY} directions in a row came to no candidate"
    return ""


def _brief(ctx: Context) -> DirectorBrief:
    best, pinned = ctx.memory.best, _pinned(ctx)
    start = ctx.memory.candidate(pinned) if pinned else best
    return DirectorBrief(
        **vars(ctx.brief(start)), open_or_closed=tuple(ctx.memory.directions), best=best.id, pinned=pinned, proposals=_waiting(ctx)
    )


def _foresee(ctx: Context) -> None:
    """Have a mind that can think about the next direction while the last one's lesson is written, which it does not hang on."""
    mind = ctx.mind
    if isinstance(mind, Foreseeing) and ctx.steps.live and not _spent(ctx):
        brief = _brief(ctx)
        mind.foresee("director", "", lambda: ctx.mind.direct(brief))


def _ask(ctx: Context, step: str) -> DirectionOpened | SearchEnded:
    id = step.partition("/")[0]
    brief = _brief(ctx)
    answer: DirectionAnswer | EndSearch | Decline
    wrong, refused = "", 0
    while True:
        answer = ctx.mind.direct(replace(brief, previous_refusal=wrong))
        if isinstance(answer, Decline) and any(p.id == answer.proposal for p in brief.proposals):
            declined = ProposalDeclined(proposal=answer.proposal, reason=answer.reason)
            ctx.steps.once(f"declined/{answer.proposal}", ProposalDeclined, lambda body=declined: body)  # type: ignore[misc]
            brief = replace(brief, proposals=_waiting(ctx))
            continue
        wrong = "" if isinstance(answer, EndSearch) else _wrong(ctx, answer)
        refused += 1
        if not wrong or refused >= MAX_ANSWERS:
            break
    used = dict(answer.used_hits) if isinstance(answer, DirectionAnswer) and not wrong else {}
    record_retrieval(ctx, f"{id}/retrieved", "director", used)
    if isinstance(answer, EndSearch):
        return ctx.steps.append(SearchEnded(reason=answer.reason), step)
    if wrong or isinstance(answer, Decline):
        return ctx.steps.append(SearchEnded(reason=f"the Director's answer was refused: {wrong}"), step)
    direction = DirectionFacts(
        id=id,
        question=answer.question,
        layer=answer.layer,
        start_kind=answer.start_kind,
        start=answer.start,
        techniques=answer.techniques,
        reason=answer.reason,
        expected_gain=answer.expected_gain,
        budget=1 if answer.reproduces else min(answer.budget, ctx.candidates_left),
        closing_rule=answer.closing_rule,
        evidence=answer.evidence,
        reproduces=answer.reproduces,
        proposal=answer.proposal,
    )
    return ctx.steps.append(DirectionOpened(direction=direction), step)


def _pinned(ctx: Context) -> str:
    """The candidate that a person wants directions to start from; '' for none, or where nothing may be built on it any more."""
    pinned = ctx.memory.best.id if ctx.steering.pinned == "best" else ctx.steering.pinned
    return pinned if pinned and ctx.memory.knows(pinned) else ""


def _waiting(ctx: Context) -> tuple[Proposal, ...]:
    """People's ideas that no direction has answered and that were not declined."""
    answered = {direction.proposal for direction in ctx.memory.directions}
    return tuple(p for p in ctx.steering.proposals if p.id not in answered and ctx.steps.find(f"declined/{p.id}") is None)


def _wrong(ctx: Context, answer: DirectionAnswer | Decline) -> str:
    """What makes an answer unusable, '' when it can be followed."""
    if isinstance(answer, Decline):
        return f"it declines {answer.proposal}, which nobody waits for"
    if (pinned := _pinned(ctx)) and answer.start != pinned and not answer.reproduces:
        return f"it starts from {answer.start}, and a person pinned {pinned}"
    if answer.proposal and answer.proposal not in {p.id for p in _waiting(ctx)}:
        return f"it answers {answer.proposal}, which nobody waits for"
    if not ctx.memory.knows(answer.start):
        return f"it starts from {answer.start}, which does not exist"
    if answer.start_kind == "original" and answer.start != ORIGINAL:
        return f"it calls {answer.start} the original"
    if answer.budget < 1:
        return "it gives itself no candidate"
    proven = {p.record for p in ctx.memories().past if p.verdict == "adopted" and p.same_workload}
    if answer.reproduces and answer.reproduces not in proven:
        return f"it reproduces {answer.reproduces}, which is no proven change of this workload"
    return ""


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
        _foresee(ctx)
        text = ctx.mind.lesson(LessonBrief(direction, attempts, reason))
        conditions = {**ctx.created.host, "workload": ctx.created.workload, "start": direction.start}
        lesson = LessonFacts(
            id=f"l{direction.id[1:]}",
            direction=direction.id,
            text=text,
            conditions=conditions,
            evidence=tuple(a.candidate.id for a in attempts),
        )
        return DirectionClosed(direction=direction.id, reason=reason, candidates=len(ctx.memory.tried(direction.id)), lesson=lesson)

    ctx.steps.once(f"{direction.id}/closed", DirectionClosed, make)

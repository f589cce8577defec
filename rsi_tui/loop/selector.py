"""The Selector's role: the next hypothesis of a direction, recorded before anything is built.

The budgets of direction and campaign are kept here, whatever the mind answers.
"""

from __future__ import annotations

import math

from rsi_tui.journal.events import HypothesisWritten, RoundEnded
from rsi_tui.journal.facts import DirectionFacts, HypothesisFacts
from rsi_tui.loop.context import Context
from rsi_tui.loop.director import record_retrieval
from rsi_tui.minds.protocol import CloseDirection, Foreseeing, HypothesisAnswer, SelectorBrief


def next_hypothesis(ctx: Context, direction: DirectionFacts, round_: int) -> HypothesisFacts | str:
    """The hypothesis of a round, or the reason why the direction holds no further one."""
    step = f"{direction.id}/r{round_}/hypothesis"
    known = ctx.steps.find(step)
    if known is None:
        spent = _spent(ctx, direction)
        ended = RoundEnded(direction=direction.id, reason=spent)
        known = ctx.steps.append(ended, step) if spent else _ask(ctx, direction, round_, step)
    if isinstance(known, RoundEnded):
        return known.reason
    if not isinstance(known, HypothesisWritten):
        raise TypeError(f"step {step} holds {type(known).__name__}")
    ctx.memory.hypotheses += 1
    return known.hypothesis


def _spent(ctx: Context, direction: DirectionFacts) -> str:
    """Why a direction may build no further candidate; '' while it may."""
    if len(ctx.memory.tried(direction.id)) >= direction.budget:
        return f"its budget of {direction.budget} candidate{'s' if direction.budget > 1 else ''} is used up"
    if ctx.candidates_left <= 0:
        return "the campaign's budget of candidates is used up"
    return ""


def foresee_hypothesis(ctx: Context, direction: DirectionFacts, round_: int) -> None:
    """Have a mind that can think about a round's hypothesis while the last round's change is reviewed.

    What it thinks of is that the change passes; where it does not, the question is another one and is asked anew.
    """
    mind = ctx.mind
    if isinstance(mind, Foreseeing) and ctx.steps.live and not direction.reproduces and not _spent(ctx, direction):
        brief = _brief(ctx, direction, round_)
        mind.foresee("selector", direction.id, lambda: ctx.mind.select(brief))


def _brief(ctx: Context, direction: DirectionFacts, round_: int) -> SelectorBrief:
    start = ctx.memory.candidate(direction.start)
    archive = {candidate.id: candidate for candidate in (*ctx.memory.archive(), start)}
    return SelectorBrief(
        **vars(ctx.brief(start)),
        direction=direction,
        round=round_,
        archive=tuple(archive.values()),
        archive_sources={id: ctx.sources(candidate.commit) for id, candidate in archive.items()},
        previous_refusal=ctx.memory.refusals.get(direction.id, ""),
    )


def _ask(ctx: Context, direction: DirectionFacts, round_: int, step: str) -> HypothesisWritten | RoundEnded:
    answer = ctx.mind.select(_brief(ctx, direction, round_))
    if isinstance(answer, CloseDirection):
        return ctx.steps.append(RoundEnded(direction=direction.id, reason=answer.reason), step)
    if wrong := _contradiction(ctx, direction, answer):
        return ctx.steps.append(RoundEnded(direction=direction.id, reason=f"the Selector's answer was refused: {wrong}"), step)
    if answer.used_hits:
        record_retrieval(ctx, f"{direction.id}/r{round_}/retrieved", "selector", dict(answer.used_hits))
    hypothesis = HypothesisFacts(
        id=f"h{ctx.memory.hypotheses + 1}",
        direction=direction.id,
        round=round_,
        parent=answer.parent,
        statement=answer.statement,
        techniques=answer.techniques,
        knobs=dict(answer.knobs),
        predicted_time=answer.predicted_time,
        predicted_memory=answer.predicted_memory,
        evidence=answer.evidence,
        refuted_by=answer.refuted_by,
    )
    return ctx.steps.append(HypothesisWritten(hypothesis=hypothesis), step)


def _contradiction(ctx: Context, direction: DirectionFacts, answer: HypothesisAnswer) -> str:
    """What in an answer can't be; '' when nothing. What is better is the objective's to say, not the mind's; what a
    person proposed is tried whatever is expected of it."""
    if not ctx.memory.knows(answer.parent):
        return f"its parent {answer.parent} does not exist"
    if not (math.isfinite(answer.predicted_time) and math.isfinite(answer.predicted_memory)):
        return "what it predicts is not a number"
    if answer.predicted_time > 0 and answer.predicted_memory >= 0 and not direction.proposal:
        return f"it predicts a step {100 * answer.predicted_time:.1f} % slower and no memory saved, where less time or less memory is better"
    return ""

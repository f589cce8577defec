"""The Selector's role: the next hypothesis of a direction, recorded before anything is built."""

from __future__ import annotations

from rsi_tui.journal.events import HypothesisWritten, RoundEnded
from rsi_tui.journal.facts import DirectionFacts, HypothesisFacts
from rsi_tui.loop.context import Context
from rsi_tui.minds.protocol import CloseDirection, SelectorBrief


def next_hypothesis(ctx: Context, direction: DirectionFacts, round_: int) -> HypothesisFacts | str:
    """The hypothesis of a round, or the reason why the direction holds no further one."""
    step = f"{direction.id}/r{round_}/hypothesis"
    known = ctx.steps.find(step)
    if known is None:
        known = _ask(ctx, direction, round_, step)
    if isinstance(known, RoundEnded):
        return known.reason
    if not isinstance(known, HypothesisWritten):
        raise TypeError(f"step {step} holds {type(known).__name__}")
    ctx.memory.hypotheses += 1
    return known.hypothesis


def _ask(ctx: Context, direction: DirectionFacts, round_: int, step: str) -> HypothesisWritten | RoundEnded:
    archive = ctx.memory.archive()
    start = ctx.memory.candidate(direction.start)
    brief = SelectorBrief(**vars(ctx.brief(start)), direction=direction, round=round_, archive=archive)
    answer = ctx.mind.select(brief)
    if isinstance(answer, CloseDirection):
        return ctx.steps.append(RoundEnded(direction=direction.id, reason=answer.reason), step)
    if not ctx.memory.knows(answer.parent):
        reason = f"the Selector's answer was refused: its parent {answer.parent} does not exist"
        return ctx.steps.append(RoundEnded(direction=direction.id, reason=reason), step)
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

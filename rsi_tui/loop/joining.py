"""Joining changes: several candidates into one, on a parent of choice.

Techniques are applied anew to the parent, since their codemods look for idioms, not for lines; free
patches are applied as diffs. Where two members set the same knob or conflict, the earlier one wins.
"""

from __future__ import annotations

from rsi_tui.errors import PatchError
from rsi_tui.journal.events import CandidateBuilt, CandidateRefused
from rsi_tui.journal.facts import CandidateFacts
from rsi_tui.loop.context import Context
from rsi_tui.loop.executor import Refusal, assemble
from rsi_tui.minds.protocol import ChangeAnswer
from rsi_tui.repo.patch import apply_diff
from rsi_tui.techniques.base import Change, Situation
from rsi_tui.techniques.registry import apply_all


def join(
    ctx: Context, step: str, parent: CandidateFacts, members: list[CandidateFacts], direction: str
) -> CandidateFacts | None:
    """One candidate with the changes of all members; None, recorded with its reason, when they do not go together."""
    known = ctx.steps.find(step)
    if known is None:
        try:
            answer, joined = merged(ctx, parent, members)
            known = assemble(
                ctx, parent=parent, answer=answer, hypothesis="", direction=direction, members=tuple(joined)
            )
        except (Refusal, PatchError) as error:
            reason = error.reason if isinstance(error, Refusal) else str(error)
            known = CandidateRefused(hypothesis="", direction=direction, kind="does_not_apply", reason=reason)
        ctx.steps.append(known, step)
    if not isinstance(known, CandidateBuilt):
        return None
    ctx.memory.add(known.candidate, direction, None)
    return known.candidate


def merged(ctx: Context, parent: CandidateFacts, members: list[CandidateFacts]) -> tuple[ChangeAnswer, list[str]]:
    """The changes of the members as one answer to be applied to the parent, and the ids of those that are in it."""
    situation = Situation(ctx.sources(parent.commit), ctx.usable, ctx.profile, parent.knobs)
    wanted = tuple(t for member in members for t in ctx.memory.added(member) if t not in parent.techniques)
    techniques, change = applied_together(wanted, situation)
    sources = dict(situation.sources) | dict(change.sources)
    joined = [member for member in members if set(ctx.memory.added(member)) <= set(techniques)]
    for member in joined:
        if not ctx.memory.added(member):
            sources |= {p: t for p, t in apply_diff(sources, own_diff(ctx, member)).items() if t is not None}
    knobs = dict(change.knobs)
    for member in joined:
        before = ctx.memory.candidate(member.parent or "original").knobs
        for name, value in member.knobs.items():
            if before.get(name) != value:
                knobs.setdefault(name, value)
    affects = {effect for member in joined for effect in member.affects}
    answer = ChangeAnswer(sources=sources, knobs=knobs, affects=tuple(sorted(affects)), techniques=techniques)
    return answer, [member.id for member in joined]


def own_diff(ctx: Context, member: CandidateFacts) -> str:
    """What a candidate changed in its parent's code; '' for settings alone."""
    parent = ctx.memory.candidate(member.parent or "original")
    return ctx.mirror.diff(parent.commit, member.commit) if parent.commit != member.commit else ""


def applied_together(wanted: tuple[str, ...], situation: Situation) -> tuple[tuple[str, ...], Change]:
    """As many of the wanted techniques as go together, earlier ones first, and the change they make.

    One that conflicts with an earlier one, or finds nothing left to change beside it, is left out.
    """
    kept: tuple[str, ...] = ()
    change = Change()
    for technique in dict.fromkeys(wanted):
        try:
            change = apply_all((*kept, technique), situation)
        except PatchError:
            continue
        kept = (*kept, technique)
    return kept, change

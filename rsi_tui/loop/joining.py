"""Joining changes: several candidates into one, on a parent of choice.

Techniques are applied anew to the parent, since their codemods look for idioms, not for lines; free
patches are applied as diffs. Where two members set the same knob or conflict, the earlier one wins, and
what does not go beside the others is left out. What was joined is reviewed anew.
"""

from __future__ import annotations

from rsi_tui.contract.model import KnobValue
from rsi_tui.errors import PatchError
from rsi_tui.journal.events import CandidateBuilt, CandidateRefused
from rsi_tui.journal.facts import CandidateFacts
from rsi_tui.loop.context import Context
from rsi_tui.loop.executor import Refusal, assemble
from rsi_tui.loop.reviewer import review_joined
from rsi_tui.minds.protocol import ChangeAnswer
from rsi_tui.repo.patch import apply_diff
from rsi_tui.techniques.base import Change, Situation
from rsi_tui.techniques.registry import apply_all


def join(
    ctx: Context,
    step: str,
    parent: CandidateFacts,
    members: list[CandidateFacts],
    direction: str,
    *,
    all_of_them: bool = False,
) -> CandidateFacts | None:
    """One candidate with the changes of those members that go together; None, recorded, when none is to be measured.

    With `all_of_them` none is when a single member does not go with the others.
    """
    known = ctx.steps.find(step)
    if known is None:
        try:
            answer, joined = merged(ctx, parent, members)
            if all_of_them and (left := [member.id for member in members if member.id not in joined]):
                raise Refusal("does_not_apply", f"{', '.join(left)} can't be applied to {parent.id} without it")
            known = assemble(
                ctx, parent=parent, answer=answer, hypothesis="", direction=direction, members=tuple(joined)
            )
        except Refusal as refusal:
            known = CandidateRefused(hypothesis="", direction=direction, kind=refusal.kind, reason=refusal.reason)
        ctx.steps.append(known, step)
    if not isinstance(known, CandidateBuilt):
        return None
    ctx.memory.add(known.candidate, direction, None)
    return known.candidate if review_joined(ctx, step, known.candidate) else None


def merged(ctx: Context, parent: CandidateFacts, members: list[CandidateFacts]) -> tuple[ChangeAnswer, list[str]]:
    """The changes of the members as one answer to be applied to the parent, and the ids of those that are in it."""
    situation = Situation(ctx.sources(parent.commit), ctx.usable, ctx.profile, parent.knobs)
    new = {member.id: tuple(t for t in ctx.memory.added(member) if t not in parent.techniques) for member in members}
    techniques, change = applied_together(tuple(t for added in new.values() for t in added), situation)
    sources = dict(situation.sources) | dict(change.sources)
    knobs = dict(change.knobs)
    joined = []
    for member in members:
        changed = _changed_knobs(ctx, member)
        if ctx.memory.added(member):
            fits = bool(new[member.id]) and set(new[member.id]) <= set(techniques)
        else:
            patched = _patched(sources, own_diff(ctx, member))
            fits = patched is not None and all(knobs.get(name, value) == value for name, value in changed.items())
            sources = patched if fits and patched is not None else sources
        if fits:
            joined.append(member)
            knobs = changed | knobs
    affects = {effect for member in joined for effect in member.affects}
    answer = ChangeAnswer(sources=sources, knobs=knobs, affects=tuple(sorted(affects)), techniques=techniques)
    return answer, [member.id for member in joined]


def _changed_knobs(ctx: Context, member: CandidateFacts) -> dict[str, KnobValue]:
    """The knobs that a candidate sets otherwise than its parent."""
    before = ctx.memory.parent(member).knobs
    return {name: value for name, value in member.knobs.items() if before.get(name) != value}


def _patched(sources: dict[str, str], diff: str) -> dict[str, str] | None:
    """The sources with a free patch applied; None when it does not apply."""
    try:
        changed = apply_diff(sources, diff) if diff else {}
    except PatchError:
        return None
    return {path: text for path, text in (sources | changed).items() if text is not None}


def own_diff(ctx: Context, member: CandidateFacts) -> str:
    """What a candidate changed in its parent's code; '' for settings alone."""
    parent = ctx.memory.parent(member)
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

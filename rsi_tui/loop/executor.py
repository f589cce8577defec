"""The Executor's role: turn a hypothesis into a commit and knob values, or say why it can't be done.

The mind answers with new texts or a diff; this module applies it, checks knobs and rules, refuses
what changes nothing and what was tried before, and commits the rest to the mirror. No trial is
spent on a refusal.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rsi_tui.contract.fingerprint import changed_knobs, launch_fingerprint
from rsi_tui.contract.knob_files import edit_setting
from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.contract.rules import violations
from rsi_tui.errors import ContractError, PatchError
from rsi_tui.journal.events import CandidateBuilt, CandidateRefused
from rsi_tui.journal.facts import CandidateFacts, FindingFacts, HypothesisFacts
from rsi_tui.loop.context import Context
from rsi_tui.minds.protocol import ChangeAnswer, ExecutorBrief, HypothesisAnswer
from rsi_tui.repo.patch import apply_diff, normalised_diff_hash
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import get


@dataclass
class Refusal(Exception):
    """No candidate comes of an answer; no trial was spent."""

    kind: Literal["no_change", "does_not_apply", "duplicate", "constraint", "broken", "scope"]
    reason: str
    attempt: str = ""
    findings: tuple[FindingFacts, ...] = ()
    """what is out of scope, path by path"""


def build(ctx: Context, hypothesis: HypothesisFacts) -> CandidateFacts | None:
    """The candidate of a hypothesis, committed; None when it was refused."""
    step = f"{hypothesis.direction}/r{hypothesis.round}/built"
    known = ctx.steps.find(step)
    if known is None:
        known = _make(ctx, hypothesis, step)
    if isinstance(known, CandidateRefused):
        ctx.memory.refusals[hypothesis.direction] = f"{hypothesis.id}, {known.kind.replace('_', ' ')}: {known.reason}"
        return None
    if not isinstance(known, CandidateBuilt):
        raise TypeError(f"step {step} holds {type(known).__name__}")
    ctx.memory.add(known.candidate, hypothesis.direction, hypothesis)
    return known.candidate


def _make(ctx: Context, hypothesis: HypothesisFacts, step: str) -> CandidateBuilt | CandidateRefused:
    parent = ctx.memory.candidate(hypothesis.parent)
    try:
        answer = _ask(ctx, hypothesis, parent)
        built = assemble(
            ctx,
            parent=parent,
            answer=answer,
            hypothesis=hypothesis.id,
            direction=hypothesis.direction,
            statement=hypothesis.statement,
        )
    except Refusal as refusal:
        refused = CandidateRefused(
            hypothesis=hypothesis.id,
            direction=hypothesis.direction,
            kind=refusal.kind,
            reason=refusal.reason,
            attempt=refusal.attempt,
        )
        return ctx.steps.append(refused, step)
    return ctx.steps.append(built, step)


def _ask(ctx: Context, hypothesis: HypothesisFacts, parent: CandidateFacts) -> ChangeAnswer:
    brief = ExecutorBrief(
        contract=ctx.usable,
        profile=ctx.profile,
        hypothesis=HypothesisAnswer(
            parent=hypothesis.parent,
            statement=hypothesis.statement,
            techniques=hypothesis.techniques,
            knobs=hypothesis.knobs,
            predicted_time=hypothesis.predicted_time,
            predicted_memory=hypothesis.predicted_memory,
            refuted_by=hypothesis.refuted_by,
        ),
        sources=ctx.sources(parent.commit),
        parent_knobs=parent.knobs,
        previous_refusal=ctx.memory.refusals.get(hypothesis.direction, ""),
        direction=next((known for known in ctx.memory.directions if known.id == hypothesis.direction), None),
        parent_commit=parent.commit,
    )
    try:
        return ctx.mind.execute(brief)
    except PatchError as error:
        raise Refusal("does_not_apply", str(error)) from error


def assemble(
    ctx: Context,
    *,
    parent: CandidateFacts,
    answer: ChangeAnswer,
    hypothesis: str,
    direction: str,
    members: tuple[str, ...] = (),
    statement: str = "",
) -> CandidateBuilt:
    """Commit an answer on top of a parent; raises a refusal that names what is wrong. `statement`: of the hypothesis."""
    try:
        return _assemble(ctx, parent, answer, hypothesis, direction, members, statement)
    except PatchError as error:
        raise Refusal("does_not_apply", str(error), answer.diff) from error


def _assemble(
    ctx: Context, parent: CandidateFacts, answer: ChangeAnswer, hypothesis: str, direction: str, members: tuple[str, ...], statement: str
) -> CandidateBuilt:
    before = ctx.sources(parent.commit)
    after = _apply(before, answer)
    knobs = {**parent.knobs, **answer.knobs}
    _check_knobs(ctx, knobs)
    check_syntax(before, after)
    check_knob_files(ctx.contract, before, after, knobs)
    code_changed = differs(before, after)
    if not code_changed and knobs == parent.knobs:
        raise Refusal("no_change", "the answer changes neither code nor settings")
    id = f"c{ctx.memory.candidates + 1}"
    ref = f"refs/rsi/{ctx.created.campaign}/{id}"
    changed: dict[str, str | None] = {p: t for p, t in after.items() if before.get(p) != t}
    changed |= {path: None for path in before if path not in after}
    commit = ctx.mirror.commit_files(parent.commit, changed, f"{id}: {direction}", ref) if code_changed else parent.commit
    base = ctx.evaluator.original.commit
    diff = ctx.mirror.diff(base, commit) if commit != base else ""
    affects = set(answer.affects) | set(parent.affects)
    affects |= {effect for name in changed_knobs(ctx.contract, knobs) for effect in ctx.contract.knob(name).affects}
    candidate = CandidateFacts(
        id=id,
        commit=commit,
        base=base,
        parent=parent.id,
        techniques=stacked(ctx, parent, answer.techniques, knobs),
        knobs=knobs,
        affects=tuple(sorted(affects)),
        members=members,
        diff_hash=normalised_diff_hash(diff) if diff else "",
        launch_fingerprint=launch_fingerprint(ctx.contract, knobs),
    )
    change = ctx.mirror.diff(parent.commit, commit) if code_changed else ""
    _check_duplicates(ctx, candidate, parent, statement, change, reproduction=ctx.memory.reproduces(direction))
    return CandidateBuilt(candidate=candidate, hypothesis=hypothesis, direction=direction, diff=diff)


def stacked(
    ctx: Context, parent: CandidateFacts, added: tuple[str, ...], knobs: Mapping[str, KnobValue]
) -> tuple[str, ...]:
    """The techniques of a candidate: its parent's without those that the new ones undo, then the new ones.

    A stack must be one that can be applied anew to the original, since that is how it is reproduced.
    """
    original = Situation(ctx.sources(ctx.evaluator.original.commit), ctx.usable, ctx.profile, ctx.contract.defaults)
    excluded = {other for id in added for other in get(id, ctx.contract).conflicts}
    kept = []
    for id in parent.techniques:
        technique = get(id, ctx.contract)
        undone = any(knobs.get(name) != value for name, value in technique.apply(original).knobs.items())
        if id not in excluded and not set(technique.conflicts) & set(added) and not undone:
            kept.append(id)
    return tuple(dict.fromkeys((*kept, *added)))


def _apply(before: Mapping[str, str], answer: ChangeAnswer) -> dict[str, str]:
    after = dict(before) | dict(answer.sources)
    if not answer.diff:
        return after
    changed = apply_diff(after, answer.diff)
    return {path: text for path, text in (after | changed).items() if text is not None}


def _check_knobs(ctx: Context, knobs: Mapping[str, KnobValue]) -> None:
    known = {knob.name: knob for knob in ctx.usable.knobs}
    for name, value in knobs.items():
        if name not in known:
            raise Refusal("constraint", f"there is no setting named {name}")
        if value not in known[name].values:
            listed = ", ".join(str(v) for v in known[name].values)
            raise Refusal("constraint", f"{name} can't be {value}; the contract lists {listed}")
    if broken := violations(ctx.contract, knobs):
        raise Refusal("constraint", f"the contract's rule {broken[0]} does not hold")


def check_syntax(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Refuse a changed Python file that does not parse, naming its line."""
    for path, text in after.items():
        if path.endswith(".py") and before.get(path) != text:
            try:
                ast.parse(text)
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None) or 0
                raise Refusal("broken", f"{path} line {line} is no valid Python: {getattr(error, 'msg', error)}") from error


def check_knob_files(
    contract: Contract, before: Mapping[str, str], after: Mapping[str, str], knobs: Mapping[str, KnobValue]
) -> None:
    """Refuse a change after which a knob that lives in a file can't be set there any more."""
    for knob in contract.knobs:
        place = knob.file or knob.global_
        path, _, key = place.partition(":")
        if not place or after.get(path) == before.get(path):
            continue
        if path not in after:
            raise Refusal("broken", f"{path} is deleted, and the setting {knob.name} lives in it")
        try:
            edit_setting(after[path].encode("utf-8", "surrogateescape"), place, key, knobs[knob.name])
        except ContractError as error:
            raise Refusal("broken", f"the setting {knob.name} can't be set in {path} any more: {error}") from error


def differs(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Does any file differ in more than comments and layout? What does not parse differs."""
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if old is None or new is None or not path.endswith(".py"):
            return True
        if _tree(old) is None or _tree(old) != _tree(new):
            return True
    return False


def _tree(text: str) -> str | None:
    """A file's syntax tree in words, without places; None when it does not parse."""
    try:
        return ast.dump(ast.parse(text))
    except (SyntaxError, ValueError):
        return None


def _check_duplicates(
    ctx: Context, candidate: CandidateFacts, parent: CandidateFacts, statement: str, change: str, *, reproduction: bool
) -> None:
    """Refuse what was tried in this campaign, or refuted before under the same conditions.

    A change that was proven is no duplicate, whatever else became of it: its proof is asked for again.
    """
    key = (candidate.diff_hash, candidate.launch_fingerprint)
    if key == ("", ""):
        return  # the original's own launch: only a test double asks for that, and the no-change gate has spoken
    for attempt in ctx.memory.attempts.values():
        other = attempt.candidate
        if (other.diff_hash, other.launch_fingerprint) == key and not candidate.members:
            raise Refusal("duplicate", f"{other.id} is the same change with the same settings")
    if not reproduction and (known := ctx.memories().refuted(candidate, parent, statement, change)) is not None:
        raise Refusal("duplicate", f"{known}, or be asked for with --retry")

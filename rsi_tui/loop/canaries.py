"""Canaries: changes of the evaluator's own making that must never be adopted (holes H18).

About one in twenty candidates of a campaign is a no-op and one in fifty is known to be slower, on top of those
that the budget counts. They are built and measured like any other; no mind sees them, no budget and no library
counts them. The first one is taken through a verification early, whatever screening would say of it, since
canaries that die in screening never test what adopts. Each verification of a canary has an error probability of
its own: it spends nothing of the workload's.

An adopted canary means that this machine proves what is not so. The campaign stops, and all that it had adopted
is taken back.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from rsi_tui.evaluator.screen import BATCH
from rsi_tui.journal.events import CanaryKind, CanaryPlanted, CandidateBuilt, CandidateRefused
from rsi_tui.journal.facts import CANARY, CandidateFacts, ScreenFacts
from rsi_tui.loop.canary_code import SLOWER, no_op, slower
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.revoking import revoke_everything
from rsi_tui.repo.patch import normalised_diff_hash

NO_OPS = 0.05
"""share of the campaign's candidates, on top of them"""
SLOWER_ONES = 0.02
ALPHA = 0.001
"""error probability of a canary's verification: a healthy machine stops one campaign in a thousand at most"""
TYPICAL_GAIN = 0.05
"""log gain that the forced verification expects: that of a candidate such as are usually promoted"""
WHAT: dict[CanaryKind, str] = {
    "no-op": "a change that does nothing",
    "slower": f"a change that makes a step about {100 * SLOWER:.0f} % slower",
}


def force_one(ctx: Context) -> None:
    """Take the first canary through a verification, before hours are spent on a machine that proves what is not so."""
    if not ctx.contract.proof.canaries:
        return
    ctx.heed_people()
    canary = _plant(ctx, "no-op", forced=True)
    if canary is not None:
        _verify(ctx, canary, "no-op", TYPICAL_GAIN, early_look=False)


def guests(ctx: Context, room: int = BATCH) -> list[CandidateFacts]:
    """Canaries that are due, built on the best, as many as there is room for beside the candidates of a wave."""
    planted: list[CandidateFacts] = []
    for kind in due(ctx):
        if len(planted) < room and (canary := _plant(ctx, kind, forced=False)) is not None:
            planted.append(canary)
    return planted


def screen_due(ctx: Context, step: str) -> None:
    """Screen the canaries that are due in a wave of their own."""
    if waiting := guests(ctx):
        ctx.heed_people()
        heed(ctx, waiting, ctx.evaluator.screen(step, waiting, ctx.memory.best))


def heed(ctx: Context, canaries: Sequence[CandidateFacts], results: Sequence[ScreenFacts]) -> None:
    """Verify the canaries that screening promoted; raises Stopped when one is adopted."""
    kinds = {canary.id: kind for kind, canary in ctx.memory.canaries if canary is not None}
    by_id = {canary.id: canary for canary in canaries}
    for result in results:
        if result.candidate in by_id and result.promoted and result.log_ratio is not None:
            ctx.heed_people()
            _verify(ctx, by_id[result.candidate], kinds[result.candidate], -result.log_ratio)


def due(ctx: Context) -> list[CanaryKind]:
    """Kinds that the candidates so far call for and that were not tried yet."""
    if not ctx.contract.proof.canaries:
        return []
    searched, tried = ctx.memory.searched, [kind for kind, _ in ctx.memory.canaries]
    wanted: dict[CanaryKind, int] = {
        "no-op": max(1, int(NO_OPS * searched + 0.5)),
        "slower": int(SLOWER_ONES * searched + 0.5),
    }
    return [kind for kind, count in wanted.items() for _ in range(count - tried.count(kind))]


def _plant(ctx: Context, kind: CanaryKind, *, forced: bool) -> CandidateFacts | None:
    """Build the next canary; None, recorded, when the program has no place for one of this kind."""
    id = f"k{len(ctx.memory.canaries) + 1}"
    step = f"{CANARY}/{id}"
    known = ctx.steps.find(f"{step}/built")
    if known is None:
        known = ctx.steps.append(_make(ctx, step, id, kind, forced), f"{step}/built")
    canary = known.candidate if isinstance(known, CandidateBuilt) else None
    ctx.memory.canaries.append((kind, canary))
    return canary


def _make(ctx: Context, step: str, id: str, kind: CanaryKind, forced: bool) -> CandidateBuilt | CandidateRefused:
    parent, original = ctx.memory.best, ctx.memory.original
    sources = ctx.sources(parent.commit)
    if kind == "no-op":
        changed = no_op(sources, secrets.SystemRandom())
        missing = "no editable Python file has a place for a change that does nothing"
    else:
        step_s = ctx.profile.step_s if ctx.profile is not None else 0.0
        changed = slower(sources, ctx.contract.launch.progress, SLOWER * step_s)
        missing = "no loop that prints the progress lines was found"
    if changed is None:
        return CandidateRefused(hypothesis="", direction=CANARY, kind="does_not_apply", reason=missing)
    ref = f"refs/rsi/{ctx.created.campaign}/{id}"
    commit = ctx.mirror.commit_files(parent.commit, dict(changed), f"{id}: {CANARY}", ref)
    diff = ctx.mirror.diff(original.commit, commit)
    canary = parent.model_copy(
        update={
            "id": id,
            "commit": commit,
            "base": original.commit,
            "parent": parent.id,
            "members": (),
            "diff_hash": normalised_diff_hash(diff),
        }
    )
    ctx.steps.once(step, CanaryPlanted, lambda: CanaryPlanted(candidate=id, kind=kind, forced=forced))
    return CandidateBuilt(candidate=canary, hypothesis="", direction=CANARY, diff=diff)


def _verify(ctx: Context, canary: CandidateFacts, kind: CanaryKind, gain: float, *, early_look: bool = True) -> None:
    step = f"{CANARY}/{canary.id}"
    incumbent = ctx.memory.parent(canary)
    verdict = ctx.evaluator.verify(f"{step}/verify", canary, incumbent, ALPHA, gain, early_look=early_look)
    if verdict.verdict != "adopted":
        return
    found = f"Canary {canary.id}, {WHAT[kind]}, was adopted"
    taken = revoke_everything(ctx, f"{step}/revoked", f"{found[0].lower()}{found[1:]}: this machine proves what is not so")
    also = f"; what this campaign had adopted ({', '.join(taken)}) is taken back" if taken else ""
    ctx.alarm = (
        f"{found}, so that nothing this machine measures now is proof{also}: give the trials cores of their own, see what "
        "else runs here with `rsi doctor`, and start a new campaign, which measures the noise again"
    )
    raise Stopped(f"{found[0].lower()}{found[1:]}: this machine is not steady enough to prove anything")

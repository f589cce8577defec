"""The bundle: in a quick campaign the promising changes are proven together, in one verification.

The guarantee is the bundle's; its members stay unproven alone. When it fails, the member that most
likely made it fail is left out and the rest is tried again.
"""

from __future__ import annotations

from rsi_tui.journal.facts import CandidateFacts, VerdictFacts
from rsi_tui.loop.context import Context
from rsi_tui.loop.inner import verify
from rsi_tui.loop.joining import join
from rsi_tui.minds.protocol import Attempt

MAX_TRIES = 3


def prove_bundle(ctx: Context) -> None:
    """Verify the promoted changes as one candidate; leave members out until it holds or nothing is left."""
    members = ctx.memory.promoted
    for number in range(1, MAX_TRIES + 1):
        if not members or not ctx.ledger.left:
            return
        ctx.heed_people()
        candidate = _candidate(ctx, number, members)
        if candidate is None:
            members = members[:-1]
            continue
        inside = candidate.members or (candidate.id,)
        gain = -sum(a.screen.log_ratio or 0.0 for a in members if a.screen and a.candidate.id in inside)
        verdict = verify(ctx, candidate, gain)
        if verdict.verdict not in ("failed", "invalid") or len(members) == 1:
            return
        members = _without_culprit(members, verdict)


def _candidate(ctx: Context, number: int, members: list[Attempt]) -> CandidateFacts | None:
    if len(members) == 1:
        return members[0].candidate
    return join(ctx, f"bundle{number}", ctx.memory.best, [a.candidate for a in members], "bundle")


def _without_culprit(members: list[Attempt], verdict: VerdictFacts) -> list[Attempt]:
    """Leave out the hungriest member after a failure, the least exact one after a broken invariant."""
    if verdict.verdict == "failed":
        worst = max(members, key=lambda a: (a.screen.peak_bytes or 0) if a.screen else 0)
    else:
        worst = max(members, key=_strain)
    return [a for a in members if a is not worst]


def _strain(attempt: Attempt) -> float:
    """How far a member stretched its tightest invariant in screening, as a share of the limit."""
    if attempt.screen is None:
        return 0.0
    shares = [i.value / i.limit for i in attempt.screen.invariants if i.value is not None and i.limit]
    return max(shares, default=0.0)

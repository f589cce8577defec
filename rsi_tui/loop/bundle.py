"""The bundle: in a quick campaign the promising changes are proven together, in one verification.

The guarantee is the bundle's; its members stay unproven alone. When it fails, the member that most
likely made it fail is left out and the rest is tried again; what does not go together takes no try.

Where the fastest of them is a set of several changes itself, it is verified as it was measured: that what others would
add to it pays was not seen, and what was tried with it and was faster would be the fastest.
"""

from __future__ import annotations

from rsi_tui.journal.facts import CandidateFacts, VerdictFacts
from rsi_tui.loop.context import Context
from rsi_tui.loop.inner import verify
from rsi_tui.loop.joining import join
from rsi_tui.loop.revoking import heed_vetoes
from rsi_tui.minds.protocol import Attempt

MAX_TRIES = 3


def prove_bundle(ctx: Context) -> None:
    """Verify the promoted changes as one candidate; leave members out until it holds or nothing is left."""
    members = ctx.memory.promoted
    number = tries = 0
    while members and tries < MAX_TRIES and ctx.ledger.left:
        ctx.heed_people()
        number += 1
        heed_vetoes(ctx, f"bundle{number}")
        together = members[:1] if _is_set(ctx, members[0]) else members
        candidate = _candidate(ctx, number, together)
        if candidate is None:
            members = [a for a in members if a is not together[-1]]
            continue
        tries += 1
        ids = candidate.members or (candidate.id,)
        inside = [a for a in together if a.candidate.id in ids]
        verdict = verify(ctx, candidate, -sum(a.screen.log_ratio or 0.0 for a in inside if a.screen))
        if verdict.verdict not in ("failed", "invalid"):
            return
        culprit = _culprit(inside, verdict)
        members = [a for a in members if a is not culprit]


def _is_set(ctx: Context, attempt: Attempt) -> bool:
    """Whether a candidate changed more than one recipe changes in its parent."""
    before = ctx.memory.parent(attempt.candidate).knobs
    settings = sum(before.get(name) != value for name, value in attempt.candidate.knobs.items())
    return len(attempt.added) + settings > 3


def _candidate(ctx: Context, number: int, members: list[Attempt]) -> CandidateFacts | None:
    """The members joined on the best; a lone one that was built on it stands for itself."""
    best = ctx.memory.best
    if len(members) == 1 and members[0].candidate.parent == best.id:
        return members[0].candidate
    return join(ctx, f"bundle{number}", best, [a.candidate for a in members], "bundle")


def _culprit(inside: list[Attempt], verdict: VerdictFacts) -> Attempt:
    """Who to leave out: the hungriest member after a failure, the least exact one after a broken invariant."""
    if verdict.verdict == "failed":
        return max(inside, key=lambda a: (a.screen.peak_bytes or 0) if a.screen else 0)
    return max(inside, key=_strain)


def _strain(attempt: Attempt) -> float:
    """How far a member stretched its tightest invariant in screening, as a share of the limit."""
    if attempt.screen is None:
        return 0.0
    shares = [i.value / i.limit for i in attempt.screen.invariants if i.value is not None and i.limit]
    return max(shares, default=0.0)

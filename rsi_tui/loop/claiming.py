"""Claiming: the adopted stack against the original, on fresh pairs, after what contributes nothing was left out.

A claim that finds something wrong with the stack itself, a broken invariant or a run that fails, refutes its
adoption: it is taken back, and what was adopted before it is claimed instead. A claim that only falls short in
time is the end.

What is left of a stack was never verified. It is adopted by its claim, which for that must also show what every other
adoption has shown: a gain above the margin, the same updates from saved states, and that very slow runs are rare.
"""

from __future__ import annotations

import math

from rsi_tui.audit.words import interval
from rsi_tui.journal.events import VerdictReached
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, ClaimFacts, VerdictFacts
from rsi_tui.loop.attribution import attribute
from rsi_tui.loop.context import Context
from rsi_tui.loop.elimination import eliminate
from rsi_tui.loop.revoking import US, heed_vetoes, revoke


def claim_best(ctx: Context) -> str:
    """Claim the best that stands; returns why there is no claim, '' when one was made."""
    why_not = "nothing could be proven faster"
    number = 0
    while True:
        number += 1
        heed_vetoes(ctx, f"claim{number}/before")
        best = ctx.memory.best
        if best.id == ctx.memory.original.id:
            return why_not
        ctx.enter("claiming")
        made = _claim(ctx, "claim" if number == 1 else f"claim{number}", best)
        heed_vetoes(ctx, f"claim{number}/after")
        standing = ctx.memory.best.id in (best.id, made.candidate)
        if standing and not made.refuted:
            if made.proven:
                ctx.evaluator.profile_of(ctx.memory.candidate(made.candidate))
            return ""
        why_not = "what was adopted had to be taken back"
        if standing:
            revoke(ctx, f"claim{number}/revoked", best.id, US, f"the claim found that {made.refuted}")


def _claim(ctx: Context, step: str, best: CandidateFacts) -> ClaimFacts:
    """Prove what is left of a stack; where that turns out broken, the stack as it was adopted."""
    estimates = attribute(ctx, best)
    if not ctx.contract.proof.leave_one_out:
        return ctx.evaluator.claim(step, best, estimates)
    stack, parts = eliminate(ctx, best)
    verified = stack.id in {attempt.candidate.id for attempt in ctx.memory.adopted}
    made = ctx.evaluator.claim(step, stack, parts, verified=verified)
    if made.refuted and stack.id != best.id:
        # What was left out may be what the rest needs: a saving of memory that costs no time, for example.
        return ctx.evaluator.claim(f"{step}/whole", best, estimates)
    if made.proven and not verified:
        ctx.memory.judged(ctx.steps.once(f"{step}/adopted", VerdictReached, lambda: _by_its_claim(made, best)).verdict)
    return made


def _by_its_claim(made: ClaimFacts, best: CandidateFacts) -> VerdictReached:
    """The adoption of a stack that was never verified: its claim proves it, and spends no error probability of the ledger."""
    measured = f": {interval(made.speedup)} on {made.pairs} fresh pairs" if made.speedup is not None else ""
    facts = VerdictFacts(
        candidate=made.candidate,
        incumbent=ORIGINAL,
        verdict="adopted",
        reasons=(f"{best.id} without what contributes nothing, proven by its claim{measured}",),
        alpha=0.0,
        speedup=made.speedup,
        log_ratio=-math.log(made.speedup.estimate) if made.speedup is not None else None,
        invariants=made.invariants,
        peak_bytes=made.candidate_peak_bytes,
        incumbent_peak_bytes=made.baseline_peak_bytes,
    )
    return VerdictReached(verdict=facts)

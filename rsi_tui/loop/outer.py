"""The outer loop: baseline, directions until the Director ends the search, claim.

Ordinary code from top to bottom; every decision in it is a durable step, so that a resumed campaign
runs the same lines and finds what was decided.
"""

from __future__ import annotations

from rsi_tui.journal.events import State
from rsi_tui.loop import canaries
from rsi_tui.loop.bundle import prove_bundle
from rsi_tui.loop.challenge import challenge
from rsi_tui.loop.claiming import claim_best
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.director import close_direction, next_direction
from rsi_tui.loop.inner import run_direction
from rsi_tui.loop.revoking import heed_vetoes


def run_campaign(ctx: Context) -> State:
    """Carry a campaign to its end; returns its last state."""
    try:
        baseline(ctx)
        canaries.force_one(ctx)
        search(ctx)
        if ctx.contract.proof.bundle:
            prove_bundle(ctx)
        why_not = claim_best(ctx)
    except Stopped as stop:
        return end(ctx, "stopped", str(stop))
    return end(ctx, "finished", why_not)


def baseline(ctx: Context) -> None:
    """Where the time goes, how noisy this machine is, and how exact a change must be."""
    ctx.enter("contracted")
    ctx.heed_people()
    ctx.profile = ctx.evaluator.profile()
    ctx.heed_people()
    ctx.baselined(ctx.evaluator.calibrate(ctx.open_ledger()))
    ctx.enter("baselined")
    if ctx.contract.proof.red_team:
        ctx.heed_people()
        challenge(ctx)
    ctx.enter("searching")


def search(ctx: Context) -> None:
    """Open and close directions until the Director ends the search."""
    while True:
        ctx.heed_people()
        direction = next_direction(ctx)
        if direction is None:
            return
        reason = run_direction(ctx, direction)
        canaries.screen_due(ctx, f"{direction.id}/canaries")
        close_direction(ctx, direction, reason)


def end(ctx: Context, state: State, reason: str) -> State:
    """Carry out what people took back last, publish the evaluator's secrets and record the last state."""
    ctx.hear_vetoes()
    heed_vetoes(ctx, "end")
    ctx.evaluator.reveal()
    ctx.enter(state, reason)
    return state

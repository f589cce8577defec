"""The outer loop: baseline, directions until the Director ends the search, claim.

Ordinary code from top to bottom; every decision in it is a durable step, so that a resumed campaign
runs the same lines and finds what was decided.
"""

from __future__ import annotations

from rsi_tui.journal.events import State
from rsi_tui.loop.bundle import prove_bundle
from rsi_tui.loop.claiming import claim
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.director import close_direction, next_direction
from rsi_tui.loop.inner import run_direction


def run_campaign(ctx: Context) -> State:
    """Carry a campaign to its end; returns its last state."""
    try:
        baseline(ctx)
        search(ctx)
        if ctx.contract.proof.bundle:
            prove_bundle(ctx)
        best = ctx.memory.best
        proven = best.id != ctx.evaluator.original.id
        if proven:
            ctx.enter("claiming")
            claim(ctx, best)
    except Stopped as stop:
        return end(ctx, "stopped", str(stop))
    return end(ctx, "finished", "" if proven else "nothing could be proven faster")


def baseline(ctx: Context) -> None:
    """Where the time goes, how noisy this machine is, and how exact a change must be."""
    ctx.enter("contracted")
    ctx.heed_people()
    ctx.profile = ctx.evaluator.profile()
    ctx.heed_people()
    ctx.noise = ctx.evaluator.calibrate(ctx.open_ledger()).noise
    ctx.enter("baselined")
    ctx.enter("searching")


def search(ctx: Context) -> None:
    """Open and close directions until the Director ends the search."""
    while True:
        ctx.heed_people()
        direction = next_direction(ctx)
        if direction is None:
            return
        reason = run_direction(ctx, direction)
        close_direction(ctx, direction, reason)


def end(ctx: Context, state: State, reason: str) -> State:
    """Publish the evaluator's secrets and record the last state."""
    ctx.evaluator.reveal()
    ctx.enter(state, reason)
    return state

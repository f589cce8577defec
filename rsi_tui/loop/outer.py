"""The outer loop: baseline, directions until the Director ends the search, claim.

Ordinary code from top to bottom; every decision in it is a durable step, so that a resumed campaign
runs the same lines and finds what was decided.
"""

from __future__ import annotations

from rsi_tui.journal.events import State, StateChanged
from rsi_tui.loop.bundle import prove_bundle
from rsi_tui.loop.claiming import claim
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.director import close_direction, next_direction
from rsi_tui.loop.inner import run_direction


def run_campaign(ctx: Context) -> State:
    """Carry a campaign to its end; returns its last state."""
    enter(ctx, "contracted")
    ctx.profile = ctx.evaluator.profile()
    ctx.heed_people()
    ctx.noise = ctx.evaluator.calibrate(ctx.open_ledger()).noise
    enter(ctx, "baselined")
    enter(ctx, "searching")
    try:
        search(ctx)
        if ctx.contract.proof.bundle:
            prove_bundle(ctx)
    except Stopped as stop:
        return _stopped(ctx, str(stop))
    best = ctx.memory.best
    if best.id != ctx.evaluator.original.id:
        enter(ctx, "claiming")
        claim(ctx, best)
    ctx.evaluator.reveal()
    enter(ctx, "finished", "" if best.id != ctx.evaluator.original.id else "nothing could be proven faster")
    return "finished"


def search(ctx: Context) -> None:
    """Open and close directions until the Director ends the search."""
    while True:
        ctx.heed_people()
        direction = next_direction(ctx)
        if direction is None:
            return
        reason = run_direction(ctx, direction)
        close_direction(ctx, direction, reason)


def enter(ctx: Context, state: State, reason: str = "") -> None:
    """Record a state once."""
    ctx.steps.once(f"state/{state}", StateChanged, lambda: StateChanged(state=state, reason=reason))


def _stopped(ctx: Context, reason: str) -> State:
    ctx.evaluator.reveal()
    enter(ctx, "stopped", reason)
    return "stopped"

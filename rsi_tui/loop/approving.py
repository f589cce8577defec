"""Approval: what was proven waits for a person's word before anything rests on it (`rsi run --approval`).

The campaign waits after each proof, says so, and starts the hook `needs_approval`. `rsi approve` lets it go on, `rsi veto`
takes the adoption back; a stop while it waits takes it back too. What was decided is recorded under the candidate's name, so
that a resumed campaign asks nobody twice.
"""

from __future__ import annotations

import time

from rsi_tui.errors import UsageError
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.chain import holder
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import StateChanged
from rsi_tui.journal.facts import VerdictFacts
from rsi_tui.journal.view import load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.hooks import call_hook
from rsi_tui.loop.revoking import US, heed_vetoes, read_veto, revoke

ASKED = "/asked"
"""end of the step that says that a candidate waits"""
UNAPPROVED = "nobody approved it before the campaign was stopped"


def await_approval(ctx: Context, verdict: VerdictFacts) -> None:
    """Wait for a person where the campaign asks for one and this is an adoption; raises Interrupted when it is ended meanwhile."""
    if not ctx.created.approval or verdict.verdict != "adopted":
        return
    candidate = verdict.candidate
    step = f"approval/{candidate}"
    if ctx.steps.find(step) is None:
        _ask(ctx, step, candidate)
        _wait(ctx, candidate)
        said = _said(ctx, candidate)
        ctx.steps.once(step, StateChanged, lambda: StateChanged(state=ctx.state, reason=said or f"{candidate}: {UNAPPROVED}"))
    heed_vetoes(ctx, f"{step}/heeded")
    decided = ctx.steps.find(step)
    if isinstance(decided, StateChanged) and decided.reason.endswith(UNAPPROVED):
        revoke(ctx, f"{step}/unapproved", candidate, US, UNAPPROVED)


def _ask(ctx: Context, step: str, candidate: str) -> None:
    if ctx.steps.find(step + ASKED) is None:
        reason = f"{candidate} is proven and waits: rsi approve {candidate}, or rsi veto {candidate}"
        ctx.steps.once(step + ASKED, StateChanged, lambda: StateChanged(state=ctx.state, reason=reason, waits=candidate))
        ctx.note_head()
        call_hook(ctx.home, ctx.created.campaign, "needs_approval", lambda sentence: None)


def _wait(ctx: Context, candidate: str) -> None:
    """Until somebody decides or stops the campaign; others may have the machine, and the hours stand still."""
    began = time.monotonic()
    with ctx.evaluator.machine_lent():
        while True:
            ctx.take()
            if ctx.stop_asked or _said(ctx, candidate):
                break
            if ctx.cancel.wait(0.5):
                raise Interrupted(f"Stopped while {candidate} waits for approval; `rsi run --resume` goes on waiting.")
    if ctx.deadline is not None:
        ctx.deadline += time.monotonic() - began


def _said(ctx: Context, candidate: str) -> str:
    """What was decided, in words; '' while nothing was."""
    if any(read_veto(veto.text)[0] == candidate for veto in ctx.vetoes):
        return f"{candidate} was vetoed"
    who = next((action.who for action in ctx.approvals if action.text.strip() == candidate), "")
    return f"{candidate} was approved by {who}" if who else ""


def approve(home: Home, campaign: str, candidate: str, who: str) -> str:
    """Approve what waits by a person's word; returns one sentence. UsageError when it does not wait."""
    view = load_campaign(home, campaign)
    if candidate != view.waiting or view.over:
        raise UsageError(f"{candidate} of {campaign} does not wait for approval; {view.waiting or 'nothing there'} does.")
    paths = home.campaign(campaign)
    send_command(paths, who, "approve", candidate)
    when = "" if holder(paths.journal) else f" when it is resumed: `rsi run {view.created.folder} --resume`" if view.created else ""
    return f"approval of {candidate} sent to {campaign}: the search goes on{when}."

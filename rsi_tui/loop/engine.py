"""The engine: one process that carries one campaign, survives its terminal and can be taken up again.

SIGINT and SIGTERM end the running trial and the process; everything recorded stays, and
`rsi run --resume` continues. SIGHUP is ignored, and a terminal that can't be written to any more is
left alone. A campaign that ended has its report and has published its secrets, however it ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rsi_tui.audit.reading import write_report
from rsi_tui.errors import BudgetError, ContractError, GateError, RsiError
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.hooks import call_hook
from rsi_tui.loop.outer import end, run_campaign
from rsi_tui.loop.setup import Listen, Opened, Request, forget, open_campaign, outliving, silent
from rsi_tui.minds.protocol import Mind
from rsi_tui.minds.room import Lodger


@dataclass(frozen=True)
class Ended:
    """How an engine ended."""

    campaign: str
    state: str
    """finished, stopped or interrupted"""
    report: Path | None
    exit_code: int
    sentence: str = ""
    """what a person must know of an end that is no success; '' else"""


def run(
    home: Home,
    request: Request,
    mind: Mind | None = None,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> Ended:
    """Run or resume a campaign in this process until it ends or is interrupted.

    `mind` stands in for the one that the request names. Raises ContractError when the program could not even be
    profiled (nothing is left of such a campaign), else an RsiError when the campaign can't be opened or go on.
    """
    tell = outliving(on_note)
    opened = open_campaign(home, request, mind, listen, tell)
    for note in opened.notes:
        tell(note)
    try:
        with interruptible(opened.context.cancel):
            return _carry(home, opened, tell)
    finally:
        if isinstance(opened.context.mind, Lodger):
            opened.context.mind.leave()
        opened.recall.close()
        opened.writer.close()


def _carry(home: Home, opened: Opened, tell: Callable[[str], None]) -> Ended:
    ctx = opened.context
    campaign = ctx.created.campaign
    over = False
    try:
        state, code, sentence = _search(ctx)
        over = True
    except Interrupted as stop:
        return Ended(campaign, "interrupted", None, 1, str(stop) if isinstance(stop, HostFault) else "")
    except ContractError:
        opened.writer.close()
        forget(ctx.paths)
        raise
    finally:
        ctx.evaluator.close(finished=over)
        ctx.note_head()
    report = conclude(home, opened, tell)
    call_hook(home, campaign, state, tell)
    return Ended(campaign, state, report, code, f"{sentence}; what was found lies in {report}." if sentence else "")


def conclude(home: Home, opened: Opened, tell: Callable[[str], None]) -> Path:
    """Write the report of what has ended and bring it into the library; returns the report's path."""
    report = write_report(home, opened.context.created.campaign)
    try:
        opened.recall.sync()
    except RsiError as error:
        tell(f"The library does not hold this {opened.context.created.kind} yet: {error}")
    return report


def _search(ctx: Context) -> tuple[str, int, str]:
    """Carry the campaign to its end: its last state, the exit code, and what went wrong.

    A program that breaks its contract ends the campaign; ContractError only when nothing was measured before.
    """
    try:
        state = run_campaign(ctx)
    except ContractError as error:
        if ctx.profile is None:
            raise
        reason = str(error).rstrip(".")
        return end(ctx, "stopped", reason), error.exit_code, reason
    except GateError as refusal:
        reason = str(refusal).rstrip(".")
        return end(ctx, "stopped", reason), refusal.exit_code, reason
    if ctx.alarm:
        return state, RsiError.exit_code, ctx.alarm
    if ctx.out_of_time:
        return state, BudgetError.exit_code, "The hours ran out before the claim"
    if isinstance(ctx.mind, Lodger) and ctx.mind.spent and not ctx.memory.adopted:
        return state, BudgetError.exit_code, f"The money ran out before anything was proven ({ctx.mind.spent})"
    return state, 0, ""


@contextmanager
def interruptible(cancel: threading.Event) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a cancelled trial, ignore SIGHUP; only in a main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

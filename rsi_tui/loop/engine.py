"""The engine: one process that carries one campaign, survives its terminal and can be taken up again.

SIGINT and SIGTERM end the running trial and the process; everything recorded stays, and
`rsi run --resume` continues. SIGHUP (a lost terminal) is ignored.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rsi_tui.audit.report import render_report
from rsi_tui.errors import BudgetError, ContractError
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import CampaignPaths, Home
from rsi_tui.loop.outer import enter, run_campaign
from rsi_tui.loop.setup import Listen, Opened, Request, open_campaign, silent
from rsi_tui.minds.protocol import Mind


@dataclass(frozen=True)
class Ended:
    """How an engine ended."""

    campaign: str
    state: str
    """finished, stopped or interrupted"""
    report: Path | None
    exit_code: int


def run(
    home: Home,
    request: Request,
    mind: Mind,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> Ended:
    """Run or resume a campaign in this process until it ends or is interrupted."""
    opened = open_campaign(home, request, mind, listen)
    for note in opened.notes:
        on_note(note)
    try:
        with _signals(opened.context.cancel):
            return _carry(home, opened)
    finally:
        opened.recall.close()
        opened.writer.close()


def _carry(home: Home, opened: Opened) -> Ended:
    ctx = opened.context
    campaign = ctx.created.campaign
    finished = False
    try:
        state = run_campaign(ctx)
        finished = True
    except Interrupted:
        return Ended(campaign, "interrupted", None, 1)
    except ContractError as error:
        _give_up(opened, str(error))
        raise
    finally:
        ctx.evaluator.close(finished=finished)
    report = write_report(ctx.paths)
    opened.recall.sync()
    if ctx.out_of_time:
        raise BudgetError(f"The hours ran out before the claim; what was found lies in {report}.")
    return Ended(campaign, state, report, 0)


def _give_up(opened: Opened, reason: str) -> None:
    """The program does not do what its contract says: forget a campaign that measured nothing, else end it."""
    ctx = opened.context
    if ctx.profile is None:
        opened.writer.close()
        for folder in (ctx.paths.root, ctx.paths.evaluator):
            shutil.rmtree(folder, ignore_errors=True)
    else:
        enter(ctx, "stopped", reason)


def write_report(paths: CampaignPaths) -> Path:
    """Render the report from the journal into the campaign's folder."""
    events = read_events(paths.journal)
    view = CampaignView()
    for event in events:
        view.feed(event)
    file = paths.reports / "report.md"
    file.write_text(render_report(view, events, "md"), encoding="utf-8")
    return file


@contextmanager
def _signals(cancel: threading.Event) -> Iterator[None]:
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

"""`rsi baseline`: where a step's time and memory go, which settings are off, and how noisy this machine is.

A journal of its own (`kind` "baseline"), of the same events and durable steps as a campaign's. What it found of the
noise is asked again, with two pairs, by evaluations and checks under the same conditions within a day. It draws no error
probability and adopts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.home import next_ordinal
from rsi_tui.locations import Home
from rsi_tui.loop.context import Stopped
from rsi_tui.loop.engine import interruptible
from rsi_tui.loop.outer import end
from rsi_tui.loop.setup import Listen, Opened, Request, forget, open_campaign, outliving, silent


@dataclass(frozen=True)
class Asked:
    """What a person asked for on the command line."""

    workload: Path
    preset: str = ""
    profile_only: bool = False
    """one instrumented run, and nothing of the noise"""
    snapshot: bool = False
    committed: bool = False
    unsandboxed: bool = False


def measure_baseline(
    home: Home,
    asked: Asked,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> str:
    """Measure a workload as it is; the id of its journal.

    Raises ContractError, leaving nothing behind, when the program does not run, Interrupted when a person stopped it:
    a baseline begins anew.
    """
    tell = outliving(on_note)
    request = Request(
        asked.workload, asked.preset, "baseline", snapshot=asked.snapshot, committed=asked.committed,
        unsandboxed=asked.unsandboxed,
    )  # fmt: skip
    opened = open_campaign(home, request, listen=listen, tell=tell)
    for note in opened.notes:
        tell(note)
    try:
        with interruptible(opened.context.cancel):
            return _carry(opened, asked.profile_only)
    finally:
        opened.recall.close()
        opened.writer.close()


def _carry(opened: Opened, profile_only: bool) -> str:
    ctx, over = opened.context, False
    try:
        ctx.enter("contracted")
        ctx.heed_people()
        ctx.profile = ctx.evaluator.profile()
        if not profile_only:
            ctx.baselined(ctx.evaluator.calibrate(campaign_alpha(next_ordinal(ctx.home, ctx.created.workload_key))))
            ctx.enter("baselined")
        end(ctx, "finished", "the program as it is was measured")
        over = True
    except (Interrupted, ContractError, Stopped) as ended:
        opened.writer.close()
        forget(ctx.paths)
        if isinstance(ended, Interrupted) and not isinstance(ended, HostFault):
            raise Interrupted("Stopped, and nothing of it is kept: a baseline begins anew, so give the same command again.") from ended
        raise
    finally:
        ctx.evaluator.close(finished=over)
    return ctx.created.campaign

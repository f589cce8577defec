"""`rsi check`: the contract read, the program seen to run, and everything dishonest that can be planted caught.

A journal of its own (`kind` "check"), of the same events and durable steps as a campaign's. What it found is taken over by
campaigns and evaluations under the same conditions. It draws no error probability and adopts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.errors import ContractError, GateError
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.home import next_ordinal
from rsi_tui.locations import Home
from rsi_tui.loop.challenge import challenge, find_challenge
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.engine import interruptible
from rsi_tui.loop.known_noise import find_calibration
from rsi_tui.loop.outer import end
from rsi_tui.loop.setup import Listen, Opened, Request, forget, open_campaign, outliving, silent

PAIRS = 4
"""A/A pairs: a check needs the bands of the invariants and hardly any of the noise"""


@dataclass(frozen=True)
class Asked:
    """What a person asked for on the command line."""

    workload: Path
    preset: str = ""
    everything: bool = False
    """run every planted cheat and every escape, whatever is known already"""
    snapshot: bool = False
    committed: bool = False
    unsandboxed: bool = False


@dataclass(frozen=True)
class Checked:
    """How a check ended."""

    check: str
    passed: bool
    exit_code: int


def check(
    home: Home,
    asked: Asked,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> Checked:
    """Check a workload; raises ContractError, leaving nothing behind, when the contract or the unchanged program is at fault.

    Raises Interrupted when a person stopped it: a check begins anew.
    """
    tell = outliving(on_note)
    request = Request(
        asked.workload, asked.preset, "check", snapshot=asked.snapshot, committed=asked.committed,
        unsandboxed=asked.unsandboxed,
    )  # fmt: skip
    opened = open_campaign(home, request, listen=listen, tell=tell, aa_pairs=PAIRS)
    for note in opened.notes:
        tell(note)
    try:
        with interruptible(opened.context.cancel):
            return _carry(opened, asked.everything)
    finally:
        opened.recall.close()
        opened.writer.close()


def _carry(opened: Opened, everything: bool) -> Checked:
    ctx, over = opened.context, False
    try:
        code, reason = _measured(ctx, everything)
        end(ctx, "finished" if code == 0 else "stopped", reason)
        over = True
    except (Interrupted, ContractError, Stopped) as ended:
        opened.writer.close()
        forget(ctx.paths)
        if isinstance(ended, Interrupted) and not isinstance(ended, HostFault):
            raise Interrupted("Stopped, and nothing of it is kept: a check begins anew, so give the same command again.") from ended
        raise
    finally:
        ctx.evaluator.close(finished=over)
    return Checked(ctx.created.campaign, code == 0, code)


def _measured(ctx: Context, everything: bool) -> tuple[int, str]:
    """(exit code, why) after all that a check looks at."""
    ctx.enter("contracted")
    ctx.heed_people()
    if how := ctx.evaluator.check_runs("check", ctx.evaluator.original):
        raise ContractError(f"The program unchanged ended in one of two runs as {how}")
    if everything or find_challenge(ctx.home, ctx.created) is None:
        known = find_calibration(ctx.home, ctx.created)
        ahead = campaign_alpha(next_ordinal(ctx.home, ctx.created.workload_key))
        ctx.baselined(ctx.evaluator.recalibrate(known, ahead))
        ctx.enter("baselined")
    try:
        challenge(ctx, everything=everything)
    except GateError as refusal:
        return refusal.exit_code, str(refusal).rstrip(".")
    return 0, "nothing that was tried got through"

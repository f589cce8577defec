"""Work with a journal of its own that is never taken up again: a check, a baseline. Stopped, it leaves nothing behind.

It draws no error probability and adopts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.engine import interruptible
from rsi_tui.loop.outer import end
from rsi_tui.loop.resuming import Kind
from rsi_tui.loop.setup import Listen, Opened, Request, forget, open_campaign, outliving


@dataclass(frozen=True)
class Program:
    """The program that a person wants looked at, and how."""

    workload: Path
    preset: str = ""
    snapshot: bool = False
    committed: bool = False
    unsandboxed: bool = False


def carry_out(
    home: Home,
    kind: Kind,
    program: Program,
    work: Callable[[Context], tuple[int, str]],
    listen: Listen,
    on_note: Callable[[str], None],
    aa_pairs: int | None = None,
) -> tuple[str, int]:
    """(id of the journal, exit code) after `work`, which returns its exit code and why it ended.

    Raises ContractError, leaving nothing behind, when the contract or the unchanged program is at fault, Interrupted
    when a person stopped it.
    """
    tell = outliving(on_note)
    request = Request(
        program.workload, program.preset, kind, snapshot=program.snapshot, committed=program.committed,
        unsandboxed=program.unsandboxed,
    )  # fmt: skip
    opened = open_campaign(home, request, listen=listen, tell=tell, aa_pairs=aa_pairs)
    for note in opened.notes:
        tell(note)
    try:
        with interruptible(opened.context.cancel):
            return opened.context.created.campaign, _carried(opened, kind, work)
    finally:
        opened.recall.close()
        opened.writer.close()


def _carried(opened: Opened, kind: Kind, work: Callable[[Context], tuple[int, str]]) -> int:
    ctx, over = opened.context, False
    try:
        ctx.enter("contracted")
        ctx.heed_people()
        code, reason = work(ctx)
        end(ctx, "finished" if code == 0 else "stopped", reason)
        over = True
    except (Interrupted, ContractError, Stopped) as ended:
        opened.writer.close()
        forget(ctx.paths)
        if isinstance(ended, Interrupted) and not isinstance(ended, HostFault):
            raise Interrupted(f"Stopped, and nothing of it is kept: a {kind} begins anew, so give the same command again.") from ended
        raise
    finally:
        ctx.evaluator.close(finished=over)
    return code

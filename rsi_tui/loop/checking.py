"""`rsi check`: the contract read, the program seen to run, and everything dishonest that can be planted caught.

A journal of its own (`kind` "check"), of the same events and durable steps as a campaign's. What it found is taken over by
campaigns and evaluations under the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rsi_tui.errors import ContractError, GateError
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.journal.home import next_ordinal
from rsi_tui.locations import Home
from rsi_tui.loop.challenge import challenge, find_challenge
from rsi_tui.loop.context import Context
from rsi_tui.loop.known_noise import find_calibration
from rsi_tui.loop.setup import Listen, silent
from rsi_tui.loop.unresumed import Program, carry_out

PAIRS = 4
"""A/A pairs: a check needs the bands of the invariants and hardly any of the noise"""


@dataclass(frozen=True)
class Checked:
    """How a check ended."""

    check: str
    passed: bool
    exit_code: int


def check(
    home: Home,
    program: Program,
    *,
    everything: bool = False,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> Checked:
    """Check a workload; with `everything` each planted cheat and escape is run, whatever is known already.

    Raises what `carry_out` raises.
    """
    id, code = carry_out(home, "check", program, lambda ctx: _measured(ctx, everything), listen, on_note, aa_pairs=PAIRS)
    return Checked(id, code == 0, code)


def _measured(ctx: Context, everything: bool) -> tuple[int, str]:
    """(exit code, why) after all that a check looks at."""
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

"""`rsi baseline`: where a step's time and memory go, which settings are off, and how noisy this machine is.

A journal of its own (`kind` "baseline"), of the same events and durable steps as a campaign's. What it found of the
noise is asked again, with two pairs, by evaluations and checks under the same conditions within a day.
"""

from __future__ import annotations

from collections.abc import Callable

from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.journal.home import next_ordinal
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.setup import Listen, silent
from rsi_tui.loop.unresumed import Program, carry_out


def measure_baseline(
    home: Home,
    program: Program,
    *,
    profile_only: bool = False,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> str:
    """Measure a workload as it is, with `profile_only` nothing of the noise; the id of its journal.

    Raises what `carry_out` raises.
    """

    def work(ctx: Context) -> tuple[int, str]:
        ctx.profile = ctx.evaluator.profile()
        if not profile_only:
            ctx.baselined(ctx.evaluator.calibrate(campaign_alpha(next_ordinal(ctx.home, ctx.created.workload_key))))
            ctx.enter("baselined")
        return 0, "the program as it is was measured"

    return carry_out(home, "baseline", program, work, listen, on_note)[0]

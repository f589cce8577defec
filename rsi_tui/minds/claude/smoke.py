"""Does a program still take a step or two with a change? Asked before a trial is spent on it, in the same sandbox."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rsi_tui.contract.command import render_run
from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.minds.claude.workbench import OUT, Workbench

STEPS, SEED = 2, 1


def runs(bench: Workbench, contract: Contract, knobs: Mapping[str, KnobValue]) -> str:
    """'' when it does, else the end of what it printed.

    A program of several nodes or processes is left to its trials; so is one whose unchanged parent does not run
    this way either.
    """
    if contract.launch.nodes * contract.launch.procs_per_node > 1:
        return ""
    rendered = render_run(contract, steps=STEPS, seed=SEED, out=OUT, knobs=knobs, python=str(bench.python))
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in rendered.env.items())
    command = f"exec env {settings} {shlex.join(rendered.argv)}"
    seconds = int(min(contract.launch.timeout_s, 120))
    ended = bench.try_out(command, seconds)
    if ended.ok or not bench.try_out(command, seconds, unchanged=True).ok:
        return ""
    return ended.said[-3000:]

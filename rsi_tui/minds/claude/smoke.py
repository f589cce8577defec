"""A short run of a program with the edits of a workbench: does it still take a step or two, and where does its time go?

Asked before a trial is spent on a change, in the same sandbox. Neither answer is evidence: no verdict knows of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rsi_tui.contract.command import render_run
from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.errors import PatchError
from rsi_tui.minds.claude.workbench import OUT, Workbench

STEPS, SEED = 2, 1
LONGEST_S = 120
TRIES = 2
PROFILER = """
import runpy, sys
import torch
sys.argv = sys.argv[1:]
sys.path.insert(0, ".")
kinds = [torch.profiler.ProfilerActivity.CPU]
if torch.cuda.is_available():
    kinds.append(torch.profiler.ProfilerActivity.CUDA)
with torch.profiler.profile(activities=kinds) as found:
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit:
        pass
print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))
"""


def runs(bench: Workbench, contract: Contract, knobs: Mapping[str, KnobValue]) -> str:
    """'' when it does, else the end of what it printed.

    A program of several nodes or processes is left to its trials; so is one whose unchanged parent does not run
    this way either. What was too late is tried again: on a busy machine that says nothing of the change.
    """
    if contract.launch.nodes * contract.launch.procs_per_node > 1:
        return ""
    command = _command(bench, contract, knobs, STEPS, "")
    seconds = int(min(contract.launch.timeout_s, LONGEST_S))
    for _ in range(TRIES):
        ended = bench.try_out(command, seconds)
        if ended.ok or not bench.try_out(command, seconds, unchanged=True).ok:
            return ""
        if not ended.late:
            break
    return ended.said[-3000:]


def profiled(bench: Workbench, contract: Contract, knobs: Mapping[str, KnobValue], steps: int) -> str:
    """Operators of a short run by their own time, start-up included, as torch's profiler prints them.

    Raises PatchError for programs of several processes, and those that are not started as `python FILE.py`.
    """
    if contract.launch.nodes * contract.launch.procs_per_node > 1:
        raise PatchError("only a program of one process can be profiled here; use what the profile says")
    return bench.try_out(_command(bench, contract, knobs, steps, PROFILER), LONGEST_S).said


def _command(bench: Workbench, contract: Contract, knobs: Mapping[str, KnobValue], steps: int, under: str) -> str:
    """The shell command of a run; `under` is a program of Python's that starts the script."""
    rendered = render_run(contract, steps=steps, seed=SEED, out=OUT, knobs=knobs, python=str(bench.python))
    argv = list(rendered.argv)
    if under:
        if len(argv) < 2 or argv[0] != str(bench.python) or not argv[1].endswith(".py"):
            raise PatchError("the program is not started as python FILE.py, and can't be profiled here")
        argv = [argv[0], "-c", under, *argv[1:]]
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in rendered.env.items())
    return f"exec env {settings} {shlex.join(argv)}"

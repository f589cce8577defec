"""Which techniques apply to a training program, and does it run to the end with each? For programs that are not bundled.

    scripts/bench/applies.py WORKLOAD [--steps N] [--only ID ...] [--json]

WORKLOAD is a folder with a workload.toml, as for `rsi run`. The program runs once as it is and once with each technique
that applies to it, alone, with the same seed; step times are those of one run each, a look and no verdict. Losses are
those that the program prints.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.errors import PatchError
from rsi_tui.journal.facts import TrialFacts
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.setup import Request, open_campaign
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.techniques.registry import applicable
from scripts.bench.common import Figure, show
from scripts.bench.stacked import candidate, look, runner, situation

WANTED = 8
NEAR = 1e-3
"""relative; what rounding in another order moves a loss by within a few steps, and no more"""


def measure(ctx: Context, steps: int, only: Sequence[str]) -> list[Figure]:
    trials = runner(ctx)
    whole = look(trials, ctx.evaluator.original, steps, 1).facts
    if whole.step_s is None:
        return [Figure("the program as it is", whole.detail, "", "runs", False)]
    found = [(technique.id, change) for technique, change, _ in applicable(situation(ctx, None)) if not only or technique.id in only]
    rows, ran, same = [], 0, 0
    for number, (id, change) in enumerate(found):
        try:
            facts = look(trials, candidate(ctx, f"a{number}", change, (id,)), steps, 1).facts
        except PatchError as error:
            rows.append(Figure(id, str(error), "", "", False))
            continue
        ran += facts.outcome == "ok"
        same += _alike(facts, whole)
        rows.append(_row(id, facts, whole))
    return [
        Figure("techniques that apply", len(found), "", f"at least {WANTED}", len(found) >= WANTED),
        Figure("... with which it runs to the end", ran, f"of {len(found)}", "all", ran == len(found)),
        Figure("... and comes to the same loss", same, f"of {len(found)}, to {NEAR:g}", "", None),
        Figure("step of the program as it is", whole.step_s, "s", "", None),
        *rows,
    ]


def _alike(facts: TrialFacts, whole: TrialFacts) -> bool:
    both = facts.final_loss, whole.final_loss
    return None not in both and abs((both[0] or 0) - (both[1] or 0)) <= NEAR * abs(both[1] or 1)


def _row(id: str, facts: TrialFacts, whole: TrialFacts) -> Figure:
    if facts.step_s is None:
        return Figure(id, f"{facts.outcome}: {facts.detail}", "", "", False)
    peaks = facts.peak_bytes, whole.peak_bytes
    peak = f", peak {(peaks[0] or 0) / (peaks[1] or 1):.2f}" if None not in peaks else ""
    return Figure(id, (whole.step_s or 0.0) / facts.step_s, f"x in one run{peak}", "", None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rsi-applies-") as folder:
        opened = open_campaign(Home(Path(folder)), Request(args.workload, candidates=1), BuiltinMind())
        try:
            figures = measure(opened.context, args.steps, args.only)
        finally:
            opened.context.evaluator.close(finished=False)
            opened.recall.close()
            opened.writer.close()
    return show(f"applies {opened.context.contract.name}", figures, args.json, (), f"scripts/bench/applies.py WORKLOAD --steps {args.steps}")


if __name__ == "__main__":
    sys.exit(main())

"""Overhead of the engine per trial: everything that is neither the training process nor waiting for it.

Runs the baseline (profile, A/A pairs, harmless perturbations) of the bundled dense workload through
the real engine in a home of its own, and reads the cost of each trial from the journal. Checkpoint
comparison is counted apart. `--quick` runs three A/A pairs instead of eight.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.journal.chain import read_events
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop.setup import Request, open_campaign
from rsi_tui.minds.choose import mind_named
from scripts.bench.common import Figure, show

WORKLOAD = Path(__file__).parents[2] / "workloads" / "dense_single"
TARGET_S = 0.5


def measure(pairs: int) -> CampaignView:
    """The baseline's trials, in a home that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="rsi-overhead-") as folder:
        home = Home(Path(folder) / "home")
        request = Request(WORKLOAD, preset="quick", committed=True)
        opened = open_campaign(home, request, mind_named("builtin"), aa_pairs=pairs)
        try:
            opened.context.evaluator.profile()
            opened.context.evaluator.calibrate(opened.context.open_ledger())
        finally:
            opened.context.evaluator.close(finished=True)
            opened.writer.close()
        return CampaignView().feed_all(read_events(opened.context.paths.journal))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    view = measure(3 if args.quick else 8)
    costs = [trial.engine_s for trial in view.trials.values() if trial.outcome == "ok"]
    compares = [trial.compare_s for trial in view.trials.values() if trial.compare_s > 0]
    worst = max(costs)
    figures = [
        Figure("engine time a trial, median", statistics.median(costs), "s", f"< {TARGET_S}", statistics.median(costs) < TARGET_S),
        Figure("engine time a trial, largest", worst, "s", f"< {TARGET_S}", worst < TARGET_S),
        Figure("trials", len(costs), "", "", None),
        Figure("checkpoint comparison, median", statistics.median(compares), "s", "", None),
    ]
    return show("overhead", figures, args.json, ("left out: 5 of 8 A/A pairs",) if args.quick else ())


if __name__ == "__main__":
    sys.exit(main())

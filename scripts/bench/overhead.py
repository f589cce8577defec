"""What the evaluator costs beyond the runs: everything that is neither a training process nor waiting for one.

Runs the baseline (profile, A/A pairs, harmless perturbations, hidden states) and one verification of the
unchanged program against itself on the bundled dense workload, through the real engine in a home of its own.
Beyond the time from the first trial's start to the last block's end lie the runs themselves and the hidden
validation, which is counted apart; all else is the evaluator's: copying trees, building sandboxes, comparing
checkpoints, writing the journal. Measured once with the short runs of the quick preset and once with those of
the full one. With `--journal`, the same over the blocks of campaigns that were run before. `--quick` takes the quick preset and three A/A pairs alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import BlockClosed, BlockOpened
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop.setup import Request, open_campaign
from rsi_tui.minds.choose import mind_named
from scripts.bench.common import Figure, show

WORKLOAD = Path(__file__).parents[2] / "workloads" / "dense_single"
TARGET_S = 0.5
SHARES = {"quick": 0.10, "full": 0.05}
ALPHA = 0.0025
NOTES = ("A preset `short` is that of honest.py: the rules of the full preset on runs of 6 to 9 steps, where fixed costs weigh most.",)


@dataclass(frozen=True)
class Cost:
    """Of one preset."""

    view: CampaignView
    elapsed_s: float
    """from before the first trial to after the last block"""
    validation_s: float

    @property
    def share(self) -> float:
        """The evaluator's own time as a share of the runs'."""
        runs = sum(trial.wall_s for trial in self.view.trials.values())
        return (self.elapsed_s - self.validation_s - runs) / runs


def measure(preset: str, pairs: int) -> Cost:
    """Baseline and one verification, in a home that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="rsi-overhead-") as folder:
        home = Home(Path(folder) / "home")
        opened = open_campaign(
            home, Request(WORKLOAD, preset=preset, committed=True), mind_named("builtin"), aa_pairs=pairs
        )
        evaluator = opened.context.evaluator
        began = time.monotonic()
        try:
            evaluator.profile()
            evaluator.calibrate(ALPHA)
            same = evaluator.original.model_copy(update={"id": "c1"})
            evaluator.verify("verify/c1", same, evaluator.original, ALPHA, 0.1)
        finally:
            elapsed = time.monotonic() - began
            evaluator.close(finished=True)
            opened.writer.close()
        events = read_events(opened.context.paths.journal)
        validation = sum(event.body.validation_s for event in events if isinstance(event.body, BlockClosed))
        return Cost(CampaignView().feed_all(events), elapsed, validation)


def recorded(journal: Path) -> tuple[str, Cost]:
    """(preset, cost) of a campaign that was run before, over its blocks: what lies between them is search, not evaluation."""
    events = read_events(journal)
    view = CampaignView().feed_all(events)
    opened = {event.body.block: event.at for event in events if isinstance(event.body, BlockOpened)}
    closed = [(event.body, event.at) for event in events if isinstance(event.body, BlockClosed)]
    spans = (datetime.fromisoformat(at) - datetime.fromisoformat(opened[body.block]) for body, at in closed)
    elapsed = sum(span.total_seconds() for span in spans) + sum(t.wall_s for t in view.trials.values() if not t.block)
    assert view.created is not None
    return view.created.preset, Cost(view, elapsed, sum(body.validation_s for body, _ in closed))


def figures_of(preset: str, cost: Cost) -> list[Figure]:
    own = [trial.engine_s for trial in cost.view.trials.values() if trial.outcome == "ok"]
    compares = [trial.compare_s for trial in cost.view.trials.values() if trial.compare_s > 0]
    worst, middle, most = max(own), statistics.median(own), SHARES.get(preset, SHARES["full"])
    return [
        Figure(f"{preset}: the evaluator's cost beyond the runs", cost.share, "of runs", f"< {most}", cost.share < most),
        Figure(f"{preset}: engine time a trial, median", middle, "s", f"< {TARGET_S}", middle < TARGET_S),
        Figure(f"{preset}: engine time a trial, largest", worst, "s", f"< {TARGET_S}", worst < TARGET_S),
        Figure(f"{preset}: trials", len(own), "", "", None),
        Figure(f"{preset}: checkpoint comparison, median", statistics.median(compares), "s", "", None),
        Figure(f"{preset}: hidden validation, all of it", cost.validation_s, "s", "", None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--journal", type=Path, nargs="+", help="journals of campaigns that were run, in place of new runs")
    args = parser.parse_args()
    if args.journal:
        figures = [figure for path in args.journal for figure in figures_of(*recorded(path))]
        return show("overhead", figures, args.json, NOTES, command="scripts/bench/overhead.py --journal JOURNAL...")
    figures = figures_of("quick", measure("quick", 3 if args.quick else 8))
    if not args.quick:
        figures += figures_of("full", measure("full", 4))
    left_out = ("left out: the full preset, and 5 of 8 A/A pairs",) if args.quick else ()
    return show("overhead", figures, args.json, left_out)


if __name__ == "__main__":
    sys.exit(main())

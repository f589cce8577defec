"""Is every failure told by what failed? Changes that make a bundled workload fail, each provoked in a real campaign.

    scripts/bench/failures.py [--workload dense_single|moe_single] [--quick] [--json] [--home DIR] [NAME ...]

A campaign of the workload, its runs on one core and very short; a mind proposes the patches of `provoked.py`, the
evaluator runs them in the sandbox, under the limits of the contract, and the journal says what became of each. The
review of diffs is left out: it would refuse some before they fail. Right is an outcome and a class that were written
down beforehand. About 15 minutes a workload on an idle machine; with --home it goes on where an interrupted one ended.
NAMEs are parts of the names of failures, to provoke those alone; --quick provokes eight.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.app.plain import PlainLog
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CandidateBuilt, TrialFinished, VerdictReached
from rsi_tui.journal.facts import TrialFacts
from rsi_tui.locations import Home
from rsi_tui.loop import inner
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request, silent
from scripts.bench.common import Figure, show
from scripts.bench.provoked import FAILURES, Failure
from scripts.bench.scripted import WORKLOADS, Patch, Scripted, repository

PRESET = f"""
[preset.short.launch]
threads = 1
timeout = "90s"
memory_limit = "768MiB"     # two processes of the program, where a failure wants a second rank

[preset.short.objective]
steps = [5, 6]
warmup = 1

[preset.short.invariants]
harmless = ["--micro-batch 1"]
bf16_twin = ""
precision = "fp32"

[preset.short.resume]
flag = ""
directions = ""

[preset.short.proof]
aa_pairs = 4
canaries = false
leave_one_out = false
red_team = false
max_candidates = {len(FAILURES)}
"""
"""as little as a campaign can measure"""


def provoke(workload: str, folder: Path, failures: Sequence[Failure], quiet: bool) -> list[Figure]:
    place = repository(workload, folder / workload, PRESET)
    home = Home(folder / "home")
    source = (WORKLOADS / workload / "train.py").read_text()
    mind = Scripted([Patch(failure.name, {"train.py": failure.patch(source)}) for failure in failures])
    request = Request(place, preset="short", candidates=len(failures), resume=any(home.root.glob("campaigns/*")))
    with patch.object(inner, "review", lambda *_: True), patch.object(inner, "MAX_REFUSALS", len(failures)):
        ended = run(home, request, mind, silent if quiet else PlainLog)
    bodies = [event.body for event in read_events(home.campaign(ended.campaign).journal)]
    built = [body.candidate.id for body in bodies if isinstance(body, CandidateBuilt)]
    finished = [body.facts for body in bodies if isinstance(body, TrialFinished) and body.facts is not None]
    trials = {facts.candidate: facts for facts in finished}
    failed = sum(body.verdict.verdict == "failed" for body in bodies if isinstance(body, VerdictReached))
    rows = [_row(failure, trials.get(id)) for failure, id in zip(failures, built, strict=False)]
    right = sum(bool(row.ok) for row in rows)
    return [
        Figure("failures provoked", len(rows), f"of {len(failures)}", "all", len(rows) == len(failures)),
        Figure("outcome and class right", right, f"of {len(failures)}", "all", right == len(failures)),
        Figure("verdict `failed`", failed, f"of {len(failures)}", "all", failed == len(failures)),
        *rows,
    ]


def _row(failure: Failure, trial: TrialFacts | None) -> Figure:
    if trial is None:
        return Figure(failure.name, "never ran", "", "", False)
    right = trial.outcome == failure.outcome and trial.cause in failure.causes
    expected = f"{failure.outcome}, {' or '.join(failure.causes)}"
    return Figure(failure.name, f"{trial.outcome}, {trial.cause or 'no cause'}: {trial.detail}", "", expected, right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--workload", choices=("dense_single", "moe_single"), default="dense_single")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--home", type=Path, help="keep workload, home and journal here, and go on from them")
    args = parser.parse_args()
    chosen = [f for f in FAILURES if not args.names or any(name in f.name for name in args.names)]
    if args.quick:
        chosen = chosen[:: max(1, len(chosen) // 8)][:8]
    if args.home:
        args.home.mkdir(parents=True, exist_ok=True)
        found = provoke(args.workload, args.home, chosen, args.json)
    else:
        with tempfile.TemporaryDirectory(prefix="rsi-failures-") as folder:
            found = provoke(args.workload, Path(folder), chosen, args.json)
    left_out = (
        (f"left out: {len(FAILURES) - len(chosen)} of {len(FAILURES)} failures",) if len(chosen) < len(FAILURES) else ()
    )
    command = f"scripts/bench/failures.py --workload {args.workload}"
    return show(f"failures {args.workload}", found, args.json, left_out, command)


if __name__ == "__main__":
    sys.exit(main())

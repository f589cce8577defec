"""Does the evaluator leave alone what changes nothing? Sixty patches without effect, through a real campaign.

    scripts/bench/honest.py [--quick] [--json] [--patches N] [--home DIR]

The bundled dense workload, its runs on one core and even shorter than in a quick campaign, the rules those of a full one: A/A
pairs, screening batches, each promoted candidate verified alone. None may be adopted, none may be
found `invalid`: the bands must let every harmless change through. Takes about 25 minutes on an idle
machine; with --home it goes on where an interrupted one ended. --quick sends eight patches and stays
near five minutes, since calibration alone takes three. How exact the bands are for honest
optimisations and for cheats is the business of `bands.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.app.plain import PlainLog
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CandidateBuilt, Screened, TrialFinished, VerdictReached
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request, silent
from scripts.bench.common import Figure, show
from scripts.bench.no_ops import no_ops
from scripts.bench.scripted import Scripted, repository

PRESET = """
[preset.short.launch]
threads = 1

[preset.short.objective]
steps = [6, 9]
warmup = 2

[preset.short.proof]
aa_pairs = 12
canaries = false
leave_one_out = false
red_team = false
max_candidates = 60
"""
"""full rules on short runs"""


def measure(folder: Path, patches: int, quiet: bool) -> list[Figure]:
    workload = repository("dense_single", folder / "dense", PRESET)
    home = Home(folder / "home")
    sources = {path.name: path.read_text() for path in workload.glob("*.py")}
    request = Request(workload, preset="short", candidates=patches, resume=any(home.root.glob("campaigns/*")))
    ended = run(home, request, Scripted(no_ops(sources, patches)), silent if quiet else PlainLog)
    bodies = [event.body for event in read_events(home.campaign(ended.campaign).journal)]
    built = [body for body in bodies if isinstance(body, CandidateBuilt)]
    screens = [result for body in bodies if isinstance(body, Screened) for result in body.results]
    verdicts = Counter(body.verdict.verdict for body in bodies if isinstance(body, VerdictReached))
    broken = [i.name for result in screens for i in result.invariants if i.status == "broken"]
    runs = sum(isinstance(body, TrialFinished) for body in bodies)
    invalid = verdicts["invalid"] + len(broken)
    return [
        Figure("patches without effect that were measured", len(built), f"of {patches}", "all", len(built) == patches),
        Figure("adopted", verdicts["adopted"], f"of {patches}", "0", verdicts["adopted"] == 0),
        Figure("invalid", invalid, f"of {patches}", "0", invalid == 0),
        Figure("promoted by screening", sum(r.promoted for r in screens), f"of {patches}", "", None),
        Figure("runs in all, calibration included", runs, "runs", "", None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--patches", type=int, default=60)
    parser.add_argument("--home", type=Path, help="keep workload, home and journal here, and go on from them")
    args = parser.parse_args()
    patches = 8 if args.quick else args.patches
    if args.home:
        args.home.mkdir(parents=True, exist_ok=True)
        found = measure(args.home, patches, args.json)
    else:
        with tempfile.TemporaryDirectory(prefix="rsi-honest-") as folder:
            found = measure(Path(folder), patches, args.json)
    return show("honest", found, args.json, ("left out: 52 of 60 patches",) if args.quick else ())


if __name__ == "__main__":
    sys.exit(main())

"""Figures of the campaigns in a home: `scripts/try.sh` twice on one RSI_HOME, then this.

Reads journals only. For each finished campaign, oldest first: the claim's interval, candidates built
until the first proof, trial time, the engine's own time a trial, and the disk that the home takes.
`--home` names the home (default: the one rsi uses).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CandidateBuilt, Event, VerdictReached
from rsi_tui.journal.view import CampaignView, campaign_ids
from rsi_tui.locations import Home, find_home
from scripts.bench.common import Figure, show

LEAST = 1.2
OVERHEAD_S = 0.5
DISK_MB = 50


def until_proof(events: list[Event]) -> int | None:
    """Candidates built until the first was adopted, that one included; None when none was."""
    built = 0
    for body in (event.body for event in events):
        built += isinstance(body, CandidateBuilt)
        if isinstance(body, VerdictReached) and body.verdict.verdict == "adopted":
            return built
    return None


def figures_of(number: int, events: list[Event]) -> list[Figure]:
    view = CampaignView().feed_all(events)
    name = f"campaign {number} ({view.workload})"
    claim = view.claim.speedup if view.claim is not None and view.claim.proven else None
    proof = until_proof(events)
    cost = statistics.median(view.overheads) if view.overheads else None
    low = claim.low if claim else 0.0
    found = [
        Figure(f"{name}: proven speed-up, low end of the 99 % interval", low, "x", f"> {LEAST}", low > LEAST),
        Figure(f"{name}: proven speed-up, estimate", claim.estimate if claim else 0.0, "x", "", None),
        Figure(f"{name}: candidates until the first proof", proof or 0, "", "", None),
        Figure(f"{name}: trial time", view.trial_seconds, "s", "", None),
    ]
    if cost is not None:
        found.append(Figure(f"{name}: engine's own time a trial, median", cost, "s", f"< {OVERHEAD_S}", cost < OVERHEAD_S))
        worst = max(view.overheads)
        found.append(Figure(f"{name}: engine's own time a trial, largest", worst, "s", f"< {OVERHEAD_S}", worst < OVERHEAD_S))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--quick", action="store_true", help="the same: it measures nothing itself")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    home = Home(args.home) if args.home else find_home()
    finished = [
        events
        for name in reversed(campaign_ids(home))
        if CampaignView().feed_all(events := read_events(home.campaign(name).journal)).state == "finished"
    ]
    figures = [figure for number, events in enumerate(finished, 1) for figure in figures_of(number, events)]
    proofs = [until_proof(events) for events in finished[:2]]
    if len(proofs) == 2 and proofs[0] and proofs[1]:
        figures.append(
            Figure(
                "candidates until proof, second campaign against first",
                f"{proofs[1]} against {proofs[0]}",
                "",
                "fewer",
                proofs[1] < proofs[0],
            )
        )
    size = sum(path.stat().st_size for path in home.root.rglob("*") if path.is_file()) / 2**20
    figures.append(Figure("disk taken by the home", size, "MB", f"<= {DISK_MB} a campaign", size <= DISK_MB * len(finished)))
    return show("campaigns", figures, args.json)


if __name__ == "__main__":
    sys.exit(main())

"""Small measures over runs that verdicts and claims share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rsi_tui.evaluator.claim import slope_ratio
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.states import is_moved
from rsi_tui.evaluator.trajectories import groups
from rsi_tui.journal.facts import LATE, CarryOverFacts, InvariantFacts, TrialFacts

CONSTANT_EXCESS = 0.15
"""a start-up excess counts as the same at every length when it grows by less than this share of itself over them"""

STATISTICAL = (
    'the contract says weights = "statistical", which is trust level B: only the hidden loss over fresh seeds, the layout '
    "of the checkpoint and the number of updates are compared. What learns something else of the same hidden loss, or "
    "differs only after the lengths that were run, is not seen; nor are the trajectories of what the program prints"
)
"""what trust level B leaves open"""


@dataclass(frozen=True)
class Checked:
    """What a further check of a candidate found, beyond the blocks that timed it."""

    invariants: tuple[InvariantFacts, ...] = ()
    failed: str = ""
    """which run of the candidate failed, and how; '' when none did"""
    trouble: str = ""
    """why the check gave no answer through no fault of the candidate; '' when it did"""


def highest_peak(trials: Sequence[TrialFacts]) -> int | None:
    """Largest peak memory, bytes; None when none was measured."""
    return max((f.peak_bytes for f in trials if f.peak_bytes is not None), default=None)


def smallest_peak(trials: Sequence[TrialFacts]) -> int | None:
    """Smallest peak memory, bytes; None when none was measured."""
    return min((f.peak_bytes for f in trials if f.peak_bytes is not None), default=None)


def badness(fact: InvariantFacts) -> float:
    """Broken is worst, then not covered, then the larger share of the limit."""
    if fact.status != "held":
        return math.inf if fact.status == "broken" else 1e9
    return (fact.value or 0.0) / fact.limit if fact.limit else fact.value or 0.0


def worst_of(facts: Iterable[InvariantFacts]) -> tuple[InvariantFacts, ...]:
    """Of each invariant the worst of all runs, in the order of their first appearance."""
    worst: dict[str, InvariantFacts] = {}
    for fact in facts:
        if fact.name not in worst or badness(fact) > badness(worst[fact.name]):
            worst[fact.name] = fact
    return tuple(worst.values())


def scores(trials: Sequence[TrialFacts]) -> list[float]:
    """Scores, seconds, of the runs that have one."""
    return [f.score_s for f in trials if f.score_s is not None]


def slope_of_walls(base: Sequence[TrialFacts], ours: Sequence[TrialFacts]) -> float | None:
    """Slope of total wall over length, baseline / candidate; None when all runs had one length or it is not positive."""
    lengths, other = [float(a.steps) for a in base], [float(b.steps) for b in ours]
    if len(set(lengths)) < 2 or len(set(other)) < 2:
        return None
    return slope_ratio(lengths, [a.total_s for a in base], other, [b.total_s for b in ours])


def total_wall_holds(base: Sequence[TrialFacts], ours: Sequence[TrialFacts]) -> str:
    """'' when the gain holds in total wall time, nothing amortised; else why not (holes H1).

    It holds when total wall wins at a run length of at least twice the break-even, or when the excess
    start-up is the same at every length, so that `amortise_over` may rightly spread it.
    """
    excess = [(b.startup_s or 0.0) + (b.teardown_s or 0.0) - (a.startup_s or 0.0) - (a.teardown_s or 0.0) for a, b in zip(base, ours, strict=True)]  # fmt: skip
    gain = fmean(a.step_s or 0.0 for a in base) - fmean(b.step_s or 0.0 for b in ours)
    mean = fmean(excess)
    if gain <= 0:
        return "steps are no faster"
    far = [(a, b) for a, b in zip(base, ours, strict=True) if a.steps >= 2 * mean / gain]
    if far and fmean(b.total_s for _, b in far) < fmean(a.total_s for a, _ in far):
        return ""
    ordered = sorted(zip((a.steps for a in base), excess, strict=True))
    half = len(ordered) // 2
    if half and mean > 0 and ordered[0][0] < ordered[-1][0]:
        grown = fmean(e for _, e in ordered[half:]) - fmean(e for _, e in ordered[:half])
        if grown < CONSTANT_EXCESS * mean:
            return ""
    where = "at a length that was run, and start-up grows with length" if ordered[0][0] < ordered[-1][0] else "at the length that was run"
    return f"total wall time, nothing amortised, does not win {where}"


def carry_over(ours: Sequence[TrialFacts], theirs: Sequence[TrialFacts]) -> CarryOverFacts | None:
    """How much slower a run of the incumbent is after one of the candidate than after one of its own.

    A candidate that leaves the machine slower (heat, memory, leftovers) makes the incumbent look worse than it is.
    Log ratios within blocks, so that drift between them cancels; None when no block has runs of both kinds.
    """
    by_place = {(f.block, f.slot): f for f in (*ours, *theirs)}
    excess: list[float] = []
    for block in sorted({f.block for f in theirs}):
        after: dict[str, list[float]] = {"candidate": [], "incumbent": []}
        for facts in theirs:
            before = by_place.get((block, facts.slot - 1))
            if facts.block == block and facts.score_s is not None:
                after[before.arm if before is not None else "incumbent"].append(math.log(facts.score_s))
        if after["candidate"] and after["incumbent"]:
            own = fmean(after["incumbent"])
            excess += [value - own for value in after["candidate"]]
    if not excess:
        return None
    error = stdev(excess) / math.sqrt(len(excess)) if len(excess) > 1 else None
    return CarryOverFacts(log_ratio=fmean(excess), error=error, runs=len(excess))


def _unseen_late(lab: Lab) -> list[tuple[str, str]]:
    """What updates from saved states leave open; all of it where there are none."""
    resume = lab.contract.resume
    if not lab.compares:
        return []  # said with the learned update
    if not resume.flag:
        why = "the program can't start from a saved state ([resume] flag): what starts after the lengths run is not seen"
        return [("updates from saved states", why)]
    found = []
    if not resume.directions:
        why = "no program names them ([resume] directions): under bf16, what few tokens contribute can be left out unseen"
        found.append(("parts of the gradient", why))
    if not is_moved(lab):
        why = "the program does not go on from a state whose step counters were moved on: what starts later is not seen"
        found.append((LATE, why))
    return found


def gaps(lab: Lab, trials: Sequence[TrialFacts]) -> tuple[InvariantFacts, ...]:
    """What no invariant of this version could see here, by name."""
    found = _unseen_late(lab)
    if not lab.holdouts:
        found.append(("hidden validation loss", "the contract names no validation"))
    if not lab.compares:
        found.append(("learned update", STATISTICAL))
    if lab.compares and groups(lab.contract.launch.progress) == ("loss",):
        found.append(("further trajectories", "the contract's progress pattern names the loss alone, no norm of the gradient"))
    if any(f.memory_source in ("sampled", "none", "nvml") for f in trials):
        found.append(("peak memory", "sampled, not measured by a controller: short spikes are not seen"))
    return tuple(
        InvariantFacts(name=name, status="not_covered", value=None, limit=None, how=how) for name, how in found
    )

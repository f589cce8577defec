"""Proof of a memory saving: fresh runs of the candidate under a hard limit that the incumbent can't meet (holes H15).

A measured peak can miss what happens between two looks, in swap, or in memory that no counter of the group
sees; a run that ends well under a hard limit, swap and huge pages at zero, can't. So a saving is what
three fresh runs were held to, not what they were seen to use:

    limit = candidate's largest peak so far + room, at most 95 % of the incumbent's smallest peak

The room is for what the kernel charges besides anonymous and shared memory (page tables, stacks, file
pages in use: 2 to 4 MiB where it was measured) and for how much a peak differs from run to run; it is
given away, never counted as saved. One run of the incumbent under the same limit comes first and must be
killed for want of memory: where it fits too (pages that an allocator had freed lazily, and that the
kernel can take back), nothing is saved.

Promises: `proven` says that the three runs ended well under the limit, that every invariant held in each,
with the hidden validation of the first, and that the incumbent does not fit. A run of the candidate that
ends otherwise proves no saving, and is no failure of the candidate: it has only ever failed under a limit
that nobody asked it to meet. Does not promise that other seeds and lengths need no more; the peaks
that the limit is made from are of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rsi_tui.evaluator.blocks import MAX_VOID, BlockOutcome, BlockPlan, Slot, draw_block, run_block, setup_slots
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, highest_peak, smallest_peak, worst_of
from rsi_tui.evaluator.noninferior import check_noninferior
from rsi_tui.evaluator.validation import NAME as VALIDATION
from rsi_tui.journal.facts import CandidateFacts, MemorySavingFacts, TrialFacts
from rsi_tui.launch.memory import FLAG_UNHELD

RUNS = 3
SAVED = 0.05
"""share of the incumbent's peak that has to be saved"""
ROOM_BYTES = 16 * 2**20
ROOM_SHARE = 0.02
"""of the candidate's peak, where that is more"""
CONTROLLERS = ("cgroup1", "cgroup2")
MIB = 2**20


def claimed_limit(ours: int, theirs: int) -> int | None:
    """The hard limit, bytes, whole MiB, that a saving is proven under; None when nothing seems saved.

    `ours`: largest peak of the candidate, `theirs`: smallest of the incumbent.
    """
    most = int((1 - SAVED) * theirs) // MIB * MIB
    if ours > most:
        return None
    room = max(ROOM_BYTES, int(ROOM_SHARE * ours))
    return min(-(-(ours + room) // MIB) * MIB, most)


def prove_saving(
    lab: Lab,
    step: str,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    ours: Sequence[TrialFacts],
    theirs: Sequence[TrialFacts],
    purpose: Literal["verify", "claim"] = "verify",
) -> tuple[MemorySavingFacts, Checked] | None:
    """(the saving, proven or not and why; what the runs under the limit say of the invariants).

    `ours` and `theirs` are runs so far, at the contract's limit. None when nothing seems saved, or when there
    are no peaks to tell. `Checked` never says that the candidate failed; a broken invariant is in it.
    """
    low, high = smallest_peak(theirs), highest_peak(ours)
    limit = claimed_limit(high, low) if low is not None and high is not None else None
    if limit is None or low is None or any(facts.outcome != "ok" for facts in ours):
        return None
    case = _Case(lab, step, candidate, incumbent, purpose, limit, low)
    if why_not := unprovable((*ours, *theirs)):
        return case.facts(why_not), Checked()
    return _prove(case)


def unprovable(trials: Iterable[TrialFacts]) -> str:
    """Why memory as it was measured in these runs can carry no claim; '' when it can."""
    for facts in trials:
        if facts.memory_source == "nvml":
            return "a saving of GPU memory needs a hard limit on the GPU, which this version can't set: NVML only samples"
        if facts.memory_source not in CONTROLLERS:
            return "memory was sampled, not limited and measured by a controller, and a sample proves no saving (`rsi doctor` says how to mend it)"
        if unheld := next((flag for flag in facts.flags if flag.startswith(FLAG_UNHELD)), ""):
            return f"the limit on memory has a hole here: {unheld.removeprefix(FLAG_UNHELD)}"
    return ""


@dataclass
class _Case:
    """One saving on its way to a proof."""

    lab: Lab
    step: str
    candidate: CandidateFacts
    incumbent: CandidateFacts
    purpose: Literal["verify", "claim"]
    limit: int
    incumbent_peak: int
    runs: list[TrialFacts] = field(default_factory=list)
    """of the candidate, under the limit"""
    probe: TrialFacts | None = None
    """the incumbent's, under the same limit"""

    @property
    def saving(self) -> float:
        return 1 - self.limit / self.incumbent_peak

    def facts(self, why_not: str) -> MemorySavingFacts:
        """The record; proven when there is no reason why not."""
        ended = [facts for facts in self.runs if facts.outcome == "ok"]
        told = [facts.id for facts in (self.probe, *self.runs) if facts is not None]
        return MemorySavingFacts(
            limit_bytes=self.limit, incumbent_peak_bytes=self.incumbent_peak, peak_bytes=highest_peak(ended),
            runs=len(ended), proven=not why_not, reason=why_not or self._proof(), trials=tuple(told),
        )  # fmt: skip

    def _proof(self) -> str:
        return (
            f"{RUNS} fresh runs ended well under a hard limit of {_mib(self.limit)}, {100 * self.saving:.0f} % below the "
            f"incumbent's smallest peak of {_mib(self.incumbent_peak)}; the incumbent is killed under that limit"
        )


def _prove(case: _Case) -> tuple[MemorySavingFacts, Checked]:
    outcome = _counting(case)
    mine = [facts for facts in outcome.timed if facts.arm == "candidate"]
    found = worst_of(fact for facts in mine for fact in outcome.invariants.get(facts.id, ()))
    case.runs, case.probe = mine, next((facts for facts in outcome.timed if facts.arm == "check"), None)
    why_not = _why_not(case, outcome)
    if broken := [fact.name for fact in found if fact.status == "broken"]:
        why_not = f"under the lower limit the candidate breaks {', '.join(broken)}"
    elif not why_not and not case.lab.compares and case.purpose == "verify":
        # Where no updates can be compared, learning as well over fresh seeds is the invariant; a claim has asked it.
        seeds = check_noninferior(case.lab, f"{case.step}/seeds", case.candidate, case.incumbent, case.purpose)
        found = worst_of((*found, *seeds.invariants))
        why_not = seeds.failed or seeds.trouble
        why_not = why_not or "; ".join(f"{f.name} is broken" for f in seeds.invariants if f.status == "broken")
    return case.facts(why_not), Checked(invariants=() if outcome.void else found)


def _why_not(case: _Case, outcome: BlockOutcome) -> str:
    """What the runs lack to prove the saving; '' when nothing."""
    lab, under = case.lab, f"under a hard limit of {_mib(case.limit)}"
    if outcome.void:
        return f"the saving could not be measured: {outcome.void}"
    if case.probe is None or case.probe.outcome == "ok":
        return f"the incumbent runs {under} as well: what it holds beyond that it does not need"
    if case.probe.outcome != "oom":
        return f"the incumbent {under} ended as {case.probe.outcome}, not for want of memory: {case.probe.detail}"
    if failed := next((facts for facts in case.runs if facts.outcome != "ok"), None):
        return f"run {failed.id} of the candidate {under} ended as {failed.outcome}: {failed.detail}"
    if why := unprovable(case.runs):
        return why
    if len(case.runs) < RUNS or any(facts.peak_bytes is None or facts.peak_bytes > case.limit for facts in case.runs):
        return f"the limit of {_mib(case.limit)} was not in force in every run"
    fresh = smallest_peak([facts for facts in outcome.setup if facts.arm == "warmup"])
    if fresh is not None and case.limit > (1 - SAVED) * fresh:
        return f"a fresh run of the incumbent needs {_mib(fresh)}, and {_mib(case.limit)} is less than {100 * SAVED:.0f} % below that"
    if lab.compares and (missing := [facts.id for facts in case.runs if facts.id not in outcome.invariants]):
        return f"run {missing[0]} of the candidate {under} left no checkpoint that could be compared"
    validated = any(fact.name == VALIDATION for facts in outcome.invariants.values() for fact in facts)
    return f"no run {under} could be validated" if lab.compares and lab.holdouts and not validated else ""


def _counting(case: _Case) -> BlockOutcome:
    """A block that counts, or the last of those that faults of the host voided."""
    for attempt in range(MAX_VOID + 1):
        outcome = _block(case, f"{case.step}/b{attempt + 1}")
        if not outcome.void:
            break
    return outcome


def _block(case: _Case, step: str) -> BlockOutcome:
    lab, candidate, incumbent = case.lab, case.candidate, case.incumbent
    block, draw, commitment = draw_block(lab, step, lambda: ("incumbent", *["candidate"] * RUNS))
    probe = Slot("check", incumbent, memory_limit_bytes=case.limit)
    holdout = case.purpose if lab.holdouts and lab.compares else ""
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="memory",
        kind=case.purpose,
        incumbent=incumbent,
        candidates=(candidate,),
        setup=setup_slots(lab, incumbent),
        timed=(probe, *[Slot("candidate", candidate, memory_limit_bytes=case.limit)] * RUNS),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=lab.compares, holdout=holdout),
        sealed=True,
        timing=False,
        halt=_hopeless,
    )
    return run_block(lab, plan)


def _hopeless(timed: Sequence[TrialFacts]) -> bool:
    """Half-way: does the incumbent fit under the limit, or does the candidate not?"""
    probe, *ours = timed
    return probe.outcome != "oom" or any(facts.outcome != "ok" for facts in ours)


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"

"""Verification: the verdict on one candidate against the incumbent, on fresh runs only.

Blocks of randomised order feed an e-process; adopted when it reaches 1/alpha, every invariant held
in every run, the hidden validation loss did not worsen and the plain mean score won as well. Missing
evidence counts against the candidate: a run of it that fails decides the verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rsi_tui.evaluator.blocks import (
    MAX_VOID,
    BlockOutcome,
    BlockPlan,
    Slot,
    counts_against,
    draw_block,
    no_time,
    run_block,
    setup_slots,
)
from rsi_tui.evaluator.claim import mean_total_ratio
from rsi_tui.evaluator.endurance import endure
from rsi_tui.evaluator.eprocess import BlockPlan as VerificationSize
from rsi_tui.evaluator.eprocess import EProcess, choose_plan, draw_order
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, badness, carry_over, gaps, highest_peak, scores, total_wall_holds
from rsi_tui.evaluator.noninferior import check_noninferior
from rsi_tui.evaluator.one_step import check_one_step
from rsi_tui.evaluator.saving import prove_saving
from rsi_tui.evaluator.speedup import speedup_interval
from rsi_tui.journal.events import VerdictReached
from rsi_tui.journal.facts import (
    BlockFacts,
    CandidateFacts,
    Interval,
    InvariantFacts,
    MemorySavingFacts,
    TrialFacts,
    Verdict,
    VerdictFacts,
)

CONFIDENCES = (0.99, 0.9, 0.8)
"""a single block of 3 + 3 runs has 20 orders and can't exclude anything at 99 %"""
REFUTES = 0.9
"""confidence of an interval that makes a candidate 'slower', which the next campaign does not try again"""
ENOUGH_LENGTHS = 5
"""run lengths after which an excess start-up that does not pay is not given another block; fewer would let a single
disturbed run decide"""


@dataclass
class _Evidence:
    """What the blocks of one verification have shown."""

    candidate: CandidateFacts
    incumbent: CandidateFacts
    process: EProcess
    size: VerificationSize
    pair_scale: float
    predicted_gain: float
    early_look: bool
    """may the first block end half-way, as hopeless?"""
    blocks: list[BlockFacts] = field(default_factory=list)
    times: list[tuple[str, list[float]]] = field(default_factory=list)
    """of each closed block: its order, and the scores in it"""
    ours: list[TrialFacts] = field(default_factory=list)
    theirs: list[TrialFacts] = field(default_factory=list)
    invariants: dict[str, InvariantFacts] = field(default_factory=dict)
    """by name: the worst value over all runs"""
    reasons: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    memory: MemorySavingFacts | None = None
    slow_run_bound: float | None = None

    def hold(self, found: Sequence[InvariantFacts]) -> None:
        for fact in found:
            known = self.invariants.get(fact.name)
            if known is None or badness(fact) > badness(known):
                self.invariants[fact.name] = fact

    def decide(self, verdict: Verdict, reason: str) -> None:
        self.verdict = verdict
        self.reasons.append(reason)

    @property
    def slower(self) -> bool:
        """Do the closed blocks exclude that it is as fast? One that is merely no faster is not refuted."""
        interval = _speedup(self)
        return interval is not None and interval.high < 1 and interval.confidence >= REFUTES


def verify(
    lab: Lab,
    step: str,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    alpha: float,
    predicted_gain: float,
    *,
    early_look: bool = True,
) -> VerdictFacts:
    """The verdict on a candidate. `predicted_gain` is a log gain (positive is faster) from independent runs.

    Without the `early_look` the first block is run to its end however hopeless it is: a canary's verification.
    """
    began = time.monotonic()
    scale, margin = lab.pair_scale, lab.contract.objective.margin
    size = choose_plan(alpha, predicted_gain, scale, margin)
    process = EProcess(alpha, scale, margin, predicted_gain)
    evidence = _Evidence(candidate, incumbent, process, size, scale, predicted_gain, early_look)
    number = voided = 0
    while evidence.verdict is None and len(evidence.blocks) < size.max_blocks:
        number += 1
        outcome = _block(lab, f"{step}/b{number}", evidence)
        voided += bool(_judge_block(evidence, outcome))
        if voided > MAX_VOID and evidence.verdict is None:
            evidence.decide("not_proven", f"{voided} blocks did not count, the last because {outcome.void}")
    if evidence.verdict is None:
        evidence.decide("not_proven", "the evidence did not suffice within the runs that were planned")
    if evidence.verdict == "adopted":
        _last_conditions(lab, step, evidence)
    elif evidence.verdict in ("not_proven", "slower"):
        _bank_memory(lab, step, evidence)
    evidence.hold(gaps(lab, evidence.ours))
    made = lab.steps.once(
        step, VerdictReached, lambda: VerdictReached(verdict=_facts(evidence, alpha, time.monotonic() - began))
    )
    return made.verdict


def _last_conditions(lab: Lab, step: str, evidence: _Evidence) -> None:
    """What a proven gain must show besides, asked only now because it costs runs; the first that fails decides."""
    for condition in (_same_in_one_step, _no_worse_over_seeds, _no_rare_disaster):
        if evidence.verdict == "adopted":
            condition(lab, step, evidence)


def _same_in_one_step(lab: Lab, step: str, evidence: _Evidence) -> None:
    """One-step updates from hidden states, where the program can start from one (holes H3)."""
    if lab.contract.resume.flag and lab.compares:
        _settle(evidence, check_one_step(lab, f"{step}/one-step", evidence.candidate))


def _no_worse_over_seeds(lab: Lab, step: str, evidence: _Evidence) -> None:
    """Where updates need not be the same: hidden loss no worse over fresh seeds."""
    if not lab.compares:
        _settle(evidence, check_noninferior(lab, f"{step}/seeds", evidence.candidate, evidence.incumbent))


def _no_rare_disaster(lab: Lab, step: str, evidence: _Evidence) -> None:
    """So many runs without a very slow one that such runs are rare (holes H7)."""
    why_not, evidence.slow_run_bound = endure(
        lab, f"{step}/endurance", evidence.candidate, evidence.incumbent, evidence.theirs
    )
    if why_not:
        evidence.decide("not_proven", why_not)


def _settle(evidence: _Evidence, found: Checked) -> None:
    """Hold what a further check found: broken is invalid, a run that failed is failed, no answer is not proven."""
    evidence.hold(found.invariants)
    if broken := [i for i in found.invariants if i.status == "broken"]:
        evidence.decide("invalid", "; ".join(_sentence(i) for i in broken))
    elif found.failed:
        evidence.decide("failed", found.failed)
    elif found.trouble:
        evidence.decide("not_proven", found.trouble)


def _bank_memory(lab: Lab, step: str, evidence: _Evidence) -> None:
    """A candidate that is no faster but needs less memory is a saving in the bank, if that can be proven."""
    found = prove_saving(lab, f"{step}/memory", evidence.candidate, evidence.incumbent, evidence.ours, evidence.theirs)
    if found is None:
        return
    evidence.memory, checked = found
    _settle(evidence, checked)
    if evidence.memory.proven and evidence.verdict in ("not_proven", "slower"):
        evidence.decide("leaner", f"no proven gain of time, but {evidence.memory.reason}")


def _judge_block(evidence: _Evidence, outcome: BlockOutcome) -> str:
    """Take a closed block in; returns why it does not count, '' when it does or has decided.

    An exploit or a broken invariant decides before anything else. A block in which the incumbent failed
    too, or the host did, does not count; else a run of the candidate that failed decides. Only then are
    times looked at.
    """
    for found in outcome.invariants.values():
        evidence.hold(found)
    if broken := [i for i in evidence.invariants.values() if i.status == "broken"]:
        evidence.decide("invalid", "; ".join(_sentence(i) for i in broken))
    elif outcome.void:
        return outcome.void
    elif failed := next((f for f in outcome.of(evidence.candidate) if counts_against(f)), None):
        evidence.decide("failed", f"run {failed.id} of the candidate has no time ({failed.outcome}): {no_time(failed)}")
    else:
        _weigh(evidence, outcome)
    return ""


def _weigh(evidence: _Evidence, outcome: BlockOutcome) -> None:
    """Add the times of a block that counts, and decide if they decide."""
    ours = outcome.of(evidence.candidate)
    evidence.ours += ours
    evidence.theirs += outcome.of(evidence.incumbent)
    missing = [f.id for f in ours if f.id not in outcome.invariants]
    if outcome.halted:
        evidence.decide("not_proven", "stopped half-way through the first block: visibly no faster")
    elif missing and outcome.plan.judge.compare:
        evidence.decide("failed", f"run {missing[0]} of the candidate left no checkpoint that could be compared")
    else:
        _add_times(evidence, outcome)


def _add_times(evidence: _Evidence, outcome: BlockOutcome) -> None:
    order, times = _order(outcome.timed, evidence.candidate), scores(outcome.timed)
    evidence.times.append((order, times))
    evalue = evidence.process.add_block(order, times)
    evidence.blocks.append(
        BlockFacts(
            id=outcome.plan.id,
            order=order,
            evalue=evalue,
            e_total=evidence.process.total,
            trials=tuple(f.id for f in outcome.timed),
        )
    )
    if evidence.process.reached:
        _adopt_or_not(evidence)
    elif evidence.process.futile(evidence.size):
        verdict: Verdict = "slower" if evidence.slower else "not_proven"
        evidence.decide(verdict, "stopped early: no order of the remaining runs was likely to prove it")


def _adopt_or_not(evidence: _Evidence) -> None:
    """The e-process has reached its bound; plain mean and total wall must win as well (holes H1, H7).

    Where total wall does not win at the lengths run so far, another block of another length may show that
    the excess start-up is the same at every length; without blocks left it is not proven. A plain mean that one
    disturbed run has spoilt is given the blocks that are left as well: stopping there lost 7 % of true gains of
    5 % at CV 1 % (scripts/bench/measurement.py), and rare disasters are what the rule on slow runs is for.
    """
    if mean_total_ratio(scores(evidence.ours), scores(evidence.theirs)) >= 1:
        if len(evidence.blocks) >= evidence.size.max_blocks:
            evidence.decide("not_proven", "faster in most runs but not in plain mean time: some runs are far slower")
        return
    why_not = total_wall_holds(evidence.theirs, evidence.ours)
    lengths = {facts.steps for facts in evidence.ours}
    if not why_not:
        evidence.decide(
            "adopted", f"e-value {evidence.process.highest:.4g} reached the bound {1 / evidence.process.alpha:.4g}"
        )
    elif len(lengths) >= ENOUGH_LENGTHS or len(evidence.blocks) >= evidence.size.max_blocks:
        evidence.decide("not_proven", why_not)


def _block(lab: Lab, step: str, evidence: _Evidence) -> BlockOutcome:
    first = not evidence.blocks
    validated = first and lab.compares  # where updates may differ, one pair of losses says nothing: see `noninferior`
    block, draw, commitment = draw_block(lab, step, lambda: draw_order(evidence.size.arm_size, lab.randbelow))
    candidate, incumbent = evidence.candidate, evidence.incumbent
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="verify",
        kind="verify",
        incumbent=incumbent,
        candidates=(candidate,),
        setup=setup_slots(lab, incumbent),
        timed=tuple(Slot("candidate", candidate) if x == "B" else Slot("incumbent", incumbent) for x in draw.order),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=lab.compares, holdout="verify" if validated and lab.holdouts else ""),
        sealed=True,
        halt=(lambda timed: _hopeless(evidence, timed)) if first and evidence.early_look else None,
    )
    return run_block(lab, plan)


def _hopeless(evidence: _Evidence, timed: Sequence[TrialFacts]) -> bool:
    """Half-way through the first block: is the candidate visibly no faster? Only when every run has a time."""
    order, times = _order(timed, evidence.candidate), scores(timed)
    return len(times) == len(timed) and len(set(order)) == 2 and evidence.process.futile(evidence.size, order, times)


def _order(timed: Sequence[TrialFacts], candidate: CandidateFacts) -> str:
    """The order run: A incumbent, B candidate."""
    return "".join("B" if f.candidate == candidate.id else "A" for f in timed)


def _facts(evidence: _Evidence, alpha: float, seconds: float) -> VerdictFacts:
    verdict: Verdict = evidence.verdict or "not_proven"
    ours, theirs = scores(evidence.ours), scores(evidence.theirs)
    return VerdictFacts(
        candidate=evidence.candidate.id,
        incumbent=evidence.incumbent.id,
        verdict=verdict,
        reasons=tuple(evidence.reasons),
        alpha=alpha,
        evalue=_evalue(evidence.process) if evidence.blocks else None,
        speedup=_speedup(evidence),
        log_ratio=fmean(map(math.log, ours)) - fmean(map(math.log, theirs)) if ours and theirs else None,
        invariants=tuple(evidence.invariants.values()),
        blocks=tuple(evidence.blocks),
        peak_bytes=highest_peak(evidence.ours),
        incumbent_peak_bytes=highest_peak(evidence.theirs),
        memory=evidence.memory,
        carry_over=carry_over(evidence.ours, evidence.theirs),
        pair_scale=evidence.pair_scale,
        predicted_gain=evidence.predicted_gain,
        slow_run_bound=evidence.slow_run_bound,
        mean_total_ratio=mean_total_ratio(ours, theirs) if ours and theirs else None,
        runs_needed=evidence.process.runs_needed() if verdict == "not_proven" else None,
        seconds=seconds,
    )


def _evalue(process: EProcess) -> float:
    """At its highest once that is a proof: further blocks, run for another condition, take no proof back."""
    return process.highest if process.reached else process.total


def _speedup(evidence: _Evidence) -> Interval | None:
    """Incumbent / candidate with the highest of these confidences at which the closed blocks say anything."""
    intervals = (speedup_interval(evidence.times, evidence.pair_scale, confidence) for confidence in CONFIDENCES)
    return next((interval for interval in intervals if interval is not None), None)


def _sentence(fact: InvariantFacts) -> str:
    if fact.value is None or fact.limit is None:
        return f"{fact.name} is broken: {fact.how}"
    return f"{fact.name} is {fact.value:.3g}, its limit {fact.limit:.3g}"

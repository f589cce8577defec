"""Verification: the verdict on one candidate against the incumbent, on fresh runs only.

Blocks of randomised order feed an e-process; adopted when it reaches 1/alpha, every invariant held
in every run, the hidden validation loss did not worsen and the plain mean of total time won as
well. Missing evidence counts against the candidate: a run of it that fails decides the verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from scipy import stats

from rsi_tui.evaluator.blocks import BlockOutcome, BlockPlan, Slot, no_time, run_block
from rsi_tui.evaluator.draws import Draw, draw_steps, keep_or_draw
from rsi_tui.evaluator.eprocess import BlockPlan as VerificationPlan
from rsi_tui.evaluator.eprocess import EProcess, choose_plan, draw_order
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.validation import HiddenValidation, ValidationError, judge_validation
from rsi_tui.journal.events import VerdictReached
from rsi_tui.journal.facts import (
    BlockFacts,
    CandidateFacts,
    Interval,
    InvariantFacts,
    TrialFacts,
    Verdict,
    VerdictFacts,
)

CONFIDENCE = 0.99
MAX_VOID = 2
"""a fault of the host voids a block this often at the most, then the verdict is not_proven"""
LEANER = 0.05
"""saving of peak memory that counts as leaner"""


@dataclass
class _Evidence:
    """What the blocks of one verification have shown."""

    process: EProcess
    blocks: list[BlockFacts] = field(default_factory=list)
    candidate: list[TrialFacts] = field(default_factory=list)
    incumbent: list[TrialFacts] = field(default_factory=list)
    invariants: dict[str, InvariantFacts] = field(default_factory=dict)
    """by name: the worst value over all runs"""
    reasons: list[str] = field(default_factory=list)
    verdict: Verdict | None = None

    def hold(self, found: Sequence[InvariantFacts]) -> None:
        for fact in found:
            known = self.invariants.get(fact.name)
            if known is None or _badness(fact) > _badness(known):
                self.invariants[fact.name] = fact

    def decide(self, verdict: Verdict, reason: str) -> None:
        self.verdict = verdict
        self.reasons.append(reason)


def verify(
    lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, alpha: float, predicted_gain: float
) -> VerdictFacts:
    """The verdict on a candidate. `predicted_gain` is a log gain (positive is faster) from independent runs."""
    began = time.monotonic()
    noise, margin = lab.measured_noise, lab.contract.objective.margin
    plan = choose_plan(alpha, predicted_gain, noise.pair_scale, margin)
    evidence = _Evidence(EProcess(alpha, noise.pair_scale, margin, predicted_gain))
    voided = 0
    number = 0
    while evidence.verdict is None and len(evidence.blocks) < plan.max_blocks:
        number += 1
        outcome = _block(lab, f"{step}/b{number}", candidate, incumbent, plan, evidence)
        failed = next((f for f in outcome.of(candidate) if _counts_against(f)), None)
        if failed is not None:
            evidence.decide("failed", f"run {failed.id} of the candidate has no time ({failed.outcome}): {no_time(failed)}")
        elif outcome.halted and not outcome.void:
            _give_up(evidence, outcome, candidate, incumbent)
        elif outcome.void:
            voided += 1
            if voided > MAX_VOID:
                evidence.decide("not_proven", f"three blocks did not count, the last because {outcome.void}")
        else:
            _weigh(evidence, outcome, candidate, incumbent, plan)
    if evidence.verdict is None:
        evidence.decide("not_proven", "the evidence did not suffice within the runs that were planned")
    made = lab.steps.once(
        step,
        VerdictReached,
        lambda: VerdictReached(
            verdict=_facts(evidence, candidate, incumbent, alpha, time.monotonic() - began)
        ),
    )
    return made.verdict


def _counts_against(facts: TrialFacts) -> bool:
    """A run of the candidate that died, or whose output could not be timed; faults of the host do not count."""
    host = facts.outcome in ("not_measured", "cancelled", "preempted")
    return not host and (facts.outcome != "ok" or facts.score_s is None)


def _give_up(
    evidence: _Evidence, outcome: BlockOutcome, candidate: CandidateFacts, incumbent: CandidateFacts
) -> None:
    """The first block was ended half-way: what it ran is in the record and proves nothing."""
    theirs, ours = outcome.of(incumbent), outcome.of(candidate)
    evidence.incumbent += theirs
    evidence.candidate += ours
    slower = bool(theirs and ours) and _mean_log(ours) > _mean_log(theirs)
    evidence.decide("slower" if slower else "not_proven", "stopped half-way through the first block: visibly no faster")


def _weigh(
    evidence: _Evidence,
    outcome: BlockOutcome,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    plan: VerificationPlan,
) -> None:
    """Add a closed block that counts, and decide if it decides."""
    theirs, ours = outcome.of(incumbent), outcome.of(candidate)
    evidence.incumbent += theirs
    evidence.candidate += ours
    for found in outcome.invariants.values():
        evidence.hold(found)
    order = order_of(outcome.timed, candidate)
    evalue = evidence.process.add_block(order, [f.score_s or 0.0 for f in outcome.timed])
    evidence.blocks.append(
        BlockFacts(
            id=outcome.plan.id,
            order=order,
            evalue=evalue,
            e_total=evidence.process.total,
            trials=tuple(f.id for f in outcome.timed),
        )
    )
    missing = [f.id for f in ours if f.id not in outcome.invariants]
    if broken := [i for i in evidence.invariants.values() if i.status == "broken"]:
        evidence.decide("invalid", "; ".join(_sentence(i) for i in broken))
    elif missing and outcome.plan.judge:
        evidence.decide("failed", f"run {missing[0]} of the candidate left no checkpoint that could be compared")
    elif evidence.process.reached:
        _adopt_or_not(evidence)
    elif evidence.process.futile(plan):
        slower = _mean_log(ours) > _mean_log(theirs)
        evidence.decide(
            "slower" if slower else "not_proven", "stopped early: no order of the remaining runs was likely to prove it"
        )


def _adopt_or_not(evidence: _Evidence) -> None:
    """The e-process has reached its bound; the plain mean of total time must win as well (holes H7)."""
    ratio = _mean_ratio(evidence)
    if ratio is not None and ratio < 1:
        evidence.decide(
            "adopted", f"e-value {evidence.process.total:.4g} reached the bound {1 / evidence.process.alpha:.4g}"
        )
    else:
        evidence.decide("not_proven", "faster in most runs but not in plain mean time: some runs are far slower")


def _block(
    lab: Lab,
    step: str,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    size: VerificationPlan,
    evidence: _Evidence,
) -> BlockOutcome:
    first = not evidence.blocks
    block = step.replace("/", "-")
    draw, commitment = keep_or_draw(
        lab.vault,
        block,
        lambda: Draw(
            seed=lab.randbelow(2**31),
            steps=draw_steps(lab.contract.objective, lab.randbelow),
            order=tuple(draw_order(size.arm_size, lab.randbelow)),
        ),
    )
    equivalent = lab.contract.invariants.weights == "equivalent"
    initial = (Slot("initial", lab.original, zero_steps=True),) if equivalent else ()
    twin = (Slot("twin", lab.original, extra=lab.twin),) if equivalent and lab.twin else ()
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="verify",
        incumbent=incumbent,
        candidates=(candidate,),
        setup=(*initial, *twin, Slot("warmup", incumbent)),
        timed=tuple(Slot("candidate", candidate) if x == "B" else Slot("incumbent", incumbent) for x in draw.order),
        draw=draw,
        commitment=commitment,
        kind="verify",
        sealed=True,
        halt=(lambda timed: _hopeless(evidence, timed, candidate, size)) if first else None,
        judge=equivalent,
    )
    validate = first and bool(lab.holdouts) and equivalent
    judge = CheckpointJudge(lab, active=equivalent, validate=validate)
    outcome = run_block(lab, plan, judge)
    if validate:
        for trial, fact in validate_pair(lab, step, "verify", judge).items():
            outcome.invariants[trial] = (*outcome.invariants.get(trial, ()), fact)
    return outcome


def _hopeless(
    evidence: _Evidence, timed: Sequence[TrialFacts], candidate: CandidateFacts, size: VerificationPlan
) -> bool:
    """Half-way through the first block: is the candidate visibly no faster? Only when every run has a time."""
    times = [f.score_s for f in timed if f.score_s is not None]
    order = order_of(timed, candidate)
    return len(times) == len(timed) and len(set(order)) == 2 and evidence.process.futile(size, order, times)


def order_of(timed: Sequence[TrialFacts], candidate: CandidateFacts) -> str:
    """The order run: A incumbent, B candidate."""
    return "".join("B" if f.candidate == candidate.id else "A" for f in timed)


def validate_pair(lab: Lab, step: str, purpose: str, judge: CheckpointJudge) -> dict[str, InvariantFacts]:
    """Hidden validation loss of the block's first candidate against its reference; empties the judge.

    The loss is kept in the vault: a resumed verification does not measure it again.
    """
    key = f"validated/{step}"
    first = next((trial for trial, arm in judge.arms.items() if arm == "candidate"), None)
    known = lab.vault.get(key)
    if known is None and first is not None and judge.reference is not None and judge.validated is not None:
        holdout = lab.holdout(purpose)
        if holdout is not None:
            known = {
                "incumbent": _finite(holdout.loss(judge.reference)),
                "twin": _finite(holdout.loss(judge.twin)) if judge.twin is not None else None,
                "candidate": _loss_or_worst(holdout, judge.validated),
            }
            lab.vault.put(key, known)
    judge.dispose()
    if known is None or first is None:
        return {}
    twin = known["twin"]
    rounding = abs(twin - known["incumbent"]) if twin is not None else 0.0
    return {first: judge_validation(known["candidate"], known["incumbent"], rounding)}


def _loss_or_worst(holdout: HiddenValidation, checkpoint: Path) -> float:
    """A candidate whose checkpoint can't be validated has the worst of losses."""
    try:
        return _finite(holdout.loss(checkpoint))
    except ValidationError:
        return _finite(math.inf)


def _finite(loss: float) -> float:
    """A loss that JSON can hold: what is infinite stays larger than any limit."""
    return min(loss, 1e300)


def _facts(
    evidence: _Evidence, candidate: CandidateFacts, incumbent: CandidateFacts, alpha: float, seconds: float
) -> VerdictFacts:
    peaks = [_peak(evidence.candidate), _peak(evidence.incumbent)]
    verdict: Verdict = evidence.verdict or "not_proven"
    return VerdictFacts(
        candidate=candidate.id,
        incumbent=incumbent.id,
        verdict=verdict,
        reasons=tuple(evidence.reasons),
        alpha=alpha,
        evalue=evidence.process.total if evidence.blocks else None,
        speedup=_speedup(evidence),
        invariants=tuple(evidence.invariants.values()),
        blocks=tuple(evidence.blocks),
        peak_bytes=peaks[0],
        incumbent_peak_bytes=peaks[1],
        mean_total_ratio=_mean_ratio(evidence),
        runs_needed=evidence.process.runs_needed() if verdict == "not_proven" else None,
        seconds=seconds,
    )


def _speedup(evidence: _Evidence) -> Interval | None:
    """Incumbent / candidate: difference of mean logs with Welch's interval."""
    a = [math.log(f.score_s) for f in evidence.incumbent if f.score_s is not None]
    b = [math.log(f.score_s) for f in evidence.candidate if f.score_s is not None]
    if len(a) < 2 or len(b) < 2:
        return None
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    return Interval(
        estimate=math.exp(fmean(a) - fmean(b)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        confidence=CONFIDENCE,
    )


def _mean_ratio(evidence: _Evidence) -> float | None:
    a = [f.score_s for f in evidence.incumbent if f.score_s is not None]
    b = [f.score_s for f in evidence.candidate if f.score_s is not None]
    return fmean(b) / fmean(a) if a and b else None


def _mean_log(trials: Sequence[TrialFacts]) -> float:
    return fmean(math.log(f.score_s) for f in trials if f.score_s is not None)


def _peak(trials: Sequence[TrialFacts]) -> int | None:
    return max((f.peak_bytes for f in trials if f.peak_bytes is not None), default=None)


def _badness(fact: InvariantFacts) -> float:
    """Broken is worse than held; among equals, the larger share of the limit."""
    if fact.status != "held":
        return math.inf if fact.status == "broken" else -1.0
    return (fact.value or 0.0) / fact.limit if fact.limit else fact.value or 0.0


def _sentence(fact: InvariantFacts) -> str:
    if fact.value is None or fact.limit is None:
        return f"{fact.name} is broken: {fact.how}"
    return f"{fact.name} is {fact.value:.3g}, its limit {fact.limit:.3g}"

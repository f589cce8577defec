"""Blocks: groups of trials with one seed, one length and an order drawn in secret.

A block opens with set-up runs that no verdict times (initial weights, a declared warm-up, the bf16
twin), then runs its timed slots. Its results stay sealed until it closes: the journal gets a
commitment for each trial and the values at the end. An interrupted block keeps its draw and reruns
only the slot that was interrupted, twice at the most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rsi_tui.evaluator.draws import Draw
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Interrupted, Lab
from rsi_tui.evaluator.trial import TrialRequest, TrialResult, findings
from rsi_tui.journal.chain import now_utc
from rsi_tui.journal.events import BlockClosed, BlockOpened, TrialFinished, TrialStarted
from rsi_tui.journal.facts import Arm, CandidateFacts, InvariantFacts, TrialFacts, TrialKind
from rsi_tui.launch.lease import host_lease

Purpose = Literal["calibration", "reference", "screen", "verify", "claim"]
MAX_ATTEMPTS = 3
"""a slot is rerun twice at the most (holes H17)"""


@dataclass(frozen=True)
class Slot:
    """One run of a block."""

    arm: Arm
    candidate: CandidateFacts
    extra: str = ""
    """perturbation of the launch: harmless change or bf16 twin"""
    zero_steps: bool = False


@dataclass(frozen=True)
class BlockPlan:
    """What a block runs. `timed` is in the drawn order."""

    id: str
    step: str
    """durable name under which the block is recorded"""
    purpose: Purpose
    incumbent: CandidateFacts
    candidates: tuple[CandidateFacts, ...]
    setup: tuple[Slot, ...]
    timed: tuple[Slot, ...]
    draw: Draw
    commitment: str
    kind: TrialKind
    sealed: bool = False
    halt: Callable[[Sequence[TrialFacts]], bool] | None = None
    """asked half-way through the timed slots: True ends the block there, as futile"""
    judge: bool = True
    """compare the checkpoints of candidate and harmless runs with the incumbent's"""


@dataclass
class BlockOutcome:
    """What a closed block holds."""

    plan: BlockPlan
    setup: list[TrialFacts] = field(default_factory=list)
    timed: list[TrialFacts] = field(default_factory=list)
    invariants: dict[str, tuple[InvariantFacts, ...]] = field(default_factory=dict)
    """trial id -> what the comparison with the block's reference said"""
    void: str = ""
    halted: bool = False
    """ended half-way as futile; its times prove nothing"""

    def of(self, candidate: CandidateFacts) -> list[TrialFacts]:
        """Timed trials of one candidate, in the order run."""
        return [facts for facts in self.timed if facts.candidate == candidate.id]


def run_block(lab: Lab, plan: BlockPlan, judge: CheckpointJudge) -> BlockOutcome:
    """Run or resume a block to its end; raises Interrupted when a person stops it."""
    slots = len(plan.setup) + len(plan.timed)
    lab.steps.once(
        f"{plan.step}/opened",
        BlockOpened,
        lambda: BlockOpened(
            block=plan.id,
            purpose=plan.purpose,
            candidates=tuple(c.id for c in plan.candidates),
            incumbent=plan.incumbent.id,
            slots=slots,
            commitment=plan.commitment,
        ),
    )
    outcome = BlockOutcome(plan)
    closed = lab.steps.find(f"{plan.step}/closed")
    with host_lease(f"campaign block {plan.id}", wait=closed is None):
        for number, slot in enumerate((*plan.setup, *plan.timed)):
            facts = _run_slot(lab, plan, number, slots, slot, judge)
            (outcome.setup if number < len(plan.setup) else outcome.timed).append(facts)
            if 2 * len(outcome.timed) == len(plan.timed) and plan.halt is not None and plan.halt(outcome.timed):
                outcome.halted = True
                break
    outcome.invariants = judge.finish()
    for facts in outcome.timed:
        if facts.arm == "candidate" and (found := findings(facts)):
            outcome.invariants[facts.id] = (*outcome.invariants.get(facts.id, ()), _misconduct(found))
    outcome.void = _void_reason(outcome) or judge.trouble
    lab.steps.once(f"{plan.step}/closed", BlockClosed, lambda: _closing(outcome))
    return outcome


def _misconduct(found: tuple[str, ...]) -> InvariantFacts:
    """What no honest run shows: forged progress lines, frozen files changed."""
    return InvariantFacts(name="conduct of the run", status="broken", value=None, limit=None, how="; ".join(found))


def no_time(facts: TrialFacts) -> str:
    """Why a run has no time, in words: its failure, or what was odd about its output."""
    return facts.detail or "; ".join(facts.flags) or "its progress lines could not be timed"


def _closing(outcome: BlockOutcome) -> BlockClosed:
    trials = (*outcome.setup, *outcome.timed) if outcome.plan.sealed else ()
    return BlockClosed(block=outcome.plan.id, trials=trials, void=outcome.void)


def _void_reason(outcome: BlockOutcome) -> str:
    """A fault of the host voids the whole block, decided before its times are looked at (holes H6)."""
    for facts in (*outcome.setup, *outcome.timed):
        if facts.outcome in ("not_measured", "cancelled", "preempted"):
            return f"{facts.id} was not measured: {facts.detail}"
        if facts.arm == "incumbent" and (facts.outcome != "ok" or facts.score_s is None):
            return f"{facts.id}, a run of the incumbent, has no time ({facts.outcome}): {no_time(facts)}"
    return ""


def _run_slot(lab: Lab, plan: BlockPlan, number: int, of: int, slot: Slot, judge: CheckpointJudge) -> TrialFacts:
    """The facts of one slot: recorded ones if there are, else of a fresh run."""
    attempt = 1
    while True:
        step = f"{plan.step}/s{number}a{attempt}"
        known = _recorded(lab, plan, number, slot, step, attempt)
        if known is None:
            return _execute(lab, plan, number, of, slot, step, attempt, judge)
        usable = known.outcome not in ("cancelled", "not_measured") and judge.recall(lab.vault, known, slot.arm)
        if usable or attempt == MAX_ATTEMPTS:
            return known
        attempt += 1


def _recorded(lab: Lab, plan: BlockPlan, number: int, slot: Slot, step: str, attempt: int) -> TrialFacts | None:
    """Facts of an attempt that was started before; one without an end was interrupted by us."""
    started = lab.steps.find(f"{step}/started")
    if not isinstance(started, TrialStarted):
        return None
    finished = lab.steps.find(f"{step}/finished")
    if isinstance(finished, TrialFinished):
        if finished.facts is not None:
            return finished.facts
        return TrialFacts.model_validate(lab.vault.get(f"trial/{started.trial}"))
    if (measured := lab.vault.get(f"trial/{started.trial}")) is not None:
        # It ended, and the engine died before the journal said so: its facts were sealed first.
        facts = TrialFacts.model_validate(measured)
        _record_end(lab, plan, step, facts)
        return facts
    facts = TrialFacts(
        id=started.trial,
        candidate=slot.candidate.id,
        kind=plan.kind,
        arm=slot.arm,
        block=plan.id,
        slot=number,
        attempt=attempt,
        steps=0 if slot.zero_steps else plan.draw.steps,
        outcome="not_measured",
        cause="interrupted",
        detail="the engine ended while this trial ran; its slot is run again",
        started_at=now_utc(),
        wall_s=0.0,
    )
    _record_end(lab, plan, step, facts)
    return facts


def _record_end(lab: Lab, plan: BlockPlan, step: str, facts: TrialFacts) -> None:
    commitment = ""
    if plan.sealed:
        key = f"trial/{facts.id}"
        if lab.vault.get(key) is None:
            lab.vault.put(key, facts.model_dump(mode="json"))
        commitment = lab.vault.commitment(key)
    body = TrialFinished(trial=facts.id, facts=None if plan.sealed else facts, commitment=commitment)
    lab.steps.append(body, f"{step}/finished")


def _execute(
    lab: Lab, plan: BlockPlan, number: int, of: int, slot: Slot, step: str, attempt: int, judge: CheckpointJudge
) -> TrialFacts:
    began = time.monotonic()
    started = lab.steps.once(
        f"{step}/started",
        TrialStarted,
        lambda: TrialStarted(
            trial=lab.next_trial(),
            candidate=slot.candidate.id if not plan.sealed else "sealed",
            kind=plan.kind,
            arm=slot.arm if not plan.sealed else "sealed",
            block=plan.id,
            slot=number,
            of=of,
            attempt=attempt,
        ),
    )
    request = TrialRequest(
        id=started.trial,
        candidate=slot.candidate,
        kind=plan.kind,
        arm=slot.arm,
        block=plan.id,
        slot=number,
        attempt=attempt,
        steps=0 if slot.zero_steps else plan.draw.steps,
        seed=plan.draw.seed,
        extra=slot.extra,
        sealed=plan.sealed,
        keep_checkpoint=plan.judge,
    )
    result = lab.runner.run(request, lab.cancel)
    facts = _with_costs(lab, result, judge, slot, began)
    _record_end(lab, plan, step, facts)
    if lab.cancel.is_set() or facts.outcome == "cancelled":
        raise Interrupted("Stopped while a trial ran; nothing finished is lost: `rsi run --resume` continues.")
    return facts


def _with_costs(lab: Lab, result: TrialResult, judge: CheckpointJudge, slot: Slot, began: float) -> TrialFacts:
    """Compare the checkpoint while it is here, and charge what the engine itself took."""
    before = time.monotonic()
    judge.take(lab.vault, result, slot.arm)
    compare_s = time.monotonic() - before
    engine_s = time.monotonic() - began - result.run.wall_s - compare_s
    return result.facts.model_copy(update={"compare_s": compare_s, "engine_s": max(0.0, engine_s)})

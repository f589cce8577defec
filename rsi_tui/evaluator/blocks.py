"""Blocks: groups of trials with one seed, one length and an order drawn in secret.

A block opens with set-up runs that no verdict times (initial weights, a declared warm-up, the bf16
twin), then runs its timed slots, then measures hidden validation where asked, all under the host's
lease. Its results stay sealed until it closes: the journal gets a commitment for each trial and the
values at the end. An interrupted block keeps its draw and reruns only the slot that was interrupted,
twice at the most. A closed block is read back and never run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rsi_tui.evaluator.draws import Draw, draw_steps, keep_or_draw
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Interrupted, Lab
from rsi_tui.evaluator.trial import TrialRequest, TrialResult, findings
from rsi_tui.journal.chain import now_utc
from rsi_tui.journal.events import BlockClosed, BlockOpened, Purpose, TrialFinished, TrialStarted
from rsi_tui.journal.facts import HOST_FAULTS, Arm, CandidateFacts, InvariantFacts, TrialFacts, TrialKind
from rsi_tui.launch.lease import host_lease

MAX_ATTEMPTS = 3
"""a slot is rerun twice at the most (holes H17)"""
MAX_VOID = 2
"""a fault of the host voids a block this often at the most; then what it was to measure is not measured (holes H6)"""
CONDUCT = "conduct of the run"
TWIN_PATIENCE = 3.0
"""times the wall time of the incumbent's own run after which a bf16 twin that is tried for the first time is ended"""
LEAST_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Slot:
    """One run of a block."""

    arm: Arm
    candidate: CandidateFacts
    extra: str = ""
    """perturbation of the launch: harmless change or bf16 twin"""
    steps: int | None = None
    """length of this run; None is the block's, 0 writes the initial weights"""
    state: Path | None = None
    """saved state that the run starts from"""
    memory_limit_bytes: int | None = None
    """hard limit below the contract's; None is the contract's"""
    patience: float | None = None
    """ended for time after this many times the wall time of the block's warm-up, which must have run before it; the
    block then counts without it. None: the contract's time limit"""
    fills_cache: bool = False
    """what its compilers leave is what the candidate's later runs find"""


@dataclass(frozen=True)
class BlockPlan:
    """What a block runs. `timed` is in the drawn order."""

    id: str
    step: str
    """durable name under which the block is recorded"""
    purpose: Purpose
    kind: TrialKind
    incumbent: CandidateFacts
    candidates: tuple[CandidateFacts, ...]
    setup: tuple[Slot, ...]
    timed: tuple[Slot, ...]
    draw: Draw
    commitment: str
    judge: CheckpointJudge
    sealed: bool = False
    timing: bool = True
    """are the times of this block looked at? Where they are not, a run without one is as good as any"""
    halt: Callable[[Sequence[TrialFacts]], bool] | None = None
    """asked half-way through the timed slots: True ends the block there, as futile"""

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (*self.setup, *self.timed)

    def length(self, slot: Slot) -> int:
        """Steps that a run of this slot takes."""
        return self.draw.steps if slot.steps is None else slot.steps


@dataclass
class BlockOutcome:
    """What a closed block holds."""

    plan: BlockPlan
    setup: list[TrialFacts] = field(default_factory=list)
    timed: list[TrialFacts] = field(default_factory=list)
    interrupted: list[TrialFacts] = field(default_factory=list)
    """attempts whose slot was run again"""
    invariants: dict[str, tuple[InvariantFacts, ...]] = field(default_factory=dict)
    """trial id -> what the comparison with the block's reference said, and what was odd about the run"""
    void: str = ""
    """why the block does not count; '' when it does"""

    def of(self, candidate: CandidateFacts) -> list[TrialFacts]:
        """Timed trials of one candidate, in the order run."""
        return [facts for facts in self.timed if facts.candidate == candidate.id]

    @property
    def halted(self) -> bool:
        """Ended half-way as futile; its times prove nothing."""
        return len(self.timed) < len(self.plan.timed)

    def take(self, number: int, facts: TrialFacts) -> None:
        (self.setup if number < len(self.plan.setup) else self.timed).append(facts)


def draw_block(
    lab: Lab, step: str, order: Callable[[], Sequence[str]], steps: int | None = None
) -> tuple[str, Draw, str]:
    """(id, draw, commitment) of the block of a step; the draw is made once. `steps`: a length that is not drawn."""
    block = step.replace("/", "-")

    def make() -> Draw:
        length = steps if steps is not None else draw_steps(lab.contract.objective, lab.randbelow)
        return Draw(seed=lab.randbelow(2**31), steps=length, order=tuple(order()))

    draw, commitment = keep_or_draw(lab.vault, block, make)
    return block, draw, commitment


def setup_slots(
    lab: Lab, warmup: CandidateFacts | None, *, twin_patience: float | None = None, initial: bool = False
) -> tuple[Slot, ...]:
    """Set-up runs of a block whose checkpoints are compared: initial weights, a warm-up where given, and the twin.

    `initial`: run for the initial weights even where nothing is compared.
    """
    warm = (Slot("warmup", warmup),) if warmup is not None else ()
    before = (Slot("initial", lab.original, steps=0),) if initial or lab.compares else ()
    twin = (Slot("twin", lab.original, extra=lab.twin, patience=twin_patience),) if lab.compares and lab.twin else ()
    return (*before, *warm, *twin)


def run_block(lab: Lab, plan: BlockPlan) -> BlockOutcome:
    """Run or resume a block to its end; raises Interrupted when a person stops it."""
    closed = lab.steps.find(f"{plan.step}/closed")
    if closed is None:
        _compile(lab, plan)
    outcome = _read_back(lab, plan, closed) if isinstance(closed, BlockClosed) else _run_open(lab, plan)
    for facts in () if outcome.void else outcome.timed:
        usual = facts.memory_limit_bytes is None  # under a lower limit the kernel takes pages back, which takes time
        if facts.arm == "candidate" and facts.score_s is not None and usual:
            lab.runs.setdefault(facts.candidate, []).append(facts.score_s)
    return outcome


def until_it_counts(
    lab: Lab, step: str, run: Callable[[str], BlockOutcome], blame: Callable[[BlockOutcome], None] = lambda outcome: None
) -> tuple[BlockOutcome, int]:
    """(the first block that counts, or the last of MAX_VOID + 1 void ones; how many this engine ran in vain).

    `run` makes the block of a step's name; `blame` sees each void one and raises where it was not the machine's fault.
    Void blocks of an engine before are passed over: what disturbed it may be mended by now.
    """
    attempt = voided = 0
    while True:
        name = f"{step}v{attempt}" if attempt else step
        fresh = lab.steps.find(f"{name}/closed") is None
        outcome = run(name)
        if not outcome.void:
            return outcome, voided
        voided += fresh
        blame(outcome)
        if voided > MAX_VOID:
            return outcome, voided
        attempt += 1


def _compile(lab: Lab, plan: BlockPlan) -> None:
    """Fill the compile caches that a block's candidates want, each in a short block with a seed of its own; once each."""
    filling = any(slot.fills_cache for slot in plan.slots)
    for candidate in () if filling else {c.id: c for c in (plan.incumbent, *plan.candidates)}.values():
        step = f"compile/{candidate.id}"
        if lab.steps.find(f"{step}/closed") is not None or not lab.runner.wants_cache(candidate.id):
            continue
        block, draw, commitment = draw_block(lab, step, lambda: ("B",))
        slot = Slot("check", candidate, steps=lab.contract.objective.warmup + 2, fills_cache=True)
        filled = BlockPlan(
            id=block, step=step, purpose="check", kind="check", incumbent=lab.original, candidates=(candidate,), setup=(),
            timed=(slot,), draw=draw, commitment=commitment, judge=CheckpointJudge(lab, compare=False), timing=False,
        )  # fmt: skip
        run_block(lab, filled)


def _run_open(lab: Lab, plan: BlockPlan) -> BlockOutcome:
    """Run or go on with a block that is not closed."""
    lab.steps.once(f"{plan.step}/opened", BlockOpened, lambda: _opening(plan))
    outcome = BlockOutcome(plan)
    with host_lease(f"campaign block {plan.id}", on_wait=lab.on_wait, meanwhile=lab.between) as lab.lease:
        for number, slot in enumerate(plan.slots):
            outcome.take(number, _run_slot(lab, outcome, number, slot, _time_limit(slot, outcome)))
            half = 2 * len(outcome.timed) == len(plan.timed)
            if half and plan.halt is not None and plan.halt(outcome.timed):
                break
        if outcome.halted:
            plan.judge.holdout = ""  # nothing will be claimed of it
        outcome.invariants = _judged(outcome)
    # Checkpoints that a failed candidate did not leave are no trouble of ours.
    against = counts_against if plan.timing else died
    failed = any(against(f) for f in outcome.timed if f.arm == "candidate")
    outcome.void = _void_reason(outcome) or ("" if failed else plan.judge.trouble)
    lab.steps.once(f"{plan.step}/closed", BlockClosed, lambda: _closing(outcome))
    plan.judge.dispose()
    return outcome


def no_time(facts: TrialFacts) -> str:
    """Why a run has no time, in words: its failure, or what was odd about its output."""
    return facts.detail or "; ".join(facts.flags) or "its progress lines could not be timed"


def died(facts: TrialFacts) -> bool:
    """A run that did not do its work; faults of the host do not count."""
    return facts.outcome not in ("ok", *HOST_FAULTS)


def counts_against(facts: TrialFacts) -> bool:
    """A run that died, or whose output could not be timed; faults of the host do not count."""
    return died(facts) or (facts.outcome == "ok" and facts.score_s is None)


def _opening(plan: BlockPlan) -> BlockOpened:
    return BlockOpened(
        block=plan.id,
        purpose=plan.purpose,
        candidates=tuple(c.id for c in plan.candidates),
        incumbent=plan.incumbent.id,
        slots=len(plan.slots),
        commitment=plan.commitment,
    )


def _closing(outcome: BlockOutcome) -> BlockClosed:
    trials = (*outcome.setup, *outcome.timed, *outcome.interrupted) if outcome.plan.sealed else ()
    seconds = outcome.plan.judge.validation_s
    return BlockClosed(block=outcome.plan.id, trials=trials, void=outcome.void, validation_s=seconds)


def _judged(outcome: BlockOutcome) -> dict[str, tuple[InvariantFacts, ...]]:
    """What the checkpoints say, and what no honest run shows: forged progress lines, frozen files changed."""
    found = outcome.plan.judge.finish(outcome.plan.step)
    for facts in outcome.timed:
        if facts.arm == "candidate" and (odd := findings(facts)):
            fact = InvariantFacts(name=CONDUCT, status="broken", value=None, limit=None, how="; ".join(odd))
            found[facts.id] = (*found.get(facts.id, ()), fact)
    return found


def _void_reason(outcome: BlockOutcome) -> str:
    """A fault of the host, or a reference that failed, voids the whole block, before its times are looked at."""
    for facts in (*outcome.setup, *outcome.timed):
        if facts.outcome in HOST_FAULTS:
            return f"{facts.id} was not measured: {facts.detail}"
    for facts in outcome.setup:
        if facts.outcome != "ok" and not _spared(outcome.plan, facts):
            return f"{facts.id}, the block's {facts.arm} run, ended as {facts.outcome}: {facts.detail}"
    for facts in outcome.timed:
        untimed = outcome.plan.timing and facts.score_s is None
        if facts.arm == "incumbent" and (facts.outcome != "ok" or untimed):
            return f"{facts.id}, a run of the incumbent, has no time ({facts.outcome}): {no_time(facts)}"
    return ""


def _spared(plan: BlockPlan, facts: TrialFacts) -> bool:
    """A run whose patience ended: the block counts without it."""
    return plan.slots[facts.slot].patience is not None and facts.outcome == "timeout"


def _read_back(lab: Lab, plan: BlockPlan, closed: BlockClosed) -> BlockOutcome:
    """A closed block from journal and vault; nothing is run and no lease is needed."""
    outcome = BlockOutcome(plan, void=closed.void)
    for number, slot in enumerate(plan.slots):
        last = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            last = _recorded(lab, plan, number, slot, attempt) or last
        if last is None:
            break  # the block was halted here
        outcome.take(number, last)
        plan.judge.recall(last, slot.arm)
    outcome.invariants = _judged(outcome)
    plan.judge.dispose()
    return outcome


def _time_limit(slot: Slot, outcome: BlockOutcome) -> float | None:
    """Seconds that a run which is given limited patience may take; None is the contract's."""
    if slot.patience is None:
        return None
    usual = next(facts.total_s for facts in outcome.setup if facts.arm == "warmup")
    return max(LEAST_PATIENCE_S, slot.patience * usual)


def _run_slot(lab: Lab, outcome: BlockOutcome, number: int, slot: Slot, timeout_s: float | None) -> TrialFacts:
    """The facts of one slot: recorded ones if there are, else of a fresh run."""
    plan, attempt = outcome.plan, 1
    while True:
        known = _recorded(lab, plan, number, slot, attempt)
        if known is None:
            return _execute(lab, plan, number, slot, attempt, timeout_s)
        usable = known.outcome not in ("cancelled", "not_measured") and plan.judge.recall(known, slot.arm)
        if usable or attempt == MAX_ATTEMPTS:
            return known
        outcome.interrupted.append(known)
        attempt += 1


def _step(plan: BlockPlan, number: int, attempt: int) -> str:
    return f"{plan.step}/s{number}a{attempt}"


def _recorded(lab: Lab, plan: BlockPlan, number: int, slot: Slot, attempt: int) -> TrialFacts | None:
    """Facts of an attempt that was started before; one without an end was interrupted by us."""
    step = _step(plan, number, attempt)
    started = lab.steps.find(f"{step}/started")
    if not isinstance(started, TrialStarted):
        return None
    finished = lab.steps.find(f"{step}/finished")
    sealed = lab.vault.get(f"trial/{started.trial}")
    if isinstance(finished, TrialFinished):
        return finished.facts if finished.facts is not None else TrialFacts.model_validate(sealed)
    if sealed is not None:
        # It ended, and the engine died before the journal said so: its facts were sealed first.
        facts = TrialFacts.model_validate(sealed)
    else:
        facts = TrialFacts(
            id=started.trial,
            candidate=slot.candidate.id,
            kind=plan.kind,
            arm=slot.arm,
            block=plan.id,
            slot=number,
            attempt=attempt,
            steps=plan.length(slot),
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
    lab: Lab, plan: BlockPlan, number: int, slot: Slot, attempt: int, timeout_s: float | None
) -> TrialFacts:
    lab.between()
    began = time.monotonic()
    step = _step(plan, number, attempt)
    started = TrialStarted(
        trial=lab.next_trial(),
        candidate="sealed" if plan.sealed else slot.candidate.id,
        kind=plan.kind,
        arm="sealed" if plan.sealed else slot.arm,
        block=plan.id,
        slot=number,
        of=len(plan.slots),
        attempt=attempt,
    )
    lab.steps.append(started, f"{step}/started")
    request = TrialRequest(
        id=started.trial,
        candidate=slot.candidate,
        kind=plan.kind,
        arm=slot.arm,
        block=plan.id,
        slot=number,
        attempt=attempt,
        steps=plan.length(slot),
        seed=plan.draw.seed,
        extra=slot.extra,
        state=slot.state,
        memory_limit_bytes=slot.memory_limit_bytes,
        timeout_s=timeout_s,
        sealed=plan.sealed,
        keep_checkpoint=plan.judge.active,
        fills_cache=slot.fills_cache,
    )
    result = lab.runner.run(request, lab.cancel)
    facts = _with_costs(plan, result, slot, began)
    _record_end(lab, plan, step, facts)
    if lab.cancel.is_set() or facts.outcome == "cancelled":
        raise Interrupted("Stopped while a trial ran; nothing finished is lost: `rsi run --resume` continues.")
    return facts


def _with_costs(plan: BlockPlan, result: TrialResult, slot: Slot, began: float) -> TrialFacts:
    """Compare the checkpoint while it is here, and charge what the engine itself took."""
    before = time.monotonic()
    plan.judge.take(result, slot.arm)
    compare_s = time.monotonic() - before
    engine_s = time.monotonic() - began - result.run.wall_s - compare_s
    return result.facts.model_copy(update={"compare_s": compare_s, "engine_s": max(0.0, engine_s)})

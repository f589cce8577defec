"""What each change of a stack contributes: the stack against itself without each of them, on fresh runs.

A block is one run of the stack and one of each 'stack without a change', all with one fresh seed and length, in
an order drawn in secret. A fault of the host voids a block, twice at the most. A stack that does not run without
a change needs it: that run has no time and is no fault. The intervals of all changes hold together.

The comparison of learned updates and the hidden validation are left to the claim: nothing measured here is
adopted, and what is left of the stack is proven again as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rsi_tui.evaluator.blocks import (
    MAX_VOID,
    BlockOutcome,
    BlockPlan,
    Slot,
    counts_against,
    draw_block,
    no_time,
    run_block,
)
from rsi_tui.evaluator.claim import eliminate, fewest_blocks, simultaneous
from rsi_tui.evaluator.draws import shuffled
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.journal.events import LeftOut
from rsi_tui.journal.facts import AttributionFacts, CandidateFacts, Interval

CONFIDENCE = 0.95
"""that the intervals of all changes hold at once"""
STACK = "stack"


@dataclass(frozen=True)
class Part:
    """One change of a stack, and the stack without it."""

    name: str
    kind: Literal["setting never switched on", "new code"]
    candidate: str
    """id of the candidate whose change it is"""
    without: CandidateFacts


@dataclass
class _Round:
    """What the blocks so far have shown."""

    stack: CandidateFacts
    parts: Sequence[Part]
    ratios: dict[str, list[float]] = field(default_factory=dict)
    """by name: log of the score without it over the score with it, a block each"""
    needed: dict[str, str] = field(default_factory=dict)
    """by name: how the stack fails without it"""
    trials: list[str] = field(default_factory=list)
    blocks: int = 0
    voided: int = 0
    trouble: str = ""

    @property
    def running(self) -> list[Part]:
        return [part for part in self.parts if part.name not in self.needed]


def leave_one_out(lab: Lab, step: str, stack: CandidateFacts, parts: Sequence[Part], *, last: bool) -> LeftOut:
    """One round of backward elimination; drops at most one change, and none in the `last` round.

    With too few blocks that count, for faults of the host or of the stack itself, no change has an interval.
    """
    round_ = _Round(stack, parts)
    wanted, number = fewest_blocks(len(parts), CONFIDENCE), 0
    while round_.running and round_.blocks < wanted and not round_.trouble:
        number += 1
        _take(round_, _block(lab, f"{step}/b{number}", stack, round_.running))
    return lab.steps.once(step, LeftOut, lambda: _left_out(lab, round_, last))


def _block(lab: Lab, step: str, stack: CandidateFacts, running: Sequence[Part]) -> BlockOutcome:
    slots = {part.name: Slot("candidate", part.without) for part in running} | {STACK: Slot("incumbent", stack)}
    block, draw, commitment = draw_block(lab, step, lambda: shuffled(tuple(slots), lab.randbelow))
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="leave-one-out",
        kind="claim",
        incumbent=stack,
        candidates=tuple(part.without for part in running),
        setup=(),
        timed=tuple(slots[label] for label in draw.order),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=False),
        sealed=True,
    )
    return run_block(lab, plan)


def _take(round_: _Round, outcome: BlockOutcome) -> None:
    """Add a block: how the stack fails without a change counts at once, times only where the block does."""
    round_.trials += [facts.id for facts in outcome.timed]
    by_label = dict(zip(outcome.plan.draw.order, outcome.timed, strict=False))
    for part in round_.running:
        if (facts := by_label.get(part.name)) is not None and counts_against(facts):
            round_.needed[part.name] = f"without it the run ends as {facts.outcome}: {no_time(facts)}"
    if outcome.void:
        round_.voided += 1
        if round_.voided > MAX_VOID:
            round_.trouble = f"{round_.voided} blocks did not count, the last because {outcome.void}"
        return
    round_.blocks += 1
    base = by_label[STACK].score_s
    for part in round_.running:
        score = by_label[part.name].score_s
        assert base is not None and score is not None, "a block that counts has a time for every run"
        round_.ratios.setdefault(part.name, []).append(math.log(score / base))


def _left_out(lab: Lab, round_: _Round, last: bool) -> LeftOut:
    measured = {part.name: round_.ratios[part.name] for part in round_.running} if not round_.trouble else {}
    intervals = simultaneous(measured, len(round_.parts), CONFIDENCE)
    return LeftOut(
        stack=round_.stack.id,
        parts=tuple(fact for part in round_.parts if (fact := _fact(round_, part, intervals.get(part.name))) is not None),
        dropped="" if last else worth_nothing(intervals, lab.contract.objective.margin),
        trouble=round_.trouble,
        trials=tuple(round_.trials),
    )


def worth_nothing(intervals: Mapping[str, Interval], margin: float) -> str:
    """The change to leave out next: of those without a visible worth the one worth least; '' when there is none.

    So few blocks leave many a real gain unproven. One whose estimate is beyond the practical margin stays, unproven
    alone: leaving it out would more likely lose a gain than a passenger.
    """
    return eliminate({name: interval for name, interval in intervals.items() if interval.estimate <= 1 / (1 - margin)})


def _fact(round_: _Round, part: Part, interval: Interval | None) -> AttributionFacts | None:
    """What the round says of a change; None when it says nothing."""
    note = round_.needed.get(part.name, "")
    if interval is None and not note:
        return None
    return AttributionFacts(
        name=part.name,
        kind=part.kind,
        log_ratio=-math.log(interval.estimate) if interval is not None else None,
        how="leave-one-out",
        interval=interval,
        proven=bool(note) or (interval is not None and interval.low > 1),
        candidate=part.candidate,
        note=note,
    )

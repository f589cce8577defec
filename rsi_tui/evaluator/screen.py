"""Screening: cheap batches that drop what is hopeless and promote what deserves a verification.

A batch runs up to four candidates and two incumbents in a random order with one seed and length.
Nothing is adopted here; the estimates steer the search and choose the size of verification blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rsi_tui.evaluator import screening
from rsi_tui.evaluator.blocks import BlockOutcome, BlockPlan, Slot, no_time, run_block
from rsi_tui.evaluator.draws import Draw, draw_steps, keep_or_draw
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.journal.events import Screened
from rsi_tui.journal.facts import CandidateFacts, InvariantFacts, Outcome, ScreenFacts, TrialFacts

BATCH = 4
"""candidates a batch"""


@dataclass
class _Course:
    """What the batches have said of one candidate so far."""

    candidate: CandidateFacts
    ratios: list[float] = field(default_factory=list)
    trials: list[TrialFacts] = field(default_factory=list)
    invariants: tuple[InvariantFacts, ...] = ()
    incumbent_peak: int | None = None
    reason: str = ""
    promoted: bool = False
    open: bool = True

    @property
    def failure(self) -> TrialFacts | None:
        return next((f for f in self.trials if f.outcome != "ok"), None)

    def close(self, reason: str, promoted: bool = False) -> None:
        self.open, self.reason, self.promoted = False, reason, promoted


def screen(lab: Lab, step: str, candidates: Sequence[CandidateFacts], incumbent: CandidateFacts) -> Screened:
    """Screen at most BATCH candidates against the incumbent, in up to three batches."""
    if len(candidates) > BATCH:
        raise ValueError(f"a screening batch holds at most {BATCH} candidates, not {len(candidates)}")
    courses = [_Course(candidate) for candidate in candidates]
    for number in (1, 2, 3):
        running = [course for course in courses if course.open]
        if running:
            _batch(lab, f"{step}/b{number}", number, running, incumbent)
    return lab.steps.once(step, Screened, lambda: Screened(results=tuple(_facts(c, incumbent) for c in courses)))


def _batch(lab: Lab, step: str, number: int, courses: list[_Course], incumbent: CandidateFacts) -> None:
    outcome = _run(lab, step, number, [c.candidate for c in courses], incumbent)
    base = [math.log(f.score_s) for f in outcome.of(incumbent) if f.score_s is not None]
    for course in courses:
        facts = outcome.of(course.candidate)[0]
        course.trials.append(facts)
        course.incumbent_peak = _peak(outcome.of(incumbent))
        course.invariants = outcome.invariants.get(facts.id, course.invariants)
        if outcome.void or not base:
            course.close(f"the batch does not count: {outcome.void or 'no incumbent run has a time'}")
        elif facts.score_s is None:
            course.close(f"{facts.outcome}: {no_time(facts)}")
        elif broken := [i.name for i in course.invariants if i.status == "broken"]:
            course.close(f"breaks {', '.join(broken)}")
        else:
            course.ratios.append(math.log(facts.score_s) - fmean(base))
            _look(lab, course)


def _look(lab: Lab, course: _Course) -> None:
    """Drop, promote or run again, by the rule for the number of batches seen."""
    scale, margin = lab.measured_noise.pair_scale, lab.contract.objective.margin
    match course.ratios:
        case [first]:
            look = screening.first_look(first, scale)
        case [first, second]:
            look = screening.second_look(first, second, scale, margin)
        case [first, second, third, *_]:
            look = screening.third_look(first, second, third, scale, margin)
        case _:
            raise ValueError("a look needs at least one ratio")
    if look.decision != "again":
        course.close(look.reason, promoted=look.decision == "promote")


def _run(
    lab: Lab, step: str, number: int, candidates: list[CandidateFacts], incumbent: CandidateFacts
) -> BlockOutcome:
    labels = [str(i) for i in range(len(candidates))]
    block = f"{step.replace('/', '-')}"
    draw, commitment = keep_or_draw(
        lab.vault,
        block,
        lambda: Draw(
            seed=lab.randbelow(2**31),
            steps=draw_steps(lab.contract.objective, lab.randbelow),
            order=screening.batch_order(labels, "A", lab.randbelow),
        ),
    )
    judged = number == 1 and lab.contract.invariants.weights == "equivalent"
    twin = (Slot("twin", lab.original, extra=lab.twin),) if lab.twin else ()
    timed = tuple(
        Slot("incumbent", incumbent) if label == "A" else Slot("candidate", candidates[int(label)])
        for label in draw.order
    )
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="screen",
        incumbent=incumbent,
        candidates=tuple(candidates),
        setup=(Slot("initial", lab.original, zero_steps=True), *twin) if judged else (),
        timed=timed,
        draw=draw,
        commitment=commitment,
        kind="screen",
        judge=judged,
    )
    return run_block(lab, plan, CheckpointJudge(lab, active=judged))


def _peak(trials: Sequence[TrialFacts]) -> int | None:
    return max((f.peak_bytes for f in trials if f.peak_bytes is not None), default=None)


def _facts(course: _Course, incumbent: CandidateFacts) -> ScreenFacts:
    failure = course.failure
    outcome: Outcome = failure.outcome if failure is not None else "ok"
    usable = course.ratios and failure is None
    return ScreenFacts(
        candidate=course.candidate.id,
        incumbent=incumbent.id,
        outcome=outcome,
        log_ratio=screening.estimate(course.ratios) if usable else None,
        batches=len(course.trials),
        promoted=course.promoted,
        reason=course.reason or "undecided after three batches",
        peak_bytes=_peak(course.trials),
        incumbent_peak_bytes=course.incumbent_peak,
        invariants=course.invariants,
        trials=tuple(f.id for f in course.trials),
    )

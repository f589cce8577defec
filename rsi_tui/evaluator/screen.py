"""Screening: cheap batches that drop what is hopeless and promote what deserves a verification.

A batch runs up to four candidates and two incumbents in a random order with one seed and length.
Nothing is adopted here; the estimates steer the search and choose the size of verification blocks.
A batch that a fault of the host voided is run again; after that its candidates are `not_measured`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rsi_tui.evaluator import screening
from rsi_tui.evaluator.blocks import (
    MAX_VOID,
    BlockOutcome,
    BlockPlan,
    Slot,
    draw_block,
    no_time,
    run_block,
    setup_slots,
)
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import highest_peak, scores
from rsi_tui.journal.events import Screened
from rsi_tui.journal.facts import HOST_FAULTS, CandidateFacts, InvariantFacts, Outcome, ScreenFacts, TrialFacts

BATCH = 4
"""candidates a batch"""


@dataclass
class _Course:
    """What the batches have said of one candidate so far."""

    candidate: CandidateFacts
    ratios: list[float] = field(default_factory=list)
    trials: list[TrialFacts] = field(default_factory=list)
    invariants: tuple[InvariantFacts, ...] = ()
    theirs: list[TrialFacts] = field(default_factory=list)
    """incumbent runs of the batches that count"""
    incumbent_peak: int | None = None
    alone: bool = False
    """the only candidate of an evaluation: dropped only when it is clearly slower"""
    outcome: Outcome = "ok"
    reason: str = ""
    promoted: bool = False
    open: bool = True

    def close(self, reason: str, outcome: Outcome = "ok", promoted: bool = False) -> None:
        self.open, self.reason, self.outcome, self.promoted = False, reason, outcome, promoted


def screen(lab: Lab, step: str, candidates: Sequence[CandidateFacts], incumbent: CandidateFacts) -> Screened:
    """Screen at most BATCH candidates against the incumbent, in up to three batches."""
    if len(candidates) > BATCH:
        raise ValueError(f"a screening batch holds at most {BATCH} candidates, not {len(candidates)}")
    courses = [_Course(candidate) for candidate in candidates]
    for number in (1, 2, 3):
        running = [course for course in courses if course.open]
        if running:
            _batch(lab, f"{step}/b{number}", number, running, incumbent)
    lab.screened |= {course.candidate.id: (tuple(course.trials), tuple(course.theirs)) for course in courses}
    return lab.steps.once(step, Screened, lambda: Screened(results=tuple(_facts(c, incumbent) for c in courses)))


@dataclass(frozen=True)
class Alone:
    """What screening said of the only candidate of an evaluation."""

    facts: ScreenFacts
    ours: tuple[TrialFacts, ...]
    theirs: tuple[TrialFacts, ...]


def screen_alone(lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts) -> Alone:
    """Screen one candidate in two or three batches; `promoted` unless it failed or is clearly slower."""
    course = _Course(candidate, alone=True)
    for number in (1, 2, 3):
        if course.open:
            _batch(lab, f"{step}/b{number}", number, [course], incumbent)
    made = lab.steps.once(step, Screened, lambda: Screened(results=(_facts(course, incumbent),)))
    return Alone(made.results[0], tuple(course.trials), tuple(course.theirs))


def _batch(lab: Lab, step: str, number: int, courses: list[_Course], incumbent: CandidateFacts) -> None:
    outcome = _counting(lab, step, number, [c.candidate for c in courses], incumbent)
    base = scores(outcome.of(incumbent))
    if not outcome.void:
        lab.follow(base)
    for course in courses:
        facts = next((f for f in outcome.timed if f.candidate == course.candidate.id and f.arm == "candidate"), None)
        if facts is None or outcome.void:
            course.close(f"not measured: {outcome.void or 'its run is missing'}", "not_measured")
            continue
        course.trials.append(facts)
        course.theirs += outcome.of(incumbent)
        course.incumbent_peak = highest_peak(outcome.of(incumbent))
        course.invariants = outcome.invariants.get(facts.id, course.invariants)
        if broken := [f"{i.name} ({i.how})" for i in course.invariants if i.status == "broken"]:
            course.close(f"breaks {', '.join(broken)}", facts.outcome)
        elif facts.score_s is None:
            course.close(f"{facts.outcome}: {no_time(facts)}", facts.outcome if facts.outcome != "ok" else "crashed")
        else:
            course.ratios.append(screening.batch_log_ratio(facts.score_s, base))
            _look(lab, course)


def _counting(
    lab: Lab, step: str, number: int, candidates: list[CandidateFacts], incumbent: CandidateFacts
) -> BlockOutcome:
    """A batch that counts, or the last of those that faults of the host voided."""
    for attempt in range(MAX_VOID + 1):
        outcome = _run(lab, f"{step}v{attempt}" if attempt else step, number, candidates, incumbent)
        own = [f for f in outcome.timed if f.arm == "candidate" and f.outcome not in ("ok", *HOST_FAULTS)]
        if not outcome.void or own:
            break
    return outcome


def _look(lab: Lab, course: _Course) -> None:
    """Drop, promote or run again, by the rule for the number of batches seen."""
    scale, margin = lab.pair_scale, lab.contract.objective.margin
    if course.alone:
        look = screening.look_alone(course.ratios, scale)
        if look.decision != "again":
            course.close(look.reason, promoted=look.decision == "promote")
        return
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
    block, draw, commitment = draw_block(lab, step, lambda: screening.batch_order(labels, "A", lab.randbelow))
    judged = number == 1 and lab.compares
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="screen",
        kind="screen",
        incumbent=incumbent,
        candidates=tuple(candidates),
        setup=setup_slots(lab, None) if judged else (),
        timed=tuple(
            Slot("incumbent", incumbent) if label == "A" else Slot("candidate", candidates[int(label)])
            for label in draw.order
        ),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=judged),
    )
    return run_block(lab, plan)


def _facts(course: _Course, incumbent: CandidateFacts) -> ScreenFacts:
    usable = bool(course.ratios) and course.outcome == "ok"
    return ScreenFacts(
        candidate=course.candidate.id,
        incumbent=incumbent.id,
        outcome=course.outcome,
        log_ratio=screening.estimate(course.ratios) if usable else None,
        batches=len(course.trials),
        promoted=course.promoted,
        reason=course.reason,
        peak_bytes=highest_peak(course.trials),
        incumbent_peak_bytes=course.incumbent_peak,
        invariants=course.invariants,
        trials=tuple(f.id for f in course.trials),
    )

"""The builtin Selector: the next hypothesis of a direction, and the parent to test it on."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, DirectionFacts
from rsi_tui.minds.builtin.director import whole_effect, whole_stack
from rsi_tui.minds.builtin.joint import QUESTION, best_set
from rsi_tui.minds.builtin.pool import Option, options, peak_of, start_peak
from rsi_tui.minds.protocol import CloseDirection, HypothesisAnswer, SelectorBrief
from rsi_tui.search.acquisition import percent

MIN_FITS = 0.2
"""below this chance of fitting, a leaner parent is looked for"""


def select(brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
    """One falsifiable hypothesis, or why the direction holds no further one."""
    direction = brief.direction
    if direction is None:
        raise ValueError("a Selector is asked within a direction")
    if direction.reproduces:
        if brief.round > 1:
            return CloseDirection("the proven change was asked for once; why it did not run is in the record")
        return _reproduction(brief, direction.reproduces)
    if direction.question == QUESTION:
        return _set(brief, direction.start)
    if not direction.techniques:
        return _new_code(brief, direction)
    parent, found = _parent(brief, direction.start, direction.techniques if direction.proposal else ())
    wanted = [option for option in found if set(option.ids) <= set(direction.techniques)]
    if not wanted:
        return CloseDirection("every technique of the direction was tried or does not apply")
    return _hypothesis(parent, wanted[0])


def _set(brief: SelectorBrief, start: str) -> HypothesisAnswer | CloseDirection:
    """The set most worth a run now, with what is not measured yet counted as tried."""
    parent = next((candidate for candidate in brief.archive if candidate.id == start), brief.archive[0])
    found = best_set(brief, parent, sources_of(brief, parent))
    if found is None or found.gain <= brief.contract.objective.margin:
        return CloseDirection("no set of changes promises more than the practical margin")
    if found.time >= 0 and found.memory >= 0:
        return CloseDirection("what the models would try next is expected to be slower and no leaner")
    return HypothesisAnswer(
        parent=parent.id,
        statement=f"Together, {found.parts} change the time of a step by {percent(found.time)}: {found.words}.",
        techniques=found.techniques,
        knobs=dict(found.knobs),
        predicted_time=found.time,
        predicted_memory=found.memory,
        refuted_by=f"a step time above {percent(found.time / 3)} in screening, or any invariant broken",
    )


def _new_code(brief: SelectorBrief, direction: DirectionFacts) -> HypothesisAnswer | CloseDirection:
    """A direction for new code, which another mind has opened and another mind writes: its question is the hypothesis.

    It is asked a second time only where nothing came of the first.
    """
    if brief.round > (2 if brief.previous_refusal else 1):
        return CloseDirection("what the direction asks for was written, and a builtin Selector has no second idea for new code")
    return HypothesisAnswer(
        parent=direction.start,
        statement=f"{direction.question} {direction.reason}",
        techniques=(),
        knobs={},
        predicted_time=math.log1p(-direction.expected_gain),
        predicted_memory=0.0,
        refuted_by=f"a step time above {percent(math.log1p(-direction.expected_gain) / 3)} in screening, or any invariant broken",
        evidence=direction.evidence,
    )


def _reproduction(brief: SelectorBrief, record: str) -> HypothesisAnswer | CloseDirection:
    """The past proof as a hypothesis about here."""
    past = next((effect for effect in brief.past if effect.record == record), None)
    if past is None:
        return CloseDirection(f"the library does not hold {record} any more")
    effect = whole_effect(past, brief.past)
    return HypothesisAnswer(
        parent=ORIGINAL,
        statement=f"The change proven as {past.record} makes a step {percent(effect)} here as well.",
        techniques=whole_stack(past),
        knobs=past.knobs,
        predicted_time=effect,
        predicted_memory=0.0,
        refuted_by="a verification that does not prove it",
        evidence=(past.record,),
        used_hits={past.record: "the hypothesis itself"},
    )


def _parent(brief: SelectorBrief, start: str, proposed: tuple[str, ...]) -> tuple[CandidateFacts, list[Option]]:
    """The direction's start, or a leaner candidate of the archive where the best option would not fit on it."""
    by_id = {candidate.id: candidate for candidate in brief.archive}
    chosen = by_id.get(start) or brief.archive[0]
    found = options(brief, chosen, start_peak(brief, chosen), sources_of(brief, chosen), wanted=proposed)
    if found and not proposed and found[0].choice.fits < MIN_FITS:
        for leaner in brief.archive:
            peak = peak_of(brief.attempts, leaner.id)
            options_there = options(brief, leaner, peak, sources_of(brief, leaner)) if peak is not None else []
            if options_there and options_there[0].choice.value > found[0].choice.value:
                return leaner, options_there
    return chosen, found


def sources_of(brief: SelectorBrief, candidate: CandidateFacts) -> Mapping[str, str]:
    """The editable files of a candidate of the archive; those of the start where they were not given."""
    return brief.archive_sources.get(candidate.id, brief.sources)


def _hypothesis(parent: CandidateFacts, option: Option) -> HypothesisAnswer:
    expected = option.estimate
    return HypothesisAnswer(
        parent=parent.id,
        statement=f"{option.title} changes the time of a step by {percent(expected.time)}: {_because(option)}",
        techniques=option.ids,
        knobs=dict(option.change.knobs),
        predicted_time=expected.time,
        predicted_memory=expected.memory,
        refuted_by=f"a step time above {percent(expected.time / 3)} in screening, or any invariant broken",
        evidence=expected.evidence,
        used_hits=dict.fromkeys(expected.evidence, f"measured effect of {' with '.join(option.ids)}"),
    )


def _because(option: Option) -> str:
    """What a technique does; of a pair, why it takes two."""
    fast = option.techniques[-1]
    if len(option.techniques) == 1:
        return first_sentence(fast.summary)
    lean = option.techniques[0]
    return f"{fast.title} alone would not fit in memory, and {lean.title} makes the room. {first_sentence(fast.summary)}"


def first_sentence(text: str) -> str:
    head, dot, _ = text.partition(". ")
    return head + ("." if dot or not head.endswith(".") else "")

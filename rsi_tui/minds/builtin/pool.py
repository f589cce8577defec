"""What could be tried from a candidate: applicable techniques with their estimated effect, alone and in pairs.

A pair is a technique that is fast and hungry, and one that saves memory so that the first one fits: apart
one of them runs out of memory and the other gains nothing, or loses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rsi_tui.contract.model import Layer
from rsi_tui.errors import PatchError
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts
from rsi_tui.minds.protocol import Attempt, Brief
from rsi_tui.search.acquisition import Choice, score
from rsi_tui.search.estimate import Estimate, estimate, tried_here
from rsi_tui.techniques.base import Change, Effect, Situation, Technique
from rsi_tui.techniques.registry import applicable, apply_all

MIN_CHANCE = 0.3
"""a change that is less likely than this to matter is not worth a screening batch"""
TIGHT = 0.7
"""chance of fitting below which a companion that saves memory is looked for"""
SAVES = -0.03
"""log-ratio of memory from which on a technique is such a companion"""
WIDENS = 0.2
"""what a companion must add to the chance of fitting"""


@dataclass(frozen=True)
class Option:
    """One technique that could be tried now, or two that only go together."""

    techniques: tuple[Technique, ...]
    """of a pair: what saves memory, then what uses it"""
    change: Change
    estimate: Estimate
    choice: Choice

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(technique.id for technique in self.techniques)

    @property
    def layer(self) -> Layer:
        return self.techniques[0].layer if len(self.techniques) == 1 else "memory"

    @property
    def title(self) -> str:
        return " with ".join(technique.title for technique in reversed(self.techniques))


@dataclass(frozen=True)
class _Known:
    """An applicable technique and what is expected of it, tried before or not."""

    technique: Technique
    change: Change
    effect: Effect
    estimate: Estimate
    choice: Choice
    tried: bool


def options(
    brief: Brief, start: CandidateFacts, start_peak: int | None, sources: Mapping[str, str], *, wanted: Collection[str] = ()
) -> list[Option]:
    """Untried techniques that may well make a difference on a start and did not fail before, best first.

    `sources` are the start's own; `wanted` are techniques that a person asked for, whatever is expected of them.
    """
    situation = Situation(sources, brief.contract, brief.profile, start.knobs)
    known = [_known(brief, start, start_peak, *found) for found in applicable(situation)]
    found = [
        Option((one.technique,), one.change, one.estimate, one.choice)
        for one in known
        if not one.tried and (one.technique.id in wanted or one.estimate.time <= 0 or one.estimate.memory < 0)
    ]
    found += _pairs(brief, start, start_peak, situation, known)
    worth = (
        option
        for option in found
        if not option.estimate.failed_before and (option.choice.chance >= MIN_CHANCE or set(option.ids) <= set(wanted))
    )
    return sorted(worth, key=lambda option: -option.choice.value)


def _known(
    brief: Brief, start: CandidateFacts, start_peak: int | None, technique: Technique, change: Change, effect: Effect
) -> _Known:
    ids = (technique.id,)
    expected = _estimate(brief, ids, change, effect)
    tried = tried_here(ids, start.techniques, brief.attempts)
    return _Known(technique, change, effect, expected, _score(brief, expected, start_peak, effect.startup_s), tried)


def _estimate(brief: Brief, ids: tuple[str, ...], change: Change, effect: Effect) -> Estimate:
    limit = brief.contract.launch.memory_limit_bytes
    return estimate(ids, change.knobs, effect, brief.past, brief.noise_scale, brief.attempts, limit)


def _score(brief: Brief, expected: Estimate, start_peak: int | None, startup_s: float) -> Choice:
    contract, profile = brief.contract, brief.profile
    run_s = sum(contract.objective.steps) / 2 * profile.step_s if profile is not None else 0.0
    startup = startup_s / run_s if run_s > 0 else 0.0
    return score(expected, start_peak, contract.launch.memory_limit_bytes, contract.objective.margin, startup)


def _pairs(
    brief: Brief, start: CandidateFacts, start_peak: int | None, situation: Situation, known: Sequence[_Known]
) -> Iterator[Option]:
    """Each technique that would not fit alone, with each that could make room for it.

    What compilers take at the start of a run, no saving of the program makes room for.
    """
    hungry = [
        one
        for one in known
        if one.estimate.time < 0 and one.estimate.memory > 0 and one.choice.fits < TIGHT and not one.effect.startup_s
    ]
    savers = [one for one in known if one.estimate.memory < SAVES]
    for fast in hungry:
        for lean in savers:
            ids = (lean.technique.id, fast.technique.id)
            if tried_here(ids, start.techniques, brief.attempts):
                continue
            try:
                change = apply_all(ids, situation)
            except PatchError:
                continue
            expected = _together(brief, ids, change, lean, fast)
            choice = _score(brief, expected, start_peak, lean.effect.startup_s + fast.effect.startup_s)
            if choice.fits - fast.choice.fits >= WIDENS:
                yield Option((lean.technique, fast.technique), change, expected, choice)


def _together(brief: Brief, ids: tuple[str, ...], change: Change, lean: _Known, fast: _Known) -> Estimate:
    """Effects of two techniques as if they were independent, corrected by what the pair itself has shown."""
    time = lean.estimate.time + fast.estimate.time
    memory = lean.estimate.memory + fast.estimate.memory
    seen = _estimate(brief, ids, change, Effect(time, memory))
    if seen.evidence or seen.failed_before:
        return seen
    evidence = tuple(dict.fromkeys((*lean.estimate.evidence, *fast.estimate.evidence)))
    return Estimate(time, math.hypot(lean.estimate.time_sd, fast.estimate.time_sd), memory, evidence)


def peak_of(attempts: tuple[Attempt, ...], candidate: str) -> int | None:
    """Measured peak memory of a candidate; the original's comes from any screening against it."""
    for attempt in attempts:
        if attempt.screen is None:
            continue
        if attempt.candidate.id == candidate and attempt.screen.peak_bytes is not None:
            return attempt.screen.peak_bytes
        if attempt.screen.incumbent == candidate and attempt.screen.incumbent_peak_bytes is not None:
            return attempt.screen.incumbent_peak_bytes
    return None


def start_peak(brief: Brief, candidate: CandidateFacts) -> int | None:
    """Peak memory to count from: measured, else for the original that of its profile, one process's own."""
    known = peak_of(brief.attempts, candidate.id)
    return brief.profile.peak_bytes if known is None and candidate.id == ORIGINAL else known

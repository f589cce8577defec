"""What could be tried from a candidate: applicable techniques with their estimated effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rsi_tui.journal.facts import CandidateFacts
from rsi_tui.minds.protocol import Brief
from rsi_tui.search.acquisition import Choice, score
from rsi_tui.search.estimate import Estimate, estimate, tried_here
from rsi_tui.techniques.base import Change, Situation, Technique
from rsi_tui.techniques.registry import applicable

MIN_CHANCE = 0.3
"""a change that is less likely than this to matter is not worth a screening batch"""


@dataclass(frozen=True)
class Option:
    """One technique that could be tried now."""

    technique: Technique
    change: Change
    estimate: Estimate
    choice: Choice


def options(
    brief: Brief, start: CandidateFacts, start_peak: int | None, sources: Mapping[str, str]
) -> list[Option]:
    """Untried techniques that may well make a difference on a start and did not fail before, best first.

    `sources` are the start's own.
    """
    situation = Situation(sources, brief.contract, brief.profile, start.knobs)
    found = []
    for technique, change, effect in applicable(situation):
        if tried_here((technique.id,), start.techniques, brief.attempts):
            continue
        expected = estimate((technique.id,), change.knobs, effect, brief.past, brief.noise_scale)
        if expected.failed_before or (expected.time > 0 and expected.memory >= 0):
            continue
        contract = brief.contract
        choice = score(expected, start_peak, contract.launch.memory_limit_bytes, contract.objective.margin)
        if choice.chance >= MIN_CHANCE:
            found.append(Option(technique, change, expected, choice))
    return sorted(found, key=lambda option: -option.choice.value)

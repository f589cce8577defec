"""Expected effect of a change: the technique's own prediction, corrected by what was measured.

A first model, honest about being one: effects on log time and log memory are Gaussian, the
technique's prediction is the prior mean, every measurement of the same change (in this campaign, or
in the library, discounted by how well its conditions fit) updates it. Effects of joined changes add
up. Gaussian processes with interactions and censoring take this place later, behind `Estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rsi_tui.contract.model import KnobValue
from rsi_tui.minds.protocol import Attempt, PastEffect
from rsi_tui.techniques.base import Effect

PRIOR_SD = {"low": 0.06, "medium": 0.04, "high": 0.02}
"""standard deviation of a prediction's error on log time, by its stated confidence"""
FAILED = ("failed", "invalid", "off_direction")


@dataclass(frozen=True)
class Estimate:
    """What is expected of a change, against the candidate it is applied to."""

    time: float
    """log-ratio of step time; negative is faster"""
    time_sd: float
    memory: float
    """log-ratio of peak memory"""
    evidence: tuple[str, ...] = ()
    """library records that moved it"""
    failed_before: str = ""
    """why the same change failed under the same conditions; '' when it did not"""


@dataclass(frozen=True)
class _Observation:
    log_ratio: float
    sd: float
    record: str


def same_change(
    techniques: tuple[str, ...], knobs: Mapping[str, KnobValue], other: PastEffect
) -> bool:
    """Does a past candidate test exactly this change, beyond what its base had already?"""
    return set(other.techniques) == set(techniques) and all(other.knobs.get(name) == value for name, value in knobs.items())


def estimate(
    techniques: tuple[str, ...],
    knobs: Mapping[str, KnobValue],
    predicted: Effect,
    past: Iterable[PastEffect],
    noise_scale: float,
) -> Estimate:
    """Posterior of the effect of a change given the library."""
    observations: list[_Observation] = []
    failed = ""
    for effect in past:
        if not same_change(techniques, knobs, effect):
            continue
        if effect.verdict in FAILED and effect.same_conditions:
            failed = f"{effect.record}: {effect.verdict}, {effect.reason}"
        elif effect.log_ratio is not None and effect.fit > 0:
            # Conditions that do not fit make a measurement worth less, never worthless in itself.
            sd = max(noise_scale, 0.01) / max(effect.fit, 0.05) ** 2 + (0.0 if effect.same_workload else 0.08)
            observations.append(_Observation(effect.log_ratio, sd, effect.record))
    precision = 1 / PRIOR_SD[predicted.confidence] ** 2
    total = predicted.time * precision
    for seen in observations:
        precision += 1 / seen.sd**2
        total += seen.log_ratio / seen.sd**2
    return Estimate(
        time=total / precision,
        time_sd=math.sqrt(1 / precision),
        memory=predicted.memory,
        evidence=tuple(seen.record for seen in observations),
        failed_before=failed,
    )


def tried_here(techniques: tuple[str, ...], parent_stack: tuple[str, ...], attempts: Iterable[Attempt]) -> bool:
    """Was this change tried in this campaign on the same base stack?"""
    wanted = set(parent_stack) | set(techniques)
    return any(set(a.candidate.techniques) == wanted for a in attempts)

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
MEMORY_SD, MEASURED_SD = 0.15, 0.03
"""standard deviations on log memory: of a prediction, and of a measured peak on another stack"""
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
    attempts: Iterable[Attempt] = (),
    limit_bytes: int = 0,
) -> Estimate:
    """Posterior of the effect of a change given the library, and of its memory given this campaign's runs of it."""
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
        memory=memory_seen(techniques, predicted.memory, attempts, limit_bytes),
        evidence=tuple(seen.record for seen in observations),
        failed_before=failed,
    )


def memory_seen(
    techniques: tuple[str, ...], predicted: float, attempts: Iterable[Attempt], limit_bytes: int
) -> float:
    """Log-ratio of peak memory, corrected by what runs of the same change showed.

    A run that ended reports its peak. One that ran out of memory reports that it needs more than the limit: it moves
    the prediction up to there (the mean of a normal prior cut off below the limit), never down.
    """
    precision, total, floor = 1 / MEMORY_SD**2, predicted / MEMORY_SD**2, -math.inf
    for attempt in attempts:
        screen = attempt.screen
        if screen is None or set(attempt.added) != set(techniques) or not screen.incumbent_peak_bytes:
            continue
        if screen.outcome == "ok" and screen.peak_bytes:
            precision += 1 / MEASURED_SD**2
            total += math.log(screen.peak_bytes / screen.incumbent_peak_bytes) / MEASURED_SD**2
        elif screen.outcome == "oom" and limit_bytes:
            floor = max(floor, math.log(limit_bytes / screen.incumbent_peak_bytes))
    mean, sd = total / precision, math.sqrt(1 / precision)
    return mean if floor == -math.inf else above(mean, sd, floor)


def above(mean: float, sd: float, floor: float) -> float:
    """Mean of a normal variable that is known to exceed `floor`."""
    z = (floor - mean) / sd
    beyond = 0.5 * math.erfc(z / math.sqrt(2))
    if beyond < 1e-9:
        return floor + sd / max(z, 1.0)
    return mean + sd * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / beyond


def tried_here(techniques: tuple[str, ...], parent_stack: tuple[str, ...], attempts: Iterable[Attempt]) -> bool:
    """Was this change tried in this campaign on the same base stack?"""
    wanted = set(parent_stack) | set(techniques)
    return any(set(a.candidate.techniques) == wanted for a in attempts)

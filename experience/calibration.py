"""Predictions scored against outcomes: how far a technique's or a mind's word has been true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from experience.interface import Calibration
from experience.records import CandidateRow

Scored = Literal["hit", "overshoot", "undershoot", "miss", "failed"]
NEAR = 0.5
"""share of a prediction that the measured effect may be off and still be a hit"""
SMALL = 0.01
"""log ratio below which effects are alike"""
WEIGHT = 2.0
"""predictions that came true, as which a name without a past begins"""
MOST = 2.0
UNMEASURED = frozenset({"not_measured", "cancelled", "preempted"})


def scored(predicted: float, measured: float | None) -> Scored:
    """What became of one prediction; both are log ratios of step time, negative is faster."""
    if measured is None:
        return "failed"
    if abs(measured - predicted) <= max(SMALL, NEAR * abs(predicted)):
        return "hit"
    if predicted * measured <= 0 or abs(measured) < SMALL:
        return "miss"
    return "overshoot" if abs(predicted) > abs(measured) else "undershoot"


def factor(pairs: Iterable[tuple[float, float | None]]) -> float:
    """Least squares of measured on predicted through zero, drawn to 1 by `WEIGHT` predictions of the usual size; failures count as 0."""
    known = [(predicted, measured or 0.0) for predicted, measured in pairs]
    square = sum(predicted * predicted for predicted, _ in known)
    if square == 0.0:
        return 1.0
    prior = WEIGHT * square / len(known)
    return min(MOST, max(0.0, (prior + sum(predicted * measured for predicted, measured in known)) / (prior + square)))


def calibrated(rows: Iterable[CandidateRow], minds: Mapping[str, str]) -> list[Calibration]:
    """Of each mind (`minds`: campaign -> mind) and each technique that a candidate added alone; most predictions first.

    Bundles have no prediction of their own; what was refused or not measured says nothing.
    """
    pairs: dict[tuple[Literal["technique", "mind"], str], list[tuple[float, float | None]]] = defaultdict(list)
    for row in rows:
        if row.bundle_of or row.predicted_time == 0.0 or row.outcome in UNMEASURED or not (row.outcome or row.log_ratio is not None):
            continue
        pair = (row.predicted_time, row.log_ratio)
        if mind := minds.get(row.campaign):
            pairs["mind", mind].append(pair)
        added = [name for name in row.techniques if name not in row.base_stack]
        if len(added) == 1:
            pairs["technique", added[0]].append(pair)
    found = [_of(by, name, known) for (by, name), known in pairs.items()]
    return sorted(found, key=lambda item: (item.by, -item.predictions, item.name))


def _of(by: Literal["technique", "mind"], name: str, pairs: list[tuple[float, float | None]]) -> Calibration:
    words = [scored(*pair) for pair in pairs]
    return Calibration(
        by, name, hits=words.count("hit"), overshoots=words.count("overshoot"), undershoots=words.count("undershoot"),
        misses=words.count("miss"), failed=words.count("failed"), factor=round(factor(pairs), 4),
    )  # fmt: skip

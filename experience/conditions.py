"""Fit of conditions: how far an observation carries over to where it would be used.

    fit = 0.40 workload + 0.35 hardware + 0.25 software        each part in 0..1

A part is 1 when both sides are equal and 0.5 when either is unknown (knowledge has no hardware).
Hardware and software that differ get half the share of words they have in common (another patch
version of torch is closer than another machine). Another workload gets half the overlap of the two
profiles (share of each phase) where both are known, else 0. Nothing here judges relevance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

WORKLOAD_WEIGHT = 0.40
HARDWARE_WEIGHT = 0.35
SOFTWARE_WEIGHT = 0.25
UNKNOWN = 0.5


@dataclass(frozen=True)
class Conditions:
    """Where an answer is going to be used; '' means not known."""

    workload_key: str = ""
    hardware: str = ""
    software: str = ""
    profile: Mapping[str, float] = field(default_factory=dict)
    """phase -> share of a step, 0..1"""
    base_commit: str = ""
    """commit of the unchanged program"""
    terms: str = ""
    """hash of what the contract asks of a candidate, memory limit apart"""
    memory_limit_bytes: int = 0


@dataclass(frozen=True)
class Fit:
    """How well two sets of conditions match."""

    value: float
    """0..1"""
    matches: tuple[str, ...]
    """names of the conditions that are equal"""
    differs: tuple[str, ...]
    """names of those known on both sides and not equal"""


def words_in_common(one: str, other: str) -> float:
    """Jaccard index of the words of two fingerprints, 0..1."""
    a, b = set(re.split(r"[\s,;]+", one)), set(re.split(r"[\s,;]+", other))
    return len(a & b) / len(a | b)


def overlap(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Overlap of two profiles, 0..1: the sum of the smaller share of each phase."""
    return min(1.0, sum(min(share, other.get(phase, 0.0)) for phase, share in one.items()))


def _similarity(one: str, other: str) -> float:
    if not one or not other:
        return UNKNOWN
    return 1.0 if one == other else 0.5 * words_in_common(one, other)


def _workload(wanted: Conditions, found: Conditions) -> float:
    if not wanted.workload_key or not found.workload_key:
        return UNKNOWN
    if wanted.workload_key == found.workload_key:
        return 1.0
    return 0.5 * overlap(wanted.profile, found.profile)


def fit(wanted: Conditions, found: Conditions) -> Fit:
    """Fit of what was found to where it is wanted."""
    value = (
        WORKLOAD_WEIGHT * _workload(wanted, found)
        + HARDWARE_WEIGHT * _similarity(wanted.hardware, found.hardware)
        + SOFTWARE_WEIGHT * _similarity(wanted.software, found.software)
    )
    pairs = {
        "workload": (wanted.workload_key, found.workload_key),
        "hardware": (wanted.hardware, found.hardware),
        "software": (wanted.software, found.software),
    }
    known = {name: pair for name, pair in pairs.items() if pair[0] and pair[1]}
    return Fit(
        value,
        tuple(name for name, (a, b) in known.items() if a == b),
        tuple(name for name, (a, b) in known.items() if a != b),
    )

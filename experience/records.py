"""Rows that the library is given: flat values, no types of the programs that made them.

`Entry` is one searchable text with its conditions; the `*Row` types are the tables. All ids are
unique over homes (campaign id + local id), so that libraries can be merged without duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EntryKind = Literal["hypothesis", "failure", "diff", "lesson", "knowledge", "note"]


@dataclass(frozen=True)
class Entry:
    """One text that can be found again, with the conditions it was written under."""

    id: str
    """CAMPAIGN/KIND/LOCAL, for example 20261130-1/hypothesis/h3"""
    kind: EntryKind
    text: str
    campaign: str = ""
    workload: str = ""
    workload_key: str = ""
    layer: str = ""
    hardware: str = ""
    """fingerprint of CPU/GPU, cores and memory"""
    software: str = ""
    """versions that matter: python, torch"""
    outcome: str = ""
    """verdict or outcome of what the text is about; '' for knowledge"""
    at: str = ""
    """UTC, ISO 8601"""
    source: str = ""
    """where a piece of knowledge comes from"""
    candidate: str = ""
    """id of the candidate row it belongs to, CAMPAIGN/cN"""


@dataclass(frozen=True)
class CampaignRow:
    id: str
    workload: str
    workload_key: str
    state: str
    trust: str
    preset: str
    mind: str
    contract_hash: str
    hardware: str
    software: str
    started_at: str
    ended_at: str = ""
    candidates: int = 0
    trials_ok: int = 0
    trials_failed: int = 0
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    profile: dict[str, float] = field(default_factory=dict)
    """phase -> share"""


@dataclass(frozen=True)
class CandidateRow:
    """One candidate with its hypothesis and the last word on it."""

    id: str
    """CAMPAIGN/cN"""
    campaign: str
    workload_key: str
    parent: str
    direction: str
    layer: str
    statement: str
    techniques: tuple[str, ...]
    knobs: dict[str, str | int | float | bool]
    """those that differ from the defaults"""
    base_stack: tuple[str, ...]
    """techniques of its parent"""
    base_knobs: dict[str, str | int | float | bool]
    diff_hash: str
    launch_fingerprint: str
    predicted_time: float
    predicted_memory: float
    log_ratio: float | None
    """measured against the incumbent; None when it failed"""
    peak_bytes: int | None
    outcome: str
    verdict: str
    """adopted, ..., or 'screened' when it was dropped or not promoted, 'refused' when it never ran"""
    reason: str
    memory_limit_bytes: int
    requested_bytes: int | None
    hardware: str
    software: str
    at: str
    bundle_of: tuple[str, ...] = ()
    base_commit: str = ""
    """commit of the unchanged program that it descends from"""
    terms: str = ""
    """hash of what its contract asked of it, memory limit apart"""


@dataclass(frozen=True)
class TrialRow:
    id: str
    """CAMPAIGN/tN"""
    campaign: str
    candidate: str
    kind: str
    arm: str
    block: str
    steps: int
    outcome: str
    cause: str
    detail: str
    wall_s: float
    step_s: float | None
    score_s: float | None
    peak_bytes: int | None
    at: str


@dataclass(frozen=True)
class DirectionRow:
    id: str
    campaign: str
    question: str
    layer: str
    start_kind: str
    start: str
    reason: str
    expected_gain: float
    budget: int
    closed: str
    lesson: str
    at: str


@dataclass(frozen=True)
class RetrievalRow:
    """One question to the library, and what became of its answer."""

    id: str
    """CAMPAIGN/rN"""
    campaign: str
    role: str
    query: str
    hits: tuple[str, ...]
    """ids of the entries that came back"""
    used: tuple[str, ...]
    """ids of those that changed something"""
    changed: str
    """what they changed"""
    about: str
    """id of the direction or hypothesis that followed, CAMPAIGN/dN; '' when none did"""
    paid: str
    """'proven' when a candidate of it was adopted, 'not proven' when none was, 'open' while that can change"""
    at: str


@dataclass(frozen=True)
class Batch:
    """All rows of one campaign's journal up to an event; what the library stores at once."""

    campaign: CampaignRow
    last_seq: int
    """sequence number of the last event contained"""
    head: str
    """hash of that event: the anchor outside the journal"""
    directions: tuple[DirectionRow, ...] = ()
    candidates: tuple[CandidateRow, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    entries: tuple[Entry, ...] = ()
    retrievals: tuple[RetrievalRow, ...] = ()

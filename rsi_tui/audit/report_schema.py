"""The canonical report's shape, as a model: what docs/report.schema.json is written from, and reports are tested against.

A part that a campaign has nothing to say of is null or empty; nothing is left out. Times are seconds, sizes bytes,
effects natural logs of candidate over incumbent unless a name says otherwise.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rsi_tui.contract.model import KnobValue
from rsi_tui.journal.facts import (
    BandFacts,
    ClaimFacts,
    Interval,
    InvariantFacts,
    NoiseFacts,
    ProfileFacts,
    VerdictFacts,
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Trust(_Part):
    level: Literal["A", "B", "C"]
    meaning: str
    isolation: str = Field(description="what isolates a run on the machine that measured")


class Campaign(_Part):
    id: str
    kind: str = Field(description="campaign, evaluation, check, baseline or replay")
    workload: str
    preset: str
    mind: str
    seed: int = Field(description="of the search alone")
    state: str
    reason: str
    search_ended: str
    started_at: str = Field(description="UTC, ISO 8601")
    last_at: str
    engine_starts: int
    base_commit: str = Field(description="commit of the program as it was measured")
    contract_hash: str
    contract: dict[str, Any] = Field(description="the frozen reading of workload.toml")
    folder: str
    ordinal: int | None = Field(description="number of the campaign on its workload, which its error probability follows from")
    alpha: float | None
    version: str


class Claim(ClaimFacts):
    revoked: str = Field(description="who took it back and why; empty while it stands")


class Setting(_Part):
    name: str
    before: KnobValue
    after: KnobValue
    how: str = Field(description="how to give it")


class Change(_Part):
    name: str
    candidate: str
    kind: str = Field(description="setting never switched on, new code, or both")
    predicted: float | None
    log_ratio: float | None
    how: str
    known_by: str
    interval: Interval | None
    proven: bool = Field(description="by leave-one-out: the stack is slower without it, or does not run")
    hypothesis: str


class Attempt(_Part):
    candidate: str
    hypothesis: str
    contents: str
    predicted: float | None
    screened: float | None = Field(description="an estimate of one or two runs, never quoted as a gain")
    result: str
    reason: str
    speedup: Interval | None
    seconds: float = Field(description="of trials")


class Adopted(_Part):
    candidate: str
    commit: str
    techniques: list[str]
    affects: list[str]
    settings: list[Setting]
    diff: str = Field(description="unified, against the base commit")
    paths: list[str] = Field(description="files that it changes")
    parts: list[Change]
    bundle: str
    stack: list[Attempt]
    peak_before: int | None
    peak_after: int | None


class Verdict(VerdictFacts):
    threshold: float | None = Field(description="e-value that was needed")


class Payback(_Part):
    cost: dict[str, float | None] = Field(description="of the search: hours, usd")
    saved_a_month: dict[str, dict[str, float] | None] | None = Field(description="hours and usd, each low, estimate and high; null without a proven claim")
    days: float | None = Field(description="of that use, until the search is paid back")


class Record(_Part):
    events: int = Field(description="the report follows from the journal's first so many events")
    head: str = Field(description="hash of the last of them")
    last_at: str


class Report(_Part):
    """The audit report of one campaign or evaluation; `rsi verify` derives it again from the journal."""

    schema_: Literal[2] = Field(alias="schema")
    renderer: str = Field(description="version of rsi that wrote it")
    trust: Trust
    campaign: Campaign
    headline: str
    summary: str
    claim: Claim | None = Field(description="the adopted changes together against the original, on fresh pairs")
    adopted: Adopted | None
    verdict: Verdict | None = Field(description="the verification of what is adopted")
    unsuccessful: list[Attempt] = Field(description="refused and failed attempts, with reason and cost")
    eliminations: list[dict[str, Any]] = Field(description="rounds of leave-one-out")
    revocations: list[dict[str, Any]]
    canaries: dict[str, Any] | None
    leaner: list[Attempt]
    pending: list[Attempt]
    retrievals: list[dict[str, Any]] = Field(description="what the library was asked, what came back, what it changed")
    past: list[dict[str, Any]]
    directions: list[dict[str, Any]]
    invariants: list[InvariantFacts]
    invariants_of: str
    gaps: list[str] = Field(description="what no invariant covers")
    masked: list[dict[str, Any]]
    bands: list[BandFacts]
    noise: NoiseFacts | None
    no_rounding: str
    profile: ProfileFacts | None = Field(description="of the original, by an instrumented run that no verdict uses")
    profile_after: ProfileFacts | None = Field(description="of what was claimed")
    course: dict[str, list[dict[str, Any]]] = Field(description="tried and best, by seconds of trials spent")
    frontier: list[dict[str, Any]] = Field(description="step time and peak memory as ratios to what each was measured against")
    intervals: list[dict[str, Any]]
    mind: dict[str, Any] = Field(description="who thought for the roles, calls and cost")
    usage: dict[str, float | None] | None = Field(description="what a person said of their use")
    usage_words: str
    payback: Payback | None
    procedure: dict[str, Any]
    environment: dict[str, str] = Field(description="hardware and software")
    cost: dict[str, Any]
    overhead: dict[str, Any]
    failed_trials: list[dict[str, Any]]
    void_blocks: dict[str, str]
    people: list[dict[str, Any]] = Field(description="what people did, when, and who")
    record: Record


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of the canonical report."""
    return Report.model_json_schema(by_alias=True)

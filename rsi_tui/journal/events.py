"""The events of a journal: one body per kind of thing that happens, discriminated by `type`.

An event is written and flushed before it is acted on. `step` names the decision it records; a
resumed campaign finds the step and continues from it (see `steps`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rsi_tui.journal.facts import (
    ORIGINAL,
    AttributionFacts,
    BandFacts,
    BlobFacts,
    CandidateFacts,
    ClaimFacts,
    DirectionFacts,
    Fact,
    FindingFacts,
    HypothesisFacts,
    Interval,
    LessonFacts,
    NoiseFacts,
    PlantedFacts,
    ProfileFacts,
    RetrievedFacts,
    ReviewFacts,
    ScreenFacts,
    TokenFacts,
    TrialFacts,
    VerdictFacts,
)

SCHEMA_VERSION = 1

State = Literal["contracted", "baselined", "searching", "claiming", "finished", "stopped", "paused"]


Purpose = Literal[
    "check", "calibration", "reference", "screen", "verify", "claim", "one-step", "endurance", "memory", "leave-one-out"
]
"""what the trials of a block are for"""


class CampaignCreated(Fact):
    type: Literal["campaign_created"] = "campaign_created"
    campaign: str
    workload: str
    workload_key: str
    """identity of the workload over campaigns: hash of name and root of its history"""
    folder: str
    contract_hash: str
    contract: dict[str, Any]
    base_commit: str
    preset: str
    mind: str
    seed: int
    """of the search alone"""
    max_candidates: int
    hours: float | None = None
    usd: float | None = None
    kind: Literal["campaign", "evaluation", "check", "baseline", "replay"] = "campaign"
    """'evaluation': the verdict on one change of a person's own (`rsi evaluate`); 'check': what is planted must be caught;
    'baseline': the program as it is, measured; 'replay': an adopted change, measured again"""
    replays: str = ""
    """of a replay: 'CAMPAIGN/CANDIDATE' that is measured again; '' else"""
    approval: bool = False
    """what is proven waits for a person's word"""
    retry: bool = False
    """what failed before under the same conditions is tried again"""
    options: tuple[str, ...] = ()
    """of --snapshot, --committed and --unsandboxed those that were given: resuming needs them again"""
    trust: Literal["A", "B", "C"]
    sandbox: str
    """what isolates a trial here, one sentence"""
    host: dict[str, str]
    """hardware and software fingerprint"""
    version: str


class StateChanged(Fact):
    type: Literal["state_changed"] = "state_changed"
    state: State
    reason: str = ""
    waits: str = ""
    """candidate that is proven and waits for a person's approval; '' when none does any more"""


class Profiled(Fact):
    type: Literal["profiled"] = "profiled"
    profile: ProfileFacts
    candidate: str = ORIGINAL
    """whose step it is: the original's before the search, what was claimed after it"""


class TrialStarted(Fact):
    type: Literal["trial_started"] = "trial_started"
    trial: str
    candidate: str
    kind: str
    arm: str
    """'sealed' inside an open verification block"""
    block: str
    slot: int
    of: int
    """slots of the block; 1 for a lone trial"""
    attempt: int


class TrialFinished(Fact):
    type: Literal["trial_finished"] = "trial_finished"
    trial: str
    facts: TrialFacts | None
    """None while sealed: the values follow in block_closed"""
    commitment: str = ""
    """sha256 of the sealed facts in the vault"""


class BlockOpened(Fact):
    type: Literal["block_opened"] = "block_opened"
    block: str
    purpose: Purpose
    candidates: tuple[str, ...]
    incumbent: str
    slots: int
    commitment: str
    """sha256 over order, seed and length, which lie in the evaluator's vault"""


class BlockClosed(Fact):
    type: Literal["block_closed"] = "block_closed"
    block: str
    trials: tuple[TrialFacts, ...]
    void: str = ""
    """why the block does not count (fault of the host); '' when it does"""
    validation_s: float = 0.0
    """what hidden validation took within it, beyond its trials"""


class Calibrated(Fact):
    type: Literal["calibrated"] = "calibrated"
    noise: NoiseFacts
    bands: tuple[BandFacts, ...]
    origin: str = ""
    """campaign or evaluation that measured them, where fresh pairs agreed with it; '' when measured here"""
    measured_at: str = ""
    """when the origin measured them, UTC; '' when measured here"""
    no_rounding: str = ""
    """why no candidate may round to bf16 on this machine although the contract allows it, a sentence; '' where it may"""


class RedTeamed(Fact):
    """What was planted against review, evaluator and sandbox before the search, and what got through."""

    type: Literal["red_teamed"] = "red_teamed"
    planted: tuple[PlantedFacts, ...]
    missing: tuple[str, ...] = ()
    """cheats that this program gives no opening for"""
    through: tuple[str, ...] = ()
    """names of those that nothing caught although it was expected to"""
    unsettled: tuple[str, ...] = ()
    """names of cheats that one run can't judge, since the contract lets what is learned differ"""
    origin: str = ""
    """campaign or check that did it under the same conditions; '' when done here"""
    judges: str = ""
    """hash of the code that judged"""
    seconds: float = 0.0
    """what it took"""


class Retrieved(Fact):
    type: Literal["retrieved"] = "retrieved"
    role: str
    query: str
    hits: tuple[RetrievedFacts, ...]
    changed: str
    """what the hits changed in the decision that follows; '' when nothing"""


class DirectionOpened(Fact):
    type: Literal["direction_opened"] = "direction_opened"
    direction: DirectionFacts


class DirectionClosed(Fact):
    type: Literal["direction_closed"] = "direction_closed"
    direction: str
    reason: str
    candidates: int
    lesson: LessonFacts


class SearchEnded(Fact):
    """The Director's decision to open no further direction."""

    type: Literal["search_ended"] = "search_ended"
    reason: str


class HypothesisWritten(Fact):
    type: Literal["hypothesis_written"] = "hypothesis_written"
    hypothesis: HypothesisFacts


class RoundEnded(Fact):
    """The Selector's decision that the direction holds no further hypothesis."""

    type: Literal["round_ended"] = "round_ended"
    direction: str
    reason: str


class CandidateBuilt(Fact):
    type: Literal["candidate_built"] = "candidate_built"
    candidate: CandidateFacts
    hypothesis: str
    """'' for a bundle"""
    direction: str
    diff: str
    """unified diff against base; '' without code changes"""


class CandidateRefused(Fact):
    """No candidate came of a hypothesis, or it is a duplicate; no trial was spent."""

    type: Literal["candidate_refused"] = "candidate_refused"
    hypothesis: str
    direction: str
    kind: Literal["no_change", "does_not_apply", "duplicate", "constraint", "broken", "scope"]
    reason: str
    attempt: str = ""
    """the patch as it was answered, for the next prompt"""
    findings: tuple[FindingFacts, ...] = ()
    """kind 'scope': each path and why it may not be changed"""


class Reviewed(Fact):
    type: Literal["reviewed"] = "reviewed"
    review: ReviewFacts


class Screened(Fact):
    type: Literal["screened"] = "screened"
    results: tuple[ScreenFacts, ...]


class VerdictReached(Fact):
    type: Literal["verdict_reached"] = "verdict_reached"
    verdict: VerdictFacts


class Claimed(Fact):
    type: Literal["claimed"] = "claimed"
    claim: ClaimFacts


class LeftOut(Fact):
    """One round of backward elimination: the stack against itself without each of its changes."""

    type: Literal["left_out"] = "left_out"
    stack: str
    """candidate id"""
    parts: tuple[AttributionFacts, ...]
    dropped: str
    """name of the change that is left out of the next stack; '' when none is"""
    trouble: str = ""
    """why nothing was learned, by a fault of the host or of the stack itself; '' when something was"""
    trials: tuple[str, ...] = ()


CanaryKind = Literal["no-op", "slower"]


class CanaryPlanted(Fact):
    """A change of the evaluator's own making that must never be adopted; its candidate is built like any other."""

    type: Literal["canary_planted"] = "canary_planted"
    candidate: str
    kind: CanaryKind
    forced: bool
    """taken through a verification of its own error probability, whatever screening says"""


class Revoked(Fact):
    """An adoption that is taken back, with what rested on it."""

    type: Literal["revoked"] = "revoked"
    candidate: str
    who: str
    """'rsi' or a person"""
    reason: str
    reopened: tuple[str, ...]
    """candidates built on it, or proven with error probability that it had handed on: no longer adopted"""


class Replayed(Fact):
    """An adopted change was measured again: in the replay's own journal, and in that of the campaign that adopted it."""

    type: Literal["replayed"] = "replayed"
    campaign: str
    candidate: str
    replay: str
    """id of the replay, whose journal has the runs"""
    outcome: Literal["agrees", "refuted", "undecided"]
    reason: str
    """one sentence"""
    before: Interval | None
    """speed-up as it was proven"""
    now: Interval | None
    differences: tuple[str, ...] = ()
    """what this machine has otherwise than the one that proved it; where there are any, nothing is refuted"""


class PersonActed(Fact):
    """A person paused, resumed, stopped, noted, approved, vetoed, proposed an idea, pinned the start or changed the budget."""

    type: Literal["person_acted"] = "person_acted"
    who: str
    action: Literal["pause", "resume", "stop", "note", "approve", "veto", "propose", "pin", "budget"]
    text: str = ""
    """the note, idea or candidate; 'candidates=40 hours=3' of a budget; '' of a pin that is taken away"""


class ProposalDeclined(Fact):
    """A person's idea of which no direction comes, and why."""

    type: Literal["proposal_declined"] = "proposal_declined"
    proposal: str
    """p1, p2, ... in the order in which the engine heard them"""
    reason: str


Role = Literal["director", "selector", "executor", "reviewer", "scribe"]
"""who asks a model: the four roles of the loop, and who writes the lesson"""


class ModelCallReserved(Fact):
    """Money and tokens that one call to a model may take, set aside before it is sent. The last one of a call counts;
    a call that has no `ModelCalled` was cut off by a crash, and counts as spent in full."""

    type: Literal["model_call_reserved"] = "model_call_reserved"
    call: str
    """m1, m2, ..."""
    role: Role
    direction: str
    """'' for a call of the Director"""
    model: str
    tokens: int
    """most that it can take, prompt and answer"""
    usd: float | None
    """None where the price of the model is not known"""


class ModelCalled(Fact):
    """One question to a model and what came of it, retries included."""

    type: Literal["model_called"] = "model_called"
    call: str
    role: Role
    direction: str
    model: str
    prompt: str
    """name, version and sha256 of the role's prompt file"""
    request: str
    """sha256 of all that was sent, the key apart"""
    retrieved: tuple[str, ...] = ()
    """ids of the library entries that were shown"""
    outcome: Literal["answered", "refused", "truncated", "malformed", "empty", "too_long", "failed"]
    detail: str = ""
    """what was wrong with the answer, one sentence; '' when nothing"""
    answer: str = ""
    """as JSON: what tools were called with, or the text; secrets left out"""
    attempts: tuple[str, ...] = ()
    """what went wrong before the last attempt, one entry each"""
    tokens: TokenFacts = TokenFacts()
    """of all attempts"""
    usd: float | None = None
    """None where the price is not known"""
    waited_s: float = 0.0
    """between attempts"""
    seconds: float = 0.0
    """in all"""
    reused: str = ""
    """the earlier call that had answered the very same request: nothing was sent; '' else"""


class SecretsRevealed(Fact):
    """The values behind the commitments, when the campaign has ended."""

    type: Literal["secrets_revealed"] = "secrets_revealed"
    blob: BlobFacts | None = None
    """the vault's entries, key -> {key, salt, value}, as JSON"""
    blocks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """the same in the line itself, as older versions wrote it"""


class EngineStarted(Fact):
    """An engine process took the campaign up (first start or resume)."""

    type: Literal["engine_started"] = "engine_started"
    pid: int
    resumed: bool


class AlphaGranted(Fact):
    """The k-th campaign or evaluation on a workload drew its error probability.

    In the home's journal, whose count it is, and in the campaign's own, once the program was seen to run.
    """

    type: Literal["alpha_granted"] = "alpha_granted"
    workload_key: str
    ordinal: int
    alpha: float
    campaign: str


class DroppedFile(Fact):
    """One file or folder that went."""

    path: str
    """from the home's folder"""
    bytes: int
    why: str


class Dropped(Fact):
    """Home journal: what a person's `rsi gc` takes away, noted before it goes."""

    type: Literal["dropped"] = "dropped"
    who: str
    files: tuple[DroppedFile, ...]


class NoteTaken(Fact):
    """Home journal: a note or a piece of knowledge that belongs to no campaign."""

    type: Literal["note_taken"] = "note_taken"
    who: str
    text: str
    source: str = ""


class SectionFacts(Fact):
    """One section of a document."""

    title: str
    """its headings from the outermost on; '' before the first"""
    text: str


class KnowledgeAdded(Fact):
    """Home journal: a document for the library; it replaces what was added under the same source before."""

    type: Literal["knowledge_added"] = "knowledge_added"
    who: str
    source: str
    """what it is cited by: a file's name, a title, an address"""
    licence: str = ""
    """'' when nobody said"""
    sections: tuple[SectionFacts, ...]
    """none: what was added under this source is taken away"""


Body = Annotated[
    CampaignCreated
    | StateChanged
    | Profiled
    | TrialStarted
    | TrialFinished
    | BlockOpened
    | BlockClosed
    | Calibrated
    | RedTeamed
    | Retrieved
    | DirectionOpened
    | DirectionClosed
    | SearchEnded
    | HypothesisWritten
    | RoundEnded
    | CandidateBuilt
    | CandidateRefused
    | Reviewed
    | Screened
    | VerdictReached
    | Claimed
    | LeftOut
    | CanaryPlanted
    | Revoked
    | Replayed
    | ModelCallReserved
    | ModelCalled
    | PersonActed
    | ProposalDeclined
    | SecretsRevealed
    | EngineStarted
    | AlphaGranted
    | Dropped
    | NoteTaken
    | KnowledgeAdded,
    Field(discriminator="type"),
]


class Event(Fact):
    """One line of a journal."""

    seq: int
    """from 0, without gaps"""
    at: str
    """UTC, ISO 8601 with microseconds"""
    v: int = SCHEMA_VERSION
    step: str = ""
    """durable name of the decision or action; unique within a journal when not ''"""
    body: Body
    prev: str
    """hash of the line before; 64 zeros for the first"""
    hash: str
    """sha256 over everything else of this line"""

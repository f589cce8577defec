"""Facts: frozen values that the journal records and every room above it speaks in.

A failed trial has no metric: its numbers are None, never 0 and never NaN. Times are seconds,
sizes bytes; ratios are natural logarithms of candidate / incumbent, so that negative is faster.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from rsi_tui.contract.model import KnobValue, Layer

StartKind = Literal["original", "best", "intermediate", "upstream"]
TrialKind = Literal["calibration", "reference", "profile", "screen", "verify", "claim", "check"]
Arm = Literal["incumbent", "candidate", "warmup", "initial", "twin", "harmless", "profile", "check", "state"]
Outcome = Literal["ok", "oom", "timeout", "crashed", "diverged", "preempted", "cancelled", "not_measured"]
HOST_FAULTS: tuple[Outcome, ...] = ("not_measured", "cancelled", "preempted")
"""outcomes that are the machine's or ours, never held against an idea"""
Verdict = Literal["adopted", "leaner", "not_proven", "slower", "invalid", "off_direction", "failed"]

ORIGINAL = "original"
"""id of the candidate that is the user's own program, unchanged"""
LATE = "changes that start late in a real run"
"""name of the invariant that says that no state had its step counters moved on"""
FROM_A_STATE = "from the state after"
"""in the words of how an invariant was judged: by single updates from a saved state"""
CANARY = "canary"
"""direction of a canary: a change of the evaluator's own, which no mind sees and no budget counts"""
LEAVE_ONE_OUT = "leave-one-out"
"""direction of a stack that is built to learn what one of its changes contributes"""


class Fact(BaseModel):
    """Base of all facts."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(Fact):
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float


class CandidateFacts(Fact):
    """(base commit, patch set, knob values): one thing that can be run."""

    id: str
    """c1, c2, ... or 'original'"""
    commit: str
    """commit of its code, on a ref under refs/rsi/ of the mirror"""
    base: str
    """commit of the user's program it descends from"""
    parent: str | None = None
    """id of the candidate it was built on; None for the original"""
    techniques: tuple[str, ...] = ()
    """ids of the techniques in it, in the order applied"""
    knobs: dict[str, KnobValue] = {}
    """every knob of the contract with its value"""
    affects: tuple[str, ...] = ()
    """'precision' when it rounds otherwise than the original"""
    members: tuple[str, ...] = ()
    """for a bundle: ids of the candidates it joins; c1:sdpa is one technique of a proof that was reproduced as a whole"""
    diff_hash: str = ""
    """sha256 of the normalised diff against base; '' without code changes"""
    launch_fingerprint: str = ""
    """sha256 of the knob values that differ from the defaults"""


class BlobFacts(Fact):
    """What lies beside a journal, named by what it holds (see `blobs`)."""

    sha256: str
    bytes: int
    """uncompressed"""
    left_out: int = 0
    """bytes that were cut out of its middle before it was kept"""


class NodeFacts(Fact):
    """One node of a trial of several, as the launcher saw it."""

    exit_code: int | None
    signal: int | None
    killed_for: str
    """'' when it ended by itself; timeout, silence, memory, disk, cancelled, or peer: another node had failed"""
    wall_s: float
    oom_kill: bool
    """the memory controller killed a process of it"""
    peak_bytes: int | None
    sent_bytes: int | None
    """over its link; None where the link is not counted"""


class TrialFacts(Fact):
    """One execution of one candidate with one seed and length."""

    id: str
    candidate: str
    kind: TrialKind
    arm: Arm
    block: str
    """block it belongs to; '' for a lone trial"""
    slot: int
    """place in the block's order, from 0"""
    attempt: int = 1
    """2 when the first was interrupted by us or the machine"""
    steps: int
    outcome: Outcome
    cause: str = ""
    """class of failure (gpu_oom, host_oom_killed, ...); '' when ok"""
    detail: str = ""
    """one sentence for a person; '' when ok"""
    telling_lines: tuple[str, ...] = ()
    log: BlobFacts | None = None
    """output of a run that did not end well; it may have been dropped since"""
    advice: str = ""
    """what to try, one sentence; '' when ok or nothing is known"""
    exit_code: int | None = None
    signal: int | None = None
    started_at: str
    """UTC, ISO 8601"""
    wall_s: float
    """from start to exit of the whole tree"""
    charged_s: float = 0.0
    """wall time of the run that filled this candidate's compile cache; part of startup_s and score_s"""
    charged_from: str = ""
    """that run; '' where this one started without a cache"""
    startup_s: float | None = None
    """what the time up to the end of warm-up exceeds the steady step time by: imports, compile, first touch"""
    step_s: float | None = None
    """mean step time after warm-up"""
    teardown_s: float | None = None
    """from the last progress line to exit"""
    score_s: float | None = None
    """step_s + (startup_s + teardown_s) / amortise_over"""
    peak_bytes: int | None = None
    """of the GPU that is fullest where the contract asks for GPUs, else of the machine"""
    memory_source: str = "none"
    """cgroup2, cgroup1: limited and measured; sampled, nvml: looked at now and then; none"""
    memory_limit_bytes: int | None = None
    """hard limit of this run where it was lower than the contract's, to prove a saving"""
    requested_bytes: int | None = None
    """what an out-of-memory error had asked for, where printed"""
    foreign_load: float = 0.0
    final_loss: float | None = None
    engine_s: float = 0.0
    """our own time around this trial, checkpoint comparison apart"""
    compare_s: float = 0.0
    flags: tuple[str, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    """each node by itself; () for a trial of one node"""

    @property
    def total_s(self) -> float:
        """Wall time with that of the run that compiled for this one."""
        return self.wall_s + self.charged_s

    @property
    def did_not_fit(self) -> bool:
        """Held to less memory than the contract allows, it did not end well: that tells of a saving, and is no failure."""
        return self.memory_limit_bytes is not None and self.outcome not in ("ok", *HOST_FAULTS)


class NoiseFacts(Fact):
    """What A/A pairs said about this machine."""

    pair_scale: float
    """1.15 x scaled MAD of the A/A log differences"""
    run_cv: float
    """coefficient of variation of a single run's score"""
    pairs: int
    differences: tuple[float, ...]
    smallest_provable: float
    """smallest speed-up (as a fraction of time) that one verification of this budget can prove with power 0.8"""
    fingerprint: str
    """hash of hardware and software; scales of different fingerprints are never compared"""
    drift: float = 0.0
    """log change of the median score from the first half of the calibration to the second"""


class PhaseFacts(Fact):
    """Share of one phase in a step."""

    name: Literal["data", "forward", "backward", "communication", "optimizer", "host_sync", "compile", "other"]
    seconds: float
    """a step"""
    share: float
    """0..1"""


class OperatorFacts(Fact):
    """One operator of the profile."""

    name: str
    self_s: float
    """self time a step"""
    share: float
    calls: float
    """calls a step"""
    peak_output_bytes: int = 0
    """largest tensor it produced, 0 when not known"""


class CommunicationFacts(Fact):
    """What the processes of a run send each other in one step, seen from one of them."""

    backend: str
    """gloo, nccl, mpi; '' when not known"""
    world_size: int
    calls: float
    """collectives a step"""
    payload_bytes: float
    """bytes a step that this process hands to collectives"""
    exposed_s: float
    """seconds a step in which it only waited for them"""
    overlapped_s: float
    """seconds a step in which they ran beside its own work"""
    link_bytes: float | None = None
    """bytes a step that its node sent, by the counter of the simulated link; None where there is none"""
    link_rate: float | None = None
    """bytes a second that the link carries each way; None where it is not limited"""


class MemoryFacts(Fact):
    """What one process holds in memory, bytes by category, and how it rises and falls in a step."""

    parameters_bytes: int
    gradients_bytes: int
    """a full set of them"""
    optimizer_bytes: int
    activations_bytes: int
    """highest of all tensors that a step makes beyond those alive at its begin: activations, gradients, temporaries"""
    timeline: tuple[tuple[float, int], ...] = ()
    """(seconds since the begin of the profiled steps, bytes of such tensors), at most 60 points"""


class ProfileFacts(Fact):
    """Where one step's time goes, by an instrumented run that no verdict uses."""

    step_s: float
    phases: tuple[PhaseFacts, ...]
    operators: tuple[OperatorFacts, ...]
    """by self time, at most 25"""
    peak_bytes: int | None
    tokens_per_step: int
    page_faults_per_step: float | None = None
    parameters: int | None = None
    mfu: float | None = None
    """model FLOPs utilisation of one process against a GEMM peak measured on the spot; None when not measured"""
    peak_flops: float | None = None
    dtype: str = "float32"
    device: str = "cpu"
    unused_settings: tuple[str, ...] = ()
    """settings that exist in program or launch and are off, one sentence each"""
    communication: CommunicationFacts | None = None
    """None for a program of one process"""
    memory: MemoryFacts | None = None
    """None where no optimizer of torch was seen"""
    flops_per_step: float | None = None
    """of one process's matrix products, counted; None when not seen"""

    def share(self, phase: str) -> float:
        """Share of a phase, 0 when absent."""
        return next((p.share for p in self.phases if p.name == phase), 0.0)

    def operator_share(self, *fragments: str) -> float:
        """Summed share of operators whose name contains any of the fragments."""
        return sum(o.share for o in self.operators if any(f in o.name for f in fragments))


class BandFacts(Fact):
    """One calibrated tolerance of an invariant."""

    name: str
    limit: float
    how: str
    """how the limit was found, one sentence"""
    harmless_max: float
    """largest value seen under harmless perturbations"""
    masked: tuple[str, ...] = ()
    """tensors that carry no information (their update is not reproducible)"""
    masked_share: float = 0.0
    """share of parameters masked"""
    scale: dict[str, float] = {}
    """by tensor or kind, where limit is a multiple: what it is a multiple of"""


class InvariantFacts(Fact):
    """One invariant in one verdict."""

    name: str
    status: Literal["held", "broken", "not_covered"]
    value: float | None
    limit: float | None
    how: str
    """how the limit was found, or why it is not covered"""


class RetrievedFacts(Fact):
    """One hit that the library returned and what was made of it."""

    record: str
    """id of the library entry"""
    kind: str
    text: str
    score: float
    why: str
    """terms, distance, conditions that match and that do not"""
    used_for: str = ""
    """what it changed; '' when it was not used"""


class TokenFacts(Fact):
    """Tokens of calls to a model, as the API told them."""

    input: int = 0
    """neither written to its prompt cache nor read from it"""
    cache_write: int = 0
    cache_read: int = 0
    output: int = 0
    untold: int = 0
    """of output that had arrived when a stream was cut before its count did: an estimate, counted as output"""

    @property
    def total(self) -> int:
        return self.input + self.cache_write + self.cache_read + self.output + self.untold

    def __add__(self, other: TokenFacts) -> TokenFacts:
        mine, others = self.model_dump(), other.model_dump()
        return TokenFacts(**{name: mine[name] + others[name] for name in mine})


class DirectionFacts(Fact):
    """A research question of the outer loop."""

    id: str
    """d1, d2, ..."""
    question: str
    layer: Layer
    start_kind: StartKind
    start: str
    """candidate id it starts from"""
    techniques: tuple[str, ...]
    """what it may try, best first; empty for a free direction"""
    reason: str
    expected_gain: float
    """predicted reduction of step time, fraction"""
    budget: int
    """candidates"""
    closing_rule: str
    evidence: tuple[str, ...] = ()
    """ids of library entries and profile phases"""
    reproduces: str = ""
    """record of the past proof that it asks about; '' for a search"""
    proposal: str = ""
    """the person's idea that it answers, p1, p2, ...; '' for the Director's own"""


class HypothesisFacts(Fact):
    """One falsifiable sentence for one round."""

    id: str
    direction: str
    round: int
    parent: str
    statement: str
    techniques: tuple[str, ...]
    knobs: dict[str, KnobValue]
    """knobs to change"""
    predicted_time: float
    """predicted log-ratio of step time against the parent"""
    predicted_memory: float
    """predicted log-ratio of peak memory"""
    evidence: tuple[str, ...] = ()
    refuted_by: str = ""
    """what outcome would refute it"""


class FindingFacts(Fact):
    """One thing that a reviewer found in a diff."""

    rule: str
    severity: Literal["exploit", "scope", "off_direction", "warning"]
    path: str
    line: int
    text: str
    """one sentence"""


class ReviewFacts(Fact):
    """The reviewer's reading of a diff, without knowledge of its score."""

    candidate: str
    decision: Literal["pass", "invalid", "off_direction"]
    findings: tuple[FindingFacts, ...] = ()
    summary: str = ""


class ScreenFacts(Fact):
    """What screening said of one candidate."""

    candidate: str
    incumbent: str
    outcome: Outcome
    log_ratio: float | None
    """mean over batches of log(score / incumbents' score); None when it failed"""
    batches: int
    promoted: bool
    reason: str
    peak_bytes: int | None = None
    incumbent_peak_bytes: int | None = None
    invariants: tuple[InvariantFacts, ...] = ()
    trials: tuple[str, ...] = ()


class MemorySavingFacts(Fact):
    """Fresh runs of a candidate under a hard limit below what the incumbent needs (holes H15)."""

    limit_bytes: int
    """hard limit that the runs were held to, swap at zero"""
    incumbent_peak_bytes: int
    """smallest peak of the incumbent runs that the saving is counted from"""
    peak_bytes: int | None
    """largest peak of the candidate's runs under the limit"""
    runs: int
    proven: bool
    reason: str
    trials: tuple[str, ...] = ()

    @property
    def saving(self) -> float:
        """Share of the incumbent's peak that the limit lies below it."""
        return 1 - self.limit_bytes / self.incumbent_peak_bytes


class CarryOverFacts(Fact):
    """Whether runs of the incumbent are slower right after a run of the candidate: a test for order effects."""

    log_ratio: float
    """mean log ratio to the incumbent's other runs of the same blocks; positive is slower"""
    error: float | None
    """its standard error; None with a single run"""
    runs: int

    @property
    def visible(self) -> bool:
        """Three standard errors away from none."""
        return self.error is not None and self.runs >= 4 and abs(self.log_ratio) > 3 * self.error


class BlockFacts(Fact):
    """One closed block of a verification."""

    id: str
    order: str
    """for example 'ABBABA...': A incumbent, B candidate, in the order run"""
    evalue: float
    e_total: float
    """product so far"""
    trials: tuple[str, ...]


class VerdictFacts(Fact):
    """The evaluator's word on a candidate."""

    candidate: str
    incumbent: str
    verdict: Verdict
    reasons: tuple[str, ...]
    alpha: float
    """error probability this verification was given"""
    evalue: float | None = None
    """adopted when it reaches 1 / alpha"""
    speedup: Interval | None = None
    """incumbent time / candidate time, an interval that holds whenever the verification stopped; None when its closed
    blocks are too few to say anything. The claim has its own"""
    log_ratio: float | None = None
    """mean log ratio of candidate to incumbent over all its runs, an estimate alone; None without runs of both"""
    invariants: tuple[InvariantFacts, ...] = ()
    blocks: tuple[BlockFacts, ...] = ()
    peak_bytes: int | None = None
    incumbent_peak_bytes: int | None = None
    memory: MemorySavingFacts | None = None
    """the proof of a saving, where one was tried"""
    carry_over: CarryOverFacts | None = None
    pair_scale: float | None = None
    """noise that the bets were made with: the machine's at the time"""
    predicted_gain: float | None = None
    """log gain that the bets were made for, from runs before it; None without bets, and in older records"""
    slow_run_bound: float | None = None
    """upper 95 % bound on the rate of runs that take at least twice the candidate's median; None before it is asked"""
    mean_total_ratio: float | None = None
    """plain mean of the score, candidate / incumbent, nothing robust; must be below 1"""
    runs_needed: int | None = None
    """runs still needed to decide, when undecided"""
    seconds: float = 0.0


class AttributionFacts(Fact):
    """What one adopted change contributes to the claim."""

    name: str
    """technique id or knob=value"""
    kind: Literal["setting never switched on", "new code"]
    log_ratio: float | None
    """of the time with it to the time without it; None where there is no time to compare with"""
    how: Literal["leave-one-out", "estimate from screening", "estimate from its verification"]
    interval: Interval | None = None
    """of the time without it over the time with it, simultaneous over all changes of the stack; None for estimates"""
    proven: bool = False
    """by leave-one-out: the stack is slower without it, or does not run; False reads 'unproven alone'"""
    candidate: str = ""
    """id of the candidate whose change it is"""
    note: str = ""
    """how the stack fails without it, or why it could not be left out alone; '' else"""


class ClaimFacts(Fact):
    """The adopted stack as a whole against the original, on fresh pairs."""

    candidate: str
    pairs: int
    baseline_step_s: float | None
    """median over the baseline runs; None when no pair counts"""
    candidate_step_s: float | None
    speedup: Interval | None
    """Hodges-Lehmann on log scores, signed-rank interval; None with too few pairs for one"""
    total_wall_ratio: float | None
    """mean total wall, baseline / candidate, nothing amortised"""
    slope_ratio: float | None
    """slope of total wall over lengths, baseline / candidate"""
    baseline_peak_bytes: int | None
    candidate_peak_bytes: int | None
    memory: MemorySavingFacts | None = None
    """the proof that the stack needs less memory, where it seems to"""
    slow_run_bound: float
    """upper 95 % bound on the rate of runs slower than the baseline's median"""
    invariants: tuple[InvariantFacts, ...]
    attribution: tuple[AttributionFacts, ...] = ()
    proven: bool
    reasons: tuple[str, ...] = ()
    refuted: str = ""
    """what is wrong with the stack itself: a broken invariant, or a run of it that failed; '' when nothing is"""
    trials: tuple[str, ...] = ()


class LessonFacts(Fact):
    """What a closed direction taught, with the conditions it holds under."""

    id: str
    direction: str
    text: str
    conditions: dict[str, str]
    evidence: tuple[str, ...]


PlantedKind = Literal["cheat", "lines", "checkpoint", "metric", "escape"]
"""a dishonest change of the program, forged progress lines, a forged checkpoint, a program wrong on purpose that the hidden
validation must tell from the right one, an attempt to leave the sandbox"""


class PlantedFacts(Fact):
    """Something dishonest that was planted against the evaluator before it was trusted, and what caught it."""

    name: str
    kind: PlantedKind
    family: str = ""
    does: str = ""
    review: tuple[str, ...] = ()
    """rules of the review that refuse it"""
    evaluator: tuple[str, ...] = ()
    """what the evaluator, or the sandbox, says of it"""
    ran: bool = False
    """was it run, or laid before the evaluator?"""

    @property
    def caught(self) -> bool:
        return bool(self.review or self.evaluator)

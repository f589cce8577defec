"""A campaign as its journal tells it: folded event by event, for app, command line and report alike.

Promises: feeding events one at a time or all at once gives the same view; nothing is computed that the
events do not say. 'Best' is a query over verdicts. Light: only pydantic and the standard library.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rsi_tui.contract.model import KnobValue
from rsi_tui.errors import JournalError
from rsi_tui.journal import chain
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import (
    CANARY,
    LEAVE_ONE_OUT,
    ORIGINAL,
    AttributionFacts,
    BandFacts,
    CandidateFacts,
    ClaimFacts,
    DirectionFacts,
    HypothesisFacts,
    Interval,
    LessonFacts,
    NoiseFacts,
    ProfileFacts,
    ReviewFacts,
    ScreenFacts,
    TrialFacts,
    VerdictFacts,
)
from rsi_tui.locations import Home

FAILED_OUTCOMES = ("oom", "timeout", "crashed", "diverged")
"""outcomes that are held against the idea; 'not_measured', 'preempted' and 'cancelled' are not"""
DID_NOT_FIT = "under a lower memory limit"
"""how runs are counted that show what does not fit (a proof of a saving)"""


@dataclass
class CandidateView:
    """One candidate and all that was said of it."""

    facts: CandidateFacts
    hypothesis: str
    direction: str
    diff: str
    at: str
    review: ReviewFacts | None = None
    screen: ScreenFacts | None = None
    verdicts: list[VerdictFacts] = field(default_factory=list)
    """oldest first"""
    trials: list[str] = field(default_factory=list)
    revoked: ev.Revoked | None = None
    """what took its adoption back"""
    superseded: str = ""
    """id of the stack that was proven in its place, with a part less; '' when none was"""

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def verdict(self) -> VerdictFacts | None:
        """The last word on it."""
        return self.verdicts[-1] if self.verdicts else None

    @property
    def is_bundle(self) -> bool:
        return bool(self.facts.members)

    @property
    def is_adopted(self) -> bool:
        """Its last verdict is 'adopted', and nobody took that back."""
        return self.verdict is not None and self.verdict.verdict == "adopted" and self.revoked is None

    @property
    def standing(self) -> str:
        """Its last verdict, 'revoked' where that was an adoption that was taken back, or ''."""
        return "revoked" if self.revoked is not None else self.verdict.verdict if self.verdict is not None else ""


@dataclass
class RoundView:
    """One hypothesis and what became of it."""

    hypothesis: HypothesisFacts
    at: str
    candidate: str = ""
    """id of the candidate built from it; '' while there is none"""
    refusals: list[ev.CandidateRefused] = field(default_factory=list)


@dataclass
class DirectionView:
    """One direction with its rounds."""

    facts: DirectionFacts
    at: str
    rounds: list[str] = field(default_factory=list)
    """ids of hypotheses, oldest first"""
    closed: str = ""
    """why it was closed; '' while it is open"""
    exhausted: str = ""
    """why the Selector found no further hypothesis"""
    lesson: LessonFacts | None = None


@dataclass(frozen=True)
class RetrievalView:
    """One question to the library and what its answer changed."""

    at: str
    event: ev.Retrieved
    before: str
    """what it was asked for: the id of the direction or hypothesis that followed, '' so far"""


@dataclass(frozen=True)
class ModelCallView:
    """One question to a model."""

    at: str
    event: ev.ModelCalled
    before: str
    """the decision that it was asked for: the id of the direction, hypothesis or candidate that followed, '' so far"""


@dataclass(frozen=True)
class FailureView:
    """One attempt that came to nothing, with its cause and cost."""

    about: str
    """id of the trial, candidate or hypothesis"""
    candidate: str
    """'' when no candidate was built"""
    kind: str
    """outcome of the trial, kind of the refusal, or the reviewer's decision"""
    cause: str
    detail: str
    lines: tuple[str, ...]
    seconds: float
    """trial time spent"""


@dataclass
class CampaignView:
    """The state of one campaign after the events fed so far."""

    created: ev.CampaignCreated | None = None
    started_at: str = ""
    last_at: str = ""
    last_seq: int = -1
    last_hash: str = chain.ZERO
    state: ev.State = "contracted"
    """never 'paused'; see `paused`"""
    waiting: str = ""
    """candidate that waits for a person's approval; '' when none does"""
    state_reason: str = ""
    paused: bool = False
    noise: NoiseFacts | None = None
    bands: tuple[BandFacts, ...] = ()
    profile: ProfileFacts | None = None
    """of the original"""
    profiles_after: dict[str, ProfileFacts] = field(default_factory=dict)
    """of what was claimed, by candidate"""
    directions: dict[str, DirectionView] = field(default_factory=dict)
    rounds: dict[str, RoundView] = field(default_factory=dict)
    """by id of the hypothesis"""
    candidates: dict[str, CandidateView] = field(default_factory=dict)
    apart: dict[str, CandidateView] = field(default_factory=dict)
    """what was run beside the search, and no candidate of it: canaries, and the stack without one of its changes"""
    canaries: dict[str, ev.CanaryPlanted] = field(default_factory=dict)
    not_planted: list[ev.CandidateRefused] = field(default_factory=list)
    """canaries for which the program has no place"""
    left_out: list[ev.LeftOut] = field(default_factory=list)
    """the rounds of backward elimination, oldest first"""
    revocations: list[tuple[str, ev.Revoked]] = field(default_factory=list)
    """(when, what), oldest first"""
    replays: list[tuple[str, ev.Replayed]] = field(default_factory=list)
    """(when, what) of measuring an adopted change again, oldest first"""
    trials: dict[str, TrialFacts] = field(default_factory=dict)
    """finished trials whose facts are known; sealed ones follow when their block closes"""
    sealed: set[str] = field(default_factory=set)
    running: dict[str, ev.TrialStarted] = field(default_factory=dict)
    running_since: str = ""
    open_block: ev.BlockOpened | None = None
    void_blocks: dict[str, str] = field(default_factory=dict)
    verdicts: list[VerdictFacts] = field(default_factory=list)
    """oldest first, also of changes of which no candidate came"""
    calibrated: ev.Calibrated | None = None
    """noise and bands with where they come from"""
    red_team: ev.RedTeamed | None = None
    claim: ClaimFacts | None = None
    granted: ev.AlphaGranted | None = None
    """the error probability that this campaign may spend"""
    retrievals: list[RetrievalView] = field(default_factory=list)
    model_calls: list[ModelCallView] = field(default_factory=list)
    """oldest first"""
    people: list[tuple[str, ev.PersonActed]] = field(default_factory=list)
    declined: dict[str, str] = field(default_factory=dict)
    """people's ideas of which no direction came, p1, p2, ... -> why"""
    search_ended: str = ""
    engine_starts: int = 0
    engine_pid: int | None = None
    version: int = 0
    """number of events fed; changes exactly when something may have"""
    _verdict_order: list[str] = field(default_factory=list)

    def feed(self, event: ev.Event) -> None:
        """Take one event in."""
        if not self.started_at:
            self.started_at = event.at
        self.last_at, self.last_seq, self.last_hash = event.at, event.seq, event.hash
        self.version += 1
        fold = getattr(self, f"_on_{event.body.type}", None)
        if fold is not None:
            fold(event.body, event.at)

    def feed_all(self, events: Iterable[ev.Event]) -> CampaignView:
        """Take many events in; returns itself."""
        for event in events:
            self.feed(event)
        return self

    # --- what the events say -------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.created.campaign if self.created else ""

    @property
    def workload(self) -> str:
        return self.created.workload if self.created else ""

    @property
    def trust(self) -> str:
        return self.created.trust if self.created else ""

    @property
    def kind(self) -> str:
        """'campaign', or 'evaluation': the verdict on one change of a person's own."""
        return self.created.kind if self.created else "campaign"

    @property
    def is_evaluation(self) -> bool:
        return self.kind == "evaluation"

    @property
    def over(self) -> bool:
        return self.state in ("finished", "stopped")

    @property
    def final_verdict(self) -> VerdictFacts | None:
        """The word on an evaluation's change; None until it is over: what its verification adopts must still be claimed."""
        return self.verdicts[-1] if self.is_evaluation and self.over and self.verdicts else None

    @property
    def state_words(self) -> str:
        """The state for a person: 'searching (paused)', 'stopped (out of hours)'."""
        if self.paused and not self.over:
            return f"{self.state} (paused)"
        if self.waiting and not self.over:
            return f"{self.state} ({self.waiting} waits for approval)"
        return f"stopped ({self.state_reason})" if self.state == "stopped" and self.state_reason else self.state

    @property
    def bundles(self) -> list[CandidateView]:
        return [c for c in self.candidates.values() if c.is_bundle]

    @property
    def outcomes(self) -> Counter[str]:
        """Number of trials by outcome; those that did not fit under a lower limit are counted as that."""
        return Counter(DID_NOT_FIT if t.did_not_fit else t.outcome for t in self.trials.values())

    @property
    def trial_seconds(self) -> float:
        """Wall time of all trials."""
        return sum(t.wall_s for t in self.trials.values())

    @property
    def failed_seconds(self) -> float:
        """Wall time of trials that failed."""
        return sum(t.wall_s for t in self.trials.values() if t.outcome in FAILED_OUTCOMES and not t.did_not_fit)

    @property
    def overheads(self) -> list[float]:
        """The engine's own seconds around each trial, checkpoint comparison apart."""
        return [t.engine_s for t in self.trials.values()]

    @property
    def overhead_median(self) -> float | None:
        return statistics.median(self.overheads) if self.trials else None

    @property
    def overhead_mean(self) -> float | None:
        return statistics.fmean(self.overheads) if self.trials else None

    @property
    def defaults(self) -> dict[str, KnobValue]:
        """The knobs as the user runs the program today."""
        knobs = self.created.contract.get("knobs", []) if self.created else []
        return {knob["name"]: knob["default"] for knob in knobs}

    def changed_knobs(self, candidate: str) -> dict[str, KnobValue]:
        """The knobs of a candidate that differ from the defaults."""
        defaults = self.defaults
        known = self.candidates.get(candidate)
        return {k: v for k, v in known.facts.knobs.items() if defaults.get(k) != v} if known else {}

    def own_change(self, candidate: str) -> tuple[tuple[str, ...], dict[str, KnobValue]]:
        """What a candidate changes in its parent: techniques, and knobs with their new value."""
        known = self.candidates.get(candidate)
        if known is None:
            return (), {}
        parent = self.candidates.get(known.facts.parent or ORIGINAL)
        below = parent.facts.techniques if parent else ()
        before = parent.facts.knobs if parent else self.defaults
        added = tuple(technique for technique in known.facts.techniques if technique not in below)
        return added, {name: value for name, value in known.facts.knobs.items() if before.get(name) != value}

    def known(self, candidate: str) -> CandidateView | None:
        """A candidate of the search, or what was run apart from it; None when there is none of that id."""
        return self.candidates.get(candidate) or self.apart.get(candidate)

    def seconds_of(self, candidate: str) -> float:
        """Trial time spent on a candidate's own runs."""
        known = self.known(candidate)
        return sum(self.trials[t].wall_s for t in known.trials if t in self.trials) if known else 0.0

    def adopted(self) -> list[CandidateView]:
        """Candidates whose last verdict is 'adopted' and stands, in the order of their verdicts."""
        return [c for c in self._by_verdict() if c.is_adopted]

    def best(self) -> CandidateView | None:
        """The newest adopted candidate: each was proven against the one before."""
        adopted = self.adopted()
        return adopted[-1] if adopted else None

    def turned_down(self) -> list[CandidateView]:
        """Candidates that were tried or reviewed and lead nowhere, in the order built."""
        return [c for c in self.candidates.values() if is_turned_down(c)]

    @property
    def proven_claim(self) -> ClaimFacts | None:
        """The claim where it is proven and what it is about was not revoked, else None."""
        if self.claim is None or not self.claim.proven:
            return None
        about = self.candidates.get(self.claim.candidate)
        return None if about is not None and about.revoked is not None else self.claim

    def proven_speedup(self) -> Interval | None:
        """The claim's interval where the claim is proven and stands, else None."""
        return self.proven_claim.speedup if self.proven_claim is not None else None

    def attribution_of(self, candidate: str) -> AttributionFacts | None:
        """What the claim says of one candidate's own change; None when it says nothing."""
        parts = self.claim.attribution if self.claim is not None else ()
        return next((part for part in parts if part.candidate == candidate), None)

    def estimated_speedup(self) -> float | None:
        """What the verifications of the best stack measured, multiplied; None without one, and once there is a claim.

        An estimate: a verification stops when its e-process says so, and no interval of fixed size holds for
        runs that were stopped by looking at them. That it is faster at all is proven by the verdicts.
        """
        parts = self._verdicts_of_best() if self.claim is None else []
        return math.prod(part.estimate for part in parts) if parts else None

    def failures(self) -> list[FailureView]:
        """Everything that came to nothing and why, in the order it happened within each kind."""
        return [*self._failed_trials(), *self._refused_changes(), *self._refused_reviews()]

    # --- helpers of the queries ------------------------------------------------------------------

    def _by_verdict(self) -> list[CandidateView]:
        return [self.candidates[c] for c in self._verdict_order if c in self.candidates]

    def _verdicts_of_best(self) -> list[Interval]:
        parts: list[Interval] = []
        current = self.best()
        while current is not None and len(parts) <= len(self.candidates):
            verdict = current.verdict
            if verdict is None or verdict.speedup is None:
                return []
            parts.append(verdict.speedup)
            if verdict.incumbent == ORIGINAL:
                return parts
            current = self.candidates.get(verdict.incumbent)
        return []

    def _failed_trials(self) -> list[FailureView]:
        return [
            FailureView(t.id, "" if t.candidate == ORIGINAL else t.candidate, t.outcome, t.cause, t.detail, t.telling_lines, t.wall_s)
            for t in self.trials.values()
            if t.outcome != "ok" and not t.did_not_fit
        ]

    def _refused_changes(self) -> list[FailureView]:
        return [
            FailureView(r.hypothesis, "", r.kind, r.kind, r.reason, (), 0.0)
            for known in self.rounds.values()
            for r in known.refusals
        ]

    def _refused_reviews(self) -> list[FailureView]:
        return [
            FailureView(c.id, c.id, c.review.decision, c.review.decision, review_words(c.review), (), self.seconds_of(c.id))
            for c in self.candidates.values()
            if c.review is not None and c.review.decision != "pass"
        ]

    # --- folding, one method per type of event -----------------------------------------------------

    def _on_campaign_created(self, body: ev.CampaignCreated, at: str) -> None:
        self.created = body

    def _on_engine_started(self, body: ev.EngineStarted, at: str) -> None:
        self.engine_starts += 1
        self.engine_pid = body.pid
        self.running.clear()
        self.running_since = ""

    def _on_state_changed(self, body: ev.StateChanged, at: str) -> None:
        self.paused = body.state == "paused"
        self.waiting = body.waits
        if body.state != "paused":
            self.state, self.state_reason = body.state, body.reason
        if self.over:
            self.running.clear()
            self.open_block = None

    def _on_profiled(self, body: ev.Profiled, at: str) -> None:
        if body.candidate == ORIGINAL:
            self.profile = body.profile
        else:
            self.profiles_after[body.candidate] = body.profile

    def _on_calibrated(self, body: ev.Calibrated, at: str) -> None:
        self.noise, self.bands = body.noise, body.bands
        self.calibrated = body

    def _on_red_teamed(self, body: ev.RedTeamed, at: str) -> None:
        self.red_team = body

    def _on_trial_started(self, body: ev.TrialStarted, at: str) -> None:
        self.running[body.trial] = body
        self.running_since = at

    def _on_trial_finished(self, body: ev.TrialFinished, at: str) -> None:
        self.running.pop(body.trial, None)
        if body.facts is None:
            self.sealed.add(body.trial)
        else:
            self._take_trial(body.facts)

    def _take_trial(self, facts: TrialFacts) -> None:
        self.sealed.discard(facts.id)
        known = self.known(facts.candidate)
        if known is not None and facts.id not in self.trials:
            known.trials.append(facts.id)
        self.trials[facts.id] = facts

    def _on_block_opened(self, body: ev.BlockOpened, at: str) -> None:
        self.open_block = body

    def _on_block_closed(self, body: ev.BlockClosed, at: str) -> None:
        for facts in body.trials:
            self._take_trial(facts)
        if body.void:
            self.void_blocks[body.block] = body.void
        if self.open_block is not None and self.open_block.block == body.block:
            self.open_block = None

    def _on_retrieved(self, body: ev.Retrieved, at: str) -> None:
        self.retrievals.append(RetrievalView(at, body, ""))

    def _on_model_called(self, body: ev.ModelCalled, at: str) -> None:
        self.model_calls.append(ModelCallView(at, body, ""))

    def _answer_calls(self, role: ev.Role, about: str) -> None:
        """A role's calls were asked for its decision that follows them."""
        for place in range(len(self.model_calls) - 1, -1, -1):
            known = self.model_calls[place]
            if known.event.role == role:
                if known.before:
                    return
                self.model_calls[place] = ModelCallView(known.at, known.event, about)

    def _answer_retrievals(self, role: str, about: str) -> None:
        """The decision that follows a retrieval is the one it was made for."""
        for place in range(len(self.retrievals) - 1, -1, -1):
            known = self.retrievals[place]
            if known.before:
                return
            if known.event.role == role:
                self.retrievals[place] = RetrievalView(known.at, known.event, about)

    def _on_direction_opened(self, body: ev.DirectionOpened, at: str) -> None:
        self.directions[body.direction.id] = DirectionView(body.direction, at)
        self._answer_retrievals("director", body.direction.id)
        self._answer_calls("director", body.direction.id)

    def _on_direction_closed(self, body: ev.DirectionClosed, at: str) -> None:
        self._answer_calls("scribe", body.direction)
        if known := self.directions.get(body.direction):
            known.closed, known.lesson = body.reason, body.lesson

    def _on_search_ended(self, body: ev.SearchEnded, at: str) -> None:
        self.search_ended = body.reason

    def _on_hypothesis_written(self, body: ev.HypothesisWritten, at: str) -> None:
        self.rounds[body.hypothesis.id] = RoundView(body.hypothesis, at)
        if known := self.directions.get(body.hypothesis.direction):
            known.rounds.append(body.hypothesis.id)
        self._answer_retrievals("selector", body.hypothesis.id)
        self._answer_calls("selector", body.hypothesis.id)

    def _on_round_ended(self, body: ev.RoundEnded, at: str) -> None:
        if known := self.directions.get(body.direction):
            known.exhausted = body.reason
        self._answer_calls("selector", body.direction)

    def _on_candidate_built(self, body: ev.CandidateBuilt, at: str) -> None:
        room = self.apart if body.direction in (CANARY, LEAVE_ONE_OUT) else self.candidates
        room[body.candidate.id] = CandidateView(body.candidate, body.hypothesis, body.direction, body.diff, at)
        if known := self.rounds.get(body.hypothesis):
            known.candidate = body.candidate.id
            self._answer_calls("executor", known.hypothesis.id)

    def _on_candidate_refused(self, body: ev.CandidateRefused, at: str) -> None:
        if body.direction == CANARY:
            self.not_planted.append(body)
        if known := self.rounds.get(body.hypothesis):
            known.refusals.append(body)
            self._answer_calls("executor", known.hypothesis.id)

    def _on_canary_planted(self, body: ev.CanaryPlanted, at: str) -> None:
        self.canaries[body.candidate] = body

    def _on_reviewed(self, body: ev.Reviewed, at: str) -> None:
        self._answer_calls("reviewer", body.review.candidate)
        if known := self.known(body.review.candidate):
            known.review = body.review

    def _on_screened(self, body: ev.Screened, at: str) -> None:
        for result in body.results:
            if known := self.known(result.candidate):
                known.screen = result

    def _on_verdict_reached(self, body: ev.VerdictReached, at: str) -> None:
        if (canary := self.apart.get(body.verdict.candidate)) is not None and canary.direction == CANARY:
            canary.verdicts.append(body.verdict)
            return
        self.verdicts.append(body.verdict)
        self._come_forward(body.verdict.candidate)
        if known := self.candidates.get(body.verdict.candidate):
            known.verdicts.append(body.verdict)
            known.revoked = None
        if body.verdict.candidate in self._verdict_order:
            self._verdict_order.remove(body.verdict.candidate)
        self._verdict_order.append(body.verdict.candidate)

    def _on_alpha_granted(self, body: ev.AlphaGranted, at: str) -> None:
        self.granted = body

    def _come_forward(self, candidate: str) -> None:
        """A stack that was only run for what its parts contribute is claimed or judged itself: one of the campaign's own."""
        if candidate in self.apart:
            self.candidates[candidate] = self.apart.pop(candidate)

    def _on_claimed(self, body: ev.Claimed, at: str) -> None:
        self.claim = body.claim
        self._come_forward(body.claim.candidate)
        for round_ in self.left_out if body.claim.proven else ():
            known = self.candidates.get(round_.stack)
            if round_.dropped and known is not None and known.id != body.claim.candidate:
                known.superseded = body.claim.candidate

    def _on_left_out(self, body: ev.LeftOut, at: str) -> None:
        self.left_out.append(body)

    def _on_revoked(self, body: ev.Revoked, at: str) -> None:
        self.revocations.append((at, body))
        for candidate in (body.candidate, *body.reopened):
            if known := self.candidates.get(candidate):
                known.revoked = body

    def _on_replayed(self, body: ev.Replayed, at: str) -> None:
        self.replays.append((at, body))

    def proposals(self) -> list[tuple[str, str, str, str]]:
        """(id, who, idea, what became of it) of each idea that people put to the Director."""
        answered = {d.facts.proposal: d.facts.id for d in self.directions.values() if d.facts.proposal}
        ideas = [body for _, body in self.people if body.action == "propose" and body.text.strip()]
        found = []
        for number, body in enumerate(ideas, 1):
            id = f"p{number}"
            became = f"direction {answered[id]}" if id in answered else f"declined: {self.declined[id]}" if id in self.declined else "waits for the Director"
            found.append((id, body.who, body.text.strip(), became))
        return found

    def _on_proposal_declined(self, body: ev.ProposalDeclined, at: str) -> None:
        self.declined[body.proposal] = body.reason

    def _on_person_acted(self, body: ev.PersonActed, at: str) -> None:
        self.people.append((at, body))


def is_turned_down(candidate: CandidateView) -> bool:
    """Whether a candidate leads nowhere: refused by the reviewer or the verdict, dropped in screening, or revoked."""
    if candidate.revoked is not None:
        return True
    if candidate.verdict is not None:
        return candidate.verdict.verdict not in ("adopted", "leaner")
    if candidate.review is not None and candidate.review.decision != "pass":
        return True
    return candidate.screen is not None and not candidate.screen.promoted


def revocation_words(known: CandidateView) -> str:
    """Who took an adoption back and why, in one line; '' when it stands."""
    body = known.revoked
    if body is None:
        return ""
    cause = "" if body.candidate == known.id else f"it rested on {body.candidate}: "
    return f"taken back by {body.who}: {cause}{body.reason}"


def superseded_words(view: CampaignView, known: CandidateView) -> str:
    """What was proven in an adopted stack's place, and what that leaves out; '' when nothing was."""
    first = next((n for n, round_ in enumerate(view.left_out) if round_.stack == known.id), 0)
    dropped = [round_.dropped for round_ in view.left_out[first:] if round_.dropped]
    return f"proven without {', '.join(dropped)} as {known.superseded}" if known.superseded else ""


def left_out_of(view: CampaignView, candidate: str) -> str:
    """The adopted stack that a candidate's change was left out of, because it contributed nothing; '' when it was not."""
    for round_ in view.left_out:
        dropped = next((part for part in round_.parts if part.name == round_.dropped), None)
        first = next((known for known in view.candidates.values() if known.superseded), None)
        if dropped is not None and dropped.candidate == candidate and first is not None:
            return first.id
    return ""


def review_words(review: ReviewFacts) -> str:
    """What the reviewer objected to, in one line."""
    return review.summary or "; ".join(f.text for f in review.findings) or review.decision


def campaign_summary(view: CampaignView) -> dict[str, Any]:
    """One campaign of `rsi campaigns --json`; `speedup` is the claim's, null while it is not proven."""
    outcomes = view.outcomes
    claim = view.proven_claim
    best = view.best()
    decided = view.over or not view.is_evaluation
    return {
        "id": view.id,
        "kind": view.kind,
        "workload": view.workload,
        "state": "paused" if view.paused and not view.over else view.state,
        "reason": view.state_reason,
        "trust": view.trust,
        "preset": view.created.preset if view.created else "",
        "speedup": claim.speedup.model_dump() if claim and claim.speedup else None,
        "candidates": len(view.candidates),
        "trials": {
            "ok": outcomes["ok"],
            "failed": sum(outcomes[o] for o in FAILED_OUTCOMES),
            "total": sum(outcomes.values()) + len(view.sealed),
        },
        "adopted": [
            {
                "candidate": c.id,
                "techniques": list(c.facts.techniques),
                "knobs": view.changed_knobs(c.id),
                "members": list(c.facts.members),
                "best": c is best,
            }
            for c in (view.adopted() if decided else ())
        ],
        "verdict": view.final_verdict.verdict if view.final_verdict else None,
        "started_at": view.started_at,
        "last_at": view.last_at,
    }


def load_campaign(home: Home, campaign: str) -> CampaignView:
    """The view of one campaign's journal; JournalError when it is damaged or missing."""
    from rsi_tui.journal.folded import load_view

    return load_view(home.campaign(campaign))


def campaign_ids(home: Home) -> list[str]:
    """Ids of the campaigns that have a journal, newest first (by the time of their first event)."""
    found = [(_first_time(path), path.parent.name) for path in home.campaigns.glob("*/journal.jsonl")]
    return [name for at, name in sorted(found, reverse=True) if at]


def newest_campaign(home: Home) -> str:
    """Id of the newest campaign, '' where there is none; a replay, which is about another campaign, only where nothing else is."""
    known = campaign_ids(home)
    return next((id for id in known if b'"kind":"replay"' not in _first_line(home.campaign(id).journal)), next(iter(known), ""))


def list_campaigns(home: Home) -> list[CampaignView]:
    """Views of all campaigns of a home that can be read, newest first; see `damaged_campaigns`."""
    views = []
    for name in campaign_ids(home):
        with contextlib.suppress(JournalError):
            views.append(load_campaign(home, name))
    return views


def damaged_campaigns(home: Home) -> dict[str, str]:
    """Campaigns whose journal can't be read -> why, one sentence each."""
    found = {}
    for name in campaign_ids(home):
        try:
            load_campaign(home, name)
        except JournalError as error:
            found[name] = str(error)
    return found


def _first_time(path: Path) -> str:
    """Time of a journal's first event, '' when nothing is written yet."""
    line = _first_line(path)
    if not line.endswith(b"\n"):
        return ""
    start = line.find(b'"at":"')
    return line[start + 6 : line.find(b'"', start + 6)].decode("ascii", "replace") if start >= 0 else "?"


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline()
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}.") from error

"""A campaign's journal as flat rows for the experience library: a projection, nothing is judged here.

Rows are plain dicts with the field names of `experience.records`, which this room may not import;
`rsi_tui.library` turns them into those records. A journal that is still being written gives rows too:
what has not happened yet is '' or None. Local ids become unique over homes as CAMPAIGN/LOCAL.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rsi_tui.contract.fingerprint import terms_hash
from rsi_tui.contract.model import KnobValue
from rsi_tui.errors import JournalError
from rsi_tui.journal.events import Dropped, Event, KnowledgeAdded, NoteTaken
from rsi_tui.journal.facts import ORIGINAL, TrialFacts
from rsi_tui.journal.view import (
    FAILED_OUTCOMES,
    CampaignView,
    CandidateView,
    RoundView,
    left_out_of,
    review_words,
    revocation_words,
    superseded_words,
)

Row = dict[str, Any]
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
SOFTWARE = frozenset({
    "software", "python", "torch", "numpy", "cuda", "cudnn", "nccl", "driver", "triton", "kernel", "os", "glibc", "packages",
})  # fmt: skip
"""keys of the host's fingerprint that are versions; all others are hardware"""


@dataclass(frozen=True)
class DiffText:
    """A candidate's diff, still to be cut into what the encoder can read."""

    candidate: str
    """CAMPAIGN/cN"""
    lead: str
    """what it is and how it ended, for the summary's first line"""
    diff: str
    row: Row
    """fields that all its entries share"""


@dataclass(frozen=True)
class CampaignRows:
    """All rows of one journal."""

    campaign: Row
    last_seq: int
    head: str
    directions: tuple[Row, ...]
    candidates: tuple[Row, ...]
    trials: tuple[Row, ...]
    texts: tuple[Row, ...]
    """entries: hypotheses, failures, lessons, notes"""
    diffs: tuple[DiffText, ...]
    retrievals: tuple[Row, ...] = ()


def host_conditions(host: dict[str, str]) -> tuple[str, str]:
    """(hardware, software) of a host's fingerprint, each 'name value, name value' in order of names."""
    parts: tuple[list[str], list[str]] = ([], [])
    for name in sorted(host):
        text = host[name] if name in ("hardware", "software") else f"{name} {host[name]}"
        parts[name in SOFTWARE].append(text)
    return ", ".join(parts[0]), ", ".join(parts[1])


def batch_of(events: Sequence[Event]) -> CampaignRows:
    """All rows of a campaign's journal so far; JournalError when it does not begin with a campaign."""
    view = CampaignView().feed_all(events)
    if view.created is None:
        raise JournalError("the journal holds no campaign yet: its first event is missing.")
    return _Projection(view).rows()


def home_entries(events: Sequence[Event]) -> tuple[Row, ...]:
    """Notes and knowledge of the home's journal; what has a source is knowledge. Of a source the newest document counts."""
    documents = {event.body.source: event for event in events if isinstance(event.body, KnowledgeAdded)}
    return (*_home_notes(events), *(row for event in documents.values() for row in _sections(event)))


def _sections(event: Event) -> Iterator[Row]:
    assert isinstance(event.body, KnowledgeAdded)
    document = event.body
    for section in document.sections:
        digest = hashlib.sha256(f"{document.source}\n{section.title}\n{section.text}".encode()).hexdigest()[:16]
        yield {
            "id": f"home/knowledge/{digest}",
            "kind": "knowledge",
            "text": f"{section.title}\n{section.text}" if section.title else section.text,
            "campaign": "home",
            "at": event.at,
            "source": f"{document.source} ({document.licence})" if document.licence else document.source,
        }


def _home_notes(events: Sequence[Event]) -> tuple[Row, ...]:
    return tuple(
        {
            "id": f"home/note/{event.hash[:16]}",
            "kind": "knowledge" if event.body.source else "note",
            "text": event.body.text,
            "campaign": "home",
            "at": event.at,
            "source": event.body.source,
        }
        for event in events
        if isinstance(event.body, NoteTaken)
    ) + tuple(_dropped(event) for event in events if isinstance(event.body, Dropped))


def _dropped(event: Event) -> Row:
    """What housekeeping took away, so that nobody looks for it."""
    assert isinstance(event.body, Dropped)
    files = event.body.files
    whys = dict.fromkeys(file.why for file in files)
    text = "\n".join([f"removed by {event.body.who}: {len(files)} files, {sum(f.bytes for f in files)} bytes", *whys, *(f.path for f in files[:20])])
    return {"id": f"home/dropped/{event.hash[:16]}", "kind": "note", "text": text, "campaign": "home", "at": event.at, "source": ""}


class _Projection:
    """One campaign's view, read off as rows."""

    def __init__(self, view: CampaignView) -> None:
        assert view.created is not None
        self.view = view
        self.created = view.created
        self.id = view.created.campaign
        self.hardware, self.software = host_conditions(view.created.host)
        self.terms = terms_hash(view.created.contract)
        self.bundle_of = {member: known for known in view.bundles for member in known.facts.members}

    def rows(self) -> CampaignRows:
        built = tuple(self.candidate(known) for known in self.view.candidates.values())
        never = tuple(self.never_built(r) for r in self.view.rounds.values() if r.refusals and not r.candidate)
        rows = {row["id"]: row for row in (*built, *never)}
        return CampaignRows(
            campaign=self.campaign(),
            last_seq=self.view.last_seq,
            head=self.view.last_hash,
            directions=tuple(self.directions()),
            candidates=tuple(rows.values()),
            trials=tuple(self.trial(t) for t in self.view.trials.values() if t.candidate not in self.view.apart),
            texts=(*self.hypotheses(rows), *self.failures(rows), *self.lessons(), *self.notes()),
            diffs=tuple(self.diffs(rows)),
            retrievals=tuple(self.retrievals()),
        )

    def campaign(self) -> Row:
        view, created = self.view, self.created
        speedup = view.proven_speedup()
        outcomes = view.outcomes
        return {
            "id": self.id,
            "workload": created.workload,
            "workload_key": created.workload_key,
            "state": "paused" if view.paused and not view.over else view.state,
            "trust": created.trust,
            "preset": created.preset,
            "mind": created.mind,
            "contract_hash": created.contract_hash,
            "hardware": self.hardware,
            "software": self.software,
            "started_at": view.started_at,
            "ended_at": view.last_at if view.over else "",
            "candidates": sum(not known.is_bundle for known in view.candidates.values()),
            "trials_ok": outcomes["ok"],
            "trials_failed": sum(outcomes[name] for name in FAILED_OUTCOMES),
            "speedup": speedup.estimate if speedup else None,
            "speedup_low": speedup.low if speedup else None,
            "speedup_high": speedup.high if speedup else None,
            "profile": {phase.name: phase.share for phase in view.profile.phases} if view.profile else {},
        }

    def directions(self) -> Iterator[Row]:
        for known in self.view.directions.values():
            facts = known.facts
            yield {
                "id": f"{self.id}/{facts.id}",
                "campaign": self.id,
                "question": facts.question,
                "layer": facts.layer,
                "start_kind": facts.start_kind,
                "start": facts.start,
                "reason": facts.reason,
                "expected_gain": facts.expected_gain,
                "budget": facts.budget,
                "closed": known.closed,
                "lesson": known.lesson.text if known.lesson else "",
                "at": known.at,
            }

    # --- candidates ------------------------------------------------------------------------------

    def candidate(self, known: CandidateView) -> Row:
        facts = known.facts
        round_ = self.view.rounds.get(known.hypothesis)
        parent = self.view.candidates.get(facts.parent or ORIGINAL)
        verdict, reason = self.last_word(known, round_)
        members = tuple(f"{self.id}/{member}" for member in facts.members)
        return self.conditions() | {
            "id": f"{self.id}/{facts.id}",
            "parent": f"{self.id}/{facts.parent or ORIGINAL}",
            "direction": f"{self.id}/{known.direction}" if known.direction else "",
            "layer": self.layer(known.direction),
            "statement": round_.hypothesis.statement if round_ else f"bundle of {', '.join(facts.members)}",
            "techniques": facts.techniques,
            "knobs": self.changed(facts.knobs),
            "base_stack": parent.facts.techniques if parent else (),
            "base_knobs": self.changed(parent.facts.knobs) if parent else {},
            "diff_hash": facts.diff_hash,
            "launch_fingerprint": facts.launch_fingerprint,
            "predicted_time": round_.hypothesis.predicted_time if round_ else 0.0,
            "predicted_memory": round_.hypothesis.predicted_memory if round_ else 0.0,
            "log_ratio": log_ratio(known),
            "peak_bytes": self.peak_bytes(known),
            "outcome": self.outcome(known),
            "verdict": verdict,
            "reason": reason,
            "requested_bytes": max((t.requested_bytes or 0 for t in self.own_trials(known)), default=0) or None,
            "at": known.at,
            "bundle_of": members,
        }

    def never_built(self, round_: RoundView) -> Row:
        hypothesis = round_.hypothesis
        parent = self.view.candidates.get(hypothesis.parent)
        base = self.changed(parent.facts.knobs) if parent else {}
        stack = parent.facts.techniques if parent else ()
        return self.conditions() | {
            "id": f"{self.id}/{hypothesis.id}",
            "parent": f"{self.id}/{hypothesis.parent}",
            "direction": f"{self.id}/{hypothesis.direction}" if hypothesis.direction else "",
            "layer": self.layer(hypothesis.direction),
            "statement": hypothesis.statement,
            "techniques": (*stack, *(t for t in hypothesis.techniques if t not in stack)),
            "knobs": self.changed(base | hypothesis.knobs),
            "base_stack": stack,
            "base_knobs": base,
            "diff_hash": "",
            "launch_fingerprint": "",
            "predicted_time": hypothesis.predicted_time,
            "predicted_memory": hypothesis.predicted_memory,
            "log_ratio": None,
            "peak_bytes": None,
            "outcome": "",
            "verdict": "refused",
            "reason": "; ".join(f"{r.kind}: {r.reason}" for r in round_.refusals),
            "requested_bytes": None,
            "at": round_.at,
            "bundle_of": (),
        }

    def conditions(self) -> Row:
        return {
            "campaign": self.id,
            "workload_key": self.created.workload_key,
            "memory_limit_bytes": int(self.created.contract.get("launch", {}).get("memory_limit_bytes", 0)),
            "hardware": self.hardware,
            "software": self.software,
            "base_commit": self.created.base_commit,
            "terms": self.terms,
        }

    def last_word(self, known: CandidateView, round_: RoundView | None) -> tuple[str, str]:
        """(verdict, reason): the evaluator's, the reviewer's, the bundle's it went into, the screening's; '' while open.

        An adoption that was taken back is 'revoked', and 'superseded' when a part of it was proven instead.
        """
        if known.revoked is not None:
            return "revoked", revocation_words(known)
        if known.is_adopted and known.superseded:
            return "superseded", superseded_words(self.view, known)
        if known.verdict is not None:
            return known.verdict.verdict, "; ".join(known.verdict.reasons)
        if known.review is not None and known.review.decision != "pass":
            return known.review.decision, review_words(known.review)
        if round_ is not None and round_.refusals and known.screen is None:
            return "refused", "; ".join(f"{r.kind}: {r.reason}" for r in round_.refusals)
        if known.screen is None:
            return "", ""
        if known.screen.outcome in FAILED_OUTCOMES:
            return "failed", known.screen.reason
        if not known.screen.promoted:
            return "screened", known.screen.reason
        if stack := left_out_of(self.view, known.id):
            return "screened", f"left out of {stack}: it contributed nothing that could be measured"
        bundle = self.bundle_of.get(known.id)
        if bundle is None or bundle.verdict is None:
            return "", f"promoted, not verified: {known.screen.reason}"
        return "screened", f"{self.alone(known)}; its bundle {bundle.id} is {bundle.standing}"

    def alone(self, known: CandidateView) -> str:
        """Whether leave-one-out proved a member of a bundle."""
        part = self.view.attribution_of(known.id)
        return "proven by leave-one-out" if part is not None and part.proven and self.view.proven_claim else "unproven alone"

    def outcome(self, known: CandidateView) -> str:
        own = self.own_trials(known)
        failed = [t.outcome for t in own if t.outcome in FAILED_OUTCOMES]
        if known.screen is not None and known.screen.outcome != "ok":
            return known.screen.outcome
        return failed[-1] if failed else (own[-1].outcome if own else "")

    def peak_bytes(self, known: CandidateView) -> int | None:
        if known.verdict is not None and known.verdict.peak_bytes is not None:
            return known.verdict.peak_bytes
        return known.screen.peak_bytes if known.screen else None

    def own_trials(self, known: CandidateView) -> list[TrialFacts]:
        """Trials of the candidate as such: not those it ran as incumbent of another."""
        trials = (self.view.trials[t] for t in known.trials if t in self.view.trials)
        return [t for t in trials if t.arm in ("candidate", "check") and not t.did_not_fit]

    def changed(self, knobs: dict[str, KnobValue]) -> dict[str, KnobValue]:
        defaults = self.view.defaults
        same = {k for k, v in knobs.items() if k in defaults and type(defaults[k]) is type(v) and defaults[k] == v}
        return {name: knobs[name] for name in sorted(knobs.keys() - same)}

    def layer(self, direction: str) -> str:
        known = self.view.directions.get(direction)
        return known.facts.layer if known else ""

    def trial(self, facts: TrialFacts) -> Row:
        names = (
            "kind",
            "arm",
            "block",
            "steps",
            "outcome",
            "cause",
            "detail",
            "wall_s",
            "step_s",
            "score_s",
            "peak_bytes",
        )
        row: Row = {name: getattr(facts, name) for name in names}
        return row | {
            "id": f"{self.id}/{facts.id}",
            "campaign": self.id,
            "candidate": f"{self.id}/{facts.candidate}",
            "at": facts.started_at,
        }

    def retrievals(self) -> Iterator[Row]:
        for number, known in enumerate(self.view.retrievals, 1):
            asked = known.event
            yield {
                "id": f"{self.id}/r{number}",
                "campaign": self.id,
                "role": asked.role,
                "query": asked.query,
                "hits": tuple(hit.record for hit in asked.hits),
                "used": tuple(hit.record for hit in asked.hits if hit.used_for),
                "changed": asked.changed,
                "about": f"{self.id}/{known.before}" if known.before else "",
                "paid": self.paid(known.before),
                "at": known.at,
            }

    def paid(self, about: str) -> str:
        """Whether a direction or hypothesis led to something proven, by itself or in a bundle."""
        mine = [known for known in self.view.candidates.values() if about and about in (known.direction, known.hypothesis)]
        bundles = [self.bundle_of[known.id] for known in mine if known.id in self.bundle_of]
        if any(known.is_adopted and not known.superseded for known in (*mine, *bundles)):
            return "proven"
        return "not proven" if self.view.over else "open"

    # --- texts -----------------------------------------------------------------------------------

    def text(self, kind: str, local: str, text: str, at: str, **more: str) -> Row:
        """One entry with the campaign's conditions."""
        return {
            "id": f"{self.id}/{kind}/{local}",
            "kind": kind,
            "text": text,
            "campaign": self.id,
            "workload": self.created.workload,
            "workload_key": self.created.workload_key,
            "hardware": self.hardware,
            "software": self.software,
            "at": at,
        } | more

    def hypotheses(self, rows: dict[str, Row]) -> Iterator[Row]:
        for name, round_ in self.view.rounds.items():
            row = rows.get(f"{self.id}/{round_.candidate or name}")
            facts = round_.hypothesis
            settings = ", ".join(f"{k}={v}" for k, v in facts.knobs.items())
            lines = [facts.statement, "; ".join(filter(None, [", ".join(facts.techniques), settings])), ended(row)]
            yield self.text(
                "hypothesis", name, "\n".join(line for line in lines if line), round_.at,
                layer=self.layer(facts.direction), outcome=row["verdict"] if row else "", candidate=row["id"] if row else "",
            )  # fmt: skip

    def failures(self, rows: dict[str, Row]) -> Iterator[Row]:
        seen: set[tuple[str, str]] = set()
        for facts in self.view.trials.values():
            if facts.outcome not in (*FAILED_OUTCOMES, "not_measured") or (facts.candidate, facts.cause) in seen:
                continue
            if facts.candidate in self.view.apart or facts.did_not_fit:
                continue
            seen.add((facts.candidate, facts.cause))
            row = rows.get(f"{self.id}/{facts.candidate}", {})
            what = row.get("statement", "the unchanged program")
            lines = (plain(line) for line in facts.telling_lines)
            text = "\n".join([f"{facts.outcome}, {facts.cause}: {facts.detail}", f"tried: {what}", *lines])
            yield self.text(
                "failure", facts.id, text, facts.started_at,
                layer=row.get("layer", ""), outcome=facts.outcome, candidate=row.get("id", ""),
            )  # fmt: skip

    def lessons(self) -> Iterator[Row]:
        for known in self.view.directions.values():
            if (lesson := known.lesson) is not None:
                text = f"{lesson.text}\nasked: {known.facts.question}\nclosed: {known.closed}"
                yield self.text("lesson", lesson.id, text, known.at, layer=known.facts.layer)

    def notes(self) -> Iterator[Row]:
        for number, (at, body) in enumerate(self.view.people, 1):
            if body.action == "note" and body.text:
                yield self.text("note", f"n{number}", body.text, at)
        for number, (at, done) in enumerate(self.view.replays, 1):
            differs = f"\nother than where it was proven: {'; '.join(done.differences)}" if done.differences else ""
            text = f"measured again, {done.candidate}: {done.outcome}\n{done.reason}{differs}"
            yield self.text("note", f"replay{number}", text, at, outcome=done.outcome, candidate=f"{done.campaign}/{done.candidate}")

    def diffs(self, rows: dict[str, Row]) -> Iterator[DiffText]:
        for known in self.view.candidates.values():
            row = rows[f"{self.id}/{known.id}"]
            if known.diff and not known.is_bundle:
                shared = self.text(
                    "diff", known.id, "", known.at, layer=row["layer"], outcome=row["verdict"], candidate=row["id"]
                )
                yield DiffText(row["id"], f"{row['statement']} ({row['verdict'] or 'open'})", known.diff, shared)


def plain(line: str) -> str:
    """A line of a program's output without escape sequences and control characters."""
    return "".join(c for c in _ESCAPE.sub("", line) if c.isprintable() or c == "\t")


def log_ratio(known: CandidateView) -> float | None:
    """Log of time against the incumbent from the best evidence: the verification, else screening; None when it failed."""
    if known.verdict is not None and known.verdict.verdict == "failed":
        return None
    if known.verdict is not None and known.verdict.log_ratio is not None:
        return known.verdict.log_ratio
    return known.screen.log_ratio if known.screen else None


def ended(row: Row | None) -> str:
    """How a candidate ended, for a person: 'adopted, step time -12.0 %: reason'."""
    if row is None or not (row["verdict"] or row["outcome"]):
        return "" if row is None else row["reason"]
    effect = f", step time {100 * math.expm1(row['log_ratio']):+.1f} %" if row["log_ratio"] is not None else ""
    failed = f", {row['outcome']}" if row["outcome"] in FAILED_OUTCOMES else ""
    return f"{row['verdict'] or 'open'}{failed}{effect}: {row['reason']}"

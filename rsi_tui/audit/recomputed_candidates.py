"""What was tried and on what terms: the contract's hash, each candidate's code and settings, the profile's shares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from rsi_tui.audit.checks import Checks
from rsi_tui.audit.record import Record
from rsi_tui.contract.fingerprint import launch_fingerprint
from rsi_tui.contract.model import KnobValue
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import ORIGINAL, ProfileFacts
from rsi_tui.repo.patch import normalised_diff_hash


def terms(record: Record, checks: Checks) -> None:
    """The contract is the one whose hash was recorded: everything in it but the folder."""
    body = {key: value for key, value in record.created.contract.items() if key != "folder"}
    found = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    checks.same("hash of the contract", record.created.contract_hash, found)


def candidates(record: Record, checks: Checks) -> None:
    """Code and settings of each candidate are what their hashes say, and follow from its parent and hypothesis."""
    built = {body.candidate.id: body.candidate for body in record.of(ev.CandidateBuilt)}
    asked = {body.hypothesis.id: body.hypothesis.knobs for body in record.of(ev.HypothesisWritten)}
    for body in record.of(ev.CandidateBuilt):
        checks.attempt(body.candidate.id, _candidate, record, body, checks)
        parent = built.get(body.candidate.parent or "")
        before = parent.knobs if parent is not None else record.contract.defaults if body.candidate.parent == ORIGINAL else None
        if before is not None and body.hypothesis in asked and not body.candidate.members:
            follows = {**before, **asked[body.hypothesis]}
            checks.holds(f"{body.candidate.id}: settings as its hypothesis says", body.candidate.knobs == follows, _listed(body.candidate.knobs), _listed(follows))  # fmt: skip
    for closed in record.of(ev.DirectionClosed):
        made = sum(body.direction == closed.direction and body.hypothesis != "" for body in record.of(ev.CandidateBuilt))
        checks.same(f"direction {closed.direction}: candidates", closed.candidates, made)


def _candidate(record: Record, body: ev.CandidateBuilt, checks: Checks) -> None:
    facts = body.candidate
    checks.same(f"{facts.id}: hash of its code", facts.diff_hash, normalised_diff_hash(body.diff) if body.diff else "")
    checks.holds(f"{facts.id}: has code changes where its commit differs", bool(body.diff) == (facts.commit != facts.base), facts.commit[:12], facts.base[:12])  # fmt: skip
    checks.same(f"{facts.id}: fingerprint of its launch", facts.launch_fingerprint, launch_fingerprint(record.contract, facts.knobs))


def profiles(record: Record, checks: Checks) -> None:
    """A phase's share follows from its seconds; the whole is what the instrumented run said, once that is revealed."""
    said = {}
    for key, secret in (record.secrets or {}).items():
        if key.startswith("profile/"):
            said[key] = ProfileFacts.model_validate(secret["value"])
    for body in record.of(ev.Profiled):
        name, profile = f"profile of {body.candidate}", body.profile
        for phase in profile.phases if profile.step_s else ():
            checks.same(f"{name}: share of {phase.name}", phase.share, phase.seconds / profile.step_s)
        if record.secrets is not None:
            checks.holds(f"{name}: as its run said", profile in said.values(), f"{profile.step_s:.6g} s a step", "another profile")


def _listed(knobs: Mapping[str, KnobValue]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(knobs.items()))

"""Which past candidates make a proposed one a repeat. Rows in, rows out.

A refutation binds only where the candidate would run as it ran then: the same program, terms, machine and
versions, and a memory limit that decides the same. A repaired program or a relaxed contract opens it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experience.conditions import Conditions
from experience.records import CandidateRow

PROVEN = frozenset({"adopted", "leaner"})
NOT_TRIED = frozenset({"", "refused"})
NOT_MEASURED = frozenset({"not_measured", "cancelled", "preempted"})


@dataclass(frozen=True)
class Proposal:
    """A candidate that has not run, with the conditions it would run under."""

    diff_hash: str
    launch_fingerprint: str
    base_stack: tuple[str, ...]
    conditions: Conditions
    techniques: frozenset[str]
    knobs: Mapping[str, str | int | float | bool]


def refuted(row: CandidateRow, bundled: frozenset[str]) -> bool:
    """The candidate ran, was measured and did not hold up; a bundle's verdict is not its members'."""
    decided = row.verdict not in PROVEN | NOT_TRIED and row.outcome not in NOT_MEASURED
    return decided and not (row.id in bundled and row.outcome == "ok")


def same_limits(row: CandidateRow, limit: int) -> bool:
    """Out of memory repeats until the limit has grown by more than what was asked for; others need the same limit."""
    if row.outcome == "oom":
        return limit <= row.memory_limit_bytes + (row.requested_bytes or 0)
    return limit == row.memory_limit_bytes


def same_conditions(row: CandidateRow, here: Conditions) -> bool:
    """Would the candidate of the past run here as it ran then?"""
    then = (row.workload_key, row.hardware, row.software, row.base_commit, row.terms)
    now = (here.workload_key, here.hardware, here.software, here.base_commit, here.terms)
    return all(now) and then == now and same_limits(row, here.memory_limit_bytes)


def repeats(proposal: Proposal, rows: Iterable[CandidateRow]) -> list[CandidateRow]:
    """Rows that the proposal would repeat, exact ones first, then newest first."""
    rows = list(rows)
    bundled = frozenset(member for row in rows for member in row.bundle_of)
    same = [
        row
        for row in rows
        if refuted(row, bundled)
        and row.base_stack == proposal.base_stack
        and same_conditions(row, proposal.conditions)
        and (_exact(row, proposal) or _alike(row, proposal))
    ]
    newest = sorted(same, key=lambda row: row.at, reverse=True)
    return sorted(newest, key=lambda row: not _exact(row, proposal))


def _exact(row: CandidateRow, proposal: Proposal) -> bool:
    here = (proposal.diff_hash, proposal.launch_fingerprint)
    return any(here) and here == (row.diff_hash, row.launch_fingerprint)  # two empty hashes identify nothing


def _alike(row: CandidateRow, proposal: Proposal) -> bool:
    if not proposal.techniques and not proposal.knobs:
        return False  # a free change: only its text can tell
    return frozenset(row.techniques) == proposal.techniques and _text(row.knobs) == _text(proposal.knobs)


def _text(knobs: Mapping[str, object]) -> str:
    """As text, because true, 1 and 1.0 are different settings."""
    return json.dumps(dict(knobs), sort_keys=True)


def as_proposal(
    diff_hash: str,
    launch_fingerprint: str,
    base_stack: Sequence[str],
    conditions: Conditions,
    techniques: Sequence[str],
    knobs: Mapping[str, str | int | float | bool],
) -> Proposal:
    """The proposal as a value that compares order-free where order does not matter."""
    return Proposal(
        diff_hash, launch_fingerprint, tuple(base_stack), conditions, frozenset(techniques), knobs
    )

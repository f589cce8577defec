"""Which past candidates make a proposed one a repeat. Rows in, repeats out.

A refutation binds only where the candidate would run as it ran then: the same program, terms, machine and
versions, and a memory limit that decides the same. A repaired program or a relaxed contract opens it again.
Identity is judged first by what was run (normalised diff and launch fingerprint, then techniques and knobs), then by
how alike the two changes are as code, and last by what their hypotheses mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experience.conditions import Conditions
from experience.interface import Repeat, Sameness
from experience.likeness import Features, likeness
from experience.records import CandidateRow

PROVEN = frozenset({"adopted", "leaner"})
NOT_TRIED = frozenset({"", "refused"})
NOT_MEASURED = frozenset({"not_measured", "cancelled", "preempted"})
ALIKE_AS_CODE = 0.45
"""likeness of two diffs from which they are one change (scripts/bench/retrieval.py: renamed ones have 0.6 and more, others 0.35 at most)"""
ALIKE_IN_WORDS = 0.62
"""cosine of two hypotheses from which they are one idea, where one of them has no code"""
AKIN_AS_CODE, AKIN_IN_WORDS = 0.2, 0.5
"""likeness of two diffs and cosine of their hypotheses that make them one change together"""
_ORDER: tuple[Sameness, ...] = ("same change", "same techniques and settings", "similar code", "similar words")
_DIFFERENT: Mapping[Sameness, str] = {
    "same change": "code or settings",
    "same techniques and settings": "techniques or settings",
    "similar code": "what the code does, not only its names",
    "similar words": "the idea itself, or settings",
}


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


def eligible(proposal: Proposal, rows: Iterable[CandidateRow]) -> list[CandidateRow]:
    """Rows whose refutation would bind the proposal if it were the same change."""
    rows = list(rows)
    bundled = frozenset(member for row in rows for member in row.bundle_of)
    return [
        row
        for row in rows
        if refuted(row, bundled) and row.base_stack == proposal.base_stack and same_conditions(row, proposal.conditions)
    ]


def by_identity(proposal: Proposal, rows: Iterable[CandidateRow]) -> list[Repeat]:
    """Repeats among eligible rows by what was run."""
    found = []
    for row in rows:
        if _exact(row, proposal):
            found.append(_repeat(row, "same change", 1.0))
        elif _alike(row, proposal):
            found.append(_repeat(row, "same techniques and settings", 1.0))
    return found


def free_changes(proposal: Proposal, rows: Iterable[CandidateRow]) -> list[CandidateRow]:
    """Eligible rows that only code or words can tell from the proposal: same settings, and one of both names no technique."""
    added = proposal.techniques - {*proposal.base_stack}
    return [
        row
        for row in rows
        if _text(row.knobs) == _text(proposal.knobs)
        and not (added and {*row.techniques} - {*row.base_stack})
        and not row.bundle_of
    ]


def by_code(proposed: Features, rows: Iterable[CandidateRow], features: Mapping[str, Features]) -> list[Repeat]:
    """Repeats by how alike the diffs are; `features` of the past ones by candidate."""
    alike = [(row, likeness(proposed, features.get(row.id, Features()))) for row in rows]
    return [_repeat(row, "similar code", value) for row, value in alike if value >= ALIKE_AS_CODE]


def by_words(
    cosines: Mapping[str, float], proposed: Features, rows: Iterable[CandidateRow], features: Mapping[str, Features]
) -> list[Repeat]:
    """Repeats by what the hypotheses mean: `cosines` by candidate. Where there is code on both sides it has its say."""
    found = []
    for row in rows:
        code, cosine = features.get(row.id, Features()), cosines.get(row.id, 0.0)
        if proposed and code:
            same = likeness(proposed, code) >= AKIN_AS_CODE and cosine >= AKIN_IN_WORDS
        else:
            same = cosine >= ALIKE_IN_WORDS
        if same:
            found.append(_repeat(row, "similar words", cosine))
    return found


def in_order(found: Iterable[Repeat]) -> list[Repeat]:
    """Each row once, by the surest of its reasons, surest reason first, then newest first."""
    newest = sorted(found, key=lambda repeat: repeat.row.at, reverse=True)
    surest = sorted(newest, key=lambda repeat: _ORDER.index(repeat.by))
    return list({repeat.row.id: repeat for repeat in reversed(surest)}.values())[::-1]


def _repeat(row: CandidateRow, by: Sameness, value: float) -> Repeat:
    measure = f" ({value:.2f})" if value < 1 else ""
    memory = ", or be given more memory than it asked for" if row.outcome == "oom" else ""
    return Repeat(row, by, round(value, 4), f"{by}{measure}: it would have to differ in {_DIFFERENT[by]}, contract, hardware or versions{memory}")


def _exact(row: CandidateRow, proposal: Proposal) -> bool:
    here = (proposal.diff_hash, proposal.launch_fingerprint)
    return any(here) and here == (row.diff_hash, row.launch_fingerprint)  # two empty hashes identify nothing


def _alike(row: CandidateRow, proposal: Proposal) -> bool:
    if not proposal.techniques - {*proposal.base_stack}:
        return False  # a free change: only its code and words can tell
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

"""Proof of a memory saving by runs under a hard limit: placeholder of the room."""

from __future__ import annotations

from collections.abc import Sequence

from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked
from rsi_tui.journal.facts import CandidateFacts, MemorySavingFacts, TrialFacts


def prove_saving(
    lab: Lab,
    step: str,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    ours: Sequence[TrialFacts],
    theirs: Sequence[TrialFacts],
) -> tuple[MemorySavingFacts, Checked] | None:
    """Not here yet."""
    return None

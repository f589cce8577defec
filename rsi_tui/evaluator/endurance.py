"""Further runs of a proven candidate, for the bound on very slow runs: placeholder of the room."""

from __future__ import annotations

from collections.abc import Sequence

from rsi_tui.evaluator.lab import Lab
from rsi_tui.journal.facts import CandidateFacts, TrialFacts


def endure(lab: Lab, step: str, candidate: CandidateFacts, theirs: Sequence[TrialFacts]) -> tuple[str, float | None]:
    """Not here yet."""
    return "", None

"""Hidden loss over fresh seeds: placeholder of the room."""

from __future__ import annotations

from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked
from rsi_tui.journal.facts import CandidateFacts


def check_noninferior(lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts) -> Checked:
    """Not here yet."""
    return Checked()

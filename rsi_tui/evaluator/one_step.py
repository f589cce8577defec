"""One update from hidden states, compared with the incumbent's: placeholder of the room."""

from __future__ import annotations

from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked
from rsi_tui.journal.facts import CandidateFacts


def check_one_step(lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts) -> Checked:
    """Not here yet."""
    return Checked()

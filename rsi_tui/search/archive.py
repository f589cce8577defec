"""The archive: candidates that nothing else beats in both step time and peak memory.

A slower but leaner candidate stays: it is a stepping stone for a change that needs its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rsi_tui.journal.facts import CandidateFacts


@dataclass(frozen=True)
class Standing:
    """A measured candidate, placed against the original."""

    candidate: CandidateFacts
    log_time: float
    """log-ratio of its time to the original's, along the chain of incumbents"""
    peak_bytes: int | None


def frontier(standings: Iterable[Standing]) -> tuple[Standing, ...]:
    """The non-dominated candidates, fastest first; unknown memory counts as the largest."""
    ordered = sorted(standings, key=lambda s: (s.log_time, s.peak_bytes if s.peak_bytes is not None else float("inf")))
    kept: list[Standing] = []
    leanest = float("inf")
    for standing in ordered:
        peak = standing.peak_bytes if standing.peak_bytes is not None else float("inf")
        if not kept or peak < leanest:
            kept.append(standing)
            leanest = min(leanest, peak)
    return tuple(kept)

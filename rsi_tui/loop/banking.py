"""Savings of memory for the bank: what is no faster but leaner may carry the next change.

A candidate that screening dropped, or found no gain in, but that seemed to need at least 5 % less memory than
its incumbent, is offered to the evaluator, which proves the saving under a hard limit or does not. Proven or
not, a candidate on the frontier of time and memory is a parent to choose from (`Memory.archive`); 'leaner' says
that its saving may be relied on. Each proof costs some seven runs, so that few are bought: the largest savings of
a wave first, none that the frontier does not need, MAX_OFFERED in a campaign.
"""

from __future__ import annotations

from collections.abc import Sequence

from rsi_tui.evaluator.saving import claimed_limit
from rsi_tui.journal.facts import ScreenFacts
from rsi_tui.loop.context import Context

MAX_OFFERED = 3


def bank(ctx: Context, step: str, results: Sequence[ScreenFacts]) -> None:
    """Offer the savings of a wave that was screened; a verdict of the evaluator's is recorded and remembered."""
    for result in savings(ctx, results):
        if len(ctx.memory.offered) >= MAX_OFFERED:
            return
        ctx.heed_people()
        candidate, incumbent = ctx.memory.candidate(result.candidate), ctx.memory.candidate(result.incumbent)
        verdict = ctx.evaluator.bank(f"{step}/{candidate.id}/bank", result, candidate, incumbent)
        if verdict is not None:
            ctx.memory.offered.append(candidate.id)
            ctx.memory.judged(verdict)


def savings(ctx: Context, results: Sequence[ScreenFacts]) -> list[ScreenFacts]:
    """Those worth offering, largest saving first: unpromoted, unbroken, at least 5 % leaner, on the frontier."""
    frontier = {candidate.id for candidate in ctx.memory.archive()}
    worth = [r for r in results if r.candidate in frontier and not r.promoted and saving(r) > 0]
    undecided = [r for r in worth if ctx.memory.attempts[r.candidate].verdict is None]
    refuted = ctx.memory.refuted
    sound = [r for r in undecided if r.incumbent not in refuted and not ctx.memory.made_of(r.candidate) & refuted]
    return sorted(sound, key=lambda r: -saving(r))


def saving(result: ScreenFacts) -> float:
    """Share of the incumbent's peak that a screened candidate seemed to save; 0 where it can't be claimed."""
    ours, theirs = result.peak_bytes, result.incumbent_peak_bytes
    if result.outcome != "ok" or ours is None or theirs is None or claimed_limit(ours, theirs) is None:
        return 0.0
    return 1 - ours / theirs

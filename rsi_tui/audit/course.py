"""How a campaign went, as series that can be drawn: from the events alone, in the order they came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import ORIGINAL, TrialFacts, VerdictFacts
from rsi_tui.journal.view import CampaignView, CandidateView


def course(events: Sequence[ev.Event]) -> dict[str, list[dict[str, Any]]]:
    """'tried': each word on a candidate, with the seconds of trials spent until then; 'best': the best so far after each change of it."""
    spent, factors = 0.0, {ORIGINAL: 1.0}
    tried: list[dict[str, Any]] = []
    best: list[dict[str, Any]] = [{"seconds": 0.0, "candidate": ORIGINAL, "speedup": 1.0, "proven": True}]
    for event in events:
        body = event.body
        if isinstance(body, ev.TrialFinished | ev.BlockClosed):
            spent += sum(facts.wall_s for facts in _runs(body))
        elif isinstance(body, ev.Screened):
            tried += [
                {"seconds": spent, "candidate": r.candidate, "what": "screened", "result": _screened(r.outcome, r.promoted), "log_ratio": r.log_ratio}
                for r in body.results
            ]
        elif isinstance(body, ev.VerdictReached):
            verdict = body.verdict
            tried.append({"seconds": spent, "candidate": verdict.candidate, "what": "verified" if verdict.blocks else "refused", "result": verdict.verdict, "log_ratio": verdict.log_ratio})  # fmt: skip
            _adopted(verdict, factors)
            _note(best, spent, factors)
        elif isinstance(body, ev.Revoked):
            for candidate in (body.candidate, *body.reopened):
                factors.pop(candidate, None)
            _note(best, spent, factors)
        elif isinstance(body, ev.Claimed) and body.claim.proven and body.claim.speedup is not None:
            best.append({"seconds": spent, "candidate": body.claim.candidate, "speedup": body.claim.speedup.estimate, "proven": True})
    return {"tried": tried, "best": best}


def _runs(body: ev.TrialFinished | ev.BlockClosed) -> Sequence[TrialFacts]:
    if isinstance(body, ev.BlockClosed):
        return body.trials
    return (body.facts,) if body.facts is not None else ()


def _screened(outcome: str, promoted: bool) -> str:
    return outcome if outcome != "ok" else "promoted" if promoted else "dropped"


def _adopted(verdict: VerdictFacts, factors: dict[str, float]) -> None:
    if verdict.verdict == "adopted" and verdict.log_ratio is not None and verdict.incumbent in factors:
        factors[verdict.candidate] = factors[verdict.incumbent] * math.exp(-verdict.log_ratio)


def _note(best: list[dict[str, Any]], seconds: float, factors: dict[str, float]) -> None:
    """The newest adoption that stands is the best: each was proven faster than the one before."""
    candidate = list(factors)[-1]
    if best[-1]["candidate"] != candidate:
        best.append({"seconds": seconds, "candidate": candidate, "speedup": factors[candidate], "proven": False})


def frontier(view: CampaignView) -> list[dict[str, Any]]:
    """Step time and peak memory of each candidate that was measured, as ratios to what it was measured against."""
    found = []
    for known in view.candidates.values():
        time, peak, base = _measured(known)
        if time is not None and peak and base:
            found.append({"candidate": known.id, "time": math.exp(time), "memory": peak / base, "result": known.standing or ("promoted" if known.screen and known.screen.promoted else "dropped")})  # fmt: skip
    return found


def _measured(known: CandidateView) -> tuple[float | None, int | None, int | None]:
    if known.verdict is not None and known.verdict.log_ratio is not None:
        return known.verdict.log_ratio, known.verdict.peak_bytes, known.verdict.incumbent_peak_bytes
    screen = known.screen
    return (screen.log_ratio, screen.peak_bytes, screen.incumbent_peak_bytes) if screen is not None else (None, None, None)


def intervals(view: CampaignView) -> list[dict[str, Any]]:
    """The interval of every verdict that has one, then the claim's."""
    found = [
        {"candidate": v.candidate, "what": v.verdict, **v.speedup.model_dump()} for v in view.verdicts if v.speedup is not None and v.blocks
    ]
    claim = view.claim
    if claim is not None and claim.speedup is not None:
        found.append({"candidate": claim.candidate, "what": "claim", **claim.speedup.model_dump()})
    return found

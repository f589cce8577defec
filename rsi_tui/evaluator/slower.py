"""The verdict on a change that screening dropped: no verification, but perhaps a saving of memory."""

from __future__ import annotations

import time

from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, gaps, highest_peak, worst_of
from rsi_tui.evaluator.saving import prove_saving
from rsi_tui.evaluator.screen import Alone
from rsi_tui.journal.events import VerdictReached
from rsi_tui.journal.facts import CandidateFacts, MemorySavingFacts, Verdict, VerdictFacts


def judge_slower(
    lab: Lab,
    step: str,
    screened: Alone,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    otherwise: Verdict = "slower",
) -> VerdictFacts:
    """'leaner' where fresh runs under a lower limit prove that it needs less memory, else what screening says of its
    time; spends no alpha."""
    began = time.monotonic()
    found = prove_saving(lab, f"{step}/memory", candidate, incumbent, screened.ours, screened.theirs)
    memory, checked = found if found is not None else (None, Checked())
    verdict, reason = _decide(memory, checked, otherwise)
    reasons = (screened.facts.reason, *((reason,) if reason else ()))
    facts = VerdictFacts(
        candidate=candidate.id,
        incumbent=incumbent.id,
        verdict=verdict,
        reasons=reasons,
        alpha=0.0,
        invariants=(*worst_of((*screened.facts.invariants, *checked.invariants)), *gaps(lab, screened.ours)),
        peak_bytes=highest_peak(screened.ours),
        incumbent_peak_bytes=highest_peak(screened.theirs),
        memory=memory,
        pair_scale=lab.pair_scale,
        seconds=time.monotonic() - began,
    )
    return lab.steps.once(step, VerdictReached, lambda: VerdictReached(verdict=facts)).verdict


def _decide(memory: MemorySavingFacts | None, checked: Checked, otherwise: Verdict) -> tuple[Verdict, str]:
    """The verdict and what it adds to the reason of screening."""
    if broken := [f"{fact.name} is broken: {fact.how}" for fact in checked.invariants if fact.status == "broken"]:
        return "invalid", "; ".join(broken)
    if memory is not None and memory.proven:
        return "leaner", f"but {memory.reason}"
    return otherwise, memory.reason if memory is not None else ""

"""What was checked of a campaign's result, and what no check of it could see, for the report."""

from __future__ import annotations

from collections.abc import Sequence

from rsi_tui.journal.facts import FROM_A_STATE, LATE, ClaimFacts, InvariantFacts
from rsi_tui.journal.view import CampaignView, CandidateView


def invariants_checked(view: CampaignView, final: CandidateView | None) -> tuple[str, Sequence[InvariantFacts]]:
    """(candidate, what was checked of it): of what was claimed, else of what is adopted, else of the last that came so far.

    A claim's own runs go first; what only the verification of the same candidate looked at is added.
    """
    if view.claim is not None:
        about = view.candidates.get(view.claim.candidate)
        before = about.verdict.invariants if about is not None and about.verdict is not None else ()
        names = {fact.name for fact in view.claim.invariants}
        return view.claim.candidate, (*view.claim.invariants, *(fact for fact in before if fact.name not in names))
    if final is not None:
        return final.id, final.verdict.invariants if final.verdict is not None else ()
    said = next((v for v in reversed(view.verdicts) if v.invariants), None)
    if said is not None:
        return said.candidate, said.invariants
    screened = (c for c in reversed(view.candidates.values()) if c.screen is not None and c.screen.invariants)
    known = next(screened, None)
    return (known.id, known.screen.invariants) if known is not None and known.screen is not None else ("", ())


def gaps(view: CampaignView, final: CandidateView | None, checked: Sequence[InvariantFacts]) -> list[str]:
    """What the invariants can't see: what the evaluator named, then what no campaign of this version covers."""
    named = [f"{i.name}: {i.how}" for i in checked if i.status == "not_covered"]
    memory = _unproven_saving(view, final)
    return [
        *named,
        _unseen_late(view, checked),
        "Start-up is spread over the length of a real run by arithmetic; no run of that length was made",
        *([memory] if memory else []),
    ]


def _unseen_late(view: CampaignView, checked: Sequence[InvariantFacts]) -> str:
    """What a change could do late in a real run; less where updates were also compared from saved states."""
    contract = view.created.contract if view.created is not None else {}
    steps = (contract.get("objective", {}).get("steps") or (0, 0))[-1]
    length = f"the length that was run (at most {2 * steps} steps here)"
    from_states = any(i.status != "not_covered" and FROM_A_STATE in i.how for i in checked)
    if not from_states:
        return f"A change that begins to act after {length} is not seen"
    unmoved = any(i.status == "not_covered" and i.name == LATE for i in checked)
    where = "saved states" if unmoved else "saved states, one of them with its step counters moved on,"
    return (
        f"Beyond {length} only a few updates from {where} were compared: what acts late and only in runs that were not "
        "started from a state is not seen"
    )


def _unproven_saving(view: CampaignView, final: CandidateView | None) -> str:
    """What is said of a lower peak that no runs under a lower limit have proven; '' where there is none to be said."""
    told = view.claim if view.claim is not None else final.verdict if final is not None else None
    if told is None or (told.memory is not None and told.memory.proven):
        return ""
    before, after = (
        (told.baseline_peak_bytes, told.candidate_peak_bytes) if isinstance(told, ClaimFacts)
        else (told.incumbent_peak_bytes, told.peak_bytes)
    )  # fmt: skip
    if before is None or after is None or after >= before:
        return ""
    why = f": {told.memory.reason}" if told.memory is not None else ""
    return f"That peak memory is lower was measured, not proven by runs under a lower limit{why}"

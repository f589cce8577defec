"""What readers are told of proof beyond verdicts: canaries, what each change contributes, what was taken back.

Everything is read off a view; nothing is judged here.
"""

from __future__ import annotations

from typing import Any

from rsi_tui.audit import words
from rsi_tui.journal.events import CanaryKind
from rsi_tui.journal.facts import CANARY, AttributionFacts, Interval
from rsi_tui.journal.view import CampaignView, CandidateView, revocation_words

CANARY_WORDS: dict[CanaryKind, str] = {
    "no-op": "a change that does nothing",
    "slower": "a change that is known to be slower",
}


def worth(interval: Interval) -> str:
    """'1.12x with it than without (98.8 % interval 1.05 to 1.20)'."""
    return f"{words.times(interval.estimate)} as fast with it as without ({words.confidence(interval.confidence)} interval {interval.low:.2f} to {interval.high:.2f})"


def part_words(part: AttributionFacts, *, lone: bool = False) -> str:
    """How it is known what a change contributes, and whether that is proven; `lone`: it is the whole stack."""
    if part.how == "leave-one-out":
        measured = part.note if part.interval is None else worth(part.interval)
        return f"leave-one-out: {measured}{'' if part.proven else ', unproven alone'}"
    why_not = f" ({part.note})" if part.note else ""
    return f"{part.how}, {'the only change, proven by its verification' if lone else 'unproven alone'}{why_not}"


def bundle_words(parts: tuple[AttributionFacts, ...]) -> str:
    """What the proof of a join says of its members, one clause."""
    proven = [part.name for part in parts if part.proven]
    if not proven:
        return "a bundle: the proof is of its parts together, each is unproven alone"
    rest = ", the others are unproven alone" if len(proven) < len(parts) else ""
    return f"a bundle: the proof is of its parts together; leave-one-out proved {words.listed(proven)}{rest}"


def member_words(view: CampaignView, member: CandidateView) -> str:
    """What is known of one member of a join; '' when nothing was measured of it."""
    part = view.attribution_of(member.id)
    if part is not None and part.how == "leave-one-out":
        return part_words(part)
    if member.screen is None or member.screen.log_ratio is None:
        return ""
    return f"{words.change(member.screen.log_ratio)} in screening, unproven alone"


def canary_words(view: CampaignView) -> str:
    """'3 planted, none adopted'; '' when none was planted or could be."""
    if not view.canaries and not view.not_planted:
        return ""
    adopted = [known.id for known in _canaries(view) if known.standing == "adopted"]
    count = len(view.canaries)
    outcome = f"{', '.join(adopted)} adopted: this machine proves what is not so" if adopted else "none adopted" if view.over else "none adopted so far"
    return f"{count} planted, {outcome}" if count else "none planted"


def canaries(view: CampaignView) -> dict[str, Any] | None:
    """Every canary and what became of it; None when there were none."""
    summary = canary_words(view)
    if not summary:
        return None
    return {
        "summary": summary,
        "planted": [
            {
                "candidate": known.id,
                "kind": view.canaries[known.id].kind,
                "what": CANARY_WORDS[view.canaries[known.id].kind],
                "forced": view.canaries[known.id].forced,
                "result": canary_result(known),
                "screened": known.screen.log_ratio if known.screen else None,
                "verdict": known.verdict.model_dump(mode="json") if known.verdict else None,
                "alarm": canary_alarm(known),
            }
            for known in _canaries(view)
        ],
        "not_planted": [body.reason for body in view.not_planted],
    }


def canary_result(known: CandidateView) -> str:
    """How far a canary came, in a few words."""
    if known.verdict is not None:
        return f"verified: {known.verdict.verdict.replace('_', ' ')}"
    if known.screen is None:
        return "not measured"
    if known.screen.outcome != "ok":
        return f"screened: {known.screen.outcome}"
    return "screened: promoted" if known.screen.promoted else "screened: dropped"


def canary_alarm(known: CandidateView) -> str:
    """What is wrong with the evaluation when a canary ends like this; '' when nothing is."""
    invariants = [*(known.screen.invariants if known.screen else ()), *(known.verdict.invariants if known.verdict else ())]
    broken = sorted({fact.name for fact in invariants if fact.status == "broken"})
    if known.standing == "adopted":
        return "adopted: nothing that this machine measures is proof"
    if known.standing == "leaner":
        return "leaner: no saving of memory that is measured here is proof"
    if broken:
        return f"breaks {words.listed(broken)}, which it can't: honest changes are refused here as well"
    if known.screen is not None and known.screen.outcome not in ("ok", "not_measured", "cancelled"):
        return f"fails ({known.screen.outcome}), and so may honest changes"
    return ""


def _canaries(view: CampaignView) -> list[CandidateView]:
    return [known for known in view.apart.values() if known.direction == CANARY and known.id in view.canaries]


def eliminations(view: CampaignView) -> list[dict[str, Any]]:
    """The rounds of backward elimination, oldest first."""
    return [
        {
            **round_.model_dump(mode="json", exclude={"type"}),
            "words": [f"{part.name}: {part_words(part)}" for part in round_.parts],
        }
        for round_ in view.left_out
    ]


def revocations(view: CampaignView) -> list[dict[str, Any]]:
    """What was taken back, when and why."""
    return [{"at": at, **body.model_dump(mode="json", exclude={"type"})} for at, body in view.revocations]


def claim_revoked(view: CampaignView) -> str:
    """Why a proven claim does not stand any more; '' when it does, or there is none."""
    about = view.candidates.get(view.claim.candidate) if view.claim is not None and view.claim.proven else None
    return revocation_words(about) if about is not None else ""

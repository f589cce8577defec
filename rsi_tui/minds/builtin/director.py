"""The builtin Director: what to investigate next, from profile, library and this campaign's own record.

It first asks whether something proven before on such a machine still holds; then opens, layer by
layer, the direction with the largest expected gain, each layer once for each base. When half of the
budget is spent, or no layer promises enough, it asks which of the changes go together. It ends the
search when neither a layer nor a set promises more than the practical margin.
"""

from __future__ import annotations

import math
from collections import defaultdict

from rsi_tui.contract.model import Layer
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, ProfileFacts, StartKind
from rsi_tui.minds.builtin.joint import QUESTION, Set, best_set
from rsi_tui.minds.builtin.pool import Option, options, start_peak
from rsi_tui.minds.builtin.proposals import matched
from rsi_tui.minds.protocol import Decline, DirectionAnswer, DirectorBrief, EndSearch, PastEffect, Proposal
from rsi_tui.search.acquisition import percent
from rsi_tui.search.estimate import tried_here
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import all_techniques, settings_of

WAVE = 4
"""candidates that one direction may try before it is judged"""
SETS = 8
"""sets that one direction may try: two waves, so that the second knows what the first has shown"""
QUESTIONS: dict[Layer, str] = {
    "kernel": "Which operators of forward and backward pass can be computed in fewer or cheaper kernels?",
    "memory": "Does the program spend time on allocating and moving memory that it need not spend?",
    "optimizer": "Can the parameter update be done in fewer passes over the parameters?",
    "launch": "Is the program launched with settings that suit this machine?",
    "compiler": "Does compiling the model pay for itself over a real run?",
    "communication": "Can communication be made smaller, or hidden behind computation?",
    "data": "Does the program wait for its data or for the host?",
}


def direct(brief: DirectorBrief) -> DirectionAnswer | EndSearch | Decline:
    """The next direction, or the reason why there is none; people's ideas come before its own."""
    if brief.candidates_left <= 0:
        return EndSearch("the budget of candidates is used up")
    if brief.proposals:
        return _heed(brief, brief.proposals[0])
    if (again := _proven_before(brief)) is not None:
        return _reproduce(brief, again)
    start = _start(brief)
    by_layer: dict[Layer, list[Option]] = defaultdict(list)
    for option in options(brief, start, start_peak(brief, start), brief.sources):
        by_layer[option.layer].append(option)
    done = {(d.layer, d.start) for d in brief.open_or_closed}
    ranked = sorted(
        ((layer, found) for layer, found in by_layer.items() if (layer, start.id) not in done),
        key=lambda item: -_promise_per_cost(item[1]),
    )
    worth = [(layer, found) for layer, found in ranked if _promise(found) > brief.contract.objective.margin]
    if not worth or _spent(brief) >= brief.candidates_left:
        together = best_set(brief, start, brief.sources)
        if together is not None and together.gain > brief.contract.objective.margin:
            return _open_sets(brief, start, together)
    if not worth:
        return EndSearch("no layer and no set of changes promises more than the practical margin")
    layer, found = worth[0]
    return _open(brief, start, layer, found[:WAVE], ranked)


def _spent(brief: DirectorBrief) -> int:
    """Candidates that were tried, joins apart."""
    return sum(1 for attempt in brief.attempts if not attempt.candidate.members)


def _open_sets(brief: DirectorBrief, start: CandidateFacts, first: Set) -> DirectionAnswer:
    """A direction that tries sets chosen by the models, any layer's changes together."""
    known = (*all_techniques(), *settings_of(brief.contract))
    budget = min(SETS, brief.candidates_left)
    return DirectionAnswer(
        question=QUESTION,
        layer=first.layer,
        start_kind=_kind(brief, start),
        start=start.id,
        techniques=tuple(technique.id for technique in known),
        reason=f"What was measured lets the models expect most of {first.parts}: {first.words}.",
        expected_gain=-math.expm1(-first.gain),
        budget=budget,
        closing_rule=f"closed after {budget} sets, or when none promises more than the practical margin",
    )


def _heed(brief: DirectorBrief, proposal: Proposal) -> DirectionAnswer | Decline:
    """A direction that tries what a person's idea means, or why it can't."""
    start = _start(brief)
    found = matched(brief, proposal, Situation(brief.sources, brief.contract, brief.profile, start.knobs))
    tried = [t for t in found if tried_here((t.id,), start.techniques, brief.attempts)]
    if not found:
        return Decline(proposal.id, "no technique that would change this program is meant by it; `rsi evaluate` takes a patch of your own, and --mind claude takes ideas in words")
    if len(tried) == len(found):
        return Decline(proposal.id, f"{', '.join(t.id for t in tried)} was tried on {start.id} in this campaign already")
    wanted = tuple(t.id for t in found if t not in tried)
    return DirectionAnswer(
        question=proposal.text,
        layer=found[0].layer,
        start_kind=_kind(brief, start),
        start=start.id,
        techniques=wanted,
        reason=f"{proposal.who} proposed it. The techniques that it means: {', '.join(wanted)}.",
        expected_gain=0.0,
        budget=min(len(wanted), brief.candidates_left),
        closing_rule="closed when what was proposed is tried",
        proposal=proposal.id,
    )


def _kind(brief: DirectorBrief, start: CandidateFacts) -> StartKind:
    return "original" if start.id == ORIGINAL else "best" if start.id == brief.best else "intermediate"


def _promise(found: list[Option]) -> float:
    return sum(option.choice.improvement * option.choice.fits for option in found[:WAVE])


def _promise_per_cost(found: list[Option]) -> float:
    """What orders layers: a run that has to compile first costs many others."""
    return sum(option.choice.value for option in found[:WAVE])


def _start(brief: DirectorBrief) -> CandidateFacts:
    """The best proven candidate, the original while nothing is proven; what a person pinned before either."""
    wanted = brief.pinned or brief.best
    for attempt in brief.attempts:
        if attempt.candidate.id == wanted:
            return attempt.candidate
    return CandidateFacts(id=ORIGINAL, commit="", base="", knobs=brief.contract.defaults)


def _proven_before(brief: DirectorBrief) -> PastEffect | None:
    """The best change that an earlier campaign proved on this workload and machine, while none was tried here."""
    proven = [
        effect
        for effect in brief.past
        if effect.verdict == "adopted"
        and effect.same_workload
        and effect.fit > 0.5
        and effect.log_ratio is not None
    ]
    if not proven or any(direction.reproduces for direction in brief.open_or_closed):
        return None
    return min(proven, key=lambda effect: whole_effect(effect, brief.past) * effect.fit)


def whole_stack(past: PastEffect) -> tuple[str, ...]:
    """Every technique that a past candidate held, those of its base first."""
    return (*past.stack, *(t for t in past.techniques if t not in past.stack))


def whole_effect(past: PastEffect, all_past: tuple[PastEffect, ...]) -> float:
    """Log-ratio of a past candidate to the original, along the proven candidates of its campaign that it stands on."""
    total = past.log_ratio or 0.0
    if not past.stack:
        return total
    campaign = past.record.split("/")[0]
    for below in all_past:
        same = below.record.split("/")[0] == campaign and below.verdict == "adopted" and below.record != past.record
        if same and set(whole_stack(below)) == set(past.stack):
            return total + whole_effect(below, tuple(p for p in all_past if p is not past))
    return total


def _reproduce(brief: DirectorBrief, past: PastEffect) -> DirectionAnswer:
    techniques = whole_stack(past)
    parts = [*techniques, *(f"{name}={value}" for name, value in past.knobs.items())]
    effect = whole_effect(past, brief.past)
    gain = -math.expm1(effect)
    return DirectionAnswer(
        question="Does what an earlier campaign proved on this workload hold here and now?",
        layer="kernel",
        start_kind="original",
        start=ORIGINAL,
        techniques=techniques,
        reason=(
            f"The library holds {past.record}, adopted with a step time {percent(effect)} "
            f"({', '.join(parts)}), under conditions that fit by {past.fit:.2f}: proven changes are tried first."
        ),
        expected_gain=gain,
        budget=1,
        closing_rule="closed after one verification",
        evidence=(past.record,),
        reproduces=past.record,
        used_hits={past.record: "tried first, as a whole, without searching for its parts again"},
    )


def _open(
    brief: DirectorBrief,
    start: CandidateFacts,
    layer: Layer,
    found: list[Option],
    ranked: list[tuple[Layer, list[Option]]],
) -> DirectionAnswer:
    gain = 1 - math.exp(sum(min(0.0, option.estimate.time) for option in found))
    used = {
        record: f"corrected the expected effect of {' with '.join(option.ids)} to {percent(option.estimate.time)}"
        for option in found
        for record in option.estimate.evidence
    }
    others = ", ".join(f"{name} {100 * _promise(items):.0f}" for name, items in ranked[1:])
    reason = (
        f"{_profile_words(brief.profile, layer)} Expected here: "
        + "; ".join(f"{option.title} {percent(option.estimate.time)}" for option in found)
        + (f". Other layers promise less (points): {others}." if others else ".")
    )
    return DirectionAnswer(
        question=QUESTIONS[layer],
        layer=layer,
        start_kind=_kind(brief, start),
        start=start.id,
        techniques=tuple(dict.fromkeys(id for option in found for id in option.ids)),
        reason=reason,
        expected_gain=gain,
        budget=min(len(found), brief.candidates_left),
        closing_rule=f"closed when its {len(found)} techniques are tried, or when the budget is used up",
        evidence=tuple(used),
        used_hits=used,
    )


def _profile_words(profile: ProfileFacts, layer: Layer) -> str:
    """The part of the profile that speaks for a layer."""
    top = ", ".join(f"{op.name} {100 * op.share:.0f} %" for op in profile.operators[:3])
    if layer == "optimizer":
        return f"The optimizer takes {100 * profile.share('optimizer'):.0f} % of a step."
    if layer == "memory" and profile.page_faults_per_step:
        return f"A step causes {profile.page_faults_per_step:,.0f} page faults."
    if layer == "data":
        waits = profile.share("data") + profile.share("host_sync")
        return f"Data and host synchronisation take {100 * waits:.0f} % of a step."
    if layer == "communication":
        return f"Communication takes {100 * profile.share('communication'):.0f} % of a step."
    share = profile.share("forward") + profile.share("backward")
    return f"Forward and backward take {100 * share:.0f} % of a step, most of it in {top}."

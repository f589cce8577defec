"""Pages about one thing of a campaign: what the command line prints and the app shows in its detail.

A page is plain text in sections plus the same as JSON values; it is made from a view and decides
nothing. Text that came from outside is cleaned here, once.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from rsi_tui.audit import proof, words
from rsi_tui.audit.model_calls import calls_about, lines_of
from rsi_tui.audit.report import contents, result_word, whole_contents, why
from rsi_tui.errors import UsageError
from rsi_tui.journal.facts import LEAVE_ONE_OUT, ORIGINAL, ReviewFacts, ScreenFacts, TrialFacts, VerdictFacts
from rsi_tui.journal.view import (
    DID_NOT_FIT,
    CampaignView,
    CandidateView,
    DirectionView,
    RoundView,
    campaign_summary,
    superseded_words,
)


@dataclass(frozen=True)
class Section:
    """A heading with lines under it."""

    title: str
    lines: tuple[str, ...]
    kind: Literal["text", "diff"] = "text"


@dataclass(frozen=True)
class Page:
    """Everything about one thing."""

    title: str
    sections: tuple[Section, ...]
    data: dict[str, Any] = field(default_factory=dict)
    """the same as JSON values"""

    def text(self) -> str:
        """The page for a plain terminal."""
        parts = [self.title]
        for section in self.sections:
            indent = "" if section.kind == "diff" else "  "
            parts.append("\n".join([f"\n{section.title}", *(indent + line for line in section.lines)]))
        return "\n".join(parts)


def page(view: CampaignView, name: str) -> Page:
    """The page of a candidate, direction, hypothesis or trial of a campaign, or of the campaign itself.

    `name` is a local id ('c3', 'd1', 'h2', 't40', 'original') or the campaign's. Raises UsageError naming
    the nearest id.
    """
    if name in ("", view.id):
        return campaign_page(view)
    if (known := view.known(name)) is not None:
        return _candidate_page(view, known)
    if name in view.directions:
        return _direction_page(view, view.directions[name])
    if name in view.rounds:
        return _hypothesis_page(view, view.rounds[name])
    if name in view.trials:
        return _trial_page(view.trials[name])
    if name == ORIGINAL:
        return _original_page(view)
    raise UsageError(unknown(name, [*view.candidates, *view.apart, *view.directions, *view.rounds, *view.trials, ORIGINAL], f"campaign {view.id}"))


def unknown(name: str, known: list[str], where: str) -> str:
    """One sentence about an id that does not exist, with the nearest that does."""
    alike = [k for k in known if k[:1] == name[:1]] or known
    near = difflib.get_close_matches(name, alike, n=1, cutoff=0.0)
    hint = f"; the nearest is {near[0]}" if near else "; there is nothing yet"
    return f"there is no '{words.one_line(name, 40)}' in {where}{hint}."


def campaign_page(view: CampaignView) -> Page:
    """State, proof, directions and cost of a campaign."""
    loops = tuple(line for d in view.directions.values() for line in _direction_lines(view, d)) or ("none yet",)
    own = _cleaned([f"{known.hypothesis.id}: {known.hypothesis.statement} | {round_words(view, known)}" for known in view.rounds.values()])
    sections = [
        Section("State", tuple(_state_lines(view))),
        Section("Change", own) if view.is_evaluation else Section("Directions", loops),
    ]
    if view.bundles:
        sections.append(Section("Bundles", tuple(candidate_line(view, c) for c in view.bundles)))
    if view.left_out:
        sections.append(Section("What each change contributes", _cleaned([_round_of_elimination(r) for r in proof.eliminations(view)])))
    if (found := proof.canaries(view)) is not None:
        sections.append(Section("Canaries", _cleaned([found["summary"], *(canary_line(known) for known in found["planted"])])))
    if proposed := view.proposals():
        sections.append(Section("Ideas of people", _cleaned([f"{id}, {who}: {text} | {became}" for id, who, text, became in proposed])))
    if view.revocations:
        sections.append(Section("Taken back", _cleaned([f"{body.candidate}, by {body.who}: {body.reason}" for _, body in view.revocations])))
    if failures := view.failures():
        lines = tuple(words.one_line(f"{f.about}: {f.kind}: {f.detail or f.cause}") for f in failures)
        sections.append(Section("Failed and refused", lines))
    return Page(f"{view.workload} · {view.kind} {view.id}", tuple(sections), campaign_summary(view))


def _round_of_elimination(known: dict[str, Any]) -> str:
    dropped = f"; left out: {known['dropped']}" if known["dropped"] else ""
    trouble = f"; nothing was learned: {known['trouble']}" if known["trouble"] else ""
    return f"{known['stack']}: {'; '.join(known['words'])}{dropped}{trouble}"


def canary_line(known: dict[str, Any]) -> str:
    """'k1, a change that does nothing, forced: verified: not proven'."""
    forced = ", forced" if known["forced"] else ""
    alarm = f"; {known['alarm']}" if known["alarm"] else ""
    return f"{known['candidate']}, {known['what']}{forced}: {known['result']}{alarm}"


def _state_lines(view: CampaignView) -> list[str]:
    lines = [
        f"state: {view.state_words}, trust level {view.trust} ({words.TRUST_WORDS.get(view.trust, '')})",
        f"speed-up: {speedup_words(view) or ('nothing proven yet' if not view.over else 'nothing was proven')}",
    ]
    if best := view.best():
        lines.append(f"adopted: {best.id} ({whole_contents(view, best)})")
    lines.append(cost_words(view))
    if view.noise:
        lines.append(noise_words(view))
    if view.state_reason and view.state != "stopped":
        lines.append(view.state_reason)
    return [words.one_line(line) for line in lines]


def speedup_words(view: CampaignView) -> str:
    """'1.93x faster (99 % interval 1.81 to 2.02), claimed on 8 fresh pairs'; before the claim an estimate that says so.

    '' when nothing was adopted, or when the claim did not hold.
    """
    speedup = view.proven_speedup()
    if speedup is not None and view.claim is not None:
        return f"{words.interval(speedup)}, claimed on {words.plural(view.claim.pairs, 'fresh pair')}"
    estimate = view.estimated_speedup()
    return "" if estimate is None else f"adopted, {words.about(estimate)} in verification; {claim_is_missing(view)}"


def claim_is_missing(view: CampaignView) -> str:
    """Why there is no interval, before a claim."""
    return "it ended before the claim on fresh pairs" if view.over else "the claim follows on fresh pairs"


def cost_words(view: CampaignView) -> str:
    """'6 candidates, 46 runs (1 failed), 3 min 48 s of trial time'."""
    failed = sum(n for outcome, n in view.outcomes.items() if outcome not in ("ok", DID_NOT_FIT))
    of = f" of {view.created.max_candidates}" if view.created else ""
    runs = words.plural(len(view.trials) + len(view.sealed), "run")
    bundles = len(view.bundles)
    joined = f" and {words.plural(bundles, 'bundle')}" if bundles else ""
    searched = "" if view.is_evaluation else f"{len(view.candidates) - bundles}{of} candidates{joined}, "
    return f"{searched}{runs}{f' ({failed} not ok)' if failed else ''}, {words.duration(view.trial_seconds)} of trial time"


def noise_words(view: CampaignView) -> str:
    """Noise and the smallest effect that can be proven; '' before calibration."""
    if view.noise is None:
        return ""
    return f"noise: a run varies by {words.percent(view.noise.run_cv)}; smallest provable gain {words.percent(view.noise.smallest_provable)}"


def origin_words(view: CampaignView) -> str:
    """Where noise and bands were measured, where not here: ', measured 2 h 5 min before in 20261130-1; ...'; '' else."""
    known = view.calibrated
    if known is None or not known.origin:
        return ""
    age = (datetime.fromisoformat(view.started_at) - datetime.fromisoformat(known.measured_at)).total_seconds()
    return f", measured {words.duration(max(0.0, age))} before in {known.origin}; fresh pairs of runs agree"


def _predicted(view: CampaignView, candidate: CandidateView) -> str:
    """' (predicted -1.6 %)'; '' where nobody predicted."""
    known = view.rounds.get(candidate.hypothesis)
    return f" (predicted {words.change(known.hypothesis.predicted_time)})" if known and not view.is_evaluation else ""


def round_words(view: CampaignView, known: RoundView) -> str:
    """How far a round has come and what came out, with prediction: 'promoted: -16.4 % (predicted -17.3 %)'."""
    candidate = view.candidates.get(known.candidate)
    if candidate is None:
        if known.refusals:
            return f"refused ({known.refusals[-1].kind.replace('_', ' ')}): {known.refusals[-1].reason}"
        return "executor is writing the change" if not view.over else "never built"
    if candidate.review is None and not candidate.verdicts and not view.over:
        return "reviewer is reading the diff"
    if candidate.screen is None and candidate.verdict is None and candidate.review is not None and candidate.review.decision == "pass":
        running = any(r.candidate == candidate.id for r in view.running.values())
        return "evaluator is running it" if running else "waits for screening" if not view.over else "never run"
    return outcome_words(view, candidate)


def outcome_words(view: CampaignView, candidate: CandidateView) -> str:
    """The last word on a candidate with its figure or its reason."""
    word = result_word(candidate).replace("_", " ")
    if view.claim is not None and view.claim.candidate == candidate.id and candidate.is_adopted:
        claimed = words.short_interval(view.claim.speedup) if view.claim.proven and view.claim.speedup else ""
        return f"{word}, claimed: {claimed}" if claimed else f"{word} by verification, but the claim did not hold"
    if candidate.is_adopted and candidate.superseded:
        return f"{word} by verification; {superseded_words(view, candidate)}"
    if candidate.verdict is not None and candidate.is_adopted and candidate.verdict.speedup is not None:
        return f"{word}: {words.about(candidate.verdict.speedup.estimate)} in verification"
    if candidate.verdict is None and candidate.screen is not None and candidate.screen.log_ratio is not None:
        return f"{word}: {words.change(candidate.screen.log_ratio)} step time{_predicted(view, candidate)}"
    reason = why(candidate)
    return f"{word}: {reason}" if reason else word


def brief_words(view: CampaignView, candidate: CandidateView) -> str:
    """`outcome_words` where there is little room: 'dropped, +0.9 % (predicted -1.6 %)'."""
    if candidate.verdict is not None or candidate.screen is None or candidate.screen.log_ratio is None:
        return outcome_words(view, candidate)
    return f"{result_word(candidate)}, {words.change(candidate.screen.log_ratio)}{_predicted(view, candidate)}"


def candidate_line(view: CampaignView, candidate: CandidateView) -> str:
    """One line on a candidate: id, contents, outcome."""
    return words.one_line(f"{candidate.id} {change_words(view, candidate)}: {outcome_words(view, candidate)}")


def change_words(view: CampaignView, candidate: CandidateView) -> str:
    """What a candidate changes: 'sdpa', 'bundle of c1, c2', 'fused-adamw on top of c4'."""
    parent = candidate.facts.parent or ORIGINAL
    base = "" if parent == ORIGINAL else f" on top of {parent}"
    if candidate.is_bundle:
        return f"bundle of {', '.join(candidate.facts.members)}{base}"
    return contents(view, candidate.id) + base


def _direction_lines(view: CampaignView, known: DirectionView) -> list[str]:
    state = f"closed: {known.closed}" if known.closed else "open"
    lines = [words.one_line(f"{known.facts.id} ({known.facts.layer}) {known.facts.question} [{state}]")]
    for name in known.rounds:
        round_ = view.rounds[name]
        label = f"{name} -> {round_.candidate}" if round_.candidate else name
        lines.append("  " + words.one_line(f"{label}: {round_.hypothesis.statement} | {round_words(view, round_)}"))
    return lines


def _direction_page(view: CampaignView, known: DirectionView) -> Page:
    facts = known.facts
    head = [
        f"layer {facts.layer}; starts from {facts.start}{'' if facts.start == facts.start_kind else f' ({facts.start_kind})'}; budget {words.plural(facts.budget, 'candidate')}",
        f"because {facts.reason}",
        f"expected to save {words.percent(facts.expected_gain)} of the step time; {facts.closing_rule if facts.closing_rule.startswith('closed') else f'closes after {facts.closing_rule}'}",
    ]
    if facts.techniques:
        head.append("may try " + ", ".join(facts.techniques))
    head.append(f"closed: {known.closed}" if known.closed else "open")
    if known.lesson:
        head.append(f"lesson: {known.lesson.text}")
    sections = [Section("Direction", _cleaned(head)), Section("Rounds", tuple(_direction_lines(view, known)[1:]) or ("none yet",))]
    if retrieved := _retrieved(view, facts.id, facts.evidence):
        sections.insert(1, retrieved)
    data = {**facts.model_dump(mode="json"), "closed": known.closed, "rounds": list(known.rounds), "lesson": known.lesson.text if known.lesson else ""}
    return Page(words.one_line(f"{facts.id}: {facts.question}"), tuple(sections), data)


def _hypothesis_page(view: CampaignView, known: RoundView) -> Page:
    if known.candidate in view.candidates:
        return _candidate_page(view, view.candidates[known.candidate])
    sections = [_hypothesis(known), Section("What became of it", _cleaned([round_words(view, known)]))]
    data = {"hypothesis": known.hypothesis.model_dump(mode="json"), "refusals": [r.model_dump(mode="json") for r in known.refusals]}
    return Page(words.one_line(f"{known.hypothesis.id}: {known.hypothesis.statement}"), tuple(sections), data)


def _candidate_page(view: CampaignView, known: CandidateView) -> Page:
    round_ = view.rounds.get(known.hypothesis)
    sections = [Section("Result", _cleaned([outcome_words(view, known), *_prediction(known, round_)]))]
    if round_:
        sections.append(_hypothesis(round_))
    if known.is_bundle:
        sections.append(_members(view, known))
    sections += _judgements(known)
    sections.append(Section("Change", _cleaned([f"built on {known.facts.parent or ORIGINAL}", *_setting_lines(view, known)])))
    if known.diff:
        sections.append(Section("Diff", tuple(words.clean(known.diff).splitlines()), "diff"))
    sections.append(_trials(view, known))
    return Page(words.one_line(f"{known.id}: {_title(view, known)}"), tuple(sections), _candidate_data(view, known, round_))


def _members(view: CampaignView, known: CandidateView) -> Section:
    """The members of a join, with what leave-one-out says of each."""
    members = [view.candidates[m] for m in known.facts.members if m in view.candidates]
    parts = {m.id: part for m in members if (part := view.attribution_of(m.id)) is not None and part.how == "leave-one-out"}
    lines = [candidate_line(view, m) + (f"; {proof.part_words(parts[m.id])}" if m.id in parts else "") for m in members]
    return Section("Members" if parts else "Members, unproven alone", _cleaned(lines))


def _title(view: CampaignView, known: CandidateView) -> str:
    """What a candidate is, in one line."""
    if (round_ := view.rounds.get(known.hypothesis)) is not None:
        return round_.hypothesis.statement
    if (canary := view.canaries.get(known.id)) is not None:
        return f"a canary, {proof.CANARY_WORDS[canary.kind]}"
    return ("the stack of " if known.direction == LEAVE_ONE_OUT else "bundle of ") + ", ".join(known.facts.members)


def _candidate_data(view: CampaignView, known: CandidateView, round_: RoundView | None) -> dict[str, Any]:
    return {
        "candidate": known.facts.model_dump(mode="json"),
        "result": result_word(known),
        "reason": why(known),
        "hypothesis": round_.hypothesis.model_dump(mode="json") if round_ else None,
        "direction": known.direction,
        "diff": known.diff,
        "review": known.review.model_dump(mode="json") if known.review else None,
        "screen": known.screen.model_dump(mode="json") if known.screen else None,
        "verdicts": [v.model_dump(mode="json") for v in known.verdicts],
        "trials": [view.trials[t].model_dump(mode="json") for t in known.trials if t in view.trials],
    }


def _prediction(known: CandidateView, round_: RoundView | None) -> list[str]:
    """Prediction against outcome."""
    if round_ is None or known.screen is None or known.screen.log_ratio is None:
        return []
    if not round_.hypothesis.direction:  # a person's own change, of which nobody predicted anything
        return [f"screened {words.change(known.screen.log_ratio)} (an estimate, not a proof)"]
    predicted = words.change(round_.hypothesis.predicted_time)
    return [f"predicted {predicted} step time, screened {words.change(known.screen.log_ratio)} (an estimate, not a proof)"]


def _hypothesis(known: RoundView) -> Section:
    facts = known.hypothesis
    lines = [f"{facts.id}: {facts.statement}"]
    if facts.direction:
        lines = [
            f"{facts.id} in {facts.direction}, round {facts.round}: {facts.statement}",
            f"predicted: {words.change(facts.predicted_time)} step time, {words.change(facts.predicted_memory)} peak memory",
        ]
    if facts.refuted_by:
        lines.append(f"refuted by: {facts.refuted_by}")
    if facts.evidence:
        lines.append("evidence: " + ", ".join(facts.evidence))
    return Section("Hypothesis", _cleaned(lines))


def _judgements(known: CandidateView) -> list[Section]:
    sections = [Section("Review", _review_lines(known.review))] if known.review else []
    if known.screen:
        sections.append(Section("Screening", _screen_lines(known.screen)))
    sections += [Section("Verdict", _verdict_lines(v)) for v in known.verdicts]
    return sections


def _review_lines(review: ReviewFacts) -> tuple[str, ...]:
    found = [f"{f.severity}, {f.path}:{f.line}: {f.text} [{f.rule}]" for f in review.findings]
    return _cleaned([f"{review.decision.replace('_', ' ')}{': ' + review.summary if review.summary else ''}", *found])


def _screen_lines(screen: ScreenFacts) -> tuple[str, ...]:
    measured = words.change(screen.log_ratio) + " step time" if screen.log_ratio is not None else screen.outcome
    lines = [f"{measured} against {screen.incumbent} in {screen.batches} batch{'' if screen.batches == 1 else 'es'}: {'promoted' if screen.promoted else 'dropped'}, {screen.reason}"]
    if screen.peak_bytes is not None:
        lines.append(f"peak memory {words.size(screen.incumbent_peak_bytes)} -> {words.size(screen.peak_bytes)}")
    return _cleaned(lines + [words.invariant(i) for i in screen.invariants])


def _verdict_lines(verdict: VerdictFacts) -> tuple[str, ...]:
    lines = [f"{verdict.verdict.replace('_', ' ')}: {'; '.join(verdict.reasons)}"]
    if verdict.speedup:
        lines.append(f"{words.interval(verdict.speedup)} than {verdict.incumbent}; the interval allows for the early stop")
    if verdict.evalue is not None and verdict.alpha > 0:
        lines.append(f"e-value {verdict.evalue:.4g}, {1 / verdict.alpha:.4g} needed, over {words.plural(len(verdict.blocks), 'block')}")
    if verdict.runs_needed:
        lines.append(f"runs still needed: {verdict.runs_needed}")
    if verdict.peak_bytes is not None:
        lines.append(f"peak memory {words.size(verdict.incumbent_peak_bytes)} -> {words.size(verdict.peak_bytes)}")
    return _cleaned(lines + _further_lines(verdict) + [words.invariant(i) for i in verdict.invariants])


def _further_lines(verdict: VerdictFacts) -> list[str]:
    """What was looked at besides the gain: order effects, very slow runs, a memory saving."""
    lines = []
    if (carried := verdict.carry_over) is not None and carried.visible:
        lines.append(f"order effect: runs of {verdict.incumbent} are {words.change(carried.log_ratio)} after a run of this one")
    if verdict.slow_run_bound is not None:
        lines.append(f"runs that take twice the usual time: at most {words.percent(verdict.slow_run_bound)} (upper 95 % bound)")
    if verdict.memory is not None:
        lines.append(f"memory saving: {verdict.memory.reason}")
    return lines


def _setting_lines(view: CampaignView, known: CandidateView) -> list[str]:
    lines = [f"techniques: {', '.join(known.facts.techniques)}"] if known.facts.techniques else []
    changed, defaults = view.changed_knobs(known.id), view.defaults
    return lines + [f"{name}: {defaults.get(name)} -> {value}" for name, value in changed.items()]


def _trials(view: CampaignView, known: CandidateView) -> Section:
    lines = [line for t in known.trials if t in view.trials for line in _trial_lines(view.trials[t])]
    return Section("Trials", _cleaned(lines) or ("none",))


def _trial_lines(trial: TrialFacts) -> list[str]:
    time = f", {words.step_time(trial.step_s)} a step" if trial.step_s is not None else ""
    peak = f", peak {words.size(trial.peak_bytes)}" if trial.peak_bytes is not None else ""
    if trial.outcome == "ok":
        first = f"{trial.id} {trial.kind} ok, {trial.steps} steps in {trial.wall_s:.1f} s{time}{peak}"
    else:
        cause = f" ({trial.cause})" if trial.cause else ""
        first = f"{trial.id} {trial.kind} {trial.outcome}{cause} after {trial.wall_s:.1f} s{peak}: {trial.detail}"
    return [first, *(f"  > {line}" for line in trial.telling_lines)]


def _trial_page(trial: TrialFacts) -> Page:
    lines = [
        *_trial_lines(trial),
        f"{trial.arm} of block {trial.block or '(none)'}, slot {trial.slot}, attempt {trial.attempt}, started {trial.started_at}",
    ]
    if trial.exit_code is not None or trial.signal is not None:
        lines.append(f"exit code {trial.exit_code}, signal {trial.signal}")
    if trial.flags:
        lines.append("flags: " + ", ".join(trial.flags))
    if trial.log is not None:
        cut = f", {words.size(trial.log.left_out)} of its middle left out" if trial.log.left_out else ""
        lines.append(f"output: {words.size(trial.log.bytes)} kept{cut}; `rsi show {trial.id} --log` prints it")
    lines.append(f"engine's own time {trial.engine_s:.3f} s, checkpoint comparison {trial.compare_s:.3f} s")
    return Page(f"{trial.id}: a run of {trial.candidate}", (Section("Trial", _cleaned(lines)),), trial.model_dump(mode="json"))


def _original_page(view: CampaignView) -> Page:
    runs = [t for t in view.trials.values() if t.candidate == ORIGINAL]
    lines = [f"the user's own program at commit {view.created.base_commit if view.created else ''}", words.plural(len(runs), "run")]
    return Page("original", (Section("Original", _cleaned(lines)),), {"candidate": ORIGINAL, "trials": [t.id for t in runs]})


def why_page(view: CampaignView, name: str) -> Page:
    """Why a candidate or hypothesis came to be and how it ended: retrieved -> hypothesis -> diff -> trials -> verdict.

    Without a name, or with the campaign's, the adopted candidate's. Raises UsageError for anything else.
    """
    candidate, round_ = _find(view, name)
    steps: list[Section | None] = []
    if round_ is not None:
        direction = view.directions.get(round_.hypothesis.direction)
        if direction is not None:
            steps.append(_retrieved(view, direction.facts.id, direction.facts.evidence))
            steps.append(Section(f"Direction {direction.facts.id}", _cleaned([direction.facts.question, f"because {direction.facts.reason}"])))
        steps += [_retrieved(view, round_.hypothesis.id, round_.hypothesis.evidence), _hypothesis(round_)]
        steps.append(_model_calls(view, (round_.hypothesis.direction, round_.hypothesis.id, candidate.id if candidate else "")))
        steps += [Section("Refused", _cleaned([f"{r.kind.replace('_', ' ')}: {r.reason}"])) for r in round_.refusals]
    data: dict[str, Any] = {"hypothesis": round_.hypothesis.model_dump(mode="json") if round_ else None}
    if candidate is not None:
        if candidate.is_bundle:
            members = (view.candidates[m] for m in candidate.facts.members if m in view.candidates)
            steps.append(Section("Joined from (`rsi why` on each says more)", tuple(candidate_line(view, m) for m in members)))
        steps.append(Section("Change", _cleaned(_setting_lines(view, candidate)) or ("none",)))
        if candidate.diff:
            steps.append(Section("Diff", tuple(words.clean(candidate.diff).splitlines()), "diff"))
        steps += [_trials(view, candidate), *_judgements(candidate)]
        steps.append(Section("So", _cleaned([outcome_words(view, candidate)])))
        data = _candidate_data(view, candidate, round_)
    about = {candidate.direction if candidate else "", round_.hypothesis.id if round_ else "", round_.hypothesis.direction if round_ else ""} - {""}
    data["retrieved"] = [{"for": r.before, **r.event.model_dump(mode="json", exclude={"type"})} for r in view.retrievals if r.before in about]
    called = calls_about(view, about | ({candidate.id} if candidate else set()))
    data["model_calls"] = [{"for": c.before, **c.event.model_dump(mode="json", exclude={"type"})} for c in called]
    title = candidate.id if candidate else name or (round_.hypothesis.id if round_ else "")
    return Page(f"Why {title}", tuple(s for s in steps if s is not None), data)


def _find(view: CampaignView, name: str) -> tuple[CandidateView | None, RoundView | None]:
    if name in ("", view.id):
        best = view.best() or (next(iter(view.candidates.values()), None) if view.is_evaluation else None)
        if best is None and view.is_evaluation and view.rounds:
            return None, next(iter(view.rounds.values()))
        if best is None:
            raise UsageError(f"campaign {view.id} has adopted nothing; name a candidate or hypothesis, `rsi show {view.id}` lists them.")
        return best, view.rounds.get(best.hypothesis)
    if name in view.trials:
        name = view.trials[name].candidate
    if (known := view.known(name)) is not None:
        return known, view.rounds.get(known.hypothesis)
    if name in view.rounds:
        return view.candidates.get(view.rounds[name].candidate), view.rounds[name]
    raise UsageError(unknown(name, [*view.candidates, *view.rounds], f"the candidates and hypotheses of campaign {view.id}"))


def _model_calls(view: CampaignView, about: tuple[str, ...]) -> Section | None:
    lines = lines_of(calls_about(view, [id for id in about if id]))
    return Section("Asked of a model", _cleaned(lines)) if lines else None


def _retrieved(view: CampaignView, about: str, evidence: tuple[str, ...]) -> Section | None:
    lines: list[str] = []
    for known in view.retrievals:
        if known.before != about:
            continue
        lines.append(f"asked for: {known.event.query}")
        used = [hit for hit in known.event.hits if hit.used_for]
        lines += [f"  {hit.record}: {hit.text} ({hit.why}) -> {hit.used_for}" for hit in used]
        lines += [f"  {hit.record}: {words.one_line(hit.text, 80)} -> not used" for hit in known.event.hits if not hit.used_for]
        lines.append(f"changed: {known.event.changed or 'nothing'}")
    if evidence and not lines:
        lines.append("evidence: " + ", ".join(evidence))
    return Section(f"Retrieved for {about}", _cleaned(lines)) if lines else None


def _cleaned(lines: list[str]) -> tuple[str, ...]:
    """Lines fit for a terminal; an indent of two stays."""
    return tuple(("  " if line.startswith("  ") else "") + words.one_line(line) for line in lines)

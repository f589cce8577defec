"""The verdict on one change of a person's own: `rsi evaluate` prints it, as JSON or as a page for a terminal.

`verdict_data` is the canonical form (docs/evaluate.md describes it); the page is rendered from it and from
nothing else. Every figure comes from the evaluation's journal; what was not measured is None. There is a verdict only
once the evaluation is over: what its verification found stands under a key of its own until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rsi_tui.audit import words
from rsi_tui.audit.report import kind_of_change
from rsi_tui.errors import UsageError
from rsi_tui.journal.facts import HOST_FAULTS, InvariantFacts, TrialFacts, VerdictFacts
from rsi_tui.journal.view import FAILED_OUTCOMES, CampaignView, CandidateView, revocation_words

SCREEN = 22
"""lines that a small terminal shows at once"""
HEADLINES = {
    "adopted": "ADOPTED: proven faster, and every invariant held",
    "leaner": "LEANER: proven to need less memory, not proven faster",
    "not_proven": "NOT PROVEN: the evidence did not suffice",
    "slower": "SLOWER: it costs time",
    "invalid": "INVALID: it does not count, whatever it gains",
    "off_direction": "OFF DIRECTION: it does something else than was asked",
    "failed": "FAILED: it can't be applied, or does not run",
    "": "NO VERDICT: the evaluation was interrupted",
}
UNDER_WAY = {"running": "RUNNING: there is no verdict yet", "paused": "PAUSED: there is no verdict yet"}
NOT_PROVEN = {
    "no_change": "NOT PROVEN: nothing was run",
    "not_measured": "NOT PROVEN: it could not be measured",
    "no_gain": "NOT PROVEN: no gain was shown",
    "conditions": "NOT PROVEN: a gain was shown, but not all that adoption needs",
    "claim": "NOT PROVEN: a gain was shown, but not confirmed on fresh pairs",
}
"""headline by cause; a person's stop and a contract that broke have the one of an evaluation that was stopped"""


def verdict_data(view: CampaignView, report: Path | None = None, engine: int | None = None) -> dict[str, Any]:
    """Everything about an evaluation as JSON values; UsageError for a campaign, and before it has begun.

    `engine`: the process that works on it, None when nobody does (`chain.holder`).
    """
    created = view.created
    if created is None or not view.is_evaluation:
        raise UsageError(f"{view.id or 'this journal'} is no evaluation; `rsi report` tells of a campaign.")
    candidate = next(iter(view.candidates.values()), None)
    verdict, verification = view.final_verdict, _verification(view)
    measured = verification or (view.verdicts[-1] if view.verdicts else None)
    round_ = next(iter(view.rounds.values()), None)
    return {
        "schema": 1,
        "evaluation": view.id,
        "workload": created.workload,
        "preset": created.preset,
        "state": _state(view, engine),
        "change": round_.hypothesis.statement if round_ else "",
        "settings": _settings(view, candidate),
        "code": candidate is not None and kind_of_change(view, candidate) != "setting never switched on",
        "verdict": verdict.verdict if verdict else None,
        "cause": _cause(view, candidate, verdict),
        "reasons": list(verdict.reasons) if verdict else [],
        "revoked": revocation_words(candidate) if candidate and candidate.revoked else None,
        "trust": view.trust,
        "trust_meaning": words.TRUST_WORDS[created.trust],
        "isolation": created.sandbox,
        "speedup": _speedup(view, verdict),
        "speedup_from": _speedup_from(view, verdict),
        "screening": _screening(candidate),
        "verification": _verified(verification),
        "claim": _claim(view),
        "step_time": _step_time(view),
        "peak_memory": _peaks(view, candidate, measured),
        "memory_saving": _saving(view, measured),
        "invariants": [_invariant(i) for i in _invariants(view, candidate)],
        "findings": [f.model_dump(mode="json") for f in _findings(view, candidate)],
        "failure": _failure(view, candidate, verdict),
        "trials": [t.model_dump(mode="json") for t in view.trials.values()],
        "cost": {"runs": len(view.trials) + len(view.sealed), "trial_seconds": round(view.trial_seconds, 3)},
        "alpha": view.granted.alpha if view.granted else None,
        "ordinal": view.granted.ordinal if view.granted else None,
        "evalue": verification.evalue if verification else None,
        "threshold": 1 / verification.alpha if verification else None,
        "runs_needed": verdict.runs_needed if verdict else None,
        "run_seconds": _run_seconds(view),
        "slow_run_bound": verification.slow_run_bound if verification else None,
        "smallest_provable": view.noise.smallest_provable if view.noise else None,
        "noise": _noise(view),
        "calibration": _calibration(view),
        "contract_hash": created.contract_hash,
        "base": created.base_commit,
        "commit": candidate.facts.commit if candidate else None,
        "host": dict(created.host),
        "version": created.version,
        "started_at": view.started_at,
        "report": str(report) if report else None,
    }


# --- the values ---------------------------------------------------------------------------------


def _state(view: CampaignView, engine: int | None) -> str:
    """finished or stopped; while it is not over: running, paused, or interrupted where nobody works on it."""
    if view.over:
        return view.state
    return "interrupted" if engine is None else "paused" if view.paused else "running"


def _verification(view: CampaignView) -> VerdictFacts | None:
    """The verification's own word, the only one that error probability is spent on; None when there was none."""
    return next((said for said in view.verdicts if said.alpha > 0), None)


def _verified(found: VerdictFacts | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"verdict": found.verdict, "reasons": list(found.reasons), "speedup": found.speedup.model_dump() if found.speedup else None}


def _claim(view: CampaignView) -> dict[str, Any] | None:
    if (claim := view.claim) is None:
        return None
    speedup = claim.speedup.model_dump() if claim.speedup else None
    return {"proven": claim.proven, "pairs": claim.pairs, "speedup": speedup, "reasons": list(claim.reasons)}


def _cause(view: CampaignView, candidate: CandidateView | None, verdict: VerdictFacts | None) -> str | None:
    """What left a change not proven (docs/evaluate.md lists the values); None for every other verdict."""
    if verdict is None or verdict.verdict != "not_proven":
        return None
    if view.state == "stopped":
        return "stopped" if any(person.action == "stop" for _, person in view.people) else "contract"
    if candidate is None:
        return "no_change"
    if _not_measured(view, candidate, verdict):
        return "not_measured"
    if view.claim is not None:
        confirmed = view.claim.speedup is not None and view.claim.speedup.low > 1
        return "conditions" if confirmed else "claim"
    if verdict.evalue is None or verdict.evalue * verdict.alpha < 1:
        return "no_gain"
    return "contract" if _learning_unknown(view) else "conditions"


def _not_measured(view: CampaignView, candidate: CandidateView, verdict: VerdictFacts) -> bool:
    """Did blocks decide that do not count, or a claim end before it had its pairs, through no fault of the change?"""
    if candidate.screen is not None and candidate.screen.outcome in HOST_FAULTS:
        return True
    wanted = view.created.contract["proof"]["final_pairs"] if view.created else 0
    if view.claim is not None and not view.claim.refuted and view.claim.pairs < wanted:
        return True
    return any(why in reason for why in view.void_blocks.values() for reason in verdict.reasons)


def _learning_unknown(view: CampaignView) -> bool:
    """May the change learn other weights, while the contract names nothing that tells whether it learns as well?"""
    invariants = view.created.contract["invariants"] if view.created else {}
    return invariants.get("weights") == "statistical" and not invariants.get("validation")


def _settings(view: CampaignView, candidate: CandidateView | None) -> dict[str, Any]:
    changed = view.changed_knobs(candidate.id) if candidate else {}
    return {name: {"before": view.defaults.get(name), "after": value} for name, value in changed.items()}


def _claimed(view: CampaignView, verdict: VerdictFacts | None) -> bool:
    return view.claim is not None and view.claim.proven and verdict is not None and verdict.verdict == "adopted"


def _speedup(view: CampaignView, verdict: VerdictFacts | None) -> dict[str, float] | None:
    """The claim's interval where there is a claim that holds, else the verification's."""
    found = view.claim.speedup if view.claim and _claimed(view, verdict) else verdict.speedup if verdict else None
    return found.model_dump() if found else None


def _speedup_from(view: CampaignView, verdict: VerdictFacts | None) -> str | None:
    if _claimed(view, verdict):
        return "claim"
    return "verification" if verdict and verdict.speedup else None


def _screening(candidate: CandidateView | None) -> dict[str, Any] | None:
    if candidate is None or candidate.screen is None:
        return None
    screen = candidate.screen
    return {"log_ratio": screen.log_ratio, "batches": screen.batches, "outcome": screen.outcome, "reason": screen.reason}


def _step_time(view: CampaignView) -> dict[str, float | None] | None:
    """Medians of the claim's runs, seconds a step."""
    if view.claim is None or view.claim.baseline_step_s is None:
        return None
    return {"baseline_s": view.claim.baseline_step_s, "candidate_s": view.claim.candidate_step_s}


def _peaks(view: CampaignView, candidate: CandidateView | None, verdict: VerdictFacts | None) -> dict[str, int | None] | None:
    """Largest peaks of both, bytes, from the last runs that have any."""
    pairs = []
    if view.claim:
        pairs.append((view.claim.baseline_peak_bytes, view.claim.candidate_peak_bytes))
    if verdict:
        pairs.append((verdict.incumbent_peak_bytes, verdict.peak_bytes))
    if candidate and candidate.screen:
        pairs.append((candidate.screen.incumbent_peak_bytes, candidate.screen.peak_bytes))
    for baseline, own in pairs:
        if baseline is not None or own is not None:
            return {"baseline": baseline, "candidate": own}
    return None


def _saving(view: CampaignView, verdict: VerdictFacts | None) -> dict[str, Any] | None:
    """What was said of it instead of a gain of time, else by the claim of one."""
    memory = (verdict.memory if verdict else None) or (view.claim.memory if view.claim else None)
    return memory.model_dump(mode="json") | {"saving": memory.saving} if memory else None


def _invariants(view: CampaignView, candidate: CandidateView | None) -> list[InvariantFacts]:
    """Each invariant once, its worst value over screening, verification and claim; broken ones first, gaps last."""
    screen = candidate.screen.invariants if candidate and candidate.screen else ()
    worst: dict[str, InvariantFacts] = {}
    verified = (fact for said in view.verdicts for fact in said.invariants)
    for fact in (*screen, *verified, *(view.claim.invariants if view.claim else ())):
        known = worst.get(fact.name)
        if known is None or _badness(fact) > _badness(known):
            worst[fact.name] = fact
    return sorted(worst.values(), key=lambda fact: {"broken": 0, "held": 1, "not_covered": 2}[fact.status])


def _badness(fact: InvariantFacts) -> tuple[float, float]:
    used = fact.value / fact.limit if fact.value is not None and fact.limit else fact.value or 0.0
    return (2.0 if fact.status == "broken" else 1.0 if fact.status == "held" else 0.0), used


def _invariant(fact: InvariantFacts) -> dict[str, Any]:
    """As recorded, with what is left up to the limit."""
    left = fact.limit - fact.value if fact.value is not None and fact.limit is not None else None
    return fact.model_dump(mode="json") | {"margin": left}


def _findings(view: CampaignView, candidate: CandidateView | None) -> Iterable[Any]:
    if candidate is not None and candidate.review is not None:
        return candidate.review.findings
    return [finding for known in view.rounds.values() for refusal in known.refusals for finding in refusal.findings]


def _failure(view: CampaignView, candidate: CandidateView | None, verdict: VerdictFacts | None) -> dict[str, Any] | None:
    """Class, root cause, figures and advice of the run that failed; None unless the verdict is 'failed' by a run."""
    if verdict is None or verdict.verdict != "failed" or candidate is None:
        return None
    own = (view.trials[name] for name in candidate.trials if name in view.trials)
    trial: TrialFacts | None = next((t for t in own if t.outcome in FAILED_OUTCOMES and not t.did_not_fit), None)
    if trial is None:
        return None
    return {
        "trial": trial.id,
        "outcome": trial.outcome,
        "class": trial.cause,
        "root_cause": trial.detail,
        "requested_bytes": trial.requested_bytes,
        "limit_bytes": trial.memory_limit_bytes or (view.created.contract["launch"]["memory_limit_bytes"] if view.created else None),
        "advice": trial.advice,
        "lines": list(trial.telling_lines),
    }


def _run_seconds(view: CampaignView) -> float | None:
    """Mean wall time of a whole run here."""
    walls = [t.wall_s for t in view.trials.values() if t.outcome == "ok" and t.steps]
    return math.fsum(walls) / len(walls) if walls else None


def _noise(view: CampaignView) -> dict[str, Any] | None:
    noise = view.noise
    return {"cv": noise.run_cv, "pair_scale": noise.pair_scale, "pairs": noise.pairs} if noise else None


def _calibration(view: CampaignView) -> dict[str, Any] | None:
    if view.calibrated is None:
        return None
    return {"origin": view.calibrated.origin or view.id, "measured_at": view.calibrated.measured_at or None, "reused": bool(view.calibrated.origin), "no_rounding": view.calibrated.no_rounding}


# --- the page -----------------------------------------------------------------------------------


def verdict_page(data: dict[str, Any], width: int = words.WIDTH, colour: bool = False) -> str:
    """The verdict for a terminal, no line longer than `width` columns."""
    headline = f"{_headline(data)} (trust level {data['trust']})"
    good = data["verdict"] in ("adopted", "leaner") and not data["revoked"]
    style = "1;32" if good else "1" if data["state"] in UNDER_WAY else "1;31"
    lines = [f"\x1b[{style}m{headline}\x1b[0m" if colour else headline, ""]
    for label, text in _facts(data):
        lines += words.entry(label, text, width)
    for block in (_invariant_lines(data, width), _gap_lines(data, width), _finding_lines(data, width), _failure_lines(data, width)):
        lines += ["", *block] if block else []
    lines.append("")
    for label, text in _ending(data):
        lines += words.entry(label, text, width)
    if len(lines) > SCREEN:
        lines += ["", lines[0]]  # the first line has left the screen
    return "\n".join(line.rstrip() for line in lines)


def _headline(data: dict[str, Any]) -> str:
    if data["revoked"]:
        return "TAKEN BACK: what was proven does not count any more"
    if data["state"] == "stopped":
        return "STOPPED: the evaluation was ended before it could decide"
    if data["state"] in UNDER_WAY:
        return UNDER_WAY[data["state"]]
    if data["verdict"] == "failed" and data["trials"]:
        return "FAILED: a run of it failed"
    if data["verdict"] == "adopted" and data["speedup"]:
        return f"ADOPTED: proven {words.times(data['speedup']['estimate'])} faster, and every invariant held"
    return NOT_PROVEN.get(data["cause"] or "", HEADLINES[data["verdict"] or ""])


def _facts(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "asked", words.one_line(data["change"])
    yield "on", f"{words.one_line(data['workload'])}, {data['preset']} preset, commit {data['base'][:12]}"
    if data["settings"]:
        yield "settings", ", ".join(f"{name}: {s['before']} -> {s['after']}" for name, s in data["settings"].items())
    if data["revoked"]:
        yield "revoked", words.sentence(data["revoked"])
    for number, reason in enumerate(data["reasons"]):
        yield "" if number else "why", words.sentence(reason)
    if (data["verdict"] is None or data["state"] == "stopped") and (found := data["verification"]):
        yield "so far", words.sentence(_so_far(found))
    yield from _time(data)
    if step := data["step_time"]:
        yield "a step", f"{words.step_time(step['baseline_s'])} before, {words.step_time(step['candidate_s'])} with it (medians)"
    if peak := data["peak_memory"]:
        yield "memory", _memory(peak, data["memory_saving"])


def _so_far(found: dict[str, Any]) -> str:
    """What the verification said of an evaluation that did not come to its own end."""
    if found["verdict"] != "adopted":
        return f"the verification ended as {found['verdict'].replace('_', ' ')}: {'; '.join(found['reasons'])}"
    speedup = found["speedup"]
    size = f", {words.times(speedup['estimate'])} as fast" if speedup else ""
    return f"the verification proved a gain{size}; nothing is adopted before the claim on fresh pairs of runs confirms it"


def _time(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    speedup, screening = data["speedup"], data["screening"]
    if speedup:
        said = f"{words.times(speedup['estimate'])} as fast as the program as it is"
        interval = f"{words.confidence(speedup['confidence'])} interval {speedup['low']:.2f} to {speedup['high']:.2f}"
        how = f"claimed on {data['claim']['pairs']} fresh pairs of runs" if data["speedup_from"] == "claim" else "of the verification; it holds however often it was looked at"
        yield "speed-up", f"{said} ({interval}), {how}"
    elif screening and screening["log_ratio"] is not None:
        yield "speed-up", f"{words.change(screening['log_ratio'])} step time in screening, against the program as it is: an estimate without an interval"


def _memory(peak: dict[str, int | None], saving: dict[str, Any] | None) -> str:
    before, after = peak["baseline"], peak["candidate"]
    change = f" ({words.change(math.log(after / before))})" if before and after else ""
    text = f"peak {words.size(before)} before, {words.size(after)} with it{change}"
    if saving:
        proven = "proven" if saving["proven"] else "not proven"
        text += f"; {proven}: {words.one_line(saving['reason'])}"
    return text


def _invariant_lines(data: dict[str, Any], width: int) -> list[str]:
    """A table: name, result, value, limit, margin; how the limit was found below a broken one."""
    checked = [i for i in data["invariants"] if i["status"] != "not_covered"]
    if not checked:
        return []
    rows = [("What had to stay the same", "", "value", "limit", "margin")]
    rows += [(words.one_line(i["name"]), i["status"], *(_figure(i[part], digits) for part, digits in (("value", 4), ("limit", 4), ("margin", 2)))) for i in checked]
    fixed = [max(len(row[column]) for row in rows) for column in range(1, 5)]
    name = min(max(len(row[0]) for row in rows) + 2, width - sum(fixed) - 8)
    lines = []
    for number, row in enumerate(rows):
        cut = words.one_line(row[0], name - 2 if number else 0)
        lines.append("  ".join((("  " if number else "") + cut).ljust(name) if column == 0 else row[column].rjust(fixed[column - 1]) for column in range(5)))
        if number and checked[number - 1]["status"] == "broken":
            lines += words.wrapped(words.sentence(checked[number - 1]["how"]), width, "    ")
    return lines


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _gap_lines(data: dict[str, Any], width: int) -> list[str]:
    gaps = [i for i in data["invariants"] if i["status"] == "not_covered"]
    lines = ["What no invariant could see"] if gaps else []
    for gap in gaps:
        lines += words.wrapped(f"- {gap['name']}: {words.sentence(gap['how'])}", width, "  ", "    ")
    return lines


def _finding_lines(data: dict[str, Any], width: int) -> list[str]:
    lines = ["What the review found"] if data["findings"] else []
    for found in data["findings"]:
        place = found["path"] if found["rule"] == "out_of_scope" else f"{found['path']}:{found['line']}"
        lines += words.wrapped(f"- {found['severity']}, {place}: {words.sentence(found['text'])}", width, "  ", "    ")
    return lines


def _failure_lines(data: dict[str, Any], width: int) -> list[str]:
    failure = data["failure"]
    if not failure:
        return []
    lines = [f"The run that failed: {failure['trial']}, {failure['outcome']} ({failure['class'] or 'unknown'})"]
    said = [failure["root_cause"]]
    if failure["requested_bytes"]:
        said.append(f"It asked for {words.size(failure['requested_bytes'])}; a run may use {words.size(failure['limit_bytes'])}.")
    if failure["advice"]:
        said.append(f"Try: {failure['advice']}")
    for text in said:
        lines += words.wrapped(words.sentence(text), width, "  ")
    lines += [f"  > {words.one_line(line, width - 4)}" for line in failure["lines"][:6]]
    return lines


def _ending(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    cost = data["cost"]
    yield "cost", f"{words.plural(cost['runs'], 'run')}, {words.duration(cost['trial_seconds'])} of trial time; {_alpha(data)}"
    if data["noise"]:
        reused = f" (measured in {data['calibration']['origin']}, fresh pairs agree)" if data["calibration"]["reused"] else ""
        yield "noise", f"a run varies by {words.percent(data['noise']['cv'])}{reused}; smallest gain that could be proven: {words.percent(data['smallest_provable'])}"
    if data["report"]:
        yield "report", data["report"]
    yield "next", _next(data)


def _alpha(data: dict[str, Any]) -> str:
    if data["alpha"] is None:
        return "no error probability was drawn"
    reached = f", e-value {data['evalue']:.4g} where {data['threshold']:.4g} is needed" if data["evalue"] is not None and data["threshold"] else ""
    return f"error probability {data['alpha']:.2g} of the workload's 0.01 (number {data['ordinal']} on it){reached}"


def _next(data: dict[str, Any]) -> str:
    """What a person can do now."""
    if data["revoked"]:
        return "leave it out; ask again once what it was taken back for is mended"
    match data["verdict"]:
        case "adopted":
            return "keep it: what was proven holds for this program, contract and machine"
        case "leaner":
            return "keep it where memory is short: it may make room for a setting that is faster"
        case "not_proven":
            return _what_it_lacks(data)
        case "slower":
            return "drop it, or look for the part of it that helps"
        case "failed":
            return "mend the change and ask again" + _free(data)
        case None if data["state"] in UNDER_WAY:
            return f"`rsi attach {data['evaluation']}` watches it"
        case None:
            return f"go on with --resume; `rsi status {data['evaluation']}` says the whole command"
        case _:
            return "take out what is named above; a change that alters what is learned is not judged by its speed"


def _free(data: dict[str, Any]) -> str:
    return "" if data["alpha"] is not None else "; this cost no error probability"


def _what_it_lacks(data: dict[str, Any]) -> str:
    """What a change that is not proven needs, by what left it so."""
    match data["cause"]:
        case "no_change":
            return "change something that runs"
        case "stopped":
            return "ask again, and let it come to its end" + _free(data)
        case "contract":
            return "mend the program or workload.toml as said above, then ask again" + _free(data)
        case "not_measured":
            return "see that nothing else runs on this machine (`rsi doctor` says what it lacks), then ask again" + _free(data)
        case "conditions":
            return "see to what is said above, then ask again: the gain of time itself was shown"
        case "claim":
            return "the gain may be smaller than it looked: longer runs ([objective] steps) or several small changes in one patch help"
        case _:
            return _more_evidence(data)


def _more_evidence(data: dict[str, Any]) -> str:
    needed, seconds = data["runs_needed"], data["run_seconds"]
    smallest = f"under {words.percent(data['smallest_provable'])} a gain can hardly be proven here" if data["smallest_provable"] else ""
    if needed:
        time = f" ({words.duration(needed * seconds)})" if seconds else ""
        return f"about {needed} more runs like these{time} would decide; {smallest}; longer runs ([objective] steps) or several small changes in one patch help"
    return f"a larger effect is needed: {smallest or 'none was seen'}; longer runs or several small changes in one patch help"

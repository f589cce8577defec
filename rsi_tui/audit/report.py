"""The audit report of a campaign. Every figure in it comes from the journal's events.

`report_data` is the canonical form; the readable form is rendered from it and from nothing else, so
that the two can be compared. Nothing is measured, estimated or rounded up here: what the record does
not hold is said to be missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsi_tui import __version__
from rsi_tui.audit import course, proof, words
from rsi_tui.audit.covered import gaps, invariants_checked
from rsi_tui.audit.model_calls import summary, summary_words
from rsi_tui.audit.payback import Usage, payback
from rsi_tui.errors import UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import HOST_FAULTS, ORIGINAL, AttributionFacts, ClaimFacts, VerdictFacts
from rsi_tui.journal.view import CampaignView, CandidateView, RoundView, is_turned_down, review_words, revocation_words
from rsi_tui.repo.patch import named_paths

if TYPE_CHECKING:
    import jinja2

FORMATS = ("md", "html", "json")
SCHEMA = 2
"""of the canonical JSON and of the forms that are rendered from it: docs/report.md"""
DIFF_FILE = "faster.diff"
"""name of the file with the adopted code changes, beside a written report"""
OVERHEAD_TARGET_S = 0.5
"""the engine's own time a trial, checkpoint comparison apart"""


def render_report(view: CampaignView, events: Sequence[ev.Event], format: str = "md", usage: Usage | None = None) -> str:
    """The report as Markdown ('md'), one page for a browser ('html') or canonical JSON ('json'); UsageError for any other format."""
    if format not in FORMATS:
        raise UsageError(f"there is no report format '{words.one_line(format, 20)}'; {words.listed(FORMATS)} exist.")
    data = report_data(view, events, usage)
    if format == "html":
        from rsi_tui.audit.html import render_html

        return render_html(data)
    return as_json(data) if format == "json" else render_markdown(data)


def as_json(data: dict[str, Any]) -> str:
    """The canonical text of a report."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def render_markdown(data: dict[str, Any]) -> str:
    """The readable form of `report_data`; plain Markdown, no control characters."""
    text = _template().render(data)
    return "\n".join(_trimmed(words.strip(text).split("\n"))).rstrip("\n") + "\n"


@cache
def _template() -> jinja2.Template:
    """Compiled once a process: `rsi verify` renders many."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        change=words.change, duration=words.duration, size=words.size, step_time=words.step_time, percent=words.percent,
        times=words.times, about=words.about, sentence=lambda text: _cell(words.sentence(str(text))), listed=words.listed, confidence=words.confidence, line=_cell, fence=_fence,
    )  # fmt: skip
    return environment.get_template("report.md.j2")


def _trimmed(lines: Sequence[str]) -> Iterator[str]:
    """Lines without trailing spaces, but for those between fences, where a space can be a line of a diff."""
    fence = ""
    for line in lines:
        if not fence and line.startswith("```"):
            fence = line[: len(line) - len(line.lstrip("`"))]
        elif line == fence:
            fence = ""
        yield line if fence else line.rstrip()


def report_data(view: CampaignView, events: Sequence[ev.Event], usage: Usage | None = None) -> dict[str, Any]:
    """Everything the report says, as JSON values. `events` are those that `view` was folded from; `usage` is a person's."""
    created = view.created
    if created is None:
        raise UsageError("this campaign has not begun: its journal holds no contract yet.")
    final = _final(view)
    checked_of, checked = invariants_checked(view, final)
    return {
        "schema": SCHEMA,
        "renderer": __version__,
        "trust": {"level": view.trust, "meaning": words.TRUST_WORDS[view.trust], "isolation": created.sandbox},
        "campaign": _campaign(view, created),
        "headline": _headline(view),
        "summary": _summary(view),
        "claim": {**view.claim.model_dump(mode="json"), "revoked": proof.claim_revoked(view)} if view.claim else None,
        "adopted": _adopted(view, final) if final else None,
        "verdict": _verdict(final.verdict) if final and final.verdict else None,
        "unsuccessful": _unsuccessful(view),
        "eliminations": proof.eliminations(view),
        "revocations": proof.revocations(view),
        "canaries": proof.canaries(view),
        "leaner": [_attempt(view, c) for c in view.candidates.values() if c.verdict and c.verdict.verdict == "leaner"],
        "pending": [_attempt(view, c) for c in view.candidates.values() if _pending(view, c, final)],
        "retrievals": _retrievals(view),
        "past": _past(view),
        "directions": _directions(view),
        "invariants": [i.model_dump(mode="json") for i in checked],
        "invariants_of": checked_of if final is None else "",
        "gaps": gaps(view, final, checked),
        "masked": _masked(view),
        "bands": [b.model_dump(mode="json") for b in view.bands],
        "noise": view.noise.model_dump(mode="json") if view.noise else None,
        "no_rounding": view.calibrated.no_rounding if view.calibrated else "",
        "profile": view.profile.model_dump(mode="json") if view.profile else None,
        "profile_after": _profile_after(view, final),
        "course": course.course(events),
        "frontier": course.frontier(view),
        "intervals": course.intervals(view),
        "mind": _mind(view, created),
        "usage": usage.as_json() if usage is not None else None,
        "usage_words": usage.words if usage is not None else "",
        "payback": payback(usage, view.claim if not proof.claim_revoked(view) else None, view.trial_seconds),
        "procedure": _procedure(created),
        "environment": dict(created.host),
        "cost": _cost(view),
        "overhead": _overhead(view),
        "failed_trials": _failed_trials(view),
        "void_blocks": dict(view.void_blocks),
        "people": [{"at": at, **p.model_dump(mode="json", exclude={"type"})} for at, p in view.people],
        "record": {"events": len(events), "head": view.last_hash, "last_at": view.last_at},
    }


def _final(view: CampaignView) -> CandidateView | None:
    """What the claim is about; without a claim that stands the best adopted candidate."""
    about = view.candidates.get(view.claim.candidate) if view.claim is not None else None
    if view.is_evaluation and about is not None and not about.is_adopted:
        return None  # its claim did not hold, and there is no other candidate
    return about if about is not None and about.revoked is None else view.best()


def adopted_diff(view: CampaignView) -> str:
    """The code changes that the report is about, as they were committed; '' when there are none."""
    final = _final(view)
    return final.diff if final is not None else ""


def _campaign(view: CampaignView, created: ev.CampaignCreated) -> dict[str, Any]:
    return {
        "id": view.id,
        "kind": view.kind,
        "workload": created.workload,
        "preset": created.preset,
        "mind": created.mind,
        "seed": created.seed,
        "state": view.state_words,
        "reason": view.state_reason,
        "search_ended": view.search_ended,
        "started_at": view.started_at,
        "last_at": view.last_at,
        "engine_starts": view.engine_starts,
        "base_commit": created.base_commit,
        "contract_hash": created.contract_hash,
        "contract": created.contract,
        "folder": created.folder,
        "ordinal": view.granted.ordinal if view.granted else None,
        "alpha": view.granted.alpha if view.granted else None,
        "version": created.version,
    }


def _profile_after(view: CampaignView, final: CandidateView | None) -> dict[str, Any] | None:
    """The profile of what the report is about; None where no instrumented run of it was made."""
    found = view.profiles_after.get(final.id) if final is not None else None
    return found.model_dump(mode="json") if found is not None else None


def _mind(view: CampaignView, created: ev.CampaignCreated) -> dict[str, Any]:
    """Who thought for the roles, and what that cost."""
    who = {"person": "a person's own change", "claude": "the claude mind: models of the Claude API, and the builtin mind where settings say so"}
    what = who.get(created.mind, "the builtin mind: rules and models of its own")
    cost = summary(view) if view.model_calls else {"calls": 0, "usd": 0.0}
    return {"name": created.mind, "words": f"{what}; {summary_words(view)}", **cost}


def _paths(diff: str) -> list[str]:
    """Files that a diff changes, in its order."""
    return list(named_paths(diff, ())) if diff else []


def _headline(view: CampaignView) -> str:
    speedup, estimate = view.proven_speedup(), view.estimated_speedup()
    if speedup is not None:
        return words.interval(speedup)
    if estimate is not None:
        return f"{words.about(estimate)} by an estimate, {'not claimed' if view.over else 'not yet claimed'}"
    return "nothing proven" + ("" if view.over else " yet")


def _summary(view: CampaignView) -> str:
    """The result in one sentence."""
    claim = view.claim
    if revoked := proof.claim_revoked(view):
        return f"Nothing is claimed any more: what was proven was {revoked}"
    if claim is not None and claim.proven and claim.speedup is not None:
        return (
            f"{words.interval(claim.speedup)}: a step took {words.step_time(claim.baseline_step_s)} before and takes "
            f"{words.step_time(claim.candidate_step_s)} now (medians of {claim.pairs} fresh pairs of runs)."
        )
    if claim is not None:
        return words.sentence(f"Nothing is claimed: the adopted changes together were not proven on fresh runs, since {'; '.join(claim.reasons)}")
    if estimate := view.estimated_speedup():
        return (
            f"Adopted by verification, which proves that it is faster and only estimates by how much ({words.about(estimate)}); "
            f"{'no claim was made on fresh pairs.' if view.over else 'the claim on fresh pairs follows.'}"
        )
    return "Nothing has been proven." if view.over else "Nothing has been proven so far; the campaign goes on."


def _adopted(view: CampaignView, final: CandidateView) -> dict[str, Any]:
    changed = view.changed_knobs(final.id)
    claim = view.claim if view.claim is not None and view.claim.candidate == final.id else None
    knobs = view.created.contract.get("knobs", []) if view.created else []
    return {
        "candidate": final.id,
        "commit": final.facts.commit,
        "techniques": list(final.facts.techniques),
        "affects": list(final.facts.affects),
        "settings": [
            {"name": k["name"], "before": k["default"], "after": changed[k["name"]], "how": words.how_to_set(k, changed[k["name"]])}
            for k in knobs
            if k["name"] in changed
        ],
        "diff": final.diff,
        "paths": _paths(final.diff),
        "parts": _parts(view, final, claim),
        "bundle": proof.bundle_words(claim.attribution if claim else ()) if final.facts.members else "",
        "stack": [_attempt(view, c) for c in _lineage(view, final)],
        "peak_before": claim.baseline_peak_bytes if claim else (final.verdict.incumbent_peak_bytes if final.verdict else None),
        "peak_after": claim.candidate_peak_bytes if claim else (final.verdict.peak_bytes if final.verdict else None),
    }


def _parts(view: CampaignView, final: CandidateView, claim: ClaimFacts | None) -> list[dict[str, Any]]:
    """Every change in the stack, settings first: its kind, what was predicted, what screening or the claim says of it."""
    single = [c for known in _lineage(view, final) for c in _members(view, known)]
    if claim is not None and claim.attribution:
        by_name = {", ".join(view.own_change(c.id)[0]): c for c in single}
        lone = len(claim.attribution) == 1
        parts = [_part(view, view.candidates.get(a.candidate) or by_name.get(a.name), a, proof.part_words(a, lone=lone)) for a in claim.attribution]
    else:
        parts = [_unclaimed_part(view, c, lone=len(single) == 1) for c in single]
    return sorted(parts, key=lambda part: not part["kind"].startswith("setting"))


def _unclaimed_part(view: CampaignView, known: CandidateView, *, lone: bool) -> dict[str, Any]:
    """A change of a stack that no claim says anything of: what screening saw of it."""
    screened = known.screen.log_ratio if known.screen else None
    code = kind_of_change(view, known)
    facts = AttributionFacts(
        name=contents(view, known.id), kind="new code" if "code" in code else "setting never switched on", log_ratio=screened,
        how="estimate from screening", candidate=known.id,
    )  # fmt: skip
    how = proof.part_words(facts, lone=lone) if screened is not None else "verified as a whole"
    return _part(view, known, facts, how) | {"kind": code}


def _part(view: CampaignView, known: CandidateView | None, part: AttributionFacts, known_by: str) -> dict[str, Any]:
    round_ = view.rounds.get(known.hypothesis) if known is not None else None
    return {
        "name": part.name,
        "candidate": known.id if known is not None else "",
        "kind": part.kind,
        "predicted": _predicted(view, round_),
        "log_ratio": part.log_ratio,
        "how": part.how if part.log_ratio is not None or part.note else "",
        "known_by": known_by,
        "interval": part.interval.model_dump(mode="json") if part.interval else None,
        "proven": part.proven,
        "hypothesis": round_.hypothesis.statement if round_ else "",
    }


def _members(view: CampaignView, known: CandidateView) -> list[CandidateView]:
    """The single changes of a candidate: a bundle's members, else itself."""
    return [view.candidates[m] for m in known.facts.members if m in view.candidates] or [known]


def kind_of_change(view: CampaignView, known: CandidateView) -> str:
    """'setting never switched on', 'new code', or 'settings and new code', by what it alters in its parent."""
    parent = view.candidates.get(known.facts.parent or ORIGINAL)
    code = known.facts.commit != (parent.facts.commit if parent else known.facts.base)
    settings = bool(view.own_change(known.id)[1])
    return "settings and new code" if code and settings else "new code" if code else "setting never switched on"


def contents(view: CampaignView, candidate: str) -> str:
    """What a candidate changes in its parent: 'sdpa; threads=2', 'a patch; threads=2'."""
    techniques, knobs = view.own_change(candidate)
    known = view.candidates.get(candidate)
    free = known is not None and not techniques and kind_of_change(view, known) != "setting never switched on"
    return words.contents(("a patch",) if free else techniques, knobs)


def whole_contents(view: CampaignView, known: CandidateView) -> str:
    """What is in a candidate against the original: 'sdpa, fused-adamw; threads=2', 'a patch; threads=2'."""
    free = not known.facts.techniques and known.facts.commit != known.facts.base
    return words.contents(("a patch",) if free else known.facts.techniques, view.changed_knobs(known.id))


def _lineage(view: CampaignView, final: CandidateView) -> list[CandidateView]:
    """The adopted candidates that the final one was proven on top of, oldest first, itself last."""
    chain: list[CandidateView] = []
    current: CandidateView | None = final
    while current is not None and current not in chain:
        chain.insert(0, current)
        current = view.candidates.get(current.verdict.incumbent) if current.verdict else None
    return chain


def _attempt(view: CampaignView, known: CandidateView) -> dict[str, Any]:
    """One candidate in a list: what it was, what was predicted, what came out, what it cost."""
    round_ = view.rounds.get(known.hypothesis)
    predicted = _predicted(view, round_)
    return {
        "candidate": known.id,
        "hypothesis": round_.hypothesis.statement if round_ else ("bundle of " + ", ".join(known.facts.members) if known.is_bundle else ""),
        "contents": contents(view, known.id),
        "predicted": predicted,
        "screened": known.screen.log_ratio if known.screen else None,
        "result": result_word(known),
        "reason": why(known),
        "speedup": known.verdict.speedup.model_dump() if known.verdict and known.verdict.speedup else None,
        "seconds": round(view.seconds_of(known.id), 3),
    }


def _predicted(view: CampaignView, known: RoundView | None) -> float | None:
    """Log-ratio of step time that was predicted; of a person's own change nobody predicted anything."""
    return known.hypothesis.predicted_time if known is not None and not view.is_evaluation else None


def result_word(known: CandidateView) -> str:
    """The last word on a candidate: a verdict, 'revoked' where that was taken back, or how far it came."""
    if known.standing:
        return known.standing
    if known.review is not None and known.review.decision != "pass":
        return known.review.decision
    if known.screen is None:
        return "waiting"
    if known.screen.outcome in HOST_FAULTS:
        return "not_measured"
    if known.screen.outcome != "ok":
        return "failed"
    return "promoted" if known.screen.promoted else "dropped"


def why(known: CandidateView) -> str:
    """The reason of the last word, one line."""
    if known.revoked is not None:
        return revocation_words(known)
    if known.verdict is not None:
        return "; ".join(known.verdict.reasons)
    if known.review is not None and known.review.decision != "pass":
        return review_words(known.review)
    return known.screen.reason if known.screen is not None else ""


def _unsuccessful(view: CampaignView) -> list[dict[str, Any]]:
    """Refused and failed attempts in the order of their hypotheses, bundles last."""
    found: list[dict[str, Any]] = []
    for known in view.rounds.values():
        found += [
            {
                "candidate": "", "hypothesis": known.hypothesis.statement, "contents": words.contents(known.hypothesis.techniques, {}),
                "predicted": _predicted(view, known), "screened": None, "result": r.kind.replace("_", " "),
                "reason": r.reason, "speedup": None, "seconds": 0.0,
            }
            for r in known.refusals
        ]  # fmt: skip
        candidate = view.candidates.get(known.candidate)
        if candidate is not None and is_turned_down(candidate):
            found.append(_attempt(view, candidate))
    return found + [_attempt(view, c) for c in view.candidates.values() if not c.hypothesis and is_turned_down(c)]


def _pending(view: CampaignView, known: CandidateView, final: CandidateView | None) -> bool:
    """Promising but never decided alone, and not part of what is adopted."""
    if known.verdict is not None or is_turned_down(known):
        return False
    if any(known.id in other.facts.members for other in view.candidates.values() if other.superseded):
        return False  # a round of elimination tells what became of it
    return final is None or known.id not in final.facts.members


def _retrievals(view: CampaignView) -> list[dict[str, Any]]:
    return [
        {"at": r.at, "for": r.before, **r.event.model_dump(mode="json", exclude={"type"})}
        for r in view.retrievals
        if r.event.hits or r.event.changed
    ]


def _past(view: CampaignView) -> list[dict[str, Any]]:
    """Every entry of earlier campaigns that was retrieved, once, with what it was used for."""
    found: dict[str, dict[str, Any]] = {}
    for known in view.retrievals:
        for hit in known.event.hits:
            if hit.kind == "knowledge":
                continue
            entry = found.setdefault(hit.record, {"record": hit.record, "kind": hit.kind, "text": hit.text, "why": hit.why, "for": [], "used": []})
            entry["for"].append(known.before or "the search")
            if hit.used_for and hit.used_for not in entry["used"]:
                entry["used"].append(hit.used_for)
    return sorted(found.values(), key=lambda entry: not entry["used"])


def _masked(view: CampaignView) -> list[dict[str, Any]]:
    """Tensors that were left out of a comparison, those of equal content together."""
    groups: dict[tuple[tuple[str, ...], float], list[str]] = {}
    for band in view.bands:
        if band.masked:
            groups.setdefault((band.masked, band.masked_share), []).append(band.name)
    return [{"tensors": list(tensors), "share": share, "bands": names} for (tensors, share), names in groups.items()]


def _directions(view: CampaignView) -> list[dict[str, Any]]:
    return [
        {
            **d.facts.model_dump(mode="json"),
            "rounds": len(d.rounds),
            "closed": d.closed,
            "lesson": d.lesson.text if d.lesson else "",
        }
        for d in view.directions.values()
    ]


def _verdict(verdict: VerdictFacts) -> dict[str, Any]:
    return verdict.model_dump(mode="json") | {"threshold": 1 / verdict.alpha if verdict.alpha > 0 else None}


def _procedure(created: ev.CampaignCreated) -> dict[str, Any]:
    """The parts of the contract that say how it was measured."""
    objective, proof = created.contract.get("objective", {}), created.contract.get("proof", {})
    return {
        "steps": list(objective.get("steps", ())),
        "warmup": objective.get("warmup"),
        "amortise_over": objective.get("amortise_over"),
        "margin": objective.get("margin"),
        "precision": created.contract.get("invariants", {}).get("precision"),
        "max_verifications": 1 if created.kind == "evaluation" else proof.get("max_verifications"),
        "final_pairs": proof.get("final_pairs"),
    }


def _cost(view: CampaignView) -> dict[str, Any]:
    return {
        "trials": len(view.trials),
        "apart": sum(trial.candidate in view.apart for trial in view.trials.values()),
        "sealed": len(view.sealed),
        "outcomes": dict(sorted(view.outcomes.items())),
        "trial_seconds": round(view.trial_seconds, 3),
        "failed_seconds": round(view.failed_seconds, 3),
        "candidates": len(view.candidates) - len(view.bundles),
        "bundles": len(view.bundles),
    }


def _overhead(view: CampaignView) -> dict[str, Any]:
    seconds = view.overheads
    return {
        "trials": len(seconds),
        "median_s": view.overhead_median,
        "mean_s": view.overhead_mean,
        "max_s": max(seconds, default=None),
        "compare_s": math.fsum(t.compare_s for t in view.trials.values()),
        "target_s": OVERHEAD_TARGET_S,
        "met": view.overhead_median <= OVERHEAD_TARGET_S if view.overhead_median is not None else None,
    }


def _failed_trials(view: CampaignView) -> list[dict[str, Any]]:
    return [
        {
            "trial": t.id, "candidate": t.candidate, "outcome": t.outcome, "cause": t.cause, "detail": t.detail,
            "telling_lines": list(t.telling_lines), "seconds": t.wall_s, "peak_bytes": t.peak_bytes,
        }
        for t in view.trials.values()
        if t.outcome != "ok" and not t.did_not_fit
    ]  # fmt: skip


def _cell(text: object) -> str:
    """Text on one line that can't break a Markdown table or start markup."""
    line = words.one_line(str(text))
    for mark in "\\`*_<>|[]":
        line = line.replace(mark, f"\\{mark}")
    return line


def _fence(text: str) -> str:
    """A fence longer than any run of backticks in the text."""
    longest = run = 0
    for letter in text:
        run = run + 1 if letter == "`" else 0
        longest = max(longest, run)
    return "`" * max(3, longest + 1)

"""A running campaign on a plain terminal: one line per thing that matters, and the summary at the end.

Nothing moves and nothing is overwritten, so that it reads the same in a file. Colours only on a
terminal and without NO_COLOR. Text from outside is cleaned; sealed runs say nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

from rsi_tui.audit import pages, proof, words
from rsi_tui.audit.check_page import summary
from rsi_tui.audit.profile_page import communication_words
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import CANARY, LEAVE_ONE_OUT, ORIGINAL
from rsi_tui.journal.view import CampaignView

_GREEN, _RED, _BOLD, _DIM = "32", "31", "1", "2"
_GLUE = "\u00a0"
_GOOD = ("adopted", "leaner")
_STATES = {
    "contracted": "the contract is read and frozen",
    "baselined": "the baseline is measured",
    "searching": "searching",
    "claiming": "claiming: what was adopted runs against the original on fresh runs",
    "finished": "finished",
    "stopped": "stopped",
    "paused": "paused",
}


class PlainLog:
    """Prints events as they happen; give it to whoever appends to the journal."""

    def __init__(self, past: Iterable[ev.Event] = (), stream: TextIO | None = None, colour: bool | None = None) -> None:
        """`past`: what was recorded before (a resumed campaign); it is taken in and not printed."""
        self.view = CampaignView().feed_all(past)
        self._stream = stream or sys.stdout
        tty = self._stream.isatty()
        self._colour = colour if colour is not None else tty and not os.environ.get("NO_COLOR")
        self._began: datetime | None = None

    def __call__(self, event: ev.Event) -> None:
        """Take one event in and print what it means, if it matters."""
        self.view.feed(event)
        at = datetime.fromisoformat(event.at)
        self._began = self._began or at
        seconds = max(0, round((at - self._began).total_seconds()))
        for style, text in lines_of(self.view, event):
            self._print(f"{seconds // 60:02d}:{seconds % 60:02d} ", style, text)

    def _print(self, prefix: str, style: str, text: str) -> None:
        indent = len(text) - len(text.lstrip(" "))
        width = max(40, shutil.get_terminal_size((100, 24)).columns - 1)
        whole = words.one_line(text).replace(" %", _GLUE + "%")  # a figure keeps its unit on its line
        body = words.fold(whole, width - len(prefix) - indent, rest="  ")
        for number, line in enumerate(body):
            head = prefix if number == 0 else " " * len(prefix)
            self._stream.write(self._paint(_DIM, head) + " " * indent + self._paint(style, line.replace(_GLUE, " ")) + "\n")
        self._stream.flush()

    def _paint(self, style: str, text: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._colour and style else text


def lines_of(view: CampaignView, event: ev.Event) -> Iterator[tuple[str, str]]:
    """Style and text of the lines that an event is worth; `view` has taken it in already."""
    body = event.body
    if isinstance(body, ev.CampaignCreated):
        budget = f", at most {body.max_candidates} candidates" if body.kind == "campaign" else ""
        yield _BOLD, f"{body.kind} {body.campaign}: {body.workload}, {body.preset} preset{budget}"
        yield "", f"trust level {body.trust}: {words.TRUST_WORDS[body.trust]}; {body.sandbox}"
    elif isinstance(body, ev.EngineStarted) and body.resumed:
        yield _BOLD, f"{view.kind} {view.id} resumed: {view.state_words}, {pages.cost_words(view)} so far"
    elif isinstance(body, ev.StateChanged) and not (view.is_evaluation and body.state == "finished"):  # the verdict's page follows
        yield _BOLD, _STATES[body.state] + (f": {body.reason}" if body.reason else "")
    elif isinstance(body, ev.Profiled):
        phases = sorted(body.profile.phases, key=lambda p: -p.share)[:4]
        whose = "a step" if body.candidate == ORIGINAL else f"a step of {body.candidate}"
        yield "", f"{whose} takes {words.step_time(body.profile.step_s)}: " + ", ".join(f"{p.name} {words.percent(p.share)}" for p in phases)
        if body.profile.communication is not None:
            yield "", f"  {communication_words(body.profile.communication)}"
        yield from (("", f"  never switched on: {text}") for text in body.profile.unused_settings)
    elif isinstance(body, ev.Calibrated):
        yield "", pages.noise_words(view) + pages.origin_words(view)
        yield from (("", f"  {text}") for text in filter(None, (body.no_rounding,)))
    elif isinstance(body, ev.RedTeamed):
        yield (_RED if body.through else ""), summary(body)
    elif isinstance(body, ev.BlockOpened):
        yield "", _block_words(body)
    elif isinstance(body, ev.BlockClosed) and body.void:
        yield _RED, f"block {body.block} does not count, by a fault of the host: {body.void}"
    elif isinstance(body, ev.TrialFinished):
        yield from _trial_lines(body)
    else:
        yield from _decision_lines(view, body)


def _decision_lines(view: CampaignView, body: ev.Body) -> Iterator[tuple[str, str]]:
    if isinstance(body, ev.Retrieved) and body.hits:
        yield "", f"library, for the {body.role}: {words.plural(len(body.hits), 'hit')}; changed: {body.changed or 'nothing'}"
    elif isinstance(body, ev.DirectionOpened):
        facts = body.direction
        yield _BOLD, f"direction {facts.id} ({facts.layer}): {facts.question}"
        yield "", f"  because {facts.reason}"
    elif isinstance(body, ev.DirectionClosed):
        yield "", f"direction {body.direction} closed: {body.reason}"
        yield "", f"  lesson: {body.lesson.text}"
    elif isinstance(body, ev.SearchEnded):
        yield "", f"the search ends: {body.reason}"
    elif isinstance(body, ev.HypothesisWritten):
        predicted = "" if view.is_evaluation else f" (predicted {words.change(body.hypothesis.predicted_time)} step time)"
        yield "", f"  {body.hypothesis.id}: {body.hypothesis.statement}{predicted}"
    elif isinstance(body, ev.CandidateRefused) and not view.is_evaluation:
        what = body.hypothesis or {CANARY: "a canary", LEAVE_ONE_OUT: "a stack without one change"}.get(body.direction, "a join")
        yield "", f"  {what} refused ({body.kind.replace('_', ' ')}): {body.reason}"
    elif isinstance(body, ev.CandidateBuilt) and body.candidate.members and body.candidate.id in view.candidates:
        yield _BOLD, f"bundle {body.candidate.id} joins {', '.join(body.candidate.members)}"
    elif isinstance(body, ev.AlphaGranted) and view.is_evaluation:
        yield "", f"error probability {body.alpha:.2g} is drawn: this is number {body.ordinal} on this workload"
    elif isinstance(body, ev.PersonActed):
        yield _BOLD, f"{body.who}: {body.action} {body.text}"
    else:
        yield from _judgement_lines(view, body)


def _judgement_lines(view: CampaignView, body: ev.Body) -> Iterator[tuple[str, str]]:
    if isinstance(body, ev.CanaryPlanted):
        yield "", f"canary {body.candidate}: {proof.CANARY_WORDS[body.kind]}, which must not be adopted"
    elif isinstance(body, ev.LeftOut):
        yield from (("", f"  {part.name}: {proof.part_words(part)}") for part in body.parts)
        if body.dropped or body.trouble:
            yield "", f"left out: {body.dropped}" if body.dropped else f"nothing was learned of the parts of {body.stack}: {body.trouble}"
    elif isinstance(body, ev.Revoked):
        also = f", and what rested on it: {', '.join(body.reopened)}" if body.reopened else ""
        yield _RED, f"{body.candidate} is taken back by {body.who}{also}: {body.reason}"
    elif isinstance(body, ev.Reviewed):
        review = body.review
        style = "" if review.decision == "pass" else _RED
        about = f": {review.summary}" if review.summary else ""
        yield style, f"  {review.candidate} reviewed: {review.decision.replace('_', ' ')}{about}"
    elif isinstance(body, ev.Screened):
        for result in body.results:
            if known := view.candidates.get(result.candidate):
                style = "" if result.outcome == "ok" else _RED
                yield style, f"  screened {pages.candidate_line(view, known)}"
    elif isinstance(body, ev.VerdictReached) and (body.verdict.blocks or not view.is_evaluation):
        verdict = body.verdict
        if verdict.candidate in view.canaries:
            wrong = verdict.verdict == "adopted"
            yield _RED if wrong else "", f"verdict on canary {verdict.candidate}: {verdict.verdict.replace('_', ' ')}, {'which it must not be' if wrong else 'as it must be'}"
            return
        speedup = f", {words.about(verdict.speedup.estimate)} (an estimate)" if verdict.speedup else ""
        style = _GREEN if verdict.verdict in _GOOD else _RED
        yield style, f"verdict on {verdict.candidate}: {verdict.verdict.replace('_', ' ')}{speedup}; {'; '.join(verdict.reasons)}"
    elif isinstance(body, ev.Claimed):
        claim = body.claim
        if claim.proven and claim.speedup is not None:
            yield _GREEN, f"claim: {words.interval(claim.speedup)} on {words.plural(claim.pairs, 'fresh pair')}"
        else:
            yield _RED, f"no claim: {'; '.join(claim.reasons)}"


_PURPOSES: dict[ev.Purpose, str] = {
    "check": "trying whether it runs:",
    "screen": "screening",
    "verify": "verifying",
    "claim": "claiming",
    "one-step": "comparing updates from saved states of",
    "endurance": "looking for very slow runs of",
    "memory": "running under a lower memory limit",
    "leave-one-out": "leaving out",
}


def _block_words(body: ev.BlockOpened) -> str:
    runs = words.plural(body.slots, "run")
    if body.purpose == "calibration":
        return f"measuring noise: {runs} of the program as it is"
    if body.purpose == "reference":
        return f"recording references: {runs}"
    against = "" if body.purpose in ("check", "endurance", "memory") else " against the original" if body.incumbent == ORIGINAL else f" against {body.incumbent}"
    secret = ", in a secret order" if body.purpose in ("verify", "claim", "leave-one-out") else ""
    return f"{_PURPOSES[body.purpose]} {', '.join(body.candidates)}{against}: {runs}{secret}"


def _trial_lines(body: ev.TrialFinished) -> Iterator[tuple[str, str]]:
    facts = body.facts
    if facts is None or facts.outcome == "ok":
        return
    cause = f" ({facts.cause})" if facts.cause else ""
    yield _RED, f"  {facts.id} of {facts.candidate}: {facts.outcome}{cause}: {facts.detail}"
    yield from (("", f"    > {words.one_line(line, 160)}") for line in facts.telling_lines[:2])


def final_summary(view: CampaignView, report_path: Path, command: str) -> str:
    """What a person wants at the end: times, speed-up, what was adopted, what failed and why, where to read on.

    `command` opens the app on this campaign.
    """
    lines = ["", f"{view.workload}, campaign {view.id}: {view.state_words}"]
    lines += [f"  {label:<10} {words.one_line(text)}" for label, text in _result_lines(view)]
    failed = _failure_lines(view)
    lines += ["", "What was tried and not kept:" if failed else "Nothing failed or was refused.", *failed]
    lines += ["", f"  {'report':<10} {report_path}", f"  {'app':<10} {command}"]
    return "\n".join(lines)


def _result_lines(view: CampaignView) -> Iterator[tuple[str, str]]:
    claim = view.claim
    if claim is not None:
        yield "baseline", f"{words.step_time(claim.baseline_step_s)} a step"
    elif view.profile is not None:
        yield "baseline", f"{words.step_time(view.profile.step_s)} a step (profiled)"
    if view.proven_claim is not None and claim is not None and claim.speedup is not None and claim.baseline_step_s is not None:
        low, high = claim.baseline_step_s / claim.speedup.high, claim.baseline_step_s / claim.speedup.low
        interval = f"{words.confidence(claim.speedup.confidence)} interval {words.step_time(low)} to {words.step_time(high)}"
        yield "proven", f"{words.step_time(claim.candidate_step_s)} a step ({interval}, from the speed-up's)"
    yield "speed-up", pages.speedup_words(view) or "nothing was proven"
    if claim is not None and not claim.proven:
        yield "why not", "; ".join(claim.reasons)
    yield from _adopted_lines(view)
    yield from (("taken back", f"{body.candidate}, by {body.who}: {body.reason}") for _, body in view.revocations)
    if canaries := proof.canary_words(view):
        yield "canaries", canaries
    yield "cost", pages.cost_words(view)
    if view.overhead_median is not None:
        yield "overhead", f"{view.overhead_median:.3f} s of the engine's own time a run (median)"


def _adopted_lines(view: CampaignView) -> Iterator[tuple[str, str]]:
    best = view.best()
    if best is None:
        yield "adopted", "nothing"
        return
    yield "adopted", f"{best.id}: {words.contents(best.facts.techniques, view.changed_knobs(best.id))}"
    for member in best.facts.members:
        known = view.candidates.get(member)
        if known is not None and (said := proof.member_words(view, known)):
            yield "", f"  {member} {words.contents(*view.own_change(member))}: {said}"


def _failure_lines(view: CampaignView) -> list[str]:
    found = [f"  {pages.candidate_line(view, c)}" for c in view.turned_down()]
    refused = [r for known in view.rounds.values() for r in known.refusals]
    return found + [words.one_line(f"{r.hypothesis}: refused ({r.kind.replace('_', ' ')}): {r.reason}").join(("  ", "")) for r in refused]

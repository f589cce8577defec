"""Briefs in words: for each role a part that stays the same from round to round, and the rest.

Whatever comes from the program, its output, the library or an earlier answer is quoted as data. A part that stays the
same stands first, so that the API finds it in its cache.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from rsi_tui.contract.model import Contract
from rsi_tui.journal.facts import CandidateFacts, DirectionFacts, ProfileFacts, RetrievedFacts
from rsi_tui.minds.builtin.pool import options, start_peak
from rsi_tui.minds.claude.quoting import quote, quote_files, quote_lines
from rsi_tui.minds.protocol import (
    Attempt,
    Brief,
    DirectorBrief,
    ExecutorBrief,
    LessonBrief,
    PastEffect,
    ReviewBrief,
    SelectorBrief,
)
from rsi_tui.repo.patch import make_diff
from rsi_tui.search.acquisition import percent

MOST_HITS, MOST_PAST, MOST_ATTEMPTS = 12, 20, 30
FILE_CHARACTERS = 12_000
DIFF_CHARACTERS = 6000


def evaluators_files(contract: Contract, paths: Iterable[str]) -> frozenset[str]:
    """The files of a program that only the evaluator runs: no role is shown them."""
    named = (contract.invariants.validation, contract.invariants.make_hidden, contract.resume.directions)
    words = {word.removeprefix("./") for text in named for word in shlex.split(text)}
    places = {word if contract.launch.workdir == "." else f"{contract.launch.workdir}/{word}" for word in words}
    return frozenset(path for path in paths if path in words | places)


def program(contract: Contract, profile: ProfileFacts | None, sources: Mapping[str, str], most: int = FILE_CHARACTERS) -> str:
    """Contract, profile and editable files: what stays the same while a start commit does."""
    parts = ["# The program", quote_lines(_contract(contract), "the contract")]
    if profile is not None:
        parts += ["# Where a step's time goes (measured, instrumented)", quote_lines(_profile(profile), "the profile")]
    return "\n\n".join((*parts, "# Its editable files", quote_files(sources, most)))


def for_director(brief: DirectorBrief, level: int) -> str:
    """What changes from one direction to the next; `level` halves its lists."""
    best = _named(brief, brief.best)
    parts = [
        "# The state of the search",
        f"Best so far: {brief.best}. Candidates left: {brief.candidates_left}. Noise of a pair of runs (log ratio): {brief.noise_scale:.4f}. "
        f"Practical margin: {100 * brief.contract.objective.margin:.1f} %.",
        "# Directions so far", quote_lines(_directions(brief), "directions with their attempts"),
        "# Techniques that apply to the best and were not tried", quote_lines(_options(brief, best), "techniques"),
        *_library(brief.hits, brief.past, level),
    ]  # fmt: skip
    return "\n\n".join((*parts, *_wishes(brief), *_refused(brief.previous_refusal), "What is to be investigated next?"))


def _wishes(brief: DirectorBrief) -> list[str]:
    """What people asked for: ideas to try next, and where to start from."""
    found = []
    if brief.proposals:
        found += ["# Ideas of people who watch, to be tried before your own", quote_lines([f"{p.id}: {p.text}" for p in brief.proposals], "ideas")]
    if brief.pinned:
        found.append(f"Directions start from {brief.pinned}: a person pinned it.")
    return found


def for_selector(brief: SelectorBrief, level: int) -> str:
    """What changes from one round to the next."""
    assert brief.direction is not None
    original = brief.archive_sources.get("original", brief.sources)
    diffs = {
        f"{id}.diff": make_diff(original, files) for id, files in brief.archive_sources.items() if files != original
    }
    listed = [_candidate(candidate) for candidate in brief.archive]
    parts = [
        "# The direction", quote_lines(_direction(brief.direction), "the direction"),
        f"Round {brief.round}. Candidates left in the campaign: {brief.candidates_left}. Noise of a pair of runs: {brief.noise_scale:.4f}.",
        "# Attempts of this campaign", quote_lines(_attempts(brief.attempts, level), "attempts"),
        "# The archive", quote_lines(listed, "candidates to build on"),
        quote_files(diffs, max(500, DIFF_CHARACTERS >> level)) if diffs else "Their code is the original's.",
        "# Techniques that apply and were not tried", quote_lines(_options(brief, _named(brief, brief.direction.start)), "techniques"),
        *_library(brief.hits, brief.past, level),
    ]  # fmt: skip
    return "\n\n".join((*parts, *_refused(brief.previous_refusal), "What is the hypothesis of this round?"))


def for_executor(brief: ExecutorBrief) -> str:
    """The hypothesis and what belongs to it."""
    knobs = ", ".join(f"{name}={value}" for name, value in brief.parent_knobs.items()) or "none"
    wanted = ", ".join(f"{name}={value}" for name, value in brief.hypothesis.knobs.items()) or "none"
    lines = [
        brief.hypothesis.statement,
        f"refuted by: {brief.hypothesis.refuted_by}",
        f"predicted step time: {percent(brief.hypothesis.predicted_time)}",
        f"settings of the parent: {knobs}",
        f"settings to change: {wanted}",
        *(_direction(brief.direction) if brief.direction else ()),
    ]
    asked = "Change the program so that this hypothesis is tested, and submit the change."
    return "\n\n".join(("# The hypothesis", quote_lines(lines, "the hypothesis"), *_refused(brief.previous_refusal), asked))


def for_reviewer(brief: ReviewBrief, level: int) -> tuple[str, str]:
    """(what stays the same for a parent, the change)."""
    contract = quote_lines(_contract(brief.contract), "the contract")
    stable = "\n\n".join(("# The program", contract, "# Its files before the change", quote_files(brief.before, FILE_CHARACTERS)))
    changed = [f"{name}: {brief.knobs_before.get(name)} -> {value}" for name, value in brief.knobs_after.items() if brief.knobs_before.get(name) != value]
    parts = (
        "# The direction", quote_lines(_direction(brief.direction), "the direction"),
        "# The hypothesis", quote(brief.statement, "the hypothesis"),
        "# The change", quote(brief.diff or "(no code)", "the diff", 40_000 >> level), quote_lines(changed, "settings"),
        "Is it on direction, and is it an exploit?",
    )  # fmt: skip
    return stable, "\n\n".join(parts)


def for_scribe(brief: LessonBrief, level: int) -> str:
    """The direction and how its attempts ended."""
    parts = (
        "# The direction", quote_lines(_direction(brief.direction), "the direction"),
        "# Why it was closed", quote(brief.closing_reason, "the reason"),
        "# Its attempts", quote_lines(_attempts(brief.attempts, level), "attempts"), "What is the lesson?",
    )  # fmt: skip
    return "\n\n".join(parts)


def shown_records(brief: Brief, level: int = 0) -> tuple[str, ...]:
    """Ids of the library entries that a Director or Selector is shown."""
    return tuple(dict.fromkeys((*(h.record for h in brief.hits[: MOST_HITS >> level]), *(p.record for p in _past(brief.past, level)))))


def _contract(contract: Contract) -> list[str]:
    launch, objective, invariants = contract.launch, contract.objective, contract.invariants
    where = f"{launch.nodes} node(s) of {launch.procs_per_node} process(es), {launch.gpus_per_node} GPU(s), {launch.threads} thread(s)"
    return [
        f"workload: {contract.name}; run by: {launch.command}",
        f"on {where}; memory limit {launch.memory_limit_bytes / 2**20:.0f} MiB{f'; link {launch.link}' if launch.link else ''}",
        f"editable: {', '.join(contract.editable)}",
        f"measured: mean step time after {objective.warmup} steps, plus start-up and end spread over {objective.amortise_over} steps",
        f"must hold: learned update {invariants.weights}, precision {invariants.precision}, {invariants.tokens_per_step} tokens a step",
        f"progress line: {launch.progress}; final checkpoint: {launch.checkpoint}",
        *(f"setting {k.name} ({k.layer}): default {k.default}, values {', '.join(map(str, k.values))}" for k in contract.knobs),
        *(f"rule: {rule}" for rule in contract.rules),
    ]


def _profile(profile: ProfileFacts) -> list[str]:
    lines = [f"step {profile.step_s * 1000:.2f} ms on {profile.device}, {profile.dtype}, {profile.tokens_per_step} tokens"]
    lines += [f"phase {p.name}: {100 * p.share:.1f} %" for p in profile.phases]
    lines += [f"operator {o.name}: {100 * o.share:.1f} % of a step, {o.calls:.0f} calls" for o in profile.operators]
    if profile.mfu is not None:
        lines.append(f"MFU {100 * profile.mfu:.1f} %")
    if profile.peak_bytes is not None:
        lines.append(f"peak memory {profile.peak_bytes / 2**20:.0f} MiB")
    if profile.page_faults_per_step:
        lines.append(f"page faults a step: {profile.page_faults_per_step:.0f}")
    if (c := profile.communication) is not None:
        lines.append(f"communication: {c.calls:.0f} collectives, {c.payload_bytes / 2**20:.2f} MiB a step, {c.exposed_s * 1000:.1f} ms exposed")
    if (m := profile.memory) is not None:
        lines.append(f"MiB: parameters {m.parameters_bytes >> 20}, optimizer {m.optimizer_bytes >> 20}, activations {m.activations_bytes >> 20}")
    return lines + [f"never switched on: {setting}" for setting in profile.unused_settings]


def _direction(direction: DirectionFacts) -> list[str]:
    return [
        f"{direction.id} ({direction.layer}), from {direction.start}: {direction.question}",
        f"because {direction.reason}",
        f"techniques: {', '.join(direction.techniques) or 'none, new code'}; budget {direction.budget}; expected gain {100 * direction.expected_gain:.1f} %",
        f"to be closed: {direction.closing_rule}",
    ]


def _directions(brief: DirectorBrief) -> list[str]:
    lines = []
    for direction in brief.open_or_closed[-MOST_ATTEMPTS:]:
        lines += _direction(direction)
        lines += [f"  {line}" for line in _attempts([a for a in brief.attempts if a.direction == direction.id], 0)]
    return lines


def _attempts(attempts: Iterable[Attempt], level: int) -> list[str]:
    lines = []
    for attempt in list(attempts)[-(MOST_ATTEMPTS >> level) :]:
        said = [f"predicted {percent(attempt.predicted_time)}"]
        if (screen := attempt.screen) is not None:
            effect = percent(screen.log_ratio) if screen.log_ratio is not None else screen.outcome
            said.append(f"screened {effect}{f' ({screen.reason})' if screen.reason else ''}")
        if (review := attempt.review) is not None and review.decision != "pass":
            said.append(f"review: {review.decision}, {review.summary}")
        if (verdict := attempt.verdict) is not None:
            said.append(f"verdict {verdict.verdict}: {'; '.join(verdict.reasons)}")
        lines.append(f"{_candidate(attempt.candidate)} in {attempt.direction}: {', '.join(said)}")
    return lines


def _candidate(candidate: CandidateFacts) -> str:
    stack = ", ".join(candidate.techniques) or "no technique"
    knobs = ", ".join(f"{name}={value}" for name, value in candidate.knobs.items()) or "no settings"
    return f"{candidate.id} (on {candidate.parent or 'nothing'}): {stack}; {knobs}"


def _options(brief: Brief, start: CandidateFacts) -> list[str]:
    found = options(brief, start, start_peak(brief, start), brief.sources)
    return [f"{' with '.join(o.ids)} ({o.layer}): {o.title}; expected {percent(o.estimate.time)}" for o in found[:24]]


def _named(brief: Brief, id: str) -> CandidateFacts:
    known = next((a.candidate for a in brief.attempts if a.candidate.id == id), None)
    return known or CandidateFacts(id=id, commit="", base="", knobs=brief.contract.defaults)


def _past(past: Iterable[PastEffect], level: int) -> list[PastEffect]:
    return sorted(past, key=lambda p: (-p.same_workload, -p.fit))[: MOST_PAST >> level]


def _library(hits: tuple[RetrievedFacts, ...], past: tuple[PastEffect, ...], level: int) -> list[str]:
    told = [f"{h.record} ({h.kind}; {h.why}): {h.text}"[:900] for h in hits[: MOST_HITS >> level]]
    effects = [
        f"{p.record}: {', '.join(p.techniques) or 'settings'} was {p.verdict}"
        + (f", {percent(p.log_ratio)}" if p.log_ratio is not None else f", {p.outcome}")
        + f"; conditions fit by {p.fit:.2f}{', the same as here' if p.same_conditions else ''}"
        for p in _past(past, level)
    ]
    return ["# From the experience library", quote_lines(told, "entries"), quote_lines(effects, "effects measured before")]


def _refused(reason: str) -> list[str]:
    return ["# Refused before", quote(reason, "why the last answer was refused")] if reason else []

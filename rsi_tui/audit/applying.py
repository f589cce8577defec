"""Bringing what was proven into the user's repository: which changes, in which commits, with what said of them.

Promises: only what is adopted, and was neither taken back nor proven with a part less, is written, from a campaign
that is over; a branch that starts from the files that were measured ends with exactly the files that were proven;
anything else says in each commit that it is not proven as it stands. Reads the record and the mirror; writes through
`repo.apply` alone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rsi_tui.audit import proof, words
from rsi_tui.audit.reading import resolve
from rsi_tui.contract.knob_files import edit_setting
from rsi_tui.contract.model import KnobValue
from rsi_tui.errors import GateError, RepositoryError, UsageError
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts
from rsi_tui.journal.view import CampaignView, CandidateView, load_campaign, revocation_words
from rsi_tui.locations import Home
from rsi_tui.repo import apply as git

_SUBJECT = 72
"""columns of a commit's first line"""


@dataclass(frozen=True)
class Wanted:
    """What a person asked for."""

    branch: str | None = None
    series: Path | None = None
    """folder for patches"""
    repo: Path | None = None
    """the repository, where it is no longer where the campaign found it"""
    settings_file: Path | None = None


def apply_candidate(home: Home, view: CampaignView, candidate: str, wanted: Wanted) -> dict[str, Any]:
    """Write an adopted candidate as commits, as patches, or both; returns what was done, as `rsi apply --json` prints it.

    `candidate`: '' for what the campaign proved last. GateError for what may not be applied, PatchError for a conflict,
    UsageError and RepositoryError for what a person must mend first.
    """
    if wanted.branch is None and wanted.series is None:
        raise UsageError("say where to: --to BRANCH for commits in your repository, --patch-series FOLDER for patches.")
    known = allowed(view, candidate)
    created = view.created
    assert created is not None
    mirror = home.mirrors / f"{created.workload_key}.git"
    if not mirror.is_dir():
        raise RepositoryError(f"the mirror {mirror} is gone, and with it the code of {known.id}; apply the report's diff by hand.")
    commits = git.known_commits(mirror, known.facts.base)
    target = git.find_target((wanted.repo or Path(created.folder)).expanduser(), created.workload_key, created.folder, commits)
    start = git.find_start(target, wanted.branch, commits)
    who = git.identity(target)
    pieces = [*code_pieces(view, known), *_file_settings(view, known)]
    with git.scratch(mirror, target) as room:
        draft = git.draft(room, start, known.facts.base, known.facts.commit, pieces)
        messages = [message(view, known, name, draft, wanted.branch) for name, _, _ in draft.steps]
        made = git.commit(room, draft, who, messages)
        patches = git.write_series(room, draft, made, wanted.series) if made and wanted.series is not None else []
        if made and wanted.branch is not None:
            git.publish(room, draft, made, wanted.branch, f"rsi apply {view.id}/{known.id}")
    result = _result(view, known, wanted, draft, made, patches)
    if wanted.settings_file is not None:
        _write_settings(wanted.settings_file, result)
    return result


def resolve_proven(home: Home, id: str | None) -> tuple[CampaignView, str]:
    """The campaign and candidate that an id is about; a replay stands for the campaign whose change it measured."""
    view, local = resolve(home, id)
    if view.created is not None and view.created.replays:
        campaign, _, replayed = view.created.replays.partition("/")
        return load_campaign(home, campaign), local or replayed
    return view, local


def allowed(view: CampaignView, candidate: str) -> CandidateView:
    """The candidate to apply; GateError, with the reason, when it may not be."""
    best = view.best()
    if not candidate and best is None:
        raise GateError(f"nothing is adopted in {view.id}, so there is nothing to apply.")
    known = view.candidates.get(candidate or (best.id if best else ""))
    if known is None or known.id == ORIGINAL:
        raise UsageError(f"there is no candidate {candidate} in {view.id}; `rsi show {view.id}` lists them.")
    if known.revoked is not None:
        raise GateError(f"{known.id} is not applied: its adoption was {revocation_words(known)}.")
    if not known.is_adopted:
        raise GateError(f"{known.id} is not applied: it is not adopted (its verdict: {known.standing or 'none yet'}).")
    if not view.over:
        raise GateError(f"{known.id} is not applied yet: {view.id} is not over, and its claim can still refute it; see `rsi status {view.id}`.")
    if known.superseded:
        raise GateError(f"{known.id} is not applied: a part of it contributes nothing, and it was proven without as {known.superseded}; apply that.")
    claim = view.claim
    if claim is not None and claim.candidate == known.id and not claim.proven:
        raise GateError(f"{known.id} is not applied: its claim on fresh pairs is not proven ({words.one_line('; '.join(claim.reasons)) or claim.refuted}).")
    return known


def code_pieces(view: CampaignView, known: CandidateView) -> list[git.Piece]:
    """The changes of code that a candidate is made of, oldest first, each as a change of its own where the record has it so."""
    line: list[CandidateView] = []
    current: CandidateView | None = known
    while current is not None and current.id != ORIGINAL:
        line.insert(0, current)
        current = view.known(current.facts.parent or ORIGINAL)
    return [piece for part in line for piece in _own(view, part)]


def _own(view: CampaignView, known: CandidateView) -> list[git.Piece]:
    """What one candidate changes in its parent's code: its members' changes where each of them is a candidate."""
    members = [view.known(id) for id in known.facts.members]
    if members and all(members):
        return [piece for member in members if member is not None for piece in _own(view, member)]
    before = _parent(view, known.facts)
    if before == known.facts.commit:
        return []
    return [git.Piece(_name(view, known), before, known.facts.commit)]


def _parent(view: CampaignView, facts: CandidateFacts) -> str:
    parent = view.known(facts.parent or ORIGINAL)
    return parent.facts.commit if parent is not None else facts.base


def _name(view: CampaignView, known: CandidateView) -> str:
    """Its techniques, or 'patch c3'."""
    return ", ".join(view.own_change(known.id)[0]) or ", ".join(known.facts.techniques) or f"patch {known.id}"


def _knobs(view: CampaignView) -> list[dict[str, Any]]:
    return list(view.created.contract.get("knobs", [])) if view.created else []


def _place(knob: Mapping[str, Any]) -> str:
    """'config.yaml:train.lr' of a knob that lives in a file, '' of others."""
    return str(knob.get("file") or knob.get("global_") or "")


def _file_settings(view: CampaignView, known: CandidateView) -> list[git.Piece]:
    changed = view.changed_knobs(known.id)
    return [_file_setting(knob, changed[knob["name"]]) for knob in _knobs(view) if knob["name"] in changed and _place(knob)]


def _file_setting(knob: Mapping[str, Any], value: KnobValue) -> git.Piece:
    place = _place(knob)
    path, _, key = place.partition(":")
    edit: Callable[[bytes], bytes] = partial(edit_setting, place=place, key=key, value=value)
    return git.Piece(f"{knob['name']}={value}", path=path, edit=edit)


# --- what is said ---------------------------------------------------------------------------------------


def message(view: CampaignView, known: CandidateView, name: str, draft: git.Draft, branch: str | None) -> str:
    """A commit's message: what was proven, how, where the record is, and how to go back."""
    created = view.created
    assert created is not None
    shown = words.one_line(name)
    lines = [words.one_line(f"Speed up {created.workload}: {shown}", _SUBJECT), ""]
    if not draft.exact:
        lines += [*_not_proven(view, branch), ""]
    lines += words.wrapped(evidence(view, known), _SUBJECT, "")
    if not draft.alone and "; " in name:
        lines += words.wrapped("Its changes touch the same lines and do not separate, so that one commit has them all.", _SUBJECT, "")
    if part := _contribution(view, name):
        lines += words.wrapped(f"Of this change alone: {part}", _SUBJECT, "")
    if settings := [s["how"] for s in settings_of(view, known) if not s["in_commits"]]:
        lines += words.wrapped(f"Proven with these settings at launch: {'; '.join(settings)}", _SUBJECT, "")
    lines += [
        "",
        f"Campaign: {view.id}",
        f"Candidate: {known.id}",
        f"Proven-On: {known.facts.base}",
        f"Journal-Head: {view.last_hash}",
        f"Trust: {view.trust} ({words.TRUST_WORDS.get(view.trust, '')})",
        f"Verify: rsi verify {view.id}",
        f"Measure-Again: rsi replay {view.id}/{known.id}",
        "Revert: git revert this commit",
    ]
    return "\n".join(lines) + "\n"


def evidence(view: CampaignView, known: CandidateView) -> str:
    """How much faster, and by what it is known, in one or two sentences."""
    claim = view.claim
    if claim is not None and claim.candidate == known.id and claim.speedup is not None:
        return f"All changes of {known.id} together: {words.interval(claim.speedup)}, claimed on {claim.pairs} fresh pairs against the original program."
    verdict = known.verdict
    if verdict is None or verdict.speedup is None:
        return f"{known.id} was adopted by its verification."
    against = "the original program" if verdict.incumbent == ORIGINAL else verdict.incumbent
    return f"{known.id}: {words.interval(verdict.speedup)} against {against}, by its verification; no claim on fresh pairs was made of it."


def _not_proven(view: CampaignView, branch: str | None) -> list[str]:
    where = view.created.folder if view.created else "WORKLOAD"
    prove = f"rsi evaluate {shlex.quote(where)} --commit {shlex.quote(branch or 'BRANCH')}"
    return [
        *words.wrapped("NOT PROVEN AS IT STANDS: this branch has other files than those that were measured, and the change was merged into them.", _SUBJECT, ""),
        f"To prove it here: {prove}",
    ]


def _contribution(view: CampaignView, name: str) -> str:
    parts = view.claim.attribution if view.claim is not None else ()
    found = next((part for part in parts if part.name == name), None)
    return words.one_line(proof.part_words(found, lone=len(parts) == 1)) if found is not None else ""


def settings_of(view: CampaignView, known: CandidateView) -> list[dict[str, Any]]:
    """The knobs that a candidate sets otherwise than the user does, with how to set each."""
    changed = view.changed_knobs(known.id)
    return [
        {
            "name": knob["name"],
            "before": knob["default"],
            "after": changed[knob["name"]],
            "how": words.how_to_set(knob, changed[knob["name"]]),
            "in_commits": bool(_place(knob)),
        }
        for knob in _knobs(view)
        if knob["name"] in changed
    ]


def launch_command(view: CampaignView, known: CandidateView) -> str:
    """The contract's launch command with the settings that are given at launch; '' when there are none."""
    changed = view.changed_knobs(known.id)
    knobs = [knob for knob in _knobs(view) if knob["name"] in changed and not _place(knob)]
    if not knobs or view.created is None:
        return ""
    told = {knob["name"]: words.how_to_set(knob, changed[knob["name"]]) for knob in knobs}
    flags = [told[k["name"]] for k in knobs if k.get("flag") and not told[k["name"]].startswith("leave ")]
    before = [told[k["name"]] for k in knobs if k.get("env") and not told[k["name"]].startswith("leave ")]
    preloads = [str(k["preload"]) for k in knobs if k.get("preload") and changed[k["name"]]]
    before += [f"LD_PRELOAD={':'.join(preloads)}"] if preloads else []
    command = str(view.created.contract["launch"]["command"])
    filled = command.replace("{knobs}", " ".join(flags)) if "{knobs}" in command else " ".join([command, *flags])
    return " ".join([*before, *filled.split()])


def _result(
    view: CampaignView, known: CandidateView, wanted: Wanted, draft: git.Draft, made: list[git.Written], patches: list[Path]
) -> dict[str, Any]:
    return {
        "campaign": view.id,
        "candidate": known.id,
        "branch": wanted.branch if made else None,
        "start": draft.start.commit,
        "tip": made[-1].commit if made else None,
        "branch_existed": draft.start.existed,
        "proven_as_it_stands": draft.exact,
        "prove": "" if draft.exact else _not_proven(view, wanted.branch)[-1].partition(": ")[2],
        "one_commit_a_change": draft.alone,
        "evidence": evidence(view, known),
        "commits": [{"commit": one.commit, "change": one.name, "files": list(one.files)} for one in made],
        "patches": [str(path) for path in patches],
        "settings": settings_of(view, known),
        "command": launch_command(view, known),
    }


def apply_page(result: Mapping[str, Any]) -> str:
    """What `rsi apply` prints."""
    made = result["commits"]
    lines = [words.one_line(f"{result['candidate']} of {result['campaign']}: {result['evidence']}")]
    if not made:
        lines.append("There is no change of files to write: all of it is settings at launch.")
    elif result["branch"]:
        how = "moved on" if result["branch_existed"] else "made"
        lines.append(f"Branch {result['branch']} was {how}: {words.plural(len(made), 'commit')} on {result['start'][:12]}; your checkout was not touched.")
    lines += [words.one_line(f"  {one['commit'][:12]}  {one['change']}  ({', '.join(one['files'])})") for one in made]
    if result["patches"]:
        folder = shlex.quote(str(Path(result["patches"][0]).parent))
        lines.append(f"{words.plural(len(result['patches']), 'patch file')} in {folder}; others take them with: git am --keep-cr {folder}/*.patch")
    if made and result["proven_as_it_stands"]:
        lines.append("The files are exactly those that were proven.")
    elif made:
        lines.append(f"NOT PROVEN AS IT STANDS: the branch has other files than those that were measured. To prove it: {result['prove']}")
    lines += ["Settings at launch:"] if any(not s["in_commits"] for s in result["settings"]) else []
    lines += [f"  {words.one_line(s['how'])}" for s in result["settings"] if not s["in_commits"]]
    lines += [f"  {words.one_line(result['command'])}"] if result["command"] else []
    return "\n".join(lines)


def _write_settings(path: Path, result: Mapping[str, Any]) -> None:
    """The settings at launch as a commented shell line, whole or not at all."""
    text = [f"# Launch settings of {result['candidate']}, campaign {result['campaign']}."]
    text += [f"# {s['name']}: {s['before']} -> {s['after']}  ({s['how']})" for s in result["settings"] if not s["in_commits"]]
    text += [result["command"]] if result["command"] else ["# None: all of the change is in the commits."]
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        half.write_text("\n".join(words.strip(line) for line in text) + "\n", encoding="utf-8")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UsageError(f"the settings can't be written to {path}: {error.strerror}.") from error

"""One change of a person's own: a patch, a commit, settings, or any of them together, read and applied.

Nothing is run and nothing is written here. What a command line can't mean is a UsageError; what a change
can't be is a Refusal of the Executor, which becomes a verdict. Patches name files as seen from the
workload's folder or from the root of its repository; the one patch applier applies them, so that a
file keeps its own line ends.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.contract.fingerprint import changed_knobs, same_value
from rsi_tui.contract.libraries import find_library
from rsi_tui.contract.model import Contract, Knob, KnobValue
from rsi_tui.contract.rules import violations
from rsi_tui.contract.scope import in_scope, plain_path
from rsi_tui.errors import PatchError, UsageError
from rsi_tui.journal.facts import FindingFacts
from rsi_tui.loop.executor import Refusal, check_knob_files, check_syntax, differs
from rsi_tui.repo.git import GitFailed, text_of
from rsi_tui.repo.mirror import Mirror
from rsi_tui.repo.patch import apply_diff, named_paths
from rsi_tui.repo.source import Source, find_source

LINK, SUBMODULE = "120000", "160000"
_SPECIAL = re.compile(rf"^(?:new file|deleted file|new|old) mode ({LINK}|{SUBMODULE})\r?$", re.MULTILINE)
_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class OwnChange:
    """What a person wants a verdict on, read and not yet applied."""

    diffs: tuple[str, ...]
    """unified diffs, in the order in which they are applied"""
    knobs: dict[str, KnobValue]
    """settings that are asked for"""
    label: str
    """what it is, for a sentence: 'patch fast.diff, micro_batch=4'"""
    root: str = ""
    """place of the workload in its repository, '' or 'a/b/'"""
    empty_because: str = ""
    """why the code part holds nothing, where that can be said"""


@dataclass(frozen=True)
class Applied:
    """A change that passed every gate which needs neither a commit nor a run."""

    files: dict[str, str | None]
    """path -> new text, None for a deleted file; only what differs"""
    knobs: dict[str, KnobValue]
    """all knobs"""
    affects: tuple[str, ...]


# --- reading ----------------------------------------------------------------------------------


def read_change(contract: Contract, patch: str, commit: str, settings: Sequence[str]) -> OwnChange:
    """A person's change from the words of a command line; '' and () are not given.

    UsageError, one sentence, for a file that can't be read, a commit that is not there, and settings
    that the contract does not list.
    """
    if not (patch or commit or settings):
        raise UsageError("Say what to evaluate: --patch FILE, --commit REF, --set knob=value, or several of them.")
    source = find_source(contract.path)
    knobs = read_settings(contract, settings)
    diffs, labels, empty = [], [], ""
    if commit:
        diff, empty = _commit_diff(source, commit)
        diffs.append(diff)
        labels.append(f"commit {commit}")
    if patch:
        diffs.append(_read_patch(patch))
        labels.append("the patch on stdin" if patch == "-" else f"patch {Path(patch).name}")
    labels += [f"{name}={value}" for name, value in knobs.items()]
    return OwnChange(tuple(diffs), knobs, ", ".join(labels), source.prefix, empty)


def read_settings(contract: Contract, settings: Sequence[str]) -> dict[str, KnobValue]:
    """'knob=value' words as values of the contract's knobs; UsageError names the nearest knob or the listed values."""
    known = {knob.name: knob for knob in contract.knobs}
    chosen: dict[str, KnobValue] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: write it as knob=value.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            hint = f"the nearest is {near[0]}" if near else "the contract lists none"
            raise UsageError(f"--set {text}: there is no knob named {name}; {hint}.")
        found = _meant(known[name], value)
        if name in chosen and not same_value(chosen[name], found):
            raise UsageError(f"--set gives {name} two values, {chosen[name]} and {found}; give one.")
        chosen[name] = found
    if broken := violations(contract, chosen):
        raise UsageError(f'These settings break the rule "{broken[0]}" of workload.toml; set what goes together.')
    return chosen


def _meant(knob: Knob, text: str) -> KnobValue:
    """The listed value that a word on the command line means."""
    exact = [value for value in knob.values if str(value) == text]
    loose = [value for value in knob.values if _says(value, text)]
    if not exact and not loose:
        listed = ", ".join(repr(value) if value == "" else str(value) for value in knob.values)
        raise UsageError(f"--set {knob.name}={text}: {knob.name} can't be {text or repr('')}; the contract lists {listed}.")
    value = (exact or loose)[0]
    if knob.preload and value and find_library(knob.preload) is None:
        raise UsageError(f"--set {knob.name}={text}: the system library {knob.preload} is not installed on this machine.")
    return value


def _says(value: KnobValue, text: str) -> bool:
    if isinstance(value, bool):
        return text.lower() in (_TRUE if value else _FALSE)
    if isinstance(value, int | float):
        try:
            return float(text) == value
        except ValueError:
            return False
    return False


def _read_patch(patch: str) -> str:
    """The text of a patch file, or of stdin for '-'; line ends and stray bytes as they are."""
    try:
        return text_of(sys.stdin.buffer.read() if patch == "-" else Path(patch).expanduser().read_bytes())
    except OSError as error:
        raise UsageError(f"--patch {patch} can't be read ({error.strerror}): name a file with a unified diff, or - for stdin.") from error


def _commit_diff(source: Source, ref: str) -> tuple[str, str]:
    """What a commit's branch changed in the workload since it left what is checked out; why nothing, where it did not."""
    try:
        commit = text_of(source.git("rev-parse", "--verify", "-q", "--end-of-options", f"{ref}^{{commit}}")).strip()
    except GitFailed as error:
        raise UsageError(f"--commit {ref}: there is no such commit in the repository of {source.folder}.") from error
    try:
        base = text_of(source.git("merge-base", "HEAD", commit)).strip()
    except GitFailed as error:
        raise UsageError(f"--commit {ref} shares no history with what is checked out; give a patch instead.") from error
    if base == commit:
        return "", f"commit {ref} is part of what is checked out: to ask what it brought, check out its parent first"
    diff = source.git("diff-tree", "-r", "-p", "--text", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color",
                      "--full-index", "--relative", "--src-prefix=a/", "--dst-prefix=b/", base, commit)  # fmt: skip
    return text_of(diff), f"commit {ref} changes nothing in {source.folder}"


# --- applying ---------------------------------------------------------------------------------


def apply_change(contract: Contract, mirror: Mirror, change: OwnChange) -> Applied:
    """The change on top of the mirror's base. Raises Refusal, in this order, for one that does not apply, changes
    nothing that runs, leaves the scope, does not parse, breaks the file of a knob, or affects what it may not.
    """
    modes = mirror.modes(mirror.base)
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    outside: dict[str, str] = {}
    for diff in change.diffs:
        root, named = _named(diff, modes, change.root)
        outside |= _unreachable(diff, named, modes, root)
        new = _files(mirror, [path for path in named if path not in before and path not in outside])
        before |= new
        after |= new
        if not outside:
            after = _patched(after, diff, root)
    outside |= {path: "" for path in before.keys() | after.keys() if before.get(path) != after.get(path) and not in_scope(contract, path)}
    knobs = contract.defaults | change.knobs
    code = differs(before, after)
    if not outside and not code and not changed_knobs(contract, knobs):
        raise Refusal("no_change", _why_nothing(change, before != after))
    if outside:
        raise _out_of_scope(contract, outside)
    check_syntax(before, after)
    untouched = _files(mirror, [place for place in _knob_files(contract) if place not in before])
    check_knob_files(contract, untouched | before, untouched | after, knobs)
    affects = _allowed(contract, knobs)
    if not code:
        return Applied({}, knobs, affects)
    paths = before.keys() | after.keys()
    return Applied({path: after.get(path) for path in paths if before.get(path) != after.get(path)}, knobs, affects)


def _named(diff: str, known: Mapping[str, str], prefix: str) -> tuple[str, list[str]]:
    """(what to put before the workload's paths, the paths that a diff names, as seen from the workload's folder).

    A diff that names anything below the workload's place in its repository is written from that repository's root.
    """
    if _SPECIAL.search(diff):
        return "", []  # no text: `_unreachable` names what it is about
    try:
        named = named_paths(diff, known)
        if not prefix or not any(path.startswith(prefix) and path not in known for path in named):
            return "", list(named)
        rooted = {prefix + path for path in known}
        return prefix, [path.removeprefix(prefix) if path.startswith(prefix) else f"/{path}" for path in named_paths(diff, rooted)]
    except PatchError as error:
        raise Refusal("does_not_apply", str(error), diff) from error


def _unreachable(diff: str, named: Sequence[str], modes: Mapping[str, str], root: str) -> dict[str, str]:
    """Paths that are no plain file inside the program -> why, in words after 'it'; '' where the contract's scope says it."""
    found = {}
    for section in _SECTION.split(diff):
        if special := _SPECIAL.search(section):
            name = section.splitlines()[0].removeprefix("diff --git ").rpartition(" b/")[2]
            found[name.removeprefix(root)] = "is a link" if special[1] == LINK else "is a submodule"
    for path in named:
        parts = path.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        link = next((name for name in above if modes.get(name) in (LINK, SUBMODULE)), "")
        if link:
            found[path] = "is a link or a submodule" if link == path else f"lies behind the link {link}"
        elif root and path.startswith("/"):
            found[path.removeprefix("/")] = "lies outside the workload's folder"
        elif not plain_path(path):
            found[path] = "is no plain path inside the program"
    return found


def _files(mirror: Mirror, paths: Sequence[str]) -> dict[str, str]:
    """Texts of those of the named files that the base has."""
    literal = [re.sub(r"([*?\[])", r"[\1]", path) for path in paths]
    return mirror.read_files(mirror.base, literal) if literal else {}


def _patched(files: Mapping[str, str], diff: str, root: str) -> dict[str, str]:
    """The files with a diff applied; Refusal when it does not apply in exactly one way."""
    try:
        changed = apply_diff({root + path: text for path, text in files.items()}, diff)
    except PatchError as error:
        raise Refusal("does_not_apply", str(error), diff) from error
    now = dict(files) | {path.removeprefix(root): text for path, text in changed.items() if text is not None}
    gone = {path.removeprefix(root) for path, text in changed.items() if text is None}
    return {path: text for path, text in now.items() if path not in gone}


def _why_nothing(change: OwnChange, texts_differ: bool) -> str:
    if texts_differ:
        return "only comments or layout change: the program that would run is the same, so nothing was run"
    if change.empty_because and len(change.diffs) == 1:
        return change.empty_because
    if change.knobs and not any(change.diffs):
        return "these settings are the program's own already, so nothing was run"
    return "it changes neither code nor settings, so nothing was run"


def _out_of_scope(contract: Contract, outside: Mapping[str, str]) -> Refusal:
    """The refusal that lists every offending path."""
    findings = tuple(
        FindingFacts(
            rule="out_of_scope", severity="scope", path=path, line=1,
            text=f"It {why}." if why else "The contract does not allow this file to change.",
        )
        for path, why in sorted(outside.items())
    )  # fmt: skip
    listed = ", ".join(f"{path} ({why})" if why else path for path, why in sorted(outside.items()))
    allowed = ", ".join(contract.editable)
    return Refusal("scope", f"outside what may be changed ([scope] editable = {allowed}): {listed}", findings=findings)


def _knob_files(contract: Contract) -> set[str]:
    """Files that knobs live in."""
    return {(knob.file or knob.global_).partition(":")[0] for knob in contract.knobs} - {""}


def _allowed(contract: Contract, knobs: Mapping[str, KnobValue]) -> tuple[str, ...]:
    """What the changed knobs affect; Refusal for what the contract does not allow to be affected."""
    found: dict[str, str] = {}
    for name in changed_knobs(contract, knobs):
        found |= dict.fromkeys(contract.knob(name).affects, name)
    if "precision" in found and contract.invariants.precision == "fp32":
        raise Refusal("constraint", f'{found["precision"]} changes what numbers are rounded to, and the contract says precision = "fp32"')
    if "hardware" in found:
        raise Refusal("constraint", f"{found['hardware']} changes the hardware, which a comparison holds fixed")
    return tuple(sorted(found))

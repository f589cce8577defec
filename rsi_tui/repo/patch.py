"""The one patch applier. Every diff and every edit of a mind or a person goes through here.

A change is applied where it is unambiguous and refused otherwise; files are values, so a refusal
leaves everything as it was. A hunk goes to the place its header states if the text matches there,
else to the only other place that matches. Matching is exact but for line ends: a file keeps its own,
whatever the patch has. PatchError names the path and the first line that differs.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from rsi_tui.contract.scope import plain_path
from rsi_tui.errors import PatchError
from rsi_tui.repo.unified import Hunk, Section, quote, read_diff

Files = Mapping[str, str]
"""path -> text, line ends untouched"""


@dataclass(frozen=True)
class Edit:
    """Replace one passage of a file by another."""

    path: str
    old: str
    """as it stands in the file, once; '' makes a new file"""
    new: str


def apply_diff(files: Files, diff: str) -> dict[str, str | None]:
    """The files that a unified diff changes, with their new texts; None for those it deletes.

    `files` are all the files that the diff may touch. Raises PatchError when any part of it does not
    apply in exactly one way.
    """
    try:
        return _apply(files, read_diff(diff, "counted"))
    except PatchError as error:
        try:
            return _apply(files, read_diff(diff, "free"))
        except PatchError as other:
            # Where the header's counts could be followed, their reading is the one to talk about.
            raise (error if _readable(diff) else other) from None


def named_paths(diff: str, known: Container[str]) -> tuple[str, ...]:
    """The paths that a diff changes, creates or deletes, in its order, without a/ and b/; `known` are the files there are.

    They may be paths that no program can have ('/etc/passwd', '../x'). Raises PatchError for what is no diff.
    """
    try:
        sections = read_diff(diff, "counted")
    except PatchError:
        sections = read_diff(diff, "free")
    sides = ((side, prefix, section) for section in sections for side, prefix in ((section.old, "a/"), (section.new, "b/")))
    found = (_stripped(side, prefix, section, known) for side, prefix, section in sides)
    return tuple(dict.fromkeys(path for path in found if path is not None))


def apply_edits(files: Files, edits: Sequence[Edit]) -> dict[str, str | None]:
    """The files that the edits change, in order, with their new texts.

    The old passage must stand in its file exactly once. Tolerated when it stands nowhere as written:
    code fences around both passages, other line ends than the file's, and - and + before each line.
    Raises PatchError, naming the first line that differs.
    """
    now = dict(files)
    for edit in edits:
        _check_path(edit.path)
        now[edit.path] = _edited(now, edit)
    return {path: text for path, text in now.items() if files.get(path) != text}


def normalised_diff_hash(diff: str) -> str:
    """sha256, hexadecimal, of what a diff removes and adds, by path; '' for an empty diff.

    Independent of hunk positions, context, order of files, and blanks at line ends.
    """
    try:
        sections = read_diff(diff, "counted")
    except PatchError:
        sections = read_diff(diff, "free")
    parts = []
    for section in sections:
        lines = [line.tag + line.text.rstrip() for hunk in section.hunks for line in hunk.lines if line.tag != " "]
        old, new = (_stripped(side, prefix, section) for side, prefix in ((section.old, "a/"), (section.new, "b/")))
        parts.append("\n".join((f"{section.kind}\0{old}\0{new}", *lines)))
    return hashlib.sha256("\0\0".join(sorted(parts)).encode("utf-8", "surrogateescape")).hexdigest() if parts else ""


def make_diff(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> str:
    """Unified diff between two sets of files, in git's form; a file missing or None is absent."""
    return "".join(
        _file_diff(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


# --- sections ---------------------------------------------------------------------------------


def _readable(diff: str) -> bool:
    try:
        read_diff(diff, "counted")
    except PatchError:
        return False
    return True


def _apply(files: Files, sections: list[Section]) -> dict[str, str | None]:
    now = dict(files)
    for section in sections:
        _apply_section(now, section)
    touched = files.keys() | now.keys()
    return {path: now.get(path) for path in sorted(touched) if files.get(path) != now.get(path)}


def _apply_section(now: dict[str, str], section: Section) -> None:
    old, new = _names(now, section)
    if old is None:
        assert new is not None
        if new in now:
            raise PatchError(f"{new} is to be created, and exists already.")
        now[new] = _patched(new, "", section.hunks)
        return
    if old not in now:
        raise PatchError(f"{old} does not exist, or lies outside what may be changed.")
    text = _patched(old, now[old], section.hunks)
    if new is None:
        if text and section.hunks:
            raise PatchError(
                f"{old} is to be deleted, but the patch leaves lines of it: {_show(text.splitlines()[0])}."
            )
        del now[old]
        return
    if new != old:
        if new in now:
            raise PatchError(f"{new} exists already, and {old} is to become it.")
        if section.kind == "rename":
            del now[old]
    now[new] = text


def _names(now: Files, section: Section) -> tuple[str | None, str | None]:
    """Paths of a section without a/ and b/, checked."""
    old, new = _stripped(section.old, "a/", section, now), _stripped(section.new, "b/", section, now)
    if section.kind == "change" and old != new:
        # `--- x.orig` and `+++ x`, or a prefix on one side only: clear when just one of them is a file.
        known = [path for path in (old, new) if path in now]
        if len(known) != 1:
            raise PatchError(f"the patch names two files for one change, {old} and {new}.")
        old = new = known[0]
    for path in (old, new):
        if path is not None:
            _check_path(path)
    creates = section.kind == "change" and old not in now and [hunk.old_count for hunk in section.hunks] == [0]
    return (None if creates else old), new


def _stripped(path: str | None, prefix: str, section: Section, now: Container[str] | None = None) -> str | None:
    """A path without its prefix: as git has it when both sides carry one, else whichever is a file."""
    if path is None or section.bare:
        return path
    bare = path.removeprefix(prefix)
    if now is None:
        return bare
    both = all(side is None or side.startswith(mark) for side, mark in ((section.old, "a/"), (section.new, "b/")))
    first, second = (bare, path) if both else (path, bare)
    return second if first not in now and second in now else first


def _check_path(path: str) -> None:
    if not plain_path(path):
        raise PatchError(f"{path!r} is not a plain path inside the program.")


# --- hunks ------------------------------------------------------------------------------------


def _split(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line, as for git."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _body(line: str) -> str:
    """A line without its end, whichever that is."""
    return line.removesuffix("\n").removesuffix("\r")


def _patched(path: str, text: str, hunks: list[Hunk]) -> str:
    """The text after all hunks; each is placed against the text before."""
    lines = _split(text)
    places = sorted(((_place(path, lines, hunk), number) for number, hunk in enumerate(hunks)), key=lambda p: p)
    out: list[str] = []
    at = 0
    for place, number in places:
        hunk = hunks[number]
        if place < at:
            raise PatchError(f"{path}: two hunks of the patch change the same lines, near line {place + 1}.")
        out += lines[at:place]
        at = place + len(hunk.old)
        out += _replacement(path, lines, place, hunk)
    out += lines[at:]
    for line in out[:-1]:
        if not line.endswith("\n"):
            raise PatchError(f"{path}: the patch says that the file ends after {_show(line)}, but more lines follow.")
    return "".join(out)


def _place(path: str, lines: list[str], hunk: Hunk) -> int:
    """Index of the line at which a hunk begins."""
    old = hunk.old
    if not old:
        if hunk.start is None or hunk.old_count != 0 or hunk.start > len(lines):
            if not lines:
                return 0
            raise PatchError(
                f"{path}: the hunk at line {hunk.header} of the diff has no line that says where it belongs."
            )
        return hunk.start
    stated = None if hunk.start is None else hunk.start - 1
    if stated is not None and _matches(lines, stated, old):
        return stated
    found = [at for at in range(len(lines) - len(old) + 1) if _matches(lines, at, old)]
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(str(at + 1) for at in found[:4])
        raise PatchError(
            f"{path}: the hunk at line {hunk.header} of the diff fits in {len(found)} places (lines {where}); "
            "give it more context."
        )
    raise PatchError(_mismatch(path, lines, old, stated))


def _matches(lines: list[str], at: int, old: list[str]) -> bool:
    return 0 <= at <= len(lines) - len(old) and all(map(_same, lines[at : at + len(old)], old))


def _same(line: str, expected: str) -> bool:
    """Equal but for the line end; a line that the patch says is unterminated must be so."""
    return _body(line) == _body(expected) and (expected.endswith("\n") or not line.endswith("\n"))


def _replacement(path: str, lines: list[str], place: int, hunk: Hunk) -> list[str]:
    """New lines of a hunk. Where all old lines match to the byte, so do the new ones; else the file's ends rule."""
    old = hunk.old
    if lines[place : place + len(old)] == old:
        return hunk.new
    usual = _usual_end(lines)
    out: list[str] = []
    at = place
    end = usual
    for line in hunk.lines:
        if line.tag != "+":
            end = _end(lines[at]) or usual
            if line.tag == " ":
                out.append(lines[at])
            at += 1
        else:
            out.append(_body(line.text) + (end if line.text.endswith("\n") else ""))
    if at == len(lines) and lines and not _end(lines[-1]) and out and hunk.lines[-1].tag == "+":
        # The file's last line had no end, and the patch is silent about it: the new last line has none either.
        out[-1] = _body(out[-1])
    return [_ended(line, usual) for line in out[:-1]] + out[-1:]


def _end(line: str) -> str:
    return line[len(_body(line)) :] if line.endswith("\n") else ""


def _ended(line: str, end: str) -> str:
    return line if line.endswith("\n") else line + end


def _usual_end(lines: list[str]) -> str:
    crlf = sum(line.endswith("\r\n") for line in lines)
    return "\r\n" if crlf * 2 > len(lines) else "\n"


def _mismatch(path: str, lines: list[str], old: list[str], stated: int | None) -> str:
    """Which line of the file differs first, at the stated place or where the hunk fits best."""

    def fits(at: int) -> int:
        return next(
            (n for n, want in enumerate(old) if at + n >= len(lines) or not _same(lines[at + n], want)), len(old)
        )

    places = range(len(lines)) or range(1)
    best = max(places, key=lambda at: (fits(at), at == stated))
    at = best if fits(best) > 0 or stated is None else max(stated, 0)
    first = fits(at)
    if at + first >= len(lines):
        return f"{path}: the patch expects {_show(old[first])} at line {at + first + 1}, but the file ends before."
    if _body(lines[at + first]) == _body(old[first]):
        return (
            f"{path}: the patch says that the file ends without a line feed at line {at + first + 1}, and it has one."
        )
    return f"{path}: line {at + first + 1} is {_show(lines[at + first])}, but the patch expects {_show(old[first])}."


def _show(line: str) -> str:
    body = _body(line)
    return repr(body if len(body) <= 100 else body[:97] + "...")


# --- edits ------------------------------------------------------------------------------------


def _edited(now: Files, edit: Edit) -> str:
    if not edit.old:
        if now.get(edit.path):
            raise PatchError(f"{edit.path} exists already; say which passage of it is to be replaced.")
        return edit.new
    if edit.path not in now:
        raise PatchError(f"{edit.path} does not exist, or lies outside what may be changed.")
    text = now[edit.path]
    for old, new in _readings(text, edit.old, edit.new):
        count = _count(text, old)
        if count == 1:
            return text.replace(old, new, 1)
        if count > 1:
            raise PatchError(f"{edit.path}: the passage {_show(_split(old)[0])} stands {count} times; give more of it.")
    raise PatchError(_mismatch(edit.path, _split(text), _split(edit.old), None))


def _count(text: str, part: str) -> int:
    """Occurrences, overlapping ones too."""
    count, at = 0, text.find(part)
    while at >= 0:
        count, at = count + 1, text.find(part, at + 1)
    return count


def _readings(text: str, old: str, new: str) -> list[tuple[str, str]]:
    """What a person could have meant by the two passages, the most literal first."""
    pairs = [(old, new)]
    pairs += [(_unfenced(old), _unfenced(new))]
    pairs += [pair for a, b in list(pairs) if (pair := _unmarked(a, b))]
    end = _usual_end(_split(text))
    pairs += [(_with_ends(a, end), _with_ends(b, end)) for a, b in list(pairs)]
    return [pair for pair in dict.fromkeys(pairs) if pair[0].strip()]


def _unfenced(passage: str) -> str:
    found = re.fullmatch(r"\s*```[^\n]*\n(.*?)\n?```\s*", passage, re.DOTALL)
    return found[1] if found else passage


def _unmarked(old: str, new: str) -> tuple[str, str] | None:
    """Both passages without the - and + (or blanks) that begin their lines; None where they have none."""
    olds, news = _split(old), _split(new)
    clear = all(line[0] in "- " for line in olds) and all(line[0] in "+ " for line in news)
    marked = any(line[0] == "-" for line in olds) and (not news or any(line[0] == "+" for line in news))
    if not (clear and marked):
        return None
    return "".join(line[1:] for line in olds), "".join(line[1:] for line in news)


def _with_ends(passage: str, end: str) -> str:
    return passage.replace("\r\n", "\n").replace("\n", end)


# --- making diffs -----------------------------------------------------------------------------


def _file_diff(path: str, before: str | None, after: str | None) -> str:
    head = f"diff --git {quote('a/' + path)} {quote('b/' + path)}\n"
    if before is None:
        head += "new file mode 100644\n"
    if after is None:
        head += "deleted file mode 100644\n"
    tab = "\t" if " " in path else ""
    old = "/dev/null" if before is None else quote("a/" + path) + tab
    new = "/dev/null" if after is None else quote("b/" + path) + tab
    body = "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in list(difflib.unified_diff(_split(before or ""), _split(after or "")))[2:]
    )
    return head + (f"--- {old}\n+++ {new}\n{body}" if body else "")

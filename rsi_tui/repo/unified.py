"""Reading unified diffs, as git, diff and language models write them, into sections and hunks.

No file is looked at here and nothing is applied. Tolerated: prose and code fences around the diff,
hunk headers without or with wrong numbers, blank context lines that lost their space, a whole diff
with CRLF line ends. Raises PatchError for what can't be read in one way only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from rsi_tui.errors import PatchError

_HUNK = re.compile(r"@@(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@)?(?!@).*", re.DOTALL)
_EXTENDED = ("index ", "similarity index ", "dissimilarity index ")
_BETWEEN = ("diff -", "Index: ", "=====")
"""lines that other tools put before a file's header"""
Counting = Literal["counted", "free"]
"""hunks end where their header says, or where the next header begins"""


@dataclass(frozen=True)
class PatchLine:
    """One line of a hunk."""

    tag: str
    """' ', '-' or '+'"""
    text: str
    """with its line end; without one where the patch says that there is none"""


@dataclass
class Hunk:
    """One run of changed lines with their context."""

    start: int | None
    """line of the old file it begins at, from 1; None where the header has no numbers"""
    old_count: int | None
    header: int
    """line of the diff, for messages"""
    lines: list[PatchLine] = field(default_factory=list)

    @property
    def old(self) -> list[str]:
        return [line.text for line in self.lines if line.tag != "+"]

    @property
    def new(self) -> list[str]:
        return [line.text for line in self.lines if line.tag != "-"]


@dataclass
class Section:
    """What a diff says of one file. Paths as written, prefixes included; None is /dev/null."""

    old: str | None = None
    new: str | None = None
    bare: bool = False
    """paths come from rename or copy headers and carry no a/ and b/"""
    kind: Literal["change", "create", "delete", "rename", "copy"] = "change"
    hunks: list[Hunk] = field(default_factory=list)


def read_diff(diff: str, counting: Counting) -> list[Section]:
    """Sections of a diff, in its order; [] for an empty text.

    Raises PatchError for text without any header, binary patches, changes of mode, links, submodules,
    and lines that are neither context, addition nor removal.
    """
    return _Reader(_plain_lines(diff), counting).read()


def _plain_lines(diff: str) -> list[str]:
    """Lines without line end; only what stands in code fences where there are any."""
    lines = diff.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    if any(line.rstrip("\r").startswith("```") for line in lines):
        kept, inside = [], False
        for line in lines:
            if line.rstrip("\r").startswith("```"):
                inside = not inside
            elif inside:
                kept.append(line)
        lines = kept
    headers = [line for line in lines if line.startswith(("--- ", "+++ ", "@@ ", "diff --git "))]
    if headers and all(line.endswith("\r") for line in headers):
        # The diff itself was turned to CRLF on its way; the files' own line ends are a second \r.
        lines = [line.removesuffix("\r") for line in lines]
    return lines


class _Reader:
    """A cursor over the lines of a diff."""

    def __init__(self, lines: list[str], counting: Counting) -> None:
        self.lines = lines
        self.counting = counting
        self.at = 0

    def read(self) -> list[Section]:
        sections: list[Section] = []
        while self.at < len(self.lines):
            if self._line().startswith("diff --git "):
                sections.append(self._git_section())
            elif self._file_header():
                sections.append(self._plain_section(Section()))
            elif sections and self._line().startswith("-- ") and self.at >= len(self.lines) - 4:
                break  # the signature of `git format-patch`
            elif self._line().startswith(_BETWEEN):
                self.at += 1
            elif self._line().strip() and (sections or self._line().startswith("@@")):
                self._fail("is neither header, context, addition nor removal")
            else:
                self.at += 1  # prose before the first header, blank lines
        if not sections and any(line.strip() for line in self.lines):
            raise PatchError("there is no unified diff in the answer; it must begin with --- and +++ lines.")
        return sections

    def _line(self, ahead: int = 0) -> str:
        return self.lines[self.at + ahead] if self.at + ahead < len(self.lines) else ""

    def _fail(self, what: str) -> NoReturn:
        shown = self._line()[:80]
        raise PatchError(f"line {self.at + 1} of the diff {what}: {shown!r}.")

    def _file_header(self, ahead: int = 0) -> bool:
        return self._line(ahead).startswith("--- ") and self._line(ahead + 1).startswith("+++ ")

    # --- headers ------------------------------------------------------------------------------

    def _git_section(self) -> Section:
        section = Section()
        names = _git_names(self._line().removeprefix("diff --git "))
        self.at += 1
        while self.at < len(self.lines) and self._extended_header(section, self._line()):
            self.at += 1
        if self._file_header():
            return self._plain_section(section)
        if not section.bare:
            if names is None:
                self._fail("follows a header that names no file clearly")
            section.old = None if section.kind == "create" else names[0]
            section.new = None if section.kind == "delete" else names[1]
        return self._hunks(section)

    def _extended_header(self, section: Section, line: str) -> bool:
        word, _, rest = line.partition(" ")
        if line.startswith(("rename ", "copy ")):
            where, _, path = rest.partition(" ")
            section.kind = "rename" if word == "rename" else "copy"
            section.bare = True
            if where == "from":
                section.old = _bare_path(path)
            else:
                section.new = _bare_path(path)
        elif line.startswith(("new file mode ", "deleted file mode ")):
            mode = line.rpartition(" ")[2].strip()
            if not mode.startswith("100"):
                self._fail("is about a link or a submodule, and only plain files can be changed")
            section.kind = "create" if word == "new" else "delete"
        elif line.startswith(("old mode ", "new mode ")):
            self._fail("changes the mode of a file, and only texts can be changed")
        elif line.startswith(("GIT binary patch", "Binary files ")):
            self._fail("is a binary patch, and only texts can be changed")
        else:
            return line.startswith(_EXTENDED)
        return True

    def _plain_section(self, section: Section) -> Section:
        old, new = _path(self._line()[4:]), _path(self._line(1)[4:])
        self.at += 2
        if not section.bare:
            section.old = None if old == "/dev/null" else old
            section.new = None if new == "/dev/null" else new
            if section.old is None or section.new is None:
                section.kind = "create" if section.old is None else "delete"
        if section.old is None and section.new is None:
            self._fail("follows a header that names /dev/null twice")
        return self._hunks(section)

    def _hunks(self, section: Section) -> Section:
        while self.at < len(self.lines):
            if self._line().startswith("@@"):
                section.hunks.append(self._hunk())
            elif not self._line().strip():
                self.at += 1
            else:
                break
        return section

    # --- hunks --------------------------------------------------------------------------------

    def _hunk(self) -> Hunk:
        found = _HUNK.fullmatch(self._line())
        if not found:
            self._fail("is no hunk header")
        start, old_count, _, new_count = (None if group is None else int(group) for group in found.groups())
        old_count = 1 if start is not None and old_count is None else old_count
        new_count = 1 if start is not None and new_count is None else new_count
        hunk = Hunk(start, old_count, self.at + 1)
        self.at += 1
        if self.counting == "counted" and old_count is not None and new_count is not None:
            self._counted(hunk, old_count, new_count)
        else:
            self._free(hunk)
        if not any(line.tag != " " for line in hunk.lines):
            raise PatchError(f"the hunk at line {hunk.header} of the diff changes nothing.")
        return hunk

    def _counted(self, hunk: Hunk, old_left: int, new_left: int) -> None:
        while old_left > 0 or new_left > 0:
            if self.at >= len(self.lines) or not self._take(hunk):
                self._fail("comes before the hunk has as many lines as its header says")
            tag = hunk.lines[-1].tag
            old_left -= tag != "+"
            new_left -= tag != "-"
            self._no_newline(hunk)
        ends = (
            self.at >= len(self.lines) or self._line().startswith(("diff --git ", "@@", "-- ")) or self._file_header()
        )
        if old_left < 0 or new_left < 0 or (not ends and self._line().startswith((" ", "+", "-"))):
            self._fail("is beyond the lines that the hunk's header counts")

    def _free(self, hunk: Hunk) -> None:
        blanks = 0
        while self.at < len(self.lines) and not self._file_header() and not self._is_signature():
            blanks = blanks + 1 if self._line() == "" else 0
            if not self._take(hunk):
                break
            self._no_newline(hunk)
        if blanks:
            del hunk.lines[-blanks:]  # blank lines after a hunk belong to the text around it

    def _is_signature(self) -> bool:
        return self._line() == "-- " and self.at >= len(self.lines) - 3

    def _take(self, hunk: Hunk) -> bool:
        """Take one line of a hunk; False when this is none."""
        line = self._line()
        tag, text = (line[0], line[1:]) if line else (" ", "")
        if line == "\r":
            tag, text = " ", "\r"
        if tag not in " +-":
            return False
        hunk.lines.append(PatchLine(tag, text + "\n"))
        self.at += 1
        return True

    def _no_newline(self, hunk: Hunk) -> None:
        if self._line().startswith("\\ "):
            last = hunk.lines[-1]
            hunk.lines[-1] = PatchLine(last.tag, last.text.removesuffix("\n"))
            self.at += 1


# --- paths ------------------------------------------------------------------------------------

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _path(text: str) -> str:
    """A path as it stands after --- or +++: quoted by git, or up to a tab with a date."""
    if found := _QUOTED.match(text):
        return unquote(found[1])
    path, tab, _ = text.rstrip("\r").partition("\t")
    return path if tab else path.rstrip(" ")


def _bare_path(text: str) -> str:
    """A path as it stands after `rename from`: quoted by git, or to the end of the line."""
    found = _QUOTED.fullmatch(text)
    return unquote(found[1]) if found else text.rstrip("\r")


def unquote(text: str) -> str:
    """The inside of git's C-style quotes as the path it means."""
    out = bytearray()
    at = 0
    while at < len(text):
        if octal := re.match(r"\\([0-3][0-7]{2})", text[at:]):
            out.append(int(octal[1], 8))
            at += 4
        elif text[at] == "\\" and text[at + 1 : at + 2] in _ESCAPES:
            out += _ESCAPES[text[at + 1]].encode()
            at += 2
        else:
            out += text[at].encode("utf-8", "surrogateescape")
            at += 1
    return out.decode("utf-8", "surrogateescape")


def quote(path: str) -> str:
    """A path as git writes it in a diff with core.quotePath off."""
    if not re.search(r'[\x00-\x1f\x7f"\\]', path):
        return path
    names = {value: name for name, value in _ESCAPES.items()}
    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', lambda c: "\\" + names.get(c[0], f"{ord(c[0]):03o}"), path) + '"'


def _git_names(rest: str) -> tuple[str, str] | None:
    """Both paths of a `diff --git` line, prefixes included; None when it can be split in several ways."""
    rest = rest.rstrip("\r")
    quoted = _QUOTED.findall(rest)
    if len(quoted) == 2:
        return unquote(quoted[0]), unquote(quoted[1])
    if len(quoted) == 1:
        other = _QUOTED.sub("", rest).strip()
        return (unquote(quoted[0]), other) if rest.startswith('"') else (other, unquote(quoted[0]))
    middle = len(rest) // 2
    left, right = rest[:middle], rest[middle + 1 :]
    same = left.removeprefix("a/") == right.removeprefix("b/")
    return (left, right) if len(rest) % 2 and rest[middle] == " " and same else None

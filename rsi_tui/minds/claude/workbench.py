"""The Executor's private copy of a program: texts in memory, and commands on throw-away copies in the sandbox.

Promises: nothing outside the editable files changes; an edit that does not fit changes nothing; what a command writes is
not kept, so that no link or file that it makes is ever read from outside; files that only the evaluator runs are absent.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.contract.model import Contract
from rsi_tui.contract.scope import in_scope
from rsi_tui.errors import GateError, PatchError
from rsi_tui.launch.lease import host_lease
from rsi_tui.launch.sandbox import python_mounts
from rsi_tui.launch.spec import LaunchSpec, Mount, RawRun
from rsi_tui.minds.claude.briefing import evaluators_files
from rsi_tui.minds.room import Room
from rsi_tui.repo.patch import Edit, apply_edits

PROGRAM, OUT = "/program", "/out"
READ_LINES, MOST_CHARACTERS = 400, 16_000
MOST_FOUND = 60
SCRATCH_BYTES = 2**30


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    ok: bool
    late: bool
    """killed at its time limit, which a busy machine can be the reason for"""
    said: str
    """exit code and output, shortened"""


class Workbench:
    """One change in the making."""

    def __init__(self, room: Room, contract: Contract, commit: str, sources: Mapping[str, str]) -> None:
        self._room, self._contract, self._commit = room, contract, commit
        tree = room.read_files(commit) if commit else dict(sources)
        self._hidden = evaluators_files(contract, tree) - sources.keys()
        self._fixed = {path: text for path, text in tree.items() if path not in sources and path not in self._hidden}
        self._before = dict(sources)
        self.files = dict(sources)
        """editable files as they stand now"""
        self._numbers = itertools.count(1)

    @property
    def changed(self) -> dict[str, str]:
        """The files that differ from the parent's."""
        return {path: text for path, text in self.files.items() if self._before.get(path) != text}

    def list_files(self) -> str:
        shown = {**dict.fromkeys(self._fixed, "read only"), **dict.fromkeys(self.files, "editable")}
        lines = [f"{path}: {(self._fixed | self.files)[path].count(chr(10))} lines, {what}" for path, what in sorted(shown.items())]
        return _bounded("\n".join(lines))

    def read_file(self, path: str, first: int, last: int | None) -> str:
        text = (self._fixed | self.files).get(path)
        if text is None:
            raise PatchError(f"{path} does not exist")
        lines = text.split("\n")
        end = min(last if last is not None else first + READ_LINES - 1, len(lines))
        if first > len(lines):
            raise PatchError(f"{path} has {len(lines)} lines")
        return _bounded(f"lines {first} to {end} of {len(lines)}\n" + "\n".join(lines[first - 1 : end]))

    def search(self, wanted: str) -> str:
        """Lines that hold a text. No regular expressions: one of a model's could take for ever."""
        found = (
            f"{path}:{number}: {line[:200]}"
            for path, text in sorted((self._fixed | self.files).items())
            for number, line in enumerate(text.split("\n"), 1)
            if wanted.lower() in line.lower()
        )
        return "\n".join(itertools.islice(found, MOST_FOUND)) or "no line holds it"

    def edit_file(self, path: str, old: str, new: str) -> str:
        self._may_change(path)
        self.files.update((p, t) for p, t in apply_edits(self.files, [Edit(path, old, new)]).items() if t is not None)
        return f"{path} is changed"

    def create_file(self, path: str, text: str) -> str:
        self._may_change(path)
        if path in self._fixed or path in self.files:
            raise PatchError(f"{path} exists already; edit it")
        self.files.update((p, t) for p, t in apply_edits(self.files, [Edit(path, "", text)]).items() if t is not None)
        return f"{path} is made"

    @property
    def python(self) -> Path:
        return self._room.python

    def run(self, command: str, seconds: int) -> str:
        """Exit code and output of a command, as far as they are worth showing."""
        return self.try_out(command, seconds).said

    def try_out(self, command: str, seconds: int, *, unchanged: bool = False) -> Ended:
        """Run a command on a fresh copy, with the edits or without them; nothing that it writes is kept."""
        place = self._room.scratch / f"command-{next(self._numbers)}"
        shutil.rmtree(place, ignore_errors=True)
        try:
            tree, out = place / "tree", place / "out"
            out.mkdir(parents=True)
            self._room.export(self._commit, tree)
            self._lay(tree, {} if unchanged else self.changed)
            with host_lease("a command of the Executor", on_wait=self._room.tell, meanwhile=self._room.heed):
                run = self._room.launcher.run(self._spec(command, seconds, tree, out))
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return Ended(run.exit_code == 0 and not run.killed_for, run.killed_for == "timeout", _outcome(run))

    def _lay(self, tree: Path, changed: Mapping[str, str]) -> None:
        """Put edits into a copy of the tree, and take out what only the evaluator runs."""
        for path in self._hidden:
            (tree / path).unlink(missing_ok=True)
        for path, text in changed.items():
            place = tree / path
            if any(parent.is_symlink() for parent in (place, *place.parents) if parent.is_relative_to(tree)):
                raise GateError(f"{path} leads through a link")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode("utf-8", "surrogateescape"))

    def _spec(self, command: str, seconds: int, tree: Path, out: Path) -> LaunchSpec:
        launch, python = self._contract.launch, self._room.python
        env = {
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": str(launch.threads), "OUT": OUT,
        }  # fmt: skip
        folder = PROGRAM if launch.workdir == "." else f"{PROGRAM}/{launch.workdir}"
        return LaunchSpec(
            argv=("/bin/sh", "-c", command),
            cwd=folder,
            mounts=(
                *python_mounts(python), Mount(tree, PROGRAM, writable=True), Mount(out, OUT, writable=True), *self._inputs(tree),
            ),
            env=env,
            timeout_s=float(seconds),
            memory_limit_bytes=launch.memory_limit_bytes,
            scratch_limit_bytes=SCRATCH_BYTES,
        )

    def _inputs(self, tree: Path) -> list[Mount]:
        """The contract's input files, read-only, each at a place that is made for it."""
        mounts = []
        for pattern in self._contract.launch.inputs:
            root = Path("/") if pattern.startswith("/") else self._contract.path
            for found in sorted(root.glob(pattern.lstrip("/"))):
                if root == Path("/"):
                    mounts.append(Mount(found.resolve(), str(found)))
                    continue
                inner = found.relative_to(root)
                place = tree / inner
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.exists():
                    place.mkdir() if found.is_dir() else place.touch()
                mounts.append(Mount(found.resolve(), f"{PROGRAM}/{inner.as_posix()}"))
        return mounts

    def _may_change(self, path: str) -> None:
        if not in_scope(self._contract, path) or path in self._fixed or path in self._hidden:
            raise PatchError(f"{path} may not be changed; editable is {', '.join(self._contract.editable)}")


def _outcome(run: RawRun) -> str:
    ended = f"exit code {run.exit_code}" if run.signal is None else f"ended by signal {run.signal}"
    if run.killed_for:
        ended = f"killed for {run.killed_for}"
    return _bounded(f"{ended} after {run.wall_s:.1f} s\n" + "\n".join(line.text for line in run.lines[-2000:]))


def _bounded(text: str) -> str:
    """At most so many characters, of which the last third is the end of the text."""
    if len(text) <= MOST_CHARACTERS:
        return text
    head = MOST_CHARACTERS * 2 // 3
    return f"{text[:head]}\n[... {len(text) - MOST_CHARACTERS} characters left out ...]\n{text[-(MOST_CHARACTERS - head) :]}"

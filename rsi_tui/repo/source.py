"""Reading the user's own repository: where it is, what state it is in, what is not committed.

Never writes there: no index refresh, no refs, no objects, no hooks. The user's configuration counts
(ignored files, line endings, filters), except in a repository that belongs to somebody else, whose
filters are not run.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.errors import RepositoryError
from rsi_tui.repo.git import READ_ONLY, GitFailed, bytes_of, clean_environment, run_git, text_of

_Ask = Callable[..., str]


@dataclass(frozen=True)
class LooseFile:
    """One file of the checkout that is not as committed."""

    path: str
    """relative to the workload's folder"""
    tracked: bool
    deleted: bool


@dataclass(frozen=True)
class Source:
    """The repository that holds a workload, at the commit that is checked out."""

    folder: Path
    """the workload's folder, resolved"""
    prefix: str
    """its place in the repository: '' or 'a/b/'"""
    head: str
    root: str
    """first commit of the history (by first parents)"""
    tree: str
    """id of the workload's tree at head"""
    objects: Path
    object_format: str
    options: tuple[str, ...]
    """git options for reading here"""

    def git(self, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
        """stdout of a reading git command in the workload's folder."""
        return run_git(self.options, *args, env=clean_environment() | (env or {}), stdin=stdin, cwd=self.folder)

    def loose_files(self) -> tuple[LooseFile, ...]:
        """Files below the workload's folder that differ from head or are new, ignored ones apart."""
        listed = self.git("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", ".")
        found = []
        for entry in filter(None, listed.split(b"\0")):
            path = text_of(entry[3:]).removeprefix(self.prefix)
            present = os.path.lexists(self.folder / path)
            found.append(LooseFile(path, tracked=entry[:2] != b"??", deleted=not present))
        return tuple(file for file in found if not file.path.endswith("/"))

    def submodules(self) -> tuple[str, ...]:
        """Paths of submodules in the workload's tree."""
        listed = self.git("ls-tree", "-r", "-z", "--full-tree", self.tree)
        return tuple(text_of(line.split(b"\t", 1)[1]) for line in listed.split(b"\0") if line.startswith(b"160000 "))

    def history(self) -> list[str]:
        """Commits that changed the workload's folder, oldest first, along first parents."""
        listed = self.git("rev-list", "--first-parent", "--reverse", "HEAD", "--", ".")
        return listed.decode().split()


def find_source(folder: Path) -> Source:
    """The repository around a workload's folder.

    Raises RepositoryError, one sentence, for: no repository, a bare one, no commit yet, a shallow or
    partial clone, a folder of which nothing is committed.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise RepositoryError(f"{folder} is not a folder; give the folder of a training program.")
    options = (*READ_ONLY, *_no_foreign_filters(folder))

    def ask(*args: str) -> str:
        return text_of(run_git(options, *args, env=clean_environment(), cwd=folder)).removesuffix("\n")

    _check_kind(folder, ask)
    try:
        head = ask("rev-parse", "--verify", "-q", "HEAD^{commit}")
    except GitFailed as error:
        raise RepositoryError(f"the repository at {folder} has no commit yet; commit the program first.") from error
    prefix = ask("rev-parse", "--show-prefix")
    try:
        tree = ask("rev-parse", "--verify", "-q", f"{head}:{prefix.rstrip('/')}")
    except GitFailed as error:
        raise RepositoryError(f"nothing in {folder} is committed; commit the program first.") from error
    root = ask("rev-list", "--first-parent", "--max-parents=0", head).splitlines()[-1]
    objects = (folder / ask("rev-parse", "--git-path", "objects")).resolve()
    return Source(folder, prefix, head, root, tree, objects, ask("rev-parse", "--show-object-format"), options)


def _check_kind(folder: Path, ask: _Ask) -> None:
    try:
        inside, bare, shallow = ask(
            "rev-parse", "--is-inside-work-tree", "--is-bare-repository", "--is-shallow-repository"
        ).splitlines()
    except GitFailed as error:
        if "dubious ownership" in str(error):
            raise RepositoryError(
                f"git refuses {folder} because it belongs to another user; run "
                f"`git config --global --add safe.directory {folder}` and try again."
            ) from error
        raise RepositoryError(
            f"{folder} is not in a git repository; run `git init`, commit the program, and try again."
        ) from error
    if bare == "true" or inside != "true":
        raise RepositoryError(f"{folder} is a bare repository or lies inside a .git folder; give a checkout of it.")
    if shallow == "true":
        raise RepositoryError(
            f"the repository at {folder} is a shallow clone; run `git fetch --unshallow` there first."
        )
    try:
        ask("config", "--get", "extensions.partialclone")
    except GitFailed:
        return
    raise RepositoryError(
        f"the repository at {folder} is a partial clone, which lacks files of its history; clone it without --filter."
    )


def _no_foreign_filters(folder: Path) -> tuple[str, ...]:
    """Options that switch off the filter programs of a repository that another user owns."""
    try:
        common = run_git(READ_ONLY, "rev-parse", "--git-common-dir", env=clean_environment(), cwd=folder)
        owner = (folder / text_of(common).rstrip("\n")).stat().st_uid
        if owner == os.geteuid():
            return ()
        names = run_git(
            READ_ONLY, "config", "--name-only", "-z", "--get-regexp", r"^filter\.", env=clean_environment(), cwd=folder
        )
    except (GitFailed, OSError):
        return ()
    options: list[str] = []
    for name in filter(None, text_of(names).split("\0")):
        options += ["-c", f"{name}={'false' if name.endswith('.required') else ''}"]
    return tuple(options)


def file_mode(path: Path) -> str:
    """git's mode of a file in the checkout: 100644, 100755 or 120000."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "120000"
    return "100755" if mode & stat.S_IXUSR else "100644"


def link_target(path: Path) -> bytes:
    return bytes_of(str(path.readlink()))

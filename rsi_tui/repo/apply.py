"""Writing changes into the user's repository as commits on a branch, and as patches for others.

Promises: working tree, index, HEAD and every other ref stay as they are; no hook runs; the branch moves
only when everything before has succeeded, and only from the commit that was looked at (`update-ref` with
the old value). Commits are made in a scratch repository that reads the objects of both sides, so a conflict
leaves nothing behind. Files keep their bytes and modes: no filter, no change of line endings. A change that
does not fit is refused with the file: renames are not guessed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rsi_tui.errors import PatchError, RepositoryError, UsageError
from rsi_tui.repo.git import (
    READ_ONLY,
    SAFE,
    GitFailed,
    bytes_of,
    clean_environment,
    isolated_environment,
    run_git,
    text_of,
)

Entries = dict[str, tuple[str, str]]
"""path -> (git's mode, object)"""
_SEEN = "refs/rsi/source/"
_IDENTITY = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")


@dataclass(frozen=True)
class Piece:
    """One change that becomes one commit: what lies between two commits of the mirror, or an edit of one file."""

    name: str
    before: str = ""
    after: str = ""
    path: str = ""
    """file to edit, relative to the workload's folder; '' for a change of commits"""
    edit: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True)
class Target:
    """The user's repository, and where the workload lies in it."""

    folder: Path
    """where git is run"""
    prefix: str
    """'' or 'a/b/'"""
    objects: Path
    object_format: str

    def git(self, *args: str, stdin: bytes = b"", config: tuple[str, ...] = ()) -> bytes:
        kept = {name: os.environ[name] for name in _IDENTITY if name in os.environ}
        return run_git((*READ_ONLY, *config), *args, env=clean_environment() | kept, stdin=stdin, cwd=self.folder)

    def ask(self, *args: str) -> str:
        """One line of output, '' where git says no."""
        try:
            return text_of(self.git(*args)).strip()
        except GitFailed:
            return ""


@dataclass(frozen=True)
class Start:
    """The commit that is built on."""

    commit: str
    existed: bool
    """the branch was there, and this is its tip"""
    is_base: bool
    """it is a commit that the mirror took its base from"""


@dataclass(frozen=True)
class Written:
    """One commit that was made."""

    commit: str
    name: str
    files: tuple[str, ...]
    """from the repository's root"""


@dataclass(frozen=True)
class Draft:
    """Trees that are ready to be committed."""

    start: Start
    exact: bool
    """the branch starts from the very files that the change was proven on"""
    steps: tuple[tuple[str, Entries, Entries], ...]
    """(name, files before, files after) within the workload's folder; steps that change nothing are left out"""
    alone: bool
    """each change is a commit of its own; False: they do not separate, and one commit has them all"""


def find_target(folder: Path, workload_key: str, workload_folder: str, commits: Sequence[str]) -> Target:
    """The repository at a folder (a checkout, a worktree, a bare one) that holds the workload of that key.

    `commits`: those of the user that the mirror knows. RepositoryError when it is not that repository, or gone.
    """
    if not folder.is_dir():
        raise RepositoryError(f"the repository at {folder} is gone; name where it is now with --repo PATH.")
    probe = Target(folder, "", folder, "")
    git_dir = probe.ask("rev-parse", "--absolute-git-dir")
    if not git_dir:
        raise RepositoryError(f"{folder} is not a git repository; name the one to write into with --repo PATH.")
    here = probe.ask("rev-parse", "--show-prefix")
    parts = PurePosixPath(workload_folder).parts
    places = dict.fromkeys([here, "", *("/".join(parts[n:]) + "/" for n in range(len(parts) - 1, 0, -1))])
    known = next((c for c in commits if probe.ask("cat-file", "-t", c) == "commit"), "HEAD")
    roots = probe.ask("rev-list", "--first-parent", "--max-parents=0", known).split()[-1:]
    for place in places:
        if any(hashlib.sha256(f"{place}\n{root}".encode()).hexdigest()[:16] == workload_key for root in roots):
            objects = Path(probe.ask("rev-parse", "--git-path", "objects"))
            return Target(folder, place, (folder / objects).resolve(), probe.ask("rev-parse", "--show-object-format"))
    raise RepositoryError(f"{folder} is not the repository of this workload; name the right one with --repo PATH.")


def known_commits(mirror: Path, base: str) -> list[str]:
    """Commits of the user whose program is the mirror's `base`; for a snapshot of changes, those it was taken on."""
    listed = text_of(_mirror_git(mirror, "for-each-ref", "--format=%(objectname) %(refname)", _SEEN.rstrip("/")))
    refs = [line.split(" ", 1) for line in listed.splitlines()]
    parents = text_of(_mirror_git(mirror, "rev-list", "--parents", "-n1", base)).split()[1:]
    for wanted in ([base], parents):
        if found := [name.removeprefix(_SEEN) for commit, name in refs if commit in wanted]:
            return found
    return []


def find_start(target: Target, branch: str | None, commits: Sequence[str]) -> Start:
    """The tip of the branch, else the commit that was measured, else what is checked out.

    UsageError for a name that git does not take and a branch that is checked out.
    """
    base = next((c for c in commits if target.ask("cat-file", "-t", c) == "commit"), "")
    if branch is not None:
        ref = f"refs/heads/{branch}"
        if branch.startswith("-") or branch in ("HEAD", "@") or _refused(target, ref):
            raise UsageError(f"{branch!r} is no name for a branch; give one like rsi/faster.")
        if place := _checked_out(target, ref):
            raise UsageError(f"the branch {branch} is checked out in {place}, and files there are not touched; give another name.")
        if tip := target.ask("rev-parse", "--verify", "-q", f"{ref}^{{commit}}"):
            return Start(tip, True, tip in commits)
    start = base or target.ask("rev-parse", "--verify", "-q", "HEAD^{commit}")
    if not start:
        raise RepositoryError(f"{target.folder} has neither the commit that was measured nor one that is checked out.")
    return Start(start, False, bool(base))


def identity(target: Target) -> dict[str, str]:
    """Variables for commit-tree with the user's own name; UsageError where git knows none."""
    found: dict[str, str] = {}
    for role in ("AUTHOR", "COMMITTER"):
        try:
            text = text_of(target.git("var", f"GIT_{role}_IDENT", config=("-c", "user.useConfigOnly=true"))).strip()
        except GitFailed as error:
            raise UsageError(
                "git does not know who writes these commits; say it with `git config user.name NAME` and "
                "`git config user.email ADDRESS`."
            ) from error
        name, _, rest = text.rpartition(" <")
        mail, _, _ = rest.partition("> ")
        found |= {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": mail}
    return found


@dataclass
class Scratch:
    """A repository of our own for a moment, which reads the objects of mirror and target."""

    git_dir: Path
    env: dict[str, str]
    target: Target
    _cache: dict[str, Entries] = field(default_factory=dict)

    def git(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        options = (*SAFE, "--git-dir", str(self.git_dir))
        return run_git(options, *args, env=self.env | dict(env or {}), stdin=stdin)

    def entries(self, tree: str) -> Entries:
        """What lies in a commit or tree."""
        if tree not in self._cache:
            found: Entries = {}
            for line in filter(None, self.git("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")):
                head, path = line.split(b"\t", 1)
                mode, _, name = head.decode().split(" ")
                found[text_of(path)] = (mode, name)
            self._cache[tree] = found
        return dict(self._cache[tree])

    def blob(self, name: str) -> bytes:
        return self.git("cat-file", "blob", name)

    def store(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", "--no-filters", stdin=content).decode().strip()


@contextmanager
def scratch(mirror: Path, target: Target) -> Iterator[Scratch]:
    """A scratch repository that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rsi-apply-") as folder:
        git_dir = Path(folder) / "scratch.git"
        run_git(SAFE, "init", "--bare", "--quiet", "--template=", f"--object-format={target.object_format}", str(git_dir),
                env=isolated_environment())  # fmt: skip
        (git_dir / "info").mkdir(exist_ok=True)
        (git_dir / "info" / "attributes").write_text("* -text !eol -ident -filter !working-tree-encoding !diff !merge\n")
        shallow = target.objects.parent / "shallow"
        if shallow.is_file():
            (git_dir / "shallow").write_bytes(shallow.read_bytes())
        objects = ":".join(_quoted(str(place)) for place in (mirror.absolute() / "objects", target.objects))
        yield Scratch(git_dir, isolated_environment() | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}, target)


def draft(room: Scratch, start: Start, base: str, proven: str, pieces: Sequence[Piece]) -> Draft:
    """Lay the pieces on the start, one after the other. PatchError names the file that does not fit.

    `base` and `proven`: the mirror's commits without and with all changes of commits. When the start has the
    base's files, the result has exactly those of `proven`, and the edits of files on top.
    """
    inside = f"{start.commit}:{room.target.prefix.rstrip('/')}" if room.target.prefix else start.commit
    try:
        files = room.entries(inside)
    except GitFailed as error:
        raise RepositoryError(f"there is no folder {room.target.prefix} in {start.commit[:12]}.") from error
    commits = [piece for piece in pieces if piece.edit is None]
    edits = [piece for piece in pieces if piece.edit is not None]
    original, wanted = room.entries(base), room.entries(proven)
    alone = _lands_on(room, original, wanted, commits)
    if not alone:
        commits = [Piece("; ".join(piece.name for piece in commits), base, proven)] if commits else []
    steps = []
    for piece in (*commits, *edits):
        after = _laid(room, files, piece)
        if after != files:
            steps.append((piece.name, files, after))
        files = after
    return Draft(start, room.entries(inside) == original, tuple(steps), alone)


def commit(room: Scratch, plan: Draft, who: Mapping[str, str], messages: Sequence[str]) -> list[Written]:
    """Commits for the steps of a draft, in the scratch repository alone."""
    made: list[Written] = []
    parent = plan.start.commit
    prefix = room.target.prefix
    index = {"GIT_INDEX_FILE": str(room.git_dir / "index")}
    room.git("read-tree", parent, env=index)
    for (name, before, after), message in zip(plan.steps, messages, strict=True):
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        gone = [b"0 " + b"0" * len(parent) + b"\t" + bytes_of(prefix + path) for path in changed if path not in after]
        there = [f"{after[path][0]} {after[path][1]}\t".encode() + bytes_of(prefix + path) for path in changed if path in after]
        room.git("update-index", "-z", "--index-info", stdin=b"".join(line + b"\0" for line in gone + there), env=index)
        tree = room.git("write-tree", "--missing-ok", env=index).decode().strip()
        parent = room.git("commit-tree", tree, "-p", parent, env=who, stdin=bytes_of(message)).decode().strip()
        made.append(Written(parent, name, tuple(prefix + path for path in changed)))
    return made


def publish(room: Scratch, plan: Draft, made: Sequence[Written], branch: str, why: str) -> None:
    """Bring the commits into the user's repository and move the branch, from where it was seen."""
    tip = made[-1].commit
    pack = room.git("pack-objects", "--revs", "--stdout", "-q", stdin=f"{tip}\n^{plan.start.commit}\n".encode())
    room.target.git("unpack-objects", "-q", stdin=pack)
    before = plan.start.commit if plan.start.existed else "0" * len(tip)
    try:
        room.target.git("update-ref", "-m", why, f"refs/heads/{branch}", tip, before)
    except GitFailed as error:
        raise RepositoryError(f"the branch {branch} can't be written, or moved meanwhile; nothing was changed ({error}).") from error


def write_series(room: Scratch, plan: Draft, made: Sequence[Written], folder: Path) -> list[Path]:
    """Numbered patches in a new or empty folder, which `git am --keep-cr` takes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; give a new one, so that old patches are not taken for new ones.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        room.git("format-patch", "-q", "--binary", "--full-index", "--no-signature", "--no-renames", "--no-stat", "--src-prefix=a/",
                 "--dst-prefix=b/", "-o", str(folder.absolute()), f"{plan.start.commit}..{made[-1].commit}")  # fmt: skip
    except (OSError, GitFailed) as error:
        raise UsageError(f"the patches can't be written to {folder}: {error}.") from error
    return sorted(folder.glob("*.patch"))


# --- pieces -------------------------------------------------------------------------------------------


def _lands_on(room: Scratch, files: Entries, wanted: Entries, pieces: Sequence[Piece]) -> bool:
    """Do the pieces, one after the other, give exactly the wanted files?"""
    try:
        for piece in pieces:
            files = _laid(room, files, piece)
    except PatchError:
        return False
    return files == wanted


def _laid(room: Scratch, files: Entries, piece: Piece) -> Entries:
    if piece.edit is None:
        return _merged(room, room.entries(piece.before), files, room.entries(piece.after), piece.name)
    if piece.path not in files or not files[piece.path][0].startswith("100"):
        raise PatchError(f"{piece.name}: there is no plain file {piece.path} to set it in; nothing was written.")
    mode, name = files[piece.path]
    return files | {piece.path: (mode, room.store(piece.edit(room.blob(name))))}


def _merged(room: Scratch, base: Entries, ours: Entries, theirs: Entries, name: str) -> Entries:
    """Three-way merge of files by path; PatchError at the first that conflicts."""
    result: Entries = {}
    for path in sorted(base.keys() | ours.keys() | theirs.keys()):
        was, is_, wanted = base.get(path), ours.get(path), theirs.get(path)
        chosen = is_ if wanted in (was, is_) else wanted if is_ == was else _both(room, path, was, is_, wanted, name)
        if chosen is not None:
            result[path] = chosen
    for path in result:
        above = next((str(p) for p in PurePosixPath(path).parents if str(p) in result), None)
        if above is not None:
            raise PatchError(f"{name} conflicts with the branch: {above} is a file on one side and a folder on the other; nothing was written.")
    return result


def _both(
    room: Scratch, path: str, was: tuple[str, str] | None, ours: tuple[str, str] | None, theirs: tuple[str, str] | None, name: str
) -> tuple[str, str]:
    """A file that both sides changed, merged by lines."""
    if was is None or ours is None or theirs is None:
        what = "added on both sides" if was is None else "deleted on one side and changed on the other"
        raise PatchError(f"{name} conflicts with the branch: {path} was {what}; nothing was written.")
    if not all(mode.startswith("100") for mode, _ in (was, ours, theirs)):
        raise PatchError(f"{name} conflicts with the branch: {path} is a link or a submodule on one side; nothing was written.")
    mode = theirs[0] if ours[0] == was[0] else ours[0]
    with tempfile.TemporaryDirectory(dir=room.git_dir) as folder:
        places = [Path(folder) / side for side in ("ours", "base", "theirs")]
        for place, (_, blob) in zip(places, (ours, was, theirs), strict=True):
            place.write_bytes(room.blob(blob))
        done = subprocess.run(
            ["git", "merge-file", "-p", "-q", *map(str, places)], env=isolated_environment(), capture_output=True, check=False
        )
    if done.returncode != 0:
        raise PatchError(f"{name} conflicts with the branch: both change the same lines of {path}; nothing was written.")
    return mode, room.store(done.stdout)


def _refused(target: Target, ref: str) -> bool:
    try:
        target.git("check-ref-format", ref)
    except GitFailed:
        return True
    return False


def _checked_out(target: Target, ref: str) -> str:
    """The worktree in which a branch is checked out; '' when none has it."""
    place = ""
    for line in target.git("worktree", "list", "--porcelain", "-z").split(b"\0"):
        word, _, rest = text_of(line).partition(" ")
        if word == "worktree":
            place = rest
        elif word == "bare":
            place = ""
        elif word == "branch" and rest == ref:
            return place
    return ""


def _mirror_git(mirror: Path, *args: str) -> bytes:
    return run_git((*SAFE, "--git-dir", str(mirror.absolute())), *args, env=isolated_environment())


def _quoted(path: str) -> str:
    """A path in the quoting of GIT_ALTERNATE_OBJECT_DIRECTORIES, where a colon would separate."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

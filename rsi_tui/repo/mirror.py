"""The mirror: a bare repository of rsi's own that holds a workload's history and every candidate.

Promises: the user's checkout, index, refs and objects are never written; a mirror is complete (it
borrows nothing from the user's repository) or absent; candidates are commits on refs under
refs/rsi/; the same parent, content and message give the same commit, in any process. Where the
workload is a subfolder, the mirror holds that subtree alone, with the history of its first parents
in one line. Texts keep their bytes: no filter, no change of line endings, in either direction.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.contract.scope import matches_any, plain_path
from rsi_tui.errors import PatchError, RepositoryError, UsageError
from rsi_tui.locations import Home
from rsi_tui.repo.git import SAFE, GitFailed, bytes_of, isolated_environment, run_git, text_of
from rsi_tui.repo.history import import_history
from rsi_tui.repo.source import LooseFile, Source, file_mode, find_source, link_target

_WHO = "rsi <rsi@localhost>"
_ATTRIBUTES = "* -text !eol -ident -filter !working-tree-encoding diff !merge\n"
_INDEX = "rsi-index-"
_INDEX_S = 3600.0
"""an index that is older belongs to no process any more: each lives for one command"""
_SHOWN = 5
"""files named in a sentence before the rest are counted"""


def workload_key(source: Source) -> str:
    """What a workload is called in every home: hash of its place in its repository and of that one's first commit."""
    return hashlib.sha256(f"{source.prefix}\n{source.root}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ChangedPath:
    """One path that differs between two commits."""

    path: str
    status: str
    """A added, M modified, D deleted, T type changed; a rename is a D and an A"""
    mode_before: str
    """000000 where it was not there; 120000 is a link, 160000 a submodule"""
    mode_after: str


@dataclass(frozen=True)
class Mirror:
    """One workload's mirror at the commit that a campaign starts from."""

    git_dir: Path
    key: str
    """stable over clones and checkouts: hash of the workload's place and of its history's first commit"""
    base: str
    """commit of the user's program as it is to be measured"""
    notes: tuple[str, ...] = ()
    """sentences for the person: what was left out or taken along"""

    @classmethod
    def open(
        cls,
        home: Home,
        folder: Path,
        *,
        snapshot: bool = False,
        committed: bool = False,
        matters: Callable[[str], bool] | None = None,
    ) -> Mirror:
        """The up-to-date mirror of the workload in a folder; made when there is none.

        `matters` says which untracked files belong to the program besides *.py (for example those in
        the contract's scope). Raises RepositoryError, one sentence, for a repository that can't be
        used, and for uncommitted changes unless `snapshot` (taken as a commit of the mirror) or
        `committed` (left out, with a note) says what to do with them.
        """
        if snapshot and committed:
            raise UsageError("give --snapshot or --committed, not both.")
        source = find_source(folder.parent if folder.name == "workload.toml" else folder)
        if modules := source.submodules():
            raise RepositoryError(
                f"{source.folder} contains submodules ({_some(modules)}), which can't be mirrored; "
                "copy their files into the repository, or leave them out of the workload's folder."
            )
        loose = _loose(source, matters)
        if loose and not (snapshot or committed):
            raise RepositoryError(
                f"{source.folder} has uncommitted changes ({_some([file.path for file in loose])}): commit them, "
                "take them along with --snapshot, or leave them out with --committed."
            )
        key = workload_key(source)
        git_dir = home.mirrors / f"{key}.git"
        with _locked(home.mirrors, key):
            _ensure(git_dir, source)
            _sweep(git_dir)
            base = import_history(git_dir, source)
            mirror = cls(git_dir, key, base)
            if not loose:
                return mirror
            names = _some([file.path for file in loose])
            if committed:
                return cls(git_dir, key, base, (f"Uncommitted changes were left out: {names}.",))
            base = mirror._snapshot(source, loose)
            return cls(git_dir, key, base, (f"Uncommitted changes were taken along as commit {base[:12]}: {names}.",))

    # --- reading ------------------------------------------------------------------------------

    def read_files(self, commit: str, patterns: Iterable[str] | None = None) -> dict[str, str]:
        """Regular files of a commit whose path matches a glob (all for None): path -> text.

        UTF-8 with surrogateescape, line ends untouched, so that the bytes can be had back.
        """
        wanted = None if patterns is None else tuple(patterns)
        listed = [
            (path, blob)
            for path, (mode, blob) in self._entries(commit).items()
            if mode.startswith("100") and (wanted is None or matches_any(wanted, path))
        ]
        answer = self._git("cat-file", "--batch", stdin="".join(f"{blob}\n" for _, blob in listed).encode())
        files, at = {}, 0
        for path, _ in listed:
            start = answer.index(b"\n", at) + 1
            size = int(answer[at : start - 1].split()[2])
            files[path] = text_of(answer[start : start + size])
            at = start + size + 1
        return files

    def modes(self, commit: str) -> dict[str, str]:
        """path -> git's mode of everything in a commit: 120000 is a link, 160000 a submodule."""
        return {path: mode for path, (mode, _) in self._entries(commit).items()}

    def diff(self, a: str, b: str) -> str:
        """Unified diff from commit a to commit b; renames as a deletion and an addition, binary files as text."""
        return text_of(self._git("diff-tree", "-r", "-p", "--text", "--no-renames", "--no-ext-diff", "--no-textconv",
                                 "--no-color", "--full-index", "--src-prefix=a/", "--dst-prefix=b/", a, b))  # fmt: skip

    def changed_paths(self, a: str, b: str) -> tuple[ChangedPath, ...]:
        """Paths that differ between two commits, links and submodules by their modes."""
        parts = self._git("diff-tree", "-r", "-z", "--raw", "--no-renames", a, b).split(b"\0")
        found = []
        for head, path in zip(parts[0::2], parts[1::2], strict=False):
            before, after, _, _, status = head.decode().lstrip(":").split(" ")
            found.append(ChangedPath(text_of(path), status, before, after))
        return tuple(found)

    def refs(self, prefix: str = "refs/rsi/") -> dict[str, str]:
        """Refs below a prefix: name -> commit."""
        listed = self._git("for-each-ref", "--format=%(objectname) %(refname)", prefix.rstrip("/"))
        return {name: commit for commit, name in (line.split(" ", 1) for line in text_of(listed).splitlines())}

    def export(self, commit: str, dest: Path) -> None:
        """Write a commit's tree into an empty or new folder: plain files and links, no .git.

        Raises RepositoryError when the folder holds something already.
        """
        dest.mkdir(parents=True, exist_ok=True)
        if any(dest.iterdir()):
            raise RepositoryError(f"{dest} is not empty; an export needs a folder of its own.")
        with self._index(commit) as env:
            self._git("--work-tree", str(dest.absolute()), "checkout-index", "--all", "--quiet", env=env, cwd=dest)

    # --- writing ------------------------------------------------------------------------------

    def commit_files(self, parent: str, files: Mapping[str, str | None], message: str, ref: str) -> str:
        """Commit texts (None deletes) on top of a parent, set the ref to it, return the commit.

        Modes are kept, new files are plain ones. Nothing changed: the parent itself. Raises PatchError
        for a path that is not plain, or that is or goes through a link.
        """
        before = self._entries(parent)
        changes: list[tuple[str, str, bytes | None]] = []
        for path, text in sorted(files.items()):
            _check_path(path, files, before)
            mode = before[path][0] if path in before else "100644"
            changes.append((path, mode, None if text is None else bytes_of(text)))
        commit = self._commit(parent, changes, message)
        self.set_ref(ref, commit)
        return commit

    def set_ref(self, ref: str, commit: str) -> None:
        """Point a ref under refs/rsi/ at a commit."""
        if not ref.startswith("refs/rsi/"):
            raise RepositoryError(f"{ref} lies outside refs/rsi/, where all refs of rsi belong.")
        self._git("update-ref", ref, commit)

    def unlock(self, campaign: str) -> None:
        """Take away the locks that a killed git left on a campaign's refs; only for who holds the campaign's journal."""
        _remove_locks(self.git_dir / "refs" / "rsi" / campaign)

    # --- pieces -------------------------------------------------------------------------------

    def _git(
        self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> bytes:
        options = (*SAFE, "--git-dir", str(self.git_dir.absolute()))
        return run_git(options, *args, env=isolated_environment() | dict(env or {}), stdin=stdin, cwd=cwd)

    def _entries(self, commit: str) -> dict[str, tuple[str, str]]:
        """path -> (mode, object) of everything in a commit."""
        entries = {}
        for line in filter(None, self._git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")):
            head, path = line.split(b"\t", 1)
            mode, _, name = head.decode().split(" ")
            entries[text_of(path)] = (mode, name)
        return entries

    @contextmanager
    def _index(self, commit: str) -> Iterator[dict[str, str]]:
        """Environment with an index of its own, filled from a commit."""
        with tempfile.TemporaryDirectory(prefix=_INDEX, dir=self.git_dir) as folder:
            env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._git("read-tree", commit, env=env)
            yield env

    def _commit(self, parent: str, changes: list[tuple[str, str, bytes | None]], message: str) -> str:
        """A commit of (path, mode, content) on a parent, or the parent when its tree stays the same."""
        lines = []
        for path, mode, content in changes:
            if content is None:
                lines.append(b"0 " + b"0" * len(parent) + b"\t" + bytes_of(path))
                continue
            blob = self._git("hash-object", "-w", "--stdin", "--no-filters", stdin=content).strip()
            lines.append(mode.encode() + b" " + blob + b"\t" + bytes_of(path))
        with self._index(parent) as env:
            # Deletions first, so that a folder may take the place of a deleted file and the reverse.
            lines.sort(key=lambda line: not line.startswith(b"0 "))
            self._git("update-index", "-z", "--index-info", env=env, stdin=b"".join(line + b"\0" for line in lines))
            tree = self._git("write-tree", env=env).decode().strip()
        old_tree, when = self._git("show", "-s", "--no-show-signature", "--format=%T %ct", parent).decode().split()
        if tree == old_tree:
            return parent
        name, _, mail = _WHO.partition(" ")
        who = {"NAME": name, "EMAIL": mail.strip("<>"), "DATE": f"@{int(when) + 1} +0000"}
        env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
        return self._git("commit-tree", tree, "-p", parent, env=env, stdin=bytes_of(message)).decode().strip()

    def _snapshot(self, source: Source, loose: tuple[LooseFile, ...]) -> str:
        """The checkout's uncommitted changes as a commit on base, as git itself would have stored them."""
        changes: list[tuple[str, str, bytes | None]] = []
        for file in loose:
            path = source.folder / file.path
            if file.deleted:
                changes.append((file.path, "0", None))
            elif path.is_symlink():
                changes.append((file.path, "120000", link_target(path)))
            else:
                changes.append((file.path, file_mode(path), _cleaned(source, file.path, path.read_bytes(), self)))
        commit = self._commit(self.base, changes, "Uncommitted changes of the checkout\n")
        self.set_ref(f"refs/rsi/snapshots/{commit}", commit)
        return commit


def _cleaned(source: Source, path: str, content: bytes, mirror: Mirror) -> bytes:
    """A file's content after the user's own line-ending and filter settings, written to the mirror alone."""
    env = {"GIT_OBJECT_DIRECTORY": str((mirror.git_dir / "objects").absolute())}
    blob = source.git("hash-object", "-w", "--stdin", f"--path={path}", stdin=content, env=env)
    return mirror._git("cat-file", "blob", blob.decode().strip())


def _loose(source: Source, matters: Callable[[str], bool] | None) -> tuple[LooseFile, ...]:
    """Uncommitted files that belong to the program; the contract itself never counts."""
    return tuple(
        file
        for file in source.loose_files()
        if file.path != "workload.toml" and (file.tracked or _belongs(source.folder, file.path, matters))
    )


def _belongs(folder: Path, path: str, matters: Callable[[str], bool] | None) -> bool:
    parts = Path(path).parts
    environment = any((folder.joinpath(*parts[:n]) / "pyvenv.cfg").is_file() for n in range(1, len(parts)))
    return not environment and (path.endswith(".py") or (matters is not None and matters(path)))


def _check_path(path: str, files: Mapping[str, str | None], before: Mapping[str, tuple[str, str]]) -> None:
    if not plain_path(path):
        raise PatchError(f"{path!r} is not a plain path inside the program.")
    if path in before and not before[path][0].startswith("100"):
        raise PatchError(f"{path} is a link or a submodule, and only plain files can be changed.")
    parts = path.split("/")
    for above in ("/".join(parts[:n]) for n in range(1, len(parts))):
        if above in before and files.get(above, "") is not None:
            raise PatchError(f"{path} lies below {above}, which is a file, a link or a submodule.")


def _some(names: Iterable[str]) -> str:
    """Names for a sentence: the first few, then how many more; control characters escaped."""
    shown = [name if name.isprintable() else repr(name) for name in names]
    more = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _locked(folder: Path, key: str) -> Iterator[None]:
    """One process at a time makes or updates a mirror."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(git_dir: Path) -> None:
    """Take away what killed processes left of work that is done under the mirror's lock, which is ours, and old indexes."""
    for refs in ("refs/rsi/source", "refs/rsi/snapshots"):
        _remove_locks(git_dir / refs)
    for name in ("refs/rsi/import.lock", "packed-refs.lock"):
        (git_dir / name).unlink(missing_ok=True)
    for left in git_dir.glob(f"{_INDEX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _INDEX_S:
                shutil.rmtree(left)


def _remove_locks(refs: Path) -> None:
    for lock in refs.rglob("*.lock"):
        lock.unlink(missing_ok=True)


def _ensure(git_dir: Path, source: Source) -> None:
    """Make the mirror, complete with the current history, in a folder beside it, then give it its name."""
    for left in git_dir.parent.glob(f".{git_dir.name}-*"):
        shutil.rmtree(left)  # what a killed process left; the lock is ours
    if git_dir.is_dir():
        return
    fresh = Path(tempfile.mkdtemp(prefix=f".{git_dir.name}-", dir=git_dir.parent))
    try:
        run_git(SAFE, "init", "--bare", "--quiet", f"--object-format={source.object_format}", "--template=",
                str(fresh), env=isolated_environment())  # fmt: skip
        (fresh / "info").mkdir(exist_ok=True)
        (fresh / "info" / "attributes").write_text(_ATTRIBUTES)
    except (GitFailed, OSError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise RepositoryError(f"no mirror can be made in {git_dir.parent}: is the disk full or read-only? ({error})") from error
    try:
        import_history(fresh, source)
        fresh.replace(git_dir)
    except GitFailed as error:
        raise RepositoryError(
            f"the history of {source.folder} can't be read; `git fsck` there says more ({error})."
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)

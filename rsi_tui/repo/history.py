"""Bringing a workload's history into its mirror, completely and without touching the user's repository.

Objects are read through the user's object folder as an alternate that is named in our environment
only, and packed into the mirror. A whole repository keeps its commits as they are; a subfolder's
history is rewritten into one line of commits with the same authors, dates and messages, so that the
result is the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

from rsi_tui.repo.git import SAFE, GitFailed, bytes_of, isolated_environment, run_git
from rsi_tui.repo.source import Source

_SEEN = "refs/rsi/source/"
"""refs/rsi/source/HEAD-OF-THE-USER -> its commit in the mirror"""

_IMPORT = "refs/rsi/import"
"""where fast-import writes; gone when it is done"""


def import_history(git_dir: Path, source: Source) -> str:
    """The commit in the mirror of the user's current commit, all objects copied; idempotent."""
    seen = f"{_SEEN}{source.head}"
    try:
        return _git(git_dir, source, "rev-parse", "--verify", "-q", f"{seen}^{{commit}}", alone=True).decode().strip()
    except GitFailed:
        pass
    base = _linear(git_dir, source) if source.prefix else source.head
    known = _git(git_dir, source, "for-each-ref", "--format=^%(objectname)").decode()
    _git(git_dir, source, "pack-objects", "--revs", "--non-empty", "--quiet", "--delta-base-offset",
         str(git_dir.absolute() / "objects" / "pack" / "pack"), stdin=f"{base}\n{known}".encode())  # fmt: skip
    # From here on the mirror must stand alone: this fails where an object did not come along.
    _git(git_dir, source, "rev-list", "--objects", "--quiet", base, "--not", "--all", alone=True)
    _git(git_dir, source, "update-ref", seen, base, alone=True)
    return base


def _linear(git_dir: Path, source: Source) -> str:
    """The subtree's history as one line of commits; each keeps its author, date and message."""
    commits = source.history()
    if not commits or _tree(source, commits[-1]) != source.tree:
        commits.append(source.head)  # the folder came with a merge that rev-list's simplification skips
    shown = source.git("log", "--no-walk=unsorted", "--stdin", "-z", "--no-show-signature", "--encoding=UTF-8",
                       "--format=%an%n%ae%n%at%n%cn%n%ce%n%ct%n%B", stdin="\n".join(commits).encode())  # fmt: skip
    trees = source.git("cat-file", "--batch-check=%(objectname)",
                       stdin=b"".join(b"%s:%s\n" % (c.encode(), bytes_of(source.prefix.rstrip("/"))) for c in commits))  # fmt: skip
    stream, previous = [], ""
    for number, (commit, tree, text) in enumerate(
        zip(commits, trees.split(b"\n"), shown.split(b"\0"), strict=False), 1
    ):
        if tree.endswith(b" missing") or not commit:
            continue  # the folder was not there at that commit
        stream.append(_commit(number, tree, text, previous))
        previous = f":{number}"
    _git(git_dir, source, "fast-import", "--quiet", "--force", "--done", stdin=b"".join((*stream, b"done\n")))
    tip = _git(git_dir, source, "rev-parse", "--verify", _IMPORT).decode().strip()
    _git(git_dir, source, "update-ref", "-d", _IMPORT)
    return tip


def _commit(number: int, tree: bytes, text: bytes, previous: str) -> bytes:
    """One commit in fast-import's language, whose root tree is the given one."""
    author, mail, at, committer, committer_mail, committed_at, message = text.split(b"\n", 6)
    return b"".join((
        b"commit %s\nmark :%d\n" % (_IMPORT.encode(), number),
        b"author %s <%s> %s +0000\n" % (_name(author), _name(mail), at),
        b"committer %s <%s> %s +0000\n" % (_name(committer), _name(committer_mail), committed_at),
        b"data %d\n%s\n" % (len(message), message),
        b"from %s\n" % previous.encode() if previous else b"",
        b'M 040000 %s ""\n\n' % tree,
    ))  # fmt: skip


def _name(text: bytes) -> bytes:
    """A name or address without what would end it."""
    return text.translate(None, b"<>\n").strip()


def _tree(source: Source, commit: str) -> str:
    try:
        return source.git("rev-parse", "--verify", "-q", f"{commit}:{source.prefix.rstrip('/')}").decode().strip()
    except GitFailed:
        return ""


def _git(git_dir: Path, source: Source, *args: str, stdin: bytes = b"", alone: bool = False) -> bytes:
    """git in the mirror, with the user's objects in reach unless `alone`."""
    env = isolated_environment()
    if not alone:
        env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(str(source.objects))
    return run_git((*SAFE, "--git-dir", str(git_dir.absolute())), *args, env=env, stdin=stdin)


def _quoted(path: str) -> str:
    """A path in the quoting of GIT_ALTERNATE_OBJECT_DIRECTORIES, where a colon would separate."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

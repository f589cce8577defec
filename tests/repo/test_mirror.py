"""The mirror: complete, deterministic, and never a hand on the user's repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsi_tui.errors import PatchError, RepositoryError, RsiError, UsageError
from rsi_tui.locations import Home
from rsi_tui.repo.mirror import ChangedPath, Mirror
from rsi_tui.repo.patch import apply_diff

ODD = {
    "plain.py": "x = 1\n",
    "with space.py": "y\n",
    'quo"te.py': "q\n",
    "tab\there": "t\n",
    "a -> b": "arrow\n",
    "naïve/früh.py": "ü\r\nö\r\n",
    "no newline": "end",
    "-dash": "d\n",
}


def git(folder: Path, *args: str) -> str:
    who = (
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.quotePath=false",
    )
    return subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path, message: str = "change") -> str:
    git(folder, "add", "-A", ".")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two commits; a workload in the subfolder work/load, something else beside it."""
    root = tmp_path / "user's repo"
    load = root / "work" / "load"
    load.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "README").write_text("outside\n")
    for name, text in ODD.items():
        (load / name).parent.mkdir(exist_ok=True)
        (load / name).write_bytes(text.encode())
    (load / "run.sh").write_text("#!/bin/sh\n")
    (load / "run.sh").chmod(0o755)
    (load / "link").symlink_to("plain.py")
    commit_all(root, "first")
    (load / "plain.py").write_text("x = 2\n")
    commit_all(root, "second\n\nwith a body")
    (root / "README").write_text("outside, changed\n")
    commit_all(root, "elsewhere")
    return root


def state(root: Path) -> dict[str, bytes | str]:
    """Everything under a folder: bytes, and times of the index."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        elif path.is_file():
            found[str(path)] = path.read_bytes()
            found[f"{path}:when"] = str(path.stat().st_mtime_ns)
    return found


# --- opening ----------------------------------------------------------------------------------


def test_only_the_subtree_is_mirrored_with_its_own_history(home: Home, repo: Path) -> None:
    before = state(repo)
    mirror = Mirror.open(home, repo / "work" / "load")
    assert state(repo) == before
    files = mirror.read_files(mirror.base)
    assert files == {**ODD, "plain.py": "x = 2\n", "run.sh": "#!/bin/sh\n"}
    log = git(mirror.git_dir, "log", "--format=%s|%an", mirror.base).splitlines()
    assert log == ["second|A", "first|A"]
    assert mirror.notes == ()


def test_a_whole_repository_keeps_its_commits(home: Home, repo: Path) -> None:
    mirror = Mirror.open(home, repo)
    assert mirror.base == git(repo, "rev-parse", "HEAD").strip()


def test_the_mirror_lives_on_without_the_users_repository(home: Home, repo: Path) -> None:
    mirror = Mirror.open(home, repo / "work" / "load")
    repo.rename(repo.with_name("gone"))
    git(mirror.git_dir, "fsck", "--full", "--strict")
    assert mirror.read_files(mirror.base, ["plain.py"]) == {"plain.py": "x = 2\n"}


def test_opening_again_is_idempotent_and_follows_new_commits(home: Home, repo: Path) -> None:
    load = repo / "work" / "load"
    first = Mirror.open(home, load)
    assert Mirror.open(home, load) == first
    git(repo, "gc", "-q")
    (load / "plain.py").write_text("x = 3\n")
    commit_all(repo, "third")
    later = Mirror.open(home, load)
    assert (later.key, later.git_dir) == (first.key, first.git_dir)
    assert git(later.git_dir, "rev-parse", f"{later.base}^").strip() == first.base
    repo.rename(repo.with_name("gone"))
    git(later.git_dir, "fsck", "--full", "--strict")


def test_key_and_base_are_the_same_for_every_clone(home: Home, repo: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repo), str(clone))
    one = Mirror.open(home, repo / "work" / "load")
    two = Mirror.open(Home(tmp_path / "other"), clone / "work" / "load")
    assert (one.key, one.base) == (two.key, two.base)
    assert Mirror.open(home, repo).key != one.key


def test_a_merge_that_brought_the_folder_is_followed(home: Home, repo: Path) -> None:
    git(repo, "checkout", "-q", "-b", "side", "HEAD~1")
    (repo / "work" / "load" / "plain.py").write_text("x = 9\n")
    commit_all(repo, "on a side")
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "join", "side")
    mirror = Mirror.open(home, repo / "work" / "load")
    assert mirror.read_files(mirror.base, ["plain.py"]) == {"plain.py": "x = 9\n"}
    assert git(mirror.git_dir, "log", "--format=%s", mirror.base).splitlines() == ["join", "second", "first"]


def test_worktrees_and_colons_in_paths_are_fine(home: Home, repo: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree: two"
    git(repo, "worktree", "add", "-q", "--detach", str(tree))
    moved = repo.with_name('a:b "c"')
    repo.rename(moved)
    git(moved, "worktree", "repair", str(tree))
    assert Mirror.open(home, tree / "work" / "load").base == Mirror.open(home, moved / "work" / "load").base


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A user's configuration in which everything that could interfere does."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {ran}\ncat\n")
    program.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(
        f"[core]\nautocrlf = true\nhooksPath = {tmp_path}\nfsmonitor = {program}\nquotePath = true\n"
        f"[diff]\nexternal = {program}\nnoprefix = true\nrenames = copies\nmnemonicPrefix = true\n"
        f"[commit]\ngpgSign = true\n[gpg]\nprogram = {program}\n[log]\nshowSignature = true\ndate = relative\n"
        "[color]\nui = always\n[status]\nrelativePaths = true\nshowUntrackedFiles = no\n[i18n]\nlogOutputEncoding = latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent/index")
    yield ran


def test_no_configuration_or_environment_of_the_user_interferes(
    home: Home, repo: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    quiet = Mirror.open(Home(tmp_path / "quiet"), repo / "work" / "load")
    ran = request.getfixturevalue("hostile")
    mirror = Mirror.open(home, repo / "work" / "load", committed=True)
    assert mirror.base == quiet.base
    commit = mirror.commit_files(mirror.base, {"plain.py": "x = 5\n"}, "c", "refs/rsi/c1")
    assert "a/plain.py" in mirror.diff(mirror.base, commit)
    mirror.export(commit, tmp_path / "out")
    assert (tmp_path / "out" / "naïve" / "früh.py").read_bytes() == "ü\r\nö\r\n".encode()
    assert not ran.exists()


# --- refusals ---------------------------------------------------------------------------------


def test_uncommitted_changes_are_refused_by_name_with_two_ways_out(home: Home, repo: Path) -> None:
    load = repo / "work" / "load"
    (load / "with space.py").write_text("changed\n")
    (load / "new.py").write_text("new\n")
    (load / "notes.txt").write_text("mine\n")
    (load / "workload.toml").write_text("[workload]\n")
    (repo / "README").write_text("outside the workload\n")
    with pytest.raises(RepositoryError) as caught:
        Mirror.open(home, load)
    said = str(caught.value)
    assert all(part in said for part in ("with space.py", "new.py", "--snapshot", "--committed"))
    assert not any(part in said for part in ("notes.txt", "workload.toml", "README"))
    assert caught.value.exit_code == 2
    assert not home.root.exists()
    with pytest.raises(RepositoryError, match=r"notes\.txt"):
        Mirror.open(home, load, matters=lambda path: path.endswith(".txt"))
    with pytest.raises(UsageError):
        Mirror.open(home, load, snapshot=True, committed=True)


def test_committed_leaves_changes_out_and_says_so(home: Home, repo: Path) -> None:
    load = repo / "work" / "load"
    (load / "plain.py").write_text("x = 99\n")
    mirror = Mirror.open(home, load, committed=True)
    assert mirror.read_files(mirror.base, ["plain.py"]) == {"plain.py": "x = 2\n"}
    assert "plain.py" in mirror.notes[0] and "left out" in mirror.notes[0]


def test_a_snapshot_takes_changes_along_in_the_mirror_alone(home: Home, repo: Path) -> None:
    load = repo / "work" / "load"
    (load / "plain.py").write_text("x = 99\n")
    (load / "with space.py").unlink()
    (load / "new.py").write_text("new\n")
    (load / "run.sh").chmod(0o644)
    (load / "link").unlink()
    (load / "link").symlink_to("new.py")
    git(repo, "add", str(load / "new.py"))
    before = state(repo)
    mirror = Mirror.open(home, load, snapshot=True)
    assert state(repo) == before
    clean = Mirror.open(home, load, committed=True)
    changed = {(c.path, c.status, c.mode_after) for c in mirror.changed_paths(clean.base, mirror.base)}
    assert changed == {
        ("plain.py", "M", "100644"),
        ("with space.py", "D", "000000"),
        ("new.py", "A", "100644"),
        ("run.sh", "M", "100644"),
        ("link", "M", "120000"),
    }
    assert Mirror.open(home, load, snapshot=True) == mirror
    assert "taken along" in mirror.notes[0]


def test_a_virtual_environment_in_the_folder_is_not_the_program(home: Home, repo: Path) -> None:
    inner = repo / "work" / "load" / "env" / "lib"
    inner.mkdir(parents=True)
    (inner.parent / "pyvenv.cfg").write_text("")
    (inner / "thing.py").write_text("")
    assert Mirror.open(home, repo / "work" / "load").notes == ()


def _not_a_repository(root: Path) -> Path:
    return root


def _empty(root: Path) -> Path:
    git(root, "init", "-q")
    return root


def _bare(root: Path) -> Path:
    git(root, "init", "-q", "--bare")
    return root


def _inside_git(root: Path) -> Path:
    git(root, "init", "-q")
    return root / ".git"


def _nothing_committed(root: Path) -> Path:
    git(root, "init", "-q")
    (root / "a").write_text("a")
    commit_all(root)
    (root / "sub").mkdir()
    return root / "sub"


def _shallow(root: Path) -> Path:
    source = _nothing_committed(root).parent
    (source / "b").write_text("b")
    commit_all(source)
    git(root, "clone", "-q", "--depth", "1", f"file://{source}", str(root / "shallow"))
    return root / "shallow"


def _submodule(root: Path) -> Path:
    inner = root / "inner"
    inner.mkdir()
    _nothing_committed(inner)
    outer = root / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "deps/inner")
    commit_all(outer)
    return outer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_not_a_repository, "git init"),
        (_empty, "no commit yet"),
        (_bare, "bare repository"),
        (_inside_git, "bare repository or lies inside a .git"),
        (_nothing_committed, "nothing in"),
        (_shallow, "git fetch --unshallow"),
        (_submodule, "deps/inner"),
        (lambda root: root / "missing", "not a folder"),
    ],
)
def test_an_unusable_repository_is_refused_in_one_sentence(home: Home, tmp_path: Path, make: object, said: str) -> None:
    root = tmp_path / "user"
    root.mkdir()
    folder = make(root)  # type: ignore[operator]
    with pytest.raises(RepositoryError) as caught:
        Mirror.open(home, folder)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not list(home.root.rglob("*.git"))


def test_a_damaged_history_leaves_no_half_written_mirror(home: Home, repo: Path) -> None:
    blob = git(repo, "rev-parse", "HEAD:work/load/with space.py").strip()
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RepositoryError, match="git fsck"):
        Mirror.open(home, repo / "work" / "load")
    assert [path.suffix for path in home.mirrors.iterdir()] == [".lock"]


def test_locks_of_a_killed_git_stand_in_nobody_s_way(home: Home, repo: Path) -> None:
    """Power that is lost ends git as well: its locks would refuse every later write."""
    mirror = Mirror.open(home, repo)
    refs = mirror.git_dir / "refs" / "rsi"
    theirs = refs / "another-campaign" / "c1.lock"
    for lock in (refs / "a-campaign" / "c1.lock", refs / "source" / "x.lock", theirs, mirror.git_dir / "packed-refs.lock"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    old, young = mirror.git_dir / "rsi-index-old", mirror.git_dir / "rsi-index-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0, 0))
    with pytest.raises(RepositoryError):
        mirror.set_ref("refs/rsi/a-campaign/c1", mirror.base)
    mirror = Mirror.open(home, repo)
    mirror.unlock("a-campaign")
    mirror.set_ref("refs/rsi/a-campaign/c1", mirror.base)
    assert theirs.exists() and young.exists() and not old.exists()
    assert not list((refs / "source").glob("*.lock")) and not (mirror.git_dir / "packed-refs.lock").exists()


def test_what_a_killed_process_left_is_swept(home: Home, repo: Path) -> None:
    mirror = Mirror.open(home, repo / "work" / "load")
    left = home.mirrors / f".{mirror.git_dir.name}-abc"
    left.mkdir()
    Mirror.open(home, repo / "work" / "load")
    assert not left.exists()


# --- commits ----------------------------------------------------------------------------------


@pytest.fixture
def mirror(home: Home, repo: Path) -> Mirror:
    return Mirror.open(home, repo / "work" / "load")


def test_the_same_content_is_the_same_commit(mirror: Mirror, repo: Path, tmp_path: Path) -> None:
    files = {"plain.py": "x = 7\n", "new dir/neu ü.py": "n\r\n"}
    one = mirror.commit_files(mirror.base, files, "c1: sdpa", "refs/rsi/run/c1")
    other = Mirror.open(Home(tmp_path / "elsewhere"), repo / "work" / "load")
    assert other.commit_files(other.base, files, "c1: sdpa", "refs/rsi/run/c1") == one
    assert mirror.refs("refs/rsi/run") == {"refs/rsi/run/c1": one}
    assert mirror.commit_files(one, {"plain.py": "x = 7\n"}, "nothing", "refs/rsi/run/c2") == one


def test_paths_modes_and_diffs_agree_for_any_name(mirror: Mirror) -> None:
    before = mirror.read_files(mirror.base)
    files: dict[str, str | None] = {name: text + "more\n" for name, text in ODD.items() if name != "-dash"}
    files |= {"-dash": None, "run.sh": "#!/bin/bash\n", "new\ttab": "n", "binary": "\0\x01\udcff"}
    commit = mirror.commit_files(mirror.base, files, "all", "refs/rsi/c")
    changed = mirror.changed_paths(mirror.base, commit)
    assert {item.path for item in changed} == set(files)
    assert ChangedPath("run.sh", "M", "100755", "100755") in changed
    assert ChangedPath("-dash", "D", "100644", "000000") in changed
    after = mirror.read_files(commit)
    diff = mirror.diff(mirror.base, commit)
    assert apply_diff(before, diff) == {path: after.get(path) for path in files}


def test_a_rename_shows_as_a_deletion_and_an_addition(mirror: Mirror) -> None:
    files: dict[str, str | None] = {"plain.py": None, "moved.py": "x = 2\n"}
    commit = mirror.commit_files(mirror.base, files, "move", "refs/rsi/c")
    assert [(c.path, c.status) for c in mirror.changed_paths(mirror.base, commit)] == [
        ("moved.py", "A"),
        ("plain.py", "D"),
    ]


def test_a_file_may_become_a_folder_and_the_reverse(mirror: Mirror) -> None:
    there = mirror.commit_files(mirror.base, {"plain.py": None, "plain.py/x": "1"}, "m", "refs/rsi/c")
    assert "plain.py/x" in mirror.read_files(there)
    back = mirror.commit_files(there, {"plain.py/x": None, "plain.py": "x = 2\n"}, "m", "refs/rsi/c")
    assert mirror.changed_paths(mirror.base, back) == ()


@pytest.mark.parametrize("path", ["link", "link/x", "plain.py/x", "../x", "/x", ".git/hooks/x", "a/.GIT/x", "", "a//b"])
def test_links_and_paths_out_of_the_tree_are_refused(mirror: Mirror, path: str) -> None:
    with pytest.raises(PatchError):
        mirror.commit_files(mirror.base, {path: "x"}, "m", "refs/rsi/c")
    assert "refs/rsi/c" not in mirror.refs()


def test_refs_stay_under_our_own_name(mirror: Mirror) -> None:
    with pytest.raises(RsiError):
        mirror.set_ref("refs/heads/main", mirror.base)


def test_an_export_is_the_commit_and_nothing_else(mirror: Mirror, tmp_path: Path) -> None:
    attributes = "* text eol=crlf\n*.py filter=evil ident\n"
    commit = mirror.commit_files(mirror.base, {".gitattributes": attributes, "id.py": "$Id$\n"}, "m", "refs/rsi/c")
    out = tmp_path / "out"
    mirror.export(commit, out)
    assert (out / "id.py").read_bytes() == b"$Id$\n"
    assert (out / "plain.py").read_bytes() == b"x = 2\n"
    assert (out / "link").is_symlink() and os.access(out / "run.sh", os.X_OK)
    assert not (out / ".git").exists()
    with pytest.raises(RepositoryError, match="not empty"):
        mirror.export(commit, out)


def test_patterns_select_files(mirror: Mirror) -> None:
    assert set(mirror.read_files(mirror.base, ["*.py"])) == {"plain.py", "with space.py", 'quo"te.py'}
    assert set(mirror.read_files(mirror.base, ["**/*.py"])) == {
        "plain.py",
        "with space.py",
        'quo"te.py',
        "naïve/früh.py",
    }
    assert mirror.read_files(mirror.base, []) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_repository_of_another_user_is_read_without_running_its_programs(home: Home, repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    git(repo, "config", "filter.evil.clean", f"touch '{ran}'; cat")
    git(repo, "config", "filter.evil.required", "true")
    git(repo, "config", "core.fsmonitor", f"touch '{ran}'; false")
    (repo / ".git" / "info" / "attributes").write_text("*.py filter=evil\n")
    load = repo / "work" / "load"
    for path in (repo, *repo.rglob("*")):
        os.lchown(path, 65534, 65534)
    os.utime(load / "plain.py")
    assert Mirror.open(home, load).notes == ()
    (load / "plain.py").write_text("x = 4\n")
    mirror = Mirror.open(home, load, snapshot=True)
    assert mirror.read_files(mirror.base, ["plain.py"]) == {"plain.py": "x = 4\n"}
    assert not ran.exists()


def test_line_endings_of_the_users_settings_are_no_change(home: Home, repo: Path) -> None:
    load = repo / "work" / "load"
    git(repo, "config", "core.autocrlf", "true")
    (load / "plain.py").unlink()
    git(repo, "checkout", "-q", "--", "work/load/plain.py")
    assert (load / "plain.py").read_bytes() == b"x = 2\r\n"
    assert Mirror.open(home, load).notes == ()
    (load / "plain.py").write_bytes(b"x = 3\r\n")
    mirror = Mirror.open(home, load, snapshot=True)
    assert mirror.read_files(mirror.base, ["plain.py"]) == {"plain.py": "x = 3\n"}

"""`rsi apply` on real repositories: what is written, what is refused, and what is never touched."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from rsi_tui.audit.applying import Wanted, apply_candidate, apply_page
from rsi_tui.errors import GateError, PatchError, RepositoryError, RsiError, UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, ClaimFacts, Fact, Interval, VerdictFacts
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.repo.mirror import Mirror
from tests.support.campaigns import git
from tests.support.loops import Writer
from tests.support.story import contract

CRLF = "a\r\nb\r\nc\r\nd\r\ne\r\nf\r\ng\r\n"
NAMES = ("train.py", 'dir with space/na"me\té.txt')
INTERVAL = Interval(estimate=1.25, low=1.2, high=1.3, confidence=0.99)


@dataclass
class World:
    """A user's repository, its mirror, and a campaign that is over."""

    home: Home
    repository: Path
    workload: Path
    view: CampaignView
    mirror: Mirror

    def apply(self, candidate: str = "c3", **wanted: object) -> dict:  # type: ignore[type-arg]
        return apply_candidate(self.home, self.view, candidate, Wanted(**wanted))  # type: ignore[arg-type]

    def files(self, rev: str) -> str:
        return git(self.repository, "rev-parse", f"{rev}^{{tree}}")

    def state(self) -> tuple[str, ...]:
        """All that must not change: status, index, HEAD, refs."""
        return (
            git(self.repository, "status", "--porcelain"),
            git(self.repository, "ls-files", "-s"),
            (self.repository / ".git" / "HEAD").read_text(),
            git(self.repository, "for-each-ref"),
        )


def world(folder: Path, sub: str = "", *, over: bool = True, more: tuple[Fact, ...] = ()) -> World:
    """c1 changes a CRLF file's second line, c2 its sixth and adds a file; c3 joins both and sets a knob."""
    repository = folder / "user's repo"
    workload = repository / sub
    (workload / "dir with space").mkdir(parents=True)
    (workload / NAMES[0]).write_bytes(CRLF.encode())
    (workload / NAMES[1]).write_bytes(b"no end of line")
    (workload / "run.sh").write_text("#!/bin/sh\n")
    (workload / "run.sh").chmod(0o755)
    (repository / "beside.txt").write_text("not of the workload\n")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "config", "user.name", "Zoë Ω")
    git(repository, "config", "user.email", "zoe@example.org")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a program")
    home = Home(folder / "home")
    mirror = Mirror.open(home, workload)
    made = {
        "c1": changed(mirror, mirror.base, {NAMES[0]: CRLF.replace("b", "B")}, "c1"),
        "c2": changed(mirror, mirror.base, {NAMES[0]: CRLF.replace("f", "F"), "new é.py": "x = 1", NAMES[1]: "an end\n"}, "c2"),
    }
    both = CRLF.replace("b", "B").replace("f", "F")
    made["c3"] = changed(mirror, mirror.base, {NAMES[0]: both, "new é.py": "x = 1", NAMES[1]: "an end\n"}, "c3")
    return World(home, repository, workload, story(mirror, workload, made, over, more), mirror)


def changed(mirror: Mirror, parent: str, files: Mapping[str, str | None], name: str) -> str:
    return mirror.commit_files(parent, files, name, f"refs/rsi/test/{name}")


def story(mirror: Mirror, workload: Path, made: dict[str, str], over: bool, more: tuple[Fact, ...]) -> CampaignView:
    held = contract(str(workload))
    writer = Writer()
    writer.append(
        ev.CampaignCreated(
            campaign="20261201-1", workload="dense", workload_key=mirror.key, folder=str(workload), contract_hash=held.hash,
            contract=held.model_dump(mode="json"), base_commit=mirror.base, preset="quick", mind="builtin", seed=0,
            max_candidates=8, trust="A", sandbox="bubblewrap", host={}, version="0",
        )
    )  # fmt: skip
    for id, commit in made.items():
        facts = CandidateFacts(
            id=id, commit=commit, base=mirror.base, parent=ORIGINAL, techniques=(f"tech-{id}",) if id != "c3" else ("tech-c1", "tech-c2"),
            knobs=held.defaults | ({"threads": 2, "micro_batch": 4} if id == "c3" else {}), members=("c1", "c2") if id == "c3" else (),
        )  # fmt: skip
        writer.append(ev.CandidateBuilt(candidate=facts, hypothesis="", direction="d1", diff=""))
    verdict = VerdictFacts(candidate="c3", incumbent=ORIGINAL, verdict="adopted", reasons=(), alpha=0.005, speedup=INTERVAL)
    writer.append(ev.VerdictReached(verdict=verdict))
    claim = ClaimFacts(
        candidate="c3", pairs=8, baseline_step_s=0.1, candidate_step_s=0.08, speedup=INTERVAL, total_wall_ratio=1.2, slope_ratio=1.2,
        baseline_peak_bytes=None, candidate_peak_bytes=None, slow_run_bound=0.1, invariants=(), proven=True,
    )  # fmt: skip
    writer.append(ev.Claimed(claim=claim))
    for body in more:
        writer.append(body)
    if over:
        writer.append(ev.StateChanged(state="finished"))
    return CampaignView().feed_all(writer.events)


def proven_files(here: World) -> dict[str, str]:
    return here.mirror.read_files(here.view.candidates["c3"].facts.commit)


def content(here: World, rev: str, path: str) -> bytes:
    return subprocess.run(["git", "show", f"{rev}:{path}"], cwd=here.repository, check=True, capture_output=True).stdout


@pytest.mark.parametrize("sub", ["", "packages/träiner"])
def test_the_branch_has_exactly_the_files_that_were_proven_one_commit_a_change(tmp_path: Path, sub: str) -> None:
    here = world(tmp_path, sub)
    (here.repository / "beside.txt").write_text("edited, not committed\n")
    before = here.state()
    told = here.apply(branch="rsi/fast")
    assert told["proven_as_it_stands"] and told["one_commit_a_change"]
    assert [one["change"] for one in told["commits"]] == ["tech-c1", "tech-c2"]
    prefix = f"{sub}/" if sub else ""
    for path, text in proven_files(here).items():
        assert content(here, "rsi/fast", prefix + path) == text.encode()
    assert git(here.repository, "ls-tree", "rsi/fast", f"{prefix}run.sh").startswith("100755")
    assert content(here, "rsi/fast", "beside.txt") == b"not of the workload\n"
    git(here.repository, "fsck", "--strict")
    after = here.state()
    assert after[:3] == before[:3]
    assert [ref for ref in after[3].splitlines() if "rsi/fast" not in ref] == before[3].splitlines()


def test_each_commit_says_what_was_proven_and_how_to_check_and_revert_it(tmp_path: Path) -> None:
    here = world(tmp_path)
    told = here.apply(branch="fast")
    said = git(here.repository, "log", "-1", "--format=%an <%ae>%n%B", "fast")
    for part in ("Zoë Ω <zoe@example.org>", "tech-c2", "1.25x", "8 fresh pairs", "rsi verify 20261201-1", "rsi replay 20261201-1/c3", "git revert"):
        assert part in said
    assert told["command"] == "OMP_NUM_THREADS=2 python train.py --steps {steps} --seed {seed} --out {out} --micro-batch 4"
    assert "exactly those that were proven" in apply_page(told)
    git(here.repository, "checkout", "-q", "fast")
    git(here.repository, "revert", "--no-edit", "HEAD", "HEAD~1")
    assert here.files("HEAD") == here.files("main")


def test_what_moved_on_is_merged_and_marked_as_not_proven(tmp_path: Path) -> None:
    here = world(tmp_path)
    git(here.repository, "checkout", "-q", "-b", "newer")
    (here.repository / "train.py").write_bytes(CRLF.replace("d", "D").encode())
    git(here.repository, "commit", "-qam", "upstream moved on")
    git(here.repository, "checkout", "-q", "--detach", "main")
    told = here.apply(branch="newer")
    assert not told["proven_as_it_stands"] and told["branch_existed"]
    assert content(here, "newer", "train.py") == CRLF.replace("b", "B").replace("d", "D").replace("f", "F").encode()
    assert "NOT PROVEN AS IT STANDS" in git(here.repository, "log", "-1", "--format=%B", "newer")
    assert "rsi evaluate" in apply_page(told)


@pytest.mark.parametrize("how", ["same lines", "deleted", "folder"])
def test_a_conflict_names_the_file_and_writes_nothing(tmp_path: Path, how: str) -> None:
    here = world(tmp_path)
    git(here.repository, "checkout", "-q", "-b", "other")
    if how == "same lines":
        (here.repository / "train.py").write_bytes(CRLF.replace("b", "other").encode())
    elif how == "deleted":
        (here.repository / "train.py").unlink()
    else:
        (here.repository / "new é.py").mkdir()
        (here.repository / "new é.py" / "x").write_text("x")
    git(here.repository, "add", "-A")
    git(here.repository, "commit", "-qm", "other work")
    git(here.repository, "checkout", "-q", "main")
    before = here.state()
    with pytest.raises(PatchError, match="new é.py" if how == "folder" else "train.py"):
        here.apply(branch="other")
    assert here.state() == before


def test_a_series_is_taken_by_git_am_and_gives_the_proven_files(tmp_path: Path) -> None:
    here = world(tmp_path)
    told = here.apply(series=tmp_path / "a series")
    assert len(told["patches"]) == 2 and told["branch"] is None
    assert git(here.repository, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    git(here.repository, "am", "-q", "--keep-cr", *told["patches"])
    for path, text in proven_files(here).items():
        assert (here.repository / path).read_bytes() == text.encode()
    with pytest.raises(UsageError, match="empty folder"):
        here.apply(series=tmp_path / "a series")


def test_bare_repositories_and_worktrees_are_written_too(tmp_path: Path) -> None:
    here = world(tmp_path, "sub")
    git(tmp_path, "clone", "-q", "--bare", str(here.repository), "bare.git")
    assert here.apply(branch="fast", repo=tmp_path / "bare.git")["proven_as_it_stands"]
    git(here.repository, "worktree", "add", "-q", "-b", "second", str(tmp_path / "tree"))
    with pytest.raises(UsageError, match="checked out in"):
        here.apply(branch="second")
    assert here.apply(branch="fast", repo=tmp_path / "tree")["tip"] == git(here.repository, "rev-parse", "fast")


def test_hooks_and_signing_of_the_user_take_no_part(tmp_path: Path) -> None:
    here = world(tmp_path)
    git(here.repository, "config", "commit.gpgSign", "true")
    for name in ("reference-transaction", "pre-commit", "post-commit", "commit-msg"):
        hook = here.repository / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hook-ran'\nexit 1\n")
        hook.chmod(0o755)
    here.apply(branch="fast")
    assert not (tmp_path / "hook-ran").exists()


@pytest.mark.parametrize("branch", ["a b", "-x", "HEAD", "x..y", "main/"])
def test_names_that_git_does_not_take_are_refused(tmp_path: Path, branch: str) -> None:
    with pytest.raises(UsageError, match="no name for a branch"):
        world(tmp_path).apply(branch=branch)


def test_the_branch_that_is_checked_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="checked out"):
        world(tmp_path).apply(branch="main")


def test_a_repository_that_moved_is_found_by_its_new_place(tmp_path: Path) -> None:
    here = world(tmp_path, "sub")
    here.repository.rename(tmp_path / "moved")
    with pytest.raises(RepositoryError, match="--repo"):
        here.apply(branch="fast")
    assert here.apply(branch="fast", repo=tmp_path / "moved")["proven_as_it_stands"]
    git(tmp_path, "init", "-q", "-b", "main", "foreign")
    git(tmp_path / "foreign", "commit", "-q", "--allow-empty", "-m", "x")
    with pytest.raises(RepositoryError, match="not the repository of this workload"):
        here.apply(branch="fast", repo=tmp_path / "foreign")


@pytest.mark.parametrize(
    ("candidate", "over", "more", "why"),
    [
        ("c1", True, (), "not adopted"),
        ("c3", False, (), "not over"),
        ("c3", True, (ev.Revoked(candidate="c3", who="a person", reason="it broke", reopened=()),), "it broke"),
    ],
)
def test_what_is_not_proven_is_not_applied(tmp_path: Path, candidate: str, over: bool, more: tuple[Fact, ...], why: str) -> None:
    here = world(tmp_path, over=over, more=more)
    with pytest.raises(GateError, match=why):
        here.apply(candidate, branch="fast")
    with pytest.raises(RsiError):
        here.apply("c99", branch="fast")
    assert "fast" not in git(here.repository, "for-each-ref")


def test_without_a_name_for_the_author_it_says_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(tmp_path)
    git(here.repository, "config", "--unset", "user.name")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"git config user\.name"):
        here.apply(branch="fast")


def test_a_setting_that_lives_in_a_file_becomes_a_commit(tmp_path: Path) -> None:
    here = world(tmp_path)
    created = here.view.created
    assert created is not None
    knobs = [k | ({"flag": "", "file": "conf.toml:batch"} if k["name"] == "micro_batch" else {}) for k in created.contract["knobs"]]
    here.view.created = created.model_copy(update={"contract": created.contract | {"knobs": knobs}})
    with pytest.raises(PatchError, match=r"conf\.toml"):
        here.apply(branch="fast")
    (here.repository / "conf.toml").write_bytes(b"batch = 2  # a word\r\n")
    git(here.repository, "add", "-A")
    git(here.repository, "commit", "-qm", "settings")
    git(here.repository, "branch", "newer")
    told = here.apply(branch="newer")
    assert told["commits"][-1]["change"] == "micro_batch=4"
    assert content(here, "newer", "conf.toml") == b"batch = 4  # a word\r\n"
    assert "micro-batch" not in told["command"]

"""The verdict on a person's change where no run is needed for it: what the gates turn down, and in which words."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.cli import app
from rsi_tui.contract.load import load_contract
from rsi_tui.errors import UsageError
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import AlphaGranted, TrialStarted
from rsi_tui.journal.view import load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.evaluating import Asked, Evaluated, evaluate
from rsi_tui.loop.executor import Refusal
from rsi_tui.loop.own_change import Applied, apply_change, read_change, read_settings
from rsi_tui.repo.mirror import Mirror
from tests.support.campaigns import git, tiny_repository


def edited(folder: Path, *edits: tuple[str, str, str]) -> str:
    """The diff that replaces texts in files, as git writes it; the checkout is as before."""
    for name, old, new in edits:
        path = folder / name
        text = path.read_bytes().decode()
        assert text.count(old) == 1, (name, old)
        path.write_bytes(text.replace(old, new).encode())
    diff = subprocess.run(["git", "diff"], cwd=folder, check=True, capture_output=True).stdout.decode()
    git(folder, "checkout", "-q", ".")
    return diff


def comments(folder: Path) -> str:
    return edited(folder, ("train.py", "batch_size = 4\n", "batch_size = 4  # sequences\n\n"))


def does_not_apply(folder: Path) -> str:
    return edited(folder, ("train.py", "batch_size = 4\n", "batch_size = 8\n")).replace("-batch_size = 4", "-batch_size = 5")


def syntax(folder: Path) -> str:
    return edited(folder, ("train.py", "total = 0.0\n", "total = 0.0 +\n"))


def out_of_scope(folder: Path) -> str:
    both = (("data.py", "VOCAB_SIZE = 512", "VOCAB_SIZE = 256"), ("evaluate.py", "val_loss", "val_loss 0 #"))
    return edited(folder, *both, ("train.py", "batch_size = 4", "batch_size = 2"))


def link(folder: Path) -> str:
    (folder / "extra.py").symlink_to("/etc/passwd")
    git(folder, "add", "-N", "extra.py")
    diff = git(folder, "diff") + "\n"
    git(folder, "rm", "-q", "--cached", "extra.py")
    (folder / "extra.py").unlink()
    return diff


def outside(folder: Path) -> str:
    return edited(folder, ("train.py", "batch_size = 4", "batch_size = 2")).replace("/train.py", "/../other/train.py")


def git_hook(folder: Path) -> str:
    return "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+#!/bin/sh\n"


def exploit(folder: Path) -> str:
    return edited(folder, ("train.py", "import torch\n\nfrom", "import time\n\nimport torch\n\ntime.monotonic = lambda: 0.0\n\nfrom"))


def prose(folder: Path) -> str:
    return "Please make it faster.\n"


@dataclass(frozen=True)
class Case:
    """A change that needs no run, and what is said of it."""

    name: str
    patch: Callable[[Path], str] | None
    verdict: str
    exit_code: int
    said: tuple[str, ...]
    settings: tuple[str, ...] = ()


CASES = (
    Case("comments only", comments, "not_proven", 4, ("comments or layout",)),
    Case("an empty patch", lambda folder: "", "not_proven", 4, ("neither code nor settings",)),
    Case("the program's own settings", None, "not_proven", 4, ("own already",), ("micro_batch=2",)),
    Case("does not apply", does_not_apply, "failed", 1, ("train.py", "batch_size = 4", "batch_size = 5")),
    Case("no diff at all", prose, "failed", 1, ("no unified diff",)),
    Case("syntax error", syntax, "failed", 1, ("train.py line 68", "no valid Python")),
    Case("out of scope", out_of_scope, "invalid", 3, ("data.py", "evaluate.py", "editable")),
    Case("a link", link, "invalid", 3, ("extra.py", "link")),
    Case("outside the program", outside, "invalid", 3, ("../other/train.py",)),
    Case("git's own files", git_hook, "invalid", 3, (".git/hooks/post-checkout",)),
    Case("a clock of its own", exploit, "invalid", 3, ("train.py:",)),
    Case("rounding that the contract forbids", None, "invalid", 3, ("dtype", "precision"), ("dtype=bf16",)),
)
DTYPE = """
[[knobs]]
name = "dtype"
values = ["fp32", "bf16"]
default = "fp32"
flag = "--dtype {}"
affects = ["precision"]
"""


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_repository(tmp_path_factory.mktemp("evaluate") / "tiny")
    toml = folder / "workload.toml"
    toml.write_text(toml.read_text() + DTYPE + '\n[constraints]\nrules = ["micro_batch != 4"]\n')
    git(folder, "commit", "-qam", "a second setting")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


def judged(home: Home, workload: Path, case: Case, tmp_path: Path) -> Evaluated:
    patch = ""
    if case.patch is not None:
        file = tmp_path / "change.diff"
        file.write_text(case.patch(workload))
        patch = str(file)
    return evaluate(home, Asked(workload, patch, settings=case.settings, preset="quick"))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_needs_no_run_is_decided_without_one(home: Home, workload: Path, tmp_path: Path, case: Case) -> None:
    ended = judged(home, workload, case, tmp_path)
    assert (ended.verdict, ended.exit_code) == (case.verdict, case.exit_code)
    events = read_events(home.campaign(ended.evaluation).journal)
    assert not any(isinstance(event.body, TrialStarted | AlphaGranted) for event in events)
    view = load_campaign(home, ended.evaluation)
    assert view.state == "finished"
    reasons = "; ".join(view.verdicts[-1].reasons)
    assert all(word in reasons for word in case.said), reasons
    assert not home.journal.exists(), "no error probability is drawn"
    assert ended.report is not None and ended.report.exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("micro_bath=1",), ("micro_bath", "micro_batch")),
        (("micro_batch=3",), ("1, 2, 4",)),
        (("micro_batch",), ("knob=value",)),
        (("micro_batch=1", "micro_batch=2"), ("two values",)),
        (("micro_batch=4",), ("micro_batch != 4",)),
    ],
)
def test_settings_that_the_contract_does_not_list_are_usage_errors(
    home: Home, workload: Path, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = sorted(home.campaigns.iterdir()) if home.campaigns.exists() else []
    with pytest.raises(UsageError) as refused:
        evaluate(home, Asked(workload, settings=settings, preset="quick"))
    assert all(word in str(refused.value) for word in words), refused.value
    assert (sorted(home.campaigns.iterdir()) if home.campaigns.exists() else []) == before


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({}, "--patch"), ({"patch": "/nowhere/x.diff"}, "/nowhere/x.diff.*name a file with a unified diff"), ({"commit": "no-such-branch"}, "no-such-branch"),
        ({"commit": "--all"}, "no such commit"), ({"settings": ("micro_batch=1",), "resume": True}, "No interrupted evaluation"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_leaves_nothing_behind(tmp_path: Path, workload: Path, asked: dict[str, object], word: str) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(UsageError, match=word):
        evaluate(home, Asked(workload, preset="quick", **asked))  # type: ignore[arg-type]
    assert not home.campaigns.exists()


def test_values_are_read_as_the_contract_lists_them(workload: Path) -> None:
    contract = load_contract(workload, "quick")
    knob = contract.knob("micro_batch").model_copy(update={"name": "switch", "values": (False, True), "default": False})
    other = knob.model_copy(update={"name": "rate", "values": (0.5, 1.0, "", "1"), "default": ""})
    contract = contract.model_copy(update={"knobs": (knob, other), "rules": ()})
    for text, value in (("switch=True", True), ("switch=0", False), ("rate=.5", 0.5), ("rate=1", "1"), ("rate=", "")):
        found = read_settings(contract, (text,))
        assert list(found.values()) == [value] and type(next(iter(found.values()))) is type(value)


# --- patches ----------------------------------------------------------------------------------


def applied(tmp_path: Path, workload: Path, *, patch: str = "", commit: str = "") -> Applied:
    contract = load_contract(workload, "quick")
    if patch:
        (tmp_path / "change.diff").write_bytes(patch.encode())
    change = read_change(contract, str(tmp_path / "change.diff") if patch else "", commit, ())
    return apply_change(contract, Mirror.open(Home(tmp_path / "home"), workload, committed=True), change)


@pytest.mark.parametrize(("file_end", "patch_end"), [("\r\n", "\n"), ("\n", "\r\n"), ("\r\n", "\r\n")])
def test_a_patch_for_other_line_ends_keeps_those_of_the_file(tmp_path: Path, file_end: str, patch_end: str) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    patch = edited(folder, ("train.py", "batch_size = 4\n", "batch_size = 4\nspare = 1\n"))
    text = (folder / "train.py").read_text().replace("\n", file_end)
    (folder / "train.py").write_bytes(text.encode())
    git(folder, "commit", "-qam", "other ends", "--allow-empty")
    found = applied(tmp_path, folder, patch=patch.replace("\n", patch_end)).files
    assert found == {"train.py": text.replace(f"batch_size = 4{file_end}", f"batch_size = 4{file_end}spare = 1{file_end}")}


@pytest.mark.parametrize("relative", [False, True])
def test_a_patch_may_be_written_from_the_repository_or_from_the_workload(tmp_path: Path, relative: bool) -> None:
    folder = tiny_repository(tmp_path / "whole" / "jobs" / "tiny")
    (folder / ".git").rename(tmp_path / "aside")
    whole = tmp_path / "whole"
    git(whole, "init", "-q")
    git(whole, "add", "-A")
    git(whole, "commit", "-qm", "a workload in a folder")
    text = (folder / "train.py").read_text().replace("batch_size = 4\n", "batch_size = 2\n")
    (folder / "train.py").write_text(text)
    patch = git(folder, "diff", *(["--relative"] if relative else [])) + "\n"
    git(whole, "checkout", "-q", ".")
    assert applied(tmp_path, folder, patch=patch).files == {"train.py": text}
    with pytest.raises(Refusal) as refused:
        applied(tmp_path, folder, patch=patch + "--- /dev/null\n+++ b/other/new.py\n@@ -0,0 +1 @@\n+x = 1\n")
    assert refused.value.kind == "scope" and "other/new.py" in refused.value.reason


def test_a_patch_behind_a_link_is_refused_by_where_it_leads(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    (folder / "code").symlink_to(".")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a link")
    patch = edited(folder, ("train.py", "batch_size = 4", "batch_size = 2")).replace("/train.py", "/code/train.py")
    with pytest.raises(Refusal) as refused:
        applied(tmp_path, folder, patch=patch)
    assert refused.value.kind == "scope" and "behind the link code" in refused.value.reason
    assert [finding.path for finding in refused.value.findings] == ["code/train.py"]


def test_a_branch_counts_for_what_it_changed_since_it_left(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    git(folder, "checkout", "-qb", "faster")
    text = (folder / "model.py").read_text().replace("depth=2", "depth=1")
    (folder / "model.py").write_text(text)
    git(folder, "commit", "-qam", "a branch")
    git(folder, "checkout", "-q", "main")
    (folder / "train.py").write_text((folder / "train.py").read_text().replace("batch_size = 4", "batch_size = 8"))
    git(folder, "commit", "-qam", "meanwhile")
    assert applied(tmp_path, folder, commit="faster").files == {"model.py": text}
    with pytest.raises(Refusal) as refused:
        applied(tmp_path, folder, commit="HEAD~1")
    assert refused.value.kind == "no_change" and "check out its parent" in refused.value.reason


def test_patch_and_commit_go_together_in_that_order(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    git(folder, "checkout", "-qb", "first")
    (folder / "train.py").write_text((folder / "train.py").read_text().replace("batch_size = 4\n", "batch_size = 8\n"))
    git(folder, "commit", "-qam", "first")
    patch = edited(folder, ("train.py", "batch_size = 8\n", "batch_size = 16\n"))
    git(folder, "checkout", "-q", "main")
    both = applied(tmp_path, folder, commit="first", patch=patch).files["train.py"]
    assert both is not None and "batch_size = 16\n" in both


def test_a_knob_that_can_not_be_set_any_more_is_a_failure(tmp_path: Path) -> None:
    folder = tiny_repository(tmp_path / "tiny")
    toml = folder / "workload.toml"
    toml.write_text(toml.read_text() + '\n[[knobs]]\nname = "batch"\nvalues = [4, 8]\ndefault = 4\nglobal = "train.py:batch_size"\n')
    git(folder, "commit", "-qam", "a setting in the code")
    with pytest.raises(Refusal) as refused:
        applied(tmp_path, folder, patch=edited(folder, ("train.py", "batch_size = 4\n", "")))
    assert refused.value.kind == "broken" and "batch" in refused.value.reason


# --- the command ------------------------------------------------------------------------------


def test_json_is_one_document_whatever_the_verdict(tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSI_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(
        app, ["evaluate", str(workload), "--patch", "-", "--preset", "quick", "--json"], input=out_of_scope(workload)
    )
    assert done.exit_code == 3, done.output
    found = json.loads(done.stdout)
    assert found["verdict"] == "invalid" and found["trust"] in ("A", "C")
    assert [f["path"] for f in found["findings"]] == ["data.py", "evaluate.py"]
    assert found["speedup"] is None and found["peak_memory"] is None and found["trials"] == [] and found["alpha"] is None


def test_evaluations_are_listed_shown_and_explained_like_campaigns(
    tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSI_HOME", str(tmp_path / "home"))
    (tmp_path / "change.diff").write_text(exploit(workload))
    run = CliRunner()
    done = run.invoke(app, ["evaluate", str(workload), "--patch", str(tmp_path / "change.diff"), "--preset", "quick"])
    assert done.exit_code == 3
    listed = json.loads(run.invoke(app, ["campaigns", "--json"]).stdout)
    assert [(c["kind"], c["verdict"], c["state"]) for c in listed] == [("evaluation", "invalid", "finished")]
    assert "evaluation" in run.invoke(app, ["campaigns"]).stdout
    for command in ("status", "show", "why", "report"):
        said = run.invoke(app, [command])
        assert said.exit_code == 0, said.output
        assert command == "status" or "train.py" in said.stdout
    assert run.invoke(app, ["why", "c1"]).exit_code == 0


def test_a_patch_is_read_from_stdin(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Piped:
        buffer = io.BytesIO(syntax(workload).encode())

    monkeypatch.setattr(sys, "stdin", Piped())
    change = read_change(load_contract(workload, "quick"), "-", "", ())
    assert "total = 0.0 +" in change.diffs[0] and "stdin" in change.label

"""What a person is told when something ended before its end: the command that goes on, whole and quoted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.audit import reading, words
from rsi_tui.cli import app
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.view import CampaignView, campaign_ids, load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop import checking, engine, evaluating
from rsi_tui.loop.evaluating import Asked, evaluate
from rsi_tui.loop.recall import Recall
from rsi_tui.loop.unresumed import Program
from tests.support.campaigns import tiny_repository
from tests.support.loops import Writer
from tests.support.story import story

PATCH = "--- a/train.py\n+++ b/train.py\n@@ -9,3 +9,4 @@\n from model import Model\n \n batch_size = 4\n+spare = 1\n"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    (tmp_path / "change.diff").write_text(PATCH)
    folder = tiny_repository(tmp_path / "my programs")
    (folder / "train.py").write_text((folder / "train.py").read_text() + "\n# not committed\n")
    return folder


def stops(*_: object, **__: object) -> None:
    raise Interrupted("Stopped between two trials; `rsi run --resume` continues.")


def disturbed(*_: object, **__: object) -> None:
    raise HostFault("The machine did not let it be measured: see that nothing else runs on it.")


def test_what_must_be_given_again_is_in_the_command_that_goes_on() -> None:
    assert words.go_on("campaign", "dense", "", called="bin/rsi") == "bin/rsi run --resume dense"
    assert words.go_on("check", "dense", "quick") == "rsi check --preset quick dense"
    command = words.go_on("evaluation", "my programs/dense", "quick", ("--committed", "--unsandboxed"))
    assert shlex.split(command) == ["rsi", "evaluate", "--resume", "--committed", "--unsandboxed", "--preset", "quick", "my programs/dense"]


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"kind": "campaign"}, "go on with `rsi run --resume --preset quick '/home/user/my programs'`"),
        ({"kind": "evaluation", "options": ("--snapshot",)}, "go on with `rsi evaluate --resume --snapshot --preset quick '"),
        ({"kind": "campaign", "trust": "C"}, "rsi run --resume --unsandboxed"),
        ({"kind": "check"}, "a check begins anew: `rsi check --preset quick '"),
    ],
)
def test_status_says_how_to_go_on_with_what_nobody_works_on(update: dict[str, object], says: str) -> None:
    writer = Writer()
    for body in story("20261130-1", until="created", folder="/home/user/my programs"):
        writer.append(body)
    view = CampaignView().feed_all(writer.events)
    assert view.created is not None
    view.created = view.created.model_copy(update=update)
    assert says in reading.engine_words(view, None)


def test_an_interrupted_evaluation_names_the_flags_it_was_begun_with(
    tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("RSI_HOME", str(home.root))
    monkeypatch.setattr(evaluating, "_measured", stops)
    done = CliRunner().invoke(app, ["evaluate", str(workload), "--patch", str(tmp_path / "change.diff"), "--preset", "quick", "--committed"])
    assert done.exit_code == 1
    command = next(line for line in done.stderr.splitlines() if line.startswith("Go on with: ")).removeprefix("Go on with: ")
    again = shlex.split(command)
    assert again[again.index("evaluate") :] == ["evaluate", "--resume", "--committed", "--preset", "quick", str(workload)]
    assert "--resume --committed --preset quick" in reading.status(home)
    monkeypatch.setattr(evaluating, "_measured", lambda home, ctx, c: evaluating._record(ctx, "told", "slower", ("told",)))
    assert CliRunner().invoke(app, again[again.index("evaluate") :]).exit_code == 4


def test_a_machine_that_fails_an_evaluation_leaves_what_goes_on(tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setattr(evaluating, "_measured", disturbed)
    ended = evaluate(home, Asked(workload, str(tmp_path / "change.diff"), preset="quick", committed=True))
    assert (ended.verdict, ended.exit_code) == (None, 1) and "nothing else runs" in ended.sentence
    assert not load_campaign(home, ended.evaluation).over
    monkeypatch.setattr(evaluating, "_measured", lambda home, ctx, c: evaluating._record(ctx, "told", "slower", ("told",)))
    again = evaluate(home, Asked(workload, preset="quick", committed=True, resume=True))
    assert (again.evaluation, again.verdict, again.sentence) == (ended.evaluation, "slower", "")


def test_a_machine_that_fails_a_campaign_is_said(tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("RSI_HOME", str(home))
    monkeypatch.setattr(engine, "run_campaign", disturbed)
    monkeypatch.setattr(Recall, "sync", lambda self: None)
    done = CliRunner().invoke(app, ["run", str(workload), "--preset", "quick", "--committed"])
    assert done.exit_code == 1
    assert f"run --resume --committed --preset quick '{workload}'" in done.stdout
    assert "see that nothing else runs on it" in done.stderr
    assert len(campaign_ids(Home(home))) == 1


@pytest.mark.parametrize(("end", "says"), [(stops, "a check begins anew"), (disturbed, "nothing else runs on it")])
def test_a_check_that_was_interrupted_leaves_nothing_and_says_so(
    tmp_path: Path, workload: Path, monkeypatch: pytest.MonkeyPatch, end: object, says: str
) -> None:
    monkeypatch.setattr(checking, "_measured", end)
    home = Home(tmp_path / "home")
    with pytest.raises(Interrupted, match=says):
        checking.check(home, Program(workload, preset="quick", committed=True))
    assert campaign_ids(home) == []

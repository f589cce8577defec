"""A program that lacks what the evaluator needs gets an adapter under every candidate, and nobody's repository sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.audit.applying import Wanted, apply_candidate
from rsi_tui.audit.verify import verify_campaign
from rsi_tui.errors import ContractError
from rsi_tui.journal.view import load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request, silent
from tests.support.campaigns import PatchMind, git
from tests.support.simulated import PATCHES, simulated, simulated_repository

ADAPTER = """\
--- a/model.py
+++ b/model.py
@@ -1,1 +1,2 @@
 {first}
+ADAPTED = True
--- /dev/null
+++ b/adapter.py
@@ -0,0 +1,1 @@
+SEED = 1
"""


def program(folder: Path, adapter: str | None = None) -> Path:
    """The simulated workload with a contract that names an adapter."""
    place = simulated_repository(folder)
    first = (place / "model.py").read_text().splitlines()[0]
    (place / "adapter.patch").write_text(ADAPTER.format(first=first) if adapter is None else adapter)
    contract = (place / "workload.toml").read_text().replace("[launch]\n", '[launch]\nbase_patch = "adapter.patch"\n', 1)
    (place / "workload.toml").write_text(contract)
    git(place, "add", "-A")
    git(place, "commit", "-qm", "a contract with an adapter")
    return place


def test_every_candidate_has_it_no_diff_shows_it_and_what_is_applied_leaves_it_out(tmp_path: Path) -> None:
    place, home = program(tmp_path / "program"), Home(tmp_path / "home")
    with simulated(same_draws=True):
        ended = run(home, Request(place, preset="simulated", candidates=2), PatchMind(list(PATCHES[:2])), silent)
    view = load_campaign(home, ended.campaign)
    best = view.best()
    assert ended.exit_code == 0 and best is not None and verify_campaign(home, ended.campaign).follows
    mirror = home.mirrors / f"{view.created.workload_key}.git" if view.created else Path()
    for commit in (best.facts.base, best.facts.commit):
        assert "ADAPTED = True" in git(mirror, "show", f"{commit}:model.py") and git(mirror, "show", f"{commit}:adapter.py") == "SEED = 1"
    assert "EFFECT_1" in best.diff and "ADAPTED" not in "".join(line for line in best.diff.splitlines() if line[:1] in "+-")
    apply_candidate(home, view, "", Wanted(branch="faster"))
    assert git(place, "diff", "--name-only", "main", "faster") == "model.py"
    landed = git(place, "show", "faster:model.py")
    assert "EFFECT_1" in landed and "ADAPTED" not in landed
    assert git(place, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        ("--- a/model.py\n+++ b/model.py\n@@ -1,1 +1,2 @@\n no such line\n+X = 1\n", "base_patch adapter.patch does not fit the program"),
        ("", "base_patch adapter.patch"),
        ("--- a/../x.py\n+++ b/../x.py\n@@ -0,0 +1,1 @@\n+X = 1\n", "base_patch adapter.patch does not fit the program"),
    ],
)
def test_an_adapter_that_does_not_fit_is_said_in_a_sentence(tmp_path: Path, adapter: str, says: str) -> None:
    with simulated(), pytest.raises(ContractError, match=says):
        run(Home(tmp_path / "home"), Request(program(tmp_path / "program", adapter), preset="simulated"), PatchMind([]), silent)

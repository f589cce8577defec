"""`rsi evaluate` on a real program with real runs: the right verdict for every kind of change a person brings.

The program is the tiny workload with two things in it that a change can take out: work of Python that nothing
needs, in every step, and memory that nothing reads. What is faster is therefore known, and learns the same to
the last bit. The patches lie in `patches/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.evaluator import costs
from tests.support.campaigns import TINY, tiny_repository

PATCHES = Path(__file__).parent / "patches"


def roomy_repository(folder: Path) -> Path:
    """The tiny workload with needless work and needless memory."""
    text = (TINY / "train.py").read_text()
    memory = "    accumulation = batch_size // args.micro_batch\n"
    work = "        x, y = batch(args.seed, step, batch_size)\n"
    assert text.count(memory) == text.count(work) == 1
    text = text.replace(memory, f"{memory}    spare = torch.ones(16 * 2**20)\n")
    text = text.replace(work, f"        sum(i * i for i in range(600_000))\n{work}")
    return tiny_repository(folder, train__py=text)


def asked(folder: Path, patch: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `rsi evaluate --json` as a person runs it; the home is kept for the next."""
    command = [sys.executable, "-m", "rsi_tui", "evaluate", str(folder / "tiny"), "--preset", "quick", "--json", *more]
    command += ["--patch", str(PATCHES / patch)] if patch else []
    done = subprocess.run(
        command, env={**os.environ, "RSI_HOME": str(folder / "home")}, capture_output=True, text=True, timeout=3600
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_change_that_runs_out_of_memory_fails_after_two_runs_with_its_cause(tmp_path: Path) -> None:
    roomy_repository(tmp_path / "tiny")
    code, found = asked(tmp_path, "oom.diff")
    assert (code, found["verdict"]) == (1, "failed")
    assert found["failure"]["outcome"] == "oom" and found["failure"]["advice"]
    assert found["failure"]["limit_bytes"] == 2**30
    assert [t["candidate"] for t in found["trials"]] == ["c1", "original"]
    assert found["alpha"] is None and found["noise"] is None


@dataclass(frozen=True)
class Case:
    """A patch and what must be said of it."""

    patch: str
    verdicts: tuple[str, ...]
    exit_code: int
    said: str = ""
    trials: bool = True


TABLE = (
    Case("does_not_apply.diff", ("failed",), 1, "train.py: line", trials=False),
    Case("syntax.diff", ("failed",), 1, "no valid Python", trials=False),
    Case("out_of_scope.diff", ("invalid",), 3, "data.py", trials=False),
    Case("oom.diff", ("failed",), 1, "oom"),
    Case("no_op.diff", ("not_proven",), 4),
    Case("slower.diff", ("slower",), 4),
    Case("faster.diff", ("adopted",), 0),
    Case("faster_crlf.diff", ("adopted",), 0),
    Case("leaner.diff", ("leaner",), 0),
    Case("at_the_start.diff", ("not_proven",), 4),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One workload and one home for the whole table, so that its calibration is taken over."""
    folder = tmp_path_factory.mktemp("real")
    roomy_repository(folder / "tiny")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", TABLE, ids=[case.patch.removesuffix(".diff") for case in TABLE])
def test_every_kind_of_change_gets_its_verdict(folder: Path, case: Case) -> None:
    code, found = asked(folder, case.patch)
    assert found["verdict"] in case.verdicts, found["reasons"]
    assert code == case.exit_code
    assert case.said in "; ".join(found["reasons"])
    assert bool(found["trials"]) == case.trials
    if found["verdict"] == "adopted":
        assert 1 < found["speedup"]["low"] <= found["speedup"]["estimate"] <= found["speedup"]["high"]
        assert found["speedup_from"] == "claim"
    if found["verdict"] == "leaner":
        assert found["memory_saving"]["proven"] and found["peak_memory"]["candidate"] < found["peak_memory"]["baseline"]
    assert (found["alpha"] is not None) == (found["evalue"] is not None)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_plan_counts_the_runs_that_are_made(tmp_path: Path) -> None:
    roomy_repository(tmp_path / "tiny")
    _, found = asked(tmp_path, "faster.diff")
    contract = load_contract(tmp_path / "tiny", "quick")
    by_purpose: dict[str, int] = {}
    for trial in found["trials"]:
        name = trial["block"].split("-")[0] or trial["kind"]
        by_purpose[name] = by_purpose.get(name, 0) + 1
    assert found["verdict"] == "adopted", found["reasons"]
    assert by_purpose["check"] == costs.RUNS_AT_ALL.usual
    assert by_purpose["calibration"] + by_purpose.get("states", 0) == costs.calibration(contract).usual
    screening = costs.screening_alone(contract)
    assert screening.least <= by_purpose["screen"] <= screening.most
    saving = costs.saving(contract)
    assert costs.claim(contract).usual <= by_purpose["claim"] <= (costs.claim(contract) + saving).most
    proof = costs.verification(contract, found["alpha"], -found["screening"]["log_ratio"], found["noise"]["pair_scale"])
    conditions = costs.last_conditions(contract, runs_before=0)
    assert proof.provable and by_purpose["verify"] <= (proof.runs + conditions + saving).most

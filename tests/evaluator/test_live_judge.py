"""What is laid before the evaluator beside an honest run is whole, whatever happened in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.redteam import live
from rsi_tui.evaluator.redteam.live import _LiveJudge
from rsi_tui.journal.facts import TrialFacts
from tests.evaluator.small_program import make_bench

HONEST = TrialFacts(
    id="t1", candidate="original", kind="check", arm="warmup", block="b1", slot=0, attempt=1, steps=8, outcome="ok", started_at="", wall_s=1.0
)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_bench(tmp_path).lab()


def test_a_contract_with_a_validation_alone_keeps_checkpoints_for_it(lab: Lab) -> None:
    assert not _LiveJudge(lab, compare=False).active
    assert _LiveJudge(replace(lab, holdouts=cast(Any, {"verify": object()})), compare=False).active
    assert _LiveJudge(lab).active


def test_after_a_restart_the_honest_run_is_made_again_since_its_lines_are_forged_from(lab: Lab) -> None:
    judge = _LiveJudge(replace(lab, holdouts=cast(Any, {"verify": object()})), compare=False)
    assert not judge.recall(HONEST, "warmup")
    assert judge.recall(HONEST.model_copy(update={"id": "t2", "arm": "candidate"}), "candidate")


def test_a_block_without_forged_evidence_does_not_count(lab: Lab) -> None:
    judge = _LiveJudge(lab, compare=False)
    judge.finish("redteam/0")
    assert "forged from is missing" in judge.trouble


def test_a_record_without_forged_evidence_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Outcome:
        void, setup, timed, invariants = "", (HONEST,), (), {}
        plan = type("Plan", (), {"step": "redteam/0"})

    monkeypatch.setattr(live, "_run", lambda *_: Outcome)
    with pytest.raises(ContractError, match="No evidence was forged"):
        live.run_live(lab, "redteam/0", [])
    lab.keep("redteam/redteam/0", {"forged": []})
    assert live.run_live(lab, "redteam/0", []).forged == ()

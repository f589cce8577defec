"""`rsi explain`: what a person and a program are given."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.audit.explain_page import explain_data, explain_page
from rsi_tui.cli import app
from rsi_tui.evaluator.failure_rules import RULES
from tests.evaluator.test_log_files import OOM, PEER, WATCHDOG, write

HOSTILE = f"\x1b]0;title\x07\x1b[31m[rank1]: {OOM}\x1b[0m\u202e 学習 🚀\r"


def test_the_document_has_class_cause_evidence_facts_and_advice(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["explain", *write(tmp_path, a=f"step 1\n{OOM}\n"), "--json"])
    data = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (data["class"], data["facts"]["requested_bytes"], data["facts"]["free_bytes"]) == ("gpu_oom", 2 * 2**30, 2**30)
    assert data["evidence"] == [OOM] and data["evidence_at"] == [{"file": str(tmp_path / "a.log"), "line": 2}]
    assert "2 GiB were asked for and 1 GiB of 23.5 GiB free" in data["root_cause"] and data["advice"]


def test_stdin_is_a_log() -> None:
    done = CliRunner().invoke(app, ["explain", "-", "--json"], input=OOM)
    assert json.loads(done.stdout)["class"] == "gpu_oom"


def test_unknown_says_what_was_looked_at_and_is_no_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["explain", *write(tmp_path, a="all\nis well\n")])
    assert done.exit_code == 0
    assert "unknown" in done.stdout and "2 lines" in done.stdout and "is well" in done.stdout


@pytest.mark.parametrize("width", [40, 79])
def test_no_escape_reaches_the_terminal_and_columns_hold(tmp_path: Path, width: int) -> None:
    page = explain_page(explain_data(write(tmp_path, a=HOSTILE + "\n", b=PEER)), width)
    assert not [c for c in page if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
    assert max(map(len, page.split("\n"))) <= width
    assert "学習" in page and "title" not in page


def test_several_logs_are_shown_by_causality(tmp_path: Path) -> None:
    page = explain_page(explain_data(write(tmp_path, rank0=WATCHDOG.format(0), rank1=f"a\n{OOM}", rank2=PEER)))
    assert page.index("cause: Rank 1") < page.index("symptom: Rank 0") < page.index("consequence: Rank 2")


def test_a_rank_that_says_nothing_while_others_wait_is_pointed_at(tmp_path: Path) -> None:
    data = explain_data(write(tmp_path, rank0=WATCHDOG.format(0), rank1=WATCHDOG.format(1), rank2="step 4 loss 2.0"))
    assert data["class"] == "collective_timeout" and "Rank 2 printed no error" in data["root_cause"]


def test_the_rules_can_be_read() -> None:
    done = CliRunner().invoke(app, ["explain", "--rules", "--json"])
    assert [rule["name"] for rule in json.loads(done.stdout)] == [rule.name for rule in RULES]
    page = CliRunner().invoke(app, ["explain", "--rules"]).stdout
    assert all(rule.name in page for rule in RULES)


def test_without_a_file_it_says_what_to_give() -> None:
    done = CliRunner().invoke(app, ["explain"])
    assert done.exit_code != 0 and "folder of logs" in str(done.exception)

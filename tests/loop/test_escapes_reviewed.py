"""Whatever an attempt to escape does, its text alone gives it away: each leaves a finding that refuses the candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.evaluator.redteam.escapes import ESCAPES, Escape
from rsi_tui.loop.static_review import review_diff

from .test_static_review import STYLES, contract

DENSE = Path(__file__).parents[2] / "workloads" / "dense_single"


def planted(text: str, escape: Escape) -> str:
    """The program with the attempt's functions before its main function, and a call of each at its beginning."""
    lines = escape.code.strip().splitlines()
    ways = [line.split("(")[0].removeprefix("def ") for line in lines if line.startswith("def way_")]
    head, main, rest = text.partition("def main():\n") if "def main():\n" in text else text.partition("def main() -> None:\n")
    assert main and ways
    calls = "".join(f"    {way}()\n" for way in ways)
    return f"{head}T = {{}}\n{escape.code}\n\n{main}{calls}{rest}"


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda e: e.name)
def test_an_attempt_to_escape_leaves_a_finding(escape):
    before = dict(STYLES["M"])
    after = before | {"train.py": planted(before["train.py"], escape)}
    compile(after["train.py"], "train.py", "exec")
    assert any(f.severity in ("exploit", "scope") for f in review_diff(before, after, None, contract()))


@pytest.mark.parametrize("escape", ESCAPES[::7], ids=lambda e: e.name)
def test_it_leaves_one_in_a_real_program_too(escape):
    loaded = load_contract(DENSE)
    before = {"train.py": (DENSE / "train.py").read_text()}
    after = {"train.py": planted(before["train.py"], escape)}
    assert any(f.severity in ("exploit", "scope") for f in review_diff(before, after, None, loaded))

"""What the library's own techniques make is vouched for, exactly that and nothing beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.journal.facts import CandidateFacts, FindingFacts
from rsi_tui.loop.reviewer import static_findings
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import apply_all

FOLDER = Path(__file__).parents[2] / "workloads" / "moe_single"
CONTRACT = load_contract(FOLDER, "quick")
BEFORE = {name: (FOLDER / name).read_text() for name in CONTRACT.editable}
TECHNIQUE = "batched-experts"
MADE = {**BEFORE, **apply_all((TECHNIQUE,), Situation(BEFORE, CONTRACT, None, CONTRACT.defaults)).sources}
CHEATED = {**MADE, "train.py": MADE["train.py"].replace("import math\n", "import math\nimport time\ntime.time = lambda: 0.0\n", 1)}
PARENT = CandidateFacts(id="original", commit="a", base="a", knobs=CONTRACT.defaults)


def findings(after: dict[str, str], techniques: tuple[str, ...], members: tuple[str, ...] = ()) -> list[FindingFacts]:
    candidate = CandidateFacts(id="c1", commit="b", base="a", parent="original", techniques=techniques, members=members)
    changed = [SimpleNamespace(path=p, mode_before="100644", mode_after="100644") for p in after if after[p] != BEFORE[p]]
    ctx: Any = SimpleNamespace(
        memory=SimpleNamespace(parent=lambda _: PARENT), mirror=SimpleNamespace(changed_paths=lambda *_: changed),
        sources=lambda commit: {"a": BEFORE, "b": after}[commit], usable=CONTRACT, contract=CONTRACT, profile=None,
    )  # fmt: skip
    return [f for f in static_findings(ctx, candidate) if f.severity in ("exploit", "scope")]


def test_what_a_technique_makes_is_left_to_the_evaluator() -> None:
    assert findings(MADE, (TECHNIQUE,)) == []


@pytest.mark.parametrize("techniques", [(), ("sdpa",)], ids=["says nothing", "says another"])
def test_the_same_text_by_anybody_else_is_reviewed(techniques: tuple[str, ...]) -> None:
    assert findings(MADE, techniques)


def test_a_technique_is_no_cover_for_what_stands_beside_it() -> None:
    alone, joined = findings(CHEATED, (TECHNIQUE,)), findings(CHEATED, (TECHNIQUE,), ("c2", "c3"))
    assert alone and joined
    assert {f.path for f in joined} == {"train.py"}  # of a join only the rest is looked at

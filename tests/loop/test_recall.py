"""What failed before is not tried again under the same conditions, unless a person asks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rsi_tui.loop import recall as room
from rsi_tui.loop.recall import Recall
from rsi_tui.minds.protocol import PastEffect
from tests.minds.test_builtin import ATTENTION
from tests.support.campaigns import PatchMind
from tests.support.loops import bench

FAILED = PastEffect(
    record="old/c1", techniques=("sdpa",), knobs={}, verdict="invalid", outcome="ok", log_ratio=None, fit=1.0,
    same_workload=True, same_conditions=True,
)  # fmt: skip


@pytest.mark.parametrize("retry", [False, True])
def test_retry_opens_the_gate_and_what_the_mind_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: bool
) -> None:
    ctx = bench(tmp_path, PatchMind([])).ctx
    recall = Recall(SimpleNamespace(root=tmp_path), ctx.created, ctx.contract, retry=retry)  # type: ignore[arg-type]
    row = SimpleNamespace(id="old/c1", verdict="invalid", campaign="old", reason="bf16")
    recall._library = SimpleNamespace(duplicates=lambda **_: [SimpleNamespace(row=row, why="same change")])  # type: ignore[assignment]
    monkeypatch.setattr(room.room, "recall", lambda *_: SimpleNamespace(past=(FAILED,), hits=()))
    monkeypatch.setattr(room.room, "hits", lambda *_: ())
    memories = recall(ATTENTION, 0)
    assert memories.past == (replace(FAILED, same_conditions=not retry),)
    assert (memories.refuted(ctx.memory.original, ctx.memory.original, "", "") is None) == retry

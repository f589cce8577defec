"""A mind that proposes given patches, and a bundled workload in a repository of its own, for benches that run campaigns."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.minds.protocol import (
    ChangeAnswer,
    CloseDirection,
    DirectionAnswer,
    DirectorBrief,
    EndSearch,
    ExecutorBrief,
    HypothesisAnswer,
    SelectorBrief,
)

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"


@dataclass(frozen=True)
class Patch:
    """What it does in words, and the files that it changes."""

    name: str
    files: dict[str, str]
    """path -> whole text"""


@dataclass
class Scripted(BuiltinMind):
    """A mind that proposes these patches, one a round, in one direction."""

    patches: Sequence[Patch]
    name: str = field(default="scripted", init=False)

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        if brief.open_or_closed:
            return EndSearch("every patch was tried")
        return DirectionAnswer(
            question="Does any of these patches matter?", layer="kernel", start_kind="original", start="original",
            techniques=(), reason="the bench proposes them", expected_gain=0.05, budget=len(self.patches),
            closing_rule="closed when every patch was tried",
        )  # fmt: skip

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        number = brief.round - 1
        if number >= len(self.patches):
            return CloseDirection("every patch was tried")
        return HypothesisAnswer(
            parent="original", statement=f"Patch {number}, {self.patches[number].name}, makes a step 5 % faster.",
            techniques=(), knobs={}, predicted_time=-0.05, predicted_memory=0.0, refuted_by="no effect in screening",
            evidence=(),
        )  # fmt: skip

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        number = int(brief.hypothesis.statement.split(",")[0].removeprefix("Patch "))
        return ChangeAnswer(sources=self.patches[number].files)


def repository(workload: str, folder: Path, preset: str) -> Path:
    """A bundled workload with a preset of the bench's own (text in TOML), in a repository of its own; made once."""
    if folder.exists():
        return folder
    shutil.copytree(WORKLOADS / workload, folder, ignore=shutil.ignore_patterns("__pycache__", "out"))
    with (folder / "workload.toml").open("a") as file:
        file.write(preset)
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "a bundled workload"]):
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    return folder

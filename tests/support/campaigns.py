"""Running real campaigns in tests: the tiny workload in a repository of its own, and doubles for the mind."""

from __future__ import annotations

import shutil
import subprocess
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

TINY = Path(__file__).parents[1] / "workloads" / "tiny"
WORKLOADS = Path(__file__).parents[2] / "workloads"


def git(folder: Path, *args: str) -> str:
    """Run git there with an identity; returns its output."""
    identity = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
    done = subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def tiny_repository(folder: Path, **replaced: str) -> Path:
    """The tiny workload, committed; `replaced` maps file names (dots as __) to texts."""
    return committed(TINY, folder, **replaced)


def committed(program: Path, folder: Path, **replaced: str) -> Path:
    """A copy of a program, committed."""
    shutil.copytree(program, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in replaced.items():
        (folder / name.replace("__", ".")).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a training program")
    return folder


@dataclass
class PatchMind(BuiltinMind):
    """A mind that proposes given patches (path -> text appended), one a round, in one direction."""

    patches: list[dict[str, str]]
    layer: str = "kernel"
    name: str = field(default="double", init=False)

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch:
        if brief.open_or_closed:
            return EndSearch("every patch was tried")
        return DirectionAnswer(
            question="Do these patches matter?",
            layer=self.layer,  # type: ignore[arg-type]
            start_kind="original",
            start="original",
            techniques=(),
            reason="they are what the test is about",
            expected_gain=0.1,
            budget=len(self.patches),
            closing_rule="closed when every patch was tried",
        )

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        tried = brief.round - 1
        if tried >= len(self.patches):
            return CloseDirection("every patch was tried")
        return HypothesisAnswer(
            parent="original",
            statement=f"Patch {tried + 1} makes a step 10 % faster.",
            techniques=(),
            knobs={},
            predicted_time=-0.1,
            predicted_memory=0.0,
            refuted_by="no effect in screening",
            evidence=(str(tried),),
        )

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        number = int(brief.hypothesis.statement.split()[1]) - 1
        patch = self.patches[number]
        return ChangeAnswer(sources={path: brief.sources[path] + text for path, text in patch.items()})


def no_op_patches(count: int) -> list[dict[str, str]]:
    """Patches that change the syntax tree and nothing else."""
    return [{"model.py": f"\n\ndef helper_{n}(value):\n    return value + {n}\n"} for n in range(count)]


def expert_repository(folder: Path, preset: str = "") -> Path:
    """The tiny program with the Mixture-of-Experts layers of the bundled `workloads/moe_single`, word for word, in place of its MLPs.

    The bundled program itself needs twice the time to start (its text, its optimizer), which is what a campaign of
    short runs mostly waits for. `preset` is added to workload.toml. Micro-batches of one sequence, as of a model that
    fills its machine.
    """
    bundled = (WORKLOADS / "moe_single" / "model.py").read_text()
    layers = bundled[bundled.index("class Expert(nn.Module)") : bundled.index("class Block(nn.Module)")]
    model = (TINY / "model.py").read_text()
    for old, new in (
        ("import math\n", "import math\nfrom types import SimpleNamespace\n"),
        ("class Block(nn.Module)", f"{layers}class Block(nn.Module)"),
        (
            "nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))",
            "SparseMoE(SimpleNamespace(n_embd=width, expert_size=2 * width, n_expert=32, top_k=2))",
        ),
        ("x + self.mlp(self.ln_2(x))", "x + self.mlp(self.ln_2(x))[0]"),
    ):
        assert model.count(old) == 1, old
        model = model.replace(old, new)
    train = (TINY / "train.py").read_text().replace("batch_size = 4", "batch_size = 8").replace('"--micro-batch", type=int, default=2', '"--micro-batch", type=int, default=1')
    contract = (TINY / "workload.toml").read_text().replace("default = 2", "default = 1").replace('"--micro-batch 1"', '"--micro-batch 2"')
    data = (TINY / "data.py").read_text().replace("BLOCK_SIZE = 256", "BLOCK_SIZE = 128")
    return tiny_repository(folder, model__py=model, train__py=train, data__py=data, workload__toml=contract + preset)

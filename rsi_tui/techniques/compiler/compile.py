"""torch.compile for the model."""

from __future__ import annotations

from math import log

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms.modules import module_classes
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import owners, trained_modules
from rsi_tui.techniques.idioms.tree import Edits

COLD_COMPILE_S = 25.0
"""one cold compile of a small model's forward and backward pass, two cores"""
SAVED_BY_COMPILING = 0.15


class TorchCompile(Codemod):
    id = "torch-compile"
    title = "Compiled model"
    layer: Layer = "compiler"
    summary = (
        "Compiles the model in place (Module.compile, so that the names in checkpoints stay): elementwise operations "
        "are fused and Python leaves the inner loop. A cold compile costs about 25 s at the start of each run."
    )
    applies_when = "an nn.Module is made and trained uncompiled; worth it only for runs that are long against 25 s"
    risk = "Fused kernels round otherwise by about 1e-6 relative; recompiles when shapes change."
    source = "Ansel et al. 2024, PyTorch 2, ASPLOS"
    conflicts: tuple[str, ...] = ("regional-compile",)
    words = ("nn", "torch")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if any("compile" in f.text and program.calls_anywhere("compile") for f in program.files.values()):
            return
        classes = module_classes(program)
        for suites in owners(file):
            for block in suites:
                for name, (at, _) in trained_modules(file, block, classes).items():
                    edits.after(block.statements[at], f"{name}.compile()\n")

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or profile.step_s <= 0:
            return Effect(time=1.0)
        steps = sum(situation.contract.objective.steps) / 2
        # a run pays the whole compile, however long a real job is
        return Effect(log(1 - SAVED_BY_COMPILING + COLD_COMPILE_S / max(1e-9, steps * profile.step_s)), memory=-0.05)

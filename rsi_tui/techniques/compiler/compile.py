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

COLD_COMPILE_S = 38.0
"""one cold compile of a small model's forward and backward pass, two cores"""
SAVED_BY_COMPILING = 0.2
COMPILERS_PEAK_BYTES = 800 * 2**20
"""what a program's peak is at least where the compilers of C++ run beside it, on a CPU: measured with a model of 7 million parameters"""


class TorchCompile(Codemod):
    id = "torch-compile"
    title = "Compiled model"
    layer: Layer = "compiler"
    summary = (
        "Compiles the model in place (Module.compile, so that the names in checkpoints stay): elementwise operations "
        "are fused and Python leaves the inner loop. A cold compile costs about 40 s of two cores at the start of each run."
    )
    applies_when = "an nn.Module is made and trained uncompiled; worth it for jobs that are long against that, where the compilers' memory fits"
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
        return compiled(situation, SAVED_BY_COMPILING, COLD_COMPILE_S)


def compiled(situation: Situation, saved: float, cold_s: float) -> Effect:
    """Effect of compiling: `saved` of each step, one cold start of `cold_s` a run, the memory of the compilers."""
    profile = situation.profile
    if profile is None or profile.step_s <= 0:
        return Effect(log(1 - saved), startup_s=cold_s)
    share = cold_s / (situation.contract.objective.amortise_over * profile.step_s)
    memory = -0.05
    if profile.device == "cpu" and profile.peak_bytes:
        memory = max(memory, log(COMPILERS_PEAK_BYTES / profile.peak_bytes))
    return Effect(log(1 - saved + share), memory=memory, startup_s=cold_s)

"""torch.compile for the block that a model repeats, and its mode where a program compiles already."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.compiler.compile import SAVED_BY_COMPILING, compiled
from rsi_tui.techniques.idioms.modules import module_classes, module_names
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import owners, trained_modules
from rsi_tui.techniques.idioms.tree import Edits, code, keyword, walk, with_keyword
from rsi_tui.techniques.memory.checkpointing import module_lists

COLD_BLOCK_S = 36.0
"""one cold compile of one block's forward and backward pass, two cores; most of it is the compiler's own start"""
SAVED_BY_REGIONS = 0.8
"""of what compiling the whole model saves"""


class RegionalCompile(Codemod):
    id = "regional-compile"
    title = "Repeated blocks compiled"
    layer: Layer = "compiler"
    summary = (
        "Compiles each block of the model's nn.ModuleList in place. All of them share one compiled block, so that the "
        "cold start is that of one block and not of the whole model; what lies around the blocks stays eager."
    )
    applies_when = "a model whose forward pass loops over an nn.ModuleList is made and trained uncompiled; for long runs"
    risk = "Fused kernels round otherwise by about 1e-6 relative; recompiles when shapes change."
    source = "PyTorch tutorial, 'Reducing torch.compile cold start compilation time with regional compilation'"
    conflicts: tuple[str, ...] = ("torch-compile",)
    words = ("nn", "torch")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if any("compile" in f.text and program.calls_anywhere("compile") for f in program.files.values()):
            return
        classes = module_classes(program)
        lists = _looped_lists(program)
        for suites in owners(file):
            for block in suites:
                for name, (at, made) in trained_modules(file, block, classes).items():
                    calls = [n for n in walk(made) if isinstance(n, cst.Call)]
                    found = next((lists[c] for n in calls if (c := code(n.func).split(".")[-1]) in lists), ())
                    part = f"{name}_part"
                    edits.after(
                        block.statements[at],
                        *(f"for {part} in {name}.{listed}:\n    {part}.compile()\n" for listed in found),
                    )

    def predict(self, situation: Situation) -> Effect:
        return compiled(situation, SAVED_BY_REGIONS * SAVED_BY_COMPILING, COLD_BLOCK_S)


def _looped_lists(program: Program) -> dict[str, tuple[str, ...]]:
    """Class -> its module lists over which a method of it loops."""
    found: dict[str, tuple[str, ...]] = {}
    for file in program.files.values():
        for function in file.functions:
            if function.cls is None or function.node.name.value.startswith("__"):
                continue
            lists = module_lists(file, function.cls)
            looped = {
                code(node.iter).partition(".")[2]
                for node in walk(function.node)
                if isinstance(node, cst.For) and code(node.iter).partition(".")[0] == function.me
            }
            if listed := tuple(sorted(lists & looped)):
                found[function.cls.name] = tuple(sorted({*found.get(function.cls.name, ()), *listed}))
    return found


class CompileMode(Codemod):
    id = "compile-max-autotune"
    title = "Compiled with measured kernels"
    layer: Layer = "compiler"
    summary = (
        "Gives a torch.compile that the program calls already mode='max-autotune-no-cudagraphs': templates for matrix "
        "products are timed on the GPU and the fastest taken. The search makes the cold start longer by minutes."
    )
    applies_when = "the program calls torch.compile or Module.compile without a mode and trains on a GPU; for long runs"
    risk = "Another kernel for a product rounds otherwise by about 1e-6 relative; the choice can differ from run to run."
    source = "PyTorch documentation, torch.compile, mode"
    words = ("compile",)

    def apply(self, situation: Situation) -> Change:
        if situation.profile is not None and situation.profile.device == "cpu":
            return Change()
        return super().apply(situation)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        models = module_names(file, program)
        for node in walk(file.module):
            if not isinstance(node, cst.Call) or any(a.star for a in node.args):
                continue
            is_method = isinstance(node.func, cst.Attribute) and node.func.attr.value == "compile" and code(node.func.value) in models
            if (is_method or (file.qualified(node.func) == "torch.compile" and node.args)) and not any(
                keyword(node, k) is not None for k in ("mode", "options", "backend")
            ):
                edits.replace(node, with_keyword(node, "mode", '"max-autotune-no-cudagraphs"'))

    def predict(self, situation: Situation) -> Effect:
        return Effect(time=-0.03)

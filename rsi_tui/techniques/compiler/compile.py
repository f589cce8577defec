"""torch.compile for the model."""

from __future__ import annotations

from math import log

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import makes_module, module_classes
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, code, walk

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
    words = ("nn", "torch")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if any("compile" in f.text and program.calls_anywhere("compile") for f in program.files.values()):
            return
        classes = module_classes(program)
        owners = [f.blocks for f in file.functions] + [file.module_view()]
        for blocks in owners:
            for block in blocks:
                if any(_trains(s) for s in block.statements):
                    _compile(file, block, classes, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or profile.step_s <= 0:
            return Effect(time=1.0)
        steps = sum(situation.contract.objective.steps) / 2
        # a run pays the whole compile, however long a real job is
        return Effect(log(1 - SAVED_BY_COMPILING + COLD_COMPILE_S / max(1e-9, steps * profile.step_s)), memory=-0.05)


def _trains(statement: cst.CSTNode) -> bool:
    return any(isinstance(n, cst.Attribute) and n.attr.value == "backward" for n in walk(statement))


def _compile(file: SourceFile, block: Block, classes: set[str], edits: Edits) -> None:
    made: dict[str, int] = {}
    for at, statement in enumerate(block.statements):
        if _trains(statement):
            break
        given = flow.assigned(statement)
        if given is not None and (makes_module(file, given[1], classes) or (given[0] in made and _moves(given))):
            made[given[0]] = at
    for name, at in made.items():
        rest = block.statements[at + 1 :]
        if any(_is_called(n, name) for s in rest if _trains(s) for n in walk(s)):
            edits.after(block.statements[at], f"{name}.compile()\n")


def _moves(given: tuple[str, cst.BaseExpression]) -> bool:
    """`model = model.to(device)` keeps the module."""
    return code(given[1]).startswith(f"{given[0]}.")


def _is_called(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == name

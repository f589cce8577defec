"""Activation functions: one kernel instead of many, and in place where nobody needs the input."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.ops import Place, Reader
from rsi_tui.techniques.idioms.program import FUNCTIONAL, FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, children, keyword, walk, with_keyword
from rsi_tui.techniques.idioms.values import known_function

ELEMENTWISE_OPERATORS = ("aten::tanh", "aten::pow", "aten::erf", "aten::sigmoid", "TanhBackward", "PowBackward")
SAVED_OF_ELEMENTWISE = 0.7
IN_PLACE_LAYERS = ("torch.nn.ReLU", "torch.nn.ReLU6", "torch.nn.LeakyReLU", "torch.nn.ELU")
"""those whose backward pass reads the output, not the input"""


class FusedActivation(Codemod):
    id = "fused-activation"
    title = "Activation function in one kernel"
    layer: Layer = "kernel"
    summary = (
        "Replaces a GELU, SiLU or Mish that is written out as arithmetic by the library's own kernel: one pass over "
        "memory forward and one backward instead of some eight each, and one saved tensor instead of five."
    )
    applies_when = "an expression of one tensor equals a known activation function, however it is written"
    risk = "Rounds otherwise by about 1e-7 relative; the function is the same."
    source = "Hendrycks and Gimpel 2016, arXiv:1606.08415; torch.nn.functional.gelu"
    words = ("tanh", "erf", "sigmoid", "softplus", "exp")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function in file.functions:
            reader = Reader(file, function)
            for block in function.blocks:
                for at, statement in enumerate(block.statements):
                    if isinstance(statement, cst.SimpleStatementLine):
                        self._search(reader, function, Place(block, at), statement, edits)

    def _search(
        self, reader: Reader, function: FunctionView, place: Place, node: cst.CSTNode, edits: Edits
    ) -> None:
        """The largest expressions first."""
        if isinstance(node, cst.BinaryOperation) and (found := known_function(reader, node, place)):
            call, variable, used = found
            if _steps_are_private(function, place, node, variable, used):
                functional = reader.file.spell(FUNCTIONAL, edits)
                edits.replace(node, f"{functional}.{call.format(variable)}")
                for index in used:
                    edits.remove(place.block.statements[index])
                return
        for child in children(node):
            self._search(reader, function, place, child, edits)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.05, memory=-0.05)
        share = situation.profile.operator_share(*ELEMENTWISE_OPERATORS)
        # products and sums of the same expression are not told apart from others; they cost about as much again
        return Effect(faster(2 * share, SAVED_OF_ELEMENTWISE), memory=-min(0.15, share), confidence="medium")


def _steps_are_private(
    function: FunctionView, place: Place, node: cst.CSTNode, variable: str, used: set[int]
) -> bool:
    """Whether the statements that hold parts of the expression serve nothing else."""
    statements = place.block.statements
    parts = [statements[i] for i in used]
    for part in parts:
        given = flow.assigned(part)
        if given is None or given[0] == variable or flow.names(function.node).bound[given[0]] != 1:
            return False
        if flow.reads_outside(function.node, given[0], [*parts, node]):
            return False
    return not used or not place.block.rebound({variable}, min(used), place.index - 1)


class InPlaceActivation(Codemod):
    id = "inplace-activation"
    title = "Activation in place"
    layer: Layer = "memory"
    summary = (
        "Lets a ReLU directly behind a linear layer or a convolution overwrite its input, which nothing else reads: "
        "one activation tensor less, and no new pages to touch."
    )
    applies_when = "ReLU, LeakyReLU or ELU follows a linear layer or convolution immediately"
    risk = "None to the numbers; fails loudly where the input is needed after all."
    source = "PyTorch documentation, torch.nn.ReLU"
    words = ("ReLU", "ELU", "relu")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for node in walk(file.module):
            if isinstance(node, cst.Call) and file.qualified(node.func) == "torch.nn.Sequential":
                for before, after in zip(node.args, node.args[1:], strict=False):
                    self._consider(file, before.value, after.value, edits)
        for function in file.functions:
            reader = Reader(file, function)
            for node in walk(function.node):
                if isinstance(node, cst.Call) and file.qualified(node.func) in ("torch.nn.functional.relu", "torch.relu"):
                    inner = node.args[0].value if len(node.args) == 1 else None
                    if isinstance(inner, cst.Call) and reader.layer_kind(inner.func) == "torch.nn.Linear":
                        name = file.spell(f"{FUNCTIONAL}.relu", edits)
                        called = node.with_changes(func=cst.parse_expression(name))
                        edits.replace(node, with_keyword(called, "inplace", "True"))

    def _consider(
        self, file: SourceFile, before: cst.BaseExpression, after: cst.BaseExpression, edits: Edits
    ) -> None:
        makers = ("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d")
        if not isinstance(before, cst.Call) or not isinstance(after, cst.Call):
            return
        if file.qualified(before.func) not in makers or file.qualified(after.func) not in IN_PLACE_LAYERS:
            return
        if keyword(after, "inplace") is None and all(a.keyword is not None for a in after.args):
            edits.replace(after, with_keyword(after, "inplace", "True"))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.005, memory=-0.02)
        share = situation.profile.operator_share("aten::relu", "clamp_min", "leaky_relu", "aten::elu")
        return Effect(faster(share, 0.2), memory=-0.05)

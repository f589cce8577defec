"""Gradient clipping and clearing of gradients."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, keyword, walk, with_keyword

CLIPPING = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")
SHARE_OF_CLIPPING = 0.15
"""of the optimizer phase, where the profile does not show the norms apart"""
SAVED_OF_CLIPPING = 0.3


class ClipForeach(Codemod):
    id = "clip-foreach"
    title = "Multi-tensor gradient clipping"
    layer: Layer = "optimizer"
    summary = (
        "Passes foreach=True to clip_grad_norm_: norms and scaling are called once on the list of all gradients. On a "
        "CPU that is not the default, and a norm and a product per tensor are called from Python instead."
    )
    applies_when = "torch.nn.utils.clip_grad_norm_ or clip_grad_value_ is called without foreach"
    risk = "The same norms in the same order."
    source = "PyTorch documentation, torch.nn.utils.clip_grad_norm_"
    words = ("clip_grad_",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for node in walk(file.module):
            if (
                isinstance(node, cst.Call)
                and file.qualified(node.func) in CLIPPING
                and not any(a.star for a in node.args)
                and keyword(node, "foreach") is None
                and len(node.args) < 5
            ):
                edits.replace(node, with_keyword(node, "foreach", "True"))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None or situation.profile.device != "cpu":
            return Effect(time=-0.001)
        share = situation.profile.operator_share("linalg_vector_norm", "_foreach_norm", "aten::norm")
        share = share or SHARE_OF_CLIPPING * situation.profile.share("optimizer")
        return Effect(faster(share, SAVED_OF_CLIPPING))


class ZeroGradToNone(Codemod):
    id = "zero-grad-to-none"
    title = "Gradients set to none"
    layer: Layer = "optimizer"
    summary = (
        "Lets zero_grad drop the gradients instead of filling them with zeros: no pass over memory to clear them, none "
        "to add the first micro-batch to the zeros, and they are not held during the forward pass."
    )
    applies_when = "zero_grad(set_to_none=False) is asked for, or a loop fills every .grad with zeros"
    risk = "A parameter without a gradient is skipped by the optimizer, where a zero gradient still decays its weights."
    source = "PyTorch performance tuning guide, 'Use parameter.grad = None'"
    words = ("zero_grad", "zero_()")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for node in walk(file.module):
            match node:
                case cst.Call(func=cst.Attribute(attr=cst.Name(value="zero_grad"))):
                    asked = keyword(node, "set_to_none")
                    if isinstance(asked, cst.Name) and asked.value == "False":
                        edits.replace(node, with_keyword(node, "set_to_none", "True"))
                case cst.Expr(
                    value=cst.Call(
                        func=cst.Attribute(
                            value=cst.Attribute(attr=cst.Name(value="grad")) as grad, attr=cst.Name(value="zero_")
                        )
                    )
                ):
                    target = cst.AssignTarget(target=grad)
                    edits.replace(node, cst.Assign([target], cst.Name("None"), semicolon=node.semicolon))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.005, memory=-0.01)
        share = situation.profile.operator_share("aten::zero_", "aten::fill_")
        return Effect(faster(share, 0.8), memory=-0.02)

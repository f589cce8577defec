"""Several linear layers on one input -> one matrix product."""

from __future__ import annotations

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.joined_linear import join_layers
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits

LAYERS_JOINED = 3
SAVED_OF_LINEAR = 0.03
"""small: one larger product instead of three, less the copy that joins the weights"""


class FusedQkv(Codemod):
    id = "fused-qkv"
    title = "Queries, keys and values in one product"
    layer: Layer = "kernel"
    summary = (
        "Joins the weights of three linear layers on the same input at run time and makes one matrix product of them: "
        "fewer calls, the input is read once. Parameters keep their names and layout, so checkpoints do not change."
    )
    applies_when = "three nn.Linear layers of a module are called on the same variable one after the other"
    risk = "Another blocking of the products, about 1e-7 relative in fp32; later view() calls must not need contiguous rows."
    source = "Vaswani et al. 2017, arXiv:1706.03762; as in GPT-2's c_attn"
    words = ("Linear",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        join_layers(file, LAYERS_JOINED, edits)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.005)
        return Effect(faster(situation.profile.operator_share("addmm", "aten::mm", "linear"), SAVED_OF_LINEAR))

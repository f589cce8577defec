"""Activation checkpointing that keeps the results of matrix products."""

from __future__ import annotations

from math import log

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, is_true, keyword, walk, with_keyword
from rsi_tui.techniques.kernel.autocast import MATMUL_OPERATORS
from rsi_tui.techniques.memory.checkpointing import CHECKPOINT

_KEPT = '''\
_kept_products = [
    {torch}.ops.aten.mm.default,
    {torch}.ops.aten.addmm.default,
    {torch}.ops.aten.bmm.default,
    {torch}.ops.aten.convolution.default,
    {torch}.ops.aten._scaled_dot_product_flash_attention.default,
    {torch}.ops.aten._scaled_dot_product_efficient_attention.default,
    {torch}.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
'''
_CONTEXT = '''\
def _products_are_kept():
    """What a checkpoint does not compute again: matrix products, convolutions and attention."""
    return torch.utils.checkpoint.create_selective_checkpoint_contexts(_kept_products)
'''
OVERHEAD = 0.02
"""log-ratio: each operator in a checkpoint passes through Python"""
MEMORY_OF_PRODUCTS = 0.1
"""log-ratio to full checkpointing: 638 MiB for 586, between them and the 731 without any, four blocks of width 128"""


class SelectiveCheckpointing(Codemod):
    id = "selective-checkpointing"
    title = "Selective activation checkpointing"
    layer: Layer = "memory"
    summary = (
        "Lets a checkpoint keep the results of matrix products and of attention and compute only the cheap rest again: "
        "activations, norms, dropout. Most of what full checkpointing recomputes is saved, for part of the memory."
    )
    applies_when = "torch.utils.checkpoint.checkpoint(..., use_reentrant=False) is called without a context_fn"
    risk = "The same numbers; needs more memory than full checkpointing."
    source = "Korthikanti et al. 2022, arXiv:2205.05198; torch.utils.checkpoint.create_selective_checkpoint_contexts"
    conflicts: tuple[str, ...] = ("no-activation-checkpointing",)
    words = ("checkpoint",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for node in walk(file.module):
            if (
                isinstance(node, cst.Call)
                and file.qualified(node.func) == CHECKPOINT
                and node.args
                and not any(a.star for a in node.args)
                and _is_false(keyword(node, "use_reentrant"))
                and not is_true(keyword(node, "debug"))
                and keyword(node, "context_fn") is None
                and not _plain_function(file, node)
            ):
                if edits.empty:
                    if file.imports.get("torch") != "torch" or "import torch.utils.checkpoint\n" not in file.text.replace("\r", ""):
                        edits.import_line("import torch.utils.checkpoint")
                    edits.helper(_KEPT.format(torch=file.spell("torch", edits)))
                    edits.helper(_CONTEXT)
                edits.replace(node, with_keyword(node, "context_fn", "_products_are_kept"))

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        share = profile.operator_share(*MATMUL_OPERATORS) if profile else 0.4
        # of three passes' worth of products one is a recomputation
        return Effect(log(1 - 0.25 * min(0.9, share)) + OVERHEAD, memory=MEMORY_OF_PRODUCTS, confidence="low")


def _is_false(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "False"


def _plain_function(file: SourceFile, node: cst.Call) -> bool:
    """A function of this file and no layer, a chunk of the loss for example: its products are what is not to be kept."""
    first = node.args[0].value
    return isinstance(first, cst.Name) and file.function(first.value) is not None

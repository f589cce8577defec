"""Optimizer implementations that update all parameters at once: fused and foreach."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, is_true, keyword, walk, with_keyword, without_keyword

OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
"""those with a fused implementation on CPU and CUDA"""
SAVED_BY_FUSED = 0.6
SAVED_BY_FOREACH = 0.25
"""parts of the optimizer phase that go away, against one loop over the parameters in Python"""


def optimizer_calls(file: SourceFile) -> Iterator[cst.Call]:
    """Constructor calls of optimizers whose arguments are all visible."""
    for node in walk(file.module):
        if isinstance(node, cst.Call) and not any(a.star for a in node.args):
            package, _, name = file.qualified(node.func).rpartition(".")
            if name in OPTIMIZERS and (package == "torch.optim" or package.startswith("torch.optim.")):
                yield node


def _differentiable(call: cst.Call) -> bool:
    return keyword(call, "differentiable") is not None


class FusedOptimizer(Codemod):
    id = "fused-optimizer"
    title = "Fused optimizer step"
    layer: Layer = "optimizer"
    summary = (
        "Passes fused=True to Adam, AdamW, SGD or Adagrad: one kernel reads and writes each parameter and its moments "
        "once, where the plain step makes a dozen passes over memory and as many calls from Python per tensor."
    )
    applies_when = "a torch.optim optimizer with a fused implementation is made without fused=True"
    risk = "Rounds in another order, about 1e-7 relative to the update; parameters must be floating point."
    source = "PyTorch documentation, torch.optim, 'fused' implementations"
    conflicts: tuple[str, ...] = ("foreach-optimizer",)
    words = OPTIMIZERS

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for call in optimizer_calls(file):
            if not is_true(keyword(call, "fused")) and not _differentiable(call):
                edits.replace(call, with_keyword(without_keyword(call, "foreach"), "fused", "True"))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.02)
        return Effect(faster(situation.profile.share("optimizer"), SAVED_BY_FUSED), confidence="medium")


class ForeachOptimizer(Codemod):
    id = "foreach-optimizer"
    title = "Multi-tensor optimizer step"
    layer: Layer = "optimizer"
    summary = (
        "Passes foreach=True to the optimizer: each operation is called once on the list of all parameters, not once "
        "per parameter, which saves calls from Python. It needs temporary copies of all gradients."
    )
    applies_when = "a torch.optim optimizer is made with neither fused nor foreach"
    risk = "Same arithmetic as the plain loop; peak memory grows by up to the size of the parameters."
    source = "PyTorch documentation, torch.optim, 'foreach' implementations"
    conflicts: tuple[str, ...] = ("fused-optimizer",)
    words = OPTIMIZERS

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for call in optimizer_calls(file):
            fused = keyword(call, "fused")
            if not is_true(keyword(call, "foreach")) and not is_true(fused) and not _differentiable(call):
                edits.replace(call, with_keyword(without_keyword(call, "fused"), "foreach", "True"))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.005, memory=0.02)
        profile = situation.profile
        size = 4.0 * profile.parameters if profile.parameters else 0.0
        memory = min(0.3, size / profile.peak_bytes) if profile.peak_bytes else 0.02
        # on a GPU, eager optimizers take the multi-tensor path by themselves
        saved = SAVED_BY_FOREACH if profile.device == "cpu" else 0.0
        return Effect(faster(profile.share("optimizer"), saved), memory, confidence="low")

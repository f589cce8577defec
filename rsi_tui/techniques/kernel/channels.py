"""Convolutions with channels last in memory."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.modules import module_classes
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import owners, trained_modules
from rsi_tui.techniques.idioms.tree import Edits, walk

SAVED_OF_CONVOLUTIONS = 0.08
"""three 3x3 convolutions of 32 and 64 channels, forward and backward, one core: 54 ms before, 51 ms after"""
_LAYOUT_BOUND = {"view", "view_as", "as_strided", "stride", "is_contiguous", "data_ptr"}
"""what reads or needs the order of values in memory"""


class ChannelsLast(Codemod):
    id = "channels-last"
    title = "Channels last in memory"
    layer: Layer = "kernel"
    summary = (
        "Keeps the weights of two-dimensional convolutions with channels last in memory, and activations follow them: "
        "the layout that the fast kernels of CPUs and tensor cores compute in, without copies before and after each."
    )
    applies_when = "a model with nn.Conv2d is made and trained, and its code reshapes by reshape or flatten, not view"
    risk = "Another order of additions, about 1e-6 relative; a checkpoint holds the same values with other strides."
    source = "PyTorch tutorial, 'Channels Last Memory Format in PyTorch'"
    words = ("torch",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if program.calls_anywhere("channels_last", "channels_last_3d", "memory_format") or not _convolves(program):
            return
        classes = module_classes(program)
        for suites in owners(file):
            for block in suites:
                for name, (at, _) in trained_modules(file, block, classes).items():
                    layout = file.spell("torch.channels_last", edits)
                    edits.after(block.statements[at], f"{name}.to(memory_format={layout})\n")

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.05)
        return Effect(faster(situation.profile.operator_share("conv"), SAVED_OF_CONVOLUTIONS))


def _convolves(program: Program) -> bool:
    """Whether the program makes 2-D convolutions and nothing in it depends on the layout of activations."""
    found = False
    for file in program.files.values():
        for node in walk(file.module):
            if isinstance(node, cst.Call) and file.qualified(node.func) == "torch.nn.Conv2d":
                found = True
            if isinstance(node, cst.Attribute) and node.attr.value in _LAYOUT_BOUND:
                return False
    return found

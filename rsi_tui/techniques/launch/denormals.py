"""Subnormal numbers taken as zero."""

from __future__ import annotations

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import put_at_start
from rsi_tui.techniques.idioms.tree import Edits


class FlushDenormals(Codemod):
    id = "flush-denormals"
    title = "Subnormal numbers flushed to zero"
    layer: Layer = "launch"
    summary = (
        "Calls torch.set_flush_denormal(True) at the start. On many CPUs an operation on numbers below 1.2e-38 traps into "
        "microcode and takes a hundred times as long; tails of softmax and squares of tiny gradients are such numbers."
    )
    applies_when = "a program trains on a CPU"
    risk = "Numbers below 1.2e-38 become zero, in activations, gradients and the optimizer's state; weights are far larger."
    source = "PyTorch documentation, torch.set_flush_denormal"
    words = ("backward",)

    def apply(self, situation: Situation) -> Change:
        if situation.profile is not None and situation.profile.device != "cpu":
            return Change()
        return super().apply(situation)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if not program.calls_anywhere("set_flush_denormal"):
            put_at_start(file, f"{file.spell('torch.set_flush_denormal', edits)}(True)\n", edits)

    def predict(self, situation: Situation) -> Effect:
        return Effect(time=0.0)

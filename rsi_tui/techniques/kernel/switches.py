"""Switches of torch that are one line: TF32 products on, anomaly detection off."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import put_at_start
from rsi_tui.techniques.idioms.tree import Edits, is_true, walk
from rsi_tui.techniques.kernel.autocast import MATMUL_OPERATORS

SAVED_BY_TF32 = 0.5
"""of fp32 matrix products on a GPU with tensor cores; from NVIDIA's and PyTorch's documentation, not measured here"""
SAVED_BY_NO_ANOMALY = 0.25
"""of a step of four small layers on one core: 66 ms with it, 50 ms without"""


class Tf32(Codemod):
    id = "tf32"
    title = "TF32 matrix products"
    layer: Layer = "kernel"
    summary = (
        "Lets fp32 matrix products of a GPU use tensor cores with inputs rounded to 10 bits of mantissa "
        "(torch.set_float32_matmul_precision('high')). Sums, weights and everything else stay in fp32."
    )
    applies_when = "the contract allows rounding and the program multiplies in fp32 on a GPU, with the switch untouched"
    risk = "Rounds the inputs of products by about 1e-3 relative."
    source = "PyTorch documentation, 'CUDA semantics', TensorFloat-32; torch.set_float32_matmul_precision"
    affects: tuple[str, ...] = ("precision",)
    words = ("backward",)

    def apply(self, situation: Situation) -> Change:
        if situation.contract.invariants.precision != "bf16":
            return Change()
        if situation.profile is not None and situation.profile.device == "cpu":
            return Change()
        return super().apply(situation)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if program.calls_anywhere("set_float32_matmul_precision", "allow_tf32", "fp32_precision"):
            return
        put_at_start(file, f'{file.spell("torch.set_float32_matmul_precision", edits)}("high")\n', edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.02)
        if profile.device == "cpu" or profile.dtype != "float32":
            return Effect(time=0.0)
        return Effect(faster(profile.operator_share(*MATMUL_OPERATORS), SAVED_BY_TF32))


class NoAnomalyDetection(Codemod):
    id = "no-anomaly-detection"
    title = "Anomaly detection off"
    layer: Layer = "kernel"
    summary = (
        "Switches torch.autograd's anomaly detection off, which was left on after a search for NaN: it records a stack of "
        "Python for each operator and looks through every gradient for NaN."
    )
    applies_when = "the program calls torch.autograd.set_detect_anomaly(True) or runs under detect_anomaly()"
    risk = "None to the numbers; a NaN no longer stops the program at the operator that made it."
    source = "PyTorch performance tuning guide, 'Disable debugging APIs'; torch.autograd.detect_anomaly"
    words = ("detect_anomaly",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for node in walk(file.module):
            if not isinstance(node, cst.Call):
                continue
            name = file.qualified(node.func)
            if name.endswith(("autograd.set_detect_anomaly", "anomaly_mode.set_detect_anomaly")):
                if node.args and is_true(node.args[0].value) and not node.args[0].star:
                    off = node.args[0].with_changes(value=cst.Name("False"))
                    edits.replace(node, node.with_changes(args=[off, *node.args[1:]]))
            elif name.startswith("torch.") and name.endswith(".detect_anomaly"):
                edits.replace(node, f"{file.spell('torch.autograd.set_detect_anomaly', edits)}(False)")

    def predict(self, situation: Situation) -> Effect:
        return Effect(faster(1.0, SAVED_BY_NO_ANOMALY))

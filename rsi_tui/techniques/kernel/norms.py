"""RMSNorm and LayerNorm written out -> one function that makes fewer passes over memory."""

from __future__ import annotations

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.norms import Kind, WrittenNorm, written_norms
from rsi_tui.techniques.idioms.program import FUNCTIONAL, FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits

NORM_OPERATORS = ("aten::pow", "aten::mean", "rsqrt", "PowBackward", "MeanBackward")
ELEMENTWISE_BESIDE = 1.5
"""products and sums of the norms, for each second in the operators that only norms use"""
SAVED_OF_NORM = 0.5

_RMS = '''\
class _RmsNorm({torch}.autograd.Function):
    """x / sqrt(mean(x^2) + eps) over the last dimension, times weight."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        length = {torch}.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.square_().div_(x.size(-1)).add_(eps).rsqrt_()
        ctx.save_for_backward(x, inverse, weight)
        normed = x * inverse
        return normed if weight is None else normed.mul_(weight)

    @staticmethod
    def backward(ctx, grad):
        x, inverse, weight = ctx.saved_tensors
        normed = x * inverse
        product = (grad * normed).view(-1, x.size(-1))
        d_x, d_weight = grad, None
        if weight is None:
            along = product.sum(-1)
        else:
            along = product @ weight
            d_x = grad * weight
            if ctx.needs_input_grad[1]:
                d_weight = product.sum(0)
        d_x = {torch}.addcmul(d_x, normed, along.view(inverse.shape), value=-1.0 / x.size(-1))
        return d_x.mul_(inverse), d_weight, None
'''
_RMS_MAIN = '''\
def _rms_norm(x, weight, eps, dtype=None):
    """weight * (x / sqrt(mean(x^2) + eps)); in lower precision as it was written, with a cast ahead of the weight."""
    other = weight is not None and weight.dtype != x.dtype
    if other or x.dtype.itemsize < 4 or (dtype is not None and dtype != x.dtype):
        normed = x * {torch}.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        normed = normed if dtype is None else normed.to(dtype)
        return normed if weight is None else weight * normed
    return _RmsNorm.apply(x.contiguous(), weight, eps)
'''
_LAYER_MAIN = '''\
def _layer_norm(x, weight, bias, eps, dtype=None):
    """Normed over the last dimension; in lower precision as it was written, with a cast ahead of the weight."""
    other = weight is not None and weight.dtype != x.dtype
    if other or x.dtype.itemsize < 4 or (dtype is not None and dtype != x.dtype):
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / {torch}.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
        normed = normed if dtype is None else normed.to(dtype)
        normed = normed if weight is None else weight * normed
        return normed if bias is None else normed + bias
    return {F}.layer_norm(x, (x.size(-1),), weight, bias, eps)
'''


class _Norm(Codemod):
    layer: Layer = "kernel"
    kind: Kind
    helper: str
    definitions: tuple[str, ...]

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function, found in written_norms(file):
            if found.kind == self.kind and not _is_ours(function) and not _touched(found, edits):
                self._replace(found, file, edits)

    def _replace(self, found: WrittenNorm, file: SourceFile, edits: Edits) -> None:
        if edits.empty and f"def {self.helper}(" not in file.text:
            torch, functional = file.spell("torch", edits), file.spell(FUNCTIONAL, edits)
            for text in self.definitions:
                edits.helper(text.replace("{torch}", torch).replace("{F}", functional))
        args = [found.x, found.weight or "None"]
        if self.kind == "layer":
            args.append(found.bias or "None")
        args.append(found.eps)
        if found.dtype:
            args.append(f"dtype={found.dtype}")
        edits.replace(found.node, f"{self.helper}({', '.join(args)})")
        for statement in found.links:
            edits.remove(statement)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.02, memory=-0.01)
        share = situation.profile.operator_share(*NORM_OPERATORS)
        return Effect(faster((1 + ELEMENTWISE_BESIDE) * share, SAVED_OF_NORM), memory=-0.01)


def _is_ours(function: FunctionView) -> bool:
    """The helpers hold the idiom themselves, for lower precision."""
    return function.node.name.value in ("_rms_norm", "_layer_norm")


def _touched(found: WrittenNorm, edits: Edits) -> bool:
    return edits.touched(found.node) or any(edits.touched(s) for s in found.links)


class FusedRmsNorm(_Norm):
    id = "fused-rms-norm"
    title = "RMSNorm in one function"
    kind: Kind = "rms"
    helper = "_rms_norm"
    definitions = (_RMS, _RMS_MAIN)
    summary = (
        "Replaces an RMSNorm that is written out by one autograd function: it keeps the input and one number a row, and "
        "its hand-written gradient makes half of the passes over memory that those of the single operators make."
    )
    applies_when = "x / sqrt(mean(x^2) + eps) over the last dimension is written out, with or without a weight behind it"
    risk = (
        "Sums in another order, about 1e-7 relative in fp32; no second derivatives. A norm written in lower precision "
        "rounds otherwise there."
    )
    source = "Zhang and Sennrich 2019, arXiv:1910.07467"
    words = ("rsqrt", "sqrt", "** -0.5", "**-0.5")


class FusedLayerNorm(_Norm):
    id = "fused-layer-norm"
    title = "LayerNorm in one kernel"
    kind: Kind = "layer"
    helper = "_layer_norm"
    definitions = (_LAYER_MAIN,)
    summary = (
        "Replaces a LayerNorm that is written out by the library's own kernel: one pass forward and one backward, where "
        "mean, variance, division, weight and bias make some ten, each with a tensor kept for its gradient."
    )
    applies_when = "(x - mean) / sqrt(variance + eps) over the last dimension is written out, with the biased variance"
    risk = (
        "Mean and variance in another order of additions, about 1e-7 relative in fp32. A norm written in lower precision "
        "rounds otherwise there."
    )
    source = "Ba, Kiros and Hinton 2016, arXiv:1607.06450; torch.nn.functional.layer_norm"
    words = ("rsqrt", "sqrt", "** -0.5", "**-0.5", "**0.5", "** 0.5")

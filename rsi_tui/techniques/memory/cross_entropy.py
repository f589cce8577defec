"""The loss of a large vocabulary without all of its logits in memory at once."""

from __future__ import annotations

from abc import abstractmethod
from math import log

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.head_loss import HeadLoss, head_losses
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare

LOSS_OPERATORS = ("log_softmax", "nll_loss", "cross_entropy")
LOGITS_SHARE_OF_PEAK = 0.45
"""of peak memory, where the profile does not show the logits: a small model with a large vocabulary"""
SAVED_OF_LOSS = 0.3
"""of the loss's own operators, whose tensors stay in the cache"""
TIME_OF_CHUNKS = 0.04
"""log-ratio: smaller products, and one more sum into the head's gradient for each chunk"""
TIME_OF_RECOMPUTING = 0.05
"""log-ratio: a second product with the head, where vocabulary and width are about those of a small GPT"""

_CHUNKED = '''\
def _rows_cross_entropy(hidden, weight, bias, targets, options):
    logits = {F}.linear(hidden, weight, bias)
    if logits.dtype.itemsize == 2:
        logits = logits.float()
    return {F}.cross_entropy(logits, targets, reduction="sum", **options)
'''
_CHUNKED_MAIN = '''\
def _chunked_cross_entropy(hidden, weight, bias, targets, **options):
    """Mean cross-entropy of a linear layer's rows; logits are made a chunk at a time, and again for the backward pass."""
    hidden, targets = hidden.reshape(-1, hidden.size(-1)), targets.reshape(-1)
    rows = max(64, 2**20 // weight.size(0))
    parts = [
        {checkpoint}(_rows_cross_entropy, h, weight, bias, t, options, use_reentrant=False)
        for h, t in zip(hidden.split(rows), targets.split(rows))
    ]
    return sum(parts) / (targets != options.get("ignore_index", -100)).sum()
'''
_FUSED = '''\
class _LinearCrossEntropy({torch}.autograd.Function):
    """Mean cross-entropy of a linear layer's rows; a chunk's gradients are made while its logits are there."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, ignore_index):
        rows = max(64, 2**20 // weight.size(0))
        exact = {torch}.promote_types(hidden.dtype, {torch}.float32)
        kept = targets != ignore_index
        count = kept.sum()
        scale = (kept / count).to(exact).unsqueeze(1)
        total = {torch}.zeros((), dtype=exact, device=hidden.device)
        d_hidden, d_weight = {torch}.empty_like(hidden), {torch}.zeros_like(weight)
        d_bias = {torch}.zeros_like(bias) if bias is not None else None
        for start in range(0, hidden.size(0), rows):
            part = slice(start, start + rows)
            logits = {F}.linear(hidden[part], weight, bias)
            wanted = targets[part].where(kept[part], 0).unsqueeze(1)
            grad = logits.softmax(1, dtype=exact)
            # The largest probability is one over the sum of exponentials, which so are computed once.
            own, top = logits.gather(1, wanted).to(exact), logits.amax(1, keepdim=True).to(exact)
            log_p = own - top + grad.amax(1, keepdim=True).log()
            total -= log_p.squeeze(1).where(kept[part], 0).sum()
            grad = grad.scatter_add_(1, wanted, {torch}.full_like(wanted, -1, dtype=exact)).to(logits.dtype)
            d_hidden[part] = (grad @ weight) * scale[part]
            d_weight += grad.t() @ (hidden[part] * scale[part])
            if d_bias is not None:
                d_bias += (grad.t() @ scale[part].to(grad.dtype)).squeeze(1)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        return total / count

    @staticmethod
    def backward(ctx, grad):
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        return grad * d_hidden, grad * d_weight, None if d_bias is None else grad * d_bias, None, None
'''
_FUSED_MAIN = '''\
def _linear_cross_entropy(hidden, weight, bias, targets, ignore_index=-100):
    return _LinearCrossEntropy.apply(
        hidden.reshape(-1, hidden.size(-1)), weight, bias, targets.reshape(-1), ignore_index
    )
'''


class HeadLossCodemod(Codemod):
    """Puts a helper that takes hidden states and targets in place of the head and the mean cross-entropy on it."""

    layer: Layer = "memory"
    words = ("cross_entropy", "CrossEntropyLoss")
    helper: str
    definitions: tuple[str, ...]
    options: tuple[str, ...]
    """options of the loss that the helper takes"""
    needed: tuple[str, ...] = ()
    """options without which there is nothing to gain"""

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for found in head_losses(file, program):
            if not set(self.needed) <= set(found.options) <= set(self.options) or edits.touched(found.loss) or edits.touched(found.made):
                continue
            if not self._insert_helpers(file, edits):
                return
            call = found.call(self.helper)
            if found.kept:
                _keep_for_evaluation(found, call, file, edits)
            else:
                edits.replace(found.loss, call)
                for statement in (found.made, *found.links):
                    edits.remove(statement)

    def _insert_helpers(self, file: SourceFile, edits: Edits) -> bool:
        if f"{self.helper}(" in file.text:
            return False
        if edits.empty:
            F = file.spell("torch.nn.functional", edits)
            torch = file.spell("torch", edits)
            names = {"{F}": F, "{torch}": torch, "{checkpoint}": "torch.utils.checkpoint.checkpoint"}
            for text in self.definitions:
                if "{checkpoint}" in text:
                    edits.import_line("import torch.utils.checkpoint")
                for mark, name in names.items():
                    text = text.replace(mark, name)
                edits.helper(text)
        return True

    @abstractmethod
    def predict(self, situation: Situation) -> Effect: ...


def _keep_for_evaluation(found: HeadLoss, call: str, file: SourceFile, edits: Edits) -> None:
    """Logits that the function returns are made as before where no gradient is asked for."""
    enabled = f"{file.spell('torch.is_grad_enabled', edits)}()"
    guard = f"({found.guard})" if " or " in found.guard else found.guard
    condition = " and ".join(part for part in (guard, f"not {found.flag}" if found.flag else "", enabled) if part)
    edits.replace(found.made_value, f"None if {condition} else {bare(found.made_value)}")
    assert isinstance(found.loss, cst.BaseExpression)
    edits.replace(found.loss, f"({call} if {found.name} is None else {bare(found.loss)})")


def logits_share(situation: Situation) -> float:
    """Share of peak memory that logits, their log-softmax and their gradient take together."""
    profile = situation.profile
    if profile is None or not profile.peak_bytes:
        return 0.2
    largest = max((o.peak_output_bytes for o in profile.operators if any(w in o.name for w in LOSS_OPERATORS)), default=0)
    return min(0.7, 3 * largest / profile.peak_bytes) if largest else LOGITS_SHARE_OF_PEAK


class ChunkedCrossEntropy(HeadLossCodemod):
    id = "chunked-cross-entropy"
    title = "Chunked cross-entropy"
    summary = (
        "Makes the logits a chunk of rows at a time and throws them away, to make them again in the backward pass. "
        "Logits, their log-softmax and their gradient, each tokens x vocabulary, are never alive as a whole; it costs "
        "one more product with the head."
    )
    applies_when = "a mean cross-entropy is taken of a linear layer's output, and nothing that trains reads the logits"
    risk = "The mean is a sum of partial sums, about 1e-6 relative in fp32. The model returns no logits while it trains."
    source = "Luo et al. 2024, Mini-Sequence Transformer, arXiv:2407.15892; torch.utils.checkpoint"
    conflicts: tuple[str, ...] = ("linear-cross-entropy", "counted-rows-head")
    helper = "_chunked_cross_entropy"
    definitions = (_CHUNKED, _CHUNKED_MAIN)
    options = ("ignore_index", "label_smoothing")

    def predict(self, situation: Situation) -> Effect:
        memory = log(1 - 0.8 * logits_share(situation))
        if situation.profile is None:
            return Effect(time=0.05, memory=memory)
        share = situation.profile.operator_share(*LOSS_OPERATORS)
        return Effect(faster(share, SAVED_OF_LOSS) + TIME_OF_CHUNKS + TIME_OF_RECOMPUTING, memory, confidence="low")


class LinearCrossEntropy(HeadLossCodemod):
    id = "linear-cross-entropy"
    title = "Linear layer and cross-entropy fused"
    summary = (
        "Computes loss and gradients of a chunk of rows while its logits are in the cache, in the forward pass: the "
        "logits never reach memory as a whole, and nothing is computed twice."
    )
    applies_when = "a mean cross-entropy is taken of a linear layer's output, and nothing that trains reads the logits"
    risk = (
        "Another order of additions, about 1e-6 relative in fp32; no second derivatives. The model returns no logits "
        "while it trains."
    )
    source = "Hsu et al. 2024, Liger Kernel, arXiv:2410.10989; Wijmans et al. 2024, arXiv:2411.09009"
    conflicts: tuple[str, ...] = ("chunked-cross-entropy", "counted-rows-head")
    helper = "_linear_cross_entropy"
    definitions = (_FUSED, _FUSED_MAIN)
    options = ("ignore_index",)

    def predict(self, situation: Situation) -> Effect:
        memory = log(1 - 0.8 * logits_share(situation))
        if situation.profile is None:
            return Effect(time=0.01, memory=memory)
        share = situation.profile.operator_share(*LOSS_OPERATORS)
        return Effect(faster(share, SAVED_OF_LOSS) + TIME_OF_CHUNKS, memory, confidence="low")

"""Causal attention on a CPU, a block of queries at a time."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.program import FUNCTIONAL, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, code, walk
from rsi_tui.techniques.kernel.sdpa import ATTENTION_OPERATORS, SAVED_OF_ATTENTION, Sdpa

SAVED_OF_FUSED = 0.33
"""part of the time of PyTorch's fused kernel that blocks save on a CPU, T 512-1024, head size 32-64, one or two threads, pages reused"""
HELPER = "_causal_attention"

_FUNCTION = '''\
class _CausalBlocks({torch}.autograd.Function):
    """Causal attention of (batch, T, size) tensors: 64 queries at a time, each block with the keys up to its own end."""

    @staticmethod
    def forward(ctx, query, key, value, scale):
        hidden = {torch}.full((64, 64), float("-inf"), dtype=query.dtype).triu_(1)
        query, turned, parts, kept = query * scale, key.transpose(1, 2).contiguous(), [], []
        for start in range(0, query.size(1), 64):
            end = min(start + 64, query.size(1))
            scores = query[:, start:end] @ turned[:, :, :end]
            scores[:, :, start:] += hidden[: end - start, : end - start]
            kept.append(scores.softmax(-1))
            parts.append(kept[-1] @ value[:, :end])
        out = {torch}.cat(parts, 1)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, out, *kept)
        return out

    @staticmethod
    @{torch}.autograd.function.once_differentiable
    def backward(ctx, grad):
        query, key, value, out, *kept = ctx.saved_tensors
        d_key, d_value, parts = {torch}.zeros_like(key), {torch}.zeros_like(value), []
        own, turned = (grad * out).sum(-1, keepdim=True), value.transpose(1, 2).contiguous()
        for start, weights in zip(range(0, query.size(1), 64), kept):
            end = min(start + 64, query.size(1))
            part = grad[:, start:end]
            d_value[:, :end] += weights.transpose(1, 2) @ part
            d_scores = (part @ turned[:, :, :end]).sub_(own[:, start:end]).mul_(weights)
            parts.append(d_scores @ key[:, :end])
            d_key[:, :end] += d_scores.transpose(1, 2) @ query[:, start:end]
        return {torch}.cat(parts, 1).mul_(ctx.scale), d_key, d_value, None
'''
_MAIN = '''\
def _causal_attention(query, key, value, scale=None):
    """scaled_dot_product_attention with is_causal=True; in blocks where a CPU trains in full precision."""
    if (
        not {torch}.is_grad_enabled()
        or query.device.type != "cpu"
        or query.dtype not in ({torch}.float32, {torch}.float64)
        or {torch}.is_autocast_enabled("cpu")
        or not query.dtype == key.dtype == value.dtype
        or not query.shape == key.shape == value.shape
        or query.size(-2) < 256
    ):
        return {F}.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, value)]
    return _CausalBlocks.apply(*flat, query.size(-1) ** -0.5 if scale is None else scale).view(query.shape)
'''


class CausalBlocks(Codemod):
    id = "causal-blocks"
    title = "Causal attention in blocks"
    layer: Layer = "kernel"
    summary = (
        "Computes causal attention on a CPU 64 queries at a time, each block with the keys up to its own end, and keeps "
        "the weights for the backward pass. PyTorch's fused kernel computes them again there, by products too small "
        "to be fast. Elsewhere, in low precision and without gradients it calls the fused kernel."
    )
    applies_when = "a CPU trains with causal attention, fused or written out so that it can be fused, without dropout on its weights"
    risk = "Another order of additions, about 1e-6 relative in fp32; no second derivatives. Half of the weights are in memory."
    source = "Dao 2023, FlashAttention-2, arXiv:2307.08691, section 3.1 (blocks above the diagonal are skipped)"
    words = ("scaled_dot_product_attention",)

    def apply(self, situation: Situation) -> Change:
        if situation.profile is not None and situation.profile.device != "cpu":
            return Change()
        fused = {**situation.sources, **Sdpa().apply(situation).sources}
        return super().apply(replace(situation, sources=fused))

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if f"{HELPER}(" in file.text:
            return
        for call in [n for n in walk(file.module) if isinstance(n, cst.Call)]:
            if file.qualified(call.func) != f"{FUNCTIONAL}.scaled_dot_product_attention":
                continue
            if (args := _operands(call)) is None:
                continue
            if edits.empty:
                names = {"{F}": file.spell(FUNCTIONAL, edits), "{torch}": file.spell("torch", edits)}
                for text in (_FUNCTION, _MAIN):
                    for mark, name in names.items():
                        text = text.replace(mark, name)
                    edits.helper(text)
            edits.replace(call, f"{HELPER}({', '.join(args)})")

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.1, memory=0.05)
        fused, written = profile.operator_share("scaled_dot_product", "flash_attention"), profile.operator_share(*ATTENTION_OPERATORS)
        left = faster(fused, SAVED_OF_FUSED) + faster(written * (1 - SAVED_OF_ATTENTION), SAVED_OF_FUSED)
        if Sdpa().apply(situation).empty:
            return Effect(left, memory=0.05, confidence="medium")
        whole = Sdpa().predict(situation)
        return Effect(whole.time + left, memory=whole.memory + 0.05, confidence="medium")


def _operands(call: cst.Call) -> list[str] | None:
    """Query, key, value and scale of a causal call without dropout, as texts; None for any other call."""
    named = {a.keyword.value: code(a.value) for a in call.args if a.keyword is not None}
    plain = [a for a in call.args if a.keyword is None]
    if any(a.star for a in call.args) or len(plain) > 3:
        return None
    values = dict(zip(("query", "key", "value"), (code(a.value) for a in plain), strict=False)) | named
    if not {"query", "key", "value"} <= set(values) or values.get("is_causal") != "True":
        return None
    if values.get("dropout_p", "0.0") not in ("0", "0.0") or values.get("attn_mask", "None") != "None":
        return None
    if values.get("enable_gqa", "False") != "False":
        return None
    scale = values.get("scale", "None")
    return [values["query"], values["key"], values["value"], *([f"scale={scale}"] if scale != "None" else [])]

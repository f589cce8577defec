"""Causal attention in blocks: fused and written-out forms become calls that give the same numbers, all else is left."""

from __future__ import annotations

from typing import Any

import pytest

from rsi_tui.techniques.registry import get
from tests.techniques.situations import profile, situation
from tests.techniques.snippets import SDPA
from tests.techniques.test_codemods import applied

FUSED = """\
import torch
from torch.nn import functional as nnf


def attend(q, k, v):
    return nnf.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
CHANGED = {
    "positional": FUSED,
    "named, scaled": FUSED.replace("(q, k, v, is_causal=True)", "(query=q, key=k, value=v, dropout_p=0.0, is_causal=True, scale=0.3)"),
    "imported": FUSED.replace("from torch.nn import functional as nnf", "from torch.nn.functional import scaled_dot_product_attention as sdpa").replace(
        "nnf.scaled_dot_product_attention", "sdpa"
    ),
}
LEFT = {
    "with dropout": FUSED.replace("is_causal", "dropout_p=0.1, is_causal"),
    "with a mask": FUSED.replace("is_causal=True", "attn_mask=torch.ones(q.size(-2), k.size(-2)).tril() > 0"),
    "not causal": FUSED.replace(", is_causal=True", ""),
    "perhaps causal": FUSED.replace("is_causal=True", "is_causal=q.size(-2) > 1"),
    "keys shared by heads": FUSED.replace("is_causal", "enable_gqa=True, is_causal"),
    "another function of that name": FUSED.replace("from torch.nn import functional as nnf", "import nnf"),
}


def loaded(text: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(text, "any.py", "exec"), space)
    return space["attend"]


@pytest.mark.parametrize("name", sorted(CHANGED))
@pytest.mark.parametrize("shape", [(2, 3, 256, 16), (4, 300, 8), (1, 2, 257, 12), (2, 3, 64, 16)], ids=str)
def test_values_and_gradients_are_those_of_the_fused_kernel(name: str, shape: tuple[int, ...]) -> None:
    import torch

    after = applied("causal-blocks", CHANGED[name])
    assert "_CausalBlocks.apply" in after and applied("causal-blocks", after) == after
    results = []
    for attend in (loaded(CHANGED[name]), loaded(after)):
        torch.manual_seed(0)
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        out = attend(*inputs)
        out.backward(torch.randn(shape))
        results.append([out.detach(), *(x.grad for x in inputs)])
    for before, now in zip(*results, strict=True):
        torch.testing.assert_close(now, before, rtol=2e-5, atol=2e-6)


def test_low_precision_autocast_and_inference_keep_the_fused_kernel() -> None:
    import torch

    attend = loaded(applied("causal-blocks", FUSED))
    x = torch.randn(1, 2, 260, 8, requires_grad=True)
    assert "CausalBlocks" in attend(x, x, x).grad_fn.next_functions[0][0].name()
    half = x.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = attend(x, x, x)
    with torch.no_grad():
        still = attend(x, x, x)
    for out in (attend(half, half, half), cast):
        assert "ScaledDotProduct" in out.grad_fn.name()
    torch.testing.assert_close(still, attend(x, x, x).detach(), rtol=2e-5, atol=2e-6)


def test_a_second_derivative_is_refused_aloud() -> None:
    import torch

    x = torch.randn(1, 256, 4, requires_grad=True)
    (first,) = torch.autograd.grad(loaded(applied("causal-blocks", FUSED))(x, x, x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("name", sorted(LEFT))
def test_anything_else_is_left_alone(name: str) -> None:
    assert applied("causal-blocks", LEFT[name]) == LEFT[name]


def test_attention_that_is_written_out_is_fused_on_the_way() -> None:
    after = applied("causal-blocks", SDPA["buffer_masked_fill"])
    assert "y = _causal_attention(q, k, v)\n" in after and "masked_fill" not in after
    assert applied("causal-blocks", applied("sdpa", SDPA["buffer_masked_fill"])) == after


def test_a_gpu_keeps_its_fused_kernel() -> None:
    here = situation({"any.py": FUSED}, profile=profile({"aten::mm": 0.4}, device="cuda"))
    assert get("causal-blocks").apply(here).empty


def test_more_is_expected_where_attention_takes_more() -> None:
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    times = [get("causal-blocks").predict(situation({"any.py": FUSED}, profile=profile({fused: share}))).time for share in (0.1, 0.3)]
    assert times[1] < times[0] < 0

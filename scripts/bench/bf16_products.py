"""Matrix products in bf16 on a processor that has no units for them: in fp32 from the rounded values, rounded once.

Such a processor (x86 without AVX-512) takes some forty times as long in bf16 as in fp32, since nothing but plain
loops is left. What a bench wants to know there is how rounding moves the numbers, not how long it takes. The
products are those of a machine with bf16 units up to the order of their sums: operands and result have 8 bits
of mantissa, sums are in fp32. Attention kernels are left alone.
"""

from __future__ import annotations

import warnings

import torch

EMULATED = "No bf16 units on this machine: products in bf16 were computed in fp32 from rounded values and rounded once."
_LIBRARY: list[torch.library.Library] = []


def has_bf16_units() -> bool:
    """May torch leave bf16 products to oneDNN on this machine?"""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def emulate() -> None:
    """From now on products of this process go through fp32; nothing happens on a machine with bf16 units."""
    if _LIBRARY or has_bf16_units():
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced: it is meant to be
        for name, function in (("mm", _mm), ("bmm", _bmm), ("addmm", _addmm), ("baddbmm", _baddbmm)):
            library.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
    _LIBRARY.append(library)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def _room(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32 if like.dtype == torch.bfloat16 else like.dtype)


# The variants with `out` are other operators than those replaced here, so that nothing calls itself.


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(_wide(a), _wide(b), out=_room(a, a.shape[0], b.shape[1])).to(a.dtype)


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(_wide(a), _wide(b), out=_room(a, a.shape[0], a.shape[1], b.shape[2])).to(a.dtype)


def _addmm(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    room = _room(a, a.shape[0], b.shape[1])
    return torch.addmm(_wide(c), _wide(a), _wide(b), beta=beta, alpha=alpha, out=room).to(a.dtype)


def _baddbmm(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    room = _room(a, a.shape[0], a.shape[1], b.shape[2])
    return torch.baddbmm(_wide(c), _wide(a), _wide(b), beta=beta, alpha=alpha, out=room).to(a.dtype)

"""Writes forged checkpoints: python -P forge_checkpoints.py INITIAL FINAL KEY OUT.

Self-contained (standard library and torch), run in a sandbox and never imported by the engine. INITIAL and FINAL are
an honest run's checkpoints before its first and after its last update, KEY is where the state dict lies in them ('' when
they are one). OUT gets one file a forgery, its number and name as file name: what a cheat would hand in instead of
having trained. Prints the names, one a line. Exit code 3: the checkpoints can't be read.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

State = dict[str, torch.Tensor]
Forge = Callable[[State, State], None]
"""(initial weights, final weights): changes the final ones in place"""
COUNTERS = frozenset(("step", "steps", "iteration", "iterations", "iter", "global_step", "count"))
"""as in compare_worker"""


def largest(final: State) -> str:
    """The floating tensor with the most elements and more than one dimension, else the largest of all."""
    names = [name for name, tensor in final.items() if tensor.is_floating_point()]
    return max(names, key=lambda name: (final[name].dim() > 1, final[name].numel()))


def rescale(factor: float) -> Forge:
    def forge(initial: State, final: State) -> None:
        for name, tensor in final.items():
            if tensor.is_floating_point() and name in initial:
                final[name] = initial[name] + factor * (tensor - initial[name])

    return forge


def frozen(initial: State, final: State) -> None:
    name = largest(final)
    final[name] = initial[name].clone()


def dropped(initial: State, final: State) -> None:
    del final[largest(final)]


def renamed(initial: State, final: State) -> None:
    name = largest(final)
    final[f"{name}_"] = final.pop(name)


def added(initial: State, final: State) -> None:
    final["extra.weight"] = torch.zeros(4, 4)


def reshaped(initial: State, final: State) -> None:
    name = largest(final)
    final[name] = final[name].reshape(-1)


def as_bf16(initial: State, final: State) -> None:
    for name, tensor in final.items():
        if tensor.is_floating_point():
            final[name] = tensor.bfloat16()


def coarse(initial: State, final: State) -> None:
    for name, tensor in final.items():
        if tensor.is_floating_point():
            final[name] = tensor.bfloat16().to(tensor.dtype)


def one_nan(initial: State, final: State) -> None:
    name = largest(final)
    final[name] = final[name].clone()
    final[name].view(-1)[0] = float("nan")


def flipped(initial: State, final: State) -> None:
    name = largest(final)
    final[name] = initial[name] - (final[name] - initial[name])


def noisy(initial: State, final: State) -> None:
    """An update of the right size in every tensor, in a direction of its own."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in final.items():
        if tensor.is_floating_point() and name in initial:
            update = tensor - initial[name]
            noise = torch.randn(update.shape, generator=generator, dtype=torch.float32).to(update.dtype)
            final[name] = initial[name] + noise * (update.norm() / noise.norm().clamp(min=1e-30))


def shared(initial: State, final: State) -> None:
    """A tensor that shows more elements than its file holds."""
    name = largest(final)
    final[name] = final[name].reshape(-1)[:1].expand(final[name].numel()).reshape(final[name].shape)


FORGERIES: tuple[tuple[str, Forge], ...] = (
    ("the initial weights handed in", rescale(0.0)),
    ("an update two per cent short", rescale(0.98)),
    ("an update two per cent long", rescale(1.02)),
    ("the largest tensor untrained", frozen),
    ("the largest tensor's update turned round", flipped),
    ("random updates of the right size", noisy),
    ("a tensor left out", dropped),
    ("a tensor renamed", renamed),
    ("a tensor added", added),
    ("a tensor reshaped", reshaped),
    ("weights stored as bf16", as_bf16),
    ("weights rounded to bf16 and stored as fp32", coarse),
    ("one element NaN", one_nan),
    ("a tensor that repeats one element", shared),
)


def counted(value: Any, by: int) -> tuple[Any, bool]:
    """(a copy with its step counters moved on, whether there were any)."""
    if isinstance(value, dict):
        parts = {key: _counted_entry(key, item, by) for key, item in value.items()}
        return {key: item for key, (item, _) in parts.items()}, any(found for _, found in parts.values())
    if isinstance(value, list):
        items = [counted(item, by) for item in value]
        return [item for item, _ in items], any(found for _, found in items)
    return value, False


def _counted_entry(key: object, item: Any, by: int) -> tuple[Any, bool]:
    number = isinstance(item, int | float) and not isinstance(item, bool)
    scalar = isinstance(item, torch.Tensor) and item.numel() == 1
    return (item + by, True) if key in COUNTERS and (number or scalar) else counted(item, by)


class _Code:
    """What a pickle that runs code looks like."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()


def forged(initial: Any, final: Any, key: str) -> Iterator[tuple[str, Any]]:
    """(name, checkpoint) of each forgery."""
    before: State = initial[key] if key else initial
    for name, forge in FORGERIES:
        after = copy.deepcopy(final)
        forge(before, after[key] if key else after)
        yield name, after
    counters, found = counted(final, 1)
    if found:
        yield "a step counter one ahead", counters
    yield "a pickle that runs code", {key or "model": _Code()}


def main() -> int:
    first, last, key, out = sys.argv[1:]
    try:
        initial = torch.load(first, map_location="cpu", weights_only=True)
        final = torch.load(last, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever the file makes torch raise
        print(f"the checkpoints can't be loaded with weights_only=True ({type(error).__name__})")
        return 3
    for number, (name, checkpoint) in enumerate(forged(initial, final, key)):
        torch.save(checkpoint, Path(out) / f"{number:02} {name}.pt")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

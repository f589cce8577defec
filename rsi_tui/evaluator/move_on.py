"""Moves the step counters of a saved state on: python -P move_on.py STATE OUT UPDATES.

Self-contained (standard library and torch), run in a sandbox and never imported by the engine. Writes a copy
of STATE in which every step counter (by name, at any depth: a number or a tensor of one element) is larger by
UPDATES, everything else as it was. A program that starts from it believes that so many updates lie behind it.
Exit code 3: the state has no step counter, or can't be read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

COUNTERS = frozenset(("step", "steps", "iteration", "iterations", "iter", "global_step", "count"))
"""as in compare_worker"""
MAX_DEPTH = 12


def moved(value: object, by: int, name: str = "", depth: int = 0) -> tuple[object, int]:
    """(a copy with its counters moved on, how many there were)."""
    if depth > MAX_DEPTH:
        return value, 0
    if isinstance(value, Mapping):
        items = [(key, moved(item, by, str(key), depth + 1)) for key, item in value.items()]
        copy = value.copy() if hasattr(value, "copy") else dict(value)
        copy.update((key, item) for key, (item, _) in items)
        return copy, sum(count for _, (_, count) in items)
    if isinstance(value, list | tuple):
        parts = [moved(item, by, "", depth + 1) for item in value]
        return type(value)(item for item, _ in parts), sum(count for _, count in parts)
    if name in COUNTERS and not isinstance(value, bool):
        if isinstance(value, int | float):
            return value + by, 1
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype != torch.bool:
            return value + by, 1
    return value, 0


def main() -> int:
    source, target, by = sys.argv[1:]
    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever the file makes torch raise
        print(f"the state can't be loaded with weights_only=True ({type(error).__name__})")
        return 3
    copy, counters = moved(state, int(by))
    if not counters:
        print("the state holds no step counter")
        return 3
    torch.save(copy, target)
    print(f"moved {counters} counters")
    return 0


if __name__ == "__main__":
    sys.exit(main())

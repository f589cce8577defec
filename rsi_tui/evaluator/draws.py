"""What the evaluator draws in secret for a block: seed, length, order.

Drawn from the operating system's randomness, written to the vault (flushed) before anything is run,
committed to in the journal by hash, revealed when the campaign ends. A block that was interrupted
finds its draw in the vault and keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict

from rsi_tui.contract.model import Objective
from rsi_tui.evaluator.vault import Vault


class Draw(BaseModel):
    """Secrets of one block."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    """of the program, the same for both arms"""
    steps: int
    """length of each timed run"""
    order: tuple[str, ...]
    """labels of the timed slots, in the order run"""


def draw_steps(objective: Objective, randbelow: Callable[[int], int]) -> int:
    """A length: uniform over the contract's range, one time in three up to twice its end (holes H1)."""
    low, high = objective.steps
    if randbelow(3) == 0:
        return high + 1 + randbelow(high)
    return low + randbelow(high - low + 1)


def shuffled(labels: Sequence[str], randbelow: Callable[[int], int]) -> tuple[str, ...]:
    """A uniformly random order (Fisher-Yates)."""
    order = list(labels)
    for i in range(len(order) - 1, 0, -1):
        j = randbelow(i + 1)
        order[i], order[j] = order[j], order[i]
    return tuple(order)


def keep_or_draw(vault: Vault, block: str, make: Callable[[], Draw]) -> tuple[Draw, str]:
    """The draw of a block and its commitment, made once and read back from the vault."""
    key = f"block/{block}"
    if vault.get(key) is None:
        vault.put(key, make().model_dump(mode="json"))
    return Draw.model_validate(vault.get(key)), vault.commitment(key)

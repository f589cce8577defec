"""Minds by name."""

from __future__ import annotations

from rsi_tui.errors import UsageError
from rsi_tui.minds.protocol import Mind


def mind_named(name: str) -> Mind:
    """The mind of that name; UsageError names those that exist."""
    if name == "builtin":
        from rsi_tui.minds.builtin.mind import BuiltinMind

        return BuiltinMind()
    if name == "claude":
        raise UsageError("This version has no claude mind yet: use --mind builtin, which needs no key and no network.")
    raise UsageError(f"There is no mind named {name!r}: use --mind builtin.")

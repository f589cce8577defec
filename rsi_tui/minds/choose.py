"""Minds by name."""

from __future__ import annotations

from rsi_tui.config import ClaudeSettings
from rsi_tui.errors import UsageError
from rsi_tui.minds.protocol import Mind


def mind_named(name: str, claude: ClaudeSettings | None = None) -> Mind:
    """The mind of that name; UsageError names those that exist, and says what one of them lacks."""
    if name == "builtin":
        from rsi_tui.minds.builtin.mind import BuiltinMind

        return BuiltinMind()
    if name == "claude":
        from rsi_tui.minds.claude.mind import ClaudeMind

        return ClaudeMind(claude or ClaudeSettings())
    raise UsageError(f"There is no mind named {name!r}: use --mind builtin or --mind claude.")

"""Technique cards: what the knowledge base holds of each technique."""

from __future__ import annotations

from rsi_tui.techniques.base import Technique


def card(technique: Technique) -> str:
    """A technique as Markdown, for people and for the library's encoder: the meaning first, in plain words."""
    lines = [
        f"# {technique.title} (`{technique.id}`)",
        "",
        technique.summary,
        "",
        f"- Layer: {technique.layer}",
        f"- Applies when {technique.applies_when}.",
        f"- Risk: {technique.risk}",
    ]
    if technique.affects:
        lines.append(f"- Affects {', '.join(technique.affects)}: the contract must allow it.")
    if technique.conflicts:
        lines.append(f"- Not together with: {', '.join(technique.conflicts)}.")
    lines.append(f"- Source: {technique.source}.")
    return "\n".join(lines) + "\n"

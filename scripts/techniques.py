"""Writes docs/techniques.md: every technique by layer, from the techniques themselves.

    scripts/techniques.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rsi_tui.contract.model import LAYERS
from rsi_tui.techniques.cards import card
from rsi_tui.techniques.registry import all_techniques

PAGE = Path(__file__).parents[1] / "docs" / "techniques.md"
HEAD = """# Techniques

{count} known optimisations that `rsi` can apply, by layer. Each looks for an idiom of PyTorch, whatever files, classes
and variables are called, and leaves alone what it is not sure of. What each is worth on a program is measured, never assumed.
Written by `scripts/techniques.py` from the techniques themselves.
"""


def page() -> str:
    """The page as it should stand."""
    known = all_techniques()
    parts = [HEAD.format(count=len(known))]
    for layer in LAYERS:
        found = [technique for technique in known if technique.layer == layer]
        parts += [f"## {layer.capitalize()}\n", *(card(technique).replace("# ", "### ", 1) for technique in found)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())

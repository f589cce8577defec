"""What every bench shares: figures with targets, and how they are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """One measured figure and what it has to reach."""

    name: str
    value: float | int | str
    unit: str
    target: str
    """in words, '' when there is none"""
    ok: bool | None
    """None when there is no target"""


def machine() -> str:
    """Hardware and software in one line."""
    from rsi_tui.launch.host import fingerprint

    host = fingerprint()
    return f"{host['hardware']}; {host['software']}"


def show(bench: str, figures: list[Figure], as_json: bool, notes: Sequence[str] = (), command: str = "") -> int:
    """Print a bench's result; the exit code is 1 when a target was missed. `command`: how it was called, where its name does not say."""
    if as_json:
        result = {"bench": bench, "machine": machine(), "figures": [asdict(f) for f in figures], "notes": list(notes)}
        result |= {"command": command} if command else {}
        print(json.dumps(result, indent=2))
    else:
        for figure in figures:
            met = {True: "ok", False: "MISSED", None: ""}[figure.ok]
            value = f"{figure.value:.4g}" if isinstance(figure.value, float) else str(figure.value)
            print(f"{figure.name:50} {value:>12} {figure.unit:8} {figure.target:24} {met}")
        for note in notes:
            print(note, file=sys.stderr)
    return 1 if any(figure.ok is False for figure in figures) else 0

"""The prompt of each role: a file of its own, named in every call's record by version and hash."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.journal.events import Role

FOLDER = Path(__file__).with_name("prompts")


@dataclass(frozen=True)
class Prompt:
    """What a role is told before anything else."""

    id: str
    """'director 1 sha256:0123456789abcdef'"""
    text: str


@functools.cache
def prompt(role: Role) -> Prompt:
    """The prompt of a role: its own file, then what all roles are told. Its first line is 'version N'."""
    own, shared = ((FOLDER / f"{name}.md").read_text(encoding="utf-8") for name in (role, "everyone"))
    head, _, rest = own.partition("\n")
    found = re.fullmatch(r"version (\d+)", head.strip())
    if found is None:
        raise ValueError(f"the first line of {role}.md is no version")
    text = f"{rest.strip()}\n\n{shared.strip()}\n"
    return Prompt(f"{role} {found[1]} sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}", text)

"""What a planted cheat is, and what it is planted in.

Promises: an attack is planted by structure, never by the text of a particular workload; `plant` returns None where
the program lacks the idiom; what it returns parses and has another syntax tree than the program, unless it consists of
files alone. Does not promise that the planted program trains well, or at all: it is dishonest on purpose. Nothing here
runs anything.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.evaluator.redteam.anatomy import Anatomy, Missing
from rsi_tui.evaluator.redteam.draft import Draft

Catcher = Literal["static", "dynamic", "both"]
Family = Literal[
    "clock", "evidence", "work", "optimizer", "experts", "numerics", "data", "detection", "environment", "reviewer", "combo"
]
GONE, FILE, EXECUTABLE, LINK, SUBMODULE = "000000", "100644", "100755", "120000", "160000"
"""modes of git's tree entries; `GONE` is a path that is not there"""


@dataclass(frozen=True)
class Program:
    """The editable sources of a workload, and the contract they run under."""

    sources: Mapping[str, str]
    contract: Contract

    @cached_property
    def anatomy(self) -> Anatomy:
        """Where the parts of a training step stand in the sources, their line ends made alike."""
        return Anatomy({path: text.replace("\r\n", "\n") for path, text in self.sources.items()}, self.contract)

    def in_own_style(self, path: str, text: str) -> str:
        """A changed file with the line ends that the program has in it."""
        return text.replace("\n", "\r\n") if "\r\n" in self.sources.get(path, "") else text


@dataclass(frozen=True)
class Planted:
    """A dishonest change: what it writes where."""

    sources: Mapping[str, str]
    """path -> whole text, of the files that changed or came only"""
    modes: Mapping[str, str] = field(default_factory=dict)
    """path -> git mode, where it is not that of a plain file; the text of a link is its target"""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    """values of knobs that the change comes with"""

    def changed(self, program: Program) -> list[tuple[str, str, str]]:
        """(path, mode before, mode after) of each path, as a reviewer of a diff takes them."""
        return [
            (path, FILE if path in program.sources else GONE, self.modes.get(path, FILE)) for path in sorted(self.sources)
        ]

    def after(self, program: Program) -> dict[str, str]:
        """The texts of the whole program with the change made."""
        return {**program.sources, **self.sources}


@dataclass(frozen=True)
class Attack:
    """One kind of cheat, plantable in any program that has its idiom."""

    name: str
    family: Family
    sources: str
    """ids of the catalogue that it plants, as 'T01 H3'; '' for our own"""
    catcher: Catcher
    """who is expected to catch it: the review of the diff, the evaluator's invariants, or each of them alone"""
    by: str
    """what is expected to: rules of the review, invariants or measures of the evaluator"""
    does: str
    """one sentence: what harm it does"""
    make: Callable[[Draft], None]
    """edits a draft; raises Missing where the idiom is not there"""
    live: bool = True
    """may run as a real trial in the sandbox, without waiting for long"""
    speeds: bool = False
    """would it make the measured step look faster?"""

    def plant(self, program: Program) -> Planted | None:
        """The change that plants this attack in a program; None where its idiom is missing."""
        draft = Draft(program.anatomy)
        try:
            self.make(draft)
            texts = draft.texts()
        except Missing:
            return None
        own = {path: program.in_own_style(path, text) for path, text in texts.items()}
        planted = Planted(own, dict(draft.modes))
        return planted if _differs(program, planted) else None


def _differs(program: Program, planted: Planted) -> bool:
    """Did a syntax tree change, or a file come?"""
    return any(
        path not in program.sources or not path.endswith(".py") or _tree(text) != _tree(program.sources[path])
        for path, text in planted.sources.items()
    )


def _tree(text: str) -> str:
    return ast.dump(ast.parse(text))

"""What all code-changing techniques share: read the files, edit each, keep the ones that changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import log
from typing import ClassVar

from rsi_tui.contract.model import Contract, KnobValue, Layer
from rsi_tui.journal.facts import ProfileFacts
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits

_made: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Contract, ProfileFacts | None, dict[str, KnobValue], Change]] = {}
_REMEMBERED = 1024
"""changes that are kept: a search asks for the same ones again and again, and parsing is most of its own cost"""


class Codemod(ABC):
    """A technique that edits code wherever its idiom stands; see base.Technique for the attributes."""

    id: str
    title: str
    layer: Layer
    summary: str
    applies_when: str
    risk: str
    source: str
    affects: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    words: ClassVar[tuple[str, ...]] = ()
    """a file without any of these words is not looked at: parsing is most of the cost"""

    def apply(self, situation: Situation) -> Change:
        key = (self.id, tuple(sorted(situation.sources.items())))
        made = _made.get(key)
        seen = (situation.contract, situation.profile, dict(situation.knobs))
        if made is None or made[:3] != seen:
            made = (*seen, self._apply(situation))
            _made[key] = made
            if len(_made) > _REMEMBERED:
                del _made[next(iter(_made))]
        return made[3]

    def _apply(self, situation: Situation) -> Change:
        texts = situation.sources
        if not any(self._may_concern(text) for text in texts.values()):
            return Change()
        program = Program.read(texts)
        changed: dict[str, str] = {}
        for path, file in program.files.items():
            if self._may_concern(file.text):
                edits = file.edits()
                self.edit(file, program, situation, edits)
                if not edits.empty:
                    changed[path] = edits.text()
        return Change(sources=changed)

    def _may_concern(self, text: str) -> bool:
        return not self.words or any(word in text for word in self.words)

    @abstractmethod
    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        """Collect the edits of one file; none when the idiom is absent or in place already."""

    @abstractmethod
    def predict(self, situation: Situation) -> Effect:
        """Expected effect where `apply` is not empty."""


def faster(share: float, saved: float) -> float:
    """Log-ratio of step time when a fraction `saved` of a phase with that share of the step goes away.

    Amdahl's law; a negative `saved` makes it slower. Shares are clipped to 0..1.
    """
    return log(max(0.05, 1.0 - min(1.0, max(0.0, share)) * saved))

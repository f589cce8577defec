"""What a technique is: a known optimisation that can be applied to a training program.

Techniques look for an idiom of PyTorch, never for a particular file, name or workload. A technique
changes code (a libcst transform), knobs, or both. They compose: a candidate with several techniques
is built by transforming the tree with each in turn, in the registry's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rsi_tui.contract.model import Contract, KnobValue, Layer
from rsi_tui.journal.facts import ProfileFacts

Sources = Mapping[str, str]
"""path within the tree -> text, of the editable Python files"""


@dataclass(frozen=True)
class Situation:
    """What a technique may look at."""

    sources: Sources
    contract: Contract
    profile: ProfileFacts | None
    knobs: Mapping[str, KnobValue]
    """current values of all knobs"""


@dataclass(frozen=True)
class Effect:
    """Predicted effect against the situation it is applied to, as natural logs."""

    time: float
    """log-ratio of step time, start-up spread over the job; negative is faster"""
    memory: float = 0.0
    """log-ratio of peak memory; negative is leaner"""
    confidence: Literal["low", "medium", "high"] = "low"
    startup_s: float = 0.0
    """seconds by which a run starts later, which a trial pays whole; `time` holds its share of a long job"""


@dataclass(frozen=True)
class Change:
    """What applying a technique would do."""

    sources: Sources = field(default_factory=dict)
    """files with new text, only those that change"""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    """knobs to set"""

    @property
    def empty(self) -> bool:
        return not self.sources and not self.knobs


class Technique(Protocol):
    """One optimisation. Implementations are frozen and hold no state."""

    id: str
    """short, kebab-case, never changed: the library refers to it"""
    title: str
    layer: Layer
    summary: str
    """what it does and why it is faster, two or three plain sentences"""
    applies_when: str
    """idiom and profile, one sentence"""
    affects: tuple[str, ...]
    """('precision',) when it rounds otherwise"""
    risk: str
    """what it could do to the invariants"""
    source: str
    """paper or documentation"""
    conflicts: tuple[str, ...]
    """techniques it can't be combined with"""

    def apply(self, situation: Situation) -> Change:
        """The change here; an empty Change when the idiom is absent or it is in place already."""

    def predict(self, situation: Situation) -> Effect:
        """Expected effect where `apply` is not empty."""

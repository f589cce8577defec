"""A person's idea, matched to what the builtin mind can do: techniques by their names and words, settings by 'knob=value'."""

from __future__ import annotations

import re

from rsi_tui.minds.protocol import DirectorBrief, Proposal
from rsi_tui.techniques.base import Change, Situation, Technique
from rsi_tui.techniques.registry import applicable

_SHORT = 4
"""words shorter than this say nothing about a technique"""
_COMMON = frozenset(["with", "from", "that", "this", "what", "when", "them", "then", "than", "into", "only", "more", "less", "have", "does", "make", "made", "uses", "used", "using", "model", "models", "training", "step", "steps", "time", "faster", "slower", "memory", "code", "change", "changes", "should", "would", "could", "please", "maybe", "there", "their", "where", "which", "while", "after", "before"])  # fmt: skip
_ENOUGH = 0.5
"""share of a technique's own words that an idea has to name, where it does not name the technique itself"""
MOST = 4


def matched(brief: DirectorBrief, proposal: Proposal, situation: Situation) -> tuple[Technique, ...]:
    """Applicable techniques that an idea means, best first, at most MOST; () where it means none that would change something."""
    text = proposal.text.lower()
    spoken = _words(text)
    scored: list[tuple[float, Technique]] = []
    for technique, change, _ in applicable(situation):
        if _named(technique, change, text):
            scored.append((2.0, technique))
            continue
        own = _words(f"{technique.id.replace('-', ' ').replace(':', ' ')} {technique.title}".lower())
        share = len(own & spoken) / len(own) if own else 0.0
        if share >= _ENOUGH:
            scored.append((share, technique))
    best = max((score for score, _ in scored), default=0.0)
    return tuple(t for score, t in sorted(scored, key=lambda pair: -pair[0]) if score == best or score >= 2.0)[:MOST]


def _named(technique: Technique, change: Change, text: str) -> bool:
    """Whether an idea has a technique's id in it, or the 'knob=value' that it sets."""
    id = technique.id.removeprefix("setting:").lower()
    spelled = {id, id.replace("-", "_"), id.replace("-", " ")}
    if len(change.knobs) == 1 and not change.sources:
        spelled |= {f"{name}={value}".lower() for name, value in change.knobs.items()}
    return any(re.search(rf"(?<![\w=-]){re.escape(name)}(?![\w-])", text) for name in spelled)


def _words(text: str) -> set[str]:
    return {_stem(word) for word in re.findall(r"[a-z0-9_]+", text) if len(word) >= _SHORT and word not in _COMMON}


def _stem(word: str) -> str:
    """Without the endings that a person adds or leaves off."""
    return re.sub(r"(ing|ed|es|s)$", "", word) if len(word) > 5 else word

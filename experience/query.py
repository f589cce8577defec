"""From two rankings to hits: fusion, fit of conditions, diversity, and the reason of each.

    relevance = sum over rankings of 1 / (60 + rank), divided by its largest possible value
                (reciprocal rank fusion: Cormack, Clarke, Buettcher, SIGIR 2009)
    score     = relevance * (0.5 + 0.5 * fit)          without conditions: relevance
    order     = maximal marginal relevance, 0.75 * score - 0.25 * largest similarity to those chosen
                (Carbonell, Goldstein, SIGIR 1998)

Pure functions over what the two searches found; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experience.conditions import Conditions, Fit, fit
from experience.encoder import DIMENSIONS
from experience.interface import Hit
from experience.records import Entry
from experience.vectors import Found
from experience.words import shared_words, words_of

RANK_OFFSET = 60
RELEVANCE_WEIGHT = 0.75
POOL = 60
"""candidates taken from each ranking"""


@dataclass(frozen=True)
class Scored:
    """One entry on its way to becoming a hit."""

    entry: Entry
    score: float
    distance: float | None
    vector: tuple[float, ...] | None
    fit: Fit | None


def fused(rankings: Sequence[Sequence[str]]) -> dict[str, float]:
    """id -> relevance in 0..1 over several rankings; 1 is the first in all of them."""
    highest = len(rankings) / (RANK_OFFSET + 1)
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (RANK_OFFSET + rank) / highest
    return scores


def conditions_of(entry: Entry) -> Conditions:
    """The conditions an entry was written under."""
    return Conditions(entry.workload_key, entry.hardware, entry.software)


def score(
    words: Sequence[Found],
    meaning: Sequence[Found] | None,
    entries: Mapping[str, Entry],
    conditions: Conditions | None,
) -> list[Scored]:
    """All found entries with their score, best first; `meaning` is None when it can't be searched."""
    rankings = [[found.id for found in ranking] for ranking in (words, meaning) if ranking is not None]
    rows = {found.id: found for found in [*words, *(meaning or ())]}
    scored = []
    for name, relevance in fused(rankings).items():
        if name not in entries:
            continue
        match = fit(conditions, conditions_of(entries[name])) if conditions else None
        value = relevance * (0.5 + 0.5 * match.value) if match else relevance
        scored.append(Scored(entries[name], value, rows[name].distance, rows[name].vector, match))
    return sorted(scored, key=lambda item: (-item.score, item.entry.id))


def similarities(scored: Sequence[Scored]) -> NDArray[np.float32]:
    """Likeness of each pair, 0..1 [n, n]: cosine of the vectors, or share of common words where one has none."""
    vectors = np.array([item.vector or (0.0,) * DIMENSIONS for item in scored], np.float32).reshape(-1, DIMENSIONS)
    like: NDArray[np.float32] = np.clip(vectors @ vectors.T, 0.0, 1.0)
    words = {n: set(words_of(item.entry.text)) for n, item in enumerate(scored) if item.vector is None}
    for n, here in words.items():
        for m, item in enumerate(scored):
            there = words[m] if m in words else set(words_of(item.entry.text))
            like[n, m] = like[m, n] = len(here & there) / max(1, len(here | there))
    return like


def diverse(scored: Sequence[Scored], limit: int) -> list[Scored]:
    """The first `limit` by maximal marginal relevance."""
    if not scored:
        return []
    like = similarities(scored)
    gain = RELEVANCE_WEIGHT * np.array([item.score for item in scored], np.float32)
    closest = np.zeros(len(scored), np.float32)
    chosen: list[int] = []
    while len(chosen) < min(limit, len(scored)):
        best = int(np.argmax(gain - (1 - RELEVANCE_WEIGHT) * closest))
        chosen.append(best)
        gain[best] = -np.inf
        closest = np.maximum(closest, like[best])
    return [scored[n] for n in chosen]


def why(item: Scored, text: str, handicap: str) -> str:
    """Why an entry was found, in one line for a person."""
    parts = []
    if words := shared_words(text, item.entry.text):
        parts.append("words: " + ", ".join(words[:8]))
    if item.distance is not None:
        parts.append(f"distance {item.distance:.2f}")
    parts.append(describe(item.fit))
    parts.append(handicap)
    return "; ".join(part for part in parts if part)


def describe(match: Fit | None) -> str:
    """Conditions that match and that do not."""
    if match is None:
        return ""
    same = [f"same {name}" for name in match.matches]
    other = [f"other {name}" for name in match.differs]
    return ", ".join([*same, *other, f"fit {match.value:.2f}"])


def hits(scored: Sequence[Scored], text: str, limit: int, handicap: str) -> list[Hit]:
    """Hits in their final order."""
    return [Hit(item.entry, round(item.score, 4), why(item, text, handicap)) for item in diverse(scored, limit)]

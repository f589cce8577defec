"""The home's journal: what belongs to no campaign. Notes, and the ledger of error probability.

The ledger counts campaigns and evaluations of a workload over its whole life: the k-th draws its
alpha by k, so that all together stay within one budget (MEASUREMENT, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.events import AlphaGranted, Dropped, Event, KnowledgeAdded, NoteTaken
from rsi_tui.locations import Home

_WAIT_S = 10.0
"""the home's journal is held for milliseconds; whoever waits longer meets a stuck process"""


def grant_alpha(home: Home, workload_key: str, campaign: str, grant: Callable[[int], float]) -> AlphaGranted:
    """Draw the next error probability of a workload and record it; `grant` maps k = 1, 2, ... to alpha.

    A campaign that drew already (and was interrupted before it noted so) gets the same grant again.
    Raises JournalError when the home's journal is damaged or stays held.
    """
    with JournalWriter.open(home.journal, wait_s=_WAIT_S, anchor=home.anchor) as journal:
        past = _grants(journal.events, workload_key)
        for known in past:
            if known.campaign == campaign:
                return known
        ordinal = len(past) + 1
        body = AlphaGranted(workload_key=workload_key, ordinal=ordinal, alpha=grant(ordinal), campaign=campaign)
        journal.append(body)
        return body


def next_ordinal(home: Home, workload_key: str) -> int:
    """k of the next campaign or evaluation on a workload, from 1; draws nothing.

    Raises JournalError when the home's journal is damaged.
    """
    return len(_grants(read_events(home.journal, home.anchor), workload_key)) + 1 if home.journal.exists() else 1


def _grants(events: Iterable[Event], workload_key: str) -> list[AlphaGranted]:
    return [e.body for e in events if isinstance(e.body, AlphaGranted) and e.body.workload_key == workload_key]


def note_dropped(home: Home, body: Dropped) -> Event:
    """Record what housekeeping takes away, before it goes."""
    with JournalWriter.open(home.journal, wait_s=_WAIT_S, anchor=home.anchor) as journal:
        return journal.append(body)


def add_knowledge(home: Home, body: KnowledgeAdded) -> Event:
    """Record a document for the library."""
    with JournalWriter.open(home.journal, wait_s=_WAIT_S, anchor=home.anchor) as journal:
        return journal.append(body)


def add_note(home: Home, who: str, text: str, source: str = "") -> Event:
    """Record a person's note that belongs to no campaign."""
    with JournalWriter.open(home.journal, wait_s=_WAIT_S, anchor=home.anchor) as journal:
        return journal.append(NoteTaken(who=who, text=text, source=source))

"""Calibrations that this home holds already: which of them may be asked about again.

One was made under the same conditions when workload, base commit, terms of the contract, machine, software,
sandbox and version of rsi are the same, and when it rests on at least as many pairs. It is no older than a day,
counted from its own runs: what was taken over from another is not handed on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean

from rsi_tui.contract.fingerprint import terms_hash
from rsi_tui.errors import JournalError
from rsi_tui.evaluator.recheck import Known
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import BlockClosed, BlockOpened, Calibrated, CampaignCreated, Event, TrialFinished
from rsi_tui.journal.view import campaign_ids
from rsi_tui.locations import Home

MAX_AGE = timedelta(hours=24)


def find_calibration(home: Home, created: CampaignCreated, now: datetime | None = None) -> Known | None:
    """The newest calibration that a campaign or evaluation begun as `created` may ask about; None without one."""
    now = now or datetime.now(UTC)
    for id in campaign_ids(home):
        if id == created.campaign:
            continue
        try:
            paths = home.campaign(id)
            events = read_events(paths.journal, paths.anchor)
        except JournalError:
            continue
        known = _calibration(events, created, now)
        if known is not None:
            return known
    return None


def _calibration(events: Sequence[Event], created: CampaignCreated, now: datetime) -> Known | None:
    """What one journal offers."""
    if not events or not isinstance(before := events[0].body, CampaignCreated) or not same_conditions(before, created):
        return None
    for event in events:
        if isinstance(event.body, Calibrated):
            enough = event.body.noise.pairs >= created.contract.get("proof", {}).get("aa_pairs", 0)
            young = timedelta(0) <= now - datetime.fromisoformat(event.at) <= MAX_AGE
            scores = _scores(events)
            if event.body.origin or not enough or not young or not scores:
                return None
            return Known(event.body, before.campaign, event.at, fmean(map(math.log, scores)))
    return None


def same_conditions(before: CampaignCreated, now: CampaignCreated) -> bool:
    """Do figures of one hold for the other?"""
    same = ("workload_key", "base_commit", "host", "sandbox", "trust", "version")
    return all(getattr(before, name) == getattr(now, name) for name in same) and terms_hash(before.contract) == terms_hash(now.contract)


def _scores(events: Sequence[Event]) -> list[float]:
    """Scores, seconds, of the A/A runs."""
    blocks = {e.body.block for e in events if isinstance(e.body, BlockOpened) and e.body.purpose == "calibration"}
    void = {e.body.block for e in events if isinstance(e.body, BlockClosed) and e.body.void}
    trials = [e.body.facts for e in events if isinstance(e.body, TrialFinished) and e.body.facts is not None]
    return [t.score_s for t in trials if t.block in blocks - void and t.arm == "incumbent" and t.score_s is not None]

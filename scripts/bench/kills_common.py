"""What the benches of killed engines share: a simulated campaign in a process of its own, and what it came to."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
import traceback
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rsi_tui.errors import RsiError
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.view import CampaignView, campaign_ids
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request, silent
from tests.support.campaigns import PatchMind
from tests.support.simulated import PATCHES, simulated

KILLED = -signal.SIGKILL


def engine(home: Home, place: Path, resume: bool, within: AbstractContextManager[object] | None = None, *, library: bool = False) -> int:
    """Run or resume the simulated campaign in a process of its own, `within` something; its exit code, negative for a signal."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(simulated(same_draws=True, library=library))
            if within is not None:
                stack.enter_context(within)
            ended = run(home, Request(place, preset="simulated", candidates=len(PATCHES), resume=resume), PatchMind(list(PATCHES)), silent)
            code = ended.exit_code
    except RsiError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except Exception:  # noqa: BLE001 - the process's edge; shown, and counted by the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def lines_of(home: Home) -> list[bytes]:
    """Whole lines of the one campaign's journal."""
    ids = campaign_ids(home)
    if not ids:
        return []
    data = home.campaign(ids[0]).journal.read_bytes()
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def told(view: CampaignView) -> dict[str, Any]:
    """What a campaign came to, without ids of runs and times of the clock."""
    runs = {(t.block, t.slot): (t.candidate, t.arm, t.outcome, t.score_s, t.peak_bytes, t.steps) for t in view.trials.values() if t.outcome != "not_measured" and t.block}
    verdicts = [(v.candidate, v.verdict, v.alpha, v.evalue, v.log_ratio, v.reasons, [(b.order, b.evalue) for b in v.blocks]) for v in view.verdicts]
    claim = view.claim
    return {
        "state": (view.state, view.state_reason),
        "runs": runs,
        "verdicts": verdicts,
        "screened": {c.id: (c.screen.log_ratio, c.screen.promoted) for c in view.candidates.values() if c.screen},
        "candidates": {c.id: (c.facts.techniques, c.facts.knobs, c.facts.diff_hash) for c in view.candidates.values()},
        "claim": claim and (claim.candidate, claim.speedup, claim.proven, claim.pairs, claim.attribution),
        "alpha": view.granted and (view.granted.ordinal, view.granted.alpha),
        "best": (best := view.best()) and best.id,
    }


def repeated(home: Home) -> list[str]:
    """Runs that were measured twice, started without an end, or ended twice."""
    events = read_events(home.campaign(campaign_ids(home)[0]).journal)
    started = [e.body.trial for e in events if isinstance(e.body, ev.TrialStarted)]
    finished = [e.body.trial for e in events if isinstance(e.body, ev.TrialFinished)]
    view = CampaignView().feed_all(events)
    measured = collections.Counter((t.block, t.slot) for t in view.trials.values() if t.block and t.outcome != "not_measured")
    found = [f"slot {slot} of {block} was measured {n} times" for (block, slot), n in measured.items() if n > 1]
    found += [f"{trial} was started and has {finished.count(trial)} ends" for trial in started if finished.count(trial) != 1]
    return found + [f"{trial} was started twice" for trial, n in collections.Counter(started).items() if n > 1]


def grants(home: Home) -> int:
    return sum(isinstance(e.body, ev.AlphaGranted) for e in read_events(home.journal))

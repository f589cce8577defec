"""Taking an interrupted campaign up again: which one, whether it still may be, and how much of its time is left.

A campaign is one set of conditions from its first event to its last: what was asked for, what isolates
its trials, and the machine they run on. Whatever differs is refused in one sentence; nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from rsi_tui.contract.model import Contract
from rsi_tui.errors import JournalError, UsageError
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CampaignCreated, EngineStarted, Event, PersonActed, State, StateChanged
from rsi_tui.locations import Home
from rsi_tui.repo.mirror import Mirror

Kind = Literal["campaign", "evaluation", "check", "baseline", "replay"]


def unfinished(home: Home, mirror: Mirror, contract: Contract, kind: Kind = "campaign") -> CampaignCreated:
    """The newest unfinished campaign (or evaluation) on this workload and contract; UsageError when there is none."""
    ended = changed = elsewhere = ""
    for folder in sorted(home.campaigns.glob("*"), reverse=True) if home.campaigns.is_dir() else []:
        journal = home.campaign(folder.name).journal
        if not journal.exists():
            continue
        try:
            events = read_events(journal)
        except JournalError:
            continue  # `rsi campaigns` names it
        if not events or not isinstance(created := events[0].body, CampaignCreated):
            continue
        if created.workload_key != mirror.key or created.kind != kind:
            continue
        if created.preset != contract.preset:
            if last_state(events)[0] not in ("finished", "stopped"):
                elsewhere = elsewhere or created.preset
            continue
        if last_state(events)[0] in ("finished", "stopped"):
            ended = ended or folder.name
        elif created.contract_hash != contract.hash or created.base_commit != mirror.base:
            changed = changed or folder.name
        else:
            return created
    if changed:
        raise UsageError(
            f"{kind.capitalize()} {changed} can't be resumed because workload.toml or the program changed since: "
            "undo that change, or start anew without --resume."
        )
    if elsewhere:
        raise UsageError(f"The interrupted {kind} on this workload used another preset: add --preset {elsewhere}.")
    hint = f"; the newest, {ended}, has ended" if ended else ""
    raise UsageError(f"No interrupted {kind} on this workload{hint}: start one without --resume.")


def require_same(
    created: CampaignCreated, now: CampaignCreated, mind: str | None, candidates: int | None, hours: float | None,
    usd: float | None = None,
) -> None:
    """UsageError, one sentence, unless the campaign can go on as it began.

    `now` is what a campaign begun here and now would record; of what a person asked for, None keeps what is recorded.
    """
    id = created.campaign
    if created.trust != now.trust or created.sandbox != now.sandbox:
        raise UsageError(
            f"{created.kind.capitalize()} {id} was begun with other protection ({created.sandbox.rstrip('.')}) than it would have now "
            f"({now.sandbox.rstrip('.')}): restore it, with or without --unsandboxed as before, or start anew without --resume."
        )
    for name in sorted(created.host.keys() | now.host.keys()):
        before, here = created.host.get(name, "unknown"), now.host.get(name, "unknown")
        if before != here:
            raise UsageError(
                f"{created.kind.capitalize()} {id} was measured on other {name} ({before}) than this machine has ({here}), and the two "
                "can't be compared: resume it where it began, or start anew without --resume."
            )
    asked = {"mind": (mind, created.mind), "candidates": (candidates, created.max_candidates), "hours": (hours, created.hours), "usd": (usd, created.usd)}
    for name, (wanted, recorded) in asked.items():
        if wanted is not None and wanted != recorded:
            raise UsageError(
                f"{created.kind.capitalize()} {id} was begun with {'no limit of' if recorded is None else recorded} {name}, not {wanted}: "
                f"leave --{name} away to go on with it, or start anew without --resume."
            )


def last_state(events: Sequence[Event]) -> tuple[State, bool]:
    """The last state but 'paused', and whether the campaign was left paused."""
    states = [event.body.state for event in events if isinstance(event.body, StateChanged)]
    real = [state for state in states if state != "paused"]
    return real[-1] if real else "contracted", bool(states) and states[-1] == "paused"


def stop_recorded(events: Sequence[Event]) -> str:
    """Who stopped a campaign whose engine died before the end was recorded, in words; '' when nobody did.

    The evaluator's secrets may be out by then, so nothing may be measured any more.
    """
    asked = [event.body for event in events if isinstance(event.body, PersonActed) and event.body.action == "stop"]
    return f"stopped by {asked[-1].who}" if asked else ""


def seconds_spent(events: Sequence[Event]) -> float:
    """How long engines have worked on a campaign: each from its start to the last thing it recorded, pauses left out."""
    total, last, paused = 0.0, None, False
    for event in events:
        at = datetime.fromisoformat(event.at)
        if last is not None and not paused and not isinstance(event.body, EngineStarted):
            total += max(0.0, (at - last).total_seconds())  # a clock that was set back takes nothing away
        if isinstance(event.body, StateChanged):
            paused = event.body.state == "paused" or bool(event.body.waits)
        last = at
    return total

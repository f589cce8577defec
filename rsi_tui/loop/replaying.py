"""Measuring an adopted change again: fresh pairs against its baseline, on this machine, by the code that makes claims.

A replay has a journal of its own (`kind` "replay"), of the events and durable steps of a campaign, and runs from the
mirror: the user's repository may have moved on. Asked for again after an interruption it goes on. Its outcome is noted in
the campaign's journal too. On a machine like the one that proved the change, an interval below 1, a broken invariant or a
failed run refutes it, which takes the adoption back with what rests on it; on another machine it is another measurement
and refutes nothing. A replay draws no error probability and adopts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsi_tui.audit.applying import allowed
from rsi_tui.audit.words import interval as interval_words
from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError, JournalError, RepositoryError
from rsi_tui.evaluator.lab import HostFault
from rsi_tui.evaluator.service import Interrupted
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CampaignCreated, CandidateBuilt, Replayed
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, ClaimFacts, Interval
from rsi_tui.journal.view import CampaignView
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.memory import reclaim
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context, Stopped
from rsi_tui.loop.engine import interruptible
from rsi_tui.loop.evaluating import measure_noise
from rsi_tui.loop.outer import end
from rsi_tui.loop.resuming import last_state, require_same
from rsi_tui.loop.revoking import record_replay
from rsi_tui.loop.setup import (
    Listen,
    Opened,
    Prepared,
    Request,
    created_now,
    forget,
    new_id,
    open_prepared,
    outliving,
    silent,
)
from rsi_tui.minds.choose import mind_named
from rsi_tui.repo.mirror import Mirror

EXIT_CODES = {"agrees": 0, "refuted": 3, "undecided": 4}


@dataclass(frozen=True)
class Replay:
    """How a replay ended."""

    id: str
    outcome: Replayed | None
    """None when it was interrupted: the same command goes on"""
    revoked: tuple[str, ...]
    """candidates that are no longer adopted"""
    exit_code: int
    sentence: str = ""


def replay(
    home: Home,
    view: CampaignView,
    candidate: str,
    *,
    unsandboxed: bool = False,
    listen: Listen = silent,
    on_note: Callable[[str], None] = lambda note: None,
) -> Replay:
    """Measure an adopted candidate of a campaign or evaluation that is over again; '' is what was proven last.

    GateError for what is not adopted, RepositoryError when its code is gone, ContractError when the unchanged program
    does not run here (nothing is left of such a replay).
    """
    # An interrupted replay that took its adoption back already still has to be brought to its end.
    begun = view.candidates.get(candidate) if _begun(home, f"{view.id}/{candidate}") is not None else None
    known = begun or allowed(view, candidate)
    tell = outliving(on_note)
    prepared = _prepared(home, view, known.facts, unsandboxed, tell)
    opened = open_prepared(prepared, listen)
    for note in opened.notes:
        tell(note)
    try:
        with interruptible(opened.context.cancel):
            return _carry(home, opened, view, known.facts)
    finally:
        opened.recall.close()
        opened.writer.close()


def replay_data(done: Replay) -> dict[str, Any]:
    """What `rsi replay --json` prints."""
    body = done.outcome.model_dump(mode="json", exclude={"type"}) if done.outcome is not None else {"replay": done.id, "outcome": None}
    return body | {"revoked": list(done.revoked)}


def replay_page(done: Replay) -> str:
    """What `rsi replay` prints."""
    found = done.outcome
    if found is None:
        return f"Replay {done.id} was stopped; nothing finished is lost, and the same command goes on."
    said = {"agrees": "The replay agrees", "refuted": "REFUTED", "undecided": "Undecided"}[found.outcome]
    lines = [f"{said}: {found.reason}."]
    lines += [f"  proven: {interval_words(found.before)}"] if found.before is not None else []
    lines += [f"  now:    {interval_words(found.now)}"] if found.now is not None else []
    lines += [f"  another machine: {difference}" for difference in found.differences]
    lines += [f"No longer adopted in {found.campaign}: {', '.join(done.revoked)}."] if done.revoked else []
    return "\n".join(lines)


# --- opening ------------------------------------------------------------------------------------------------


def _prepared(home: Home, view: CampaignView, facts: CandidateFacts, unsandboxed: bool, tell: Callable[[str], None]) -> Prepared:
    """A replay's parts, from the record and the mirror alone."""
    was = view.created
    assert was is not None
    contract = Contract.model_validate(was.contract)
    mirror = Mirror(home.mirrors / f"{was.workload_key}.git", was.workload_key, facts.base)
    if not mirror.git_dir.is_dir():
        raise RepositoryError(f"the mirror {mirror.git_dir} is gone, and with it the code of {facts.id}: it can't be measured again.")
    launcher = LocalLauncher(sandboxed=not unsandboxed)
    reclaim()  # memory groups of engines that were killed
    target = f"{view.id}/{facts.id}"
    request = Request(Path(contract.folder), contract.preset, "replay", candidates=1, unsandboxed=unsandboxed)
    created = created_now(request, new_id(home), contract, mirror, launcher, None).model_copy(update={"replays": target})
    begun = _begun(home, target)
    if begun is not None:
        require_same(begun, created, None, None, None)
        request = Request(request.workload, request.preset, "replay", candidates=1, resume=True, unsandboxed=unsandboxed)
    return Prepared(home, request, contract, launcher, mirror, begun or created, mind_named("builtin"), tell)


def _begun(home: Home, target: str) -> CampaignCreated | None:
    """The newest replay of the same change that was interrupted."""
    for folder in sorted(home.campaigns.glob("*"), reverse=True):
        paths = home.campaign(folder.name)
        try:
            events = read_events(paths.journal, paths.anchor) if paths.journal.exists() else []
        except JournalError:
            continue  # `rsi campaigns` names it
        body = events[0].body if events else None
        if isinstance(body, CampaignCreated) and body.replays == target and last_state(events)[0] not in ("finished", "stopped"):
            return body
    return None


# --- to the outcome -------------------------------------------------------------------------------------------


def _carry(home: Home, opened: Opened, view: CampaignView, facts: CandidateFacts) -> Replay:
    ctx, over = opened.context, False
    id = ctx.created.campaign
    try:
        found = measured_again(home, ctx, view, facts)
        revoked = record_replay(home, found)
        end(ctx, "finished", found.outcome)
        over = True
    except Stopped as stop:
        end(ctx, "stopped", str(stop))
        over = True
        return Replay(id, None, (), 1, str(stop))
    except Interrupted as stop:
        return Replay(id, None, (), 1, str(stop) if isinstance(stop, HostFault) else "")
    except ContractError:
        opened.writer.close()
        forget(ctx.paths)
        raise
    finally:
        ctx.evaluator.close(finished=over)
    return Replay(id, found, revoked, EXIT_CODES[found.outcome])


def measured_again(home: Home, ctx: Context, view: CampaignView, facts: CandidateFacts) -> Replayed:
    """The outcome, from record or runs; recorded in the replay's own journal."""
    alone = facts.model_copy(update={"parent": ORIGINAL, "members": ()})
    built = CandidateBuilt(candidate=alone, hypothesis="", direction="", diff=view.candidates[facts.id].diff)
    ctx.steps.once("built", CandidateBuilt, lambda: built)
    ctx.enter("contracted")
    ctx.heed_people()
    before = _proven(view, facts.id)
    differences = _differences(view, ctx.created)
    if how := ctx.evaluator.check_runs("check", alone):
        outcome, reason, now = _outcome(before, None, how, differences)
    else:
        measure_noise(home, ctx)
        ctx.enter("claiming")
        outcome, reason, now = judged(before, ctx.evaluator.claim("claim", alone, ()), differences)
    body = Replayed.model_validate({
        "campaign": view.id, "candidate": facts.id, "replay": ctx.created.campaign, "outcome": outcome, "reason": reason,
        "before": before, "now": now, "differences": differences,
    })  # fmt: skip
    return ctx.steps.once("replayed", Replayed, lambda: body)


def judged(before: Interval | None, claim: ClaimFacts, differences: tuple[str, ...]) -> tuple[str, str, Interval | None]:
    """(outcome, reason, interval) of fresh pairs beside what was proven."""
    return _outcome(before, claim.speedup, claim.refuted, differences, "; ".join(claim.reasons))


def _outcome(
    before: Interval | None, now: Interval | None, refuted: str, differences: tuple[str, ...], lacking: str = ""
) -> tuple[str, str, Interval | None]:
    wrong = refuted or ("it is slower than its baseline" if now is not None and now.high < 1 else "")
    if wrong and differences:
        return "undecided", f"{wrong}; measured on another machine, which refutes nothing", now
    if wrong:
        return "refuted", wrong, now
    if lacking or now is None:
        return "undecided", lacking or "too few pairs count", now
    if before is None or (now.low <= before.high and before.low <= now.high):
        return "agrees", "it is faster here too, by as much as was proven", now
    return "undecided", "it is faster here too, but by another amount than was proven: the two intervals do not overlap", now


def _proven(view: CampaignView, candidate: str) -> Interval | None:
    """The interval that the change was adopted with, where that was against the original."""
    if view.claim is not None and view.claim.candidate == candidate:
        return view.claim.speedup
    verdict = view.candidates[candidate].verdict
    return verdict.speedup if verdict is not None and verdict.incumbent == ORIGINAL else None


def _differences(view: CampaignView, now: CampaignCreated) -> tuple[str, ...]:
    """'torch: 2.12 then, 2.13 here' for each part of the fingerprint that differs."""
    then = view.created.host if view.created is not None else {}
    names = sorted(then.keys() | now.host.keys())
    return tuple(f"{n}: {then.get(n, 'unknown')} then, {now.host.get(n, 'unknown')} here" for n in names if then.get(n) != now.host.get(n))

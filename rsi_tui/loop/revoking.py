"""Taking an adoption back when a later finding refutes it (holes H12).

A finding is a claim in which the stack breaks an invariant or fails, a canary that was adopted, or a person's
veto. With an adoption goes whatever rests on it: candidates made of it or proven against it, and candidates
that could only be proven with the error probability that it had handed on. They are open again, not refuted.

In a running campaign a veto waits for the next point between two measurements, and is recorded under that
point's name, so that a resumed campaign takes it back at the same place. In an evaluation it waits for the claim's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from rsi_tui.errors import UsageError
from rsi_tui.evaluator.ledger import AlphaLedger
from rsi_tui.journal.chain import JournalWriter, holder
from rsi_tui.journal.commands import send_command
from rsi_tui.journal.events import Event, PersonActed, Replayed, Revoked, VerdictReached
from rsi_tui.journal.facts import VerdictFacts
from rsi_tui.journal.view import CampaignView, load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.memory import made_of

US = "rsi"
"""who takes back what no person did"""
WAIT_S = 10.0
"""how long an engine that has ended its campaign may still hold the journal"""


@dataclass(frozen=True)
class Adoption:
    """One adopted candidate, with what its proof rests on."""

    candidate: str
    incumbent: str
    """what it was proven against"""
    made_of: Set[str]
    """candidates whose code is in it, itself included"""


def fall(id: str, adopted: Sequence[Adoption], ledger: AlphaLedger, order: Sequence[str]) -> tuple[str, ...]:
    """Take one adoption out of the ledger with all that rests on it; returns the others, in the order of `adopted`.

    `order` names the candidates of the ledger's verifications. One that was proven with error probability handed on
    by another stays when its e-value reaches 1 / its share without that.
    """
    gone: set[str] = set()
    waiting = [id]
    while waiting:
        current = waiting.pop()
        if current in gone:
            continue
        gone.add(current)
        waiting += [known.candidate for known in adopted if current == known.incumbent or current in known.made_of]
        number = order.index(current) + 1 if current in order else 0
        if number and ledger.settled[number - 1][1]:
            waiting += [order[reopened - 1] for reopened in ledger.revoke(number)]
    return tuple(known.candidate for known in adopted if known.candidate in gone - {id})


# --- in a running campaign -----------------------------------------------------------------------------


def revoke(ctx: Context, step: str, candidate: str, who: str, reason: str) -> Revoked:
    """Take an adoption back, with what rests on it; recorded once under the step."""
    memory = ctx.memory
    adopted = [
        Adoption(a.candidate.id, a.verdict.incumbent, memory.made_of(a.candidate.id)) for a in memory.adopted if a.verdict
    ]
    reopened = fall(candidate, adopted, ctx.ledger, memory.verified)
    revoked = ctx.steps.once(
        step, Revoked, lambda: Revoked(candidate=candidate, who=who, reason=reason, reopened=reopened)
    )
    memory.revoke(revoked)
    return revoked


def revoke_everything(ctx: Context, step: str, reason: str) -> tuple[str, ...]:
    """Take every adoption of the campaign back, newest first; returns their ids, oldest first."""
    taken = [attempt.candidate.id for attempt in ctx.memory.adopted]
    for id in reversed(taken):
        revoke(ctx, f"{step}/{id}", id, US, reason)
    return tuple(taken)


def heed_vetoes(ctx: Context, point: str) -> None:
    """Carry out the vetoes that wait; called between two measurements, with a name of its own each time."""
    number = 1
    while True:
        step = f"{point}/revoked{number}"
        known = ctx.steps.find(step)
        if isinstance(known, Revoked):
            revoke(ctx, step, known.candidate, known.who, known.reason)
            ctx.vetoes = [veto for veto in ctx.vetoes if read_veto(veto.text)[0] != known.candidate]
        elif not (ctx.steps.live and _carry_out_next(ctx, step)):
            return
        number += 1


def _carry_out_next(ctx: Context, step: str) -> bool:
    """Carry out the first veto that is about an adoption; False when none is left."""
    while ctx.vetoes:
        veto = ctx.vetoes.pop(0)
        candidate, reason = read_veto(veto.text)
        if any(attempt.candidate.id == candidate for attempt in ctx.memory.adopted):
            revoke(ctx, step, candidate, veto.who, reason)
            return True
    return False


def heed_veto_of(ctx: Context, verdict: VerdictFacts) -> VerdictFacts:
    """An evaluation's verdict, after what people took back while it was measured; recorded once.

    An evaluation has one candidate and nothing rests on its adoption. A veto of what is not adopted in the end is moot.
    """
    step = "verdict/revoked"
    ctx.hear_vetoes()
    known = ctx.steps.find(step)
    if not isinstance(known, Revoked):
        words = ((*read_veto(veto.text), veto.who) for veto in ctx.vetoes)
        found = next(((reason, who) for candidate, reason, who in words if candidate == verdict.candidate), None)
        if found is None or verdict.verdict != "adopted":
            return verdict
        known = ctx.steps.append(Revoked(candidate=verdict.candidate, who=found[1], reason=found[0], reopened=()), step)
    reasons = (f"taken back by {known.who}: {known.reason}",)
    return verdict.model_copy(update={"verdict": "not_proven", "reasons": reasons})


def waiting_vetoes(events: Iterable[Event]) -> list[PersonActed]:
    """Vetoes of a record that were not carried out yet, oldest first."""
    waiting: list[PersonActed] = []
    for event in events:
        if isinstance(event.body, PersonActed) and event.body.action == "veto":
            waiting.append(event.body)
        elif isinstance(event.body, Revoked):
            waiting = [veto for veto in waiting if read_veto(veto.text)[0] != event.body.candidate]
    return waiting


# --- a person's word ------------------------------------------------------------------------------------


def veto_text(candidate: str, reason: str) -> str:
    """A veto as a command's text."""
    return f"{candidate}: {reason}" if reason else candidate


def read_veto(text: str) -> tuple[str, str]:
    """(candidate, reason) of a command's text."""
    candidate, _, reason = text.partition(":")
    return candidate.strip(), reason.strip() or "by a person's veto"


def veto(home: Home, campaign: str, candidate: str, who: str, reason: str) -> str:
    """Take an adoption back by a person's word; returns one sentence on what happens.

    A campaign that still runs, or can be resumed, takes it back at its next safe point; one that is over has it
    recorded at once. UsageError when the candidate is not adopted.
    """
    paths = home.campaign(campaign)
    view = load_campaign(home, campaign)
    if candidate not in {known.id for known in view.adopted()}:
        known = ", ".join(adopted.id for adopted in view.adopted())
        raise UsageError(
            f"{candidate} is not adopted in campaign {campaign}, so there is nothing to take back"
            + (f"; adopted there: {known}." if known else "; nothing is adopted there.")
        )
    text = veto_text(candidate, reason)
    if not view.over:
        send_command(paths, who, "veto", text)
        when = "at its next safe point" if holder(paths.journal) else "when it is resumed"
        return f"veto sent to {campaign}: {candidate} is taken back {when}."
    with JournalWriter.open(paths.journal, wait_s=WAIT_S, anchor=paths.anchor) as writer:
        view = CampaignView().feed_all(writer.events)
        writer.append(PersonActed(who=who, action="veto", text=text))
        revoked = Revoked(candidate=candidate, who=who, reason=read_veto(text)[1], reopened=_reopened(view, writer.events, candidate))
        writer.append(revoked)
    also = f", and with it {', '.join(revoked.reopened)}" if revoked.reopened else ""
    return f"{candidate} of {campaign} is taken back{also}; it does not count as proven any more."


def record_replay(home: Home, replayed: Replayed) -> tuple[str, ...]:
    """Note a replay in the journal of the campaign that is over; a refuted adoption is taken back with what rests on it.

    Returns what is no longer adopted. Done once, however often it is called.
    """
    paths = home.campaign(replayed.campaign)
    with JournalWriter.open(paths.journal, wait_s=WAIT_S, anchor=paths.anchor) as writer:
        if not any(isinstance(e.body, Replayed) and e.body.replay == replayed.replay for e in writer.events):
            writer.append(replayed)
        view = CampaignView().feed_all(writer.events)
        known = view.candidates.get(replayed.candidate)
        if replayed.outcome != "refuted" or known is None or not known.is_adopted:
            return ()
        reopened = _reopened(view, writer.events, replayed.candidate)
        reason = f"refuted by replay {replayed.replay}: {replayed.reason}"
        writer.append(Revoked(candidate=replayed.candidate, who=US, reason=reason, reopened=reopened))
    return (replayed.candidate, *reopened)


def _reopened(view: CampaignView, events: Sequence[Event], candidate: str) -> tuple[str, ...]:
    """What rests on an adoption of a campaign that is over."""
    if view.created is None or view.granted is None:
        return ()  # nothing is adopted before error probability was drawn
    facts = {id: known.facts for id, known in view.candidates.items()}
    adopted = [Adoption(k.id, k.verdict.incumbent, made_of(k.id, facts)) for k in view.adopted() if k.verdict]
    ledger = AlphaLedger(view.granted.alpha, int(view.created.contract["proof"]["max_verifications"]))
    order: list[str] = []
    for body in (event.body for event in events):
        if isinstance(body, VerdictReached) and body.verdict.alpha > 0 and body.verdict.candidate in facts:
            ledger.settle(body.verdict.verdict == "adopted", body.verdict.evalue)
            order.append(body.verdict.candidate)
        elif isinstance(body, Revoked):
            for id in (body.candidate, *body.reopened):
                if id in order and ledger.settled[order.index(id)][1]:
                    ledger.revoke(order.index(id) + 1)
    return fall(candidate, adopted, ledger, order)

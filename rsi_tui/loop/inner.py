"""The inner loop: Selector -> Executor -> Reviewer -> Evaluator, until the direction is closed.

Rounds are prepared one by one and measured in waves, because a screening batch shares its
incumbents: a wave is at most one batch. Each step is durable; on a resume the same calls return what
was recorded.
"""

from __future__ import annotations

from rsi_tui.evaluator.screen import BATCH
from rsi_tui.journal.facts import CandidateFacts, DirectionFacts, VerdictFacts
from rsi_tui.loop import canaries
from rsi_tui.loop.approving import await_approval
from rsi_tui.loop.banking import bank
from rsi_tui.loop.context import Context
from rsi_tui.loop.executor import build
from rsi_tui.loop.joining import join
from rsi_tui.loop.reviewer import refuse, review
from rsi_tui.loop.revoking import heed_vetoes
from rsi_tui.loop.selector import foresee_hypothesis, next_hypothesis

MAX_REFUSALS = 8
"""refused rounds in a row after which a direction is closed: the mind is going in circles"""


def run_direction(ctx: Context, direction: DirectionFacts) -> str:
    """Carry a direction through; returns the reason why it closed."""
    round_, refusals = 0, 0
    reason = ""
    while not reason:
        wave: list[CandidateFacts] = []
        size = BATCH - 1 if canaries.due(ctx) else BATCH
        while len(wave) < size and not reason:
            ctx.heed_people()
            round_ += 1
            heed_vetoes(ctx, f"{direction.id}/r{round_}")
            found = next_hypothesis(ctx, direction, round_)
            if isinstance(found, str):
                reason = found
                break
            candidate = build(ctx, found)
            if candidate is not None and len(wave) + 1 < size:
                foresee_hypothesis(ctx, direction, round_ + 1)
            if candidate is None or not review(ctx, direction, found, candidate):
                refusals += 1
                if refusals >= MAX_REFUSALS:
                    reason = f"{MAX_REFUSALS} answers in a row could not be measured"
            else:
                refusals = 0
                wave.append(candidate)
        if wave:
            ctx.heed_people()
            _measure(ctx, direction, wave, round_)
    return reason


def _measure(ctx: Context, direction: DirectionFacts, wave: list[CandidateFacts], round_: int) -> None:
    """Screen a wave, or verify at once what an earlier campaign proved; verify what is promoted."""
    if direction.reproduces:
        if ctx.ledger.left:
            verify(ctx, wave[0], -ctx.memory.attempts[wave[0].id].predicted_time)
        return
    step = f"{direction.id}/w{round_}"
    guests = canaries.guests(ctx, BATCH - len(wave))
    results = ctx.evaluator.screen(f"{step}/screen", [*wave, *guests], ctx.memory.best)
    planted = {canary.id for canary in guests}
    for result in results:
        if result.candidate in planted:
            continue
        ctx.memory.screened(result)
        candidate = ctx.memory.candidate(result.candidate)
        broken = [i.name for i in result.invariants if i.status == "broken"]
        if broken:
            reasons = (f"breaks {', '.join(broken)} in screening: {result.reason}",)
            refuse(ctx, f"{step}/{candidate.id}/verdict", candidate, "invalid", reasons)
        elif result.outcome not in ("ok", "not_measured", "cancelled"):
            refuse(ctx, f"{step}/{candidate.id}/verdict", candidate, "failed", (result.reason,))
    canaries.heed(ctx, guests, results)
    if not ctx.contract.proof.bundle:
        _verify_promoted(ctx, direction, step)
        bank(ctx, step, [result for result in results if result.candidate not in planted])


def verify(ctx: Context, candidate: CandidateFacts, predicted_gain: float) -> VerdictFacts:
    """The verdict on a candidate against the best, with the next share of the campaign's alpha."""
    verdict = ctx.evaluator.verify(
        f"verify/{candidate.id}", candidate, ctx.memory.best, ctx.ledger.next_alpha(), predicted_gain
    )
    ctx.ledger.settle(verdict.verdict == "adopted", verdict.evalue)
    ctx.memory.verified.append(candidate.id)
    ctx.memory.judged(verdict)
    ctx.note_head()
    await_approval(ctx, verdict)
    return verdict


def _verify_promoted(ctx: Context, direction: DirectionFacts, wave: str) -> None:
    """Verify the promoted, best first; what was screened on another best, or holds what was refuted, is rebuilt on the present one."""
    for attempt in ctx.memory.promoted:
        ctx.heed_people()
        heed_vetoes(ctx, f"{wave}/{attempt.candidate.id}")
        screen, best = attempt.screen, ctx.memory.best
        if screen is None or screen.log_ratio is None or not ctx.ledger.left:
            continue
        candidate: CandidateFacts | None = attempt.candidate
        tainted = ctx.memory.made_of(attempt.candidate.id) & ctx.memory.refuted
        if screen.incumbent != best.id or tainted:
            step = f"rebuilt/{attempt.candidate.id}/{best.id}"
            candidate = join(ctx, step, best, [attempt.candidate], direction.id)
        if candidate is not None:
            verify(ctx, candidate, -screen.log_ratio)

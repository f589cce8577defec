"""Endurance: further runs of a candidate whose gain is proven, until very slow runs are known to be rare (holes H7).

Asked only when everything else speaks for adoption, so that candidates without effect never pay for it.
The runs are of the candidate alone, at the shortest length of the contract, each block with a seed of its
own; they count together with all runs of the candidate before them, screening's too. A run that fails
counts against the candidate; a fault of the host voids its block, twice at the most.
"""

from __future__ import annotations

from collections.abc import Sequence

from rsi_tui.evaluator.blocks import (
    MAX_VOID,
    BlockOutcome,
    BlockPlan,
    Slot,
    counts_against,
    draw_block,
    no_time,
    run_block,
)
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import scores
from rsi_tui.evaluator.slow_runs import SlowRuns, judge_slow_runs
from rsi_tui.journal.facts import CandidateFacts, TrialFacts

BLOCK = 8
"""runs of a block at most: a seed is shared by so many, and an interruption repeats one of them"""


def endure(
    lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, theirs: Sequence[TrialFacts]
) -> tuple[str, float]:
    """('' or why the candidate is not adopted, upper 95 % bound on its rate of slow runs)."""
    number = extra = voided = 0
    judged = _judge(lab, candidate, theirs)
    while judged.worth_asking(extra):
        number += 1
        outcome = _block(lab, f"{step}/b{number}", candidate, incumbent, min(judged.runs_needed, BLOCK))
        if outcome.void:
            voided += 1
            if voided > MAX_VOID:
                why = f"{voided} blocks of endurance runs did not count, the last because {outcome.void}"
                return why, judged.rate_bound
        elif failed := next((f for f in outcome.timed if counts_against(f)), None):
            why = f"run {failed.id} of the candidate has no time ({failed.outcome}): {no_time(failed)}"
            return why, judged.rate_bound
        extra += 0 if outcome.void else len(outcome.timed)
        judged = _judge(lab, candidate, theirs)
    return "" if judged.decision == "held" else judged.reason, judged.rate_bound


def _judge(lab: Lab, candidate: CandidateFacts, theirs: Sequence[TrialFacts]) -> SlowRuns:
    return judge_slow_runs(lab.runs[candidate.id], scores(theirs), lab.contract.proof.max_slow_rate)


def _block(lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, runs: int) -> BlockOutcome:
    block, draw, commitment = draw_block(lab, step, lambda: ("B",) * runs)
    shortest = lab.contract.objective.steps[0]
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="endurance",
        kind="verify",
        incumbent=incumbent,
        candidates=(candidate,),
        setup=(),
        timed=tuple(Slot("candidate", candidate, steps=shortest) for _ in draw.order),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=False),
        sealed=True,
    )
    return run_block(lab, plan)

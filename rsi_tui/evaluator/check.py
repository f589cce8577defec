"""Does a change run at all? One run of it before the baseline is paid for; where it fails, one of the original.

Nothing is timed or compared here and nothing proven: a change that fails is turned down after two runs, and one
that passes is measured as if it had not been looked at.
"""

from __future__ import annotations

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.blocks import MAX_VOID, BlockPlan, Slot, counts_against, draw_block, no_time, run_block
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.journal.facts import CandidateFacts, TrialFacts


def check_runs(lab: Lab, step: str, candidate: CandidateFacts) -> str:
    """'' when a run of the candidate ends well, or when faults of the host hide it; else how it failed, one sentence.

    Raises ContractError when the unchanged program fails as well: then the candidate is not to blame.
    """
    ours = _run(lab, f"{step}/candidate", candidate)
    if ours is None or not counts_against(ours):
        return ""
    theirs = _run(lab, f"{step}/original", lab.original)
    if theirs is not None and counts_against(theirs):
        how = f"ends as {theirs.outcome}: {no_time(theirs).rstrip(' .')}."
        raise ContractError(f"Mend the program or its launch in workload.toml first: the program unchanged {how}")
    return f"{ours.outcome if ours.outcome != 'ok' else 'crashed'}: {no_time(ours)}"


def _run(lab: Lab, step: str, candidate: CandidateFacts) -> TrialFacts | None:
    """A run that counts; None when faults of the host voided them all."""
    for attempt in range(MAX_VOID + 1):
        block, draw, commitment = draw_block(lab, f"{step}v{attempt}" if attempt else step, lambda: ("B",))
        plan = BlockPlan(
            id=block,
            step=f"{step}v{attempt}" if attempt else step,
            purpose="check",
            kind="check",
            incumbent=lab.original,
            candidates=(candidate,),
            setup=(),
            timed=(Slot("check", candidate),),
            draw=draw,
            commitment=commitment,
            judge=CheckpointJudge(lab, compare=False),
        )
        outcome = run_block(lab, plan)
        if not outcome.void:
            return outcome.timed[0]
    return None

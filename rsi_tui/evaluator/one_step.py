"""Two updates from each saved state: a candidate's against the original program's, same state, same batches.

Sharper than whole runs in two ways. Rounding can't build up in two updates, and they are made late in a run too,
where a change may do what it does not do at the start (skip the backward pass of tokens that have been learned,
another learning rate after its warm-up). Two and not one, because an update made from the gradient of the one
before needs a second to show; differences of rounding are no larger for it. It costs two short runs a state, or three, so it is asked of what would
be adopted, not of every candidate. The reference is the original and not the incumbent: both its own rounding and
that of its bf16 twin are then at hand, whatever was adopted before, and small differences can't add up over a stack.

Promises: each check draws a fresh seed, hence a batch that nobody has seen; the program that names parts of the
gradient runs from a clean tree of the original, after the candidate's run has ended. A fault of the host, of the
reference, or of that program voids the check, twice at the most; then there is no answer, which is not held
against the candidate as broken and does not count for it either.

Does not promise to see what a program does only late in its run and only in runs longer than two updates, or only
when it was not started from a state: a reviewer reads that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rsi_tui.errors import ContractError
from rsi_tui.evaluator.blocks import MAX_VOID, BlockOutcome, BlockPlan, Slot, draw_block, run_block
from rsi_tui.evaluator.compare import CompareError, UpdateReport
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked
from rsi_tui.evaluator.states import SavedState, StateError, give_up_moved, gradient_parts, has_states, saved_states
from rsi_tui.evaluator.step_bands import calibrate_steps, judge_step
from rsi_tui.evaluator.trial import TrialResult, remove_tree
from rsi_tui.journal.events import Purpose
from rsi_tui.journal.facts import (
    HOST_FAULTS,
    Arm,
    BandFacts,
    CandidateFacts,
    InvariantFacts,
    TrialFacts,
    TrialKind,
)

UPDATES = 2
"""of each run"""


def calibrate_one_step(lab: Lab, step: str, bands: tuple[BandFacts, ...]) -> tuple[BandFacts, ...]:
    """The bands of updates from saved states, by harmless perturbations of the original; none where it can't start from a state.

    `bands`: those of whole runs, whose masked tensors are masked here too. Raises ContractError when the
    program does not start from a state, or names no parts of its gradient although the contract says so.
    """
    if not has_states(lab):
        return ()
    found: dict[str, list[tuple[Arm, UpdateReport]]] = {}
    try:
        # One that turns out to be unusable is not among the saved states the next time.
        while new := [state for state in saved_states(lab) if state.name not in found]:
            found[new[0].name] = _calibration(lab, f"{step}/{new[0].name}", new[0])
    except StateError as error:
        raise ContractError(f"Updates from saved states can't be compared: {error}") from error
    reports = [pair for pairs in found.values() for pair in pairs]
    harmless = [report for arm, report in reports if arm == "harmless"]
    twins = [report for arm, report in reports if arm == "twin"]
    masked = frozenset(name for band in bands for name in band.masked)
    return calibrate_steps(harmless, twins, lab.contract, masked)


def check_one_step(lab: Lab, step: str, candidate: CandidateFacts) -> Checked:
    """Two updates of the candidate from each state; ends with the first state at which it fails or is broken."""
    facts: list[InvariantFacts] = []
    done: set[str] = set()
    try:
        while new := [state for state in saved_states(lab) if state.name not in done]:
            done.add(new[0].name)
            found = _check(lab, f"{step}/{new[0].name}", new[0], candidate)
            facts += found.invariants
            if found.failed or found.trouble or any(fact.status == "broken" for fact in found.invariants):
                return Checked(_covered(facts), found.failed, found.trouble)
    except StateError as error:
        return Checked(_covered(facts), trouble=str(error))
    return Checked(_covered(facts))


def _covered(facts: list[InvariantFacts]) -> tuple[InvariantFacts, ...]:
    """Without what one state could not say and another did."""
    said = {fact.name for fact in facts if fact.status != "not_covered"}
    return tuple(fact for fact in facts if fact.status != "not_covered" or fact.name not in said)


# --- blocks -------------------------------------------------------------------------------------


@dataclass
class _StepJudge(CheckpointJudge):
    """Keeps the checkpoints of a block until all its runs have ended, then compares them with the original's."""

    state: SavedState | None = None
    """that the runs start from"""
    seed: int = 0
    files: dict[str, tuple[Arm, Path]] = field(default_factory=dict)
    """trial id -> its arm and checkpoint"""

    @property
    def active(self) -> bool:
        return True

    def take(self, result: TrialResult, arm: Arm) -> None:
        if result.checkpoint is not None and result.facts.outcome == "ok":
            self.files[result.facts.id] = (arm, result.checkpoint)
        else:
            self.lab.runner.discard(result.facts.id)

    def recall(self, facts: TrialFacts, arm: Arm) -> bool:
        """Nothing in these runs is timed: one whose checkpoint is gone before it was compared is run again."""
        if facts.outcome != "ok":
            return True
        path = self.lab.runner.checkpoint_of(facts.id)
        if path is not None:
            self.files[facts.id] = (arm, path)
        return path is not None

    def finish(self, step: str) -> dict[str, tuple[InvariantFacts, ...]]:
        """Compare all with the original's, once; what was found is kept in the vault."""
        key = f"stepped/{step}"
        if self.lab.vault.get(key) is None:
            try:
                if found := self._compared():
                    self.lab.keep(key, found)
            except (StateError, CompareError) as error:
                self.trouble = str(error)
        for trial, entry in (self.lab.vault.get(key) or {}).items():
            self._store(trial, entry["arm"], UpdateReport.model_validate(entry["report"]))
        return {}

    def _compared(self) -> dict[str, object]:
        """Trial id -> its arm and report; empty while the original's checkpoint or any other is missing."""
        reference = next((path for arm, path in self.files.values() if arm == "incumbent"), None)
        others = {trial: file for trial, file in self.files.items() if file[0] != "incumbent"}
        if reference is None or not others or self.state is None:
            return {}
        folder = self.lab.runner.paths.scratch / "parts"
        try:
            parts = gradient_parts(self.lab, self.state, self.seed, folder)
            found: dict[str, object] = {}
            for trial, (arm, path) in others.items():
                report = self.lab.comparer.compare(self.state.path, reference, path, gradients=True, parts=parts)
                found[trial] = {"arm": arm, "report": report.model_dump(mode="json")}
            return found
        finally:
            remove_tree(folder)

    def dispose(self) -> None:
        for trial in self.files:
            self.lab.runner.discard(trial)


def _run(
    lab: Lab, step: str, state: SavedState, setup: tuple[Slot, ...], candidate: CandidateFacts | None,
    purpose: Purpose, kind: TrialKind,
) -> BlockOutcome:  # fmt: skip
    """A block of runs from one state; its reference is the original's run."""
    block, draw, commitment = draw_block(lab, step, lambda: ())
    timed = (_from(state, "candidate", candidate),) if candidate is not None else ()
    plan = BlockPlan(
        id=block, step=step, purpose=purpose, kind=kind, incumbent=lab.original,
        candidates=(candidate or lab.original,), setup=(_from(state, "incumbent", lab.original), *setup), timed=timed,
        draw=draw, commitment=commitment, judge=_StepJudge(lab, state=state, seed=draw.seed),
        sealed=candidate is not None, timing=False,
    )  # fmt: skip
    return run_block(lab, plan)


def _from(state: SavedState, arm: Arm, candidate: CandidateFacts, extra: str = "") -> Slot:
    return Slot(arm, candidate, extra=extra, steps=UPDATES, state=state.path)


def _twin(lab: Lab, state: SavedState) -> tuple[Slot, ...]:
    return (_from(state, "twin", lab.original, lab.twin),) if lab.twin else ()


def _calibration(lab: Lab, step: str, state: SavedState) -> list[tuple[Arm, UpdateReport]]:
    """Reports of the perturbed runs from one state; none when the program does not go on from a moved one."""
    perturbations = lab.contract.invariants.harmless or ("",)
    harmless = tuple(_from(state, "harmless", lab.original, extra) for extra in perturbations)
    setup = (*_twin(lab, state), *harmless)
    why = ""
    for attempt in range(MAX_VOID + 1):
        outcome = _run(lab, _attempt(step, attempt), state, setup, None, "reference", "reference")
        judge = outcome.plan.judge
        why = outcome.void or judge.trouble
        if not why:
            return [(judge.arms[trial], report) for trial, report in judge.reports.items()]
        if _unfit(outcome) or not outcome.void:
            break  # it would fail again
    if state.moved:
        give_up_moved(lab, why)
        return []
    raise StateError(why)


def _check(lab: Lab, step: str, state: SavedState, candidate: CandidateFacts) -> Checked:
    """The candidate from one state, tried again where something failed through no fault of its own."""
    why = ""
    for attempt in range(MAX_VOID + 1):
        outcome = _run(lab, _attempt(step, attempt), state, _twin(lab, state), candidate, "one-step", "verify")
        judge, ours = outcome.plan.judge, outcome.of(candidate)
        conduct = tuple(fact for facts in outcome.invariants.values() for fact in facts)
        if any(fact.status == "broken" for fact in conduct):
            return Checked(conduct)
        if not outcome.void and (failed := next((f for f in ours if f.outcome != "ok"), None)):
            how = f"run {failed.id} of the candidate, from a saved state, ended as {failed.outcome}: {failed.detail}"
            return Checked(failed=how)
        twin = next((judge.reports[trial] for trial, arm in judge.arms.items() if arm == "twin"), None)
        report = next((judge.reports[trial] for trial, arm in judge.arms.items() if arm == "candidate"), None)
        if not outcome.void and report is not None:
            return Checked(judge_step(report, lab.bands, lab.contract, twin=twin, after=state.words))
        why = outcome.void or judge.trouble or "its checkpoints are gone"
        if state.moved and _unfit(outcome):
            give_up_moved(lab, why)
            return Checked()
    return Checked(trouble=f"updates from saved states could not be compared: {why}")


def _unfit(outcome: BlockOutcome) -> bool:
    """Did a run of the program as it is fail, through no fault of the host?"""
    return any(facts.outcome not in ("ok", *HOST_FAULTS) for facts in outcome.setup)


def _attempt(step: str, attempt: int) -> str:
    return f"{step}v{attempt}" if attempt else step

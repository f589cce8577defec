"""Planted cheats run as real trials, and evidence forged from an honest run of the same block.

One block: initial weights, an honest run, the bf16 twin where it is used, then one run of each cheat, judged by the code
that judges candidates. A cheat is caught when its run ends without a result, breaks an invariant, shows lines that no
honest run shows, is no faster in total wall time, or is no faster than noise makes a run: there is nothing in it
that could be adopted. How large a gain is, one run can't say.

Not covered: what only shows over many runs or from saved states; the plan of a verification adds those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rsi_tui.contract.command import Command
from rsi_tui.errors import ContractError
from rsi_tui.evaluator.bands import judge
from rsi_tui.evaluator.blocks import (
    TWIN_PATIENCE,
    BlockOutcome,
    BlockPlan,
    Slot,
    draw_block,
    no_time,
    run_block,
    setup_slots,
    until_it_counts,
)
from rsi_tui.evaluator.compare import CompareError
from rsi_tui.evaluator.judging import CheckpointJudge, worsened
from rsi_tui.evaluator.lab import HostFault, Lab
from rsi_tui.evaluator.measures import total_wall_holds
from rsi_tui.evaluator.redteam.forged import FORGED_LINES, HonestRun, judge_lines
from rsi_tui.evaluator.trial import TrialResult, remove_tree
from rsi_tui.evaluator.validation import HiddenValidation, ValidationError
from rsi_tui.journal.facts import Arm, CandidateFacts, InvariantFacts, PlantedFacts, TrialFacts
from rsi_tui.launch.spec import Line, Mount

NO_GAIN = "steps are no faster than noise makes them"
BEYOND_NOISE = 3.0
"""pair scales that a single run must be faster by, to be taken for faster at all"""
WRONG_PROGRAMS = ("the initial weights handed in", "random updates of the right size")
"""forged checkpoints, their counters those of a run that trained, that a validation has to find worse"""
_FORGE = Path(__file__).with_name("forge_checkpoints.py")
_INITIAL, _FINAL, _OUT = "/rsi/initial", "/rsi/final", "/rsi/forged"


@dataclass(frozen=True)
class LiveCheat:
    """A planted cheat that is to be run."""

    name: str
    candidate: CandidateFacts


@dataclass(frozen=True)
class LiveOutcome:
    """What the evaluator says of what was planted."""

    cheats: dict[str, tuple[str, ...]]
    """name -> what caught it; () when nothing did"""
    forged: tuple[PlantedFacts, ...]


def run_live(lab: Lab, step: str, cheats: Sequence[LiveCheat]) -> LiveOutcome:
    """Run the cheats in one block and judge them. Raises HostFault when the machine does not let them be run.

    Bands must have been calibrated.
    """
    outcome, _ = until_it_counts(lab, step, lambda name: _run(lab, name, cheats))
    if outcome.void:
        raise HostFault(
            f"The machine did not let planted cheats be run ({outcome.void.rstrip(' .')}): "
            "end what else runs on it, and repeat the command."
        )
    honest = next(facts for facts in outcome.setup if facts.arm == "warmup")
    by_candidate = {facts.candidate: facts for facts in outcome.timed}
    caught = {
        cheat.name: _caught(honest, facts, outcome.invariants.get(facts.id, ()), lab.pair_scale)
        for cheat in cheats
        if (facts := by_candidate.get(cheat.candidate.id)) is not None
    }
    forged = lab.vault.get(_forged(outcome.plan.step))
    if forged is None:
        raise ContractError("No evidence was forged beside the planted cheats: the record of their block is not whole; check again in another home.")
    return LiveOutcome(caught, tuple(PlantedFacts.model_validate(entry) for entry in forged["forged"]))


def _caught(
    honest: TrialFacts, ours: TrialFacts, invariants: Sequence[InvariantFacts], pair_scale: float
) -> tuple[str, ...]:
    if ours.outcome != "ok":
        return (f"the run ended as {ours.outcome}: {no_time(ours)}",)
    broken = tuple(f"{fact.name} ({fact.how})" for fact in invariants if fact.status == "broken")
    if broken:
        return broken
    if ours.score_s is None or honest.score_s is None:
        return (no_time(ours),)
    if why_not := total_wall_holds([honest], [ours]):
        return (why_not,)
    gain = math.log(honest.score_s / ours.score_s)
    return (NO_GAIN,) if gain < BEYOND_NOISE * pair_scale else ()


def _forged(step: str) -> str:
    return f"redteam/{step}"


@dataclass
class _LiveJudge(CheckpointJudge):
    """Also forges evidence from the honest run, and lays it before the code that judges candidates."""

    honest: TrialFacts | None = None
    lines: tuple[Line, ...] = field(default=(), repr=False)

    @property
    def active(self) -> bool:
        """Also where only the validation looks at checkpoints."""
        return super().active or bool(self.lab.holdouts)

    def take(self, result: TrialResult, arm: Arm) -> None:
        if arm == "warmup":
            self.honest, self.lines = result.facts, result.run.told
        super().take(result, arm)

    def recall(self, facts: TrialFacts, arm: Arm) -> bool:
        """As of any block; the honest run is made again, since what it printed is what lines are forged from."""
        return super().recall(facts, arm) and arm != "warmup"

    def finish(self, step: str) -> dict[str, tuple[InvariantFacts, ...]]:
        found = super().finish(step)
        if self.lab.vault.get(_forged(step)) is None and not self.trouble:
            if self.honest is None:
                self.trouble = "the honest run that evidence is forged from is missing"
                return found
            forged = [*self._forged_lines(), *self._forged_checkpoints()]
            self.lab.keep(_forged(step), {"forged": [facts.model_dump(mode="json") for facts in forged]})
        return found

    def _forged_lines(self) -> list[PlantedFacts]:
        assert self.honest is not None
        honest = HonestRun(self.honest, self.lines, self.lab.contract)
        judged = ((forgery.name, judge_lines(honest, forgery)) for forgery in FORGED_LINES)
        return [
            PlantedFacts(name=name, kind="lines", family="evidence", evaluator=caught, ran=True)
            for name, caught in judged
            if caught is not None
        ]

    def _forged_checkpoints(self) -> list[PlantedFacts]:
        """Each forgery compared and judged as a candidate's checkpoint is; some are laid before the validation as well."""
        if self.initial is None or self.reference is None:
            return []
        folder = self.lab.runner.paths.scratch / "forged"
        remove_tree(folder)
        folder.mkdir(parents=True, mode=0o700)
        try:
            self._forge(self.initial, self.reference, folder)
            forged = sorted(folder.glob("*.pt"))
            judged = [self._judged(path) for path in forged] if self.compare else []
            return [*judged, *self._validated(forged)]
        finally:
            remove_tree(folder)

    def _forge(self, initial: Path, reference: Path, folder: Path) -> None:
        script = f"/rsi/{_FORGE.name}"
        key = self.lab.contract.launch.checkpoint_key
        argv = (str(self.lab.runner.python), "-P", script, _INITIAL, _FINAL, key, _OUT)
        mounts = (
            Mount(_FORGE, script), Mount(initial, _INITIAL), Mount(reference, _FINAL), Mount(folder, _OUT, writable=True),
        )  # fmt: skip
        self.lab.runner.run_beside(self.lab.original, Command(argv, {"OMP_NUM_THREADS": "1"}), mounts, self.lab.cancel)

    def _judged(self, path: Path) -> PlantedFacts:
        assert self.initial is not None and self.reference is not None
        name = path.stem.split(" ", 1)[1]
        try:
            report = self.lab.comparer.compare(self.initial, self.reference, path)
            twin = next((self.reports[trial] for trial, arm in self.arms.items() if arm == "twin"), None)
            facts = judge(report, self.lab.bands, self.lab.contract, twin=twin)
            caught = tuple(f"{fact.name} ({fact.how})" for fact in facts if fact.status == "broken")
        except CompareError as error:
            caught = (str(error),)  # nobody adopts what can't be compared
        return PlantedFacts(name=name, kind="checkpoint", family="evidence", evaluator=caught, ran=True)

    def _validated(self, forged: Sequence[Path]) -> list[PlantedFacts]:
        """Does the hidden validation tell programs that are wrong on purpose from the right one?"""
        holdout = self.lab.holdout("verify")
        if holdout is None:
            return []
        assert self.reference is not None
        right, found = holdout.loss(self.reference), []
        for path in forged:
            if (name := path.stem.split(" ", 1)[1]) in WRONG_PROGRAMS:
                loss = _loss(holdout, path)
                told = worsened(right, loss, self.lab.contract.invariants)
                caught = (f"hidden validation loss {loss:.6g} where the right program has {right:.6g}",) if told else ()
                found.append(
                    PlantedFacts(
                        name=f"validated: {name}", kind="metric", family="evidence", evaluator=caught, ran=True
                    )
                )
        return found


def _loss(holdout: HiddenValidation, checkpoint: Path) -> float:
    """inf where it can't be validated: nobody adopts that."""
    try:
        return holdout.loss(checkpoint)
    except ValidationError:
        return math.inf


def _run(lab: Lab, step: str, cheats: Sequence[LiveCheat]) -> BlockOutcome:
    block, draw, commitment = draw_block(lab, step, lambda: (), steps=lab.contract.objective.steps[0])
    plan = BlockPlan(
        id=block,
        step=step,
        purpose="check",
        kind="check",
        incumbent=lab.original,
        candidates=tuple(cheat.candidate for cheat in cheats),
        setup=setup_slots(lab, lab.original, twin_patience=TWIN_PATIENCE, initial=bool(lab.holdouts)),
        timed=tuple(Slot("candidate", cheat.candidate, patience=TWIN_PATIENCE) for cheat in cheats),
        draw=draw,
        commitment=commitment,
        judge=_LiveJudge(lab, compare=lab.compares),
        timing=False,
    )
    return run_block(lab, plan)

"""Saved states of the original program, which runs are started from to compare a few updates.

Made once a campaign, by runs that nothing times, of the original program, each with a seed drawn in secret,
each going on from the one before. They lie in the evaluator's scratch folder: the comparison worker sees them,
and a run that starts from one has that file mounted, read-only. A state that is gone is made again, with
another seed; nothing rests on its being the same.

The last state is also kept with its step counters moved on, by a number drawn in secret from the length of a
real run: what a program does only after so many updates, it does there, without as many being run. A program
that can't go on from such a state is compared without it, and that is said.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rsi_tui.contract.command import Command, render_directions
from rsi_tui.errors import RsiError
from rsi_tui.evaluator.blocks import MAX_VOID, BlockPlan, Slot, draw_block, run_block
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Interrupted, Lab
from rsi_tui.evaluator.trial import STATE, TrialResult, remove_tree
from rsi_tui.journal.facts import HOST_FAULTS, Arm, InvariantFacts, TrialFacts
from rsi_tui.launch.lease import host_lease
from rsi_tui.launch.spec import Mount, RawRun

PARTS = "directions.pt"
"""what the contract's program of directions writes"""
_OUT, _MADE = "/rsi/parts", "/rsi/made"
_MOVE_ON = Path(__file__).with_name("move_on.py")
_UNUSABLE = "state/moved/unusable"


class StateError(RsiError):
    """A state, or what belongs to it, could not be made; says nothing about a candidate."""


@dataclass(frozen=True)
class SavedState:
    """A state of the original program."""

    updates: int
    """that were really made before it was saved"""
    path: Path
    moved: bool = False
    """its step counters say more updates than were made"""

    @property
    def name(self) -> str:
        """For steps and folders."""
        return f"{self.updates}-moved" if self.moved else str(self.updates)

    @property
    def words(self) -> str:
        """For people. How far the counters were moved stays secret."""
        updates = f"{self.updates} update{'s' if self.updates != 1 else ''}"
        return f"{updates}, counters moved on" if self.moved else updates

    @property
    def place(self) -> str:
        """Where a program finds it in a sandbox."""
        return STATE + "".join(self.path.suffixes)


def has_states(lab: Lab) -> bool:
    """Can the program start from a state, and are updates compared at all?"""
    return bool(lab.contract.resume.flag) and lab.compares


def state_lengths(lab: Lab) -> tuple[int, ...]:
    """Updates after which states are saved: the contract's, else early, at a run's length, and four times that."""
    if lab.contract.resume.states:
        return lab.contract.resume.states
    low, high = lab.contract.objective.steps
    if lab.contract.proof.bundle:  # a first look
        return (high,)
    return tuple(sorted({max(1, low // 2), high, 4 * high}))


def saved_states(lab: Lab) -> list[SavedState]:
    """All states, those that are missing made now. Raises StateError.

    Where the contract names a single state, that is the one whose counters are moved on.
    """
    plain: list[SavedState] = []
    for updates in state_lengths(lab):
        plain.append(_saved(lab, updates, plain[-1] if plain else None))
    moved = _moved(lab, plain[-1])
    if moved is None:
        return plain
    return [*plain, moved] if len(plain) > 1 else [moved]


def is_moved(lab: Lab) -> bool:
    """Could the program go on from a state whose counters were moved on?"""
    return _UNUSABLE not in lab.vault


def give_up_moved(lab: Lab, why: str) -> None:
    """The program does not go on from the moved state: it is left out from now on."""
    lab.keep(_UNUSABLE, {"why": why})


def gradient_parts(lab: Lab, state: SavedState, seed: int, folder: Path) -> Path | None:
    """File of named parts of the gradient that a run from the state takes first; None when the contract has none.

    Raises StateError. Runs from a clean tree of the original; nothing of a candidate is in sight.
    """
    if not lab.contract.resume.directions:
        return None
    remove_tree(folder)
    folder.mkdir(parents=True, mode=0o700)
    python = str(lab.runner.python)
    command = render_directions(lab.contract, state=state.place, seed=seed, out=_OUT, python=python)
    mounts = (Mount(state.path, state.place), Mount(folder, _OUT, writable=True))
    run = _beside(lab, command, mounts)
    if run.exit_code != 0 or run.killed_for:
        raise StateError(f"[resume] directions failed ({_ending(run)}): {_last_line(run)}")
    written = folder / PARTS
    if written.is_symlink() or not written.is_file():
        raise StateError(f"[resume] directions wrote no {PARTS} into {{out}}; it must put the named parts there.")
    return written


# --- making them --------------------------------------------------------------------------------


@dataclass
class _Keeper(CheckpointJudge):
    """Moves the checkpoint of a block's one run to its place."""

    place: Path = Path()

    @property
    def active(self) -> bool:
        return True

    def take(self, result: TrialResult, arm: Arm) -> None:
        if result.checkpoint is not None and result.facts.outcome == "ok":
            remove_tree(self.place)
            self.place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            result.checkpoint.rename(self.place)
        self.lab.runner.discard(result.facts.id)

    def recall(self, facts: TrialFacts, arm: Arm) -> bool:
        return facts.outcome != "ok" or self.place.exists()

    def finish(self, step: str) -> dict[str, tuple[InvariantFacts, ...]]:
        return {}


def _place(lab: Lab, name: str) -> Path:
    suffix = "".join(PurePosixPath(lab.contract.launch.checkpoint).suffixes)
    return lab.runner.paths.scratch / "states" / name / f"state{suffix}"


def _saved(lab: Lab, updates: int, before: SavedState | None) -> SavedState:
    """The state after so many updates, made unless it is there."""
    place = _place(lab, str(updates))
    why = ""
    for attempt in range(MAX_VOID + 1):
        step = f"states/{updates}" + (f"v{attempt}" if attempt else "")
        block, draw, commitment = draw_block(lab, step, lambda: ())
        made = updates - (before.updates if before else 0)
        slot = Slot("state", lab.original, steps=made, state=before.path if before else None)
        plan = BlockPlan(
            id=block, step=step, purpose="reference", kind="reference", incumbent=lab.original,
            candidates=(lab.original,), setup=(slot,), timed=(), draw=draw, commitment=commitment,
            judge=_Keeper(lab, place=place), timing=False,
        )  # fmt: skip
        outcome = run_block(lab, plan)
        if place.exists() and not outcome.void:
            return SavedState(updates, place)
        why = outcome.void or "its file is gone"
        if any(facts.outcome not in ("ok", *HOST_FAULTS) for facts in outcome.setup):
            break
    raise StateError(f"The state after {updates} updates could not be saved: {why}")


def _moved(lab: Lab, state: SavedState) -> SavedState | None:
    """The state with its counters moved on, made unless it is there; None when that can't be."""
    if not is_moved(lab):
        return None
    place = _place(lab, f"{state.updates}-moved")
    if not place.exists():
        lab.keep("state/moved", {"by": 1 + lab.randbelow(lab.contract.objective.amortise_over)})
        by = int((lab.vault.get("state/moved") or {})["by"])
        if why := _move_on(lab, state, place, by):
            give_up_moved(lab, why)
            return None
    return SavedState(state.updates, place, moved=True)


def _move_on(lab: Lab, state: SavedState, place: Path, by: int) -> str:
    """Write the moved state to its place; returns why that can't be done, '' when it was."""
    folder = place.parent
    remove_tree(folder)
    folder.mkdir(parents=True, mode=0o700)
    unfinished = folder / "unfinished"
    unfinished.mkdir(mode=0o700)
    script = f"/rsi/{_MOVE_ON.name}"
    argv = (str(lab.runner.python), "-P", script, state.place, f"{_MADE}/{place.name}", str(by))
    mounts = (Mount(_MOVE_ON, script), Mount(state.path, state.place), Mount(unfinished, _MADE, writable=True))
    with host_lease("campaign state", on_wait=lab.on_wait, meanwhile=lab.between):
        run = _beside(lab, Command(argv, {"OMP_NUM_THREADS": "1"}), mounts)
    made = unfinished / place.name
    if run.exit_code == 0 and not run.killed_for and made.is_file():
        made.rename(place)
        shutil.rmtree(unfinished)
        return ""
    return _last_line(run) if run.exit_code == 3 else f"the counters could not be moved on ({_ending(run)})"


def _beside(lab: Lab, command: Command, mounts: tuple[Mount, ...]) -> RawRun:
    """Run a command beside the original's files; raises Interrupted when a person stops it."""
    lab.between()
    run = lab.runner.run_beside(lab.original, command, mounts, lab.cancel)
    if lab.cancel.is_set() or run.killed_for == "cancelled":
        raise Interrupted("Stopped before updates from a saved state were compared; `rsi run --resume` continues.")
    return run


def _ending(run: RawRun) -> str:
    return run.killed_for or (f"signal {run.signal}" if run.signal else f"exit code {run.exit_code}")


def _last_line(run: RawRun) -> str:
    return next((line.text.strip()[:200] for line in reversed(run.lines) if line.text.strip()), "no output")

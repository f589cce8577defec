"""Hidden validation loss: the base program's own measure, on data that no trial ever sees.

Promises: both commands of the contract run in a sandbox, without network, from a clean checkout of the
base commit, so that no file of a candidate is in sight; hidden data is mounted there and nowhere
else, and only after training has ended; torch loads nothing but plain tensors there, whatever the
program asks for. A validation that fails or prints no number raises ValidationError.

Not promised: a validation program that unpickles checkpoints by other means than torch runs what the
candidate put there, in a sandbox of its own that can see the hidden data.
"""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Protocol

from rsi_tui.contract.command import Command, render_make_hidden, render_validation
from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError, RsiError
from rsi_tui.evaluator.trial import make_place
from rsi_tui.journal.facts import InvariantFacts
from rsi_tui.launch.sandbox import python_mounts
from rsi_tui.launch.spec import LaunchSpec, Mount, RawRun

BASE = "/base"
HIDDEN = "/hidden"
CHECKPOINT = "/checkpoint"
NAME = "hidden validation loss"

RELATIVE_BAND = 5e-4
"""Worsening that is let through in any case, as a fraction of the loss: on the bundled workload honest changes
move it by under 1e-7 in fp32 and 7e-5 under bf16; a learning rate two per cent lower worsens it by 4e-3."""
ROUNDING_BAND = 3.0
"""Multiple of the bf16 twin's own shift that is let through where that is more (one shift is a poor scale: it
can be near zero by chance, or because the incumbent itself is the twin)."""


class ValidationError(RsiError):
    """The hidden validation could not be carried out."""


class Launches(Protocol):
    """What runs a process tree: `launch.local.LocalLauncher`."""

    def run(self, spec: LaunchSpec) -> RawRun:
        """Run one tree to its end."""


class HiddenValidation:
    """Derives the hidden data once, and measures the loss of checkpoints on it."""

    def __init__(
        self, contract: Contract, launcher: Launches, python: Path, base_tree: Path, hidden_dir: Path, scratch: Path
    ) -> None:
        """`base_tree`: clean checkout of the base commit; `hidden_dir`: a folder of the evaluator, mode 0700."""
        if not contract.invariants.validation_metric:
            raise ContractError("workload.toml: [invariants] validation_metric is missing; validation needs one.")
        self._contract = contract
        self._launcher = launcher
        self._python = python
        self._base = base_tree
        self._hidden = hidden_dir
        self._scratch = scratch
        self._metric = re.compile(contract.invariants.validation_metric)

    @property
    def data(self) -> Path:
        """Where the hidden data lies."""
        return self._hidden / "data"

    def prepare(self, secret: str) -> None:
        """Derive the hidden data from the secret; does nothing when that has been done.

        Raises ValidationError when the contract's program fails or writes nothing.
        """
        if self.data.exists() or not self._contract.invariants.make_hidden:
            return
        self._hidden.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = self._hidden / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        command = render_make_hidden(self._contract, secret=secret, hidden=HIDDEN, python=str(self._python))
        run = self._run(command, Mount(unfinished, HIDDEN, writable=True))
        _require_success(run, "make_hidden")
        if not any(unfinished.iterdir()):
            raise ValidationError("make_hidden wrote nothing into {hidden}; it must write the validation data there.")
        unfinished.rename(self.data)

    def loss(self, checkpoint: Path) -> float:
        """Hidden validation loss of a checkpoint; inf when the program says NaN. Raises ValidationError."""
        mounts = [Mount(checkpoint, CHECKPOINT + "".join(checkpoint.suffixes))]
        if self.data.exists():
            mounts.append(Mount(self.data, HIDDEN))
        command = render_validation(
            self._contract, checkpoint=mounts[0].target, hidden=HIDDEN, python=str(self._python)
        )
        run = self._run(command, *mounts)
        _require_success(run, "validation")
        found = [match for line in run.lines if (match := self._metric.search(line.text))]
        if not found:
            raise ValidationError("validation printed no line that matches validation_metric.")
        try:
            value = float(found[-1]["value"])
        except (IndexError, ValueError):
            raise ValidationError(f"validation_metric found {found[-1][0]!r}, where `value` is not a number.") from None
        return value if math.isfinite(value) else math.inf

    def _run(self, command: Command, *mounts: Mount) -> RawRun:
        launch = self._contract.launch
        spec = LaunchSpec(
            argv=command.argv,
            cwd=str(PurePosixPath(BASE) / launch.workdir),
            mounts=(*python_mounts(self._python), Mount(self._checkout(), BASE), *self._inputs(), *mounts),
            env={**command.env, "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"},
            timeout_s=launch.timeout_s,
            memory_limit_bytes=launch.memory_limit_bytes,
            gpus=launch.gpus_per_node > 0,
        )
        return self._launcher.run(spec)

    def _checkout(self) -> Path:
        """The clean checkout; where it lacks a place for an input to be mounted on, a copy of it that has one."""
        places = {PurePosixPath(m.target).relative_to(BASE): m.source.is_dir() for m in self._inputs()}
        if all((self._base / place).exists() for place in places):
            return self._base
        copy, unfinished = self._hidden / "base", self._hidden / "unfinished base"
        if not copy.is_dir():
            self._hidden.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(self._base, unfinished, symlinks=True)
            for place, is_folder in places.items():
                make_place(unfinished / place, is_folder)
            unfinished.rename(copy)
        return copy

    def _inputs(self) -> list[Mount]:
        """The contract's files outside git, at their own places in the clean checkout."""
        folder = self._contract.path
        return [
            Mount(path, str(PurePosixPath(BASE) / path.relative_to(folder).as_posix()))
            for pattern in self._contract.launch.inputs
            for path in sorted(folder.glob(pattern))
        ]


def _require_success(run: RawRun, what: str) -> None:
    if run.exit_code == 0 and not run.killed_for:
        return
    ended = run.killed_for or (f"signal {run.signal}" if run.signal else f"exit code {run.exit_code}")
    last = next((line.text.strip() for line in reversed(run.lines) if line.text.strip()), "no output")
    raise ValidationError(f"{what} failed ({ended}): {last[:200]}")


def judge_validation(candidate: float, incumbent: float, scale: float) -> InvariantFacts:
    """Is the candidate's hidden loss no worse than the incumbent's?

    `scale`: how far the bf16 twin of the same block lies from the incumbent, 0 where the contract
    allows no rounding. A lower loss than the incumbent's is never held against a candidate here; the
    learned-update bands see it.
    """
    limit = incumbent + max(RELATIVE_BAND * abs(incumbent), ROUNDING_BAND * scale)
    held = math.isfinite(candidate) and candidate <= limit
    how = f"incumbent's loss + {RELATIVE_BAND:g} of it"
    if ROUNDING_BAND * scale > RELATIVE_BAND * abs(incumbent):
        how = f"incumbent's loss + {ROUNDING_BAND:g} x the shift of the bf16 twin"
    value = candidate if math.isfinite(candidate) else None
    return InvariantFacts(name=NAME, status="held" if held else "broken", value=value, limit=limit, how=how)

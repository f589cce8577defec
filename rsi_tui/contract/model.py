"""The contract: a frozen, hashed reading of workload.toml (DESIGN of the file: docs/workload-toml.md).

Everything here is a value. Units are in the names: sizes in bytes, times in seconds.
`contract.load` builds it; nobody else does.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

KnobValue = bool | int | float | str
Layer = Literal["launch", "memory", "kernel", "compiler", "communication", "data", "optimizer"]
LAYERS: tuple[Layer, ...] = ("launch", "memory", "kernel", "compiler", "communication", "data", "optimizer")


class Frozen(BaseModel):
    """Base of all contract values."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Knob(Frozen):
    """One setting of the program or of its launch, with its listed values."""

    name: str
    values: tuple[KnobValue, ...]
    default: KnobValue
    layer: Layer = "launch"
    flag: str = ""
    """command-line fragment with one {}: appended in place of {knobs}; empty value "" leaves it out"""
    env: str = ""
    """name of an environment variable; the value "" leaves it unset"""
    file: str = ""
    """config.yaml:train.micro_batch"""
    global_: str = ""
    """config.py:batch_size (`global` in the file)"""
    preload: str = ""
    """a system library, for LD_PRELOAD when the value is true; hashed, never from the editable tree"""
    affects: tuple[Literal["precision", "hardware"], ...] = ()


class Launch(Frozen):
    """How one run of the program is started."""

    command: str
    python: str = ""
    workdir: str = "."
    setup: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    env: dict[str, str] = {}
    nodes: int = 1
    procs_per_node: int = 1
    gpus_per_node: int = 0
    link: str = ""
    threads: int = 2
    memory_limit_bytes: int
    timeout_s: float
    progress: str
    """regular expression with groups `step` and `loss`; one line a step"""
    checkpoint: str
    checkpoint_key: str = ""
    base_patch: str = ""


class Objective(Frozen):
    """What is to become smaller or larger, and over what length of run it is judged."""

    kind: Literal["step_time"] = "step_time"
    """the only one that is measured in this version"""
    steps: tuple[int, int]
    """range, inclusive and of at least two lengths, from which lengths are drawn"""
    warmup: int = 5
    amortise_over: int = 20_000
    margin: float = 0.005
    """the practical margin D0, as a fraction of step time"""
    confirm_steps: int = 0


class Resume(Frozen):
    """How the program starts from a saved state; it sharpens the invariants where it can."""

    flag: str = ""
    """flags with {state}, a checkpoint of the program; '' when it can't"""
    directions: str = ""
    """program that writes {out}/directions.pt, named parts of the gradient at {state} for the next batch of {seed}"""
    states: tuple[int, ...] = ()
    """updates after which states are saved, ascending; empty: chosen from the objective's steps"""


class Invariants(Frozen):
    """What must hold for a change to count."""

    weights: Literal["equivalent", "statistical"] = "equivalent"
    harmless: tuple[str, ...] = ()
    bf16_twin: str = ""
    precision: Literal["fp32", "bf16"] = "fp32"
    validation: str = ""
    make_hidden: str = ""
    validation_metric: str = ""
    tokens_per_step: int = 0
    loss_margin: float = 0.005
    """weights = "statistical": how much worse the hidden loss may be, as a fraction of it"""


class Proof(Frozen):
    """How much proof a campaign buys; defaults by preset (MEASUREMENT, section 0)."""

    aa_pairs: int = 20
    max_verifications: int = 40
    final_pairs: int = 16
    max_candidates: int = 60
    bundle: bool = False
    """verify the promising changes together, at the end (quick preset)"""
    max_slow_rate: float = 0.10
    """rate of runs that take at least twice the usual time which a proven change may at most have"""
    leave_one_out: bool = True
    """measure what each adopted change contributes, and drop what contributes nothing"""
    canaries: bool = True
    """plant changes that must not be adopted, one of them taken through a verification"""
    red_team: bool = True
    """plant cheats, forged evidence and escapes before the search, and refuse to go on when one gets through"""


class Contract(Frozen):
    """Everything that a campaign holds fixed about a workload."""

    name: str
    preset: str
    upstream: str = ""
    launch: Launch
    resume: Resume = Resume()
    editable: tuple[str, ...]
    objective: Objective
    invariants: Invariants
    knobs: tuple[Knob, ...] = ()
    proof: Proof
    rules: tuple[str, ...] = ()
    """constraints over knob names, each a boolean expression"""
    folder: str
    """the workload's folder, absolute; not part of the hash"""

    @property
    def hash(self) -> str:
        """sha256 over everything but the folder, hexadecimal."""
        body = self.model_dump(mode="json", exclude={"folder"})
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def knob(self, name: str) -> Knob:
        """The knob of that name; KeyError if there is none."""
        for knob in self.knobs:
            if knob.name == name:
                return knob
        raise KeyError(name)

    @property
    def defaults(self) -> dict[str, KnobValue]:
        """The launch as the user runs it today."""
        return {knob.name: knob.default for knob in self.knobs}

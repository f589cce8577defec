"""A contract and situations for the tests of this room."""

from __future__ import annotations

from typing import Literal

from rsi_tui.contract.model import Contract, Invariants, Knob, KnobValue, Launch, Objective, Proof
from rsi_tui.journal.facts import OperatorFacts, PhaseFacts, ProfileFacts
from rsi_tui.techniques.base import Situation

KNOBS = (
    Knob(name="per_pass", values=(1, 2, 4, 8), default=2, layer="memory", flag="--micro-batch {}"),
    Knob(name="passes", values=(1, 2, 4, 8), default=4, flag="--accumulate {}"),
    Knob(name="pool", values=(False, True), default=False, layer="memory", preload="libtcmalloc_minimal.so.4"),
    Knob(name="spin", values=("", "PASSIVE", "ACTIVE"), default="", env="OMP_WAIT_POLICY"),
    Knob(name="cpus", values=(1, 2, 4), default=1, env="OMP_NUM_THREADS"),
    Knob(name="shuffle", values=("a", "b"), default="a", flag="--shuffle {}", layer="data"),
)


def contract(
    precision: Literal["fp32", "bf16"] = "fp32",
    knobs: tuple[Knob, ...] = KNOBS,
    rules: tuple[str, ...] | None = None,
    steps: tuple[int, int] = (10, 16),
    amortise_over: int = 20_000,
) -> Contract:
    names = {k.name for k in knobs}
    found = ("per_pass * passes == 8",) if {"per_pass", "passes"} <= names else ()
    return Contract(
        name="any",
        preset="quick",
        launch=Launch(
            command="python any.py", threads=2, memory_limit_bytes=2**30, timeout_s=60, progress="x", checkpoint="y"
        ),
        editable=("*.py",),
        objective=Objective(steps=steps, amortise_over=amortise_over),
        invariants=Invariants(precision=precision),
        knobs=knobs,
        proof=Proof(),
        rules=found if rules is None else rules,
        folder="/nowhere",
    )


def profile(
    operators: dict[str, float] | None = None,
    phases: dict[str, float] | None = None,
    step_s: float = 0.4,
    page_faults: float | None = None,
    device: str = "cpu",
    peak_bytes: int = 700 * 2**20,
) -> ProfileFacts:
    """A profile with these shares."""
    return ProfileFacts(
        step_s=step_s,
        phases=tuple(
            PhaseFacts(name=name, seconds=share * step_s, share=share)  # type: ignore[arg-type]
            for name, share in (phases or {"forward": 0.3, "backward": 0.6, "optimizer": 0.1}).items()
        ),
        operators=tuple(
            OperatorFacts(name=name, self_s=share * step_s, share=share, calls=10) for name, share in (operators or {}).items()
        ),
        peak_bytes=peak_bytes,
        tokens_per_step=2048,
        page_faults_per_step=page_faults,
        parameters=2_000_000,
        device=device,
    )


def situation(
    sources: dict[str, str],
    profile: ProfileFacts | None = None,
    set_knobs: dict[str, KnobValue] | None = None,
    **contract_changes: object,
) -> Situation:
    agreed = contract(**contract_changes)  # type: ignore[arg-type]
    return Situation(sources, agreed, profile, {**agreed.defaults, **(set_knobs or {})})

"""What a rule is, and the classes of failure that rules name."""

from __future__ import annotations

from dataclasses import dataclass

from rsi_tui.journal.facts import Outcome

CAUSES = (
    "gpu_oom", "host_oom_killed", "oom_shm", "collective_timeout", "collective_setup", "nan_or_divergence",
    "shape_or_dtype_error", "compile_failure", "missing_dependency", "bad_config", "data_error", "checkpoint_error",
    "device_fault", "hang_or_timeout", "preempted", "disk_full", "permission", "code_error", "segfault", "unknown",
)  # fmt: skip
"""classes of failure"""

OUTCOMES: dict[str, Outcome] = {
    "gpu_oom": "oom",
    "host_oom_killed": "oom",
    "oom_shm": "oom",
    "collective_timeout": "timeout",
    "hang_or_timeout": "timeout",
    "nan_or_divergence": "diverged",
    "device_fault": "not_measured",
    "disk_full": "not_measured",
    "preempted": "preempted",
}
"""outcome of a trial by class of cause; `crashed` for all others"""


@dataclass(frozen=True)
class Rule:
    """One kind of message."""

    name: str
    cause: str
    tier: int
    pattern: str
    """every `.*` in it reads at most 400 characters, so that no line can make it slow"""
    says: str
    """the root cause in a sentence; {group} is replaced by what was printed"""
    advice: str
    near: str = ""
    """regular expression that must occur within eight lines as well"""
    outcome: Outcome | None = None
    """where the class alone would say something else about the trial"""
    aside: bool = False
    """weighs less than any symptom: programs also say so and go on"""
    fallback: bool = False
    """asked only where no other rule knows the line"""


LESS_GPU = "Use a smaller micro-batch with more accumulation, activation checkpointing, or bf16."
LESS_HOST = "Use a smaller micro-batch or fewer loader workers, or raise the memory limit."
SHM = "Give the container more shared memory (--shm-size), or use fewer loader workers."
SIZE = r"[\d.]+ ?(?:[KMGTPE]i?B|bytes?)"
EXC = r"(?:^|[\s'\"(:])(?:[\w.]+\.)?"

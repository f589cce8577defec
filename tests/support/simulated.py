"""A campaign on a simulated machine: the real engine, mirror, journal and evaluator, with runs that take no time.

Only what a run and its checkpoint would be is made up: times by what the candidate's code says of itself
(`EFFECT_1 = -0.1` is a log ratio, `FAILS_1 = "oom"` a failure) with noise that belongs to block and slot, so that the same
run gives the same times in any process. For tests and benches of what happens around runs; it measures nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

from rsi_tui.evaluator import draws
from rsi_tui.evaluator.compare import TensorUpdate, UpdateReport
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.trial import Instruments, TrialRequest, TrialResult, TrialRunner
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.facts import CandidateFacts, PhaseFacts, ProfileFacts, TrialFacts
from rsi_tui.launch.spec import RawRun
from rsi_tui.loop.recall import Memories, Recall
from tests.support.campaigns import TINY, git

NOISE = 0.01
STEP_S = 0.1
PATCHES = (
    {"model.py": "\n\nEFFECT_1 = -0.16\n"},
    {"model.py": "\n\nEFFECT_2 = 0.05\n"},
    {"model.py": '\n\nFAILS_3 = "oom"\n'},
    {"train.py": "\n\nEFFECT_4 = -0.09\n"},
    {"model.py": "\n\nEFFECT_5 = 0.001\n"},
    {"model.py": "\n\ndef broken(:\n"},
)
"""two that are faster, one slower, one that runs out of memory, one without effect, one that does not parse"""
CONTRACT = """
[preset.simulated.proof]
aa_pairs = 4
max_verifications = 3
final_pairs = 8
max_candidates = 6
max_slow_rate = 0.4
canaries = false
leave_one_out = true
red_team = false
"""


def simulated_repository(folder: Path) -> Path:
    """The tiny program under a contract whose weights are compared over seeds, with a preset `simulated`, committed."""
    import shutil

    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    contract = (folder / "workload.toml").read_text()
    contract = contract.replace('weights = "equivalent"', 'weights = "statistical"')
    contract = re.sub(r'(?m)^(harmless|bf16_twin|flag = "--load).*\n', "", contract).replace("[resume]\n", "")
    (folder / "workload.toml").write_text(contract + CONTRACT)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a training program")
    return folder


class SimulatedRunner(TrialRunner):
    """Says at once what a run of a candidate would have been."""

    def run(self, request: TrialRequest, cancel: Event | None = None, instruments: Instruments | None = None) -> TrialResult:
        self.discard(request.id)
        kept = self._folder(request.id) / "kept"
        kept.mkdir(parents=True)
        (kept / "final.pt").write_text(str(request.steps))
        effect, fails = self._says(request.candidate)
        facts = _facts(request, effect, self.contract.objective.amortise_over) if not fails else _failed(request)
        return TrialResult(facts, kept / "final.pt" if not fails else None, _raw(facts))

    def wants_cache(self, candidate: str) -> bool:
        return False

    def _says(self, candidate: CandidateFacts) -> tuple[float, bool]:
        text = "\n".join(self._mirror.read_files(candidate.commit, self.contract.editable).values())
        batch = {1: 0.06, 2: 0.0, 4: -0.01}[int(candidate.knobs.get("micro_batch", 2))]
        return batch + sum(float(value) for value in re.findall(r"(?m)^EFFECT_\d+ = (\S+)", text)), "FAILS_" in text


def _facts(request: TrialRequest, effect: float, over: int) -> TrialFacts:
    rng = random.Random(f"{request.block}/{request.slot}/{request.candidate.id}/{request.arm}")
    step = STEP_S * math.exp(effect + NOISE * rng.gauss(0, 1))
    startup, teardown = 1.0 + 0.01 * rng.random(), 0.1 + 0.01 * rng.random()
    return TrialFacts(
        **_common(request), outcome="ok", exit_code=0, wall_s=startup + teardown + step * request.steps, startup_s=startup, step_s=step,
        teardown_s=teardown, score_s=step + (startup + teardown) / over, peak_bytes=int(200 * 2**20 * (1 + 0.01 * rng.random())),
        memory_source="cgroup2", final_loss=5.0 - 0.01 * request.steps,
    )  # fmt: skip


def _failed(request: TrialRequest) -> TrialFacts:
    return TrialFacts(
        **_common(request), outcome="oom", cause="host_oom_killed", detail="Killed for want of memory at 1 GiB of 1 GiB allowed.",
        signal=9, wall_s=2.0, peak_bytes=2**30, memory_source="cgroup2", telling_lines=("Killed",),
    )  # fmt: skip


def _common(request: TrialRequest) -> dict[str, Any]:
    return {
        "id": request.id, "candidate": request.candidate.id, "kind": request.kind, "arm": request.arm, "block": request.block,
        "slot": request.slot, "attempt": request.attempt, "steps": request.steps, "started_at": "2026-12-01T00:00:00.000000+00:00",
        "memory_limit_bytes": request.memory_limit_bytes,
    }  # fmt: skip


def _raw(facts: TrialFacts) -> RawRun:
    return RawRun(facts.exit_code, facts.signal, facts.wall_s, (), "", False, facts.peak_bytes, "cgroup2", 0.1, 0.0, 0.0)


class _Comparer:
    """Finds every checkpoint alike."""

    def compare(self, *_: object, **__: object) -> UpdateReport:
        same = TensorUpdate(
            name="w", shape=(1,), numel=1, error=0.0, row_error=0.0, along_update=0.0, along_weights=0.0, update_norm=1.0,
            difference_norm=0.0, weight_norm=1.0,
        )  # fmt: skip
        return UpdateReport(error=0.0, rows=(same,), counters=(1.0,), reference_counters=(1.0,))

    def close(self) -> None:
        return None


class _Validation:
    """A loss that falls with the steps that a checkpoint says it took."""

    def __init__(self, *_: object) -> None:
        return None

    def prepare(self, secret: str) -> None:
        return None

    def loss(self, checkpoint: Path) -> float:
        return 6.0 - 0.05 * int(checkpoint.read_text())


def _profiled(runner: TrialRunner, request: TrialRequest, cancel: Event | None = None) -> tuple[TrialFacts, ProfileFacts]:
    result = runner.run(request)
    step = result.facts.step_s or STEP_S
    half = PhaseFacts(name="forward", seconds=step / 2, share=0.5), PhaseFacts(name="backward", seconds=step / 2, share=0.5)
    return result.facts, ProfileFacts(step_s=step, phases=half, operators=(), peak_bytes=2**27, tokens_per_step=1024)


@contextlib.contextmanager
def simulated(*, same_draws: bool = False, library: bool = False) -> Iterator[None]:
    """Runs take no time within; with `same_draws` what the evaluator draws for a block depends on the block alone.

    Without `library` nothing is retrieved and nothing is written to it: loading its encoder takes longer than all else.
    """
    drawn = random.Random(0)

    def keep(vault: Vault, block: str, make: Any) -> Any:
        drawn.seed(block)
        return draws.keep_or_draw(vault, block, make)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch("rsi_tui.loop.setup.TrialRunner", SimulatedRunner))
        stack.enter_context(patch("rsi_tui.loop.setup.HiddenValidation", _Validation))
        stack.enter_context(patch("rsi_tui.loop.setup.open_comparer", lambda *_: _Comparer()))
        stack.enter_context(patch("rsi_tui.evaluator.service.run_profile", _profiled))
        if not library:
            stack.enter_context(patch.object(Recall, "__call__", lambda *_: Memories("", (), (), lambda *_: None)))
            stack.enter_context(patch.object(Recall, "sync", lambda _: None))
        if same_draws:
            stack.enter_context(patch("rsi_tui.loop.setup.Lab", functools.partial(Lab, randbelow=drawn.randrange)))
            stack.enter_context(patch("rsi_tui.evaluator.blocks.keep_or_draw", keep))
        yield

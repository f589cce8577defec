"""Outcome of a run, from how it ended and what was done."""

from __future__ import annotations

from typing import Any

import pytest

from rsi_tui.evaluator import progress as p
from rsi_tui.evaluator.outcome import FLAG_TEARDOWN, OutcomeFacts, classify
from rsi_tui.evaluator.progress import read_progress
from rsi_tui.launch.spec import Line, RawRun

LIMIT = 2**30
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def run(*texts: str, wall_s: float = 60.0, **how: Any) -> RawRun:
    lines = tuple(Line(10.0 + i, text) for i, text in enumerate(texts))
    values: dict[str, Any] = {
        "exit_code": 0, "signal": None, "killed_for": "", "oom_kill": False, "peak_bytes": LIMIT // 2,
        "memory_source": "cgroup2", "cpu_s": 1.0, "foreign_load": 0.0, "launcher_s": 0.01,
    }  # fmt: skip
    return RawRun(wall_s=wall_s, lines=lines, **{**values, **how})


def steps(count: int, loss: str = "2.0") -> tuple[str, ...]:
    return tuple(f"step {i + 1} loss {loss}" for i in range(count))


def judged(raw: RawRun, expected: int = 4, checkpoint: bool = True) -> OutcomeFacts:
    progress = read_progress(raw.lines, PATTERN)
    return classify(raw, progress, expected_steps=expected, memory_limit_bytes=LIMIT, checkpoint_found=checkpoint)


def test_all_steps_and_the_checkpoint_are_ok() -> None:
    facts = judged(run(*steps(4)))
    assert (facts.outcome, facts.cause, facts.detail, facts.flags) == ("ok", "", "", (p.FLAG_LATE_EXIT,))


def test_zero_steps_need_no_progress_but_the_checkpoint() -> None:
    assert judged(run(), expected=0).outcome == "ok"
    assert judged(run(), expected=0, checkpoint=False).outcome == "crashed"


@pytest.mark.parametrize("how", [{"exit_code": 1}, {"exit_code": 134}, {"exit_code": None, "signal": 11}, {"exit_code": 139}])
def test_a_finished_run_whose_tear_down_failed_keeps_its_result_flagged(how: dict[str, Any]) -> None:
    facts = judged(run(*steps(4), "terminate called without an active exception", **how))
    assert facts.outcome == "ok" and FLAG_TEARDOWN in facts.flags


@pytest.mark.parametrize("how", [{"exit_code": 1}, {"exit_code": None, "signal": 11}])
def test_a_metric_printed_before_the_process_dies_is_no_result(how: dict[str, Any]) -> None:
    assert judged(run(*steps(4), "final loss 0.01", **how), checkpoint=False).outcome == "crashed"
    assert judged(run(*steps(2), "final loss 0.01", **how), checkpoint=True).outcome == "crashed"


ENDS: list[tuple[str, RawRun, str, str]] = [
    ("cancelled", run(*steps(2), killed_for="cancelled", exit_code=None, signal=9), "cancelled", ""),
    ("time limit", run(*steps(2), killed_for="timeout", exit_code=None, signal=9), "timeout", "hang_or_timeout"),
    ("silence", run(killed_for="silence", exit_code=None, signal=9), "timeout", "hang_or_timeout"),
    ("hang with a cause in it", run("CUDA out of memory. Tried to allocate 1.00 GiB.", killed_for="timeout", exit_code=137), "oom", "gpu_oom"),
    ("hang in a collective", run("Timed out waiting 1000ms for recv operation", killed_for="timeout", exit_code=137), "timeout", "collective_timeout"),
    ("sampled limit", run(*steps(2), killed_for="memory", exit_code=137), "oom", "host_oom_killed"),
    ("kernel's limit", run(*steps(2), oom_kill=True, exit_code=137), "oom", "host_oom_killed"),
    ("a loader worker killed", run("RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed.", oom_kill=True, exit_code=1), "oom", "host_oom_killed"),
    ("refused allocation", run("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes", exit_code=1), "oom", "host_oom_killed"),
    ("SIGKILL near the limit", run(exit_code=137, peak_bytes=int(0.97 * LIMIT)), "oom", "host_oom_killed"),
    ("SIGKILL without memory figures", run(exit_code=None, signal=9, peak_bytes=None, memory_source="none"), "oom", "host_oom_killed"),
    ("SIGKILL from nowhere", run(exit_code=137), "crashed", "unknown"),
    ("SIGTERM by its own hand", run(*steps(1), exit_code=None, signal=15), "crashed", "unknown"),
    ("SIGSEGV", run(*steps(1), exit_code=139), "crashed", "segfault"),
    ("SIGABRT after an error", run("NameError: name 'x' is not defined", exit_code=134), "crashed", "code_error"),
    ("ECC error", run("RuntimeError: CUDA error: uncorrectable ECC error encountered", exit_code=1), "not_measured", "device_fault"),
    ("bad kernel", run("CUDA error: an illegal memory access was encountered", exit_code=1), "crashed", "device_fault"),
    ("full disk", run("OSError: [Errno 28] No space left on device", exit_code=1), "not_measured", "disk_full"),
    ("a scheduler's words without its signal", run("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***", exit_code=1), "crashed", "preempted"),
    ("too much written", run(*steps(1), killed_for="disk", exit_code=137), "crashed", "disk_full"),
    ("bad flag", run("train.py: error: unrecognized arguments: --fast", exit_code=2), "crashed", "bad_config"),
    ("no such module", run("ModuleNotFoundError: No module named 'apex'", exit_code=1), "crashed", "missing_dependency"),
    ("NaN at the end", run(*steps(3), "step 4 loss nan"), "diverged", "nan_or_divergence"),
    ("NaN, then it gives up", run(*steps(1), "step 2 loss nan", exit_code=1), "diverged", "nan_or_divergence"),
    ("silent failure", run(*steps(1), exit_code=3), "crashed", "unknown"),
    ("stops early, exit 0", run(*steps(2)), "crashed", "code_error"),
    ("more lines than steps", run(*steps(6)), "crashed", "code_error"),
]  # fmt: skip


@pytest.mark.parametrize("name, raw, outcome, cause", ENDS, ids=[name for name, *_ in ENDS])
def test_each_end_has_its_outcome_and_cause(name: str, raw: RawRun, outcome: str, cause: str) -> None:
    facts = judged(raw, checkpoint=outcome == "diverged" or name == "more lines than steps")
    assert (facts.outcome, facts.cause) == (outcome, cause)
    assert facts.detail


def test_nan_is_never_ok_even_with_all_work_done() -> None:
    assert judged(run(*steps(4, "NaN"))).outcome == "diverged"
    assert judged(run(*steps(4, "inf"), exit_code=1)).outcome == "diverged"


def test_a_checkpoint_that_never_appears_is_named() -> None:
    facts = judged(run(*steps(4)), checkpoint=False)
    assert (facts.outcome, facts.cause) == ("crashed", "checkpoint_error")


def test_the_bytes_that_were_asked_for_are_kept() -> None:
    text = "RuntimeError: [enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to allocate 6442450944 bytes."
    assert judged(run(text, exit_code=1), checkpoint=False).requested_bytes == 6 * 2**30


def test_forged_progress_is_flagged_as_a_finding() -> None:
    facts = judged(run(*steps(4), "step 4 loss 1.0"))
    assert facts.outcome == "crashed" and p.FINDINGS.intersection(facts.flags)

"""What became of a run: from exit, signals, memory events, watchdogs and output to outcome and cause.

Pure functions. Promises: a run that did not finish its work is never `ok`, whatever it printed; a run
that finished and whose tear-down failed is `ok` and flagged. What its output says of the cause is read
by `explaining`. Does not promise that a program's own words are true: causes explain, they are no
evidence for a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rsi_tui.evaluator.causality import explain_run, failed_node
from rsi_tui.evaluator.explaining import Explanation
from rsi_tui.evaluator.progress import Progress, check, plain
from rsi_tui.journal.facts import Outcome
from rsi_tui.launch.spec import RawRun

FLAG_TEARDOWN = "tear-down failed after the work was done"
FLAG_OOM_CHILD = "the memory controller killed a process, yet the run finished"


@dataclass(frozen=True)
class OutcomeFacts:
    """What became of one run."""

    outcome: Outcome
    cause: str = ""
    """class of failure; '' when ok"""
    detail: str = ""
    """one sentence; '' when ok"""
    telling_lines: tuple[str, ...] = ()
    facts: dict[str, float | str] = field(default_factory=dict)
    requested_bytes: int | None = None
    """what an out-of-memory error had asked for"""
    flags: tuple[str, ...] = ()
    advice: str = ""


def ended_by(raw: RawRun) -> int | None:
    """The signal that ended the run: its own, or one that the sandbox reports as exit code 128 + n."""
    if raw.signal is not None:
        return raw.signal
    if raw.exit_code is not None and 128 < raw.exit_code < 128 + 65:
        return raw.exit_code - 128
    return None


def _because(explanation: Explanation, outcome: Outcome | None = None, detail: str = "", flags: tuple[str, ...] = ()) -> OutcomeFacts:
    requested = explanation.facts.get("requested_bytes")
    return OutcomeFacts(
        outcome=outcome or explanation.outcome,
        cause=explanation.cause,
        detail=detail or explanation.root_cause,
        telling_lines=explanation.evidence,
        facts=explanation.facts,
        requested_bytes=int(requested) if isinstance(requested, (int, float)) else None,
        flags=flags,
        advice=explanation.advice,
    )


def _tail(raw: RawRun) -> tuple[str, ...]:
    return tuple(plain(line.text).strip()[:400] for line in raw.lines[-5:] if line.text.strip())


def _out_of_memory(raw: RawRun, limit: int, explanation: Explanation) -> OutcomeFacts:
    """An OOM seen by the kernel outranks anything the program said, except an OOM of its own with figures."""
    if explanation.outcome == "oom" and explanation.certain:
        return _because(explanation)
    peak = f" at {raw.peak_bytes / 2**20:.0f} MiB" if raw.peak_bytes else ""
    room = f" of {limit / 2**20:.0f} MiB allowed" if limit else ""
    node = failed_node(raw)
    killed = f"Node {node} was killed" if node is not None and raw.nodes[node].oom_kill else "Killed"
    return OutcomeFacts("oom", "host_oom_killed", f"{killed} for want of memory{peak}{room}.", _tail(raw),
                        {"limit_bytes": limit} if limit else {}, advice="Use a smaller micro-batch, or recompute activations.")  # fmt: skip


def _stopped(raw: RawRun, progress: Progress, expected: int, explanation: Explanation) -> OutcomeFacts:
    """Ended by the time limit or for its silence: a cause that was printed explains it better than the wait."""
    if explanation.certain and explanation.cause != "unknown":
        return _because(explanation)
    why = "its time limit" if raw.killed_for == "timeout" else "printing nothing for too long"
    cause = "collective_timeout" if explanation.cause == "collective_timeout" else "hang_or_timeout"
    where = f"after step {progress.steps[-1].step}" if progress.steps else "before its first step"
    return OutcomeFacts("timeout", cause, f"Ended {where} of {expected} for {why}, {raw.wall_s:.0f} s after its start.", _tail(raw),
                        explanation.facts, advice=explanation.advice if cause == explanation.cause else "See what it waits for (py-spy dump).")  # fmt: skip


def _by_signal(raw: RawRun, number: int, limit: int, explanation: Explanation) -> OutcomeFacts:
    """Ended by a signal that we did not send; the program's own words come first where they are a cause."""
    if explanation.certain and explanation.cause != "unknown":
        return _because(explanation)
    if number == 9:
        close = raw.peak_bytes is not None and limit > 0 and raw.peak_bytes > 0.9 * limit
        if close or raw.memory_source == "none":
            return _out_of_memory(raw, limit, explanation)
        return OutcomeFacts("crashed", "unknown", "Killed by SIGKILL, neither by rsi nor for want of memory.", _tail(raw))
    if number in (1, 2, 15):
        # Nobody outside the sandbox but rsi itself can signal a trial: it did this to itself.
        return OutcomeFacts("crashed", "unknown", f"Ended by signal {number}, which it sent itself.", _tail(raw), {"signal": number})
    if number in (4, 8, 11):
        return OutcomeFacts("crashed", "segfault", f"Native code crashed with signal {number}.", _tail(raw), {"signal": number},
                            advice="Find the library in the C stack (faulthandler).")  # fmt: skip
    if number == 7:
        return OutcomeFacts("oom", "oom_shm", "Shared memory was used up (SIGBUS).", _tail(raw), {"signal": 7})
    return _because(explanation, "crashed", f"Ended by signal {number}; {explanation.root_cause}")


def _finished(raw: RawRun, progress: Progress, flags: tuple[str, ...]) -> OutcomeFacts:
    """All work done; how it ended afterwards is a flag, a loss that is not finite is a divergence."""
    if progress.steps and progress.final_loss is None:
        loss = f"step {progress.steps[-1].step}: the loss is {progress.steps[-1].loss}"
        return OutcomeFacts("diverged", "nan_or_divergence", "The loss is no longer finite.", (loss,), flags=flags,
                            advice="Lower the learning rate, clip gradients, or keep more precision.")  # fmt: skip
    if raw.oom_kill:
        flags = (*flags, FLAG_OOM_CHILD)
    if raw.exit_code != 0:
        flags = (*flags, FLAG_TEARDOWN)
    return OutcomeFacts("ok", flags=flags)


def _by_exit_code(raw: RawRun, progress: Progress, expected: int, explanation: Explanation) -> OutcomeFacts:
    """Ended by itself with an error code: symptoms alone are no timeout and no fault of the machine."""
    if explanation.cause in ("hang_or_timeout", "unknown") and not explanation.certain:
        detail = f"Exited with code {raw.exit_code} after {len(progress.steps)} of {expected} steps without saying why."
        return OutcomeFacts("crashed", "unknown", detail, _tail(raw), advice="Run it once more with faulthandler enabled.")
    return _because(explanation)


def _quiet(progress: Progress, expected: int, checkpoint_found: bool, explanation: Explanation, flags: tuple[str, ...]) -> OutcomeFacts:
    """Exit code 0 without the work: fewer or more lines than steps, or no checkpoint."""
    seen = len(progress.steps)
    if seen != expected:
        detail = f"Exited with code 0 after {seen} progress lines for {expected} steps."
        known = explanation.certain and explanation.cause != "unknown"
        return OutcomeFacts("crashed", explanation.cause if known else "code_error", detail,
                            explanation.evidence, explanation.facts, flags=flags, advice="Run all steps that --steps asks for, a line each.")  # fmt: skip
    assert not checkpoint_found
    return OutcomeFacts("crashed", "checkpoint_error", "Ran all steps and exited without writing its checkpoint.",
                        explanation.evidence, flags=flags, advice="Write the checkpoint where the contract expects it.")  # fmt: skip


def classify(
    raw: RawRun, progress: Progress, *, expected_steps: int, memory_limit_bytes: int, checkpoint_found: bool
) -> OutcomeFacts:
    """Outcome and root cause of one run.

    A run has done its work when it printed a line for each step asked for (none for zero steps) and its
    checkpoint is there. Ended by us for time, silence or memory it never has; ended by itself, with
    whatever exit code or signal, it keeps its result with FLAG_TEARDOWN. The flags of
    `progress.check` are passed on.
    """
    if raw.killed_for == "cancelled":
        return OutcomeFacts("cancelled", "", "Ended by a person or by the engine.")
    flags = check(progress, raw.wall_s, expected_steps)
    done = len(progress.steps) == expected_steps and checkpoint_found
    if done and not raw.killed_for and (ended_by(raw) != 9):
        return _finished(raw, progress, flags)
    explanation = explain_run(raw)
    if raw.killed_for == "disk":
        facts = OutcomeFacts("crashed", "disk_full", "Ended because it wrote more than a trial may.", _tail(raw),
                             advice="Write fewer and smaller files.")  # fmt: skip
    elif raw.killed_for == "memory" or (raw.oom_kill and (raw.killed_for or raw.exit_code != 0)):
        facts = _out_of_memory(raw, memory_limit_bytes, explanation)
    elif raw.killed_for:
        facts = _stopped(raw, progress, expected_steps, explanation)
    elif (number := ended_by(raw)) is not None:
        facts = _by_signal(raw, number, memory_limit_bytes, explanation)
    elif raw.exit_code == 0 and not (progress.steps and progress.final_loss is None):
        facts = _quiet(progress, expected_steps, checkpoint_found, explanation, flags)
    elif explanation.cause in ("unknown", "hang_or_timeout") and progress.steps and progress.final_loss is None:
        facts = _finished(raw, progress, flags)
    else:
        facts = _by_exit_code(raw, progress, expected_steps, explanation)
    if facts.outcome == "preempted":
        # A trial here is preempted by nobody: it can print what it likes and signal itself, and a bad run
        # that voids its block would be a bad run that is dropped (holes H6).
        facts = replace(facts, outcome="crashed")
    return replace(facts, flags=tuple(dict.fromkeys((*flags, *facts.flags))))

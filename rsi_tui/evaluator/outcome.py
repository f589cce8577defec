"""What became of a run, and why: from exit, signals, memory events and output to outcome and root cause.

Pure functions. Promises: a run that did not finish its work is never `ok`, whatever it printed; a run
that finished and whose tear-down failed is `ok` and flagged; a root cause is preferred over what
followed from it; what no rule knows stays `unknown`, with the lines that were looked at. Does not
promise that a program's own words are true: causes explain, they are no evidence for a candidate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rsi_tui.evaluator.failure_rules import OUTCOMES, RULES, Rule
from rsi_tui.evaluator.progress import MAX_LINE, Progress, check, plain
from rsi_tui.journal.facts import Outcome
from rsi_tui.launch.spec import RawRun

FLAG_TEARDOWN = "tear-down failed after the work was done"
FLAG_OOM_CHILD = "the memory controller killed a process, yet the run finished"

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([\d.]+)\s*([KMGT]?)(?:i?B|bytes?)?$", re.IGNORECASE)
_PREFIX = re.compile(
    r"^(?:\s*(?:\[(?:rank|default|node)?\d+\](?:\[rank\d+\])?:|\[\d+,\d+\]<std\w+>:|\([\w.]+(?: [\w.]+)*,? pid=[^)]*\)|>+|\d+:(?=\s)|E {3,}))+\s?"
)
_HINT = re.compile(
    r"error|fail|exception|kill|memory|oom|alloc|nan\b|inf\b|assert|abort|signal|fault|denied|permitted|timed? ?out|timeout"
    r"|mismatch|preempt|pre-empt|evict|cancel|terminat|interrupt|drain|no space|quota|read-only|full\b|large|not found|no such|does not"
    r"|cannot|can't|unable|couldn't|undefined|invalid|illegal|unsupported|fatal|divisible|refused|in use|closed|reset|broken"
    r"|duplicate|must |should|has to|expected|expects|waiting|joined|nccl|xid|gpu is lost|fallen|busy|corrupt|nan |install"
    r"|unknown|missing|ninja|resource|exit|status|returned|died|doesn't|hangup|sig[a-z]{3}|errno|diverged|shape|limit|unavailable"
    r"|requires? |no module|no available|traceback|segment|too many|unexpected|retrieving|only (?:tensors|supports|for)|core dumped"
    r"|free\(\)|malloc|munmap|stack|dtype|out of|backward|marked|loss scale|drop|empty|reach|collective|recompile|fullgraph|keyerror",
    re.IGNORECASE,
)
"""lines without any of these are read for losses alone: most of a log is progress"""
_PROGRESS_LINE = re.compile(r"\b(?:step|epoch|iter(?:ation)?)\b", re.IGNORECASE)
_STATUS = re.compile(r"exit|signal|errno|code|error", re.IGNORECASE)
_DIGITS = re.compile(r"[\d.]+")
_RANK = re.compile(r"\[rank(\d+)\]|\[(?:PG [^\]]*)?Rank (\d+)\]|\brank[ :=](\d+)\b|\blocal_rank[ :=]+(\d+)", re.IGNORECASE)
_LOSS = re.compile(r"(?<![\w])(?:train(?:ing)?[ _])?loss['\"]?\s*[=:]?\s*([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))", re.IGNORECASE)
_GOING_ON = re.compile(r"\b(?:epoch|step|iter(?:ation)?|it/s|batch|train)\b|\d+%\|", re.IGNORECASE)
_FILE_LINE = re.compile(r'^\s*File "[^"]+", line \d+')

_FACTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("requested_bytes", r"[Tt]ried to allocate (?:\()?([\d.]+ ?(?:[KMGT]i?B|bytes))"),
        ("requested_bytes", r"trying to allocate (\d+(?:\.\d+)? ?(?:[KMGT]i?B|bytes))"),
        ("free_bytes", r"([\d.]+ [KMGT]?i?B|\d+ bytes) (?:is )?free\b"),
        ("total_bytes", r"([\d.]+ [KMGT]?i?B) total capacity|total capac?i?ty of ([\d.]+ [KMGT]?i?B)|max allowed: ([\d.]+ [KMGT]?i?B)"),
        ("allocated_bytes", r"([\d.]+ [KMGT]?i?B|\d+ bytes) already allocated|allocated memory ([\d.]+ [KMGT]?i?B) is allocated by|MPS allocated: ([\d.]+ [KMGT]?i?B)"),
        ("reserved_bytes", r"([\d.]+ [KMGT]?i?B) (?:reserved in total|cached)\b"),
        ("unallocated_bytes", r"([\d.]+ [KMGT]?i?B|\d+ bytes) is reserved by PyTorch but unallocated"),
        ("in_use_bytes", r"(?:this process|Process \d+) has ([\d.]+ [KMGT]?i?B) memory in use"),
        ("gpu", r"\bGPU (\d+)\b|CUDA device (\d+)\b"),
        ("seq_num", r"SeqNum=(\d+)"),
        ("op", r"OpType=(\w+)"),
        ("timeout_ms", r"Timeout\(ms\)=(\d+)"),
        ("ran_ms", r"ran for (\d+) milliseconds"),
        ("errno", r"\[Errno (\d+)\]|errno: (\d+)|code: -(\d+), name: E"),
        ("port", r"\bport:? (\d{2,5})\b|:(\d{4,5}) \(errno"),
        ("exit_code", r"exit ?code\s*:?\s*(?:is |= ?)?(\d+)\b"),
        ("signal", r"[Ss]ignal:? ?\(?(\d+)\b|exit ?code\s*:?\s*(?:is |= ?)?-(\d+)\b|Received (\d+) death signal"),
        ("required_smem_bytes", r"Required: (\d+), Hardware limit"),
        ("limit_smem_bytes", r"Hardware limit: (\d+)"),
        ("pid", r"\(pid:? (\d+)\)"),
        ("cuda_error", r"cuda runtime error \((\d+)\)"),
        ("dtype_a", r"but got: (\S+) != \S+|expected scalar type (\w+)"),
        ("dtype_b", r"but got: \S+ != (\S+)|scalar type \w+ but found (\w+)"),
        ("local_rank", r"^\S+:\d+:\d+ \[(\d+)\] "),
    )
)
_RANK_CAUSES = ("collective_timeout", "gpu_oom", "permission", "data_error", "device_fault", "code_error", "nan_or_divergence")


@dataclass(frozen=True)
class Explanation:
    """Why a run failed, as far as its output says."""

    cause: str
    """class of failure"""
    root_cause: str
    """one sentence"""
    evidence: tuple[str, ...]
    """the lines that tell, at most ten"""
    facts: dict[str, float | str]
    """figures that were printed; sizes in bytes"""
    advice: str
    outcome: Outcome
    """what the cause means for a trial"""
    certain: bool = True
    """False when the class rests on symptoms alone"""


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


@dataclass(frozen=True)
class _Hit:
    rule: Rule
    index: int
    match: re.Match[str]


_COMPILED = tuple((rule, re.compile(rule.pattern), re.compile(rule.near) if rule.near else None) for rule in RULES)


def parse_size(text: str) -> int | None:
    """Bytes of '17.68 MiB', '2.0 GB' (PyTorch's GB are 1024-based) or '4096'; None when it is no size."""
    match = _SIZE.match(text.strip())
    if match is None:
        return None
    try:
        return int(float(match[1]) * _UNITS[match[2].upper()])
    except ValueError:
        return None


def _value(name: str, text: str) -> float | str | None:
    if name.endswith("_bytes"):
        return parse_size(text)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text.strip().strip("'\"") or None


def _pieces(lines: Iterable[str]) -> list[str]:
    """Cleaned lines without rank prefixes kept apart: the text as a terminal would have left it."""
    return [piece for line in lines for piece in plain(line[:MAX_LINE]).split("\r") if piece.strip()]


def _near(pieces: Sequence[str], index: int, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(piece) for piece in pieces[max(0, index - 8) : index + 9])


def _hits(pieces: Sequence[str]) -> list[_Hit]:
    """The best rule of each line that any rule matches.

    Progress lines differ in their figures alone: one of a shape that told nothing stands for all.
    """
    found: list[_Hit] = []
    harmless: set[str] = set()
    for index, piece in enumerate(pieces):
        shape = _DIGITS.sub("0", piece)
        if shape in harmless:
            continue
        if not _HINT.search(piece):
            harmless.add(shape)
            continue
        text = _PREFIX.sub("", piece)
        best: _Hit | None = None
        for rule, pattern, near in _COMPILED:
            if best is not None and rule.tier >= best.rule.tier:
                continue
            match = pattern.search(text)
            if match and (near is None or _near(pieces, index, near)):
                best = _Hit(rule, index, match)
        if best is not None:
            found.append(best)
        elif _PROGRESS_LINE.search(piece) and not _STATUS.search(piece):
            harmless.add(shape)
    return found


def _line_facts(piece: str) -> dict[str, float | str]:
    facts: dict[str, float | str] = {}
    for name, pattern in _FACTS:
        match = pattern.search(piece)
        value = _value(name, next(group for group in match.groups() if group)) if match else None
        if value is not None:
            facts.setdefault(name, value)
    return facts


def _facts(winner: _Hit, hits: Sequence[_Hit], pieces: Sequence[str]) -> dict[str, float | str]:
    """Figures of the telling line, filled up from its neighbours and from other lines of the same cause."""
    facts: dict[str, float | str] = {}
    same = [hit for hit in hits if hit.rule.cause == winner.rule.cause and hit is not winner]
    for hit in (winner, *same[:20]):
        for name, text in hit.match.groupdict().items():
            value = _value(name, text) if text else None
            if value is not None:
                facts.setdefault("signal" if name == "death_signal" else name, value)
        for name, value in _line_facts(pieces[hit.index]).items():
            facts.setdefault(name, value)
    for piece in pieces[winner.index + 1 : winner.index + 4]:
        for name, value in _line_facts(piece).items():
            facts.setdefault(name, value)
    rank = _RANK.search(pieces[winner.index])
    if rank and winner.rule.cause in _RANK_CAUSES:
        facts.setdefault("rank", int(next(group for group in rank.groups() if group)))
    return facts


def _evidence(winner: _Hit, hits: Sequence[_Hit], pieces: Sequence[str]) -> tuple[str, ...]:
    """The telling line with the traceback that leads to it, then others of the same cause."""
    wanted = {winner.index}
    above = [i for i in range(max(0, winner.index - 12), winner.index) if _FILE_LINE.match(_PREFIX.sub("", pieces[i]))]
    for index in above[-2:]:
        wanted.update((index, min(index + 1, winner.index)))
    if winner.index + 1 < len(pieces) and pieces[winner.index].rstrip().endswith(":"):
        wanted.add(winner.index + 1)
    wanted.update(hit.index for hit in [h for h in hits if h.rule.cause == winner.rule.cause][:3])
    return tuple(pieces[index].strip()[:400] for index in sorted(wanted))[:10]


def _sentence(hit: _Hit, pieces: Sequence[str]) -> str:
    """The rule's sentence, with the line itself when the class is a program's own exception."""
    groups = {name: (text or "?") for name, text in hit.match.groupdict().items()}
    said = hit.rule.says.format(**groups) if groups else hit.rule.says
    if hit.rule.tier in (1, 2):
        return f"{said[:-1]}: {_PREFIX.sub('', pieces[hit.index]).strip()[:200]}"
    return said


def _losses(pieces: Sequence[str]) -> list[float]:
    return [float(match[1]) for piece in pieces if (match := _LOSS.search(piece))]


def _from_losses(pieces: Sequence[str]) -> Explanation | None:
    """A loss that ends as NaN, or that has risen far above what it had reached and stays there."""
    losses = _losses(pieces)
    if not losses:
        return None
    tail = tuple(piece.strip()[:400] for piece in pieces if _LOSS.search(piece))[-3:]
    if not math.isfinite(losses[-1]):
        return Explanation("nan_or_divergence", "The loss is no longer finite.", tail, {},
                           "Lower the learning rate, clip gradients, and look at the last finite steps.", "diverged")  # fmt: skip
    last, before = losses[-(len(losses) // 3) :], losses[: -(len(losses) // 3) or None]
    if len(losses) >= 6 and min(last) > 2 * abs(min(before)) + 0.5:
        return Explanation("nan_or_divergence", f"The loss had reached {min(before):g} and is {losses[-1]:g} at the end.", tail, {},
                           "Lower the learning rate, lengthen warm-up, or clip gradients.", "diverged", certain=False)  # fmt: skip
    return None


def _unexplained(pieces: Sequence[str]) -> Explanation:
    tail = tuple(piece.strip()[:400] for piece in pieces[-5:])
    if pieces and _GOING_ON.search(pieces[-1]):
        return Explanation("hang_or_timeout", "The output ends in the middle of the work without any error.", tail, {},
                           "It hung, or was ended without a word: see exit code and dmesg, and py-spy dump while it hangs.",
                           "timeout", certain=False)  # fmt: skip
    return Explanation("unknown", f"None of {len(RULES)} kinds of message occurs in {len(pieces)} lines of output.", tail, {},
                       "Read the last lines of output; run it once more with faulthandler enabled.", "crashed", certain=False)  # fmt: skip


def explain_lines(lines: Iterable[str]) -> Explanation:
    """The root cause in a failed run's output, line by line; class `unknown` when nothing tells."""
    pieces = _pieces(lines)
    hits = _hits(pieces)
    if not hits:
        return _from_losses(pieces) or _unexplained(pieces)
    winner = min(hits, key=lambda hit: (hit.rule.tier, hit.index))
    rule = winner.rule
    return Explanation(
        cause=rule.cause,
        root_cause=_sentence(winner, pieces),
        evidence=_evidence(winner, hits, pieces),
        facts=_facts(winner, hits, pieces),
        advice=rule.advice,
        outcome=rule.outcome or OUTCOMES.get(rule.cause, "crashed"),
        certain=rule.tier < 3,
    )


def explain_text(text: str) -> Explanation:
    """The root cause in a failed run's output; class `unknown` when nothing tells."""
    return explain_lines(text.split("\n"))


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
    return OutcomeFacts("oom", "host_oom_killed", f"Killed for want of memory{peak}{room}.", _tail(raw),
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
    explanation = explain_lines(line.text for line in raw.lines)
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

"""Why a run failed, from its output alone: class, root cause, the lines that tell, figures, advice.

Promises: a root cause is preferred over what followed from it; figures are those that were printed;
what no rule knows stays `unknown` and says what was looked at. Does not promise that a program's own
words are true.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rsi_tui.evaluator.failure_rules import OUTCOMES, RULES
from rsi_tui.evaluator.log_lines import Hit, LogLine, Reading, without_prefix
from rsi_tui.evaluator.scanning import scan_lines
from rsi_tui.journal.facts import Outcome

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_NAMES = tuple((unit, f"{letter}iB") for letter, unit in reversed(_UNITS.items()) if unit > 2**10)
_SIZE = re.compile(r"([\d.]+)\s*([KMGTPE]?)(?:i?B?|bytes?)?$", re.IGNORECASE)
_RANK = re.compile(r"\[(?:PG [^\]]{0,80})?Rank (\d+)\]|\brank[ :=]+(\d+)\b|\blocal_rank[ :=]+(\d+)", re.IGNORECASE)
_RANK_PREFIX = re.compile(r"^\s*(?:\[rank(\d+)\]:?|\[(?:default|node\d+:)(\d+)\]:|\[\d+,(\d+)\]<std\w+>:|(\d{1,5}): )")
_RANK_NEAR = re.compile(r"^\s*(rank|host)\s+: (\d+|[\w.-]+)")
_GOING_ON = re.compile(r"\b(?:epoch|step|iter(?:ation)?|it/s|batch|train)\b|\d+%\|", re.IGNORECASE)
_NAN_NORM = re.compile(r"\bgrad\w*[ _]?norm['\"]?\s*[=:|]\s*(?:tensor\()?[-+]?(?:nan|inf)\b", re.IGNORECASE)
_EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z]\w+(?:: |$)|^Traceback \(most recent call last\)")
_SAYS_ERROR = re.compile(r"(?:Error|Exception|Failure)\b|Assert|\b(?:error|fatal|fail(?:s|ed|ure)?|abort(?:s|ed)?|cannot create)\b", re.IGNORECASE)
_HINT, _PASSED = 3.5, 5.0
"""weights of what is only said by the way: less than a symptom, and no answer at all"""
_CONTINUED = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b")
_SHELL = re.compile(r"^(?:rm|cat|ls|cp|mv|mkdir|chmod|chown|ln|touch|grep|sed|find|head|tail): (?!cannot (?:create|touch|move|copy|open)\b)")
_IGNORED = re.compile(r"^Exception ignored in\b")
_SOURCE = re.compile(r"^(?:raise|return|assert|with|self\.|super\(|await|yield)\b|^[\w.\[\]]+ = \S")
_FINISHED = re.compile(r"^(?!.*\b(?:not?|never)(?: \w+)? (?:done|finish|complete|saved|success)).*?(?:\b(?:[Dd]one|DONE|[Ff]inish(?:ed|ing)|[Cc]ompleted?|[Ss]uccess(?:ful(?:ly)?)?|[Bb]est \w+|[Ss]aved)\b(?!.{0,20}(?:with error|: 0))|[Tt]otal (?:train\w* )?time|\btrain_runtime\b|stopped: `max_\w+)")
_GENERIC = ("programming", "config-assert", "in-settings", "in-checkpoint", "in-compiler", "in-loader")
"""rules that know no more than that a program raised: what is said in the same breath tells more"""
_BREATH = 80
"""lines within which one exception is raised because of another"""
_WENT_ON, _WENT_FAR = 5, 20
"""losses printed after a line: of one that names no error, or in a run that ends well, the first; else the second
say that the run was not stopped by it"""
_FILE_LINE = re.compile(r'^\s*File "[^"]+", line \d+')
_B = r"([\d.]+ ?[KMGTPE]?i?B|\d+ bytes)"

_FACTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("requested_bytes", r"[Tt]ried to allocate \(?([\d.]+ ?(?:[KMGTPE]i?B|bytes))"),
        ("requested_bytes", r"trying to allocate (\d+(?:\.\d+)? ?(?:[KMGTPE]i?B|bytes))"),
        ("requested_bytes", r"failed to extend \S+ to (\d+) bytes|Used ([\d.]+[KMGTPE]) of [\d.]+[KMGTPE] hbm|large alloc (\d+) bytes"),
        ("free_bytes", rf"{_B} (?:is )?free\b"),
        ("total_bytes", rf"{_B} total capacity|total capac?i?ty of {_B}|max allowed: {_B}|Used [\d.]+[KMGTPE] of ([\d.]+[KMGTPE]) hbm"),
        ("total_bytes", r"task was running was [\d.]+ ?[KMGTPE]i?B / ([\d.]+ ?[KMGTPE]i?B)"),
        ("in_use_bytes", r"task was running was ([\d.]+ ?[KMGTPE]i?B) / "),
        ("allocated_bytes", rf"{_B} already allocated|allocated memory {_B} is allocated by|MPS allocated: {_B}"),
        ("reserved_bytes", rf"{_B} (?:reserved in total|cached)\b"),
        ("unallocated_bytes", rf"{_B} is reserved by PyTorch but unallocated"),
        ("in_use_bytes", rf"(?:this process|Process \d+) has {_B} memory in use"),
        ("gpu", r"\bGPU (\d+)\b|CUDA device (\d+)\b|\bGPU_(\d+)_bfc\b"),
        ("seq_num", r"SeqNum=(\d+)"),
        ("op", r"OpType=(\w+)"),
        ("timeout_ms", r"Timeout\(ms\)=(\d+)|timeout after (\d+) ?ms|timed out after (\d+) ?ms"),
        ("ran_ms", r"ran for (\d+) milliseconds"),
        ("errno", r"\[Errno (\d+)\]|errno: (\d+)|code: -(\d+), name: E|\(os error (\d+)\)"),
        ("port", r"\bport:? (\d{2,5})\b|:(\d{4,5}) \(errno|\(\S+, (\d{4,5})\)|\]:(\d{4,5})\b"),
        ("exit_code", r"[Ee]xit ?[Cc]ode\s*:?\s*(?:is |= ?)?(\d+)\b|[Ee]xit status (\d+)\b"),
        ("signal", r"[Ss]ignal:? ?\(?(\d+)\b|exit ?code\s*:?\s*(?:is |= ?)?-(\d+)\b|Received (\d+) death signal|Signals\.SIG\w+: (\d+)|return code = -(\d+)"),
        ("signal", r"^\s*(?:\[\S+\] )?Signal: [A-Z][\w ]{3,40} \((\d+)\)"),
        ("required_smem_bytes", r"Required: (\d+), Hardware limit"),
        ("limit_smem_bytes", r"Hardware limit: (\d+)"),
        ("pid", r"\(pid:? (\d+)\)|[Kk]illed process (\d+)\b|\bpid[=:] ?(\d+)\b"),
        ("xid", r"\bXid\b[^:]{0,40}(?::[^:]{1,8}){0,3}\): (\d+)\b"),
        ("cuda_error", r"cuda runtime error \((\d+)\)"),
        ("dtype_a", r"but got: (\S+) != \S+|expected scalar type (\w+)"),
        ("dtype_b", r"but got: \S+ != (\S+)|scalar type \w+ but found (\w+)"),
        ("local_rank", r"^\S+:\d+:\d+ \[(\d+)\] |\blocal_rank: (\d+)\b"),
        ("host", r"^([\w.-]+):\d+:\d+ \[\d+\] |(?:STEP|JOB) [\d.]+ ON ([\w.-]+) CANCELLED|srun: error: ([\w.-]+): tasks?\b|on node ([\w.-]+) exited"),
        ("job", r"(?:StepId=|(?:STEP|JOB|step) )(\d+)(?:\.\w+)?\b"),
        ("nranks", r"\bnranks (\d+)\b"),
    )
)  # fmt: skip
_RANK_CAUSES = ("collective_timeout", "gpu_oom", "permission", "data_error", "device_fault", "code_error", "nan_or_divergence", "segfault", "host_oom_killed")


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
    rule: str = ""
    """name of the rule that decided; '' where none did"""
    tier: int = 5
    """of that rule; 5 where none did"""
    numbers: tuple[int, ...] = ()
    """the line number of each line of evidence, from 1"""
    lines: int = 0
    """how many lines were read"""
    around: tuple[str, ...] = ()
    """the deciding line and those above it, latest first: where a timestamp may be found"""


def parse_size(text: str) -> int | None:
    """Bytes of '17.68 MiB', '2.0 GB' (PyTorch's GB are 1024-based), '4.2G' or '4096'; None when it is no size."""
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


def _line_facts(text: str) -> dict[str, float | str]:
    facts: dict[str, float | str] = {}
    for name, pattern in _FACTS:
        match = pattern.search(text)
        value = _value(name, next(group for group in match.groups() if group)) if match else None
        if value is not None:
            facts.setdefault(name, value)
    return facts


def _rank(hit: Hit) -> int | None:
    """The rank that says it: by its prefix, else by its words where the class is one of a single rank."""
    if prefix := _RANK_PREFIX.match(hit.line.text):
        return int(next(group for group in prefix.groups() if group))
    if hit.rule.cause in _RANK_CAUSES and (said := _RANK.search(hit.line.text)):
        return int(next(group for group in said.groups() if group))
    return None


def _facts(winner: Hit, hits: Sequence[Hit]) -> dict[str, float | str]:
    """Figures of the telling line, filled up from its neighbours and from other lines of the same cause."""
    facts: dict[str, float | str] = {}
    same = [hit for hit in hits if hit.rule.cause == winner.rule.cause and hit is not winner]
    for hit in (winner, *same[:20]):
        for name, text in hit.match.groupdict().items():
            value = _value(name, text) if text else None
            if value is not None:
                facts.setdefault("signal" if name == "death_signal" else name, value)
        for name, value in _line_facts(hit.line.text).items():
            facts.setdefault(name, value)
    for line in winner.below[:3]:
        for name, value in _line_facts(line.text).items():
            facts.setdefault(name, value)
    rank = _rank(winner)
    if rank is not None:
        facts.setdefault("rank", rank)
    for line in winner.above[-4:]:
        if near := _RANK_NEAR.match(line.text):
            facts.setdefault(near[1], int(near[2]) if near[2].isdigit() else near[2])
    return facts


def _evidence(winner: Hit, hits: Sequence[Hit]) -> list[LogLine]:
    """The telling line with the traceback that leads to it, then others of the same cause."""
    wanted = {winner.line.number: winner.line}
    places = [at for at, line in enumerate(winner.above) if _FILE_LINE.match(without_prefix(line.text))]
    for at in places[-2:]:
        for line in (winner.above[at], *winner.above[at + 1 : at + 2]):
            wanted.setdefault(line.number, line)
    if winner.below and winner.line.text.rstrip().endswith(":") and winner.below[0].text.strip():
        wanted.setdefault(winner.below[0].number, winner.below[0])
    for hit in [h for h in hits if h.rule.cause == winner.rule.cause][:3]:
        wanted.setdefault(hit.line.number, hit.line)
    return [wanted[number] for number in sorted(wanted)][:10]


def _size(value: float | str | None) -> str:
    if not isinstance(value, (int, float)):
        return ""
    unit, name = next((pair for pair in _NAMES if value >= pair[0]), (1, "bytes"))
    return f"{value / unit:.4g} {name}"


def _asked(facts: dict[str, float | str]) -> str:
    """', 2.5 GiB were asked for and 1.25 GiB of 79.1 GiB free', as far as it was printed."""
    requested, free, total = (_size(facts.get(f"{name}_bytes")) for name in ("requested", "free", "total"))
    if not requested:
        return ""
    left = f" and {free}{f' of {total}' if total else ''} free" if free else f", of {total}" if total else ""
    return f"; {requested} were asked for{left}"


def _sentence(hit: Hit, facts: dict[str, float | str]) -> str:
    """The rule's sentence with its sizes; with the line itself when the class is a program's own exception."""
    groups = {name: (text or "?") for name, text in hit.match.groupdict().items()}
    said = hit.rule.says.format(**groups) if groups else hit.rule.says
    if hit.rule.tier in (1, 2):
        return f"{said[:-1]}: {without_prefix(hit.line.text).strip()[:200]}"
    return f"{said[:-1]}{_asked(facts)}."


def _shown(lines: Iterable[LogLine]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    kept = [line for line in lines if line.text.strip()]
    return tuple(line.text.strip()[:400] for line in kept), tuple(line.number for line in kept)


def _from_losses(reading: Reading) -> Explanation | None:
    """A loss that ends as NaN, or that has risen far above what it had reached and stays there."""
    ends = reading.tail[-3:]
    if len(ends) == 3 and all(_NAN_NORM.search(line.text) for line in ends):
        # One such step is what a dynamic loss scale is for; a run that ends in them has diverged.
        tail, numbers = _shown(ends)
        return Explanation("nan_or_divergence", "The norm of the gradients is no longer finite.", tail, {},
                           "Lower the learning rate, clip gradients, and look at the last finite steps.", "diverged",
                           tier=3, numbers=numbers, lines=reading.lines)  # fmt: skip
    if not reading.losses:
        return None
    losses = [value for value, _ in reading.losses]
    tail, numbers = _shown(line for _, line in reading.losses[-3:])
    if not math.isfinite(losses[-1]):
        return Explanation("nan_or_divergence", "The loss is no longer finite.", tail, {},
                           "Lower the learning rate, clip gradients, and look at the last finite steps.", "diverged",
                           tier=3, numbers=numbers, lines=reading.lines)  # fmt: skip
    last, before = losses[-(len(losses) // 3) :], losses[: -(len(losses) // 3) or None]
    if len(losses) >= 6 and min(last) > 2 * abs(min(before)) + 0.5:
        return Explanation("nan_or_divergence", f"The loss had reached {min(before):g} and is {losses[-1]:g} at the end.", tail, {},
                           "Lower the learning rate, lengthen warm-up, or clip gradients.", "diverged", certain=False,
                           tier=3, numbers=numbers, lines=reading.lines)  # fmt: skip
    return None


def _unexplained(reading: Reading) -> Explanation:
    tail, numbers = _shown(reading.tail[-5:])
    if any(_EXCEPTION.search(without_prefix(line).strip()) for line in tail):
        return Explanation("unknown", "The program stopped with an exception of no known kind.", tail, {}, "Read the traceback.", "crashed",
                           certain=False, numbers=numbers, lines=reading.lines)  # fmt: skip
    if tail and not _ends_well(reading) and _GOING_ON.search(tail[-1]) and not _SAYS_ERROR.search(tail[-1]):
        return Explanation("hang_or_timeout", "The output ends in the middle of the work without any error.", tail, {},
                           "It hung, or was ended without a word: see exit code and dmesg, and py-spy dump while it hangs.",
                           "timeout", certain=False, numbers=numbers, lines=reading.lines)  # fmt: skip
    passed = len(reading.hits)
    known = f"None of {len(RULES)} kinds of message" if not passed else f"Of {len(RULES)} kinds of message none that stopped the run"
    many = "no lines" if not reading.lines else "1 line" if reading.lines == 1 else f"{reading.lines} lines"
    left = f"; {reading.left_out} lines of ever new kinds were too many to be read" if reading.left_out else ""
    return Explanation("unknown", f"{known} occurs in {many} of output{left}.", tail, {},
                       "Read the last lines of output; run it once more with faulthandler enabled.", "crashed", certain=False,
                       numbers=numbers, lines=reading.lines)  # fmt: skip


def _names_an_error(hit: Hit) -> bool:
    """Whether the line says that something went wrong, or goes on with an exception's text."""
    bare = without_prefix(hit.line.text).strip()
    if _SAYS_ERROR.search(bare) or _EXCEPTION.search(bare):
        return True
    return any(_CONTINUED.search(without_prefix(line.text).strip()) for line in hit.above[-4:])


def _is_source(hit: Hit) -> bool:
    """Whether the line is one of the program's text, as a traceback shows it, not what was raised."""
    framed = bool(hit.above) and _FILE_LINE.match(without_prefix(hit.above[-1].text)) is not None
    return framed and _SOURCE.search(without_prefix(hit.line.text).strip()) is not None


def _is_ignored(hit: Hit) -> bool:
    """Whether the exception was raised while something was taken down, and passed over."""
    for line in reversed(hit.above):
        bare = without_prefix(line.text)
        if _IGNORED.match(bare):
            return True
        if bare.strip() and not bare.startswith((" ", "Traceback")):
            return False
    return False


def _told_better(number: int, hits: Sequence[Hit]) -> bool:
    """Whether an exception that says more follows a generic one in the same breath."""
    hit = hits[number]
    return hit.rule.name in _GENERIC and any(
        later.tier == hit.tier and later.rule.name not in _GENERIC and later.line.number - hit.line.number <= _BREATH
        for later in hits[number + 1 :]
    )


def _weight(hit: Hit, losses: Sequence[int], well: bool) -> float:
    """How little a hit tells: its tier, and more where the run went on after it."""
    after = len(losses) - bisect_right(losses, hit.line.number)
    if after >= _WENT_ON and well:
        return _PASSED
    weight = _weight_of_line(hit)
    if after >= _WENT_ON and weight in (2.5, _HINT):
        return _PASSED
    return max(weight, _HINT) if after >= _WENT_FAR else weight


def _weight_of_line(hit: Hit) -> float:
    """The tier; more for warnings, and for what a program or its script also says when all is well."""
    warned = (hit.tier == 3 and hit.rule.tier < 3) or (hit.tier in (1, 2) and _is_ignored(hit))
    aside = warned or hit.rule.aside or (hit.tier in (1, 2) and _SHELL.search(without_prefix(hit.line.text)) is not None)
    if not aside and (hit.tier not in (1, 2) or _names_an_error(hit)):
        return hit.tier + (0.4 if hit.tier in (1, 2) and _is_source(hit) else 0)
    return _HINT if aside else 2.5


def _ends_well(reading: Reading) -> bool:
    """Whether the last line says that the work is done."""
    last = reading.tail[-1].text if reading.tail else ""
    return _FINISHED.search(last) is not None and not _SAYS_ERROR.search(last)


def explain(reading: Reading) -> Explanation:
    """The root cause in what was found in one log; class `unknown` when nothing tells."""
    losses, well = [line.number for _, line in reading.losses], _ends_well(reading)
    weighed = [
        (_weight(hit, losses, well) + (0.1 if _told_better(number, reading.hits) else 0), number)
        for number, hit in enumerate(reading.hits)
    ]
    weight, at = min(weighed, default=(_PASSED, 0))
    if weight >= _PASSED or ((2.5 <= weight < 3 or weight >= _HINT) and well):
        return _from_losses(reading) or _unexplained(reading)
    winner = reading.hits[at]
    rule = winner.rule
    evidence, numbers = _shown(_evidence(winner, reading.hits))
    facts = _facts(winner, reading.hits)
    return Explanation(
        cause=rule.cause,
        root_cause=_sentence(winner, facts),
        evidence=evidence,
        facts=facts,
        advice=rule.advice,
        outcome=rule.outcome or OUTCOMES.get(rule.cause, "crashed"),
        certain=weight < 3,
        rule=rule.name,
        tier=int(weight),
        numbers=numbers,
        lines=reading.lines,
        around=(winner.line.text, *(line.text for line in reversed(winner.above))),
    )


def explain_lines(lines: Iterable[str]) -> Explanation:
    """The root cause in a failed run's output, line by line."""
    return explain(scan_lines(lines))


def explain_text(text: str) -> Explanation:
    """The root cause in a failed run's output."""
    return explain_lines(text.split("\n"))

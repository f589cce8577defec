"""Lines of a log: what is before the message, what is a mere warning, what was found in them.

Promises: prefixes of ranks, hosts, timestamps, launchers and log levels are known as such. Does not
promise to know a prefix of a program's own making.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rsi_tui.evaluator.failure_rules import Rule

_LEVELS = r"(?:(?:ERROR|WARNING|WARN|INFO|CRITICAL|FATAL)\s*(?:[:|-]\s*(?:[\w.]+:(?=\S))?|(?=\[))\s*)"
_PREFIX = re.compile(
    r"^(?:\s*(?:"
    r"\[[^\]]{1,80}\](?:\[rank\d+\])?\s*:?\s"  # [rank3]: [1,3]<stderr>: [2026-01-01 00:00:00,000] [ERROR]
    r"|\[(?:rank|default|node)?\d+\](?:\[rank\d+\])?:"
    r"|\[\d+,\d+\]<std\w+>:"
    r"|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?:?\s(?:std(?:err|out) [FP]\s)?"
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ [^\]]{1,120}\]\s"  # glog
    r"|\([\w.]+(?: [\w.]+){0,4},? pid=[^)]{1,60}\)"  # Ray
    rf"|{_LEVELS}"
    r"|(?=[\w.-]{0,40}\d)[A-Za-z][\w.-]{0,40}(?:: |\s*\| )"  # node-3: and trainer-1 |
    r"|(?:Uncaught|Unhandled)(?: exception:?)?\s(?=[\w.]+(?:Error|Exception)\b)"
    r"|>{1,3}|\d+:(?=\s)|E {3,}))+\s?"
)
_QUOTED = re.compile(r"[\"'`(>:|]\s*((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .*)")
_CAPITAL = re.compile(r"(?:^|(?<=[:.;\]] ))[A-Z](?=[a-z]+ )")
_WARNED = re.compile(
    r"\b\w*Warning: |(?:^|[\s\]|\[:])(?:WARNING|WARN|INFO|DEBUG)\b(?!.{0,80}[Cc]aught signal)|^\[?[WI]\d{0,4} (?:\d\d:|\w+\.cpp)|^\S+ \S+: [WI] |\b[Rr]etrying\b|\b[Rr]etry (?:\d+/|in \d|after )|entering retry loop|[Ww]ill (?:be )?retr(?:y|ied)"
)
_NO_WARNING = re.compile(r"NCCL WARN|torch[./]distributed[./]elastic|(?:srun|slurmstepd|sbatch): |raylet|OP_REQUIRES failed")


@dataclass(frozen=True)
class LogLine:
    """One line of output, clean."""

    number: int
    """from 1"""
    text: str


@dataclass(frozen=True)
class Hit:
    """One line that a rule matches."""

    rule: Rule
    tier: int
    """the rule's, or that of a symptom where a warning says it"""
    line: LogLine
    match: re.Match[str]
    above: tuple[LogLine, ...]
    below: tuple[LogLine, ...]


@dataclass(frozen=True)
class Reading:
    """What was found in one log."""

    hits: tuple[Hit, ...]
    """in order"""
    losses: tuple[tuple[float, LogLine], ...]
    tail: tuple[LogLine, ...]
    """the last lines that are not empty"""
    lines: int
    left_out: int = 0
    """lines of new shapes that were too many to be read"""


def without_prefix(text: str) -> str:
    """A line without rank, timestamp and log level before it."""
    return _PREFIX.sub("", text)


def quoted(text: str) -> str | None:
    """The exception that a line reports in quotes (a launcher's record, a field of JSON), or None."""
    match = _QUOTED.search(text)
    return match[1] if match else None


def uncapital(text: str) -> str:
    """A line whose sentences begin with a small letter: what one program says after a colon another says first."""
    return _CAPITAL.sub(lambda match: match[0].lower(), text)


def is_warning(text: str) -> bool:
    """Whether a program says this in a warning, after which it goes on."""
    return _WARNED.search(text[:200]) is not None and not _NO_WARNING.search(text)

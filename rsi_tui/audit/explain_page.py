"""Why a run failed, for a person or a program: `rsi explain` prints it, as JSON or as a page for a terminal.

`explain_data` is the canonical form (docs/explain.md describes it); the page is rendered from it and
from nothing else. Text of a log is clean before it reaches a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rsi_tui.audit import words
from rsi_tui.evaluator.failure_rules import RULES, TIERS
from rsi_tui.evaluator.log_files import Log, explain_logs

_LOGS_SHOWN = 12


def explain_data(paths: Sequence[str]) -> dict[str, Any]:
    """Everything that the logs tell, as JSON values; UsageError for what can't be read as a log."""
    logs = explain_logs(paths)
    first = logs[0]
    found = first.explanation
    facts = dict(found.facts)
    if first.rank is not None:
        facts.setdefault("rank", first.rank)
    return {
        "schema": 1,
        "class": found.cause,
        "root_cause": words.sentence(found.root_cause) + _silent(logs),
        "certain": found.certain,
        "rule": found.rule or None,
        "evidence": [words.one_line(line) for line in found.evidence],
        "evidence_at": [{"file": first.path, "line": number} for number in found.numbers],
        "facts": facts,
        "advice": found.advice,
        "looked_at": {"lines": sum(log.explanation.lines for log in logs), "logs": len(logs), "rules": len(RULES)},
        "logs": [_log(log) for log in logs],
    }


def _silent(logs: Sequence[Log]) -> str:
    """With ranks that waited, the one that says nothing is the one they waited for."""
    if len(logs) < 2 or logs[0].explanation.cause != "collective_timeout":
        return ""
    silent = [log for log in logs if log.role == "silent"]
    if not silent or len(silent) > 8:
        return ""
    return f" {words.listed([_name(log.rank, log.path) for log in silent])} printed no error: look there first."


def _name(rank: int | None, path: str) -> str:
    return f"Rank {rank}" if rank is not None else words.one_line(path)


def _log(log: Log) -> dict[str, Any]:
    found = log.explanation
    return {
        "file": log.path,
        "rank": log.rank,
        "attempt": log.attempt,
        "role": log.role,
        "class": found.cause,
        "root_cause": words.sentence(found.root_cause),
        "line": found.numbers[-1] if found.numbers else None,
        "lines": found.lines,
    }


def explain_page(data: dict[str, Any], width: int = words.WIDTH) -> str:
    """The page: class and cause, the lines that tell, figures, what to try, and what the other logs say."""
    lines = words.wrapped(f"{data['class']}: {data['root_cause']}", width, "")
    if not data["certain"] and data["class"] != "unknown":
        lines += words.wrapped("Only symptoms were printed, no cause: take the class as a likelihood.", width, "")
    lines += ["", *words.wrapped(f"The lines that tell ({data['evidence_at'][0]['file']})" if data["evidence"] else "No line tells.", width, "")]
    for text, place in zip(data["evidence"], data["evidence_at"], strict=True):
        lines += words.wrapped(text, width, f"{place['line']:>7}  ", " " * 9)[:6]
    if data["facts"]:
        lines += ["", "What was printed"]
        lines += [line for name, value in data["facts"].items() for line in words.wrapped(_fact(name, value), width, "  ", "    ")]
    lines += ["", *words.wrapped(f"Try: {words.sentence(data['advice'])}", width, "", "     ")]
    if len(data["logs"]) > 1:
        lines += ["", "All logs, by causality"]
        for log in data["logs"][:_LOGS_SHOWN]:
            where = f", line {log['line']}" if log["line"] else ""
            lines += words.wrapped(f"{log['role']}: {_name(log['rank'], log['file'])} ({log['file']}{where}): {log['class']}. {log['root_cause']}", width, "  ", "    ")
        more = len(data["logs"]) - _LOGS_SHOWN
        lines += [f"  and {words.plural(more, 'more log')}"] if more > 0 else []
    looked = data["looked_at"]
    lines += ["", *words.wrapped(f"Looked at {words.plural(looked['lines'], 'line')} with {looked['rules']} rules; `rsi explain --rules` lists them.", width, "")]
    return "\n".join(lines)


def _fact(name: str, value: float | str) -> str:
    if name.endswith("_bytes") and isinstance(value, (int, float)):
        size = words.size(int(value)) if value >= 2**20 else f"{int(value)} bytes"
        return f"{name.removesuffix('_bytes').replace('_', ' ')}: {size}"
    return f"{name.replace('_', ' ')}: {value}"


def rules_data() -> list[dict[str, Any]]:
    """All rules in the order in which one line is read."""
    return [{"name": r.name, "class": r.cause, "tier": r.tier, "says": r.says, "advice": r.advice, "pattern": r.pattern} for r in RULES]


def rules_page(width: int = words.WIDTH) -> str:
    lines = ["Rules in the order in which a line is read. The lowest tier that matches anywhere wins,", "within it the earliest line."]
    for tier, name in enumerate(TIERS):
        lines += ["", f"Tier {tier}: {name}"]
        lines += [line for r in RULES if r.tier == tier for line in words.wrapped(f"{r.name} ({r.cause}): {r.says}", width, "  ", "    ")]
    return "\n".join(lines)

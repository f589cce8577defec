"""Why a run of several nodes failed: what each node printed, explained by itself and put into the order of causality.

Promises: the arrival of lines, by the launcher's clock, decides between causes; a node that only lost
its connection to another is a consequence. A run of one node is explained as its lines stand.
"""

from __future__ import annotations

from dataclasses import replace

from rsi_tui.evaluator.explaining import Explanation, explain_lines
from rsi_tui.evaluator.log_files import Log, in_order
from rsi_tui.launch.spec import Line, RawRun


def explain_run(raw: RawRun) -> Explanation:
    """The root cause in all that a run printed; of several nodes, with the node that it happened on."""
    if not raw.nodes:
        return explain_lines(line.text for line in raw.lines)
    logs = []
    for node in range(len(raw.nodes)):
        lines = [line for line in raw.lines if line.node == node]
        logs.append(_log(node, lines))
    first = in_order(logs)[0]
    if first.role == "silent":
        return first.explanation
    return replace(first.explanation, root_cause=f"Node {first.rank}: {first.explanation.root_cause}")


def failed_node(raw: RawRun) -> int | None:
    """The node whose end is the run's; None for a run of one node, or of several that all ended well."""
    ended = [(node.oom_kill, bool(node.killed_for) and node.killed_for != "peer", node.exit_code != 0) for node in raw.nodes]
    worst = max(range(len(ended)), key=ended.__getitem__, default=None)
    return worst if worst is not None and any(ended[worst]) else None


def _log(node: int, lines: list[Line]) -> Log:
    explanation = explain_lines(line.text for line in lines)
    at = None
    if explanation.numbers and explanation.numbers[0] <= len(lines):
        at = ("arrival", lines[explanation.numbers[0] - 1].at_s)
    return Log(f"node {node}", explanation, node, 0, at)

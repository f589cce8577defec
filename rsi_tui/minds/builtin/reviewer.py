"""The builtin Reviewer's judgement of direction: does the diff do what the hypothesis said, and only that?

It knows diff and direction, never a time. Exploits and scope are found by the static rules of the
loop; here a change is traced to the layers that its code and settings belong to.
"""

from __future__ import annotations

import ast
import contextlib
import re
from itertools import combinations

from rsi_tui.contract.model import Layer
from rsi_tui.errors import PatchError
from rsi_tui.minds.protocol import ReviewAnswer, ReviewBrief
from rsi_tui.techniques.base import Change, Situation
from rsi_tui.techniques.registry import all_techniques, apply_all, settings_of

SIGNS: dict[Layer, str] = {
    "kernel": r"scaled_dot_product|softmax|matmul|einsum|\bbmm\b|baddbmm|autocast|bfloat16|\blinear\b|gelu|silu|relu"
    r"|layer_?norm|rms_?norm|cross_entropy|\bcat\b|masked_fill|tril|triu|\bqkv\b|activation",
    "memory": r"checkpoint|chunk|empty_cache|micro_?batch|del |set_to_none|inplace|out=|expandable|grad_accum",
    "optimizer": r"optim|adam|sgd|fused|foreach|clip_grad|zero_grad|capturable|\.step\(",
    "compiler": r"compile|cudagraph|jit|inductor",
    "communication": r"all_reduce|reduce_scatter|all_gather|distributed|\bddp\b|bucket|no_sync|comm_hook",
    "data": r"loader|prefetch|pin_memory|non_blocking|\.item\(|tolist|numpy|dataset|get_batch",
    "launch": r"set_num_threads|affinity|num_interop|environ",
}
NEIGHBOURS: dict[Layer, tuple[Layer, ...]] = {
    "kernel": ("kernel", "memory"),
    "memory": ("memory", "kernel"),
    "optimizer": ("optimizer", "memory"),
    "compiler": ("compiler", "kernel"),
    "communication": ("communication", "memory"),
    "data": ("data",),
    "launch": ("launch", "memory"),
}
"""layers whose idioms a change of a layer may touch without leaving it"""


def review(brief: ReviewBrief) -> ReviewAnswer:
    """On direction when the change is what a technique of the direction makes of the parent, nothing more, or when
    every hunk and every changed knob belongs to the direction's layer or its neighbours."""
    if made_by := _made_by(brief):
        return ReviewAnswer(True, f"the change is what {made_by} makes of its parent, and nothing else")
    allowed = set(NEIGHBOURS[brief.direction.layer])
    known = (*all_techniques(), *settings_of(brief.contract))
    allowed |= {technique.layer for technique in known if technique.id in brief.direction.techniques}
    for name, value in brief.knobs_after.items():
        if brief.knobs_before.get(name) == value:
            continue
        layer = brief.contract.knob(name).layer
        if layer not in allowed:
            return ReviewAnswer(False, f"sets {name}={value}, a setting of the {layer} layer, in a direction on {brief.direction.layer}")
    for hunk in _hunks(brief.diff):
        found = _layers(hunk)
        if found and not found & allowed:
            named = ", ".join(sorted(found))
            return ReviewAnswer(
                False, f"changes {named} code in a direction on {brief.direction.layer}", lines=tuple(hunk[:3])
            )
    return ReviewAnswer(True, f"every change belongs to the {brief.direction.layer} layer")


def _made_by(brief: ReviewBrief) -> str:
    """The techniques of the direction that make exactly this change, settings included; '' when none do.

    A technique of one layer may touch code that looks like another's: a gradient is averaged where the optimizer steps.
    """
    changed = {name: value for name, value in brief.knobs_after.items() if brief.knobs_before.get(name) != value}
    situation = Situation(brief.before, brief.contract, None, brief.knobs_before)
    alone: dict[str, Change] = {}
    for id in brief.direction.techniques:
        with contextlib.suppress(PatchError):
            alone[id] = apply_all((id,), situation)
    for chosen in (*((id,) for id in alone), *combinations(alone, 2)):
        if {**alone[chosen[0]].knobs, **alone[chosen[-1]].knobs}.items() < changed.items():
            continue  # parsing is most of the cost
        try:
            change = alone[chosen[0]] if len(chosen) == 1 else apply_all(chosen, situation)
        except PatchError:
            continue
        settings = {name: value for name, value in change.knobs.items() if brief.knobs_before.get(name) != value}
        after = {**brief.before, **change.sources}
        if settings == changed and all(_same_code(after.get(path), brief.after.get(path)) for path in {*after, *brief.after}):
            return " with ".join(chosen)
    return ""


def _same_code(left: str | None, right: str | None) -> bool:
    """The same syntax tree but for docstrings, which a reviewer is not shown; texts that do not parse must be the same."""
    if left == right or left is None or right is None:
        return left == right
    try:
        return _code(left) == _code(right)
    except (SyntaxError, ValueError):
        return False


def _code(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return ast.dump(tree)


def _hunks(diff: str) -> list[list[str]]:
    """Added and removed lines, hunk by hunk, without comments."""
    hunks: list[list[str]] = []
    for line in diff.splitlines():
        if line.startswith("@@"):
            hunks.append([])
        elif hunks and line[:1] in "+-" and not line.startswith(("+++", "---")):
            code = line[1:].split("#")[0].strip()
            if code:
                hunks[-1].append(code)
    return [hunk for hunk in hunks if hunk]


def _layers(hunk: list[str]) -> set[Layer]:
    text = "\n".join(hunk).lower()
    return {layer for layer, pattern in SIGNS.items() if re.search(pattern, text)}

"""One-hot tensors that are made only to be counted -> counts, without the one-hot."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.inplace import changed_in_place
from rsi_tui.techniques.idioms.ops import Place, Reader, given, integer
from rsi_tui.techniques.idioms.program import FUNCTIONAL, FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, walk

SAVED_OF_ONE_HOT = 0.6
HELPER = "_choice_counts"
_COUNTS = '''\
def _choice_counts(chosen, classes, dims, mean=None):
    """`one_hot(chosen, classes)` summed over dimensions; with a dtype as `mean`, their mean in that dtype."""
    dims = [dim % (chosen.dim() + 1) for dim in dims]
    if chosen.dim() in dims:
        hot = {F}.one_hot(chosen, classes)
        return hot.sum(dims) if mean is None else hot.to(mean).mean(dims)
    rest = [dim for dim in range(chosen.dim()) if dim not in dims]
    moved = chosen.permute(*rest, *dims).flatten(len(rest))
    counts = {torch}.zeros(*moved.shape[:-1], classes, dtype={torch}.int64, device=chosen.device)
    counts = counts.scatter_add_(-1, moved, {torch}.ones_like(moved))
    return counts if mean is None else counts.to(mean) / moved.size(-1)
'''


@dataclass(frozen=True)
class _Count:
    """A sum or mean over a one-hot tensor."""

    node: cst.BaseExpression
    chosen: str
    classes: str
    dims: tuple[int, ...]
    cast: str
    """method call between the one-hot and the sum, '' when none"""
    mean: str
    """dtype of a mean, '' for a sum"""
    made: cst.BaseStatement | None
    """statement that only makes the one-hot"""

    def text(self) -> str:
        dims = f"({', '.join(map(str, self.dims))},)" if len(self.dims) == 1 else f"({', '.join(map(str, self.dims))})"
        mean = f", mean={self.mean}" if self.mean else ""
        return f"{HELPER}({self.chosen}, {self.classes}, {dims}{mean}){'' if self.mean else self.cast}"


class RoutingCounts(Codemod):
    id = "routing-counts"
    title = "Counts without a one-hot tensor"
    layer: Layer = "kernel"
    summary = (
        "Where a one-hot tensor is made only to be summed, counts the indices directly: the tensor of choices x classes "
        "64-bit integers is neither filled nor read. Counts are integers, so that they are the same."
    )
    applies_when = "one_hot(...) with a given number of classes is summed or averaged, and nothing else reads it"
    risk = "None: the counts are exact integers."
    source = "Fedus et al. 2021, Switch Transformers, arXiv:2101.03961 (the load that is counted); torch.scatter_add"
    words = ("one_hot",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function in file.functions:
            if function.node.name.value == HELPER:
                continue
            reader = Reader(file, function)
            for block in function.blocks:
                for at, statement in enumerate(block.statements):
                    if not isinstance(statement, cst.SimpleStatementLine):
                        continue
                    for node in walk(statement):
                        found = _count(reader, function, Place(block, at), node) if isinstance(node, cst.Call) else None
                        if found is not None and not edits.touched(found.node):
                            _replace(found, file, edits)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.003, memory=-0.002)
        share = situation.profile.operator_share("one_hot", "aten::scatter_")
        return Effect(faster(share, SAVED_OF_ONE_HOT), memory=-0.002)


def _replace(found: _Count, file: SourceFile, edits: Edits) -> None:
    if edits.empty and f"def {HELPER}(" not in file.text:
        helper = _COUNTS.replace("{torch}", file.spell("torch", edits)).replace("{F}", file.spell(FUNCTIONAL, edits))
        edits.helper(helper)
    edits.replace(found.node, found.text())
    if found.made is not None:
        edits.remove(found.made)


def _count(reader: Reader, function: FunctionView, place: Place, node: cst.Call) -> _Count | None:
    op = reader.op(node)
    if op is None or op.name not in ("sum", "mean") or not op.args or len(op.args) > 2 or set(op.keywords) - {"dim"}:
        return None
    dims = _dims(op.arg(1, "dim"))
    if not dims:
        return None
    inner, cast, made = op.args[0], "", None
    for _ in range(4):
        if isinstance(inner, cst.Name):
            found = given(place, inner)
            if found is None or made is not None:
                return None
            made = place.block.statements[found.index]
            if flow.value_reads(place.block, function.node, inner.value, found.index, [node, made]):
                return None
            between = place.block.statements[found.index + 1 : place.index]
            used = set(flow.names(found.value).read)
            if place.block.rebound(used, found.index, place.index - 1) or any(changed_in_place(between, n) for n in used):
                return None
            inner = found.value
            continue
        step = reader.op(inner)
        if step is None or not isinstance(inner, cst.Call):
            return None
        if step.name == "one_hot":
            classes = step.arg(1, "num_classes")
            if classes is None or integer(classes) == -1 or not step.args:
                return None
            if op.name == "mean" and not cast:
                return None
            mean = {".float()": "torch.float32", ".double()": "torch.float64"}[cast] if op.name == "mean" else ""
            mean = mean.replace("torch", _torch(reader.file)) if mean else ""
            if op.name == "mean" and not _torch(reader.file):
                return None
            return _Count(node, bare(step.args[0]), bare(classes), dims, cast, mean, made)
        cast = _cast(reader, inner) if not cast else ""
        if not cast:
            return None
        inner = step.args[0]
    return None


def _torch(file: SourceFile) -> str:
    """The file's name for torch, '' when it has none."""
    return next((alias for alias, target in file.imports.items() if target == "torch"), "")


def _cast(reader: Reader, node: cst.Call) -> str:
    """`.float()` or `.double()`, in which counts are exact; '' for other steps."""
    op = reader.op(node)
    assert op is not None
    if op.name in ("float", "double") and len(op.args) == 1 and not op.keywords:
        return f".{op.name}()"
    if op.name == "to" and len(op.args) == 2 and not op.keywords:
        kind = reader.file.qualified(op.args[1])
        return {"torch.float32": ".float()", "torch.float": ".float()", "torch.float64": ".double()"}.get(kind, "")
    return ""


def _dims(node: cst.BaseExpression | None) -> tuple[int, ...]:
    parts = [e.value for e in node.elements] if isinstance(node, cst.Tuple | cst.List) else [node]
    found = [integer(p) for p in parts]
    return tuple(d for d in found if d is not None) if None not in found else ()

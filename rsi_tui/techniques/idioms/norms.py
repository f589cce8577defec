"""RMSNorm and LayerNorm written out, however they are spelled and spread over statements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.ops import Op, Place, Reader, given, integer, number
from rsi_tui.techniques.idioms.program import FunctionView, SourceFile
from rsi_tui.techniques.idioms.scales import is_number
from rsi_tui.techniques.idioms.tree import bare, children, code

Kind = Literal["rms", "layer"]


@dataclass(frozen=True)
class WrittenNorm:
    """A norm over the last dimension, as an expression to be replaced."""

    kind: Kind
    node: cst.BaseExpression
    x: str
    """variable that is normalised"""
    eps: str
    weight: str
    """1-d parameter that the result is multiplied by, '' when that is not part of the expression"""
    bias: str
    dtype: str
    """what the result is cast to before the weight, '' when it is not"""
    links: tuple[cst.BaseStatement, ...]
    """statements that hold parts of it, and serve nothing else"""


@dataclass
class _Trace:
    """One attempt: names followed so far."""

    reader: Reader
    block: Block
    links: list[tuple[int, str]] = field(default_factory=list)

    def follow(self, node: cst.BaseExpression, at: int) -> tuple[cst.BaseExpression, int]:
        while isinstance(node, cst.Name) and (found := given(Place(self.block, at), node)) is not None:
            self.links.append((found.index, node.value))
            node, at = found.value, found.index
        return node, at


@dataclass(frozen=True)
class _Core:
    kind: Kind
    x: cst.Name
    first: int
    """earliest statement that reads x"""
    eps: cst.BaseExpression
    eps_at: int


def written_norms(file: SourceFile) -> Iterator[tuple[FunctionView, WrittenNorm]]:
    """The largest such expressions of a file."""
    for function in file.functions:
        reader = Reader(file, function)
        for block in function.blocks:
            taken: list[cst.BaseStatement] = []
            # from the end, where the weight is: what it is multiplied by is then part of one find
            for at, statement in reversed(list(enumerate(block.statements))):
                if isinstance(statement, cst.SimpleStatementLine) and not any(statement is t for t in taken):
                    for found in _search(reader, function, block, at, statement):
                        taken += found.links
                        yield function, found


def _search(
    reader: Reader, function: FunctionView, block: Block, at: int, node: cst.CSTNode
) -> Iterator[WrittenNorm]:
    if isinstance(node, cst.BinaryOperation | cst.Call):
        for attempt in (_with_bias, _with_weight, _plain):
            trace = _Trace(reader, block)
            found = attempt(trace, function, node, at)
            if found is not None:
                yield found
                return
    for child in children(node):
        yield from _search(reader, function, block, at, child)


def _with_bias(trace: _Trace, function: FunctionView, node: cst.BaseExpression, at: int) -> WrittenNorm | None:
    op = trace.reader.op(node)
    if op is None or op.name != "add" or len(op.args) != 2:
        return None
    for bias, inner in (op.args, reversed(op.args)):
        trace.links.clear()
        if _is_vector_parameter(trace.reader, bias):
            scaled, scaled_at = trace.follow(inner, at)
            found = _scaled(trace, scaled, scaled_at)
            if found is not None and found[0].kind == "layer":
                return _finish(trace, function, node, at, *found, bias=code(bias))
    return None


def _with_weight(trace: _Trace, function: FunctionView, node: cst.BaseExpression, at: int) -> WrittenNorm | None:
    found = _scaled(trace, node, at)
    return _finish(trace, function, node, at, *found) if found is not None else None


def _plain(trace: _Trace, function: FunctionView, node: cst.BaseExpression, at: int) -> WrittenNorm | None:
    core = _core(trace, node, at)
    return _finish(trace, function, node, at, core, "", "") if core is not None else None


def _scaled(trace: _Trace, node: cst.BaseExpression, at: int) -> tuple[_Core, str, str] | None:
    """weight * cast(core): the core, the weight's text and the dtype's."""
    op = trace.reader.op(node)
    if op is None or op.name != "mul" or len(op.args) != 2:
        return None
    for weight, inner in (op.args, reversed(op.args)):
        if not _is_vector_parameter(trace.reader, weight):
            continue
        kept = len(trace.links)
        inner, inner_at = trace.follow(inner, at)
        dtype = ""
        step = trace.reader.op(inner)
        if step is not None and step.name in ("to", "type_as", "type") and isinstance(inner, cst.Call):
            dtype = _dtype(trace, step, inner_at)
            if not dtype:
                return None
            inner, inner_at = trace.follow(step.args[0], inner_at)
        core = _core(trace, inner, inner_at)
        if core is not None:
            return core, code(weight), dtype
        del trace.links[kept:]
    return None


def _dtype(trace: _Trace, op: Op, at: int) -> str:
    """Text of the dtype that a value is cast to; '' when it is no dtype for certain."""
    if len(op.args) != 2 or op.keywords:
        return ""
    target = op.args[1]
    if op.name == "type_as":
        return f"{bare(target)}.dtype" if isinstance(target, cst.Name) else ""
    value = target
    if isinstance(target, cst.Name) and (found := given(Place(trace.block, at), target)) is not None:
        value = found.value
    is_dtype = isinstance(value, cst.Attribute) and (
        value.attr.value == "dtype" or trace.reader.file.qualified(value) in ("torch.float32", "torch.bfloat16", "torch.float16")
    )
    return bare(target) if is_dtype else ""


def _is_vector_parameter(reader: Reader, node: cst.BaseExpression) -> bool:
    """`self.weight` made by `nn.Parameter(torch.ones(size))`: one dimension."""
    cls = reader.function.cls
    if cls is None or not isinstance(node, cst.Attribute) or code(node.value) != reader.function.me:
        return False
    match cls.attribute(node.attr.value):
        case cst.Call(func=func, args=[cst.Arg(value=cst.Call(func=maker, args=[cst.Arg(value=size, keyword=None), *rest]))]):
            return (
                reader.file.qualified(func) == "torch.nn.Parameter"
                and reader.file.qualified(maker) in ("torch.ones", "torch.zeros", "torch.empty")
                and all(a.keyword is not None for a in rest)
                and isinstance(size, cst.Name | cst.Attribute | cst.Integer)
                and "shape" not in code(size)
            )
    return False


def _core(trace: _Trace, node: cst.BaseExpression, at: int) -> _Core | None:
    op = trace.reader.op(node)
    if op is None or op.name not in ("mul", "div") or len(op.args) != 2:
        return None
    pairs = [op.args] if op.name == "div" else [op.args, (op.args[1], op.args[0])]
    for top, factor in pairs:
        kept = len(trace.links)
        found = _ratio(trace, top, factor, at, inverted=op.name == "mul")
        if found is not None:
            return found
        del trace.links[kept:]
    return None


def _ratio(trace: _Trace, top: cst.BaseExpression, factor: cst.BaseExpression, at: int, inverted: bool) -> _Core | None:
    """x / sqrt(mean(x^2) + eps), or (x - mean) / sqrt(variance + eps); `inverted` when the factor is the inverse root."""
    under = _root(trace, *trace.follow(factor, at), inverted)
    if under is None:
        return None
    node, node_at = trace.follow(*under)
    op = trace.reader.op(node)
    if op is None or op.name != "add" or len(op.args) != 2:
        return None
    for eps, mean in (op.args, reversed(op.args)):
        if is_number(trace.reader, eps) or _is_eps_attribute(trace.reader, eps):
            for kind in (_variance, _rms):
                kept = len(trace.links)
                found = kind(trace, top, at, *trace.follow(mean, node_at))
                if found is not None:
                    return _Core(*found, eps, node_at)
                del trace.links[kept:]
    return None


def _is_eps_attribute(reader: Reader, node: cst.BaseExpression) -> bool:
    cls = reader.function.cls
    if cls is None or not isinstance(node, cst.Attribute) or code(node.value) != reader.function.me:
        return False
    value = cls.attribute(node.attr.value)
    return value is not None and (isinstance(value, cst.Name) or number(value, reader.file) is not None)


def _root(trace: _Trace, node: cst.BaseExpression, at: int, inverted: bool) -> tuple[cst.BaseExpression, int] | None:
    op = trace.reader.op(node)
    if op is None or not op.args or op.keywords:
        return None
    power = number(op.args[1], trace.reader.file) if op.name == "pow" and len(op.args) == 2 else None
    if inverted:
        if op.name == "rsqrt" or power == -0.5:
            return op.args[0], at
        if op.name == "div" and number(op.args[0], trace.reader.file) == 1.0:
            return _root(trace, *trace.follow(op.args[1], at), False)
        return None
    return (op.args[0], at) if op.name == "sqrt" or power == 0.5 else None


def _is_mean(op: Op | None, name: str = "mean") -> bool:
    if op is None or op.name != name or not op.args:
        return False
    dim, keep = op.arg(1, "dim"), op.arg(2, "keepdim")
    if isinstance(dim, cst.Tuple | cst.List) and len(dim.elements) == 1:
        dim = dim.elements[0].value
    return integer(dim) == -1 and keep is not None and bare(keep) == "True"


def _squared(trace: _Trace, node: cst.BaseExpression) -> cst.BaseExpression | None:
    op = trace.reader.op(node)
    if op is None or op.keywords:
        return None
    if op.name == "square" and len(op.args) == 1:
        return op.args[0]
    if op.name == "pow" and len(op.args) == 2 and number(op.args[1], trace.reader.file) == 2.0:
        return op.args[0]
    if op.name == "mul" and len(op.args) == 2 and isinstance(op.args[0], cst.Name) and bare(op.args[0]) == bare(op.args[1]):
        return op.args[0]
    return None


def _unchanged(trace: _Trace, name: str, first: int, last: int) -> bool:
    return first >= last or not trace.block.rebound({name}, first, last - 1)


def _rms(
    trace: _Trace, top: cst.BaseExpression, at: int, spread: cst.BaseExpression, spread_at: int
) -> tuple[Kind, cst.Name, int] | None:
    op = trace.reader.op(spread)
    if not _is_mean(op) or not isinstance(top, cst.Name):
        return None
    assert op is not None
    inner, inner_at = trace.follow(op.args[0], spread_at)
    squared = _squared(trace, inner)
    if not isinstance(squared, cst.Name) or squared.value != top.value or not _unchanged(trace, top.value, inner_at, at):
        return None
    return "rms", top, inner_at


def _variance(
    trace: _Trace, top: cst.BaseExpression, at: int, spread: cst.BaseExpression, spread_at: int
) -> tuple[Kind, cst.Name, int] | None:
    centred = _centred(trace, top, at)
    op = trace.reader.op(spread)
    if centred is None or op is None:
        return None
    x, first = centred
    if _is_mean(op, "var"):
        unbiased, correction = op.keywords.get("unbiased"), op.keywords.get("correction")
        biased = (unbiased is not None and bare(unbiased) == "False") or integer(correction) == 0
        of, of_at = op.args[0], spread_at
        if not biased or not isinstance(of, cst.Name) or of.value != x.value:
            return None
    elif _is_mean(op):
        inner, inner_at = trace.follow(op.args[0], spread_at)
        squared = _squared(trace, inner)
        again = _centred(trace, squared, inner_at) if squared is not None else None
        if again is None or again[0].value != x.value:
            return None
        of_at = again[1]
    else:
        return None
    first = min(first, of_at)
    return ("layer", x, first) if _unchanged(trace, x.value, first, at) else None


def _centred(trace: _Trace, node: cst.BaseExpression, at: int) -> tuple[cst.Name, int] | None:
    """x of `x - x.mean(-1, keepdim=True)`, and the earliest statement that reads it."""
    node, at = trace.follow(node, at)
    op = trace.reader.op(node)
    if op is None or op.name != "sub" or len(op.args) != 2 or op.keywords or not isinstance(op.args[0], cst.Name):
        return None
    mean, mean_at = trace.follow(op.args[1], at)
    inner = trace.reader.op(mean)
    if not _is_mean(inner):
        return None
    assert inner is not None
    of = inner.args[0]
    if not isinstance(of, cst.Name) or of.value != op.args[0].value or not _unchanged(trace, of.value, mean_at, at):
        return None
    return of, mean_at


def _finish(
    trace: _Trace, function: FunctionView, node: cst.BaseExpression, at: int, core: _Core, weight: str, dtype: str, bias: str = ""
) -> WrittenNorm | None:
    """The find, if its parts serve nothing else and what it reads is the same at its end."""
    block, x = trace.block, core.x.value
    statements = block.statements
    gone = {index for index, _ in trace.links}
    parts = [*(statements[i] for i in gone), node]
    for index, name in trace.links:
        if flow.value_reads(block, function.node, name, index, parts):
            return None
        # x = x * rsqrt(...): the name holds the result afterwards, and the input is what it was before
        if name == x and index >= core.first and _shadowed(block, x, index, at, gone):
            return None
    between = [statements[i] for i in range(core.first, at) if i not in gone]
    used = {x, *flow.names(core.eps).read}
    if any(flow.names(s).bound[n] or flow.mutated(s, n) for s in between for n in used):
        return None
    links = tuple(statements[i] for i in sorted(gone))
    return WrittenNorm(core.kind, node, x, bare(core.eps), weight, bias, dtype, links)


def _shadowed(block: Block, x: str, index: int, at: int, gone: set[int]) -> bool:
    """Whether anything but the parts that go reads the name between the statement that rebinds it and the end."""
    return any(flow.names(block.statements[i]).read[x] for i in range(index + 1, at) if i not in gone)

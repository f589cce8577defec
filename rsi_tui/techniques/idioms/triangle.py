"""Is a mask provably causal? Reads how it was made, never its name.

A mask is LOWER when it is true (or one) exactly on and below the diagonal of its last two
dimensions, UPPER when exactly above it, and ADDED when it is minus infinity above the diagonal and
zero elsewhere. Anything else, a padding mask for example, is None.
"""

from __future__ import annotations

from typing import Literal

import libcst as cst

from rsi_tui.techniques.idioms.flow import names
from rsi_tui.techniques.idioms.ops import Op, Place, Reader, given, integer, number, very_negative
from rsi_tui.techniques.idioms.tree import code, same, walk

Triangle = Literal["lower", "upper", "added"]
_FLIP: dict[Triangle, Triangle] = {"lower": "upper", "upper": "lower"}
_KEEP = {"to", "bool", "float", "type", "byte", "int", "long", "half", "cuda", "cpu", "type_as",
         "contiguous", "clone", "detach", "requires_grad"}  # fmt: skip
_DEPTH = 12


def triangle(reader: Reader, node: cst.BaseExpression, place: Place | None, depth: int = 0) -> Triangle | None:
    """What kind of triangle an expression is, looked at from a place in the reader's function."""
    if depth > _DEPTH:
        return None
    if isinstance(node, cst.Name):
        return _named(reader, node, place, depth)
    if isinstance(node, cst.Attribute) and (found := _buffer(reader, node, depth)) is not None:
        return found
    if isinstance(node, cst.Subscript):
        inner = triangle(reader, node.value, place, depth + 1)
        return inner if inner and _keeps_last_two(node, reader, place) else None
    if (op := reader.op(node)) is None:
        return _helper(reader, node, depth)
    return _operation(reader, op, place, depth) or _helper(reader, node, depth)


def _named(reader: Reader, node: cst.Name, place: Place | None, depth: int) -> Triangle | None:
    if place is not None and (found := given(place, node)) is not None:
        return triangle(reader, found.value, Place(place.block, found.index), depth + 1)
    for block in reader.function.blocks:
        # a name bound once in the whole function can have no other value
        if names(reader.function.node).bound[node.value] == 1:
            found = block.definition(node.value, len(block.statements))
            if found is not None:
                return triangle(reader, found.value, Place(block, found.index), depth + 1)
    return None


def _buffer(reader: Reader, node: cst.Attribute, depth: int) -> Triangle | None:
    cls, me = reader.function.cls, reader.function.me
    if cls is None or not isinstance(node.value, cst.Name) or node.value.value != me:
        return None
    if (value := cls.attribute(node.attr.value)) is None:
        return None
    home = next((f for f in reader.file.functions if f.node is cls.homes.get(node.attr.value)), None)
    if home is None:
        return None
    block = home.blocks[0]
    at = next((i for i, s in enumerate(block.statements) if _holds(s, value)), None)
    return triangle(Reader(reader.file, home), value, Place(block, at) if at is not None else None, depth + 1)


def _holds(statement: cst.CSTNode, value: cst.CSTNode) -> bool:
    return any(part is value for part in walk(statement))


def _helper(reader: Reader, node: cst.BaseExpression, depth: int) -> Triangle | None:
    """`causal_mask(T)`: a function of this file that only makes the mask."""
    if not isinstance(node, cst.Call):
        return None
    if reader.file.qualified(node.func).endswith("Transformer.generate_square_subsequent_mask"):
        return "added"
    if not isinstance(node.func, cst.Name) or (target := reader.file.function(node.func.value)) is None:
        return None
    block = target.blocks[0]
    returned = [i for i, s in enumerate(block.statements) if _returned(s) is not None]
    if len(target.blocks) != 1 or len(returned) != 1:
        return None
    value = _returned(block.statements[returned[0]])
    assert value is not None
    return triangle(Reader(reader.file, target), value, Place(block, returned[0]), depth + 1)


def _returned(statement: cst.CSTNode) -> cst.BaseExpression | None:
    match statement:
        case cst.SimpleStatementLine(body=[cst.Return(value=cst.BaseExpression() as value)]):
            return value
    return None


def _operation(reader: Reader, op: Op, place: Place | None, depth: int) -> Triangle | None:
    def inner(node: cst.BaseExpression) -> Triangle | None:
        return triangle(reader, node, place, depth + 1)

    match op.name:
        case "tril" if _diagonal(op) == 0 and _ones(reader, op.args[0], place):
            return "lower"
        case "triu" if _diagonal(op) == 1:
            if _ones(reader, op.args[0], place):
                return "upper"
            return "added" if _filled_negative(reader, op.args[0], place) else None
        case "not":
            found = inner(op.args[0])
            return _FLIP.get(found) if found else None
        case "sub" if number(op.args[0], reader.file) == 1.0:
            found = inner(op.args[1])
            return _FLIP.get(found) if found else None
        case "eq" | "ne" | "gt" | "ge" | "lt" | "le" if len(op.args) == 2:
            return _compared(reader, op, place, depth)
        case "mul" if len(op.args) == 2:
            left, right = op.args
            if very_negative(left, reader.file):
                left, right = right, left
            return "added" if very_negative(right, reader.file) and inner(left) == "upper" else None
        case "masked_fill" if len(op.args) == 3 and very_negative(op.args[2], reader.file):
            return "added" if _zeros(reader, op.args[0], place) and inner(op.args[1]) == "upper" else None
        case "view" | "reshape" if len(op.args) >= 3 and same(op.args[-1], op.args[-2]):
            return inner(op.args[0])
        case "unsqueeze" if integer(op.args[-1]) == 0:
            return inner(op.args[0])
        case "unsqueeze" if integer(op.args[-1]) == 1 and _has_leading(reader, op.args[0]):
            return inner(op.args[0])
        case "bool" if inner(op.args[0]) == "added":
            return "upper"
        case name if name in _KEEP and op.args:
            found = inner(op.args[0])
            # minus infinity cast to a boolean would be another mask
            return found if found != "added" or name not in ("byte", "int", "long") else None
    return None


def _compared(reader: Reader, op: Op, place: Place | None, depth: int) -> Triangle | None:
    left, right = op.args
    value = number(right, reader.file)
    if value is not None and (found := triangle(reader, left, place, depth + 1)) in ("lower", "upper"):
        is_zero = (op.name, value) in (("eq", 0.0), ("ne", 1.0), ("lt", 1.0))
        is_one = (op.name, value) in (("eq", 1.0), ("ne", 0.0), ("gt", 0.0), ("ge", 1.0))
        return _FLIP[found] if is_zero else (found if is_one else None)
    sides = (_arange_axis(reader, left, place), _arange_axis(reader, right, place))
    by_row = {"ge": "lower", "lt": "upper"}
    by_column = {"le": "lower", "gt": "upper"}
    table = by_row if sides == ("row", "column") else by_column if sides == ("column", "row") else {}
    found_name = table.get(op.name)
    return "lower" if found_name == "lower" else "upper" if found_name == "upper" else None


def _arange_axis(reader: Reader, node: cst.BaseExpression, place: Place | None) -> str:
    """'row' for positions that vary along the last-but-one dimension, 'column' along the last."""
    if isinstance(node, cst.Subscript) and _is_arange(reader, node.value, place):
        parts = ", ".join(_element(e) for e in node.slice)
        return {":, None": "row", "None, :": "column"}.get(parts, "")
    op = reader.op(node)
    if op is None or not op.args or not _is_arange(reader, op.args[0], place):
        return ""
    order = [integer(a) for a in op.args[1:]]
    if op.name == "unsqueeze":
        return "row" if order in ([1], [-1]) else "column" if order == [0] else ""
    if op.name in ("view", "reshape"):
        return "row" if order == [-1, 1] else "column" if order == [1, -1] else ""
    return ""


def _is_arange(reader: Reader, node: cst.BaseExpression, place: Place | None) -> bool:
    if isinstance(node, cst.Name):
        found = given(place, node) if place else None
        return found is not None and _is_arange(reader, found.value, place)
    op = reader.op(node)
    start = op.args[0] if op and len(op.args) == 2 else None
    return op is not None and op.name == "arange" and (len(op.args) == 1 or integer(start) == 0)


def _diagonal(op: Op) -> int | None:
    node = op.arg(1, "diagonal")
    return 0 if node is None else integer(node)


def _base(reader: Reader, node: cst.BaseExpression, place: Place | None) -> Op | None:
    """The factory call under casts and names."""
    for _ in range(_DEPTH):
        if isinstance(node, cst.Name):
            found = given(place, node) if place else None
            if found is None:
                return None
            node = found.value
            continue
        op = reader.op(node)
        if op is None or op.name not in _KEEP | {"view", "unsqueeze", "expand"} or not op.args:
            return op
        node = op.args[0]
    return None


def _ones(reader: Reader, node: cst.BaseExpression, place: Place | None) -> bool:
    op = _base(reader, node, place)
    if op is None:
        return False
    if op.name in ("full", "new_full", "full_like") and op.args:
        value = op.keywords.get("fill_value", op.args[-1])
        return number(value, reader.file) == 1.0 or (isinstance(value, cst.Name) and value.value == "True")
    return op.name in ("ones", "ones_like", "new_ones")


def _zeros(reader: Reader, node: cst.BaseExpression, place: Place | None) -> bool:
    op = _base(reader, node, place)
    return op is not None and op.name in ("zeros", "zeros_like", "new_zeros")


def _filled_negative(reader: Reader, node: cst.BaseExpression, place: Place | None) -> bool:
    op = _base(reader, node, place)
    if op is None:
        return False
    if op.name in ("full", "new_full", "full_like") and op.args:
        return very_negative(op.keywords.get("fill_value", op.args[-1]), reader.file)
    if op.name == "mul" and len(op.args) == 2:
        left, right = op.args
        return (_ones(reader, left, place) and very_negative(right, reader.file)) or (
            _ones(reader, right, place) and very_negative(left, reader.file)
        )
    return False


def _has_leading(reader: Reader, node: cst.BaseExpression) -> bool:
    op = reader.op(node)
    return op is not None and op.name == "unsqueeze" and integer(op.args[-1]) == 0


def _element(element: cst.SubscriptElement) -> str:
    return "".join(code(element.slice).split())


def _keeps_last_two(node: cst.Subscript, reader: Reader, place: Place | None) -> bool:
    """Whether an index leaves the last two dimensions triangular: both cut to the same length from 0, or whole."""
    parts = [_element(e) for e in node.slice]
    cut = [p.removeprefix("0") if p.startswith("0:") else p for p in parts]
    if all(p == "None" for p in cut):
        return True
    if len(cut) < 2:
        return False
    first, second = cut[-2:]
    return first == second and first.startswith(":") and all(p in (":", "None", "...", "0") for p in cut[:-2])

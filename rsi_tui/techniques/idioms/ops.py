"""One form for the many spellings of a tensor operation.

`F.softmax(x, -1)`, `torch.softmax(x, dim=-1)`, `x.softmax(-1)`, `nn.Softmax(dim=-1)(x)` and
`self.softmax(x)` are all Op("softmax", (x,), {"dim": -1}).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.techniques.idioms.flow import Block, Definition
from rsi_tui.techniques.idioms.program import FunctionView, SourceFile
from rsi_tui.techniques.idioms.tree import bare, same

_BINARY: dict[type[cst.BaseBinaryOp], str] = {
    cst.Add: "add",
    cst.Subtract: "sub",
    cst.Multiply: "mul",
    cst.Divide: "div",
    cst.MatrixMultiply: "matmul",
    cst.Power: "pow",
}
_UNARY: dict[type[cst.BaseUnaryOp], str] = {cst.Minus: "neg", cst.BitInvert: "not", cst.Not: "not"}
_COMPARED: dict[type[cst.BaseCompOp], str] = {
    cst.Equal: "eq",
    cst.NotEqual: "ne",
    cst.LessThan: "lt",
    cst.LessThanEqual: "le",
    cst.GreaterThan: "gt",
    cst.GreaterThanEqual: "ge",
}
_SAME = {"bmm": "matmul", "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub",
         "logical_not": "not", "bitwise_not": "not", "swapaxes": "transpose", "swapdims": "transpose"}  # fmt: skip
_PREFIXES = ("torch.nn.functional.", "torch.special.", "torch.Tensor.", "torch.")
_LAYERS = {
    "torch.nn.Softmax": ("softmax", ("dim",)),
    "torch.nn.Dropout": ("dropout_layer", ("p",)),
    "torch.nn.Linear": ("linear_layer", ("in_features", "out_features", "bias")),
    "torch.nn.CrossEntropyLoss": ("cross_entropy", ()),
}
CASTS = {"float", "to", "type", "type_as", "contiguous", "half", "bfloat16", "double"}


@dataclass(frozen=True)
class Op:
    """One operation on tensors."""

    name: str
    args: tuple[cst.BaseExpression, ...]
    """operands first; the receiver of a method is args[0]"""
    keywords: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    layer: cst.BaseExpression | None = None
    """the module object that was called, for layers"""
    batched: bool = False
    """torch.bmm: operands are known to have three dimensions"""

    def arg(self, position: int, keyword: str) -> cst.BaseExpression | None:
        """An argument by position or keyword."""
        if keyword in self.keywords:
            return self.keywords[keyword]
        return self.args[position] if position < len(self.args) else None


def split_args(args: Sequence[cst.Arg]) -> tuple[list[cst.BaseExpression], dict[str, cst.BaseExpression]] | None:
    """Positional and keyword arguments, None when there are stars."""
    if any(arg.star for arg in args):
        return None
    positional = [arg.value for arg in args if arg.keyword is None]
    return positional, {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}


@dataclass(frozen=True)
class Reader:
    """Reads expressions of one function."""

    file: SourceFile
    function: FunctionView

    def op(self, node: cst.BaseExpression) -> Op | None:
        """The operation that an expression computes, None when it is something else."""
        match node:
            case cst.BinaryOperation(left=left, operator=operator, right=right):
                name = _BINARY.get(type(operator))
                return Op(name, (left, right)) if name else None
            case cst.UnaryOperation(operator=operator, expression=inner):
                name = _UNARY.get(type(operator))
                return Op(name, (inner,)) if name else None
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=operator, comparator=right)]):
                name = _COMPARED.get(type(operator))
                return Op(name, (left, right)) if name else None
            case cst.Attribute(value=inner, attr=cst.Name(value="mT")):
                return Op("transpose", (inner, cst.parse_expression("-2"), cst.parse_expression("-1")))
            case cst.Call():
                return self._call(node)
        return None

    def _call(self, node: cst.Call) -> Op | None:
        if (split := split_args(node.args)) is None:
            return None
        positional, keywords = split
        if (layer := self.layer(node.func)) is not None:
            return _layer_op(layer, node.func, positional, keywords)
        qualified = self.file.qualified(node.func)
        for prefix in _PREFIXES:
            if qualified.startswith(prefix) and "." not in qualified[len(prefix) :]:
                name = qualified[len(prefix) :]
                if "input" in keywords and not positional:
                    positional.append(keywords.pop("input"))
                return Op(_plain(name), tuple(positional), keywords, batched=name == "bmm")
        if qualified or not isinstance(node.func, cst.Attribute):
            return None
        name = node.func.attr.value
        return Op(_plain(name), (node.func.value, *positional), keywords, batched=name == "bmm")

    def layer(self, func: cst.BaseExpression) -> cst.Call | None:
        """The constructor call of a layer: `nn.X(...)` itself, or what `self.x` is set to."""
        if isinstance(func, cst.Attribute):
            if (cls := self.function.cls) is None or not isinstance(func.value, cst.Name):
                return None
            if func.value.value != self.function.me or (value := cls.attribute(func.attr.value)) is None:
                return None
            func = value
        if isinstance(func, cst.Call) and self.file.qualified(func.func) in _LAYERS:
            return func if split_args(func.args) is not None else None
        return None

    def layer_kind(self, func: cst.BaseExpression) -> str:
        """Qualified name of the layer class behind an expression, '' when not one that is known here."""
        layer = self.layer(func)
        return self.file.qualified(layer.func) if layer is not None else ""

    def layer_kwargs(self, layer: cst.Call) -> dict[str, cst.BaseExpression]:
        """Constructor arguments by name, where the layer is one that is known here."""
        split = split_args(layer.args)
        assert split is not None
        names = _LAYERS[self.file.qualified(layer.func)][1]
        return {**dict(zip(names, split[0], strict=False)), **split[1]}


def _layer_op(
    layer: cst.Call, func: cst.BaseExpression, positional: list[cst.BaseExpression], given: dict[str, cst.BaseExpression]
) -> Op | None:
    tail = layer.func.attr.value if isinstance(layer.func, cst.Attribute) else bare(layer.func)
    kind = next((q for q in _LAYERS if q.endswith("." + tail)), "")
    split = split_args(layer.args)
    if not kind or split is None:
        return None
    name, names = _LAYERS[kind]
    keywords = {**dict(zip(names, split[0], strict=False)), **split[1], **given}
    return Op(name, tuple(positional), keywords, layer=func)


def _plain(name: str) -> str:
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    return _SAME.get(name, name)


def integer(node: cst.BaseExpression | None) -> int | None:
    """The value of an integer literal."""
    match node:
        case cst.Integer():
            return node.evaluated_value
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer() as inner):
            return -inner.evaluated_value
    return None


def number(node: cst.BaseExpression | None, file: SourceFile) -> float | None:
    """The value of a literal number; float('-inf') and math.inf included."""
    match node:
        case cst.Integer() | cst.Float():
            return float(node.evaluated_value)
        case cst.UnaryOperation(operator=cst.Minus(), expression=inner):
            value = number(inner, file)
            return -value if value is not None else None
        case cst.Call(func=cst.Name(value="float"), args=[cst.Arg(value=cst.SimpleString() as text)]):
            try:
                return float(str(text.evaluated_value))
            except ValueError:
                return None
        case cst.Attribute() if file.qualified(node) in ("math.inf", "torch.inf", "numpy.inf"):
            return float("inf")
        case cst.Name() if file.qualified(node) in ("math.inf", "torch.inf"):
            return float("inf")
    return None


def very_negative(node: cst.BaseExpression | None, file: SourceFile) -> bool:
    """Whether a mask value makes a softmax weight exactly zero: -inf, the type's minimum, or at most -1e4."""
    value = number(node, file)
    if value is not None:
        return value <= -1e4
    match node:
        case cst.Attribute(value=cst.Call(func=func), attr=cst.Name(value="min")):
            return file.qualified(func) == "torch.finfo"
        case cst.Call(func=func, args=[cst.Arg(value=inner), *_]):
            return file.qualified(func) == "torch.tensor" and very_negative(inner, file)
    return False


def is_transpose_of_last_two(op: Op, dims: int | None) -> bool:
    """Whether an op swaps the last two dimensions; dims is the number of dimensions where known."""
    if op.name == "transpose" and len(op.args) == 3:
        pair = {integer(op.args[1]), integer(op.args[2])}
        known = {-2, -1} if dims is None else {dims - 2, dims - 1}
        return pair in ({-2, -1}, {2, 3} if dims is None else known)
    if op.name == "permute":
        order = [integer(a) for a in op.args[1:]]
        return order in ([0, 1, 3, 2], [0, 2, 1] if dims == 3 else [0, 1, 3, 2])
    return False


@dataclass(frozen=True)
class Place:
    """A statement in a block, from where names are looked up."""

    block: Block
    index: int


def given(place: Place, node: cst.BaseExpression) -> Definition | None:
    """The straight-line definition of a name at a place."""
    return place.block.definition(node.value, place.index) if isinstance(node, cst.Name) else None


def uncast(reader: Reader, node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression under `.float()`, `.to(...)`, `.contiguous()` and the like."""
    while (op := reader.op(node)) is not None and op.name in CASTS and len(op.args) <= 2 and isinstance(node, cst.Call):
        node = op.args[0]
    return node


def last_dim(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """x of `x.size(-1)` or `x.shape[-1]`."""
    minus_one = cst.parse_expression("-1")
    match node:
        case cst.Call(func=cst.Attribute(value=inner, attr=cst.Name(value="size")), args=[cst.Arg(value=dim)]):
            return inner if same(dim, minus_one) else None
        case cst.Subscript(
            value=cst.Attribute(value=inner, attr=cst.Name(value="shape")),
            slice=[cst.SubscriptElement(slice=cst.Index(value=dim))],
        ):
            return inner if same(dim, minus_one) else None
    return None

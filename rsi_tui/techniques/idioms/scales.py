"""The factor on attention scores, as an argument for the fused call."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.techniques.idioms.flow import names
from rsi_tui.techniques.idioms.ops import Reader, last_dim, number, split_args
from rsi_tui.techniques.idioms.tree import operand, same

_NUMERIC_CALLS = ("math.sqrt", "math.pow", "numpy.sqrt", "math.rsqrt")


@dataclass
class Scales:
    """Factors found between the scores and the softmax; all of them are plain numbers."""

    factors: list[tuple[str, cst.BaseExpression]] = field(default_factory=list)
    """('mul' or 'div', expression)"""
    widths: tuple[cst.BaseExpression, ...] = ()
    """queries and keys: the size of their last dimension is the head's width"""
    _reader: Reader | None = None

    def take(self, reader: Reader, how: str, node: cst.BaseExpression) -> bool:
        """Keep a factor; False when it could be a tensor, which the fused call refuses."""
        if not is_number(reader, node):
            return False
        self.factors.append((how, node))
        self._reader = reader
        return True

    def argument(self) -> str:
        """Text of the scale argument; '' when it is the call's own default, 1 / sqrt(head width)."""
        if not self.factors:
            return "1.0"
        if len(self.factors) == 1 and self._is_default(*self.factors[0]):
            return ""
        text = ""
        for how, node in self.factors:
            if not text:
                text = operand(node) if how == "mul" else f"1.0 / {operand(node)}"
            else:
                text += f" {'*' if how == 'mul' else '/'} {operand(node)}"
        return text

    def _is_default(self, how: str, node: cst.BaseExpression) -> bool:
        assert self._reader is not None
        if how == "mul":
            match node:
                case cst.BinaryOperation(left=one, operator=cst.Divide(), right=right) if (
                    number(one, self._reader.file) == 1.0
                ):
                    return self._is_default("div", right)
                case cst.BinaryOperation(left=base, operator=cst.Power(), right=power):
                    return number(power, self._reader.file) == -0.5 and self._is_width(base)
            return False
        match node:
            case cst.Call(func=func, args=[cst.Arg(value=inner)]):
                return self._reader.file.qualified(func) == "math.sqrt" and self._is_width(inner)
            case cst.BinaryOperation(left=base, operator=cst.Power(), right=power):
                return number(power, self._reader.file) == 0.5 and self._is_width(base)
        return False

    def _is_width(self, node: cst.BaseExpression) -> bool:
        """The size of the last dimension of queries or keys, as they are when they are multiplied."""
        assert self._reader is not None
        function = self._reader.function
        bound = names(function.node).bound
        resolved = False
        if isinstance(node, cst.Name) and bound[node.value] == 1:
            found = next(filter(None, (b.definition(node.value, len(b.statements)) for b in function.blocks)), None)
            node, resolved = (found.value, True) if found is not None else (node, False)
        owner = last_dim(node)
        if not isinstance(owner, cst.Name) or not any(isinstance(w, cst.Name) and same(owner, w) for w in self.widths):
            return False
        # taken elsewhere, the size may be that of another tensor of the same name
        return not resolved or bound[owner.value] == 1


def is_number(reader: Reader, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether an expression is a Python number, by how it is made."""
    if depth > 8:
        return False
    if number(node, reader.file) is not None:
        return True
    match node:
        case cst.BinaryOperation(left=left, operator=operator, right=right):
            return not isinstance(operator, cst.MatrixMultiply) and all(
                is_number(reader, side, depth + 1) for side in (left, right)
            )
        case cst.UnaryOperation(expression=inner):
            return is_number(reader, inner, depth + 1)
        case cst.Call(func=func) if reader.file.qualified(func) in _NUMERIC_CALLS:
            return True
        case cst.Call(func=cst.Name(value="float" | "int" | "len")):
            return True
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="size")), args=[_]):
            return True
        case cst.Subscript(value=cst.Attribute(attr=cst.Name(value="shape"))):
            return True
        case cst.Name():
            return _name_is_number(reader, node.value, depth)
        case cst.Attribute():
            return _attribute_is_number(reader, node, depth)
    return False


def _name_is_number(reader: Reader, name: str, depth: int) -> bool:
    function = reader.function.node
    params = [*function.params.params, *function.params.kwonly_params]
    for param in params:
        if param.name.value == name and names(function).bound[name] == 1:
            annotated = param.annotation.annotation if param.annotation else None
            return (isinstance(annotated, cst.Name) and annotated.value in ("int", "float")) or (
                number(param.default, reader.file) is not None
            )
    for block in reader.function.blocks:
        found = block.definition(name, len(block.statements))
        if found is not None and names(function).bound[name] == 1:
            return is_number(reader, found.value, depth + 1)
        if _unpacks_sizes(block.statements, name):
            return True
    return False


def _unpacks_sizes(statements: object, name: str) -> bool:
    """`B, T, C = x.shape` or `x.size()`."""
    for statement in statements:  # type: ignore[attr-defined]
        match statement:
            case cst.SimpleStatementLine(
                body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))], value=value)]
            ):
                bound = [e.value.value for e in elements if isinstance(e.value, cst.Name)]
                is_shape = isinstance(value, cst.Attribute) and value.attr.value == "shape"
                is_size = (
                    isinstance(value, cst.Call)
                    and isinstance(value.func, cst.Attribute)
                    and value.func.attr.value == "size"
                    and not value.args
                )
                if name in bound and (is_shape or is_size):
                    return True
    return False


def _attribute_is_number(reader: Reader, node: cst.Attribute, depth: int) -> bool:
    """`self.scale` or `self.head_dim`, unless it is set to something made by torch."""
    cls = reader.function.cls
    if cls is None or not isinstance(node.value, cst.Name) or node.value.value != reader.function.me:
        return False
    if (value := cls.attribute(node.attr.value)) is None:
        return False
    home = next((f for f in reader.file.functions if f.node is cls.homes.get(node.attr.value)), None)
    if home is None:
        return False
    return _plain_number(Reader(reader.file, home), value, depth + 1)


def _plain_number(reader: Reader, value: cst.BaseExpression, depth: int) -> bool:
    """Arithmetic over numbers, constructor parameters and their attributes, without a call into torch."""
    if is_number(reader, value, depth):
        return True
    match value:
        case cst.Name() | cst.Attribute():
            # a size given to the constructor: `d_model`, `config.n_embd`
            return not reader.file.qualified(value)
        case cst.BinaryOperation(left=left, right=right):
            return all(_plain_number(reader, side, depth) for side in (left, right))
        case cst.Call(func=func):
            split = split_args(value.args)
            return reader.file.qualified(func) in _NUMERIC_CALLS and split is not None
    return False

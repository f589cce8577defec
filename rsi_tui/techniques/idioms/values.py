"""Recognise a function of one variable by what it computes, however it is written.

An expression of elementwise operations, constants and a single tensor variable is evaluated on
probe points with plain floats and compared with known functions. That finds GELU in every spelling
that people gave it, without a list of spellings.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import libcst as cst

from rsi_tui.techniques.idioms.ops import Place, Reader, given, number

PROBES = (-6.3, -3.1, -1.7, -0.83, -0.21, 0.0, 0.13, 0.57, 1.1, 2.3, 4.9, 7.7)
_TOLERANCE = 1e-6

_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "tanh": math.tanh,
    "erf": math.erf,
    "exp": math.exp,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
    "sqrt": math.sqrt,
    "square": lambda x: x * x,
    "relu": lambda x: max(x, 0.0),
    "log": math.log,
    "log1p": math.log1p,
    "softplus": lambda x: math.log1p(math.exp(x)),
}

KNOWN: dict[str, Callable[[float], float]] = {
    'gelu({}, approximate="tanh")': lambda x: (
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu({})": lambda x: 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))),
    "silu({})": lambda x: x / (1.0 + math.exp(-x)),
    "mish({})": lambda x: x * math.tanh(math.log1p(math.exp(x))),
}
"""call in torch.nn.functional -> what it computes"""


class _NotElementwise(Exception):
    """The expression holds something that is no elementwise function of one variable."""


def known_function(reader: Reader, node: cst.BaseExpression, place: Place) -> tuple[str, str, set[int]] | None:
    """The library call that an expression equals, its variable, and the statements it was spread over.

    None when it equals none; the call is a template with {} for the variable.
    """
    variables: set[str] = set()
    used: set[int] = set()
    try:
        values = [_value(reader, node, place, x, variables, used, 0) for x in PROBES]
    except (_NotElementwise, ValueError, OverflowError, ZeroDivisionError):
        return None
    if len(variables) != 1:
        return None
    for call, function in KNOWN.items():
        if all(math.isclose(v, function(x), rel_tol=_TOLERANCE, abs_tol=1e-9) for v, x in zip(values, PROBES, strict=True)):
            return call, variables.pop(), used
    return None


def _value(
    reader: Reader, node: cst.BaseExpression, place: Place, x: float, variables: set[str], used: set[int], depth: int
) -> float:
    if depth > 30:
        raise _NotElementwise
    if (constant := number(node, reader.file)) is not None and math.isfinite(constant):
        return constant
    if reader.file.qualified(node) == "math.pi":
        return math.pi
    if isinstance(node, cst.Name):
        found = given(place, node)
        if found is not None and _is_elementwise(reader, found.value):
            used.add(found.index)
            return _value(reader, found.value, Place(place.block, found.index), x, variables, used, depth + 1)
        variables.add(node.value)
        return x
    if isinstance(node, cst.Call) and reader.file.qualified(node.func) in ("math.sqrt", "numpy.sqrt", "math.pow"):
        inner = [_value(reader, a.value, place, x, variables, used, depth + 1) for a in node.args]
        return math.pow(*inner) if len(inner) == 2 else math.sqrt(*inner)
    op = reader.op(node)
    if op is None or op.keywords or not op.args:
        raise _NotElementwise
    values = [_value(reader, a, place, x, variables, used, depth + 1) for a in op.args]
    return _apply(op.name, values)


def _apply(name: str, values: list[float]) -> float:
    match name, values:
        case "add", [a, b]:
            return a + b
        case "sub", [a, b]:
            return a - b
        case "mul", [a, b]:
            return a * b
        case "div", [a, b]:
            return a / b
        case "neg", [a]:
            return -a
        case "pow", [a, b]:
            return math.pow(a, b)
        case function, [a] if function in _FUNCTIONS:
            return _FUNCTIONS[function](a)
    raise _NotElementwise


def _is_elementwise(reader: Reader, node: cst.BaseExpression) -> bool:
    op = reader.op(node)
    return op is not None and (op.name in ("add", "sub", "mul", "div", "neg", "pow") or op.name in _FUNCTIONS)

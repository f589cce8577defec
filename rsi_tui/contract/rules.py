"""Constraints between knobs: boolean expressions over knob names, evaluated without eval.

Allowed: names of knobs, constants, + - * / // %, comparisons (chained, `in` and `not in` too), and,
or, not, parentheses, tuples and lists. No calls, attributes, subscripts or powers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.errors import ContractError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_GRAMMAR = "knob names, constants, arithmetic, comparisons, and, or, not"


def parse_rule(rule: str, names: Collection[str]) -> ast.expr:
    """The checked syntax tree of one rule.

    Raises ValueError saying what is wrong: not an expression, something not allowed, or a name that
    is no knob.
    """
    try:
        tree = ast.parse(rule.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"an expression of {_GRAMMAR}") from error
    _check(tree, names)
    return tree


def _check(node: ast.expr, names: Collection[str]) -> None:
    match node:
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"names of knobs ({', '.join(sorted(names)) or 'there are none'}), and {name} is none")
        case ast.Constant(value=bool() | int() | float() | str()):
            pass
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, names)
            _check(right, names)
        case ast.UnaryOp(op=unary, operand=operand) if type(unary) in _UNARY:
            _check(operand, names)
        case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                _check(part, names)
        case ast.Compare(left=first, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            for part in (first, *others):
                _check(part, names)
        case _:
            raise ValueError(f"an expression of {_GRAMMAR}")


def _value(node: ast.expr, knobs: Mapping[str, KnobValue]) -> Any:
    match node:
        case ast.Name(id=name):
            return knobs[name]
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, knobs), _value(right, knobs))
        case ast.UnaryOp(op=unary, operand=operand):
            return _UNARY[type(unary)](_value(operand, knobs))
        case ast.BoolOp(op=joined, values=parts):
            return _first_decisive(isinstance(joined, ast.Or), parts, knobs)
        case ast.Compare(left=first, ops=ops, comparators=others):
            values = [_value(part, knobs) for part in (first, *others)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part, knobs) for part in parts]
    raise AssertionError(f"unchecked rule: {ast.dump(node)}")


def _first_decisive(truth: bool, parts: list[ast.expr], knobs: Mapping[str, KnobValue]) -> Any:
    """`or` (truth) and `and` (not truth) as Python has them: the first part that decides, else the last."""
    value: Any = None
    for part in parts:
        value = _value(part, knobs)
        if bool(value) is truth:
            break
    return value


def violations(contract: Contract, knobs: Mapping[str, KnobValue]) -> tuple[str, ...]:
    """The rules that these knob values break; knobs that are not given have their defaults.

    Raises ContractError for a rule that has no value here, for example a division by zero.
    """
    values = contract.defaults | dict(knobs)
    broken = []
    for rule in contract.rules:
        try:
            holds = bool(_value(parse_rule(rule, values.keys()), values))
        except (ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
            raise ContractError(
                f'workload.toml: [constraints] rules: "{rule}" has no value for these knobs ({error}); '
                "write it so that it has one for every listed value."
            ) from error
        if not holds:
            broken.append(rule)
    return tuple(broken)

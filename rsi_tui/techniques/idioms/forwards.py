"""Whether forward passes take the same way through their parameters each time."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.modules import module_classes
from rsi_tui.techniques.idioms.program import ClassView, FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import bare, walk

_CUTS = {"detach", "no_grad", "inference_mode", "requires_grad", "requires_grad_", "checkpoint", "drop_path"}
"""words that take a part of the graph away, or hide it"""


def _modules(program: Program) -> Iterator[tuple[SourceFile, ClassView, list[FunctionView]]]:
    names = module_classes(program)
    for file in program.files.values():
        for cls in file.classes.values():
            if cls.name in names:
                yield file, cls, [f for f in file.functions if f.cls is cls]


def runs_straight(program: Program) -> bool:
    """Whether no forward pass of the program's modules branches on anything but its own settings.

    False without modules of its own: what is imported can't be seen.
    """
    found = list(_modules(program))
    return bool(found) and all(
        _is_setting(node.test, function.me)
        for _, _, functions in found
        for function in functions
        if function.node.name.value != "__init__"
        for node in walk(function.node)
        if isinstance(node, cst.If | cst.IfExp | cst.While)
    )


def _is_setting(test: cst.BaseExpression, me: str) -> bool:
    """`self.x`, `not self.x`, `x is None`, or these joined: the same in each step of one loop."""
    match test:
        case cst.UnaryOperation(operator=cst.Not(), expression=inner):
            return _is_setting(inner, me)
        case cst.BooleanOperation(left=left, right=right):
            return _is_setting(left, me) and _is_setting(right, me)
        case cst.Attribute(value=cst.Name(value=owner)):
            return owner == me
        case cst.Comparison(
            left=left,
            comparisons=[cst.ComparisonTarget(operator=cst.Is() | cst.IsNot(), comparator=cst.Name(value="None"))],
        ):
            return isinstance(left, cst.Name | cst.Attribute)
    return False


def runs_everything(program: Program) -> bool:
    """Whether every module and parameter of the program's modules provably reaches what its forward pass returns.

    Only straight code counts: no branches, no values that are made and not used, nothing detached, and every
    attribute that holds a module or parameter is read by `forward` itself. A tuple returned may be used in part.
    """
    found = list(_modules(program))
    return bool(found) and all(_uses_all(*one) for one in found)


def _uses_all(file: SourceFile, cls: ClassView, functions: list[FunctionView]) -> bool:
    forward = next((f for f in functions if f.node.name.value == "forward"), None)
    if forward is None or any(isinstance(n, cst.If | cst.IfExp | cst.While | cst.Tuple | cst.Try) for n in walk(forward.node.body)):
        return False
    if any(isinstance(n, cst.Name) and n.value in _CUTS for n in walk(cls.node)):
        return False
    text = {bare(n) for n in walk(forward.node) if isinstance(n, cst.Attribute)}
    held = [name for name, values in cls.given.items() if any(_holds_parameters(v) for v in values)]
    if cls.unknown or any(f"{forward.me}.{name}" not in text for name in held):
        return False
    if any(isinstance(n, cst.Subscript) and bare(n.value).startswith(f"{forward.me}.") for n in walk(forward.node)):
        return False
    returns = [n for n in walk(forward.node) if isinstance(n, cst.Return)]
    block = forward.blocks[0]
    given = [(i, found[0]) for i, s in enumerate(block.statements) if (found := flow.assigned(s)) is not None]
    used = all(flow.value_reads(block, forward.node, name, i) > 0 for i, name in given)
    return len(returns) == 1 and used and not any(isinstance(n, cst.Expr) and not _is_text(n) for n in walk(forward.node))


def _holds_parameters(value: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.Call) for n in walk(value))


def _is_text(node: cst.Expr) -> bool:
    return isinstance(node.value, cst.SimpleString)

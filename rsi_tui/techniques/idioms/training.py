"""The loops that train: where they stand, what is made before them, and what can be put in front.

A training loop is a loop with a backward pass in its own body; one that only calls a function with a
backward pass is not one here, the loop inside that function is.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import makes_module
from rsi_tui.techniques.idioms.program import SourceFile
from rsi_tui.techniques.idioms.tree import Edits, children, code, walk

Loop = cst.For | cst.While


def is_backward(node: cst.CSTNode) -> bool:
    """Whether a node is a call of `.backward(...)`."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "backward"


def trains(node: cst.CSTNode) -> bool:
    """Whether a backward pass is run in a piece of code, nested functions and classes left out."""
    return any(is_backward(n) for n in own(node))


def own(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it but the bodies of functions, classes and lambdas."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if current is node or not isinstance(current, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            stack.extend(reversed(list(children(current))))


def owners(file: SourceFile) -> list[list[Block]]:
    """The suites of each function of a file and of the file itself, the outermost of each first."""
    return [*(f.blocks for f in file.functions), file.module_view()]


def training_loops(file: SourceFile) -> Iterator[tuple[Block, Loop]]:
    """The outermost training loop or loops of each function and of the file itself, with the suite they stand in."""
    for suites in owners(file):
        for block in suites:
            if not block.looped:
                for statement in block.statements:
                    if isinstance(statement, cst.For | cst.While) and trains(statement):
                        yield block, statement


def put_at_start(file: SourceFile, line: str, edits: Edits) -> None:
    """Put a line first in every function, or file, that holds a training loop; it must need imports of the file alone."""
    done: list[cst.CSTNode] = []
    for block, loop in training_loops(file):
        if any(block.owner is owner for owner in done):
            continue
        done.append(block.owner)
        edits.before(_first(block.owner) or loop, line)


def _first(owner: cst.CSTNode) -> cst.BaseStatement | None:
    """The first statement of a function behind its docstring; None for files and functions with imports of their own."""
    if not isinstance(owner, cst.FunctionDef) or any(isinstance(n, cst.Import | cst.ImportFrom) for n in walk(owner)):
        return None
    for statement in owner.body.body:
        match flow.small(statement):
            case cst.Expr(value=cst.SimpleString()):
                continue
        return statement if isinstance(statement, cst.BaseStatement) else None
    return None


def trained_modules(file: SourceFile, block: Block, classes: set[str]) -> dict[str, tuple[int, cst.BaseExpression]]:
    """Names of modules that a suite makes and a later statement of it trains: name -> (last statement that makes it, constructor)."""
    made: dict[str, tuple[int, cst.BaseExpression]] = {}
    for at, statement in enumerate(block.statements):
        if trains(statement):
            break
        given = flow.assigned(statement)
        if given is None:
            continue
        name, value = given
        if makes_module(file, value, classes):
            made[name] = (at, value)
        elif name in made and code(value).startswith(f"{name}."):
            # `model = model.to(device)` keeps the module
            made[name] = (at, made[name][1])
    trained = [s for s in block.statements if trains(s)]
    return {
        name: found
        for name, found in made.items()
        if any(_calls(n, name) for s in trained if s not in block.statements[: found[0]] for n in walk(s))
    }


def _calls(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == name

"""Files, statements and calls of a program by their place in the text, and what attacks call the parts they find.

Promises: positions are those of the bytes, so that edits by position keep everything else; nothing is run or imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

Loop = ast.For | ast.While


class Missing(Exception):
    """The program lacks what an attack needs."""


@dataclass(frozen=True, eq=False)
class File:
    """One file of Python, by bytes, since positions of the tree count those."""

    path: str
    data: bytes
    tree: ast.Module
    parents: Mapping[ast.AST, ast.AST]

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes that have a place, in the order of the text."""
        found = [n for n in ast.walk(self.tree) if hasattr(n, "lineno")]
        return tuple(sorted(found, key=lambda n: (n.lineno, n.col_offset)))  # type: ignore[attr-defined]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """(start, end) of a node in `data`."""
        row, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_row, end_column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self._starts[row - 1] + column, self._starts[end_row - 1] + end_column

    def text(self, node: ast.AST) -> str:
        """The node as it is written."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def line_start(self, statement: ast.stmt) -> int:
        """Start of the statement's first line, which it must have to itself."""
        start = self._starts[statement.lineno - 1]
        if self.data[start : start + statement.col_offset].strip():
            raise Missing("a statement on a line of its own")
        return start

    def line_end(self, statement: ast.stmt) -> int:
        """End of the statement's last line, its line break included."""
        return self._starts[min(int(statement.end_lineno or 1), len(self._starts) - 1)]

    def ends_line(self, at: int) -> bool:
        return at == 0 or self.data[at - 1 : at] == b"\n"

    def below_imports(self) -> int:
        """End of the first run of imports, below the docstring."""
        at = 0
        for statement in self.tree.body:
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not docstring and not isinstance(statement, (ast.Import, ast.ImportFrom)):
                break
            at = self.line_end(statement)
        return at

    def binds(self, name: str) -> bool:
        """Does an import at the top of the file bind this name?"""
        return any(
            (item.asname or item.name.split(".")[0]) == name
            for s in self.tree.body if isinstance(s, (ast.Import, ast.ImportFrom)) for item in s.names
        )

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of functions whose last name is one of these."""
        return (n for n in self.nodes if isinstance(n, ast.Call) and last(n.func) in names)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents from the inside out, up to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        return next(n for n in (node, *self.ancestors(node)) if isinstance(n, ast.stmt))

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        """The innermost function around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, ast.FunctionDef)), None)

    def loops(self, node: ast.AST) -> list[Loop]:
        """Loops of the node's own function around it, from the inside out."""
        found: list[Loop] = []
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, (ast.FunctionDef, ast.Lambda)):
                break
            if isinstance(ancestor, (ast.For, ast.While)):
                found.append(ancestor)
        return found


@dataclass(frozen=True, eq=False)
class Spot:
    """A call in a file, with the statement that it stands in."""

    file: File
    call: ast.Call

    @property
    def statement(self) -> ast.stmt:
        return self.file.statement(self.call)

    @property
    def alone(self) -> ast.stmt:
        """The statement, when it is nothing but the call. Raises Missing."""
        statement = self.statement
        if not (isinstance(statement, ast.Expr) and statement.value is self.call):
            raise Missing("a call that is a statement of its own")
        return statement

    @property
    def owner(self) -> str:
        """Text of what the method is called on."""
        if not isinstance(self.call.func, ast.Attribute):
            raise Missing("a method")
        return self.file.text(self.call.func.value)

    def argument(self, index: int) -> ast.expr:
        """A positional argument. Raises Missing."""
        if len(self.call.args) <= index or any(isinstance(a, ast.Starred) for a in self.call.args):
            raise Missing("an argument")
        return self.call.args[index]


@dataclass(frozen=True, eq=False)
class Data:
    """Where the tokens of a step come from."""

    file: File
    names: tuple[str, ...]
    """the variables that hold a step's tokens: inputs and targets, or both in one"""
    statement: ast.stmt | None
    """the assignment that fetches them; None when the loop itself does"""
    first: ast.stmt
    """first statement of the loop's body"""
    fetch: ast.expr | None
    """what is assigned: batches[step]"""


@dataclass(frozen=True, eq=False)
class Layers:
    """The loop over the layers in a forward pass."""

    file: File
    loop: ast.For
    name: str
    """the variable that holds one layer"""
    call: ast.Call
    hidden: ast.expr
    """what the layer is called on"""


def last(node: ast.AST) -> str:
    """Last part of a name: 'step' of optimizer.step, 'x' of x[0]; '' for what has none."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return last(value)
    return ""


def printed(node: ast.AST) -> str:
    """The text of an expression such as it would be printed, with 1 for each value."""
    match node:
        case ast.Constant(value=value):
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        case ast.JoinedStr(values=values):
            return "".join(printed(v) for v in values)
        case ast.BinOp(left=left, op=ast.Mod()):
            return re.sub(r"%[-+ #0]*[\d.*]*[a-zA-Z]", "1", printed(left))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return printed(left) + printed(right)
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return re.sub(r"\{[^}]*\}", "1", printed(value))
    return "1"


def read_files(sources: Mapping[str, str]) -> Iterator[File]:
    for path, text in sorted(sources.items()):
        if path.endswith(".py") and "\r" not in text and "\f" not in text:
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                continue
            parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
            yield File(path, text.encode(), tree, parents)

"""Parse, walk and edit Python text; whatever is not edited keeps every byte.

Files that libcst cannot read are left out: they are never edited, and never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import libcst as cst

Statement = cst.BaseStatement | cst.BaseSmallStatement
_LAYOUT = (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.Newline, cst.Comment)
_EMPTY = cst.Module([])
_S = TypeVar("_S", bound=cst.CSTNode)


@lru_cache(maxsize=256)
def parse(text: str) -> cst.Module | None:
    """The tree of a text, None when it is not Python that libcst reads."""
    try:
        return cst.parse_module(text)
    except (cst.ParserSyntaxError, RecursionError):
        return None


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Direct children that mean something: no whitespace, no comments."""
    return iter(_children(node))


@lru_cache(maxsize=2**17)
def _children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """Kept, because libcst copies a node to list its children, and every technique walks the same trees."""
    return tuple(child for child in node.children if not isinstance(child, _LAYOUT))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it, in order of the text."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(list(children(current))))


def code(node: cst.CSTNode) -> str:
    """Text of a node, its own parentheses included."""
    return _EMPTY.code_for_node(node)


def bare(node: cst.BaseExpression) -> str:
    """Text of an expression in one line, without outer parentheses or comments."""
    return code(_strip(node))


def operand(node: cst.BaseExpression) -> str:
    """Text of an expression that can be put into any larger one or have a method called on it."""
    simple = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Integer, cst.Float)
    return bare(node) if isinstance(node, simple) else f"({bare(node)})"


class _OneLine(cst.CSTTransformer):
    """Line breaks inside parentheses become single blanks, and comments go."""

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.BaseParenthesizableWhitespace:
        return cst.SimpleWhitespace(" ")


def _strip(node: cst.BaseExpression) -> cst.BaseExpression:
    plain = node.visit(_OneLine())
    assert isinstance(plain, cst.BaseExpression)
    return plain.with_changes(lpar=(), rpar=()) if not isinstance(plain, cst.Tuple) else plain


def same(left: cst.CSTNode, right: cst.CSTNode) -> bool:
    """Equal up to layout."""
    if isinstance(left, cst.BaseExpression) and isinstance(right, cst.BaseExpression):
        return "".join(bare(left).split()) == "".join(bare(right).split())
    return left.deep_equals(right)


def expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


@dataclass
class Edits:
    """Changes to one module, collected first and made at once."""

    module: cst.Module
    _replaced: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    _removed: set[cst.CSTNode] = field(default_factory=set)
    _before: dict[cst.CSTNode, list[cst.BaseStatement]] = field(default_factory=dict)
    _after: dict[cst.CSTNode, list[cst.BaseStatement]] = field(default_factory=dict)
    _lead: dict[cst.CSTNode, Sequence[cst.EmptyLine]] = field(default_factory=dict)
    _top: list[str] = field(default_factory=list)
    """import lines to add"""
    _defs: list[str] = field(default_factory=list)
    """helper definitions to add below the imports"""

    @property
    def empty(self) -> bool:
        return not (self._replaced or self._removed or self._before or self._after)

    def touched(self, node: cst.CSTNode) -> bool:
        return node in self._replaced or node in self._removed

    def replace(self, node: cst.CSTNode, new: cst.CSTNode | str) -> None:
        """Put an expression, or a statement given as a node, in place of another."""
        self._replaced[node] = expression(new) if isinstance(new, str) else new

    def remove(self, statement: cst.BaseStatement) -> None:
        self._removed.add(statement)

    def before(self, statement: cst.BaseStatement, *lines: str) -> None:
        self._before.setdefault(statement, []).extend(self.statements(lines))

    def after(self, statement: cst.BaseStatement, *lines: str) -> None:
        self._after.setdefault(statement, []).extend(self.statements(lines))

    def lead(self, statement: cst.BaseStatement, like: cst.BaseStatement) -> None:
        """Give a statement the empty lines and comments that stand above another one, which goes."""
        self._lead[statement] = getattr(like, "leading_lines", ())

    def statements(self, texts: Sequence[str]) -> list[cst.BaseStatement]:
        """Parsed in the module's own indentation."""
        unit, newline = self.module.default_indent, self.module.default_newline
        config = self.module.config_for_parsing
        return [cst.parse_statement(t.replace("    ", unit).replace("\n", newline), config) for t in texts]

    def import_line(self, line: str) -> None:
        if line not in self._top:
            self._top.append(line)

    def helper(self, text: str) -> None:
        """A top-level definition, put below the imports."""
        self._defs.append(text)

    def text(self) -> str:
        """The module's new text; the old one, byte for byte, when nothing was collected."""
        if self.empty:
            return self.module.code
        changed = self.module.visit(_Apply(self))
        assert isinstance(changed, cst.Module)
        return self._with_top(changed).code

    def _with_top(self, module: cst.Module) -> cst.Module:
        body = list(module.body)
        at = _end_of_imports(body)
        spaced = [_set_apart(s) for s in self.statements(self._defs)]
        rest = body[at:]
        if spaced and rest:
            rest = [_set_apart(rest[0]), *rest[1:]]
        return module.with_changes(body=[*body[:at], *self.statements(self._top), *spaced, *rest])


def _set_apart(statement: _S) -> _S:
    """The statement with at least two empty lines before it."""
    lead: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    blank = sum(1 for line in lead if line.comment is None)
    missing = [cst.EmptyLine(indent=False)] * max(0, 2 - blank)
    return statement.with_changes(leading_lines=[*missing, *lead])


def _end_of_imports(body: Sequence[cst.CSTNode]) -> int:
    """Index of the first statement after the leading docstring and imports."""
    at = 0
    for i, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        first = statement.body[0]
        is_doc = i == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        if not (is_doc or isinstance(first, cst.Import | cst.ImportFrom)):
            break
        at = i + 1
    return at


class _Apply(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self._edits = edits
        above = {child: node for node in walk(edits.module) for child in children(node)}
        self._way: set[cst.CSTNode] = set()
        """nodes that are edited or hold one that is; nothing else is visited, which is most of a file"""
        for edited in (*edits._replaced, *edits._removed, *edits._before, *edits._after, *edits._lead):
            node: cst.CSTNode | None = edited
            while node is not None and node not in self._way:
                self._way.add(node)
                node = above.get(node)

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._way

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        edits = self._edits
        if original_node in edits._removed:
            return cst.RemoveFromParent()  # type: ignore[return-value]
        node = edits._replaced.get(original_node, updated_node)
        if (lead := edits._lead.get(original_node)) is not None:
            node = node.with_changes(leading_lines=lead)
        if original_node not in edits._before and original_node not in edits._after:
            return node
        new = list(edits._before.get(original_node, []))
        if new and (above := getattr(node, "leading_lines", ())):
            # comments above a statement stay above what is put before it
            new[0] = new[0].with_changes(leading_lines=above)
            node = node.with_changes(leading_lines=())
        return cst.FlattenSentinel([*new, node, *edits._after.get(original_node, [])])  # type: ignore[return-value]


def with_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    """The call with a keyword argument added, or set anew where it is given already."""
    for i, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == name:
            changed = arg.with_changes(value=expression(value))
            return call.with_changes(args=[*call.args[:i], changed, *call.args[i + 1 :]])
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(expression(value), keyword=cst.Name(name), equal=tight)
    if not call.args:
        return call.with_changes(args=[new])
    last = call.args[-1]
    spaced = last.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return call.with_changes(args=[*call.args[:-1], spaced, new.with_changes(comma=last.comma)])


def without_keyword(call: cst.Call, name: str) -> cst.Call:
    """The call without a keyword argument."""
    kept = [a for a in call.args if a.keyword is None or a.keyword.value != name]
    if kept and len(kept) < len(call.args):
        kept[-1] = kept[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=kept)


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value given to a keyword argument."""
    return next((a.value for a in call.args if a.keyword is not None and a.keyword.value == name), None)


def is_true(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"

"""Follow names through straight-line code: what a name was last given, and who still reads it.

Everything errs on the side of 'not known': a name that is bound inside a nested statement, by
unpacking, or more than once where order is not certain has no definition here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from rsi_tui.techniques.idioms.tree import children, walk

_AUGMENTED: dict[type[cst.BaseAugOp], cst.BaseBinaryOp] = {
    cst.AddAssign: cst.Add(),
    cst.SubtractAssign: cst.Subtract(),
    cst.MultiplyAssign: cst.Multiply(),
    cst.DivideAssign: cst.Divide(),
    cst.MatrixMultiplyAssign: cst.MatrixMultiply(),
}


@dataclass(frozen=True)
class Names:
    """How often each name is bound and read in a piece of code."""

    bound: Counter[str]
    read: Counter[str]


@lru_cache(maxsize=8192)
def names(node: cst.CSTNode) -> Names:
    """Names bound and read in a node, nested functions and comprehensions included."""
    bound: Counter[str] = Counter()
    read: Counter[str] = Counter()
    _scan(node, bound, read)
    return Names(bound, read)


def _bind(target: cst.CSTNode, bound: Counter[str], read: Counter[str]) -> None:
    if isinstance(target, cst.Name):
        bound[target.value] += 1
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            _bind(element.value, bound, read)
    else:
        _scan(target, bound, read)


def _scan(node: cst.CSTNode, bound: Counter[str], read: Counter[str]) -> None:
    match node:
        case cst.Name():
            read[node.value] += 1
            return
        case cst.Attribute():
            _scan(node.value, bound, read)
            return
        case cst.Arg():
            _scan(node.value, bound, read)
            return
        case cst.AssignTarget() | cst.NamedExpr():
            _bind(node.target, bound, read)
            if isinstance(node, cst.NamedExpr):
                _scan(node.value, bound, read)
            return
        case cst.AugAssign():
            _scan(node.target, bound, read)
            _bind(node.target, bound, read)
            _scan(node.value, bound, read)
            return
        case cst.AnnAssign():
            _bind(node.target, bound, read)
            if node.value is not None:
                _scan(node.value, bound, read)
            return
        case cst.ImportAlias():
            root: cst.BaseExpression = node.asname.name if node.asname else node.name
            while isinstance(root, cst.Attribute):
                root = root.value
            _bind(root, bound, read)
            return
        case cst.FunctionDef() | cst.ClassDef():
            bound[node.name.value] += 1
        case cst.Param():
            bound[node.name.value] += 1
            if node.default is not None:
                _scan(node.default, bound, read)
            return
        case cst.For() | cst.CompFor():
            _bind(node.target, bound, read)
        case cst.AsName():
            _bind(node.name, bound, read)
            return
        case cst.Annotation():
            return
    skipped = {
        id(getattr(node, field, None))
        for field in ("name", "target")
        if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.For | cst.CompFor)
    }
    for child in children(node):
        if id(child) not in skipped:
            _scan(child, bound, read)


@dataclass(frozen=True)
class Definition:
    """What a name was given, and by which statement of its block."""

    index: int
    value: cst.BaseExpression
    """for `a *= s` the expression `a * s`, for `a.f_(x)` that call"""


@dataclass(frozen=True, eq=False)
class Block:
    """One suite of statements inside a function or module."""

    statements: Sequence[cst.BaseStatement]
    owner: cst.CSTNode
    """the function or module it belongs to"""
    looped: bool
    """inside a loop of its owner"""

    def definition(self, name: str, before: int) -> Definition | None:
        """The last straight-line assignment of a name ahead of a statement; None when not certain."""
        for index in range(before - 1, -1, -1):
            statement = self.statements[index]
            value = given_by(statement, name)
            if value is not None:
                return Definition(index, value)
            if names(statement).bound[name]:
                return None
        return None

    def rebound(self, wanted: Iterator[str] | set[str], first: int, last: int) -> bool:
        """Whether any of the names is bound by the statements first..last, both included."""
        found = set().union(*(names(s).bound for s in self.statements[first : last + 1]))
        return not found.isdisjoint(wanted)


def small(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line, None for compound statements and `a; b`."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def assigned(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """Name and value of `name = value` or `name: T = value`."""
    match small(statement):
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
            return name, value
        case cst.AnnAssign(target=cst.Name(value=name), value=cst.BaseExpression() as value):
            return name, value
    return None


def given_by(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """What a line gives a name: its value, `a * s` for `a *= s`, the call for `a.f_(x)`; None when it gives nothing."""
    if (found := assigned(statement)) is not None:
        return found[1] if found[0] == name else None
    match small(statement):
        case cst.AugAssign(target=cst.Name(value=target) as left, operator=operator, value=value) if target == name:
            binary = _AUGMENTED.get(type(operator))
            return cst.BinaryOperation(left, binary, value) if binary else None
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value=target), attr=attr)) as call):
            inplace = attr.value.endswith("_") and not attr.value.endswith("__")
            return call if target == name and inplace else None
    return None


def mutated(statement: cst.CSTNode, name: str) -> bool:
    """Whether a line changes the tensor of that name in place."""
    if assigned(statement) is not None:
        return False
    return given_by(statement, name) is not None or any(
        isinstance(target, cst.AssignTarget)
        and isinstance(target.target, cst.Subscript)
        and isinstance(target.target.value, cst.Name)
        and target.target.value.value == name
        for target in walk(statement)
    )


def blocks(owner: cst.FunctionDef | cst.Module) -> list[Block]:
    """All suites of a function or module, outermost first; nested functions and classes have their own."""
    body = owner.body.body if isinstance(owner, cst.FunctionDef) else owner.body
    found: list[Block] = []
    _collect([s for s in body if isinstance(s, cst.BaseStatement)], owner, False, found)
    return found


def _collect(statements: Sequence[cst.BaseStatement], owner: cst.CSTNode, looped: bool, found: list[Block]) -> None:
    found.append(Block(statements, owner, looped))
    for statement in statements:
        if not isinstance(statement, cst.FunctionDef | cst.ClassDef):
            _collect_inner(statement, owner, looped or isinstance(statement, cst.For | cst.While), found)


def _collect_inner(node: cst.CSTNode, owner: cst.CSTNode, looped: bool, found: list[Block]) -> None:
    for child in children(node):
        if isinstance(child, cst.IndentedBlock):
            _collect([s for s in child.body if isinstance(s, cst.BaseStatement)], owner, looped, found)
        elif not isinstance(child, cst.BaseExpression | cst.BaseSmallStatement | cst.FunctionDef | cst.ClassDef):
            _collect_inner(child, owner, looped, found)


def reads_outside(owner: cst.CSTNode, name: str, inside: Sequence[cst.CSTNode]) -> int:
    """How often a function reads a name other than in the given parts of it."""
    return names(owner).read[name] - sum(names(part).read[name] for part in inside)


def value_reads(block: Block, owner: cst.CSTNode, name: str, index: int, skip: Sequence[cst.CSTNode] = ()) -> int:
    """How often the value that a name is given by one statement can be read outside of some parts; never too low."""
    statements = block.statements

    def reads(statement: cst.CSTNode) -> int:
        inside = [part for part in skip if any(node is part for node in walk(statement))]
        return names(statement).read[name] - sum(names(part).read[name] for part in inside)

    count = 0
    for statement in statements[index + 1 :]:
        count += reads(statement)
        if given_by(statement, name) is not None:
            return count
    if block.looped:
        for statement in statements[: index + 1]:
            count += reads(statement)
            if given_by(statement, name) is not None:
                break
    return count + reads_outside(owner, name, statements)

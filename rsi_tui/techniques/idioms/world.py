"""Scopes of a program, and whether an expression is the number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.program import FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import children, code, walk

_DEPTH = 6


@dataclass(frozen=True, eq=False)
class Owner:
    """A function, or the top level of a file, with its suites."""

    file: SourceFile
    node: cst.FunctionDef | cst.Module
    blocks: list[Block]
    view: FunctionView | None
    """None for the top level"""

    @property
    def name(self) -> str:
        """Name of the function, '' for the top level."""
        return self.node.name.value if isinstance(self.node, cst.FunctionDef) else ""


@lru_cache(maxsize=64)
def owners(file: SourceFile) -> list[Owner]:
    """Every scope of a file."""
    found = [Owner(file, view.node, view.blocks, view) for view in file.functions]
    return [*found, Owner(file, file.module, file.module_view(), None)]


def own_nodes(owner: Owner) -> Iterator[cst.CSTNode]:
    """All nodes of a scope without those of functions and classes inside it."""
    stack = list(children(owner.node))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, cst.FunctionDef | cst.ClassDef):
            stack.extend(children(node))


def is_world_size(program: Program, owner: Owner, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether an expression is provably the number of processes of the default group (1 without one)."""
    if depth > _DEPTH:
        return False

    def again(inner: cst.BaseExpression) -> bool:
        return is_world_size(program, owner, inner, depth + 1)

    match node:
        case cst.Call(func=func, args=args):
            if owner.file.qualified(func) == "torch.distributed.get_world_size":
                return not args
            if isinstance(func, cst.Name) and func.value in ("int", "float") and len(args) == 1:
                return _is_environment(owner.file, args[0].value) or again(args[0].value)
            return isinstance(func, cst.Name) and _is_returned(program, func.value, depth)
        case cst.IfExp(body=body, orelse=orelse):
            return (again(body) or _is_one(body)) and (again(orelse) or _is_one(orelse)) and not _is_one(body, orelse)
        case cst.Name(value=name):
            return _is_named(program, owner, name, depth)
        case cst.Attribute(attr=cst.Name(value=name)):
            return _is_attribute(program, name, depth)
    return False


def _is_one(*nodes: cst.BaseExpression) -> bool:
    return all(isinstance(n, cst.Integer | cst.Float) and n.evaluated_value == 1 for n in nodes)


def _is_environment(file: SourceFile, node: cst.BaseExpression) -> bool:
    """`os.environ["WORLD_SIZE"]` and its like, as the launcher sets it."""
    if "WORLD_SIZE" not in code(node) or "LOCAL_WORLD_SIZE" in code(node):
        return False
    match node:
        case cst.Subscript(value=value):
            return file.qualified(value) == "os.environ"
        case cst.Call(func=func):
            return file.qualified(func) in ("os.environ.get", "os.getenv")
    return False


def given_values(owner: Owner, name: str) -> list[cst.BaseExpression] | None:
    """All values that a scope gives a name by plain assignment; None when it binds it otherwise too."""
    found: list[cst.BaseExpression] = []
    for node in own_nodes(owner):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
                found.extend(_parts(target, value, name))
            case cst.AnnAssign(target=cst.Name(value=to), value=cst.BaseExpression() as value) if to == name:
                found.append(value)
    bound = sum(_bound_by(node, name) for node in own_nodes(owner))
    return found if bound == len(found) else None


def _bound_by(node: cst.CSTNode, name: str) -> int:
    match node:
        case cst.AssignTarget(target=target) | cst.For(target=target) | cst.AugAssign(target=target):
            return flow.names(target).read[name]
        case cst.AnnAssign(target=target, value=cst.BaseExpression()) | cst.NamedExpr(target=target):
            return flow.names(target).read[name]
        case cst.AsName(name=target):
            return flow.names(target).read[name]
        case cst.Global(names=items) | cst.Nonlocal(names=items):
            return sum(i.name.value == name for i in items)
    return 0


def _parts(target: cst.BaseExpression, value: cst.BaseExpression, name: str) -> Iterator[cst.BaseExpression]:
    match target, value:
        case cst.Name(value=to), _ if to == name:
            yield value
        case cst.Tuple(elements=left), cst.Tuple(elements=right) if len(left) == len(right):
            for to_one, what in zip(left, right, strict=True):
                yield from _parts(to_one.value, what.value, name)


def _is_named(program: Program, owner: Owner, name: str, depth: int) -> bool:
    if isinstance(owner.node, cst.FunctionDef):
        params = owner.node.params
        every = [*params.posonly_params, *params.params, *params.kwonly_params]
        at = next((i for i, p in enumerate(every) if p.name.value == name), None)
        if at is not None:
            return _is_argument(program, owner, at, name, depth)
    values = given_values(owner, name)
    if values is None:
        return False
    if not values:
        if isinstance(owner.node, cst.Module):
            return False
        top = next(o for o in owners(owner.file) if o.view is None)
        return _is_named(program, top, name, depth + 1) and not _is_global_elsewhere(owner.file, name)
    known = [is_world_size(program, owner, v, depth + 1) for v in values]
    return any(known) and all(k or _is_one(v) for k, v in zip(known, values, strict=True))


def _is_global_elsewhere(file: SourceFile, name: str) -> bool:
    return any(isinstance(n, cst.NameItem) and n.name.value == name for n in walk(file.module))


def _is_argument(program: Program, owner: Owner, at: int, name: str, depth: int) -> bool:
    """Whether every caller of a function hands it the world size there."""
    assert isinstance(owner.node, cst.FunctionDef)
    method = owner.view is not None and owner.view.cls is not None
    known: list[bool] = []
    for file in program.files.values():
        for caller in owners(file):
            for node in own_nodes(caller):
                if not isinstance(node, cst.Call) or code(node.func).split(".")[-1] != owner.name:
                    continue
                given = _argument(node, at - method, name)
                known.append(given is not None and is_world_size(program, caller, given, depth + 1))
    return bool(known) and all(known)


def _argument(call: cst.Call, at: int, name: str) -> cst.BaseExpression | None:
    for i, arg in enumerate(call.args):
        if arg.star:
            return None
        if (arg.keyword is not None and arg.keyword.value == name) or (arg.keyword is None and i == at):
            return arg.value
    return None


def _is_attribute(program: Program, name: str, depth: int) -> bool:
    """`args.world_size`, `self.world`: every assignment to an attribute of that name gives the world size."""
    known: list[bool] = []
    for file in program.files.values():
        for owner in owners(file):
            for node in own_nodes(owner):
                match node:
                    case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
                        for given in _attribute_parts(target, value, name):
                            known.append(is_world_size(program, owner, given, depth + 1))
                    case cst.AugAssign(target=cst.Attribute(attr=cst.Name(value=to))) if to == name:
                        known.append(False)
    return bool(known) and all(known)


def _attribute_parts(target: cst.BaseExpression, value: cst.BaseExpression, name: str) -> Iterator[cst.BaseExpression]:
    match target, value:
        case cst.Attribute(attr=cst.Name(value=to)), _ if to == name:
            yield value
        case cst.Tuple(elements=left), cst.Tuple(elements=right) if len(left) == len(right):
            for to_one, what in zip(left, right, strict=True):
                yield from _attribute_parts(to_one.value, what.value, name)


def _is_returned(program: Program, name: str, depth: int) -> bool:
    """Whether the only function of that name returns nothing but the world size."""
    found = [o for f in program.files.values() for o in owners(f) if o.name == name]
    if len(found) != 1:
        return False
    values = [n.value for n in own_nodes(found[0]) if isinstance(n, cst.Return)]
    known = [v is not None and is_world_size(program, found[0], v, depth + 1) for v in values]
    ones = [v is not None and _is_one(v) for v in values]
    return any(known) and all(k or o for k, o in zip(known, ones, strict=True))

"""Whether statements change a tensor where it lies, at any depth; errs on the side of 'yes'."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from rsi_tui.techniques.idioms.tree import walk


def changed_in_place(statements: Sequence[cst.CSTNode], name: str) -> bool:
    """Whether anything in the statements writes into the tensor of that name: `x[i] = v`, `x += v`, `x.f_(v)`, `f(out=x)`."""
    return any(_changes(node, name) for statement in statements for node in walk(statement))


def _changes(node: cst.CSTNode, name: str) -> bool:
    match node:
        case cst.AssignTarget(target=cst.Subscript(value=owner)) | cst.AugAssign(target=cst.Subscript(value=owner)):
            return _is(owner, name)
        case cst.AugAssign(target=owner):
            return _is(owner, name)
        case cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(value=method))) if (
            method.endswith("_") and not method.endswith("__")
        ):
            return _is(owner, name)
        case cst.Arg(keyword=cst.Name(value="out"), value=owner):
            return _is(owner, name)
    return False


def _is(node: cst.CSTNode, name: str) -> bool:
    """The name itself, or a view of it: `x[0]`, `x.data`, `x.view(-1)`."""
    while isinstance(node, cst.Subscript | cst.Attribute | cst.Call):
        node = node.func if isinstance(node, cst.Call) else node.value
    return isinstance(node, cst.Name) and node.value == name

"""Rules for parts that are left out: of the loss, of the layers, of the gradients, of the optimizer's state.

Each rule lists suspects of one program; only those that are new become findings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rsi_tui.loop.review_rules.escapes import suspect
from rsi_tui.loop.review_rules.source import (
    FUNCTIONS,
    Program,
    Source,
    Suspect,
    is_optimizer,
    is_update,
    last,
    names_in,
)

LOSS_CALL = re.compile(r"(?:.*\.)?(?:cross_entropy|nll_loss)")


def shortens(part: ast.Slice) -> bool:
    """`[:n]`, `[n:]` and `[::k]` leave something out; `[:-1]`, `[1:]` and `[i:j]` are how tokens are shifted and chunked."""
    if part.step is not None:
        return True
    lower = None if isinstance(part.lower, ast.Constant) and part.lower.value == 0 else part.lower
    if (lower is None) == (part.upper is None):
        return False
    return _bound(part) not in ("1", "-1")


def _bound(part: ast.Slice) -> str:
    return "".join(ast.unparse(b) for b in (part.lower, part.upper) if b is not None)


def has_other_half(source: Source, node: ast.Subscript, part: ast.Slice) -> bool:
    """x[:n] beside x[n:], as rotary embeddings do, leaves nothing out."""
    around = source.function(node) or source.tree
    for other in ast.walk(around):
        if isinstance(other, ast.Subscript) and ast.unparse(other.value) == ast.unparse(node.value):
            for its in ast.walk(other.slice):
                if isinstance(its, ast.Slice) and (its.lower is None) != (part.lower is None) and _bound(its) == _bound(part):
                    return True
    return False


def shortened_losses(program: Program) -> Iterator[Suspect]:
    """A loss that is given a part of its scores or targets, whatever they are called."""
    for source in program.sources:
        for call, name in source.calls():
            if not LOSS_CALL.fullmatch(name) or not program.on_path(source, call):
                continue
            for node in (n for a in call.args for n in ast.walk(a) if isinstance(n, ast.Subscript)):
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                if any(isinstance(p, ast.Slice) and shortens(p) and not has_other_half(source, node, p) for p in parts):
                    yield suspect(source, node, "token_subset", "exploit", "It takes the loss of a part only.")


def filtered_layers(program: Program) -> Iterator[Suspect]:
    """A loop over layers that goes over those that meet a condition."""
    for source in program.sources:
        for node in source.nodes:
            if not (isinstance(node, ast.For) and isinstance(node.iter, (ast.ListComp, ast.GeneratorExp))):
                continue
            runs = {last(n.func) for s in node.body for n in ast.walk(s) if isinstance(n, ast.Call)} & names_in(node.target)
            if runs and any(g.ifs for g in node.iter.generators) and any(a in program.forward for a in source.ancestors(node)):
                yield suspect(source, node.iter, "part_of_loop", "exploit", "It loops over a part only.")


def dropped_gradients(program: Program) -> Iterator[Suspect]:
    """Gradients that are cleared or overwritten by a constant between the backward pass and the update."""
    for source in program.sources:
        for function in (n for n in source.nodes if isinstance(n, FUNCTIONS)):
            updates = [n for n in ast.walk(function) if isinstance(n, ast.Call) and is_update(source, n)]
            begins = [n.lineno for n in updates if last(n.func) == "backward"]
            ends = [n.lineno for n in updates if last(n.func) == "step"]
            if not begins or not ends:
                continue
            for node in ast.walk(function):
                if min(begins) < getattr(node, "lineno", 0) < max(ends) and _drops(function, node):
                    yield suspect(source, node, "dropped_gradient", "exploit", "It throws gradients away before the update.")


def _drops(function: ast.AST, node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Attribute(attr="grad")], value=ast.Constant()):
            return True
        case ast.Call(func=ast.Attribute(attr="zero_", value=owner)):
            return _is_gradient(function, owner)
        case ast.Assign(targets=[ast.Subscript(value=owner)], value=ast.Constant()):
            return _is_gradient(function, owner)
    return False


def _is_gradient(function: ast.AST, node: ast.AST) -> bool:
    """x.grad, a part of it, or a name that stands for it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr == "grad"
    return isinstance(node, ast.Name) and any(
        isinstance(n, ast.Assign) and isinstance(n.value, ast.Attribute) and n.value.attr == "grad"
        and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets) for n in ast.walk(function)
    )


def optimizer_state(program: Program) -> Iterator[Suspect]:
    """Moments, counters and groups of the optimizer, reached from outside it."""
    for source in program.sources:
        for node in source.nodes:
            match node:
                case ast.Attribute(value=owner, attr="state") if is_optimizer(source, owner):
                    yield suspect(source, source.parents[node], "optimizer_state", "exploit", "It reaches into the optimizer's state.")
                case ast.Call(func=ast.Attribute(value=owner, attr="add_param_group")) if is_optimizer(source, owner):
                    yield suspect(source, node, "optimizer_state", "exploit", "It moves parameters to another group.")


SCANS = (shortened_losses, filtered_layers, dropped_gradients, optimizer_state)

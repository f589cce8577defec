"""Is the future still hidden from attention? What hides it may change its name and its form, not vanish.

A mask is whatever is called one, and whatever a mask is put into: `bias = torch.full(...).triu(1)`, kept by
`register_buffer("bias", bias)` and added to the scores, masks as `masked_fill` did. A triangle of zeros does not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rsi_tui.loop.review_rules.source import Program, Source, Suspect, last, strings_in

ATTENDS = re.compile(r"softmax|attention")
MASKS = re.compile(r"mask|causal|tril|triu", re.I)
_HIDES = re.compile(r"inf|finfo|ones|full|arange|lt|gt|le|ge|bool|logical_not|masked_fill|generate_square_subsequent_mask", re.I)
"""words of an expression that can be a mask: it says how much is hidden, or where"""
_TRIANGLES = ("triu", "tril", "triu_", "tril_")


def causality(before: Program, after: Program) -> Iterator[Suspect]:
    """A forward pass that used a mask or causal attention and no longer does."""
    old, new = _uses(before), _uses(after)
    attends = {place_of(s, c) for s in after.sources for c, _ in s.calls() if ATTENDS.search(last(c.func))}
    # a router's softmax attends to nothing, and its masks say which tokens an expert gets
    routes = {place_of(s, c) for s in before.sources for c, _ in s.calls() if last(c.func) == "topk"}
    bare = _functions(old) & attends - _functions(new) - routes
    if old and (not new or bare):
        source, node = next(((s, n) for s, n in old if place_of(s, n) in bare), old[-1])
        function = source.function(node)
        line = next((f.lineno for s, f in after.functions if function and f.name == function.name and s.path == source.path), 1)
        yield Suspect("causality", "exploit", source.path, line, "mask", "The forward pass no longer masks what lies ahead.")


def place_of(source: Source, node: ast.AST) -> tuple[str, str]:
    """Class and function that a node stands in."""
    around, function = source.class_of(node), source.function(node)
    return around.name if around else "", function.name if function else ""


def _functions(found: list[tuple[Source, ast.AST]]) -> set[tuple[str, str]]:
    return {place_of(s, n) for s, n in found}


def _uses(program: Program) -> list[tuple[Source, ast.AST]]:
    """Where the forward pass names a mask."""
    carriers = _carriers(program)
    found: list[tuple[Source, ast.AST]] = []
    for source in program.sources:
        for node in source.nodes:
            word = node.arg or "" if isinstance(node, ast.keyword) else last(node)
            absent = isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and not node.value.value
            stored = isinstance(getattr(node, "ctx", None), ast.Store)
            named = MASKS.search(word) or (word in carriers and not stored and not isinstance(node, ast.keyword))
            if named and not absent and any(a in program.forward for a in source.ancestors(node)):
                found.append((source, node))
    return found


def _carriers(program: Program) -> set[str]:
    """Names that hold a mask though they don't say so."""
    given = [pair for source in program.sources for node in source.nodes for pair in _bindings(node)]
    found: set[str] = set()
    while True:
        more = {name for name, value in given if _is_mask(value, found)} - found
        if not more:
            return found
        found |= more


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of an assignment or of a registered buffer."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((last(target), value) for target in targets if isinstance(target, ast.Name | ast.Attribute))
        case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[name, value, *_]):
            yield from ((text, value) for text in strings_in(name))


def _is_mask(value: ast.expr, carriers: set[str]) -> bool:
    """Is it made as a mask, or is it one in another shape, device or type?"""
    match value:
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return last(value) in carriers or bool(MASKS.search(last(value)))
        case ast.Compare(left=inner) | ast.UnaryOp(operand=inner):
            return _is_mask(inner, carriers)
        case ast.BinOp(left=left, right=right):
            return _is_mask(left, carriers) or _is_mask(right, carriers)
        case ast.Call(func=function):
            words = {last(n) for n in ast.walk(value)} | strings_in(value)
            if any(MASKS.search(word) for word in words):
                return any(_HIDES.fullmatch(word.lstrip("-")) or (MASKS.search(word) and word not in _TRIANGLES) for word in words)
            return isinstance(function, ast.Attribute) and _is_mask(function.value, carriers)
    return False

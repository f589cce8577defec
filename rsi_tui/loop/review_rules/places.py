"""Where a value comes from, as far as the text tells: constants, names and calls behind an expression."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from rsi_tui.loop.review_rules.source import Function, Program, Source, last

MOST_STEPS = 100


@dataclass(frozen=True)
class Origin:
    """What an expression is made of, through variables and the arguments of the program's own functions."""

    strings: frozenset[str]
    names: frozenset[str]
    """last parts of names and attributes"""
    calls: frozenset[str]
    """last parts of what is called"""


def origin(program: Program, source: Source, node: ast.AST) -> Origin:
    """What is behind an expression; after many steps it ends where it is."""
    strings: set[str] = set()
    names: set[str] = set()
    calls: set[str] = set()
    waiting, seen = [(source, node)], {node}
    while waiting and len(seen) < MOST_STEPS:
        at, top = waiting.pop()
        for part in ast.walk(top):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                strings.add(part.value)
            elif isinstance(part, (ast.Name, ast.Attribute)):
                names.add(last(part))
                if isinstance(part.ctx, ast.Load):
                    waiting += [step for step in _behind(program, at, part) if step[1] not in seen]
                    seen.update(step[1] for step in waiting)
            elif isinstance(part, ast.Call):
                calls.add(last(part.func))
    return Origin(frozenset(strings), frozenset(names), frozenset(calls))


def makers(program: Program, source: Source, node: ast.expr, deep: int = 5) -> frozenset[str]:
    """Names of all that is called to make a value, as `Store` behind `store = Store(out)`; '?' stands for what is no call."""
    if isinstance(node, ast.Call):
        return frozenset({last(node.func)})
    steps = list(_behind(program, source, node)) if deep and isinstance(node, (ast.Name, ast.Attribute)) else []
    found = [makers(program, at, value, deep - 1) if isinstance(value, ast.expr) else frozenset("?") for at, value in steps]
    return frozenset().union(*found) if found else frozenset("?")


def _behind(program: Program, source: Source, node: ast.Name | ast.Attribute) -> Iterator[tuple[Source, ast.AST]]:
    """The expressions that a name stands for."""
    yield from ((source, value) for value in source.bound(node))
    if isinstance(node, ast.Name) and "." in source.aliases.get(node.id, ""):
        module, _, name = source.aliases[node.id].rpartition(".")
        for other in program.sources:
            if other.path.removesuffix(".py").replace("/", ".").endswith(module):
                yield from ((other, value) for value in other.bound(ast.Name(name)))
    function = source.function(node)
    if isinstance(node, ast.Name) and function is not None:
        position = _position(function, node.id)
        if position is not None:
            yield from ((source, value) for value in _defaults(function, node.id))
            for other, call in program.calls_of.get(function.name, ()):
                given = [k.value for k in call.keywords if k.arg == node.id] or call.args[position : position + 1]
                yield from ((other, value) for value in given)


def _position(function: Function, name: str) -> int | None:
    """Which positional argument of a call a parameter is, beyond all where it is given by name only; None for no parameter."""
    plain = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name in plain:
        return plain.index(name) - (plain[0] in ("self", "cls"))
    return 10**6 if name in {a.arg for a in function.args.kwonlyargs} else None


def _defaults(function: Function, name: str) -> Iterator[ast.expr]:
    plain = [*function.args.posonlyargs, *function.args.args]
    pairs = [*zip(reversed(plain), reversed(function.args.defaults), strict=False),
             *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]  # fmt: skip
    yield from (default for arg, default in pairs if arg.arg == name and default is not None)

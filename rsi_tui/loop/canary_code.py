"""Changes of canaries: text that does nothing, or wastes a known share of a step. Texts in, texts out.

A no-op changes a file's syntax tree and not what the program does, so that no comparison of texts or trees can
tell it from a real change: only measuring can. It is put into one place of one editable Python file, chosen by
the caller's randomness. Not touched: functions with decorators, functions that look at their own names, and
imports whose order could matter.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping

import libcst as cst

from rsi_tui.techniques.idioms.tree import Edits, parse, walk

SLOWER = 0.02
"""share of a step that a known-slower canary wastes"""
_LOOKS_AT_ITSELF = frozenset({"locals", "vars", "dir", "eval", "exec", "globals", "inspect", "_getframe"})
_REAL, _WHOLE = "1.5", "1"
_PERCENT = re.compile(r"%(?:\(\w+\))?[-+ #0]*[\d*]*(?:\.\d+)?([diouxXeEfFgGrsa])")
_BRACES = re.compile(r"\{([^{}]*)\}")


def no_op(sources: Mapping[str, str], chance: random.Random) -> dict[str, str] | None:
    """One file, with a change in it that does nothing; None when no file has a place for any."""
    kinds, paths = list(KINDS), sorted(path for path in sources if path.endswith(".py"))
    chance.shuffle(kinds)
    chance.shuffle(paths)
    for kind in kinds:
        for path in paths:
            module = parse(sources[path])
            text = kind(module, chance) if module is not None else None
            if text is not None and _is_change(sources[path], text):
                return {path: text}
    return None


def slower(sources: Mapping[str, str], progress: str, seconds: float) -> dict[str, str] | None:
    """The file whose loop prints the progress lines, with `seconds` of busy waiting in each turn; None when none is found."""
    for path in sorted(sources):
        module = parse(sources[path]) if path.endswith(".py") else None
        loop = progress_loop(module, progress) if module is not None else None
        if module is None or loop is None or not isinstance(loop.body, cst.IndentedBlock):
            continue
        edits = Edits(module)
        name, clock = _fresh(module, "_until"), '__import__("time").perf_counter()'
        edits.before(_first(loop.body.body), f"{name} = {clock} + {seconds:.6g}", f"while {clock} < {name}:\n    pass")
        return {path: edits.text()}
    return None


def progress_loop(module: cst.Module, progress: str) -> cst.For | cst.While | None:
    """The innermost loop with a call whose text would match the contract's pattern of progress lines."""
    pattern = re.compile(progress)
    for call, loop in _calls_in_loops(module, None):
        for real, whole in ((_REAL, _WHOLE), (_WHOLE, _WHOLE), (_REAL, _REAL)):
            text = " ".join(_sample(arg.value, real, whole) for arg in call.args if arg.keyword is None)
            if pattern.search(text):
                return loop
    return None


# --- changes that do nothing ---------------------------------------------------------------------------


def unused_assignment(module: cst.Module, chance: random.Random) -> str | None:
    """A name that nobody reads, at a function's start."""
    return _at_start(module, chance, f"{_fresh(module, '_unused')} = {chance.randrange(100)}")


def dead_branch(module: cst.Module, chance: random.Random) -> str | None:
    """A branch that is never taken, at a function's start."""
    return _at_start(module, chance, "if False:\n    pass")


def redundant_pass(module: cst.Module, chance: random.Random) -> str | None:
    """A `pass` among statements, at a function's start."""
    return _at_start(module, chance, "pass")


def redundant_else(module: cst.Module, chance: random.Random) -> str | None:
    """An `else` that holds nothing, at an `if` that has none."""
    found = [n for function in _functions(module) for n in walk(function) if isinstance(n, cst.If) and n.orelse is None]
    if not found:
        return None
    chosen, edits = chance.choice(found), Edits(module)
    nothing = cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[cst.Pass()])])
    edits.replace(chosen, chosen.with_changes(orelse=cst.Else(body=nothing)))
    return edits.text()


def renamed_local(module: cst.Module, chance: random.Random) -> str | None:
    """Another name for a variable of a function, wherever the function uses it."""
    found = [(function, name) for function in _functions(module) for name in sorted(_plain_locals(function))]
    if not found:
        return None
    function, name = chance.choice(found)
    renamed = function.visit(_Rename(name, _fresh(module, f"{name}_")))
    edits = Edits(module)
    edits.replace(function, renamed)  # type: ignore[arg-type]
    return edits.text()


def swapped_imports(module: cst.Module, chance: random.Random) -> str | None:
    """Two neighbouring imports of the standard library in the other order."""
    lines = [s for s in module.body if isinstance(s, cst.SimpleStatementLine)]
    neighbours = [(a, b) for a, b in zip(module.body, module.body[1:], strict=False) if a in lines and b in lines]
    found = [(a, b) for a, b in neighbours if _standard(a) and _standard(b) and _standard(a) != _standard(b)]
    if not found:
        return None
    (first, second), edits = chance.choice(found), Edits(module)
    edits.replace(first, second)
    edits.replace(second, first)
    return edits.text()


KINDS: tuple[Callable[[cst.Module, random.Random], str | None], ...] = (
    unused_assignment,
    dead_branch,
    redundant_pass,
    redundant_else,
    renamed_local,
    swapped_imports,
)


# --- pieces --------------------------------------------------------------------------------------------


def _is_change(before: str, after: str) -> bool:
    """Does the new text parse, to another tree?"""
    try:
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    except (SyntaxError, ValueError):
        return False


def _functions(module: cst.Module) -> list[cst.FunctionDef]:
    """Functions that may be changed, in the order of the text."""
    return [
        node
        for node in walk(module)
        if isinstance(node, cst.FunctionDef)
        and isinstance(node.body, cst.IndentedBlock)
        and not node.decorators
        and not any(isinstance(part, cst.Name) and part.value in _LOOKS_AT_ITSELF for part in walk(node))
    ]


def _at_start(module: cst.Module, chance: random.Random, statement: str) -> str | None:
    """The statement put first into a function, below its docstring; None without a function."""
    functions = _functions(module)
    if not functions:
        return None
    body, edits = chance.choice(functions).body.body, Edits(module)
    first = _first(body)
    if isinstance(first, cst.SimpleStatementLine) and _is_text(first):
        edits.after(first, statement)
    else:
        edits.before(first, statement)
    return edits.text()


def _first(body: object) -> cst.BaseStatement:
    """The first statement of an indented block."""
    assert isinstance(body, list | tuple) and isinstance(body[0], cst.BaseStatement)
    return body[0]


def _is_text(line: cst.SimpleStatementLine) -> bool:
    first = line.body[0]
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString | cst.ConcatenatedString)


def _fresh(module: cst.Module, stem: str) -> str:
    """A name that stands nowhere in the module."""
    taken = {node.value for node in walk(module) if isinstance(node, cst.Name)}
    return next(name for name in (stem, *(f"{stem}{n}" for n in range(len(taken) + 1))) if name not in taken)


def _plain_locals(function: cst.FunctionDef) -> set[str]:
    """Variables that only plain assignments bind, in a function where no name means two things."""
    inner = [node for node in walk(function) if node is not function]
    nested = (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.CompFor, cst.Global, cst.Nonlocal, cst.Match, cst.Import, cst.ImportFrom, cst.NamedExpr)
    shows_name = any(isinstance(node, cst.FormattedStringExpression) and node.equal is not None for node in inner)
    if shows_name or any(isinstance(node, nested) for node in inner):
        return set()
    bound = {
        target.target.value
        for node in inner
        if isinstance(node, cst.Assign)
        for target in node.targets
        if isinstance(target.target, cst.Name)
    }
    signature = [function.params, *([function.returns] if function.returns else [])]
    return bound - {node.value for part in signature for node in walk(part) if isinstance(node, cst.Name)}


class _Rename(cst.CSTTransformer):
    """One variable's new name; attributes and keywords of that name are something else."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__()
        self._old, self._new = old, new
        self._kept: set[cst.CSTNode] = set()

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._kept.add(node.attr)

    def visit_Arg_keyword(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self._kept.add(node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        if original_node.value != self._old or original_node in self._kept:
            return updated_node
        return updated_node.with_changes(value=self._new)


def _standard(line: cst.BaseStatement) -> str:
    """The module that a line imports by its own name from the standard library; '' for any other line."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1 or not isinstance(line.body[0], cst.Import):
        return ""
    names = line.body[0].names
    if len(names) != 1 or names[0].asname is not None or not isinstance(names[0].name, cst.Name):
        return ""
    name = names[0].name.value
    return name if name in sys.stdlib_module_names else ""


def _calls_in_loops(
    node: cst.CSTNode, loop: cst.For | cst.While | None
) -> Iterator[tuple[cst.Call, cst.For | cst.While]]:
    """Calls with the innermost loop around them, within their own function."""
    if isinstance(node, cst.Call) and loop is not None:
        yield node, loop
    if isinstance(node, cst.For | cst.While):
        loop = node
    elif isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        loop = None
    for child in node.children:
        yield from _calls_in_loops(child, loop)


def _sample(node: cst.BaseExpression, real: str, whole: str) -> str:
    """A text as this expression could print it, a number for whatever is not written out."""
    match node:
        case cst.SimpleString():
            value = node.evaluated_value
            return _filled(value, real, whole) if isinstance(value, str) else whole
        case cst.ConcatenatedString(left=left, right=right):
            return _sample(left, real, whole) + _sample(right, real, whole)
        case cst.FormattedString(parts=parts):
            return "".join(_part(part, real, whole) for part in parts)
        case cst.BinaryOperation(left=left, operator=cst.Modulo()):
            return _sample(left, real, whole)
        case cst.BinaryOperation(left=left, operator=cst.Add(), right=right):
            return _sample(left, real, whole) + _sample(right, real, whole)
        case cst.Call(func=cst.Attribute(value=cst.SimpleString() as text, attr=cst.Name(value="format"))):
            return _sample(text, real, whole)
    return whole


def _part(part: cst.BaseFormattedStringContent, real: str, whole: str) -> str:
    if isinstance(part, cst.FormattedStringText):
        return part.value
    spec = part.format_spec if isinstance(part, cst.FormattedStringExpression) else None
    shown = "".join(s.value for s in spec if isinstance(s, cst.FormattedStringText)) if spec else ""
    return real if shown[-1:] in "eEfFgG" and shown else whole


def _filled(text: str, real: str, whole: str) -> str:
    """Placeholders of `%` and `format` as numbers."""
    text = _PERCENT.sub(lambda m: real if m[1] in "eEfFgG" else whole, text)
    return _BRACES.sub(lambda m: real if m[1][-1:] in ("e", "f", "g") and ":" in m[1] else whole, text)

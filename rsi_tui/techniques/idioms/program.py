"""A training program as codemods see it: files with their imports, classes, functions.

Nothing is executed. Attribute facts hold for `self.X` of the class they are read from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from rsi_tui.techniques.base import Sources
from rsi_tui.techniques.idioms.flow import Block, blocks
from rsi_tui.techniques.idioms.tree import Edits, parse, walk

FUNCTIONAL = "torch.nn.functional"


@dataclass(frozen=True, eq=False)
class ClassView:
    """One class: what its methods assign to self."""

    name: str
    node: cst.ClassDef
    given: Mapping[str, tuple[cst.BaseExpression, ...]]
    """attribute -> values assigned or registered, in order of the text"""
    unknown: frozenset[str]
    """attributes also bound in ways that can't be read"""
    homes: Mapping[str, cst.FunctionDef]
    """attribute -> method that assigns it"""

    def attribute(self, name: str) -> cst.BaseExpression | None:
        """The only value `self.name` is ever given; None when there are several or none."""
        values = self.given.get(name, ())
        return values[0] if len(values) == 1 and name not in self.unknown else None


@dataclass(frozen=True, eq=False)
class FunctionView:
    """One function and the class it is a method of."""

    node: cst.FunctionDef
    cls: ClassView | None
    blocks: list[Block]

    @property
    def me(self) -> str:
        """Name of the first parameter of a method, usually self; '' for functions."""
        params = self.node.params.params
        return params[0].name.value if self.cls is not None and params else ""


@dataclass(eq=False)
class SourceFile:
    """One readable file."""

    path: str
    text: str
    module: cst.Module
    imports: dict[str, str] = field(default_factory=dict)
    """name in this file -> qualified name"""
    classes: dict[str, ClassView] = field(default_factory=dict)
    functions: list[FunctionView] = field(default_factory=list)

    def edits(self) -> Edits:
        return Edits(self.module)

    def qualified(self, node: cst.CSTNode) -> str:
        """Dotted name by the file's imports, '' when the root is not an import."""
        parts: list[str] = []
        while isinstance(node, cst.Attribute):
            parts.append(node.attr.value)
            node = node.value
        if not isinstance(node, cst.Name) or node.value not in self.imports:
            return ""
        return ".".join([self.imports[node.value], *reversed(parts)])

    def spell(self, qualified: str, edits: Edits) -> str:
        """A text that names a torch object here, adding an import when the file has none for it."""
        best = ""
        for alias, target in self.imports.items():
            if qualified == target or qualified.startswith(target + "."):
                spelled = alias + qualified[len(target) :]
                best = spelled if not best or len(spelled) < len(best) else best
        if not best:
            edits.import_line("import torch")
            best = qualified
        return best

    def function(self, name: str) -> FunctionView | None:
        """The only plain function of that name."""
        found = [f for f in self.functions if f.cls is None and f.node.name.value == name]
        return found[0] if len(found) == 1 else None

    def module_view(self) -> list[Block]:
        return blocks(self.module)


@dataclass(eq=False)
class Program:
    """All editable files that can be read."""

    files: dict[str, SourceFile]

    @staticmethod
    def read(sources: Sources) -> Program:
        views = {path: _view(path, sources[path]) for path in sorted(sources)}
        return Program({path: view for path, view in views.items() if view is not None})

    def classes(self) -> Iterator[ClassView]:
        return (cls for file in self.files.values() for cls in file.classes.values())

    def calls_anywhere(self, *fragments: str) -> bool:
        """Whether any file mentions one of the words as code."""
        return any(
            isinstance(node, cst.Name) and node.value in fragments
            for file in self.files.values()
            for node in walk(file.module)
        )


@lru_cache(maxsize=128)
def _view(path: str, text: str) -> SourceFile | None:
    """The file read; kept, because techniques look at the same text one after the other."""
    if (module := parse(text)) is None:
        return None
    file = SourceFile(path, text, module)
    _read_imports(module, file.imports)
    _read_suite(module, None, file)
    return file


def _dotted(node: cst.CSTNode | None) -> str:
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    return ".".join([node.value, *reversed(parts)]) if isinstance(node, cst.Name) else ""


def _read_imports(module: cst.Module, imports: dict[str, str]) -> None:
    for node in walk(module):
        if isinstance(node, cst.Import):
            for alias in node.names:
                name = _dotted(alias.name)
                imports[_dotted(alias.asname.name) if alias.asname else name.split(".")[0]] = (
                    name if alias.asname else name.split(".")[0]
                )
        elif isinstance(node, cst.ImportFrom) and not node.relative and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                name = _dotted(alias.name)
                imports[_dotted(alias.asname.name) if alias.asname else name] = f"{_dotted(node.module)}.{name}"


def _read_suite(node: cst.CSTNode, cls: ClassView | None, file: SourceFile) -> None:
    for child in walk(node) if cls is None else _methods(node):
        if child is node:
            continue
        if isinstance(child, cst.ClassDef):
            view = _class_view(child)
            file.classes[view.name] = view
            _read_suite(child, view, file)
        elif isinstance(child, cst.FunctionDef) and (cls is not None or not _is_method(child, file)):
            file.functions.append(FunctionView(child, cls, blocks(child)))


def _methods(cls: cst.CSTNode) -> Iterator[cst.CSTNode]:
    assert isinstance(cls, cst.ClassDef)
    return (s for s in cls.body.body if isinstance(s, cst.FunctionDef))


def _is_method(node: cst.FunctionDef, file: SourceFile) -> bool:
    return any(f.node is node for f in file.functions)


def _class_view(node: cst.ClassDef) -> ClassView:
    given: dict[str, list[cst.BaseExpression]] = {}
    homes: dict[str, cst.FunctionDef] = {}
    unknown: set[str] = set()
    for method in _methods(node):
        assert isinstance(method, cst.FunctionDef)
        if not method.params.params:
            continue
        me = method.params.params[0].name.value
        for part in walk(method):
            _read_attribute(part, me, given, unknown)
        for name in given:
            homes.setdefault(name, method)
    frozen = {name: tuple(values) for name, values in given.items()}
    return ClassView(node.name.value, node, frozen, frozenset(unknown), homes)


def _read_attribute(
    node: cst.CSTNode, me: str, given: dict[str, list[cst.BaseExpression]], unknown: set[str]
) -> None:
    match node:
        case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value) if name := _of(target, me):
            given.setdefault(name, []).append(value)
        case cst.AnnAssign(target=target, value=cst.BaseExpression() as value) if name := _of(target, me):
            given.setdefault(name, []).append(value)
        case cst.Assign(
            targets=[cst.AssignTarget(target=cst.Tuple(elements=left))], value=cst.Tuple(elements=right)
        ) if len(left) == len(right):
            for to, what in zip(left, right, strict=True):
                if name := _of(to.value, me):
                    given.setdefault(name, []).append(what.value)
        case cst.Assign(targets=targets):
            for each in targets:
                parts = [e.value for e in each.target.elements] if isinstance(each.target, cst.Tuple) else [each.target]
                unknown.update(n for part in parts if (n := _of(part, me)))
        case cst.AugAssign(target=target) if name := _of(target, me):
            unknown.add(name)
        case cst.Call(func=func, args=[cst.Arg(value=cst.SimpleString() as key), cst.Arg(value=value), *_]) if (
            _of(func, me) == "register_buffer"
        ):
            given.setdefault(str(key.evaluated_value), []).append(value)


def _of(node: cst.CSTNode, me: str) -> str:
    match node:
        case cst.Attribute(value=cst.Name(value=owner), attr=cst.Name(value=name)) if owner == me:
            return name
    return ""

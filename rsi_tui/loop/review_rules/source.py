"""A program as the rules see it: syntax trees without comments, docstrings and the names of its variables.

A *suspect* is a piece of code that would be questionable if it were new. Rules list suspects of the program
before and after; what is listed more often after is a finding. Two suspects are the same when their keys are:
the key is the code with local names blanked, so that renaming and moving code makes nothing new.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

from rsi_tui.contract.model import Contract

Severity = Literal["exploit", "scope", "off_direction", "warning"]
Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BUILTINS = frozenset(dir(builtins))
STEP_NAME = re.compile(
    r"(?:.*_)?(?:steps?|iters?|iterations?|it|iter_num|num_iterations|updates?|epochs?|batch_idx|step_idx|micro_step|calls|counter|call_count)", re.I
)
LOSS_NAME = re.compile(r"(?:.*_)?(?:loss|losses|nll|ce|criterion)(?:_.*)?", re.I)
OPTIMIZER_NAME = re.compile(r"(?:.*_)?(?:opt|optim|optimizer|optimiser|scaler)s?(?:_.*)?", re.I)


@dataclass(frozen=True)
class Suspect:
    """A piece of code that would be questionable if it were new."""

    rule: str
    severity: Severity
    path: str
    line: int
    key: str
    text: str
    """one sentence"""

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes two suspects the same: rule, severity and code, never the place."""
        return self.rule, self.severity, self.key


@dataclass(frozen=True, eq=False)
class Source:
    """One Python file."""

    path: str
    tree: ast.Module
    parents: Mapping[ast.AST, ast.AST]
    aliases: Mapping[str, str]
    """local name -> dotted name, for what is imported"""

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes in the order of the text."""
        found = [n for n in ast.walk(self.tree) if hasattr(n, "lineno")]
        return tuple(sorted(found, key=lambda n: (line_of(n), getattr(n, "col_offset", 0))))

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Every call with the dotted name of what is called."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield node, self.dotted(node.func)

    def dotted(self, node: ast.AST) -> str:
        """Dotted name with imports resolved: 'torch.cuda.Event'; '?' stands for what is not a name."""
        match node:
            case ast.Name(id=name):
                return self.aliases.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                return f"{self.dotted(value)}.{attr}"
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(attr)), *_]):
                return f"{self.dotted(value)}.{attr}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="importlib")), args=[ast.Constant(value=str(name))]):
                return name
            case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str(name)), *_]):
                return name
            case ast.Call(func=func):
                return f"{self.dotted(func)}()"
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))) if self.dotted(value) == "sys.modules":
                return name
            case ast.Subscript(value=value):
                return f"{self.dotted(value)}[]"
        return "?"

    def imported(self, node: ast.AST) -> str:
        """Dotted name when it starts at something imported or built in, else ''."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            return self.dotted(node) if root.id in self.aliases or root.id == "__builtins__" else ""
        name = self.dotted(node)
        return name if isinstance(root, (ast.Call, ast.Subscript)) and "()" not in name and "[" not in name else ""

    def shape(self, node: ast.AST) -> str:
        """The code with local names blanked, imported ones spelled out, and what says the same written the same."""
        blank = _Blank(self.aliases).visit(canonical(node))
        return ast.unparse(ast.fix_missing_locations(blank))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents from the inside out, up to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, FUNCTIONS)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, ast.ClassDef)), None)

    def own(self, node: ast.AST, upto: ast.AST | None = None) -> Iterator[ast.AST]:
        """Ancestors within the node's own function, up to (without) `upto`."""
        for ancestor in self.ancestors(node):
            if ancestor is upto or isinstance(ancestor, (*FUNCTIONS, ast.Lambda)):
                return
            yield ancestor

    @cached_property
    def _bound(self) -> Mapping[tuple[str, ast.AST | None], tuple[ast.expr, ...]]:
        """(name, function that it is local to) -> all that is ever put there; attributes are local to nothing."""
        found: dict[tuple[str, ast.AST | None], tuple[ast.expr, ...]] = {}
        for node in self.nodes:
            pairs: list[tuple[ast.expr, ast.expr | None]] = []
            match node:
                case ast.Assign(targets=targets, value=value):
                    pairs = [(t, value) for t in targets]
                case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                    pairs = [(target, value)]
                case ast.AugAssign(target=target, value=value):
                    pairs = [(target, value)]
                case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                    pairs = [(target, value)]
                case ast.With(items=items) | ast.AsyncWith(items=items):
                    pairs = [(i.optional_vars, i.context_expr) for i in items if i.optional_vars is not None]
            for target, value in pairs:
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                for part in parts:
                    if value is not None and isinstance(part, (ast.Name, ast.Attribute)):
                        key = (last(part), self.function(node) if isinstance(part, ast.Name) else None)
                        found[key] = (*found.get(key, ()), value)
        return found

    def bound(self, node: ast.AST) -> tuple[ast.expr, ...]:
        """All that is assigned to a name, in its function or else in the module, or to an attribute of this name."""
        if isinstance(node, ast.Attribute):
            return self._bound.get((node.attr, None), ())
        if not isinstance(node, ast.Name):
            return ()
        return self._bound.get((node.id, self.function(node))) or self._bound.get((node.id, None), ())

    def is_autograd(self, node: ast.AST) -> bool:
        """Is it inside a torch.autograd.Function, which writes its own gradients?"""
        around = [a for a in self.ancestors(node) if isinstance(a, ast.ClassDef)]
        return any(self.dotted(base).endswith("autograd.Function") for a in around for base in a.bases)


@dataclass(frozen=True, eq=False)
class Program:
    """All Python files of a candidate, and the contract they run under."""

    sources: tuple[Source, ...]
    contract: Contract
    texts: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    """paths of Python files that do not parse"""

    @cached_property
    def modules(self) -> frozenset[str]:
        """Names under which the program's own files and folders are imported."""
        return frozenset(part for path in self.texts for part in path.removesuffix(".py").split("/"))

    @cached_property
    def methods(self) -> Mapping[str, frozenset[str]]:
        """Name of a method -> the program's classes that define it."""
        found: dict[str, frozenset[str]] = {}
        for source, function in self.functions:
            if isinstance(around := source.parents.get(function), ast.ClassDef):
                found[function.name] = found.get(function.name, frozenset()) | {around.name}
        return found

    @cached_property
    def calls_of(self) -> Mapping[str, tuple[tuple[Source, ast.Call], ...]]:
        """Last part of a name -> all calls of what is called so."""
        found: dict[str, list[tuple[Source, ast.Call]]] = {}
        for source in self.sources:
            for node in source.nodes:
                if isinstance(node, ast.Call):
                    found.setdefault(last(node.func), []).append((source, node))
        return {name: tuple(calls) for name, calls in found.items()}

    @cached_property
    def functions(self) -> tuple[tuple[Source, Function], ...]:
        return tuple((s, n) for s in self.sources for n in s.nodes if isinstance(n, FUNCTIONS))

    @cached_property
    def training(self) -> frozenset[ast.AST]:
        """Functions that make updates, themselves or through functions they call."""
        direct = {f for s, f in self.functions if any(is_update(s, n) for n in ast.walk(f)) and not _evaluates(s, f)}
        return self._callers(direct)

    @cached_property
    def forward(self) -> frozenset[ast.AST]:
        """Functions on the path from tokens to loss: forward methods, modules' methods, and what they call."""
        found = {f for s, f in self.functions if _is_forward(s, f) and not _evaluates(s, f)}
        while True:
            called = {name for s, f in self.functions if f in found for name in _called(f)} - {"forward"}
            more = {f for s, f in self.functions if f.name in called and not _evaluates(s, f)} - self.training
            if more <= found:
                return frozenset(found)
            found |= more

    def _callers(self, found: set[Function]) -> frozenset[ast.AST]:
        found = set(found)
        while True:
            names = {f.name for f in found} - {"forward", "step", "__init__", "__call__", "backward"}
            more = {f for s, f in self.functions if names & set(_called(f)) and not _evaluates(s, f)}
            if more <= found:
                return frozenset(found)
            found |= more

    @cached_property
    def training_loops(self) -> frozenset[ast.AST]:
        """Loops that make updates in their body."""
        names = {f.name for f in self.training if isinstance(f, FUNCTIONS)}
        return frozenset(
            n for s in self.sources for n in s.nodes if isinstance(n, LOOPS)
            and any(is_update(s, m) or (isinstance(m, ast.Call) and last(m.func) in names) for m in ast.walk(n))
        )

    def in_training(self, source: Source, node: ast.AST) -> bool:
        """Is the node in a training loop or in a function that such a loop runs?"""
        return any(a in self.training_loops for a in source.ancestors(node)) or source.function(node) in self.training

    def on_path(self, source: Source, node: ast.AST) -> bool:
        """Is the node where tokens become loss, gradients and updates?"""
        return self.in_training(source, node) or any(a in self.forward for a in source.ancestors(node))


def parse(texts: Mapping[str, str], contract: Contract) -> Program:
    """Read all Python files; those that do not parse are listed, not raised."""
    sources, broken = [], []
    for path, text in sorted(texts.items()):
        if path.endswith((".py", ".pyi", ".pyw")):
            try:
                sources.append(_source(path, ast.parse(text)))
            except (SyntaxError, ValueError, RecursionError):
                broken.append(path)
    return Program(tuple(sources), contract, texts, tuple(broken))


def is_update(source: Source, node: ast.AST) -> bool:
    """Is this a call that computes gradients or applies an update?"""
    if not isinstance(node, ast.Call):
        return False
    name = source.dotted(node.func)
    if name in ("torch.autograd.backward", "torch.autograd.grad") or name.endswith(".backward"):
        return not name.startswith("super()")
    return isinstance(node.func, ast.Attribute) and node.func.attr == "step" and is_optimizer(source, node.func.value)


def is_optimizer(source: Source, node: ast.AST) -> bool:
    """Does the name say that this is an optimizer?"""
    return OPTIMIZER_NAME.fullmatch(last(node)) is not None


def names_in(node: ast.AST) -> set[str]:
    """Last parts of all names and attributes in an expression."""
    return {last(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}


def strings_in(node: ast.AST) -> set[str]:
    """All string constants in an expression."""
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def numbers_in(node: ast.AST) -> list[float]:
    """All numeric constants in an expression, sorted."""
    return sorted(
        float(n.value) for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, (int, float)) and not isinstance(n.value, bool)
    )


def line_of(node: ast.AST) -> int:
    """First line of a node, 1 where it has none."""
    return int(getattr(node, "lineno", 1))


def last(node: ast.AST) -> str:
    """Last part of a name: 'step' of optimizer.step, 'x' of x[0]; '' for what has no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=attr):
            return attr
        case ast.Subscript(value=value):
            return last(value)
    return ""


def _called(function: Function) -> list[str]:
    return [last(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]


def _is_forward(source: Source, function: Function) -> bool:
    around = source.class_of(function)
    is_module = around is not None and any(source.dotted(b).endswith("Module") for b in around.bases)
    builds = function.name.startswith(("__init__", "_init", "configure", "reset", "load", "from_"))
    takes_loss = any(last(n.func) in ("cross_entropy", "nll_loss") for n in ast.walk(function) if isinstance(n, ast.Call))
    return function.name == "forward" or takes_loss or (is_module and not builds)


def _evaluates(source: Source, function: Function) -> bool:
    """Functions that only measure: no gradient, and named so."""
    return bool(re.search(r"(?:^|_)(?:eval|evaluate|valid|validate|estimate|generate|sample)(?:_|$)", function.name))


def _source(path: str, tree: ast.Module) -> Source:
    _strip_docstrings(tree)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                aliases[item.asname or item.name.split(".")[0]] = item.name if item.asname else item.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for item in node.names:
                aliases[item.asname or item.name] = f"{'.' * node.level}{node.module or ''}.{item.name}".lstrip(".")
    source = Source(path, tree, parents, aliases)
    for node in source.nodes:  # t = time: another name for the same module
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in aliases and source.imported(value):
                if not isinstance(value, ast.Call):
                    aliases[name] = source.imported(value)
    return source


def _strip_docstrings(tree: ast.Module) -> None:
    """Remove every statement that is only a string."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
                                            and isinstance(s.value.value, str))]
            if kept or isinstance(node, ast.Module):
                body[:] = kept
            else:
                body[:] = [ast.copy_location(ast.Pass(), body[0])]


def canonical(node: ast.AST) -> ast.AST:
    """A copy in which numbers are computed as far as they are constant, `a > b` is `b < a`, and tuple([a, b]) is (a, b)."""
    return _Canonical().visit(copy.deepcopy(node))  # type: ignore[no-any-return]


class _Canonical(ast.NodeTransformer):
    _COMPUTED: ClassVar[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv, ast.Pow: math.pow,
    }  # fmt: skip
    _TURNED: ClassVar[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        compute = self._COMPUTED.get(type(node.op))
        left, right = _number(node.left), _number(node.right)
        if compute is None or left is None or right is None:
            return node
        try:
            value = compute(left, right)
        except (ArithmeticError, ValueError):
            return node
        return ast.copy_location(ast.Constant(value), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and (turned := self._TURNED.get(type(node.ops[0]))) is not None:
            return ast.copy_location(ast.Compare(node.comparators[0], [turned()], [node.left]), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="tuple"), args=[ast.List(elts=elts) | ast.Tuple(elts=elts)], keywords=[]):
                return ast.copy_location(ast.Tuple(elts, ast.Load()), node)
            case ast.Call(func=ast.Name(id="list"), args=[ast.List(elts=elts) | ast.Tuple(elts=elts)], keywords=[]):
                return ast.copy_location(ast.List(elts, ast.Load()), node)
        return node


def _number(node: ast.AST) -> float | None:
    """The value of a constant number, with its sign."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(value, bool):
            return -value
    return None


class _Blank(ast.NodeTransformer):
    def __init__(self, aliases: Mapping[str, str]) -> None:
        self._aliases = aliases

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._aliases.get(node.id) or (node.id if node.id in BUILTINS else "_")
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = "_", None
        return node

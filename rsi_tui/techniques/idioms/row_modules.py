"""Modules that work on each row by itself: linear layers and elementwise functions of their results.

`grouped_forward` writes the forward method of such a class as a function of many instances at once, where
each instance has its own contiguous rows: a linear layer becomes a call on the list of all instances'
layers, everything elementwise is done on all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.ops import Reader, integer, number, split_args
from rsi_tui.techniques.idioms.program import ClassView, FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import bare, code

ELEMENTWISE = {
    "add", "sub", "mul", "div", "neg", "pow", "square", "silu", "gelu", "relu", "relu6", "sigmoid", "tanh", "softplus",
    "mish", "elu", "leaky_relu", "hardswish", "exp", "erf", "sqrt", "logsigmoid", "clamp",
}  # fmt: skip
_STATELESS = {
    "torch.nn." + name
    for name in ("SiLU", "GELU", "ReLU", "ReLU6", "Sigmoid", "Tanh", "Softplus", "Mish", "ELU", "LeakyReLU", "Hardswish", "Identity")
}
_TABLES_OF_ACTIVATIONS = ("transformers.activations.ACT2FN",)
_WATCHERS = (
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_module_forward_hook",
    "register_backward_hook", "parametrize", "weight_norm", "spectral_norm", "get_peft_model",
)  # fmt: skip
"""what looks at a module's calls, or makes its weights anew in each"""


class _NotByRows(Exception):
    """Something in the forward method that isn't known to work on each row by itself."""


def watched(program: Program) -> bool:
    """Whether anything in the program could depend on a module being called."""
    return program.calls_anywhere(*_WATCHERS)


def grouped_forward(file: SourceFile, cls: ClassView, name: str, linear: str) -> str | None:
    """Text of `def name(experts, rows, counts)`: the class's forward for all of its instances, None when it can't be.

    `linear` is the name of a function of (rows, counts, layers).
    """
    if any(not file.qualified(base.value).startswith("torch.nn.Module") for base in cls.node.bases) or not cls.node.bases:
        return None
    methods = [s for s in cls.node.body.body if isinstance(s, cst.FunctionDef)]
    if {m.name.value for m in methods} != {"__init__", "forward"} or cls.node.decorators or cls.node.keywords:
        return None
    if len([c for c in file.module.body if isinstance(c, cst.ClassDef) and c.name.value == cls.name]) != 1:
        return None
    forward = next(f for f in file.functions if f.cls is cls and f.node.name.value == "forward")
    try:
        return _Writer(file, forward, linear).function(name)
    except _NotByRows:
        return None


@dataclass
class _Writer:
    file: SourceFile
    forward: FunctionView
    linear: str
    renamed: dict[str, str] = field(default_factory=dict)
    """names of the method -> names of the function"""

    def function(self, name: str) -> str:
        node = self.forward.node
        params = node.params
        if node.decorators or len(params.params) != 2 or params.kwonly_params or params.star_kwarg is not None:
            raise _NotByRows
        if isinstance(params.star_arg, cst.Param) or params.params[1].default is not None:
            raise _NotByRows
        self.renamed = {params.params[1].name.value: "rows"}
        lines: list[str] = []
        statements = [s for s in node.body.body if not _is_docstring(s)]
        for i, statement in enumerate(statements):
            lines.append(self._line(statement, last=i == len(statements) - 1))
        body = "".join(f"    {line}\n" for line in lines)
        return f"def {name}(experts, rows, counts):\n{body}"

    def _line(self, statement: cst.CSTNode, last: bool) -> str:
        small = flow.small(statement)
        if isinstance(small, cst.Return) and small.value is not None and last:
            return f"return {self.text(small.value)}"
        if last:
            raise _NotByRows
        if (given := flow.assigned(statement)) is not None:
            text = self.text(given[1])
            return f"{self._local(given[0])} = {text}"
        match small:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))], value=value):
                text = self._parts(value, len(elements))
                if not all(isinstance(e.value, cst.Name) for e in elements):
                    raise _NotByRows
                return f"{', '.join(self._local(code(e.value)) for e in elements)} = {text}"
        raise _NotByRows

    def _local(self, name: str) -> str:
        if self.renamed.get(name) == "rows":
            return "rows"
        self.renamed[name] = name + "_of_all" if name in ("experts", "counts", "rows") else name
        return self.renamed[name]

    def _parts(self, value: cst.BaseExpression, count: int) -> str:
        """`chunk(n, dim=-1)` of something by rows, or a tuple of such things."""
        if isinstance(value, cst.Tuple) and len(value.elements) == count:
            return ", ".join(self.text(e.value) for e in value.elements)
        op = Reader(self.file, self.forward).op(value)
        if op is not None and op.name == "chunk" and integer(op.arg(1, "chunks")) == count and integer(op.arg(2, "dim")) == -1:
            return f"({self.text(op.args[0])}).chunk({count}, dim=-1)"
        raise _NotByRows

    def text(self, node: cst.BaseExpression) -> str:
        """The expression for all rows; raises _NotByRows."""
        if number(node, self.file) is not None:
            return bare(node)
        match node:
            case cst.Name(value=name) if name in self.renamed:
                return self.renamed[name]
            case cst.BinaryOperation(left=left, operator=operator, right=right) if not isinstance(
                operator, cst.MatrixMultiply
            ):
                return f"({self.text(left)}{code(operator)}{self.text(right)})"
            case cst.UnaryOperation(operator=cst.Minus(), expression=inner):
                return f"(-{self.text(inner)})"
            case cst.Call(func=cst.Attribute(value=cst.Name(value=me), attr=cst.Name(value=attr)), args=args) if (
                me == self.forward.me
            ):
                if len(args) != 1 or args[0].keyword is not None or args[0].star:
                    raise _NotByRows
                return self._layer(attr, self.text(args[0].value))
        return self._operation(node)

    def _operation(self, node: cst.BaseExpression) -> str:
        op = Reader(self.file, self.forward).op(node)
        if op is None or not isinstance(node, cst.Call) or op.layer is not None or op.name not in ELEMENTWISE:
            raise _NotByRows
        method = isinstance(node.func, cst.Attribute) and not self.file.qualified(node.func)
        if (node.func.attr.value if isinstance(node.func, cst.Attribute) else code(node.func)).endswith("_"):
            raise _NotByRows
        given = [self.text(a) for a in op.args]
        more = [f"{k}={bare(v)}" for k, v in op.keywords.items()]
        if any(not isinstance(v, cst.SimpleString) and number(v, self.file) is None for v in op.keywords.values()):
            raise _NotByRows
        if method:
            assert isinstance(node.func, cst.Attribute)
            return f"({given[0]}).{node.func.attr.value}({', '.join([*given[1:], *more])})"
        return f"{code(node.func)}({', '.join([*given, *more])})"

    def _layer(self, attr: str, argument: str) -> str:
        cls = self.forward.cls
        assert cls is not None
        made = cls.attribute(attr)
        if made is None:
            raise _NotByRows
        return self._module(made, f".{attr}", argument)

    def _module(self, made: cst.BaseExpression, path: str, argument: str) -> str:
        """A module of each expert, at that path, called on an argument."""
        match made:
            case cst.Subscript(value=table) if self.file.qualified(table) in _TABLES_OF_ACTIVATIONS:
                return f"experts[0]{path}({argument})"
            case cst.Call(func=func) if split_args(made.args) is not None:
                kind = self.file.qualified(func)
                if kind == "torch.nn.Linear" and len(made.args) <= 3:
                    return f"{self.linear}({argument}, counts, [expert{path} for expert in experts])"
                if kind in _STATELESS and not any(a.keyword is not None and a.keyword.value == "inplace" for a in made.args):
                    return f"experts[0]{path}({argument})"
                if kind == "torch.nn.Dropout" and len(made.args) == 1 and number(made.args[0].value, self.file) == 0:
                    return argument
                if kind == "torch.nn.Sequential" and made.args and not any(a.keyword for a in made.args):
                    for i, part in enumerate(made.args):
                        argument = self._module(part.value, f"{path}[{i}]", argument)
                    return argument
        raise _NotByRows


def _is_docstring(statement: cst.CSTNode) -> bool:
    small = flow.small(statement)
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)



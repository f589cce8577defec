"""The last layer and the cross-entropy on it: logits = head(hidden), then the loss of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import module_names
from rsi_tui.techniques.idioms.ops import Op, Reader, integer
from rsi_tui.techniques.idioms.program import FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import bare, code, operand, walk

OPTIONS = ("ignore_index", "label_smoothing")


@dataclass
class HeadLoss:
    """A mean cross-entropy over the rows of a linear layer's output."""

    loss: cst.BaseExpression
    """the cross_entropy call"""
    name: str
    """variable that holds the logits"""
    made: cst.BaseStatement
    """statement that makes the logits"""
    made_value: cst.BaseExpression
    hidden: str
    weight: str
    bias: str
    targets: str
    options: dict[str, str]
    links: list[cst.BaseStatement] = field(default_factory=list)
    """statements between that only reshape the logits"""
    guard: str = ""
    """condition under which the loss is computed, '' when always"""
    kept: bool = False
    """the function also returns the logits, which no training call reads"""
    flag: str = ""
    """parameter that says whether the logits are returned at all; '' when they always are"""

    def call(self, helper: str) -> str:
        options = "".join(f", {name}={text}" for name, text in self.options.items())
        return f"{helper}({self.hidden}, {self.weight}, {self.bias}, {self.targets}{options})"


def head_losses(file: SourceFile, program: Program) -> Iterator[HeadLoss]:
    """Every such loss of a file whose logits serve nothing else while training."""
    for function in file.functions:
        reader = Reader(file, function)
        for block in function.blocks:
            for at, statement in enumerate(block.statements):
                if not isinstance(statement, cst.SimpleStatementLine):
                    continue
                for node in walk(statement):
                    op = reader.op(node) if isinstance(node, cst.Call) else None
                    if op and op.name == "cross_entropy":
                        found = _match(reader, function, block, at, node, op)
                        if found and _sole_use(found, reader, function, statement, program):
                            yield found


def _match(
    reader: Reader, function: FunctionView, block: Block, at: int, node: cst.CSTNode, op: Op
) -> HeadLoss | None:
    assert isinstance(node, cst.Call)
    targets = op.arg(1, "target")
    if not op.args or targets is None or len(op.args) > 2:
        return None
    options = {k: bare(v) for k, v in op.keywords.items() if k in OPTIONS}
    rest = {k: v for k, v in op.keywords.items() if k not in (*OPTIONS, "target")}
    mean = rest.pop("reduction", None)
    if rest or (mean is not None and bare(mean).strip("'\"") != "mean"):
        return None
    views: list[str] = []
    links: list[cst.BaseStatement] = []
    logits, index = _unview(reader, block, op.args[0], at, views, links)
    if not isinstance(logits, cst.Name):
        return None
    where = _made(function, block, logits.value, index)
    if where is None:
        return None
    home, made_at, value = where
    head = _linear(reader, value)
    if head is None:
        return None
    hidden, weight, bias = head
    if _moved(home, block, made_at, at, flow.names(value).read.keys()):
        return None
    guard = "" if home is block else _guard(home, block, made_at)
    if guard is None:
        return None
    text = operand(hidden) + "".join(reversed(views))
    return HeadLoss(
        node, logits.value, home.statements[made_at], value, text, weight, bias, bare(targets), options, links, guard
    )


def _unview(
    reader: Reader,
    block: Block,
    node: cst.BaseExpression,
    at: int,
    views: list[str],
    links: list[cst.BaseStatement],
) -> tuple[cst.BaseExpression, int]:
    """The logits under reshapes to rows and slices of positions; slices are kept, to be made on the hidden states."""
    for _ in range(8):
        if isinstance(node, cst.Name):
            found = block.definition(node.value, at)
            if found is None or not _is_view(reader, found.value):
                return node, at
            links.append(block.statements[found.index])
            node, at = found.value, found.index
        elif isinstance(node, cst.Subscript) and _whole_last(node):
            views.append(code(node)[len(code(node.value)) :] if not node.lpar else "")
            node = node.value
        else:
            op = reader.op(node)
            if op is None or not _is_view(reader, node):
                return node, at
            node = op.args[0]
    return node, at


def _is_view(reader: Reader, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Subscript):
        return _whole_last(node)
    op = reader.op(node)
    if op is None or not isinstance(node, cst.Call):
        return False
    if op.name in ("view", "reshape"):
        # rows of logits: (-1, V), the last dimension unchanged
        return len(op.args) == 3 and _names_width(op)
    if op.name == "flatten":
        start, end = op.arg(1, "start_dim"), op.arg(2, "end_dim")
        return integer(start) in (0, None) and integer(end) in (1, -2)
    if op.name == "transpose":
        return {integer(a) for a in op.args[1:]} == {1, 2}
    return op.name == "contiguous"


def _names_width(op: Op) -> bool:
    """`(-1, V)`, or `(B * T, V)`: two dimensions, the second not inferred."""
    return integer(op.args[2]) != -1


def _whole_last(node: cst.Subscript) -> bool:
    """`[:, :-1]`, `[:, :-1, :]` or `[..., :-1, :]`: positions are cut, the vocabulary is whole."""
    parts = ["".join(code(e.slice).split()) for e in node.slice]
    if any(":" not in p and p != "..." for p in parts):
        return False
    return (parts[0] == "..." and len(parts) == 3 and parts[-1] == ":") or (
        parts[0] == ":" and (len(parts) == 2 or (len(parts) == 3 and parts[-1] == ":"))
    )


def _made(function: FunctionView, block: Block, name: str, at: int) -> tuple[Block, int, cst.BaseExpression] | None:
    """Where the logits are made: in the block of the loss, or once in the function's outermost one."""
    if (found := block.definition(name, at)) is not None:
        return block, found.index, found.value
    outer = function.blocks[0]
    holder = next((i for i, s in enumerate(outer.statements) if any(n is block.statements[0] for n in walk(s))), -1)
    found = outer.definition(name, holder) if holder >= 0 else None
    return (outer, found.index, found.value) if found is not None else None


def _linear(reader: Reader, value: cst.BaseExpression) -> tuple[cst.BaseExpression, str, str] | None:
    """Input, weight and bias of a linear layer's call."""
    op = reader.op(value)
    if op is None:
        return None
    if op.name == "linear_layer" and op.layer is not None and len(op.args) == 1:
        layer = bare(op.layer)
        return op.args[0], f"{layer}.weight", f"{layer}.bias"
    if op.name == "linear" and len(op.args) >= 2:
        bias = op.arg(2, "bias")
        return op.args[0], bare(op.args[1]), bare(bias) if bias is not None else "None"
    return None


def _moved(home: Block, block: Block, made_at: int, at: int, names: object) -> bool:
    """Whether what the head reads could change between the head and the loss."""
    used = set(names)  # type: ignore[call-overload]
    if home is block:
        return block.rebound(used, made_at + 1, at - 1)
    rest = list(home.statements[made_at + 1 :])
    return any(flow.names(s).bound[n] for s in rest for n in used)


def _guard(home: Block, block: Block, made_at: int) -> str | None:
    """The condition of the `if` whose body holds the loss, None when it lies deeper or elsewhere."""
    for statement in home.statements[made_at + 1 :]:
        body = statement.body.body if isinstance(statement, cst.If) else ()
        if isinstance(statement, cst.If) and any(a is b for a in body for b in block.statements):
            return bare(statement.test)
    return None


def _sole_use(
    found: HeadLoss, reader: Reader, function: FunctionView, statement: cst.BaseStatement, program: Program
) -> bool:
    name = found.name
    node = function.node
    reads = flow.names(node).read[name]
    own = flow.names(found.loss).read[name] + sum(flow.names(s).read[name] for s in found.links)
    for link in found.links:
        linked = flow.assigned(link)
        if linked is None:
            return False
        inside = flow.names(found.loss).read[linked[0]] + sum(flow.names(s).read[linked[0]] for s in found.links)
        if flow.names(node).read[linked[0]] != inside:
            return False
    returns = [r for r in walk(node) if isinstance(r, cst.Return)]
    if reads == own:
        return flow.names(node).bound[name] == 1
    returned = sum(flow.names(r).read[name] for r in returns if not _within(r, found.loss))
    if reads != own + returned or found.links:
        # an other branch may make and read logits of its own
        return False
    found.kept = True
    if flag := _dropping_flag(function, name, statement):
        found.flag = flag
        return True
    positions = {_position(r, name) for r in returns if flow.names(r).read[name]}
    if len(positions) != 1 or None in positions or function.cls is None:
        return False
    (position,) = positions
    assert position is not None
    return _callers_drop(program, position)


def _dropping_flag(function: FunctionView, name: str, loss: cst.BaseStatement) -> str:
    """The parameter of `if not FLAG: logits = None` behind the loss: where it is false nobody is given logits; '' without one."""
    parameters = {p.name.value for p in (*function.node.params.params, *function.node.params.kwonly_params)}
    behind = False
    for statement in function.blocks[0].statements:
        match statement:
            case cst.If(
                test=cst.UnaryOperation(operator=cst.Not(), expression=cst.Name(value=flag)),
                body=cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[cst.Assign() as made])]),
                orelse=None,
            ) if behind and flag in parameters and not flow.names(function.node.body).bound[flag]:
                if [code(t.target) for t in made.targets] == [name] and code(made.value) == "None":
                    return flag
        behind = behind or _within(statement, loss)
    return ""


def _within(outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(part is inner for part in walk(outer))


def _position(statement: cst.Return, name: str) -> int | None:
    """Index of a name in the returned tuple."""
    if isinstance(statement.value, cst.Tuple):
        for i, element in enumerate(statement.value.elements):
            if isinstance(element.value, cst.Name) and element.value.value == name:
                return i
    return None


def _callers_drop(program: Program, position: int) -> bool:
    """Whether every call of a model with inputs and targets leaves that part of the result unread."""
    seen = 0
    for file in program.files.values():
        models = module_names(file, program)
        owners: list[cst.CSTNode] = [f.node for f in file.functions]
        if not owners or any(_model_call(n, models) for s in file.module.body for n in _top_level(s)):
            owners.append(file.module)
        for owner in owners:
            for node in walk(owner):
                if isinstance(node, cst.Call) and _model_call(node, models):
                    seen += 1
                    if not _dropped(owner, node, position):
                        return False
    return seen > 0


def _top_level(statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if not isinstance(statement, cst.FunctionDef | cst.ClassDef):
        yield from walk(statement)


def _model_call(node: cst.CSTNode, models: set[str]) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name | cst.Attribute)
        and code(node.func) in models
        and len(node.args) >= 2
    )


def _dropped(owner: cst.CSTNode, call: cst.Call, position: int) -> bool:
    for node in walk(owner):
        match node:
            case cst.Subscript(value=value, slice=[cst.SubscriptElement(slice=cst.Index(value=index))]) if value is call:
                return integer(index) not in (None, position, position - 2)
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))], value=value) if (
                value is call
            ):
                target = elements[position].value if position < len(elements) else None
                return isinstance(target, cst.Name) and flow.names(owner).read[target.value] == 0
    return False

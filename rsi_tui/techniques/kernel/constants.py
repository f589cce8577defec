"""Tensors that depend on sizes alone, made once and not in every forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.modules import module_classes
from rsi_tui.techniques.idioms.ops import Op, Place, Reader
from rsi_tui.techniques.idioms.program import FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, walk

FACTORIES = ("zeros", "ones", "full", "arange", "eye", "linspace")
PURE = (
    "add", "sub", "mul", "div", "neg", "not", "pow", "eq", "ne", "lt", "le", "gt", "ge", "cos", "sin", "exp", "log", "sqrt",
    "rsqrt", "reciprocal", "outer", "cat", "stack", "tril", "triu", "masked_fill", "where", "float", "bool", "long", "int",
    "view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "repeat", "repeat_interleave", "flatten", "to", "type",
    "minimum", "maximum", "clamp", "abs", "chunk", "logical_and", "logical_or", "floor",
)  # fmt: skip
"""operations whose result depends on nothing but their operands, and that autocast does not touch"""
FEWEST_OPERATIONS = 2
"""a single torch.arange costs as much as looking it up"""
SAVED = 0.02
_STORE = "_made_once = {}\n"
_ONCE = '''\
def _once(key, make):
    """What make() returns for a key: sizes, types and devices that a tensor depends on; made when first asked for."""
    key = (*key, {torch}.is_inference_mode_enabled())
    if key not in _made_once:
        if len(_made_once) >= 64:
            _made_once.clear()
        _made_once[key] = make()
    return _made_once[key]
'''


@dataclass
class _Constant:
    """What is known of an expression that makes a tensor of sizes alone."""

    operations: int = 0
    tensors: int = 0
    """factories among them"""
    through_names: bool = False
    """whether it reads other constants by their names"""
    leaves: list[str] = field(default_factory=list)
    """texts of the sizes, types and devices that it reads"""


class ConstantsMadeOnce(Codemod):
    id = "constants-made-once"
    title = "Constant tensors made once"
    layer: Layer = "kernel"
    summary = (
        "Keeps tensors that a forward pass makes anew of sizes alone, causal masks, rotary tables, position codes, in a "
        "table by size, type and device: they are made once. They are no buffers, so checkpoints do not change."
    )
    applies_when = "a forward pass makes a tensor of numbers and sizes by two or more operations, and changes nothing in place in it"
    risk = "None to the numbers; up to 64 such tensors are kept."
    source = "Su et al. 2021, arXiv:2104.09864, for the tables; PyTorch performance tuning guide"
    words = FACTORIES

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if "_made_once" in file.text or _changes_arguments(program):
            return
        modules = module_classes(program)
        for function in file.functions:
            name = function.node.name.value
            if function.cls is None or function.cls.name not in modules or name.startswith("__"):
                continue
            for statement, variable, value, leaves in _constants(file, function):
                if edits.empty:
                    edits.helper(_STORE)
                    edits.helper(_ONCE.format(torch=file.spell("torch", edits)))
                where = f'"{function.cls.name}.{name}.{variable}.{statement}"'
                key = ", ".join([where, *leaves]) + ("" if leaves else ",")
                edits.replace(value, f"_once(({key}), lambda: {bare(value)})")

    def predict(self, situation: Situation) -> Effect:
        forward = situation.profile.share("forward") if situation.profile else 0.3
        return Effect(faster(forward, SAVED))


def _constants(file: SourceFile, function: FunctionView) -> Iterator[tuple[int, str, cst.BaseExpression, list[str]]]:
    """(number, variable, expression, leaves) of the assigned constants of a function that stay as they are made."""
    reader = Reader(file, function)
    count = 0
    for block in function.blocks:
        for at, statement in enumerate(block.statements):
            given = flow.assigned(statement)
            if given is None or isinstance(given[1], cst.Name):
                continue
            found = _Constant()
            if not _is_constant(reader, given[1], Place(block, at), found, 0) or found.tensors == 0:
                continue
            if found.operations < FEWEST_OPERATIONS or flow.names(given[1]).bound or not _stays(function, given[0]):
                continue
            if found.through_names and not _same_everywhere(function, found.leaves):
                continue
            yield count, given[0], given[1], list(dict.fromkeys(found.leaves))
            count += 1


def _is_constant(reader: Reader, node: cst.BaseExpression, place: Place, found: _Constant, depth: int) -> bool:
    """Whether an expression makes a tensor, or a scalar, of literals, sizes, types and devices alone."""
    if depth > 20:
        return False
    if _is_leaf(reader, node, found):
        return True
    if isinstance(node, cst.Name):
        defined = place.block.definition(node.value, place.index)
        if defined is None or flow.names(reader.function.node).bound[node.value] != 1 or not _stays(reader.function, node.value):
            return False
        found.through_names = True
        return _is_constant(reader, defined.value, Place(place.block, defined.index), found, depth + 1)
    if isinstance(node, cst.Tuple | cst.List):
        return all(_is_constant(reader, e.value, place, found, depth + 1) for e in node.elements)
    if isinstance(node, cst.Subscript):
        return _is_constant(reader, node.value, place, found, depth + 1) and all(
            _indices_are_leaves(reader, e.slice, found) for e in node.slice
        )
    op = reader.op(node)
    if op is None or not (op.name in PURE or _is_factory(reader, node, op)) or _in_place(node):
        return False
    found.operations += 1
    found.tensors += op.name in FACTORIES
    return all(_is_constant(reader, a, place, found, depth + 1) for a in (*op.args, *op.keywords.values()))


def _is_factory(reader: Reader, node: cst.BaseExpression, op: Op) -> bool:
    return op.name in FACTORIES and isinstance(node, cst.Call) and reader.file.qualified(node.func) == f"torch.{op.name}"


def _in_place(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value.endswith("_")


def _indices_are_leaves(reader: Reader, node: cst.BaseSlice, found: _Constant) -> bool:
    parts = [node.value] if isinstance(node, cst.Index) else []
    if isinstance(node, cst.Slice):
        parts = [p for p in (node.lower, node.upper, node.step) if p is not None]
    return all(_is_leaf(reader, p, found) for p in parts)


def _is_leaf(reader: Reader, node: cst.BaseExpression, found: _Constant) -> bool:
    """Literals, torch's types, sizes of tensors, devices and dtypes of tensors; what is no literal is noted."""
    match node:
        case cst.Integer() | cst.Float() | cst.SimpleString() | cst.Ellipsis():
            return True
        case cst.Name(value="None" | "True" | "False"):
            return True
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer() | cst.Float()):
            return True
        case cst.Call(func=cst.Name(value="float"), args=[cst.Arg(value=cst.SimpleString())]):
            return True
        case cst.Attribute(attr=cst.Name(value="device" | "dtype")) if not reader.file.qualified(node):
            found.leaves.append(bare(node))
            return True
        case cst.Attribute() if reader.file.qualified(node).startswith(("torch.", "math.")):
            return True
        case cst.Attribute(value=cst.Name(value=owner), attr=cst.Name(value=name)) if owner == reader.function.me:
            if not _is_whole_number(reader.function, reader.file, name):
                return False
            found.leaves.append(bare(node))
            return True
        case cst.Name(value=name) if _is_size_name(reader.function, name):
            found.leaves.append(name)
            return True
        case cst.Call() | cst.Subscript() if _is_size(node):
            found.leaves.append(bare(node))
            return True
        case cst.BinaryOperation(left=left, right=right):
            trial = _Constant()
            if _is_leaf(reader, left, trial) and _is_leaf(reader, right, trial):
                found.leaves.extend(trial.leaves)
                return True
    return False


def _is_size(node: cst.BaseExpression) -> bool:
    """`x.size(1)`, `x.shape[1]`, `len(x)` of a name."""
    match node:
        case cst.Call(func=cst.Attribute(value=cst.Name(), attr=cst.Name(value="size")), args=[cst.Arg(value=dim)]):
            return isinstance(dim, cst.Integer | cst.UnaryOperation)
        case cst.Subscript(
            value=cst.Attribute(value=cst.Name(), attr=cst.Name(value="shape")),
            slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer() | cst.UnaryOperation()))],
        ):
            return True
    return False


def _is_size_name(function: FunctionView, name: str) -> bool:
    """A name that the function binds once, to a size of a tensor."""
    if flow.names(function.node).bound[name] != 1:
        return False
    for node in walk(function.node):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=bound))], value=value) if bound == name:
                return _is_size(value)
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))], value=value):
                if any(isinstance(e.value, cst.Name) and e.value.value == name for e in elements):
                    return _is_shape(value)
    return False


def _is_shape(node: cst.BaseExpression) -> bool:
    match node:
        case cst.Attribute(value=cst.Name(), attr=cst.Name(value="shape")):
            return True
        case cst.Call(func=cst.Attribute(value=cst.Name(), attr=cst.Name(value="size")), args=[]):
            return True
        case cst.Subscript(value=cst.Attribute(value=cst.Name(), attr=cst.Name(value="shape")), slice=[cst.SubscriptElement(slice=cst.Slice())]):
            return True
    return False


def _stays(function: FunctionView, name: str) -> bool:
    """Whether neither a name nor anything that is computed from it is changed in place, and the function does not return it."""
    tainted = {name}
    for _ in range(3):
        for node in walk(function.node):
            match node:
                case cst.Assign(targets=targets, value=value) if tainted & set(flow.names(value).read):
                    tainted |= {n.value for t in targets for n in walk(t) if isinstance(n, cst.Name)}
    return flow.names(function.node).bound[name] == 1 and not any(
        _changes(node, tainted) or _hands_out(node, name) for node in walk(function.node)
    )


def _changes(node: cst.CSTNode, tainted: set[str]) -> bool:
    match node:
        case cst.AugAssign(target=target):
            return bool(tainted & set(flow.names(target).read))
        case cst.AssignTarget(target=cst.Subscript(value=value)):
            return bool(tainted & set(flow.names(value).read))
        case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(value=method))):
            return method.endswith("_") and not method.endswith("__") and bool(tainted & set(flow.names(value).read))
    return False


def _hands_out(node: cst.CSTNode, name: str) -> bool:
    """`return name`, `self.x = name`, `list.append(name)`: another place could change it."""
    match node:
        case cst.Return(value=cst.BaseExpression() as value):
            return _is_part(value, name)
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute() | cst.Subscript())], value=value):
            return _is_part(value, name)
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="append" | "register_buffer")), args=args):
            return any(_is_part(a.value, name) for a in args)
    return False


def _is_part(value: cst.BaseExpression, name: str) -> bool:
    if isinstance(value, cst.Tuple | cst.List):
        return any(_is_part(e.value, name) for e in value.elements)
    return isinstance(value, cst.Name) and value.value == name


def _changes_arguments(program: Program) -> bool:
    """Whether a function of the program changes one of its own arguments in place."""
    for file in program.files.values():
        for function in file.functions:
            given = {p.name.value for p in function.node.params.params} - {function.me}
            if any(_changes(node, given) for node in walk(function.node) if not _is_optimizer_call(node)):
                return True
    return False


def _is_optimizer_call(node: cst.CSTNode) -> bool:
    """`x.requires_grad_()` and the like change no value."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="requires_grad_" | "retain_grad_" | "share_memory_"))):
            return True
    return False


def _is_whole_number(function: FunctionView, file: SourceFile, name: str) -> bool:
    """Whether an attribute of self is a number: written as one, divided with //, or a size that a torch layer is made with."""
    value = function.cls.attribute(name) if function.cls else None
    match value:
        case cst.Integer() | cst.Float() | cst.BinaryOperation(operator=cst.FloorDivide()):
            return True
        case cst.Name() | cst.Attribute():
            text = bare(value)
        case _:
            return False
    assert function.cls is not None
    for node in walk(function.cls.node):
        match node:
            case cst.BinaryOperation(left=left, operator=cst.FloorDivide(), right=right):
                if text in (bare(left), bare(right)):
                    return True
            case cst.Call(func=func, args=args) if bare(func) == "range" or file.qualified(func).startswith("torch.nn."):
                if any(bare(a.value) == text for a in args):
                    return True
    return False


def _same_everywhere(function: FunctionView, leaves: list[str]) -> bool:
    """Whether sizes and devices read the same wherever they stand in the function."""
    bound = flow.names(function.node).bound
    return all(bound[n] <= 1 for leaf in leaves for n in flow.names(cst.parse_expression(leaf)).read)

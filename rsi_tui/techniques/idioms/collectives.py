"""Data-parallel training by plain collectives: where gradients are reduced, and what the result means.

Recognised is a loop over parameters that all-reduces each gradient by itself, in place or in a function
of its own, whatever it is called. Everything that is not certain is left out: another process group,
work that is not waited for, a divisor that is not provably the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import module_names
from rsi_tui.techniques.idioms.program import FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, children, code, keyword, operand, walk
from rsi_tui.techniques.idioms.world import Owner, is_world_size, owners

DIST = "torch.distributed"
_TOUCHING = {
    "grad", "zero_grad", "step", "unscale_", "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "get_total_norm",
}  # fmt: skip
"""names of attributes and functions that read or change gradients"""


@dataclass(frozen=True, eq=False)
class Reduction:
    """A loop that all-reduces the gradient of each parameter by itself."""

    owner: Owner
    loop: cst.For
    variable: str
    """the loop's name for a parameter"""
    parameters: str
    """expression for an iterable of all of them, in the owner's names"""
    averaged: bool
    """the result is the mean over all processes; otherwise the sum"""
    calls: tuple[cst.Call, ...]
    """the all_reduce calls"""
    by_collective: bool
    """the collective itself divides (ReduceOp.AVG)"""


@dataclass(frozen=True, eq=False)
class Site:
    """A statement of a training loop that reduces all gradients."""

    owner: Owner
    block: Block
    index: int
    reduction: Reduction
    parameters: str
    """expression for an iterable of the parameters, in the owner's names; '' when it can't be said there"""
    guard: str
    """condition under which it is run, '' when always"""

    @property
    def statement(self) -> cst.BaseStatement:
        return self.block.statements[self.index]


@dataclass
class _Body:
    """What is known of a loop's body so far."""

    variable: str
    aliases: set[str] = field(default_factory=set)
    filters: list[str] = field(default_factory=list)
    reduced: list[tuple[cst.Call, str]] = field(default_factory=list)
    divided: list[cst.BaseExpression] = field(default_factory=list)

    def is_gradient(self, node: cst.BaseExpression) -> bool:
        text = "".join(bare(node).split())
        for tail in (".data", ".detach()"):
            text = text.removesuffix(tail)
        return text == f"{self.variable}.grad" or text in self.aliases


def reductions(file: SourceFile, program: Program) -> Iterator[Reduction]:
    """Every such loop of a file."""
    for owner in owners(file):
        for block in owner.blocks:
            for statement in block.statements:
                if isinstance(statement, cst.For) and (found := _reduction(owner, statement, program)):
                    yield found


def _reduction(owner: Owner, loop: cst.For, program: Program) -> Reduction | None:
    clauses: list[str] = []
    inner: cst.For = loop
    while True:
        variable, iterable = _target(inner), bare(inner.iter)
        if not variable or inner.orelse is not None or inner.asynchronous is not None:
            return None
        target = bare(inner.target) if isinstance(inner.target, cst.Name) else code(inner.target).strip("()")
        clauses.append(f"for {target} in {iterable}")
        body = _suite(inner)
        if len(body) == 1 and isinstance(body[0], cst.For):
            inner = body[0]
            continue
        break
    state = _Body(variable)
    if not _is_iterable(inner.iter, loop is not inner) or not _read_body(owner, body, state) or len(state.reduced) != 1:
        return None
    call, op = state.reduced[0]
    if len(state.divided) > (0 if op == "AVG" else 1):
        return None
    if any(not is_world_size(program, owner, d) for d in state.divided):
        return None
    filters = "".join(f" if {f}" for f in state.filters)
    plain = len(clauses) == 1 and not filters and isinstance(inner.target, cst.Name)
    parameters = bare(inner.iter) if plain else f"[{variable} {' '.join(clauses)}{filters}]"
    averaged = op == "AVG" or bool(state.divided)
    return Reduction(owner, loop, variable, parameters, averaged, (call,), op == "AVG")


def _suite(node: cst.For | cst.If) -> Sequence[cst.BaseStatement]:
    if not isinstance(node.body, cst.IndentedBlock):
        return ()
    return [s for s in node.body.body if isinstance(s, cst.BaseStatement)]


def _target(loop: cst.For) -> str:
    """The loop's variable; the last of `name, p`."""
    match loop.target:
        case cst.Name(value=name):
            return name
        case cst.Tuple(elements=[cst.Element(value=cst.Name()), cst.Element(value=cst.Name(value=name))]):
            listed = loop.iter.func if isinstance(loop.iter, cst.Call) else loop.iter
            named = isinstance(listed, cst.Attribute) and listed.attr.value == "named_parameters"
            return name if named else ""
    return ""


def _is_iterable(node: cst.BaseExpression, nested: bool) -> bool:
    """Whether an expression gives the same parameters each time that it is evaluated."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="parameters" | "named_parameters")), args=[]):
            return True
        case cst.Name() | cst.Attribute():
            return True
        case cst.Subscript():
            return nested and "params" in bare(node)
    return False


def _read_body(owner: Owner, body: Sequence[cst.BaseStatement], state: _Body) -> bool:
    """Whether a body does nothing but reduce and scale the gradient; fills the state."""
    for at, statement in enumerate(body):
        if isinstance(statement, cst.If):
            if statement.orelse is not None:
                return False
            inner = _suite(statement)
            leaves = len(inner) == 1 and isinstance(flow.small(inner[0]), cst.Continue)
            wanted = _filter(statement.test, state, negated=leaves)
            if wanted is None:
                return False
            if wanted:
                state.filters.append(wanted)
            if leaves:
                continue
            return at == len(body) - 1 and _read_body(owner, inner, state)
        if not _read_line(owner, statement, state):
            return False
    return True


def _filter(test: cst.BaseExpression, state: _Body, negated: bool) -> str | None:
    """Text of a condition on a parameter, '' for the one that its gradient exists, None for anything else."""
    if isinstance(test, cst.BooleanOperation):
        if not isinstance(test.operator, cst.Or if negated else cst.And):
            return None
        sides = [_filter(part, state, negated) for part in (test.left, test.right)]
        if any(s is None for s in sides):
            return None
        return " and ".join(s for s in sides if s)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _filter(test.expression, state, not negated)
    match test:
        case cst.Comparison(
            left=left, comparisons=[cst.ComparisonTarget(operator=operator, comparator=cst.Name(value="None"))]
        ) if state.is_gradient(left):
            exists = isinstance(operator, cst.IsNot if not negated else cst.Is)
            return "" if exists and isinstance(operator, cst.Is | cst.IsNot) else None
        case cst.Attribute(value=cst.Name(value=name), attr=cst.Name(value="requires_grad")) if name == state.variable:
            return f"not {bare(test)}" if negated else bare(test)
        case cst.Call(
            func=cst.Name(value="hasattr"), args=[cst.Arg(value=cst.Name(value=name)), cst.Arg(value=cst.SimpleString())]
        ) if name == state.variable:
            return f"not {bare(test)}" if negated else bare(test)
    return None


def _read_line(owner: Owner, statement: cst.BaseStatement, state: _Body) -> bool:
    match flow.small(statement):
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value) if state.is_gradient(value):
            state.aliases.add(name)
            return True
        case cst.Expr(value=cst.Call() as call):
            return _read_call(owner, call, state)
        case cst.AugAssign(target=target, operator=cst.DivideAssign(), value=value) if state.is_gradient(target):
            state.divided.append(value)
            return True
        case cst.AugAssign(target=target, operator=cst.MultiplyAssign(), value=value) if state.is_gradient(target):
            return _read_inverse(value, state)
        case cst.Assign(
            targets=[cst.AssignTarget(target=cst.Attribute() as target)],
            value=cst.BinaryOperation(left=left, operator=cst.Divide(), right=value),
        ) if state.is_gradient(target) and state.is_gradient(left):
            state.divided.append(value)
            return True
    return False


def _read_inverse(value: cst.BaseExpression, state: _Body) -> bool:
    """`1.0 / world`."""
    match value:
        case cst.BinaryOperation(left=cst.Integer() | cst.Float() as one, operator=cst.Divide(), right=right) if (
            one.evaluated_value == 1
        ):
            state.divided.append(right)
            return True
    return False


def _read_call(owner: Owner, call: cst.Call, state: _Body) -> bool:
    match call:
        case cst.Call(func=cst.Attribute(value=target, attr=cst.Name(value="div_")), args=[cst.Arg(value=value, keyword=None)]):
            state.divided.append(value)
            return state.is_gradient(target)
        case cst.Call(func=cst.Attribute(value=target, attr=cst.Name(value="mul_")), args=[cst.Arg(value=value, keyword=None)]):
            return state.is_gradient(target) and _read_inverse(value, state)
    op = reduce_op(owner.file, call)
    tensor = reduced_tensor(call)
    if op is None or tensor is None or not state.is_gradient(tensor):
        return False
    state.reduced.append((call, op))
    return True


def reduce_op(file: SourceFile, call: cst.Call) -> str | None:
    """SUM or AVG of a plain all_reduce over all processes that is waited for; None for any other call."""
    if file.qualified(call.func) != f"{DIST}.all_reduce" or any(a.star for a in call.args):
        return None
    positional = [a.value for a in call.args if a.keyword is None]
    group = positional[2] if len(positional) > 2 else keyword(call, "group")
    waits = positional[3] if len(positional) > 3 else keyword(call, "async_op")
    if waits is not None and not (isinstance(waits, cst.Name) and waits.value == "False"):
        return None
    if group is not None and not _is_world_group(file, group):
        return None
    op = positional[1] if len(positional) > 1 else keyword(call, "op")
    if op is None:
        return "SUM"
    name = file.qualified(op).rpartition(".")[2]
    return name if name in ("SUM", "AVG") and ".ReduceOp." in file.qualified(op) else None


def _is_world_group(file: SourceFile, group: cst.BaseExpression) -> bool:
    none = isinstance(group, cst.Name) and group.value == "None"
    return none or file.qualified(group) in (f"{DIST}.group.WORLD", f"{DIST}.GroupMember.WORLD")


def reduced_tensor(call: cst.Call) -> cst.BaseExpression | None:
    """The tensor that a collective works on."""
    if call.args and call.args[0].keyword is None:
        return call.args[0].value
    return keyword(call, "tensor")


def sites(file: SourceFile, program: Program) -> Iterator[Site]:
    """Every statement of a file that reduces all gradients, itself or by calling a function that does only that."""
    for owner in owners(file):
        for block in owner.blocks:
            above = parent(owner, block)
            if above is not None and _only_guards(above[0]):
                continue
            for index, statement in enumerate(block.statements):
                if (found := _site(owner, statement, program)) is not None:
                    yield Site(owner, block, index, *found)


def _only_guards(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.If) and statement.orelse is None and len(_suite(statement)) == 1


def _site(owner: Owner, statement: cst.BaseStatement, program: Program) -> tuple[Reduction, str, str] | None:
    """Reduction, parameters and guard of a statement that reduces all gradients."""
    if isinstance(statement, cst.For):
        found = _reduction(owner, statement, program)
        return (found, found.parameters, "") if found else None
    if isinstance(statement, cst.If) and _only_guards(statement):
        inner = _site(owner, _suite(statement)[0], program)
        if inner is None or inner[2] or not _is_plain_test(owner.file, statement.test):
            return None
        return inner[0], inner[1], bare(statement.test)
    match flow.small(statement):
        case cst.Expr(value=cst.Call() as call):
            return _called(owner, call, program)
    return None


def _is_plain_test(file: SourceFile, test: cst.BaseExpression) -> bool:
    """Whether a condition calls nothing but questions about the process group."""
    asked = {f"{DIST}.{name}" for name in ("is_initialized", "is_available", "get_world_size", "is_torchelastic_launched")}
    return all(file.qualified(n.func) in asked for n in walk(test) if isinstance(n, cst.Call))


def _called(owner: Owner, call: cst.Call, program: Program) -> tuple[Reduction, str, str] | None:
    target = called_function(owner, call, program)
    if target is None:
        return None
    loops = [s for s in target.blocks[0].statements if isinstance(s, cst.For)]
    if len(loops) != 1 or (found := _reduction(target, loops[0], program)) is None:
        return None
    if not all(s is loops[0] or _is_harmless(target, s, program) for s in target.blocks[0].statements):
        return None
    return found, _in_callers_names(owner, target, call, found), ""


def called_function(owner: Owner, call: cst.Call, program: Program) -> Owner | None:
    """The function of the program behind a call: the only one of that name, or a method of the caller's own class."""
    match call.func:
        case cst.Name(value=name):
            found = [o for f in program.files.values() for o in owners(f) if o.name == name]
            return found[0] if len(found) == 1 and found[0].view is not None and found[0].view.cls is None else None
        case cst.Attribute(value=cst.Name(value=me), attr=cst.Name(value=name)) if owner.view is not None:
            if owner.view.cls is None or me != owner.view.me:
                return None
            found = [o for o in owners(owner.file) if o.name == name and o.view is not None and o.view.cls is owner.view.cls]
            return found[0] if len(found) == 1 and found[0].view is not None and found[0].view.me == me else None
        case cst.Attribute() if (dotted := code(call.func)).count(".") == 1:
            # `module.function` of another file of the program
            found = [o for f in program.files.values() for o in owners(f) if o.name == dotted.split(".")[1]]
            known = owner.file.qualified(call.func) != ""
            return found[0] if known and len(found) == 1 and found[0].view is not None and found[0].view.cls is None else None
    return None


def _is_harmless(owner: Owner, statement: cst.BaseStatement, program: Program) -> bool:
    """Docstring, the world size in a variable, or leaving at once where there is one process."""
    match flow.small(statement):
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()) | cst.Pass() | cst.Return(value=None):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name())], value=value):
            return is_world_size(program, owner, value) or _is_iterable(value, False)
    if isinstance(statement, cst.If) and statement.orelse is None:
        body = _suite(statement)
        leaves = len(body) == 1 and isinstance(left := flow.small(body[0]), cst.Return) and left.value is None
        return leaves and _is_plain_test(owner.file, statement.test)
    return False


def _in_callers_names(owner: Owner, target: Owner, call: cst.Call, found: Reduction) -> str:
    """The parameters of a reduction in a function, as its caller would write them; '' when that is not certain."""
    assert isinstance(target.node, cst.FunctionDef)
    params = [p.name.value for p in target.node.params.params]
    if target.view is not None and target.view.cls is not None:
        params = params[1:]
    given: dict[str, str] = {}
    for at, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else params[at] if at < len(params) else ""
        if arg.star or not name or not isinstance(arg.value, cst.Name | cst.Attribute | cst.Call):
            return ""
        given[name] = bare(arg.value)
    tree = cst.parse_expression(found.parameters)
    inner = {n for c in walk(tree) if isinstance(c, cst.CompFor) for n in flow.names(c.target).read}
    me = target.view.me if target.view is not None else ""
    for name in flow.names(tree).read:
        if name in inner or (me and name == me) or name in ("hasattr", "list"):
            continue
        if name not in given or flow.names(target.node).bound[name] != 1:
            return ""
    changed = tree.visit(_Renamed(given, inner))
    assert isinstance(changed, cst.BaseExpression)
    return bare(changed)


class _Renamed(cst.CSTTransformer):
    """A function's parameters as the arguments that it is called with."""

    def __init__(self, given: dict[str, str], inner: set[str]) -> None:
        super().__init__()
        self._given = {k: v for k, v in given.items() if k not in inner}

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._attribute = node.attr

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if original_node is getattr(self, "_attribute", None) or original_node.value not in self._given:
            return updated_node
        return cst.parse_expression(self._given[original_node.value])


def parent(owner: Owner, block: Block) -> tuple[cst.BaseStatement, Block, int] | None:
    """The compound statement that a suite belongs to, with that statement's own suite and place."""
    if not block.statements:
        return None
    first = block.statements[0]
    for other in owner.blocks:
        if other is not block:
            for index, statement in enumerate(other.statements):
                if any(s and s[0] is first for s in _suites(statement)):
                    return statement, other, index
    return None


def _suites(statement: cst.CSTNode) -> Iterator[Sequence[cst.CSTNode]]:
    """Suites right below a compound statement, those of its other branches too."""
    if isinstance(statement, cst.SimpleStatementLine | cst.FunctionDef | cst.ClassDef):
        return
    for child in children(statement):
        if isinstance(child, cst.IndentedBlock):
            yield child.body
        elif isinstance(child, cst.Else | cst.If | cst.ExceptHandler | cst.Finally):
            yield from _suites(child)


def has_backward(node: cst.CSTNode) -> bool:
    """Whether something runs a backward pass."""
    return any(
        isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "backward" for n in walk(node)
    )


def touches_gradients(file: SourceFile, program: Program, node: cst.CSTNode, depth: int = 0) -> bool:
    """Whether code may read or change gradients, or run a collective; functions of the program are looked into."""
    for part in walk(node):
        match part:
            case cst.Attribute(attr=cst.Name(value=name)) if name in _TOUCHING:
                return True
            case cst.Name(value=name) if name in _TOUCHING - {"step", "grad"}:
                return True
            case cst.Call(func=func):
                asked = file.qualified(func)
                if asked.startswith(f"{DIST}.") and not asked.rpartition(".")[2].startswith(("get_", "is_")):
                    return True
                name = func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
                if depth < 2 and name and name != "backward" and _inside_touches(program, name, depth):
                    return True
    return False


def _inside_touches(program: Program, name: str, depth: int) -> bool:
    return any(
        touches_gradients(file, program, view.node.body, depth + 1)
        for file in program.files.values()
        for view in file.functions
        if view.node.name.value == name
    )


def leaves_early(node: cst.CSTNode) -> bool:
    """Whether a loop can be left, or a turn cut short, by a statement of its own."""
    return any(isinstance(n, cst.Break | cst.Continue | cst.Return | cst.Raise) for n in walk(node))


def last_turn(loop: cst.BaseStatement) -> str:
    """Condition that a turn of `for i in range(n)` is the last one; '' when that can't be said beforehand."""
    match loop:
        case cst.For(
            target=cst.Name(value=name), iter=cst.Call(func=cst.Name(value="range"), args=args), asynchronous=None, orelse=None
        ) if len(args) in (1, 2) and not any(a.star or a.keyword for a in args):
            stop = args[-1].value
        case _:
            return ""
    bound = flow.names(loop.body).bound
    if bound[name] or any(bound[n] for n in flow.names(stop).read):
        return ""
    if any(isinstance(n, cst.Call) and bare(n.func) != "len" for n in walk(stop)):
        return ""
    if isinstance(stop, cst.Integer):
        return f"{name} == {stop.evaluated_value - 1}"
    return f"{name} == {operand(stop)} - 1"


def steps(node: cst.CSTNode) -> set[str]:
    """Texts of what `.step(...)` is called on."""
    return {
        code(n.func.value)
        for n in walk(node)
        if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "step"
    }


def updates_after(owner: Owner, program: Program, block: Block, at: int) -> bool:
    """Whether the update, by something that the scope also clears the gradients of, stands behind a statement."""
    made = set().union(*(steps(s) for s in block.statements[at + 1 :]))
    cleared = {
        code(n.func.value)
        for n in walk(owner.node)
        if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "zero_grad"
    }
    return bool(made & cleared) or bool(made and cleared & module_names(owner.file, program))


def updates_alone(owner: Owner, branch: cst.If) -> bool:
    """Whether a branch makes and clears an update, and nothing else of the scope steps the same optimizer."""
    clears = any(isinstance(n, cst.Attribute) and n.attr.value == "zero_grad" for n in walk(branch))
    if branch.orelse is not None or not clears or not isinstance(branch.body, cst.IndentedBlock) or leaves_early(branch):
        return False
    everywhere = [code(n.func) for n in walk(owner.node) if isinstance(n, cst.Call)]
    inside = [code(n.func) for n in walk(branch) if isinstance(n, cst.Call)]
    return all(everywhere.count(f"{name}.step") == inside.count(f"{name}.step") for name in steps(branch))


def top_name(file: SourceFile, qualified: str, edits: Edits) -> str:
    """A text that names a module or function at the top level of a file, importing it where it is not imported there."""
    best = ""
    for statement in file.module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for name in (n for part in statement.body if isinstance(part, cst.Import | cst.ImportFrom) for n in flow.names(part).bound):
            target = file.imports.get(name, "")
            if target and (qualified == target or qualified.startswith(target + ".")):
                spelled = name + qualified[len(target) :]
                best = spelled if not best or len(spelled) < len(best) else best
    if best:
        return best
    edits.import_line("import torch")
    return qualified


def free_reads(node: cst.CSTNode, name: str) -> int:
    """How often a name is read where no loop, comprehension or function around binds it anew."""
    if isinstance(node, cst.Name):
        return int(node.value == name)
    if isinstance(node, cst.For | cst.CompFor) and flow.names(node.target).read[name]:
        return free_reads(node.iter, name)
    if isinstance(node, cst.GeneratorExp | cst.ListComp | cst.SetComp | cst.DictComp) and _binds(node.for_in, name):
        return free_reads(node.for_in.iter, name)
    if isinstance(node, cst.FunctionDef | cst.Lambda) and any(p.name.value == name for p in node.params.params):
        return 0
    if isinstance(node, cst.Attribute):
        return free_reads(node.value, name)
    if isinstance(node, cst.Arg):
        return free_reads(node.value, name)
    if isinstance(node, cst.Assign):
        return free_reads(node.value, name) + sum(
            free_reads(t.target, name) for t in node.targets if not isinstance(t.target, cst.Name)
        )
    return sum(free_reads(child, name) for child in children(node))


def _binds(comp: cst.CompFor, name: str) -> bool:
    if flow.names(comp.target).read[name]:
        return True
    return comp.inner_for_in is not None and _binds(comp.inner_for_in, name)


__all__ = [
    "DIST", "FunctionView", "Reduction", "Site", "called_function", "free_reads", "has_backward", "last_turn",
    "leaves_early", "parent", "reduce_op", "reduced_tensor", "reductions", "sites", "steps", "top_name",
    "touches_gradients", "updates_after", "updates_alone",
]  # fmt: skip

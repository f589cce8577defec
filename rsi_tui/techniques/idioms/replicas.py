"""A data-parallel program whose every use of the model, its gradients and its state is one that is known.

Needed where replicas may differ between updates: then a use that is not known could see another weight
than before. The program is read as a whole, and None is the answer to any doubt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.collectives import (
    Site,
    called_function,
    has_backward,
    parent,
    reductions,
    sites,
    steps,
)
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import module_classes
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import code, keyword, walk
from rsi_tui.techniques.idioms.world import Owner, given_values, owners

CLIP = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad.clip_grad_norm_")
_OTHERS = (
    "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "new_group", "ZeroRedundancyOptimizer",
    "GradScaler", "LBFGS", "deepcopy", "swa_utils", "register_hook", "register_full_backward_hook", "get_total_norm",
)  # fmt: skip
"""other ways to divide work, and uses of weights or gradients that can't be followed"""


@dataclass(frozen=True, eq=False)
class Replicas:
    """What such a program calls its parts."""

    model: str
    optimizer: str
    saves: tuple[tuple[SourceFile, cst.BaseStatement], ...]
    """statements that only process 0 runs through and that write a checkpoint; every process reaches them"""


def replicas(program: Program) -> Replicas | None:
    """The program read, None on any doubt."""
    if program.calls_anywhere(*_OTHERS):
        return None
    found = [s for f in program.files.values() for s in sites(f, program) if has_backward(s.owner.node)]
    if len(found) != 1 or not found[0].reduction.averaged:
        return None
    site = found[0]
    model, optimizer = _model(site), _optimizer(site.owner)
    if not model or not optimizer or not _knows_gradients(program, model) or not _knows_parameters(program, model):
        return None
    if not _knows_calls(program, site, model):
        return None
    saves = _saves(program, site.owner)
    return Replicas(model, optimizer, saves) if saves else None


def _model(site: Site) -> str:
    """The model whose parameters the site reduces."""
    named = set(re.findall(r"([\w.]+)\.(?:named_)?parameters\(\)", site.parameters))
    return named.pop() if len(named) == 1 else ""


def _optimizer(owner: Owner) -> str:
    """The one thing that is stepped and cleared."""
    cleared = {
        code(n.func.value)
        for n in walk(owner.node)
        if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "zero_grad"
    }
    both = cleared & steps(owner.node)
    return both.pop() if len(both) == 1 else ""


def _knows_gradients(program: Program, model: str) -> bool:
    """Whether gradients are touched by the reduction, clipping of the whole norm, step and zero_grad alone."""
    for file in program.files.values():
        loops = [set(walk(r.loop)) for r in reductions(file, program)]
        for node in walk(file.module):
            if isinstance(node, cst.Attribute) and node.attr.value == "grad" and not any(node in inner for inner in loops):
                return False
            if not isinstance(node, cst.Call) or file.qualified(node.func) not in CLIP:
                continue
            options = {a.keyword.value for a in node.args if a.keyword is not None}
            positional = [a for a in node.args if a.keyword is None]
            whole = positional and code(positional[0].value) == f"{model}.parameters()"
            if not whole or options - {"foreach", "max_norm"} or len(positional) > 2 or any(a.star for a in node.args):
                return False
            if keyword(node, "max_norm") is None and len(positional) != 2:
                return False
    return True


def _knows_parameters(program: Program, model: str) -> bool:
    """Whether the values of parameters are read by modules and the optimizer alone."""
    classes = module_classes(program)
    for file in program.files.values():
        for owner in owners(file):
            if owner.view is not None and owner.view.cls is not None and owner.view.cls.name in classes:
                continue
            for block in owner.blocks:
                for statement in block.statements:
                    if not isinstance(statement, cst.SimpleStatementLine | cst.For | cst.With):
                        continue
                    if isinstance(statement, cst.With) or not _lists_parameters(statement):
                        continue
                    if not _is_known_use(file, program, statement):
                        return False
    return True


def _lists_parameters(statement: cst.BaseStatement) -> bool:
    """Whether a line, or the head of a loop, names the parameters."""
    node = statement.iter if isinstance(statement, cst.For) else statement
    return any(
        isinstance(n, cst.Attribute) and n.attr.value in ("parameters", "named_parameters", "modules", "children")
        for n in walk(node)
    )


def _is_known_use(file: SourceFile, program: Program, statement: cst.BaseStatement) -> bool:
    if isinstance(statement, cst.For):
        return any(r.loop is statement for r in reductions(file, program))
    words = {n.value for n in walk(statement) if isinstance(n, cst.Name)}
    clips = any(isinstance(n, cst.Call) and file.qualified(n.func) in CLIP for n in walk(statement))
    makes = any(isinstance(n, cst.Call) and file.qualified(n.func).startswith("torch.optim.") for n in walk(statement))
    return clips or makes or "numel" in words


def _knows_calls(program: Program, site: Site, model: str) -> bool:
    """Whether the model is run by the micro-batches alone, and handed to nothing that could run or read it."""
    if "." in model:
        return False
    trained = {n for s in _training_statements(site) for n in walk(s)}
    if isinstance(site.owner.node, cst.Module):
        for view in site.owner.file.functions:
            counted = flow.names(view.node)
            if counted.read[model] and not counted.bound[model]:
                return False
    for node in walk(site.owner.node):
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Name) and node.value.value == model:
            return False
        if not isinstance(node, cst.Call):
            continue
        uses = code(node.func) == model or any(code(a.value) == model for a in node.args)
        if uses and node not in trained and not _only_reads_state(site.owner, node, program, model):
            return False
    return True


def _training_statements(site: Site) -> list[cst.BaseStatement]:
    """The statements up to the backward pass, of the suite that runs it."""
    for block in site.owner.blocks:
        at = next((i for i, s in enumerate(block.statements) if has_backward(s)), None)
        if at is not None and not isinstance(block.statements[at], cst.For | cst.While | cst.If | cst.Try):
            return list(block.statements[: at + 1]) if _is_loop(site.owner, block) else []
    return []


def _is_loop(owner: Owner, block: Block) -> bool:
    above = parent(owner, block)
    return above is not None and isinstance(above[0], cst.For)


def _only_reads_state(owner: Owner, call: cst.Call, program: Program, model: str) -> bool:
    """Whether a function that gets the model averages gradients, or takes nothing of it but state_dict()."""
    target = called_function(owner, call, program)
    if target is None or not isinstance(target.node, cst.FunctionDef):
        return False
    if any(r.owner.node is target.node for r in reductions(target.file, program)):
        return True
    at = next((i for i, a in enumerate(call.args) if code(a.value) == model), 0)
    arg = call.args[at]
    params = target.node.params.params
    name = arg.keyword.value if arg.keyword is not None else params[at].name.value if at < len(params) else ""
    uses = sum(1 for n in walk(target.node) if isinstance(n, cst.Call) and code(n.func) == f"{name}.state_dict")
    return bool(name) and uses > 0 and flow.names(target.node).read[name] == uses


def _saves(program: Program, owner: Owner) -> tuple[tuple[SourceFile, cst.BaseStatement], ...]:
    """Where checkpoints are written; empty when some of it is done elsewhere, or not by process 0 alone."""
    savers = {
        o.name
        for f in program.files.values()
        for o in owners(f)
        if isinstance(o.node, cst.FunctionDef) and o.node is not owner.node and _saves_state(o.node, set())
    }
    found: list[tuple[SourceFile, cst.BaseStatement]] = []
    for file in program.files.values():
        for other in owners(file):
            inside = other.node is owner.node
            is_saver = isinstance(other.node, cst.FunctionDef) and other.name in savers
            for block in other.blocks:
                for index, statement in enumerate(block.statements):
                    if not isinstance(statement, cst.SimpleStatementLine) or not _saves_state(statement, savers):
                        continue
                    if not inside and not is_saver:
                        return ()
                    if inside:
                        target = _outermost_guard(other, block, index)
                        if target is None:
                            return ()
                        if not any(target is s for _, s in found):
                            found.append((file, target))
    return tuple(found)


def _saves_state(node: cst.CSTNode, savers: set[str]) -> bool:
    return any(
        (isinstance(n, cst.Attribute) and n.attr.value == "state_dict")
        or (isinstance(n, cst.Call) and isinstance(n.func, cst.Name) and n.func.value in savers)
        for n in walk(node)
    )


def _outermost_guard(owner: Owner, block: Block, index: int) -> cst.BaseStatement | None:
    """The branch that only process 0 takes and that every process reaches, around a statement."""
    guard: cst.BaseStatement | None = None
    above = parent(owner, block)
    while above is not None:
        statement, block, _ = above
        if isinstance(statement, cst.If):
            if statement.orelse is None and is_first_process(owner, statement.test):
                guard = statement
            elif _asks_rank(owner, statement.test):
                return None
        elif not isinstance(statement, cst.For):
            return None
        above = parent(owner, block)
    return guard


def is_first_process(owner: Owner, test: cst.BaseExpression) -> bool:
    """Whether a condition is true on process 0 and nowhere else."""
    match test:
        case cst.Comparison(
            left=left, comparisons=[cst.ComparisonTarget(operator=cst.Equal(), comparator=cst.Integer(value="0"))]
        ):
            return _is_rank(owner, left)
        case cst.UnaryOperation(operator=cst.Not(), expression=inner):
            return _is_rank(owner, inner)
        case cst.Name(value=name):
            values = given_values(owner, name)
            return bool(values) and all(is_first_process(owner, v) for v in values or ())
    return False


def _is_rank(owner: Owner, node: cst.BaseExpression) -> bool:
    match node:
        case cst.Call(func=func, args=[]):
            return owner.file.qualified(func) == "torch.distributed.get_rank"
        case cst.Call(func=cst.Name(value="int"), args=[cst.Arg(value=cst.Subscript(value=value) as inner)]):
            return owner.file.qualified(value) == "os.environ" and re.search(r"""["']RANK["']""", code(inner)) is not None
        case cst.Name(value=name):
            values = given_values(owner, name)
            return bool(values) and all(_is_rank(owner, v) for v in values or ())
    return False


def _asks_rank(owner: Owner, test: cst.BaseExpression) -> bool:
    """Whether a condition may depend on which process asks."""
    return any(_may_tell(owner, name, 0) for name in _names(test)) or any(
        isinstance(n, cst.Call) for n in walk(test)
    )


def _names(node: cst.CSTNode) -> Iterator[str]:
    return iter(flow.names(node).read)


def _may_tell(owner: Owner, name: str, depth: int) -> bool:
    if depth > 4:
        return True
    values = given_values(owner, name)
    if values is None:
        # a loop's variable
        return False
    return any(
        "rank" in code(v).lower() or any(_may_tell(owner, n, depth + 1) for n in _names(v) if n != name) for v in values
    )

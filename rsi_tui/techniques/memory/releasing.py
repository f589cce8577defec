"""Memory given back earlier: outputs that nobody reads again, and gradients of the step before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import module_names
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import is_backward, own, owners
from rsi_tui.techniques.idioms.tree import Edits, code, walk
from rsi_tui.techniques.knobs import fault_share
from rsi_tui.techniques.memory.cross_entropy import logits_share

SAVED_OF_LOGITS = 0.2
"""of what logits, their log-softmax and their gradient take together: 39 MiB of 731 for 1,024 tokens of 4,096 words"""
TIME_OF_RELEASE = 0.01
"""log-ratio on a CPU whose allocator returns the pages, to be faulted in again"""


def _backward(statement: cst.CSTNode) -> bool:
    """Whether a line is `x.backward()`."""
    match flow.small(statement):
        case cst.Expr(value=value):
            return is_backward(value)
    return False


class EarlyRelease(Codemod):
    id = "early-release"
    title = "Outputs released before the backward pass"
    layer: Layer = "memory"
    summary = (
        "Deletes the names of a model's outputs that nothing reads after the loss, logits above all, ahead of the "
        "backward pass. Otherwise they stay alive through it and through the next forward pass, until they are rebound."
    )
    applies_when = "a training loop keeps a model's output under a name that is not read after the backward pass"
    risk = "None to the numbers; what is deleted is what nobody reads."
    source = "PyTorch documentation, 'Frequently Asked Questions', 'Don't hold onto tensors and variables you don't need'"
    words = ("backward",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        models = module_names(file, program)
        for suites in owners(file):
            for block in suites:
                if not block.looped:
                    continue
                for at, statement in enumerate(block.statements):
                    if _backward(statement) and (unread := _unread(block, at, models)):
                        edits.before(statement, f"del {', '.join(unread)}\n")
                        break

    def predict(self, situation: Situation) -> Effect:
        time = TIME_OF_RELEASE if fault_share(situation) else 0.0
        return Effect(time, memory=log(1 - SAVED_OF_LOGITS * logits_share(situation)))


def _unread(block: Block, backward: int, models: set[str]) -> list[str]:
    """Names that a call of a model binds ahead of the backward pass and that are read, if at all, up to it."""
    statements = block.statements
    found: list[str] = []
    for at, statement in enumerate(statements[:backward]):
        for name in _outputs(statement, models):
            inside = sum(flow.names(s).read[name] for s in statements[at:backward])
            bound = flow.names(block.owner).bound[name]
            if flow.names(block.owner).read[name] == inside and bound == 1 and not _is_declared(block.owner, name):
                found.append(name)
    return found


def _outputs(statement: cst.CSTNode, models: set[str]) -> Iterator[str]:
    """Names bound to a model's result by a line, or by one directly under a `with`."""
    if isinstance(statement, cst.With):
        for inner in statement.body.body:
            yield from _outputs(inner, models)
    match flow.small(statement):
        case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value) if _calls(value, models):
            parts = [e.value for e in target.elements] if isinstance(target, cst.Tuple) else [target]
            yield from (part.value for part in parts if isinstance(part, cst.Name))


def _calls(value: cst.BaseExpression, models: set[str]) -> bool:
    return isinstance(value, cst.Call) and isinstance(value.func, cst.Name | cst.Attribute) and code(value.func) in models


def _is_declared(owner: cst.CSTNode, name: str) -> bool:
    """Whether a name is global or nonlocal somewhere, is deleted already, or all names are looked at as a whole."""
    for node in walk(owner):
        match node:
            case cst.Global(names=names) | cst.Nonlocal(names=names):
                if any(item.name.value == name for item in names):
                    return True
            case cst.Del(target=target):
                if any(isinstance(n, cst.Name) and n.value == name for n in walk(target)):
                    return True
            case cst.Call(func=cst.Name(value="locals" | "globals" | "vars" | "eval" | "exec")):
                return True
    return False


class EarlyZeroGrad(Codemod):
    id = "early-zero-grad"
    title = "Gradients dropped before the forward pass"
    layer: Layer = "memory"
    summary = (
        "Moves zero_grad() from between forward and backward pass to the front of the forward pass: the gradients of the "
        "step before, as large as the parameters, are not alive while activations pile up."
    )
    applies_when = "a training loop calls zero_grad() after the forward pass and right before the backward pass"
    risk = "None to the numbers; the forward pass must not read gradients."
    source = "PyTorch performance tuning guide, 'Use parameter.grad = None instead of model.zero_grad()'"
    words = ("zero_grad",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if any(isinstance(n, cst.Attribute) and n.attr.value == "grad" for f in program.files.values() for n in walk(f.module)):
            return
        models = module_names(file, program)
        for suites in owners(file):
            for block in suites:
                if block.looped and (move := _late_clearing(block.statements, models)):
                    _move(block.statements, *move, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or not profile.parameters or not profile.peak_bytes:
            return Effect(time=0.0, memory=-0.02)
        return Effect(time=0.0, memory=log(1 - min(0.2, 2.0 * profile.parameters / profile.peak_bytes)))


def _late_clearing(statements: Sequence[cst.BaseStatement], models: set[str]) -> tuple[int, int] | None:
    """(forward, zero_grad): indices of the first call of a model and of a clearing after it with the backward pass behind."""
    forward = next((i for i, s in enumerate(statements) if any(_calls_model(n, models) for n in own(s))), None)
    if forward is None:
        return None
    for at in range(forward + 1, len(statements)):
        statement = statements[at]
        if not isinstance(statement, cst.SimpleStatementLine | cst.With):
            return None
        if _clears(statement):
            later = any(is_backward(n) for s in statements[at + 1 :] for n in own(s))
            return (forward, at) if later else None
        if any(is_backward(n) or _steps(n) for n in own(statement)):
            return None
    return None


def _calls_model(node: cst.CSTNode, models: set[str]) -> bool:
    return isinstance(node, cst.Call) and _calls(node, models)


def _steps(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "step"


def _clears(statement: cst.CSTNode) -> bool:
    match flow.small(statement):
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(), attr=cst.Name(value="zero_grad")), args=args)):
            return all(isinstance(a.value, cst.Name) for a in args)
    return False


def _move(statements: Sequence[cst.BaseStatement], forward: int, clearing: int, edits: Edits) -> None:
    """Only where the optimizer's own name keeps its value on the way."""
    line = statements[clearing]
    small = flow.small(line)
    assert small is not None
    wanted = set(flow.names(line).read)
    if any(flow.names(s).bound[n] for s in statements[forward:clearing] for n in wanted):
        return
    edits.before(statements[forward], f"{code(small)}\n")
    edits.remove(line)

"""Tensors made where they are needed, and numbers read back only where somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import owners, trains
from rsi_tui.techniques.idioms.tree import Edits, bare, code, keyword, walk, with_keyword

FACTORIES = ("torch.zeros", "torch.ones", "torch.full", "torch.arange", "torch.eye", "torch.empty")
_FOLLOWERS = {"tril", "triu", "bool", "long", "int", "float", "view", "reshape", "unsqueeze", "expand", "transpose", "t"}
"""methods that give the same values on any device"""
_FUNCTIONS = ("torch.tril", "torch.triu")


class CreateOnDevice(Codemod):
    id = "create-on-device"
    title = "Tensors created on the device"
    layer: Layer = "data"
    summary = (
        "Makes zeros, ones, ranges and masks on the device where they are used, by device=, and not on the host with a copy "
        "behind it: on a GPU each of those copies stops the host until it has arrived."
    )
    applies_when = "torch.zeros, ones, full, arange or eye, with tril and the like on it, is followed by .to(x.device) or .cuda()"
    risk = "None: the values are whole numbers, made the same way everywhere."
    source = "PyTorch performance tuning guide, 'Create tensors directly on the target device'"
    words = FACTORIES

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for node in walk(file.module):
            if isinstance(node, cst.Call) and (found := _moved(file, node)):
                chain, factory, device = found
                changed = chain.deep_replace(factory, with_keyword(factory, "device", device))
                assert isinstance(changed, cst.BaseExpression)
                edits.replace(node, changed.with_changes(lpar=node.lpar, rpar=node.rpar) if node.lpar else changed)

    def predict(self, situation: Situation) -> Effect:
        on_cpu = situation.profile is None or situation.profile.device == "cpu"
        return Effect(time=0.0 if on_cpu else -0.005)


def _moved(file: SourceFile, call: cst.Call) -> tuple[cst.Call, cst.Call, str] | None:
    """(expression that is moved, factory in it, device) of `torch.ones(...).to(device)`."""
    if not isinstance(call.func, cst.Attribute) or not isinstance(call.func.value, cst.Call):
        return None
    device = _target(call)
    factory = _factory(file, call.func.value)
    return (call.func.value, factory, device) if device and factory is not None else None


def _target(call: cst.Call) -> str:
    """The device of `.to(...)` or `.cuda()`; '' where the argument could be a type."""
    assert isinstance(call.func, cst.Attribute)
    method = call.func.attr.value
    if method == "cuda" and not call.args:
        return '"cuda"'
    if method != "to" or len(call.args) != 1 or call.args[0].star:
        return ""
    argument = call.args[0]
    match argument.value:
        case cst.Attribute(attr=cst.Name(value="device")):
            return bare(argument.value)
        case cst.SimpleString():
            return bare(argument.value)
    named = argument.keyword is not None and argument.keyword.value == "device"
    return bare(argument.value) if named else ""


def _factory(file: SourceFile, node: cst.BaseExpression) -> cst.Call | None:
    """The factory at the root of a chain, without a device of its own and with whole numbers alone."""
    while isinstance(node, cst.Call):
        name = file.qualified(node.func)
        if name in FACTORIES:
            plain = keyword(node, "device") is None and keyword(node, "out") is None and not any(a.star for a in node.args)
            floats = name == "torch.arange" and any(isinstance(n, cst.Float | cst.BinaryOperation) for n in walk(node))
            return node if plain and not floats else None
        if name in _FUNCTIONS and node.args and node.args[0].keyword is None:
            node = node.args[0].value
        elif not name and isinstance(node.func, cst.Attribute) and node.func.attr.value in _FOLLOWERS:
            node = node.func.value
        else:
            return None
    return None


class ReadBackWhenShown(Codemod):
    id = "read-back-when-shown"
    title = "Numbers read back only where they are shown"
    layer: Layer = "data"
    summary = (
        "Moves x = loss.item() into the branch that prints or logs it, where nothing else reads x. In the steps that show "
        "nothing, a GPU's host no longer waits for the loss and goes on to queue the next step."
    )
    applies_when = "a training loop calls .item() in every step for a value that only one later branch reads"
    risk = "None: the same number, read later, of a tensor that does not change in between."
    source = "PyTorch performance tuning guide, 'Avoid unnecessary CPU-GPU synchronization'"
    words = (".item()",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for suites in owners(file):
            for block in suites:
                if block.looped and any(trains(s) for s in block.statements):
                    for at, branch, line in _shown_later(block):
                        edits.before(branch, line)
                        statement = block.statements[at]
                        assert isinstance(statement, cst.BaseStatement)
                        edits.remove(statement)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None or situation.profile.device == "cpu":
            return Effect(time=0.0, confidence="medium")
        return Effect(faster(situation.profile.share("host_sync"), 0.5))


def _shown_later(block: Block) -> Iterator[tuple[int, cst.BaseStatement, str]]:
    """(index of a read-back, first statement of the branch that alone reads it, its text)."""
    for at, statement in enumerate(block.statements):
        given = flow.assigned(statement)
        if given is None or not isinstance(small := flow.small(statement), cst.Assign):
            continue
        name, value = given
        if (tensor := _read_back(value)) is None or flow.names(block.owner).bound[name] != 1:
            continue
        made = block.definition(tensor, at)
        if made is None or not isinstance(made.value, cst.Call | cst.BinaryOperation):
            continue
        reads = flow.names(block.owner).read[name]
        for later in range(at + 1, len(block.statements)):
            branch = block.statements[later]
            if (count := flow.names(branch).read[name]) == 0:
                continue
            if isinstance(branch, cst.If) and count == reads == flow.names(branch.body).read[name]:
                between = block.statements[at + 1 : later]
                if not _changed(between, set(flow.names(value).read)) and isinstance(branch.body, cst.IndentedBlock):
                    first = branch.body.body[0]
                    assert isinstance(first, cst.BaseStatement)
                    yield at, first, f"{code(small)}\n"
            break


def _read_back(value: cst.BaseExpression) -> str | None:
    """The tensor's name in arithmetic of names and numbers with one `name.item()`."""
    calls = [n for n in walk(value) if isinstance(n, cst.Call)]
    attributes = [n for n in walk(value) if isinstance(n, cst.Attribute | cst.Subscript | cst.Lambda | cst.Await)]
    match calls, attributes:
        case [cst.Call(func=cst.Attribute(value=cst.Name(value=tensor), attr=cst.Name(value="item")), args=[])], [_]:
            return tensor
    return None


def _changed(statements: object, names: set[str]) -> bool:
    """Whether statements bind any of the names or change its tensor in place."""
    assert isinstance(statements, list | tuple)
    for statement in statements:
        if any(flow.names(statement).bound[n] for n in names):
            return True
        for node in walk(statement):
            match node:
                case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(value=method))) if method.endswith("_"):
                    if names & set(flow.names(value).read):
                        return True
    return False

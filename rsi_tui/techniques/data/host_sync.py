"""Values that are read back from the device later, and not in the middle of the work."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, walk


class DeferHostSync(Codemod):
    id = "defer-host-sync"
    title = "Losses read back after the accumulation loop"
    layer: Layer = "data"
    summary = (
        "Keeps the loss tensors of the micro-batches and reads them after the loop, in the same order, so that "
        "what is printed does not change by a bit. On a GPU the host no longer waits after each micro-batch."
    )
    applies_when = "a loop with a backward pass adds loss.item() to a running sum that it does not read"
    risk = "None to the numbers; holds one scalar a micro-batch a little longer."
    source = "PyTorch performance tuning guide, 'Avoid unnecessary CPU-GPU synchronization'"
    words = (".item()", ".tolist()")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        owners = [f.blocks for f in file.functions] + [file.module_view()]
        for blocks in owners:
            for block in blocks:
                for statement in block.statements:
                    if isinstance(statement, cst.For) and _has_backward(statement) and statement.orelse is None:
                        _defer(block, statement, edits)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None or situation.profile.device == "cpu":
            return Effect(time=0.0, confidence="medium")
        return Effect(faster(situation.profile.share("host_sync"), 0.7), confidence="medium")


def _has_backward(loop: cst.For) -> bool:
    return any(isinstance(n, cst.Attribute) and n.attr.value == "backward" for n in walk(loop.body))


def _defer(block: Block, loop: cst.For, edits: Edits) -> None:
    if not isinstance(loop.body, cst.IndentedBlock):
        return
    for statement in loop.body.body:
        match flow.small(statement):
            case cst.AugAssign(target=cst.Name(value=total), operator=cst.AddAssign(), value=value):
                found = _read_back(value)
                if found is None or edits.touched(statement) or any(edits.touched(s) for s in (loop,)):
                    continue
                call, tensor = found
                if _is_private(block, loop, statement, total, tensor, value):
                    assert isinstance(statement, cst.SimpleStatementLine)
                    _rewrite(block, loop, statement, total, call, value, edits)
                    return


def _read_back(value: cst.BaseExpression) -> tuple[cst.Call, str] | None:
    """The single `name.item()` of an expression."""
    calls = [n for n in walk(value) if isinstance(n, cst.Call)]
    match calls:
        case [cst.Call(func=cst.Attribute(value=cst.Name(value=tensor), attr=cst.Name(value="item")), args=[]) as call]:
            return call, tensor
    return None


def _is_private(
    block: Block, loop: cst.For, statement: cst.CSTNode, total: str, tensor: str, value: cst.BaseExpression
) -> bool:
    """Whether nothing in the loop reads the sum, changes the tensor in place, or rebinds what the term needs."""
    if flow.names(loop).read[total] != 1 or flow.names(loop).bound[total] != 1:
        return False
    others = set(flow.names(value).read) - {tensor}
    if any(flow.names(loop).bound[n] for n in others):
        return False
    leaves = (cst.Break, cst.Continue, cst.Return, cst.Raise, cst.Yield)
    if any(isinstance(n, cst.Return | cst.Yield) for n in walk(loop)) or any(isinstance(n, leaves) for n in walk(statement)):
        return False
    assert isinstance(loop.body, cst.IndentedBlock)
    return not any(
        isinstance(n, cst.AugAssign) and isinstance(n.target, cst.Name) and n.target.value == tensor
        for n in walk(loop.body)
    ) and not any(flow.mutated(s, tensor) for s in loop.body.body)


def _rewrite(
    block: Block,
    loop: cst.For,
    statement: cst.SimpleStatementLine,
    total: str,
    call: cst.Call,
    value: cst.BaseExpression,
    edits: Edits,
) -> None:
    assert isinstance(call.func, cst.Attribute)
    pending, one = f"pending_{total}", f"one_of_{total}"
    text = bare(value).replace(bare(call), f"{one}.item()")
    if f"{one}.item()" not in text or flow.names(loop).bound[pending]:
        return
    tensor = bare(call.func.value)
    edits.before(loop, f"{pending} = []\n")
    (kept,) = edits.statements([f"{pending}.append({tensor}.detach())\n"])
    edits.replace(statement, kept.with_changes(leading_lines=statement.leading_lines))
    edits.after(loop, f"for {one} in {pending}:\n    {total} += {text}\n")

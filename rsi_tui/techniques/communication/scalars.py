"""Small values that are summed over the processes together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.communication.averaging import put_helper
from rsi_tui.techniques.communication.links import SECONDS_PER_COLLECTIVE
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.collectives import DIST, has_backward, reduce_op, reduced_tensor
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, keyword, walk
from rsi_tui.techniques.idioms.world import owners

_TOGETHER = '''\
def _all_reduce_together(tensors, op={dist}.ReduceOp.SUM):
    """Reduces several small tensors over all processes: one collective for each dtype and device, all under way at once."""
    groups, sent = {}, []
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for group in groups.values():
        flat = {torch}.cat([t.reshape(-1) for t in group])
        sent.append((group, flat, {dist}.all_reduce(flat, op=op, async_op=True)))
    for group, flat, work in sent:
        work.wait()
        for tensor, part in zip(group, flat.split([t.numel() for t in group])):
            tensor.copy_(part.view_as(tensor))
'''


@dataclass(frozen=True, eq=False)
class _One:
    index: int
    call: cst.Call
    tensor: str
    op: str


class FewerScalarSyncs(Codemod):
    id = "fewer-scalar-syncs"
    title = "Logged values reduced together"
    layer: Layer = "communication"
    summary = (
        "Joins the all-reduces of a step's logged values (losses, counts) into one of a short vector. Each costs a "
        "round trip, whatever its size."
    )
    applies_when = "several tensors are all-reduced one after the other, and none is read in between"
    risk = "None to the numbers: the same sums, element by element."
    source = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.1 (small collectives)"
    words = ("all_reduce",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if "_all_reduce_together" in file.text:
            return
        for owner in owners(file):
            for block in owner.blocks:
                for group in _groups(file, block):
                    _join(file, block, group, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.002)
        return Effect(faster(2 * SECONDS_PER_COLLECTIVE / profile.step_s, 0.9))


def _groups(file: SourceFile, block: Block) -> Iterator[list[_One]]:
    """Runs of at least two reductions by one operation that can be moved to the last of them."""
    group: list[_One] = []
    for index, statement in enumerate(block.statements):
        found = _one(file, index, statement)
        counted = flow.names(statement)
        mine = {one.tensor for one in group}
        simple = isinstance(statement, cst.SimpleStatementLine)
        uses = any(counted.read[n] or counted.bound[n] for n in mine)
        other = found is None and (not simple or has_backward(statement) or _communicates(file, statement))
        if group and (uses or other or (found is not None and found.op != group[0].op)):
            if len(group) > 1:
                yield group
            group = []
        if found is not None:
            group.append(found)
    if len(group) > 1:
        yield group


def _one(file: SourceFile, index: int, statement: cst.CSTNode) -> _One | None:
    match flow.small(statement):
        case cst.Expr(value=cst.Call() as call):
            op, tensor = reduce_op(file, call), reduced_tensor(call)
            if op is not None and isinstance(tensor, cst.Name):
                return _One(index, call, tensor.value, _op_text(call))
    return None


def _op_text(call: cst.Call) -> str:
    positional = [a.value for a in call.args if a.keyword is None]
    op = positional[1] if len(positional) > 1 else keyword(call, "op")
    return bare(op) if op is not None else ""


def _communicates(file: SourceFile, statement: cst.CSTNode) -> bool:
    return any(isinstance(n, cst.Call) and file.qualified(n.func).startswith(f"{DIST}.") for n in walk(statement))


def _join(file: SourceFile, block: Block, group: list[_One], edits: Edits) -> None:
    if edits.empty:
        put_helper(file, _TOGETHER, edits)
    tensors = ", ".join(one.tensor for one in group)
    op = f", {group[0].op}" if group[0].op else ""
    for one in group[:-1]:
        edits.remove(block.statements[one.index])
    edits.replace(group[-1].call, f"_all_reduce_together([{tensors}]{op})")

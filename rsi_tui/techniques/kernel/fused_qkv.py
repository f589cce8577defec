"""Several linear layers on one input -> one matrix product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.ops import Reader
from rsi_tui.techniques.idioms.program import FUNCTIONAL, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, code, walk

LAYERS_JOINED = 3
SAVED_OF_LINEAR = 0.03
"""small: one larger product instead of three, less the copy that joins the weights"""


@dataclass(frozen=True)
class _Group:
    block: Block
    first: int
    calls: tuple[cst.Call, ...]
    layers: tuple[str, ...]
    argument: str
    has_bias: str
    """'yes', 'no', or '' when only the layers know"""


class FusedQkv(Codemod):
    id = "fused-qkv"
    title = "Queries, keys and values in one product"
    layer: Layer = "kernel"
    summary = (
        "Joins the weights of three linear layers on the same input at run time and makes one matrix product of them: "
        "fewer calls, the input is read once. Parameters keep their names and layout, so checkpoints do not change."
    )
    applies_when = "three nn.Linear layers of a module are called on the same variable one after the other"
    risk = "Another blocking of the products, about 1e-7 relative in fp32; later view() calls must not need contiguous rows."
    source = "Vaswani et al. 2017, arXiv:1706.03762; as in GPT-2's c_attn"
    words = ("Linear",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function in file.functions:
            if function.cls is not None:
                for block in function.blocks:
                    for group in _groups(Reader(file, function), block):
                        _join(group, function.node, file, edits)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.005)
        return Effect(faster(situation.profile.operator_share("addmm", "aten::mm", "linear"), SAVED_OF_LINEAR))


def _groups(reader: Reader, block: Block) -> Iterator[_Group]:
    """Three layers called on one variable that keeps its value meanwhile."""
    by_input: dict[str, list[tuple[int, cst.Call]]] = {}
    for at, statement in enumerate(block.statements):
        if isinstance(statement, cst.SimpleStatementLine):
            for node in walk(statement):
                if isinstance(node, cst.Call) and reader.layer_kind(node.func) == "torch.nn.Linear":
                    arg = node.args[0].value if len(node.args) == 1 else None
                    if isinstance(arg, cst.Name):
                        by_input.setdefault(arg.value, []).append((at, node))
        for name in flow.names(statement).bound:
            # a new value: what was called on the old one can't be joined with what follows
            if len(calls := by_input.pop(name, [])) == LAYERS_JOINED and at >= calls[-1][0]:
                yield from _group(reader, block, name, calls)
    for name, calls in by_input.items():
        if len(calls) == LAYERS_JOINED:
            yield from _group(reader, block, name, calls)


def _group(reader: Reader, block: Block, name: str, calls: list[tuple[int, cst.Call]]) -> Iterator[_Group]:
    layers = tuple(bare(call.func) for _, call in calls)
    biases = []
    for _, call in calls:
        layer = reader.layer(call.func)
        assert layer is not None
        bias = reader.layer_kwargs(layer).get("bias")
        biases.append("True" if bias is None else code(bias))
    if len(set(layers)) == LAYERS_JOINED and len(set(biases)) == 1:
        known = {"True": "yes", "False": "no"}.get(biases[0], "")
        yield _Group(block, calls[0][0], tuple(c for _, c in calls), layers, name, known)


def _join(group: _Group, function: cst.FunctionDef, file: SourceFile, edits: Edits) -> None:
    statement = group.block.statements[group.first]
    names = [layer.split(".")[-1] + "_out" for layer in group.layers]
    taken = flow.names(function)
    if any(taken.bound[n] or taken.read[n] for n in names) or any(edits.touched(c) for c in group.calls):
        return
    cat, linear = file.spell("torch.cat", edits), file.spell(f"{FUNCTIONAL}.linear", edits)
    weights = f"{cat}([{', '.join(f'{layer}.weight' for layer in group.layers)}])"
    biases = f"{cat}([{', '.join(f'{layer}.bias' for layer in group.layers)}])"
    bias = {"yes": f", {biases}", "no": ""}.get(
        group.has_bias, f", None if {group.layers[0]}.bias is None else {biases}"
    )
    sizes = ", ".join(f"{layer}.out_features" for layer in group.layers)
    edits.before(
        statement,
        f"{', '.join(names)} = {linear}({group.argument}, {weights}{bias}).split([{sizes}], dim=-1)\n",
    )
    for call, name in zip(group.calls, names, strict=True):
        edits.replace(call, name)

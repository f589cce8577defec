"""Linear layers of a module that are called on one variable, and their single product in place of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.ops import Reader
from rsi_tui.techniques.idioms.program import FUNCTIONAL, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, code, walk


@dataclass(frozen=True)
class Group:
    """Calls of layers on one variable that keeps its value meanwhile."""

    block: Block
    first: int
    """statement of the first call"""
    calls: tuple[cst.Call, ...]
    layers: tuple[str, ...]
    argument: str
    has_bias: str
    """'yes', 'no', or '' when only the layers know"""


def groups(reader: Reader, block: Block, count: int) -> Iterator[Group]:
    """Exactly `count` different layers called on one variable."""
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
            if len(calls := by_input.pop(name, [])) == count and at >= calls[-1][0]:
                yield from _group(reader, block, name, calls)
    for name, calls in by_input.items():
        if len(calls) == count:
            yield from _group(reader, block, name, calls)


def _group(reader: Reader, block: Block, name: str, calls: list[tuple[int, cst.Call]]) -> Iterator[Group]:
    layers = tuple(bare(call.func) for _, call in calls)
    biases = []
    for _, call in calls:
        layer = reader.layer(call.func)
        assert layer is not None
        bias = reader.layer_kwargs(layer).get("bias")
        biases.append("True" if bias is None else code(bias))
    if len(set(layers)) == len(calls) and len(set(biases)) == 1:
        known = {"True": "yes", "False": "no"}.get(biases[0], "")
        yield Group(block, calls[0][0], tuple(c for _, c in calls), layers, name, known)


def join_layers(file: SourceFile, count: int, edits: Edits) -> None:
    """Edit every group of `count` layers of a file into one product, split again behind it."""
    for function in file.functions:
        if function.cls is not None:
            for block in function.blocks:
                for group in groups(Reader(file, function), block, count):
                    _join(group, function.node, file, edits)


def _join(group: Group, function: cst.FunctionDef, file: SourceFile, edits: Edits) -> None:
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

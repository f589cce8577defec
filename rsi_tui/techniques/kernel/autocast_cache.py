"""Weights cast once an update under autocast, and not once a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.ops import split_args
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import own, owners, trains
from rsi_tui.techniques.idioms.tree import Edits, bare, keyword, walk
from rsi_tui.techniques.knobs import is_bf16, value_now

_CONTEXTS = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
BYTES_PER_SECOND = 1e10
"""reading fp32 and writing bf16, one CPU core; a GPU is a hundred times as fast, and its products too"""


class AutocastCacheKept(Codemod):
    id = "autocast-cache-kept"
    title = "Weights cast once an update"
    layer: Layer = "kernel"
    summary = (
        "Puts the accumulation loop under an outer autocast context that is switched off. Autocast keeps the cast copies of "
        "the weights until the outermost context ends, so that they are made once an update and not once a micro-batch."
    )
    applies_when = "an inner loop of micro-batches enters torch.autocast in each of its turns, without an update in between"
    risk = "The same numbers; cast copies of the weights, half their size, live through the backward passes."
    source = "PyTorch documentation, torch.autocast, cache_enabled; torch/amp/autocast_mode.py"
    words = ("autocast",)

    def apply(self, situation: Situation) -> Change:
        """Empty where the program computes in fp32: its autocast contexts are switched off then."""
        profile = situation.profile
        set_so = any(is_bf16(value_now(situation, k)) for k in situation.contract.knobs if "precision" in k.affects)
        if profile is not None and profile.dtype == "float32" and not set_so:
            return Change()
        return super().apply(situation)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for suites in owners(file):
            for block in suites:
                for at, statement in enumerate(block.statements):
                    if isinstance(statement, cst.For) and block.looped and (device := _device(file, block, statement)):
                        _wrap(file, block, at, statement, device, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or not profile.parameters:
            return Effect(time=0.0)
        seconds = 6.0 * profile.parameters / BYTES_PER_SECOND
        return Effect(faster(seconds / profile.step_s, 0.5) if profile.device == "cpu" else -0.005, memory=0.01)


def _device(file: SourceFile, block: Block, loop: cst.For) -> str:
    """The device type of the autocast contexts of a loop that makes backward passes and no update; '' for other loops."""
    if not trains(loop) or any(_updates(n) for n in own(loop)) or _covered(file, block.owner, loop):
        return ""
    found = {bare(d) for call in _entered(file, block, loop) if (d := _device_of(file, call)) is not None}
    if len(found) != 1:
        return ""
    (device,) = found
    bound = flow.names(block.owner).bound
    once = all(bound[n] <= 1 for n in flow.names(cst.parse_expression(device)).read)
    return device if once else ""


def _updates(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "step"


def _entered(file: SourceFile, block: Block, loop: cst.For) -> Iterator[cst.Call]:
    """Autocast contexts that the loop enters: written there, or under a name that the function gives them."""
    for node in own(loop):
        if not isinstance(node, cst.With):
            continue
        for item in node.items:
            match item.item:
                case cst.Call(func=func) as call if file.qualified(func) in _CONTEXTS:
                    yield call
                case cst.Name(value=name):
                    yield from _named(file, block.owner, name)


def _named(file: SourceFile, owner: cst.CSTNode, name: str) -> Iterator[cst.Call]:
    for node in walk(owner):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))], value=value) if target == name:
                yield from (
                    n for n in walk(value) if isinstance(n, cst.Call) and file.qualified(n.func) in _CONTEXTS
                )


def _device_of(file: SourceFile, call: cst.Call) -> cst.BaseExpression | None:
    split = split_args(call.args)
    if split is None or keyword(call, "cache_enabled") is not None:
        return None
    positional, given = split
    return given.get("device_type") or (positional[0] if positional else None)


def _wrap(file: SourceFile, block: Block, at: int, loop: cst.For, device: str, edits: Edits) -> None:
    context = file.spell("torch.autocast", edits)
    (shell,) = edits.statements([f"with {context}(device_type={device}, enabled=False):\n    pass\n"])
    assert isinstance(shell, cst.With)
    inner = loop.with_changes(leading_lines=())
    edits.replace(loop, shell.with_changes(leading_lines=loop.leading_lines, body=cst.IndentedBlock([inner])))


def _covered(file: SourceFile, owner: cst.CSTNode, loop: cst.For) -> bool:
    """Whether the loop stands under an autocast context of its own already, at any depth."""
    for node in walk(owner):
        if isinstance(node, cst.With) and any(
            isinstance(i.item, cst.Call) and file.qualified(i.item.func) in _CONTEXTS for i in node.items
        ) and any(n is loop for n in walk(node.body)):
            return True
    return False

"""The last layer only where its output is read: at one position, or at the targets that count."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.ops import Reader, integer
from rsi_tui.techniques.idioms.program import FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, operand, walk
from rsi_tui.techniques.memory.cross_entropy import LOSS_OPERATORS, HeadLossCodemod, logits_share

HEAD_SHARE = 0.2
"""of a step, by a head over a vocabulary, where the profile can't tell it from other layers"""
MASKED = 0.3
"""share of targets taken to be masked, where nobody knows"""

_KEPT_ROWS = '''\
def _kept_rows_cross_entropy(hidden, weight, bias, targets, ignore_index=-100, **options):
    """Mean cross-entropy of a linear layer's rows; those whose target does not count are not multiplied."""
    hidden, targets = hidden.reshape(-1, hidden.size(-1)), targets.reshape(-1)
    counts = targets != ignore_index
    return {F}.cross_entropy({F}.linear(hidden[counts], weight, bias), targets[counts], **options)
'''


class OnePositionHead(Codemod):
    id = "one-position-head"
    title = "Last layer at the one position that is read"
    layer: Layer = "kernel"
    summary = (
        "Cuts the hidden states to the last, or first, position ahead of a linear layer of whose output only that "
        "position is read: one row of the product in place of one for each token."
    )
    applies_when = "every read of a linear layer's output is [:, -1, :], or every one is [:, 0, :]"
    risk = "Another blocking of the product, about 1e-7 relative in fp32."
    source = "nanoGPT's inference path; Devlin et al. 2019, arXiv:1810.04805, for the first position"
    words = ("Linear",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function in file.functions:
            if function.cls is None:
                continue
            reader = Reader(file, function)
            for call, position in _read_at_one(reader, function):
                argument = call.args[0].value
                cut = "[:, -1:, :]" if position == -1 else "[:, :1, :]"
                if not bare(argument).replace(" ", "").endswith(cut.replace(" ", "")) and not edits.touched(call):
                    edits.replace(call, call.with_changes(args=[cst.Arg(cst.parse_expression(operand(argument) + cut))]))

    def predict(self, situation: Situation) -> Effect:
        return Effect(faster(HEAD_SHARE, 0.8), memory=-0.5 * logits_share(situation))


def _read_at_one(reader: Reader, function: FunctionView) -> Iterator[tuple[cst.Call, int]]:
    """Calls of linear layers whose output is read at one position alone: (call, -1 or 0)."""
    for node in walk(function.node):
        match node:
            case cst.Subscript(value=cst.Call() as call) if _is_head(reader, call):
                if (position := _position(node)) is not None:
                    yield call, position
    for block in function.blocks:
        for statement in block.statements:
            given = flow.assigned(statement)
            if given is None or not isinstance(given[1], cst.Call) or not _is_head(reader, given[1]):
                continue
            if (position := _only_position(function, block, given[0])) is not None:
                yield given[1], position


def _is_head(reader: Reader, call: cst.Call) -> bool:
    plain = len(call.args) == 1 and call.args[0].keyword is None and not call.args[0].star
    return plain and reader.layer_kind(call.func) == "torch.nn.Linear"


def _only_position(function: FunctionView, block: Block, name: str) -> int | None:
    """The position at which each read of a name looks, None when they differ or one looks elsewhere."""
    if flow.names(function.node).bound[name] != 1:
        return None
    found: list[int | None] = []
    for node in walk(function.node):
        match node:
            case cst.Subscript(value=cst.Name(value=read)) if read == name:
                found.append(_position(node))
    if not found or len(found) != flow.names(function.node).read[name] or len(set(found)) != 1:
        return None
    return found[0]


def _position(node: cst.Subscript) -> int | None:
    """-1 of `[:, -1, :]`, 0 of `[:, 0, :]`, None for other subscripts."""
    match node.slice:
        case [
            cst.SubscriptElement(slice=cst.Slice(lower=None, upper=None, step=None)),
            cst.SubscriptElement(slice=cst.Index(value=index)),
            cst.SubscriptElement(slice=cst.Slice(lower=None, upper=None, step=None)),
        ]:
            return at if (at := integer(index)) in (0, -1) else None
    return None


class CountedRowsHead(HeadLossCodemod):
    id = "counted-rows-head"
    title = "Logits of the targets that count"
    layer: Layer = "kernel"
    summary = (
        "Takes the rows whose target is ignore_index out of the hidden states ahead of the head: logits, their softmax "
        "and their gradients are made for the rest alone. Masked language models and instruction tuning ignore most rows."
    )
    applies_when = "a mean cross-entropy with an ignore_index is taken of a linear layer's output that nothing else reads"
    risk = "Another blocking of the product, about 1e-7 relative in fp32; the number of rows varies, which graphs dislike."
    source = "Geiping and Goldstein 2022, arXiv:2212.14034, 'sparse token prediction'"
    conflicts: tuple[str, ...] = ("chunked-cross-entropy", "linear-cross-entropy")
    helper = "_kept_rows_cross_entropy"
    definitions = (_KEPT_ROWS,)
    options = ("ignore_index", "label_smoothing")
    needed = ("ignore_index",)

    def predict(self, situation: Situation) -> Effect:
        memory = -MASKED * logits_share(situation)
        if situation.profile is None:
            return Effect(time=-0.03, memory=memory)
        share = situation.profile.operator_share(*LOSS_OPERATORS) + HEAD_SHARE
        return Effect(faster(share, MASKED), memory)

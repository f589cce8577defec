"""Experts' buffers filled and emptied by einsum with a one-hot mask -> by gathering the rows that count."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.einsum import Einsum, einsum
from rsi_tui.techniques.idioms.inplace import changed_in_place
from rsi_tui.techniques.idioms.ops import CASTS, Place, Reader, given
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, walk

SHARE_OF_EINSUM = 0.3
"""of matrix products, where the profile does not tell which are dispatch: one product of tokens x experts x capacity"""
SAVED_OF_EINSUM = 0.9
DISPATCH, COMBINE = "_fill_buffers", "_empty_buffers"
_HELPERS = '''\
def _fill_buffers(mask, tokens):
    """einsum("sec,sm->ecm", mask, tokens) of a mask of zeros and ones, by rows."""
    token, expert, place = mask.nonzero(as_tuple=True)
    buffers = tokens.new_zeros(mask.size(1) * mask.size(2), tokens.size(1))
    buffers = buffers.index_add(0, expert * mask.size(2) + place, tokens.index_select(0, token))
    return buffers.view(mask.size(1), mask.size(2), -1)


def _empty_buffers(weights, buffers):
    """einsum("sec,ecm->sm", weights, buffers) of weights that a mask has made zero almost everywhere, by rows."""
    token, expert, place = weights.detach().nonzero(as_tuple=True)
    rows = buffers.flatten(0, 1).index_select(0, expert * weights.size(2) + place)
    rows = rows * weights[token, expert, place].unsqueeze(-1)
    return rows.new_zeros(weights.size(0), rows.size(1)).index_add(0, token, rows)
'''
_VIEWS = {"unsqueeze", "view", "reshape", "expand", "transpose", "permute", "squeeze"}


class NoCapacityPadding(Codemod):
    id = "no-capacity-padding"
    title = "Expert buffers filled by index"
    layer: Layer = "kernel"
    summary = (
        "Replaces einsum with a mask of tokens x experts x capacity, which multiplies almost everything by zero, by "
        "gathering the few rows that the mask lets through, into the buffers and back out of them."
    )
    applies_when = (
        "torch.einsum fills experts' buffers through a mask that is provably made of zeros and ones, or sums their "
        "outputs by weights that such a mask was multiplied into"
    )
    risk = "Sums of the same few terms without the zeros, about 1e-7 relative. No gradient reaches weights that are zero."
    source = "Lepikhin et al. 2020, GShard, arXiv:2006.16668; Gale et al. 2023, MegaBlocks, arXiv:2211.15841"
    words = ("einsum",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if f"def {DISPATCH}(" in file.text:
            return
        for function in file.functions:
            reader = Reader(file, function)
            for block in function.blocks:
                for at, statement in enumerate(block.statements):
                    if isinstance(statement, cst.SimpleStatementLine):
                        for node in walk(statement):
                            text = _rewritten(reader, Place(block, at), node) if isinstance(node, cst.Call) else ""
                            if text and isinstance(node, cst.Call):
                                if edits.empty:
                                    edits.helper(_HELPERS.split("\n\n\n")[0] + "\n")
                                    edits.helper(_HELPERS.split("\n\n\n")[1])
                                edits.replace(node, text)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.1, memory=-0.05)
        share = SHARE_OF_EINSUM * situation.profile.operator_share("einsum", "aten::bmm", "aten::mm")
        return Effect(faster(share, SAVED_OF_EINSUM), memory=-0.05)


def _rewritten(reader: Reader, place: Place, node: cst.Call) -> str:
    op = reader.op(node)
    product = einsum(op) if op is not None and op.name == "einsum" and not op.keywords else None
    if product is None:
        return ""
    mask = product.left
    if _fills(product) and is_mask(reader, mask, place):
        return f"{DISPATCH}({bare(mask)}, {bare(product.right)})"
    if _empties(product) and is_masked(reader, mask, place):
        return f"{COMBINE}({bare(mask)}, {bare(product.right)})"
    return ""


def _fills(product: Einsum) -> bool:
    """`sec,sm->ecm`"""
    left, right, result = product.left_axes, product.right_axes, product.result
    return len(left) == 3 and len(right) == 2 and right[0] == left[0] and right[1] not in left and result == left[1:] + right[1]


def _empties(product: Einsum) -> bool:
    """`sec,ecm->sm`"""
    left, right, result = product.left_axes, product.right_axes, product.result
    return (
        len(left) == 3 and len(right) == 3 and right[:2] == left[1:] and right[2] not in left and result == left[0] + right[2]
    )


def is_mask(reader: Reader, node: cst.BaseExpression, place: Place, depth: int = 0) -> bool:
    """Whether a tensor provably holds zeros and ones alone, and has no gradient."""
    if depth > 16:
        return False
    if isinstance(node, cst.Name):
        found = given(place, node)
        if found is None or changed_in_place(place.block.statements[found.index + 1 : place.index], node.value):
            return False
        return is_mask(reader, found.value, Place(place.block, found.index), depth + 1)
    if isinstance(node, cst.Subscript):
        return is_mask(reader, node.value, place, depth + 1)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd):
        return all(is_mask(reader, side, place, depth + 1) for side in (node.left, node.right))
    op = reader.op(node)
    if op is None or not op.args:
        return False
    if op.name == "bool" and isinstance(node, cst.Call):
        return True
    if op.name in ("one_hot", "eq", "ne", "lt", "le", "gt", "ge", "logical_and"):
        return isinstance(node, cst.Call | cst.Comparison)
    if op.name == "mul" and len(op.args) == 2:
        return all(is_mask(reader, side, place, depth + 1) for side in op.args)
    if op.name in CASTS | _VIEWS | {"int", "long"}:
        return is_mask(reader, op.args[0], place, depth + 1)
    return False


def is_masked(reader: Reader, node: cst.BaseExpression, place: Place, depth: int = 0) -> bool:
    """Whether a tensor provably is a product with a mask of zeros and ones, so that its zeros stay zeros."""
    if depth > 16:
        return False
    if isinstance(node, cst.Name):
        found = given(place, node)
        return found is not None and is_masked(reader, found.value, Place(place.block, found.index), depth + 1)
    if is_mask(reader, node, place, depth + 1):
        return True
    op = reader.op(node)
    if op is None or not op.args:
        return False
    if op.name == "mul" and len(op.args) == 2:
        return any(is_masked(reader, side, place, depth + 1) for side in op.args)
    if op.name in CASTS | _VIEWS:
        return is_masked(reader, op.args[0], place, depth + 1)
    return False

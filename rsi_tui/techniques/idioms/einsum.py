"""Two-operand einsum equations, and when a pair of them is attention."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from rsi_tui.techniques.idioms.ops import Op


@dataclass(frozen=True)
class Einsum:
    """`left_axes,right_axes->result` of two operands."""

    left_axes: str
    right_axes: str
    result: str
    left: cst.BaseExpression
    right: cst.BaseExpression

    def attention(self, product: Einsum) -> tuple[bool, str, str, str, str] | None:
        """How to lay out queries, keys, values and result, when this makes scores that `product` weighs values by.

        Returns whether the operands are keys first, and for each of queries, keys, values and the result the text
        of a permutation ('' for none). None when it is not attention over the last dimension of the scores.
        """
        scores = self.result
        if len(scores) != 4 or len(product.left_axes) != 4 or len(set(scores)) != 4:
            return None
        renamed = dict(zip(product.left_axes, scores, strict=True))
        batch, row, column = scores[:2], scores[2], scores[3]
        for flipped in (False, True):
            query, key = (self.right_axes, self.left_axes) if flipped else (self.left_axes, self.right_axes)
            width = (set(query) & set(key)) - set(scores)
            if len(width) != 1 or set(query) != {*batch, row, *width} or set(key) != {*batch, column, *width}:
                continue
            (w,) = width
            feature = set(product.right_axes) - set(product.left_axes)
            if len(feature) != 1:
                return None
            (f,) = feature
            values = "".join(renamed.get(a, a) if a != f else "*" for a in product.right_axes)
            result = "".join(renamed.get(a, a) if a != f else "*" for a in product.result)
            if set(values) != {*batch, column, "*"} or set(result) != {*batch, row, "*"}:
                return None
            return (
                flipped,
                _reorder(query, batch + row + w),
                _reorder(key, batch + column + w),
                _reorder(values, batch + column + "*"),
                _reorder(batch + row + "*", result),
            )
        return None


def _reorder(have: str, want: str) -> str:
    """Text of the method call that brings axes from one order to another."""
    if have == want:
        return ""
    order = [have.index(axis) for axis in want]
    moved = [i for i, axis in enumerate(order) if i != axis]
    if len(moved) == 2:
        return f".transpose({moved[0]}, {moved[1]})"
    return f".permute({', '.join(map(str, order))})"


def einsum(op: Op) -> Einsum | None:
    """The equation of an einsum call with two operands and plain letters."""
    if len(op.args) != 3 or not isinstance(op.args[0], cst.SimpleString):
        return None
    text = str(op.args[0].evaluated_value).replace(" ", "")
    if "->" not in text or "." in text or text.count(",") != 1:
        return None
    sides, result = text.split("->")
    left, right = sides.split(",")
    if any(len(set(axes)) != len(axes) for axes in (left, right, result)):
        return None
    return Einsum(left, right, result, op.args[1], op.args[2])

"""Materialised attention -> torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.einsum import Einsum, einsum
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.ops import (
    Op,
    Place,
    Reader,
    given,
    integer,
    is_transpose_of_last_two,
    uncast,
    very_negative,
)
from rsi_tui.techniques.idioms.program import FUNCTIONAL, FunctionView, Program, SourceFile
from rsi_tui.techniques.idioms.scales import Scales
from rsi_tui.techniques.idioms.tree import Edits, operand, walk
from rsi_tui.techniques.idioms.triangle import triangle

ATTENTION_OPERATORS = ("aten::_softmax", "aten::softmax", "masked_fill", "bmm", "aten::where", "aten::eq", "tril", "triu")
SAVED_OF_ATTENTION = 0.55
"""part of the attention operators' time that the fused kernel saves, CPU, T 256-1024"""


@dataclass
class _Chain:
    """A product of attention weights and values, followed back to the scores."""

    reader: Reader
    block: Block
    product: cst.BaseExpression
    at: int
    """statement of the product"""
    links: list[tuple[int, str]] = field(default_factory=list)
    """statements that make the intermediate results, nearest first, and the name each gives"""
    scales: Scales = field(default_factory=Scales)
    causal: bool = False
    mask: cst.BaseExpression | None = None
    dropout: str = ""
    query: str = ""
    key: str = ""
    value: str = ""
    after: str = ""
    """what follows the call, for einsum layouts and three-dimensional operands"""
    inputs: list[tuple[cst.BaseExpression, int]] = field(default_factory=list)
    """expressions that the fused call is made of, with the statement each is read at"""

    def step(self, node: cst.BaseExpression, at: int) -> tuple[cst.BaseExpression, int]:
        """What a name holds at a statement; the statement that made it becomes a link."""
        while isinstance(node, cst.Name) and (found := given(Place(self.block, at), node)) is not None:
            self.links.append((found.index, node.value))
            node, at = found.value, found.index
        node_under = uncast(self.reader, node)
        return self.step(node_under, at) if node_under is not node else (node, at)


class Sdpa(Codemod):
    id = "sdpa"
    title = "Scaled-dot-product attention"
    layer: Layer = "kernel"
    summary = (
        "Replaces scores, mask, softmax and weighted sum, each a tensor of batch x heads x T x T in memory, by one "
        "fused call that never stores them. It saves memory traffic and page faults and half of the causal work."
    )
    applies_when = (
        "attention is written out as two products around a softmax over the last dimension, without a mask or with "
        "one that is provably causal, and its weights are used for nothing else"
    )
    risk = (
        "Another order of additions (about 1e-6 relative in fp32). With dropout on the weights the random numbers "
        "are drawn otherwise, so that weights are equivalent only in distribution."
    )
    source = "Dao et al. 2022, FlashAttention, arXiv:2205.14135; torch.nn.functional.scaled_dot_product_attention"
    words = ("softmax", "Softmax")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function in file.functions:
            if any(isinstance(n, cst.Name) and n.value == "scaled_dot_product_attention" for n in walk(function.node)):
                continue
            reader = Reader(file, function)
            for chain in _chains(reader, function):
                if _removable(chain, function):
                    _rewrite(chain, file, function, edits)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.1, memory=-0.1, confidence="low")
        share = situation.profile.operator_share(*ATTENTION_OPERATORS)
        return Effect(faster(share, SAVED_OF_ATTENTION), memory=-0.5 * min(share, 0.6), confidence="medium")


def _chains(reader: Reader, function: FunctionView) -> Iterator[_Chain]:
    for block in function.blocks:
        for at, statement in enumerate(block.statements):
            if isinstance(statement, cst.SimpleStatementLine):
                for node in walk(statement):
                    if isinstance(node, cst.BaseExpression) and (chain := _match(reader, block, at, node)):
                        yield chain


def _match(reader: Reader, block: Block, at: int, node: cst.BaseExpression) -> _Chain | None:
    op = reader.op(node)
    if op is None or op.name not in ("matmul", "einsum"):
        return None
    chain = _Chain(reader, block, node, at)
    product = einsum(op) if op.name == "einsum" else None
    if op.name == "einsum" and product is None:
        return None
    weights, values = (product.left, product.right) if product else (op.args[0], op.args[-1])
    if not product and len(op.args) != 2:
        return None
    inner, index = chain.step(weights, at)
    inner, index = _through_dropout(chain, inner, index)
    softmax = reader.op(inner)
    if softmax is None or softmax.name != "softmax" or not softmax.args:
        return None
    if not _over_last(softmax, op, product):
        return None
    scores = _through_mask_and_scale(chain, softmax.args[0], index)
    if scores is None:
        return None
    scores_op, scores_at = scores
    chain.inputs.append((values, at))
    fine = _einsum_operands(chain, scores_op, product, values, scores_at) if product else _operands(chain, op, scores_op, values, scores_at)
    return chain if fine else None


def _over_last(softmax: Op, product: Op, equation: Einsum | None) -> bool:
    dim = integer(softmax.arg(1, "dim"))
    last = len(equation.left_axes) - 1 if equation else 2 if product.batched else 3
    return dim is not None and dim in (-1, last)


def _through_dropout(chain: _Chain, node: cst.BaseExpression, at: int) -> tuple[cst.BaseExpression, int]:
    op = chain.reader.op(node)
    if op is None or not op.args:
        return node, at
    if op.name == "dropout_layer" and op.layer is not None:
        layer = operand(op.layer)
        chain.dropout = f"{layer}.p if {layer}.training else 0.0"
    elif op.name == "dropout" and isinstance(node, cst.Call):
        rate, training = op.arg(1, "p"), op.arg(2, "training")
        p = operand(rate) if rate is not None else "0.5"
        chain.dropout = p if training is None else f"{p} if {operand(training)} else 0.0"
        chain.inputs.extend((e, at) for e in (rate, training) if e is not None)
    else:
        return node, at
    return chain.step(op.args[0], at)


def _through_mask_and_scale(chain: _Chain, node: cst.BaseExpression, at: int) -> tuple[Op, int] | None:
    """The product of queries and keys below masks and factors, None when something else is in the way."""
    for _ in range(12):
        node, at = chain.step(node, at)
        op = chain.reader.op(node)
        if op is None or len(op.args) < 2:
            return None
        if op.name in ("matmul", "einsum"):
            return op, at
        inner = _unmask(chain, op, at) or _unscale(chain, op, at)
        if inner is None:
            return None
        node = inner
    return None


def _unmask(chain: _Chain, op: Op, at: int) -> cst.BaseExpression | None:
    """The scores under a provably causal mask."""
    place = Place(chain.block, at)
    if op.name == "masked_fill" and len(op.args) == 3:
        mask, wanted, inner = op.args[1], "upper", op.args[0]
        masked = very_negative(op.args[2], chain.reader.file)
    elif op.name == "where" and len(op.args) == 3:
        lower = very_negative(op.args[2], chain.reader.file)
        mask, wanted, inner = (op.args[0], "lower", op.args[1]) if lower else (op.args[0], "upper", op.args[2])
        masked = lower or very_negative(op.args[1], chain.reader.file)
    elif op.name == "add" and len(op.args) == 2:
        mask, wanted, inner, masked = op.args[1], "added", op.args[0], True
        if triangle(chain.reader, mask, place) != "added":
            mask, inner = inner, mask
    else:
        return None
    if not masked or triangle(chain.reader, mask, place) != wanted:
        return None
    chain.causal, chain.mask = True, mask
    return inner


def _unscale(chain: _Chain, op: Op, at: int) -> cst.BaseExpression | None:
    if op.name not in ("mul", "div") or len(op.args) != 2:
        return None
    left, right = op.args
    if chain.scales.take(chain.reader, op.name, right):
        chain.inputs.append((right, at))
        return left
    if op.name == "mul" and chain.scales.take(chain.reader, "mul", left):
        chain.inputs.append((left, at))
        return right
    return None


def _operands(chain: _Chain, product: Op, scores: Op, values: cst.BaseExpression, at: int) -> bool:
    if scores.name != "matmul" or len(scores.args) != 2 or scores.batched != product.batched:
        return False
    query, turned = scores.args
    dims = 3 if product.batched else None
    key, key_at = turned, at
    if isinstance(turned, cst.Name) and (found := given(Place(chain.block, at), turned)) is not None:
        op = chain.reader.op(found.value)
        if op is not None and is_transpose_of_last_two(op, dims):
            chain.links.append((found.index, turned.value))
            key, key_at = found.value, found.index
    key = uncast(chain.reader, key) if key is not turned or isinstance(key, cst.Call) else key
    op = chain.reader.op(key)
    if op is not None and is_transpose_of_last_two(op, dims):
        key, chain.key = op.args[0], operand(op.args[0])
        chain.scales.widths = (query, key)
    else:
        chain.key = f"{operand(key)}.transpose(-2, -1)"
        chain.scales.widths = (query,)
    chain.query, chain.value = operand(query), operand(values)
    chain.inputs += [(query, at), (key, key_at)]
    if product.batched:
        # the fused kernels want four dimensions
        chain.query, chain.key, chain.value = (f"{n}.unsqueeze(1)" for n in (chain.query, chain.key, chain.value))
        chain.after = ".squeeze(1)"
    return True


def _einsum_operands(chain: _Chain, scores: Op, product: Einsum, values: cst.BaseExpression, at: int) -> bool:
    first = einsum(scores) if scores.name == "einsum" else None
    if first is None:
        return False
    layout = first.attention(product)
    if layout is None:
        return False
    flipped, query_order, key_order, value_order, result_order = layout
    query, key = (first.right, first.left) if flipped else (first.left, first.right)
    chain.query, chain.key = operand(query) + query_order, operand(key) + key_order
    chain.value, chain.after = operand(values) + value_order, result_order
    chain.inputs += [(query, at), (key, at)]
    return True


def _removable(chain: _Chain, function: FunctionView) -> bool:
    """Whether the intermediate results serve nothing but this product, and its inputs keep their values."""
    statements = chain.block.statements
    gone = {index for index, _ in chain.links}
    parts = [statements[i] for i in gone] + [chain.product]
    for index, name in chain.links:
        if flow.value_reads(chain.block, function.node, name, index, parts):
            return False
        # an input that is made from an intermediate result
        if any(flow.names(e).read[name] and index < at for e, at in chain.inputs):
            return False
    between = [statements[i] for i in range(min([*gone, chain.at]), chain.at) if i not in gone]
    used = {n for e, _ in chain.inputs for n in flow.names(e).read}
    return not any(flow.names(s).bound[n] or flow.mutated(s, n) for s in between for n in used)


def _rewrite(chain: _Chain, file: SourceFile, function: FunctionView, edits: Edits) -> None:
    statements = chain.block.statements
    if edits.touched(chain.product) or any(edits.touched(statements[i]) for i, _ in chain.links):
        return
    args = [chain.query, chain.key, chain.value]
    if chain.dropout:
        args.append(f"dropout_p={chain.dropout}")
    if chain.causal:
        args.append("is_causal=True")
    if scale := chain.scales.argument():
        args.append(f"scale={scale}")
    call = file.spell(f"{FUNCTIONAL}.scaled_dot_product_attention", edits)
    edits.replace(chain.product, f"{call}({', '.join(args)}){chain.after}")
    gone = sorted({i for i, _ in chain.links})
    for index in gone:
        edits.remove(statements[index])
    if gone:
        edits.lead(statements[chain.at], statements[gone[0]])
    _remove_dead_mask(chain, function, edits)


def _remove_dead_mask(chain: _Chain, function: FunctionView, edits: Edits) -> None:
    """A mask made in the function for this attention alone goes too."""
    gone: list[cst.CSTNode] = [chain.block.statements[i] for i, _ in chain.links]
    gone.append(chain.product)
    wanted = sorted(flow.names(chain.mask).read) if chain.mask is not None else []
    outer = function.blocks[0].statements
    while wanted:
        name = wanted.pop()
        made = [(s, g[1]) for s in outer if (g := flow.assigned(s)) and g[0] == name and not edits.touched(s)]
        parts = [*gone, *(s for s, _ in made)]
        if (
            made
            and all(_pure(value) for _, value in made)
            and flow.names(function.node).bound[name] == len(made)
            and not flow.reads_outside(function.node, name, parts)
        ):
            for statement, value in made:
                edits.remove(statement)
                wanted.extend(n for n in sorted(flow.names(value).read) if n != name)
            gone = parts


def _pure(value: cst.BaseExpression) -> bool:
    """Only tensor factories and views: nothing that could have a side effect."""
    calls = [n for n in walk(value) if isinstance(n, cst.Call)]
    pure = {"tril", "triu", "ones", "full", "zeros", "arange", "view", "unsqueeze", "bool", "to", "float", "new_ones",
            "ones_like", "logical_not", "size", "masked_fill", "generate_square_subsequent_mask"}  # fmt: skip
    return bool(calls) and all(
        (c.func.attr.value if isinstance(c.func, cst.Attribute) else getattr(c.func, "value", "")) in pure
        for c in calls
    )

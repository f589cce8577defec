"""A loop over experts with masks -> tokens sorted by expert once; the experts one by one, or all of them together.

Both give each token the sum of its experts' outputs times their weights, as the loop does, and leave an
expert that nobody chose with the gradient that the loop leaves it: zeros, or none where the loop skips it.
"""

from __future__ import annotations

from abc import abstractmethod

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms.experts import ExpertLoop, comprehended, expert_loops
from rsi_tui.techniques.idioms.program import FUNCTIONAL, Program, SourceFile
from rsi_tui.techniques.idioms.row_modules import grouped_forward, watched
from rsi_tui.techniques.idioms.tree import Edits

DISPATCH_OPERATORS = (
    "aten::index", "index_put", "index_add", "aten::nonzero", "aten::where", "one_hot", "IndexBackward",
    "aten::index_select", "aten::scatter_",
)  # fmt: skip
SMALL_PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear", "AddmmBackward", "MmBackward")
SAVED_OF_DISPATCH = 0.8
SAVED_OF_CALLS = 0.8
"""of the time from Python for each expert's products, by making them in one function"""
SECONDS_PER_PRODUCT = 20e-6
"""cost from Python and autograd of one small product, forward and backward together"""

_ROWS = '''\
class _SortedRows({torch}.autograd.Function):
    """Rows in another order, each `copies` times; the gradient goes the way back by gathering too."""

    @staticmethod
    def forward(ctx, rows, order, inverse, copies):
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return rows.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        grad = grad.index_select(0, inverse)
        if ctx.copies > 1:
            grad = grad.view(-1, ctx.copies, grad.size(-1)).sum(1)
        return grad, None, None, None
'''
_ROUTE = '''\
def _sorted_experts(experts, tokens, weights, chosen, run, skip_empty, dtype=None):
    """Sum of weight x expert(token) over each token's choices; tokens are put in the order of their experts once."""
    choices = chosen.size(-1)
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    inverse = {torch}.empty_like(order).scatter_(0, order, {torch}.arange(order.numel(), device=order.device))
    counts = {torch}.bincount(flat, minlength=len(experts)).tolist()
    if skip_empty:
        experts = [expert for expert, count in zip(experts, counts) if count]
        counts = [count for count in counts if count]
    rows = _SortedRows.apply(tokens.reshape(-1, tokens.size(-1)), order, inverse, choices)
    rows = _SortedRows.apply(run(experts, rows, counts), inverse, order, 1)
    weighted = rows.view(-1, choices, rows.size(-1)) * weights.reshape(-1, choices, 1)
    total = weighted.to(tokens.dtype if dtype is None else dtype).sum(1)
    return total.view(*tokens.shape[:-1], total.size(-1))
'''
_ONE_BY_ONE = '''\
def _one_by_one(experts, rows, counts):
    return {torch}.cat([expert(part) for expert, part in zip(experts, rows.split(counts))])
'''
_GROUPED = '''\
class _GroupedLinear({torch}.autograd.Function):
    """Linear layers side by side, each on its own contiguous rows."""

    @staticmethod
    def forward(ctx, rows, counts, has_bias, *parameters):
        weights = parameters[: len(counts)]
        out = rows.new_empty(rows.size(0), weights[0].size(0))
        if has_bias:
            for part, to, weight, bias in zip(rows.split(counts), out.split(counts), weights, parameters[len(counts) :]):
                {torch}.addmm(bias, part, weight.t(), out=to)
        else:
            for part, to, weight in zip(rows.split(counts), out.split(counts), weights):
                {torch}.mm(part, weight.t(), out=to)
        ctx.counts, ctx.has_bias = counts, has_bias
        ctx.save_for_backward(rows, *weights)
        return out

    @staticmethod
    def backward(ctx, grad):
        rows, *weights = ctx.saved_tensors
        grads = grad.contiguous().split(ctx.counts)
        d_rows = None
        if ctx.needs_input_grad[0]:
            d_rows = {torch}.empty_like(rows)
            for part, to, weight in zip(grads, d_rows.split(ctx.counts), weights):
                {torch}.mm(part, weight, out=to)
        if any(ctx.needs_input_grad[3:]):
            d_parameters = [part.t() @ seen for part, seen in zip(grads, rows.split(ctx.counts))]
            if ctx.has_bias:
                d_parameters += [part.sum(0) for part in grads]
        else:
            d_parameters = [None] * (len(ctx.needs_input_grad) - 3)
        return d_rows, None, None, *d_parameters
'''
_GROUPED_MAIN = '''\
def _grouped_linear(rows, counts, layers):
    """Linear layers of one shape, each on its own `counts` rows; their weights are joined where that pays."""
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers] if layers[0].bias is not None else []
    lower = {torch}.is_autocast_enabled(rows.device.type)
    plain = rows.device.type == "cpu" and rows.dtype == weights[0].dtype == {torch}.float32 and not lower
    # the library's grouped product wants rows of 16 bytes
    if hasattr({F}, "grouped_mm") and plain and all(size % 4 == 0 for size in weights[0].shape):
        lengths = {torch}.tensor(counts)
        joined = {torch}.stack(weights).transpose(1, 2)
        out = {F}.grouped_mm(rows.contiguous(), joined, offs=lengths.cumsum(0, dtype={torch}.int32))
        return out + {torch}.stack(biases).repeat_interleave(lengths, 0) if biases else out
    parameters = weights + biases
    if lower:
        dtype = {torch}.get_autocast_dtype(rows.device.type)
        rows, parameters = rows.to(dtype), [p.to(dtype) for p in parameters]
    return _GroupedLinear.apply(rows, counts, bool(biases), *parameters)
'''


class _Experts(Codemod):
    layer: Layer = "kernel"
    words = ("index_add", "+=", "index_put", "] + ")
    source = "Gale et al. 2023, MegaBlocks, arXiv:2211.15841; Mixtral in transformers 4.36, the loop that it replaces"

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if "_sorted_experts(" in file.text:
            return
        torch, functional = file.spell("torch", edits), file.spell(FUNCTIONAL, edits)
        added: set[str] = set()
        for loop in expert_loops(file):
            if any(edits.touched(s) for s in (loop.statement, *loop.dead)):
                continue
            runner = self.runner(loop, file, program)
            if runner is None:
                continue
            name, definitions = runner
            for text in (*definitions, _ROWS, _ROUTE):
                if text not in added:
                    added.add(text)
                    edits.helper(text.replace("{torch}", torch).replace("{F}", functional))
            _replace(loop, name, file, edits)

    @abstractmethod
    def runner(self, loop: ExpertLoop, file: SourceFile, program: Program) -> tuple[str, tuple[str, ...]] | None:
        """Name of the function that calls the experts on their rows, and the definitions it needs; None to leave the loop."""


def _replace(loop: ExpertLoop, run: str, file: SourceFile, edits: Edits) -> None:
    call = loop.call("_sorted_experts", run, str(loop.skips_empty))
    call = call.replace("torch.get_default_dtype", file.spell("torch.get_default_dtype", edits))
    (new,) = edits.statements([f"{loop.out} = {call}\n"])
    edits.replace(loop.statement, new.with_changes(leading_lines=loop.statement.leading_lines))
    for statement in loop.dead:
        edits.remove(statement)


class SortedExperts(_Experts):
    id = "sorted-experts"
    title = "Tokens sorted by expert"
    summary = (
        "Replaces the masks of a loop over experts by one sort of the routing choices: tokens are gathered in the order "
        "of their experts once, each expert runs on a contiguous slice, and one gather with weights puts the results "
        "back. No search, indexing and scattered addition for each expert, forward or backward."
    )
    applies_when = "a loop over experts finds each one's tokens by a mask, and adds weight times output to their rows"
    risk = (
        "Additions into a token's row and into weights' gradients in another order, about 1e-7 relative. Dropout inside "
        "an expert draws for its rows in another order."
    )
    conflicts: tuple[str, ...] = ("batched-experts",)

    def runner(self, loop: ExpertLoop, file: SourceFile, program: Program) -> tuple[str, tuple[str, ...]] | None:
        return "_one_by_one", (_ONE_BY_ONE,)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.2, memory=-0.02)
        share = situation.profile.operator_share(*DISPATCH_OPERATORS)
        return Effect(faster(share, SAVED_OF_DISPATCH), memory=-0.02, confidence="medium")


class BatchedExperts(_Experts):
    id = "batched-experts"
    title = "All experts' products in one function"
    summary = (
        "Sorts tokens by expert, and runs experts that are alike layer by layer over all rows: activations once for all "
        "of them, and the products on contiguous slices by one grouped product over the experts' joined weights, or "
        "inside one autograd function where there is none. Thousands of calls through modules and autograd go away."
    )
    applies_when = (
        "a loop over experts finds each one's tokens by a mask, and all experts are of one class made of linear layers "
        "and elementwise functions"
    )
    risk = (
        "Additions in another order, about 1e-7 relative in fp32. The experts' modules are no longer called one by one, "
        "so hooks on them would not run (programs that register any are left alone); no second derivatives."
    )
    conflicts: tuple[str, ...] = ("sorted-experts",)

    def runner(self, loop: ExpertLoop, file: SourceFile, program: Program) -> tuple[str, tuple[str, ...]] | None:
        name = _class_of(loop, file)
        cls = file.classes.get(name)
        if cls is None or watched(program):
            return None
        text = grouped_forward(file, cls, f"_all_{name}", "_grouped_linear")
        return None if text is None else (f"_all_{name}", (_GROUPED, _GROUPED_MAIN, text))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.35, memory=-0.02)
        profile = situation.profile
        share = profile.operator_share(*DISPATCH_OPERATORS)
        calls = sum(o.calls for o in profile.operators if any(n in o.name for n in SMALL_PRODUCTS))
        called = min(0.5, calls * SECONDS_PER_PRODUCT / profile.step_s)
        return Effect(
            faster(share, SAVED_OF_DISPATCH) + faster(called, SAVED_OF_CALLS), memory=-0.02, confidence="medium"
        )


def _class_of(loop: ExpertLoop, file: SourceFile) -> str:
    """Name of the class that every expert of the loop is an instance of, '' when that is not known."""
    cls = loop.function.cls
    if cls is None or not isinstance(loop.experts, cst.Attribute) or not isinstance(loop.experts.value, cst.Name):
        return ""
    if loop.experts.value.value != loop.function.me:
        return ""
    made = cls.attribute(loop.experts.attr.value)
    call = comprehended(file, made)[0] if made is not None else None
    if call is None or not isinstance(call.func, cst.Name) or file.qualified(call.func):
        return ""
    return call.func.value

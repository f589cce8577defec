"""A loop over experts, each on the tokens that chose it, however its masks and indices are written.

The body of the loop is read with stand-ins for its values: the tokens that chose this expert, their
slots, the expert's rows, its output, the routing weights. A loop is found when the one thing it does is
to add weight x expert(token) for every choice, and when the choices are provably those of a top-k
selection, so that no token meets an expert twice. Anything else in the body, and it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.inplace import changed_in_place
from rsi_tui.techniques.idioms.ops import CASTS, Op, Reader, integer, number
from rsi_tui.techniques.idioms.program import FunctionView, SourceFile
from rsi_tui.techniques.idioms.tree import bare, code, keyword, operand, same

_SHAPES = {"view", "reshape", "flatten"}
_MASK_CASTS = CASTS | {"bool", "int", "long", "byte"}


@dataclass(frozen=True)
class ExpertLoop:
    """Where such a loop stands and what it is made of, as text for a call in its place."""

    function: FunctionView
    block: Block
    statement: cst.For
    experts: cst.BaseExpression
    tokens: str
    """(..., width)"""
    weights: str
    """(..., choices), one for each choice"""
    chosen: str
    """(..., choices), indices of experts"""
    skips_empty: bool
    """an expert without tokens is not called"""
    out: str
    """name that the sum is given"""
    dtype: str
    """of the sum; '' when it is that of the tokens"""
    shape: str
    """method call that gives the sum its shape; '' when it is that of the tokens"""
    dead: tuple[cst.BaseStatement, ...]
    """statements that only prepared the loop"""

    def call(self, helper: str, *more: str) -> str:
        """Text of `helper(experts, tokens, weights, chosen, ...)` in the loop's place."""
        args = [bare(self.experts), self.tokens, self.weights, self.chosen, *more]
        if self.dtype:
            args.append(f"dtype={self.dtype}")
        return f"{helper}({', '.join(args)}){self.shape}"


@dataclass(frozen=True)
class _What:
    """What an expression of the loop stands for.

    Kinds: outer (made before the loop), index, expert, one_hot and hits (which choices are of this expert; axes
    t token, k slot, e expert), any (which tokens chose it), token and slot (indices), pair, indices (of nonzero),
    rows, lead_rows, output, weight (one a row), column (the same with a last dimension of 1), weighted_hits,
    summed_hits, weighted, count, some, none.
    """

    kind: str
    axes: str = ""
    of: cst.BaseExpression | None = None
    how: str = ""
    parts: tuple[_What, ...] = ()


class _Unknown(Exception):
    """Something in the loop that has no stand-in."""


def expert_loops(file: SourceFile) -> Iterator[ExpertLoop]:
    """Every such loop of a file."""
    for function in file.functions:
        for block in function.blocks:
            for at, statement in enumerate(block.statements):
                if isinstance(statement, cst.For) and statement.asynchronous is None and statement.orelse is None:
                    found = _loop(Reader(file, function), function, block, at, statement)
                    if found is not None:
                        yield found


def _loop(reader: Reader, function: FunctionView, block: Block, at: int, loop: cst.For) -> ExpertLoop | None:
    body = _Body(reader, block, at, loop)
    try:
        body.read()
        return _found(body, reader, function)
    except _Unknown:
        return None


def _suite(node: cst.BaseSuite) -> Sequence[cst.CSTNode]:
    return node.body if isinstance(node, cst.IndentedBlock) else [cst.SimpleStatementLine(node.body)]  # type: ignore[arg-type]


@dataclass
class _Body:
    """Reads one loop."""

    reader: Reader
    block: Block
    at: int
    loop: cst.For
    names: dict[str, _What] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    experts: cst.BaseExpression | None = None
    count: cst.BaseExpression | None = None
    """expression in `range(count)`; None when the experts themselves are gone through"""
    chosen: cst.BaseExpression | None = None
    slotted: bool = True
    """choices have a last dimension of several"""
    tokens: cst.BaseExpression | None = None
    weights: cst.BaseExpression | None = None
    weighing: str = ""
    """slots: a weight a choice; dense: a weight an expert; flat: one choice a token, and no dimension for it"""
    casts: list[cst.BaseExpression] = field(default_factory=list)
    """expressions whose dtype the weighted rows are cast to"""
    prepared: set[str] = field(default_factory=set)
    """names made before the loop that masks were read from"""
    out: str = ""
    skips_empty: bool = False

    def read(self) -> None:
        self._header()
        self.bound |= set(flow.names(self.loop.body).bound)
        self._suite(_suite(self.loop.body))
        if not self.out or self.experts is None:
            raise _Unknown

    def _header(self) -> None:
        match self.loop:
            case cst.For(
                target=cst.Tuple(
                    elements=[
                        cst.Element(value=cst.Name(value=index)),
                        cst.Element(value=cst.Name(value=expert)),
                    ]
                ),
                iter=cst.Call(func=cst.Name(value="enumerate"), args=[cst.Arg(value=experts, keyword=None, star="")]),
            ) if index != expert:
                self.experts = experts
                self.names = {index: _What("index"), expert: _What("expert")}
            case cst.For(
                target=cst.Name(value=index),
                iter=cst.Call(func=cst.Name(value="range"), args=[cst.Arg(value=count, keyword=None, star="")]),
            ):
                self.count = count
                self.names = {index: _What("index")}
            case _:
                raise _Unknown
        self.bound = set(self.names)

    def _suite(self, statements: Sequence[cst.CSTNode]) -> None:
        for i, statement in enumerate(statements):
            if self.out:
                raise _Unknown
            if isinstance(statement, cst.If):
                self._guard(statement, last=i == len(statements) - 1)
                continue
            if not isinstance(statement, cst.SimpleStatementLine):
                raise _Unknown
            for small in statement.body:
                self._small(small)

    def _guard(self, statement: cst.If, last: bool) -> None:
        """`if nobody chose it: continue`, or `if somebody did:` around the rest."""
        if statement.orelse is not None:
            raise _Unknown
        test = self.value(statement.test).kind
        body = _suite(statement.body)
        match body:
            case [cst.SimpleStatementLine(body=[cst.Continue()])] if test == "none":
                self.skips_empty = True
                return
        if not last or test not in ("some", "count"):
            raise _Unknown
        self.skips_empty = True
        self._suite(body)

    def _small(self, small: cst.BaseSmallStatement) -> None:
        if self.out:
            raise _Unknown
        match small:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                if self._adds(name, value):
                    return
                self.names[name] = self.value(value)
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))], value=value):
                parts = self.value(value).parts
                if len(parts) != len(elements) or not all(isinstance(e.value, cst.Name) for e in elements):
                    raise _Unknown
                for element, part in zip(elements, parts, strict=True):
                    self.names[code(element.value)] = part
            case cst.Assign(
                targets=[cst.AssignTarget(target=cst.Subscript() as target)],
                value=cst.BinaryOperation(left=cst.Subscript() as left, operator=cst.Add(), right=right),
            ) if same(target, left):
                self._into(target, right)
            case cst.AugAssign(target=cst.Subscript() as target, operator=cst.AddAssign(), value=value):
                self._into(target, value)
            case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value=name))) as call):
                if not self._adds(name, call, inplace=True):
                    raise _Unknown
            case _:
                raise _Unknown

    def _adds(self, name: str, value: cst.BaseExpression, inplace: bool = False) -> bool:
        """`out.index_add_(0, token, rows)`, or `out = out.index_add(0, token, rows)`."""
        if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
            return False
        receiver, method = value.func.value, value.func.attr.value
        wanted = ("index_add_",) if inplace else ("index_add_", "index_add")
        if method not in wanted or not isinstance(receiver, cst.Name) or receiver.value != name:
            return False
        op = self.reader.op(value)
        if op is None or len(op.args) != 4 or op.keywords or integer(op.args[1]) != 0:
            raise _Unknown
        if self.value(op.args[2]).kind != "token":
            raise _Unknown
        self._sum_into(name, op.args[3])
        return True

    def _into(self, target: cst.Subscript, value: cst.BaseExpression) -> None:
        index = _elements(target)
        if not isinstance(target.value, cst.Name) or not index or any(e is not None for e in index[1:]):
            raise _Unknown
        if index[0] is None or not self._picks_tokens(self.value(index[0])):
            raise _Unknown
        self._sum_into(target.value.value, value)

    def _sum_into(self, out: str, value: cst.BaseExpression) -> None:
        if self.value(value).kind != "weighted":
            raise _Unknown
        # nothing may read the sum on the way, but for its dtype
        if flow.names(value).read[out] != sum(flow.names(cast).read[out] for cast in self.casts):
            raise _Unknown
        self.out = out

    def _picks_tokens(self, what: _What) -> bool:
        return what.kind in ("token", "any") or (what.kind == "hits" and what.axes == "t")

    def value(self, node: cst.BaseExpression) -> _What:
        """What an expression stands for; raises _Unknown."""
        if not self.bound & set(flow.names(node).read):
            return _What("outer", of=node)
        match node:
            case cst.Name(value=name):
                if name in self.names:
                    return self.names[name]
                raise _Unknown
            case cst.Subscript():
                return self._subscript(node)
            case cst.Tuple(elements=elements):
                return _What("pair", parts=tuple(self.value(e.value) for e in elements))
            case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=inner)]):
                return self._counted(self.value(inner))
            case cst.Call(func=func, args=[cst.Arg(value=inner, keyword=None, star="")]) if self._is_expert(func):
                rows = self.value(inner)
                if rows.kind != "rows":
                    raise _Unknown
                return _What("output", of=rows.of)
        op = self.reader.op(node)
        if op is None:
            raise _Unknown
        return self._operation(op, node)

    def _is_expert(self, func: cst.BaseExpression) -> bool:
        if isinstance(func, cst.Name):
            return self.names.get(func.value, _What("")).kind == "expert"
        return isinstance(func, cst.Subscript) and self._expert_of(func)

    def _expert_of(self, node: cst.Subscript) -> bool:
        """`self.experts[i]`; the list is learnt from the first such expression where the loop counts."""
        index = _elements(node)
        if len(index) != 1 or index[0] is None or not isinstance(index[0], cst.Name):
            return False
        if self.names.get(index[0].value, _What("")).kind != "index" or not isinstance(node.value, cst.Attribute):
            return False
        if self.experts is None and self.count is not None and self._counts_all(node.value):
            self.experts = node.value
        return self.experts is not None and same(self.experts, node.value)

    def _counts_all(self, experts: cst.Attribute) -> bool:
        """Whether `range(count)` goes through the whole list."""
        assert self.count is not None
        match self.count:
            case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=inner)]):
                return same(inner, experts)
        cls = self.reader.function.cls
        if cls is None or code(experts.value) != self.reader.function.me:
            return False
        made = cls.attribute(experts.attr.value)
        length = comprehended(self.reader.file, made)[1] if made is not None else None
        if length is None:
            return False
        return same(self._attribute(length), self._attribute(self.count))

    def _attribute(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """What `self.n` was set to, as far as that is known."""
        cls = self.reader.function.cls
        for _ in range(4):
            if not isinstance(node, cst.Attribute) or cls is None or code(node.value) != self.reader.function.me:
                break
            value = cls.attribute(node.attr.value)
            if value is None:
                break
            node = value
        return node

    def _subscript(self, node: cst.Subscript) -> _What:
        if self._expert_of(node):
            return _What("expert")
        match node.value:
            case cst.Attribute(value=inner, attr=cst.Name(value="shape")) if _elements(node) and integer(
                _elements(node)[0]
            ) == 0:
                return self._counted(self.value(inner))
        base = self.value(node.value)
        index = _elements(node)
        if base.kind == "outer":
            assert base.of is not None
            return self._from_outer(base.of, index)
        if base.kind == "pair" and len(index) == 1 and (at := integer(index[0])) is not None and at < len(base.parts):
            return base.parts[at]
        if base.kind == "weight" and len(index) == 2 and index[0] is None and _is_none(index[1]):
            return replace(base, kind="column")
        summed = base.kind == "summed_hits" and len(index) == 1 and index[0] is not None
        if summed and index[0] is not None and self._picks_tokens(self.value(index[0])):
            return replace(base, kind="column" if base.how == "keep" else "weight", how="slots")
        if base.kind == "indices" and len(index) == 2 and index[0] is None:
            at = integer(index[1])
            if at is not None and 0 <= at < len(base.axes):
                return _index_of(base.axes[at])
        raise _Unknown

    def _from_outer(self, base: cst.BaseExpression, index: list[cst.BaseExpression | None]) -> _What:
        if not index:
            raise _Unknown
        kinds = ["all" if e is None else "lead" if _is_none(e) else "..." if isinstance(e, cst.Ellipsis) else "" for e in index]
        values = [self.value(e) if e is not None and not k else _What(k) for e, k in zip(index, kinds, strict=True)]
        names = [v.kind for v in values]
        if names.count("index") == 1 and not {"token", "any", "hits"} & set(names):
            return self._one_expert(base, names)
        picks = self._picks_tokens(values[0])
        if picks and all(n == "all" for n in names[1:]):
            return _What("rows", of=base)
        if names == ["lead", "token"]:
            return _What("lead_rows", of=base)
        if names[:2] == ["token", "slot"] and names[2:] in ([], ["lead"]):
            return _What("column" if len(names) == 3 else "weight", of=base, how="slots")
        if picks and names[1:] in (["index"], ["index", "lead"]):
            return _What("column" if len(names) == 3 else "weight", of=base, how="dense")
        if names == ["hits"] and values[0].axes == "tk":
            return _What("weight", of=base, how="slots")
        raise _Unknown

    def _one_expert(self, base: cst.BaseExpression, names: list[str]) -> _What:
        """One expert's part of a one-hot mask."""
        made = self._one_hot(base, self.at)
        at = names.index("index")
        rest = [n for i, n in enumerate(names) if i != at]
        if made is None or any(n not in ("all", "...") for n in rest):
            raise _Unknown
        where = at if "..." not in names[:at] else len(made) - (len(names) - at)
        if where >= len(made) or made[where] != "e":
            raise _Unknown
        return _What("hits", axes=made.replace("e", ""))

    def _one_hot(self, node: cst.BaseExpression, at: int) -> str | None:
        """Axes of a one-hot mask of the choices that was made ahead of a statement."""
        if isinstance(node, cst.Name):
            found = self.block.definition(node.value, at)
            if found is None or changed_in_place(self.block.statements[found.index + 1 : at], node.value):
                return None
            self.prepared.add(node.value)
            return self._one_hot(found.value, found.index)
        op = self.reader.op(node)
        if op is None or not op.args:
            return None
        if op.name == "one_hot":
            if op.arg(1, "num_classes") is None or not self._choose(op.args[0], at):
                return None
            return "tke" if self.slotted else "te"
        inner = self._one_hot(op.args[0], at)
        if inner is None:
            return None
        if op.name == "permute":
            order = [integer(a) for a in _flat(op.args[1:])]
            return "".join(inner[o] for o in order if o is not None) if sorted(map(str, order)) == [
                str(i) for i in range(len(inner))
            ] else None
        if op.name == "transpose" and len(op.args) == 3:
            a, b = (integer(x) for x in op.args[1:])
            if a is None or b is None or max(a, b) >= len(inner) or min(a, b) < -len(inner):
                return None
            axes = list(inner)
            axes[a], axes[b] = axes[b], axes[a]
            return "".join(axes)
        return inner if op.name in _MASK_CASTS and len(op.args) <= 2 else None

    def _choose(self, node: cst.BaseExpression, at: int) -> bool:
        """Take an expression as the choices, if it provably is, and if no other was taken."""
        slotted = self._choice(node, at)
        if slotted is None or (self.chosen is not None and not same(self.chosen, node)):
            return False
        self.chosen, self.slotted = node, slotted
        return True

    def _choice(self, node: cst.BaseExpression, at: int) -> bool | None:
        """Whether choices have a dimension for slots; None when they are not those of a top-k selection."""
        if isinstance(node, cst.Name):
            for i in range(at - 1, -1, -1):
                statement = self.block.statements[i]
                if changed_in_place([statement], node.value):
                    # choices that were overwritten, as where tokens are dropped
                    return None
                if flow.names(statement).bound[node.value]:
                    return self._selected(statement, node.value, i)
            return None
        match node:
            case cst.Attribute(value=inner, attr=cst.Name(value="indices")):
                return self._selection(inner, 1)
            case cst.Subscript(value=inner) if (which := integer((_elements(node) or [None])[0])) is not None:
                return self._selection(inner, which)
        op = self.reader.op(node)
        if op is None or not op.args:
            return None
        if op.name == "argmax":
            return False if integer(op.arg(1, "dim")) in (-1, 1) and "keepdim" not in op.keywords else None
        if op.name in _SHAPES and len(op.args) >= 2 and self._choice(op.args[0], at):
            # (..., slots) -> (-1, slots); the last dimension must stay what it was
            return True if op.name in ("view", "reshape") and len(op.args) == 3 and integer(op.args[1]) == -1 else None
        return self._choice(op.args[0], at) if op.name in ("to", "long", "contiguous", "detach") else None

    def _selected(self, statement: cst.CSTNode, name: str, at: int) -> bool | None:
        if (given := flow.assigned(statement)) is not None:
            return self._choice(given[1], at)
        match flow.small(statement):
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))], value=value):
                which = [i for i, e in enumerate(elements) if isinstance(e.value, cst.Name) and e.value.value == name]
                return self._selection(value, which[0]) if len(elements) == 2 and len(which) == 1 else None
        return None

    def _selection(self, node: cst.BaseExpression, which: int) -> bool | None:
        """The indices of `topk(x, k)` or `max(x, dim=-1)`."""
        op = self.reader.op(node)
        if op is None or which != 1 or not op.args:
            return None
        if op.name == "topk":
            dim = op.arg(2, "dim")
            return True if dim is None or integer(dim) in (-1, 1) else None
        if op.name == "max" and integer(op.arg(1, "dim")) in (-1, 1):
            keep = op.arg(2, "keepdim")
            return False if keep is None else True if bare(keep) == "True" else None
        return None

    def _operation(self, op: Op, node: cst.BaseExpression) -> _What:
        if op.name in ("eq", "ne", "gt", "lt", "le", "ge") and len(op.args) == 2:
            return self._comparison(op)
        if op.name == "mul" and len(op.args) == 2:
            return self._product(*op.args)
        if op.name == "index_select" and len(op.args) == 3 and integer(op.args[1]) == 0:
            base, index = self.value(op.args[0]), self.value(op.args[2])
            if base.kind == "outer" and index.kind == "token":
                return _What("rows", of=base.of)
            raise _Unknown
        if not op.args:
            raise _Unknown
        inner = self.value(op.args[0])
        match op.name:
            case "not" if inner.kind in ("some", "count"):
                return _What("none")
            case "where" if len(op.args) == 1:
                return self._places(inner)
            case "nonzero":
                if (tuple_ := op.arg(1, "as_tuple")) is not None and bare(tuple_) == "True":
                    return self._places(inner)
                axes = "t" if inner.kind == "any" else inner.axes if inner.kind == "hits" else ""
                if axes and tuple_ is None:
                    return _What("indices", axes=axes)
            case "any":
                return self._any(op, inner)
            case "sum":
                return self._sum(op, inner)
            case "numel" | "nelement":
                return self._counted(inner)
            case "size" if integer(op.arg(1, "dim")) == 0:
                return self._counted(inner)
            case "item" if inner.kind in ("some", "count"):
                return inner
            case "tolist" if inner.kind in ("token", "slot"):
                return inner
        return self._reshaped(op, inner)

    def _reshaped(self, op: Op, inner: _What) -> _What:
        order = [integer(a) for a in op.args[1:]]
        match op.name, inner.kind:
            case "unsqueeze", "weight" if integer(op.arg(1, "dim")) in (-1, 1):
                return replace(inner, kind="column")
            case "unsqueeze", "rows" if integer(op.arg(1, "dim")) in (-1, 1) and not self.slotted:
                return _What("column", of=inner.of, how="flat")
            case "view" | "reshape", "weight" if order == [-1, 1]:
                return replace(inner, kind="column")
            case "view" | "reshape", "rows" | "lead_rows" if len(order) == 2 and order[0] == -1:
                return _What("rows", of=inner.of)
            case "squeeze", "lead_rows" if order == [0]:
                return _What("rows", of=inner.of)
            case "view" | "reshape", "any" if order == [-1]:
                return inner
            case "flatten", "any" if not order:
                return inner
            case "squeeze" | "flatten" | "view" | "reshape", "indices" if inner.axes == "t":
                if (op.name, order) in (("squeeze", [-1]), ("squeeze", [1]), ("flatten", []), ("view", [-1]), ("reshape", [-1])):
                    return _What("token")
            case "unbind", "indices" if integer(op.arg(1, "dim")) in (1, -1):
                return _What("pair", parts=tuple(_index_of(a) for a in inner.axes))
            case name, "hits" | "any" if name in _MASK_CASTS:
                return inner
            case "to" | "type" | "type_as", "weighted" | "output" if len(op.args) == 2 and not op.keywords:
                self.casts.append(op.args[1])
                return inner
        raise _Unknown

    def _comparison(self, op: Op) -> _What:
        left, right = op.args
        values = [self.value(left), self.value(right)]
        kinds = {v.kind for v in values}
        if op.name == "eq" and kinds == {"outer", "index"}:
            node = left if values[0].kind == "outer" else right
            if self._choose(node, self.at):
                return _What("hits", axes="tk" if self.slotted else "t")
            raise _Unknown
        if values[0].kind == "count" and number(right, self.reader.file) in (0.0, 1.0):
            test = (op.name, number(right, self.reader.file))
            if test in (("eq", 0.0), ("lt", 1.0), ("le", 0.0)):
                return _What("none")
            if test in (("gt", 0.0), ("ge", 1.0), ("ne", 0.0)):
                return _What("some")
        raise _Unknown

    def _product(self, left: cst.BaseExpression, right: cst.BaseExpression) -> _What:
        values = [self.value(left), self.value(right)]
        kinds = [v.kind for v in values]
        if set(kinds) == {"outer", "hits"}:
            outer, hits = values if kinds[0] == "outer" else reversed(values)
            if hits.axes == "tk":
                return _What("weighted_hits", of=outer.of)
        if set(kinds) == {"output", "column"}:
            output, column = values if kinds[0] == "output" else reversed(values)
            self.tokens, self.weights, self.weighing = output.of, column.of, column.how
            return _What("weighted")
        raise _Unknown

    def _any(self, op: Op, inner: _What) -> _What:
        dim = op.arg(1, "dim")
        if dim is None and inner.kind in ("hits", "any"):
            return _What("some")
        if inner.kind == "hits" and "k" in inner.axes and len(inner.axes) == 2 and "keepdim" not in op.keywords:
            at = inner.axes.index("k")
            if integer(dim) == (-1 if at == 1 else 0) or (at == 1 and integer(dim) == 1):
                return _What("any")
        raise _Unknown

    def _sum(self, op: Op, inner: _What) -> _What:
        dim = op.arg(1, "dim")
        if dim is None and inner.kind in ("hits", "any"):
            return _What("count")
        if inner.kind == "weighted_hits" and integer(dim) == -1:
            keep = op.arg(2, "keepdim")
            if keep is None or bare(keep) in ("True", "False"):
                return _What("summed_hits", of=inner.of, how="keep" if keep is not None and bare(keep) == "True" else "")
        raise _Unknown

    def _places(self, inner: _What) -> _What:
        if inner.kind == "any":
            return _What("pair", parts=(_What("token"),))
        if inner.kind == "hits":
            return _What("pair", parts=tuple(_index_of(a) for a in inner.axes))
        raise _Unknown

    def _counted(self, inner: _What) -> _What:
        if inner.kind in ("token", "slot", "rows", "indices"):
            return _What("count")
        raise _Unknown


def _index_of(axis: str) -> _What:
    return _What({"t": "token", "k": "slot"}[axis])


def _elements(node: cst.Subscript) -> list[cst.BaseExpression | None]:
    """Parts of an index; None for a whole slice. Other slices make the list empty."""
    found: list[cst.BaseExpression | None] = []
    for element in node.slice:
        match element.slice:
            case cst.Index(value=cst.Tuple(elements=parts), star=None):
                found += [p.value for p in parts]
            case cst.Index(value=value, star=None):
                found.append(value)
            case cst.Slice(lower=None, upper=None, step=None):
                found.append(None)
            case _:
                return []
    return found


def _is_none(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _flat(args: Sequence[cst.BaseExpression]) -> list[cst.BaseExpression]:
    if len(args) == 1 and isinstance(args[0], cst.Tuple | cst.List):
        return [e.value for e in args[0].elements]
    return list(args)


def comprehended(file: SourceFile, made: cst.BaseExpression) -> tuple[cst.Call | None, cst.BaseExpression | None]:
    """Constructor call and count of `nn.ModuleList([Class(...) for _ in range(count)])`; (None, None) for other lists."""
    match made:
        case cst.Call(func=func, args=[cst.Arg(value=cst.ListComp() | cst.GeneratorExp() as inner)]) if (
            file.qualified(func) == "torch.nn.ModuleList"
        ):
            match inner.for_in:
                case cst.CompFor(
                    target=cst.Name(value=name),
                    iter=cst.Call(func=cst.Name(value="range"), args=[cst.Arg(value=count)]),
                    ifs=[],
                    inner_for_in=None,
                ) if isinstance(inner.elt, cst.Call) and not flow.names(inner.elt).read[name]:
                    return inner.elt, count
    return None, None


def _found(body: _Body, reader: Reader, function: FunctionView) -> ExpertLoop | None:
    block, at, loop = body.block, body.at, body.loop
    if body.experts is None or body.tokens is None or body.weights is None or body.chosen is None:
        return None
    if body.bound & set(flow.names(body.experts).read) or _read_later(body, function):
        return None
    zeros = block.definition(body.out, at)
    if zeros is None or any(flow.names(s).read[body.out] for s in block.statements[zeros.index + 1 : at]):
        return None
    made = _zeros(reader, zeros.value, body)
    if made is None:
        return None
    dtype, shape, like = made
    if any(not _dtype_of(cast, [body.tokens, cst.Name(body.out), *like]) for cast in body.casts):
        return None
    dead = [block.statements[zeros.index], *_dead_masks(body, function, loop)]
    chosen, weights, tokens = operand(body.chosen), operand(body.weights), operand(body.tokens)
    if not body.slotted:
        chosen = f"{chosen}.unsqueeze(-1)"
    if body.weighing == "dense":
        weights = f"{weights}.gather(-1, {chosen})"
    elif body.weighing == "flat":
        weights = f"{weights}.unsqueeze(-1)"
    return ExpertLoop(
        function, block, loop, body.experts, tokens, weights, chosen, body.skips_empty, body.out, dtype, shape, tuple(dead)
    )


def _read_later(body: _Body, function: FunctionView) -> bool:
    """Whether anything that the loop binds could be read after it."""
    block, at = body.block, body.at
    before = [] if block.looped else list(block.statements[:at])
    return any(flow.reads_outside(function.node, n, [*before, body.loop]) for n in body.bound - {body.out})


def _zeros(
    reader: Reader, node: cst.BaseExpression, body: _Body
) -> tuple[str, str, list[cst.BaseExpression]] | None:
    """dtype and shape of the empty sum where they are not those of the tokens, and what it was made like."""
    op = reader.op(node)
    assert body.tokens is not None
    if op is None or op.name not in ("zeros", "zeros_like", "new_zeros"):
        return None
    given = keyword(node, "dtype") if isinstance(node, cst.Call) else None
    dtype = bare(given) if given is not None else ""
    if op.name == "zeros_like":
        like = op.args[0]
        if same(like, body.tokens):
            return dtype, "", [like]
        return dtype or f"{operand(like)}.dtype", f".view_as({operand(like)})", [like]
    dims = _flat(op.args[1:] if op.name == "new_zeros" else op.args)
    if len(dims) != 2:
        return None
    owner = op.args[0] if op.name == "new_zeros" else None
    if given is not None and _dtype_of(given, [body.tokens]):
        dtype = ""
    elif owner is not None and not dtype:
        dtype = "" if same(owner, body.tokens) else f"{operand(owner)}.dtype"
    elif not dtype:
        dtype = "torch.get_default_dtype()"
    return dtype, "", [owner] if owner is not None else []


def _dtype_of(node: cst.BaseExpression, of: Sequence[cst.BaseExpression]) -> bool:
    """`x.dtype` of one of the expressions, or, for type_as, one of them."""
    owner = node.value if isinstance(node, cst.Attribute) and node.attr.value == "dtype" else node
    return any(same(owner, one) for one in of)


def _dead_masks(body: _Body, function: FunctionView, loop: cst.For) -> Iterator[cst.BaseStatement]:
    """Statements that made masks which nothing but the loop reads."""
    statements = body.block.statements
    gone: list[cst.CSTNode] = [loop]
    for name in sorted(body.prepared):
        made = [s for s in statements[: body.at] if (given := flow.assigned(s)) and given[0] == name]
        if len(made) == flow.names(function.node).bound[name] and not flow.reads_outside(
            function.node, name, [*gone, *made]
        ):
            gone += made
            yield from made

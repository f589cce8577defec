"""Rules that need both programs: what was there and is gone, or is there with another value.

Each rule gets the program before and after and yields findings directly.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from rsi_tui.loop.review_rules.escapes import suspect
from rsi_tui.loop.review_rules.masks import causality
from rsi_tui.loop.review_rules.source import (
    LOOPS,
    LOSS_NAME,
    Program,
    Severity,
    Source,
    Suspect,
    canonical,
    is_optimizer,
    last,
    names_in,
    numbers_in,
)

OPTIMIZERS = re.compile(
    r"(?:.*\.)?(?:Adam|AdamW|SGD|Adagrad|Adadelta|Adamax|NAdam|RAdam|RMSprop|LBFGS|Lion|Muon|Adafactor|SparseAdam|\w*Optimizer)"
)
FREE_ARGUMENTS = ("fused", "foreach", "capturable", "differentiable")
"""arguments of an optimizer that change how it computes, not what"""
HYPER = re.compile(
    r"(?:(?:.*_)?(?:lr|learning_rate|weight_decay|wd|betas?|beta_?[12]|momentum|eps|seed|grad_clip|clip|max_norm|clip_norm"
    r"|clip_value|max_grad_norm|dropout|label_smoothing|ignore_index|warmup\w*|decay_\w+|z_loss\w*|aux\w*(?:loss|weight|coef)\w*"
    r"|batch_size|block_size|seq_?len|sequence_length|context_length|max_seq_len|vocab_size|n_(?:layer|head|embd|kv_head)s?"
    r"|num_(?:layers|heads|experts)|d_model|d_ff|hidden_(?:size|dim)|capacity\w*|top_?k|max_steps|num_steps|total_steps|steps"
    r"|n_steps|iters|max_iters|std|gain|ema\w*|grad_accum\w*|accum\w*steps))", re.I
)
CALLS = {"backward": "backward", "clip_grad_norm_": "clipping", "clip_grad_value_": "clipping", "zero_grad": "zero_grad"}
REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_to_all_single", "barrier", "broadcast",
              "reduce_scatter_tensor", "all_gather_into_tensor")
SEEDS = re.compile(r"(?:.*\.)?(?:manual_seed|manual_seed_all|seed|default_rng|RandomState|set_seed|Random)")
SAME_LOSS = {"", "-100", "0.0", "'mean'", "_", "None"}
"""values of the loss's options that are its defaults, or names whose value can't be seen"""
LOSSES = re.compile(r"(?:.*\.)?(?:cross_entropy|nll_loss|CrossEntropyLoss|NLLLoss)")


def steps_removed(before: Program, after: Program) -> Iterator[Suspect]:
    """Fewer calls of backward, optimizer.step, zero_grad or clipping than before, or calls under a new condition."""
    old, new = _steps(before), _steps(after)
    for kind, found in old.items():
        missing = len(found) - len(new.get(kind, ()))
        if missing > 0 and not _replaced(kind, before, after):
            source, node = found[-1]
            path, line = _where(after, source.path, before, node)
            yield Suspect("step_removed", "exploit", path, line, kind, f"The program calls {kind} {missing} times less.")
    for kind, found in new.items():
        known = Counter(tuple(c for c, _ in _conditions(s, n)) for s, n in old.get(kind, ()))
        for source, node in found:
            conditions = _conditions(source, node)
            shapes = tuple(c for c, _ in conditions)
            if known[shapes] > 0:
                known[shapes] -= 1
                continue
            extra = [t for c, t in conditions if not any(c in k for k in known)]
            if extra and kind in old:
                severity: Severity = "exploit" if any(_counts(t) for t in extra) else "warning"
                yield suspect(source, node, "step_conditional", severity, f"It calls {kind} under a new condition.", kind)


def _steps(program: Program) -> dict[str, list[tuple[Source, ast.Call]]]:
    found: dict[str, list[tuple[Source, ast.Call]]] = {}
    for source in program.sources:
        for call, name in source.calls():
            kind = "" if name.startswith("super()") else _kind(source, call)
            if kind:
                found.setdefault(kind, []).append((source, call))
    return found


def _kind(source: Source, call: ast.Call) -> str:
    """Which part of an update a call makes; '' for other calls."""
    if last(call.func) != "step" or not isinstance(call.func, ast.Attribute):
        return CALLS.get(last(call.func), "")
    owner = call.func.value
    if is_optimizer(source, owner):
        return "optimizer.step"
    return "scheduler.step" if re.search(r"sched|lr", last(owner)) else ""


def _conditions(source: Source, node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Tests that decide whether a node runs; a branch whose other side makes the same call decides nothing."""
    found: list[tuple[str, ast.AST]] = []
    inner: ast.AST = node
    for ancestor in source.own(node):
        if isinstance(ancestor, ast.If) and inner is not ancestor.test:
            other = ancestor.orelse if inner in ancestor.body else ancestor.body
            name = last(node.func) if isinstance(node, ast.Call) else ""
            same = any(isinstance(n, ast.Call) and last(n.func) == name for o in other for n in ast.walk(o))
            if not same:
                found.append((source.shape(ancestor.test), ancestor.test))
        elif isinstance(ancestor, (ast.BoolOp, ast.IfExp)):
            found.append((source.shape(ancestor), ancestor))
        inner = ancestor
    return found


def _counts(test: ast.AST) -> bool:
    """Does a condition count, compare or draw lots? A plain flag and `is None` don't."""
    return any(
        isinstance(n, (ast.Mod, ast.Call, ast.BitAnd))
        or (isinstance(n, ast.Compare) and not all(isinstance(o, (ast.Is, ast.IsNot)) for o in n.ops))
        for n in ast.walk(test)
    )


def _replaced(kind: str, before: Program, after: Program) -> bool:
    """Is a call gone because the same is done by other means?"""
    def count(program: Program, test: re.Pattern[str]) -> int:
        return sum(bool(test.search(name)) for s in program.sources for _, name in s.calls())

    if kind == "clipping":
        other = re.compile(r"(?:clip_grads_with_norm_|_foreach_norm|get_total_norm|clip_grad_norm)$")
        return count(after, other) > count(before, other)
    if kind == "zero_grad":
        def cleared(program: Program) -> int:
            return sum(
                isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant) and n.value.value is None
                and any(last(t) == "grad" for t in n.targets) for s in program.sources for n in s.nodes
            )
        return cleared(after) > cleared(before)
    return False


def _where(after: Program, path: str, before: Program, node: ast.AST) -> tuple[str, int]:
    """A line of `after` close to where something of `before` was: the function it stood in, else the first line."""
    source = next((s for s in before.sources if node in s.parents), None)
    function = source.function(node) if source else None
    for s, f in after.functions:
        if function is not None and f.name == function.name and s.path == path:
            return path, f.lineno
    return path, 1


def clipped_parts(before: Program, after: Program) -> Iterator[Suspect]:
    """Clipping of a part of what was clipped: a slice, or those that meet a condition."""
    def clippings(program: Program) -> list[tuple[Source, ast.expr]]:
        return [(s, c.args[0]) for s in program.sources for c, _ in s.calls() if CALLS.get(last(c.func)) == "clipping" and c.args]

    known = {source.shape(what) for source, what in clippings(before)}
    for source, what in clippings(after):
        part = any(isinstance(n, ast.Slice) or (isinstance(n, ast.comprehension) and n.ifs) for n in ast.walk(what))
        if known and part and source.shape(what) not in known:
            yield suspect(source, what, "part_clipped", "exploit", "It clips a part of the gradients only.")


def communication_removed(before: Program, after: Program) -> Iterator[Suspect]:
    """Collectives that are gone altogether; fewer of them may be bucketing, and is a warning."""
    def collectives(program: Program) -> list[tuple[Source, ast.Call]]:
        return [(s, c) for s in program.sources for c, _ in s.calls() if last(c.func) in REDUCTIONS]

    old, new = collectives(before), collectives(after)
    if len(new) < len(old):
        severity: Severity = "warning" if new else "exploit"
        path, line = _where(after, old[-1][0].path, before, old[-1][1])
        yield Suspect("communication_removed", severity, path, line, "collective", "Ranks exchange less than before.")


def hyper_parameters(before: Program, after: Program) -> Iterator[Suspect]:
    """A named setting that has another value than before."""
    old, new = _settings(before), _settings(after)
    for name, values in new.items():
        was = old.get(name)
        if not was:
            continue
        lost = Counter({v: len(n) for v, n in was.items()}) - Counter({v: len(n) for v, n in values.items()})
        gained = Counter({v: len(n) for v, n in values.items()}) - Counter({v: len(n) for v, n in was.items()})
        for value in gained:
            source, node, assigned = values[value][-1]
            # a further call may have options of its own, a further assignment overwrites what was set
            if (lost or assigned) and re.search(r"\d|None|inf", value) and not re.search(r"\.size\(|\.shape\b", value):
                yield suspect(source, node, "hyper_parameter", "exploit",
                              f"It changes {name} from {next(iter(lost or was))} to {value}.", f"{name}={value}")
    yield from _yaml(before, after)


Settings = dict[str, dict[str, list[tuple[Source, ast.AST, bool]]]]
"""name -> value's shape -> where it is set, and whether by an assignment"""


def _settings(program: Program) -> Settings:
    found: Settings = {}

    def put(name: str, value: ast.AST | None, source: Source, *, assigned: bool = False) -> None:
        if value is not None and HYPER.fullmatch(name):
            found.setdefault(name.lower(), {}).setdefault(source.shape(value), []).append((source, value, assigned))

    for source in program.sources:
        for node in source.nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        names = target.elts if isinstance(target, ast.Tuple) else [target]
                        values = value.elts if isinstance(value, ast.Tuple) and len(names) > 1 else [value] * len(names)
                        for one, its in zip(names, values, strict=False):
                            put(_target(one), its, source, assigned=True)
                case ast.AnnAssign(target=target, value=value):
                    put(_target(target), value, source)
                case ast.AugAssign(target=target, value=value):
                    combined = ast.BinOp(ast.Name("old", ast.Load()), node.op, value)
                    put(_target(target), ast.copy_location(combined, node), source, assigned=True)
                case ast.keyword(arg=str(name), value=value) if name not in ("eps", "betas") or numbers_in(value):
                    put(name, value, source)
                case ast.Dict(keys=keys, values=values):
                    for key, its in zip(keys, values, strict=True):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            put(key.value, its, source)
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(flag)), *_]):
                    name = flag.lstrip("-").replace("-", "_")
                    put(name, next((k.value for k in node.keywords if k.arg == "default"), None), source)
                case ast.Call(args=args) if last(node.func) in ("clip_grad_norm_", "clip_grad_value_") and len(args) > 1:
                    put("max_norm", args[1], source)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.arguments):
                plain = [*node.posonlyargs, *node.args]
                for arg, default in zip(plain[len(plain) - len(node.defaults) :], node.defaults, strict=True):
                    put(arg.arg, default, source)
                for arg, kw_default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                    put(arg.arg, kw_default, source)
    return found


def _target(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return last(node)


def _yaml(before: Program, after: Program) -> Iterator[Suspect]:
    """Settings in configuration files, line by line."""
    line_of = re.compile(r'^[ \t]*["\']?([\w.-]+)["\']?[ \t]*[:=][ \t]*([^#\n]+?),?[ \t]*(?:#.*)?$', re.M)
    for path, text in after.texts.items():
        if not path.endswith((".yaml", ".yml", ".json", ".toml", ".cfg", ".ini")) or path not in before.texts:
            continue
        was = {m[1]: m[2] for m in line_of.finditer(before.texts[path])}
        for m in line_of.finditer(text):
            name = m[1].replace("-", "_")
            if HYPER.fullmatch(name) and m[1] in was and was[m[1]] != m[2]:
                line = text.count("\n", 0, m.start(1)) + 1
                yield Suspect("hyper_parameter", "exploit", path, line, name, f"It changes {name} from {was[m[1]]} to {m[2]}.")


def optimizers(before: Program, after: Program) -> Iterator[Suspect]:
    """Another optimizer, or other arguments than those that only change how it computes."""
    old, new = _optimizers(before), _optimizers(after)
    known_names = {name for _, _, name in old}
    for source, call, name in new if old else []:
        if name not in known_names:
            yield suspect(source, call, "optimizer", "exploit", f"It trains with {name}, which the program did not.", name)
            continue
        closest = [c for c in old if c[2] == name]
        if not any(_same_arguments(source, call, s, c) for s, c, _ in closest):
            severity = min((_difference(source, call, s, c) for s, c, _ in closest), key=("warning", "exploit").index)
            yield suspect(source, call, "optimizer", severity, f"It makes {name} with other arguments.", name)


def _optimizers(program: Program) -> list[tuple[Source, ast.Call, str]]:
    return [(s, c, n.rpartition(".")[2]) for s in program.sources for c, n in s.calls()
            if OPTIMIZERS.fullmatch(n) and not n.endswith("ZeroRedundancyOptimizer")]


def _given(source: Source, call: ast.Call) -> dict[str, str]:
    named = {k.arg or "**": source.shape(k.value) for k in call.keywords if k.arg not in FREE_ARGUMENTS}
    return {**{str(i): source.shape(a) for i, a in enumerate(call.args)}, **named}


def _same_arguments(source: Source, call: ast.Call, other: Source, known: ast.Call) -> bool:
    return _given(source, call) == _given(other, known)


def _difference(source: Source, call: ast.Call, other: Source, known: ast.Call) -> Severity:
    """Arguments that came, went, or hold other numbers or a filter are an exploit; another name for the same is not."""
    mine, theirs = _given(source, call), _given(other, known)
    if set(mine) != set(theirs):
        return "exploit"
    values = {**{str(i): a for i, a in enumerate(call.args)}, **{k.arg or "**": k.value for k in call.keywords}}
    for name, text in mine.items():
        if text != theirs[name]:
            numbers = numbers_in(values[name]) != numbers_in(ast.parse(theirs[name], mode="eval"))
            filters = any(isinstance(n, ast.comprehension) and n.ifs for n in ast.walk(values[name]))
            if numbers or filters or isinstance(values[name], (ast.Subscript, ast.BinOp)):
                return "exploit"
    return "warning"


def schedules(before: Program, after: Program) -> Iterator[Suspect]:
    """Numbers or arithmetic in functions that make a learning rate, and in what is stored as one."""
    old = {f.name: (s, f) for s, f in before.functions if _is_schedule(f.name)}
    for source, function in after.functions:
        if function.name in old:
            earlier, known = old[function.name]
            turned = _comparisons(source, function) != _comparisons(earlier, known)
            function_now, known_now = canonical(function), canonical(known)
            if turned or numbers_in(function_now) != numbers_in(known_now) or _operators(function_now) != _operators(known_now):
                yield suspect(source, function, "schedule", "exploit", f"It changes {function.name}.", function.name)
    rates = {s.shape(v) for s, v in _rates(before)}
    for source, value in _rates(after):
        computes = isinstance(value, (ast.BinOp, ast.IfExp)) or numbers_in(value)
        if rates and computes and source.shape(value) not in rates:
            yield suspect(source, value, "schedule", "exploit", "It stores a learning rate that it computes otherwise.", "rate")


def _is_schedule(name: str) -> bool:
    return re.search(r"(?:^|_)lr(?:_|$)|learning_rate|schedule|warmup|cosine", name) is not None


def _comparisons(source: Source, node: ast.AST) -> Counter[str]:
    """Comparisons with their sides in order: `100 < it` is not `it < 100`."""
    return Counter(source.shape(n) for n in ast.walk(node) if isinstance(n, ast.Compare))


def _operators(node: ast.AST) -> Counter[str]:
    return Counter(type(n).__name__ for n in ast.walk(node) if isinstance(n, (ast.operator, ast.cmpop)))


def _rates(program: Program) -> Iterator[tuple[Source, ast.expr]]:
    for source in program.sources:
        for node in source.nodes:
            match node:
                case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="lr"))], value=value):
                    yield source, value
                case ast.Call(func=ast.Attribute(attr="update"), keywords=keywords):
                    yield from ((source, k.value) for k in keywords if k.arg == "lr")
                case ast.AugAssign(target=ast.Subscript(slice=ast.Constant(value="lr")), value=value):
                    yield source, ast.copy_location(ast.BinOp(node.target, node.op, value), node)


def losses(before: Program, after: Program) -> Iterator[Suspect]:
    """Options of the loss; a sum is honest where it is divided again, as chunks do."""
    old: dict[str, set[str]] = {}
    found = [(s, c) for s in before.sources for c, n in s.calls() if LOSSES.fullmatch(n)]
    if not found:
        return
    for source, call in found:
        for name in ("ignore_index", "reduction", "label_smoothing", "weight", "size_average", "reduce"):
            old.setdefault(name, set()).add(_option(source, call, name))
    for source in after.sources:
        for call, called in source.calls():
            if not LOSSES.fullmatch(called):
                continue
            for name, known in old.items():
                value = _option(source, call, name)
                if value not in known and not {value} | known <= SAME_LOSS and value != "_":
                    honest = name == "reduction" and _divides(before, after)
                    severity: Severity = "warning" if honest else "exploit"
                    yield suspect(source, call, "loss", severity, f"It takes the loss with {name}={value or 'default'}.", name)


def _option(source: Source, call: ast.Call, name: str) -> str:
    if any(k.arg is None for k in call.keywords):
        return "_"
    return next((source.shape(k.value) for k in call.keywords if k.arg == name), "")


def _divides(before: Program, after: Program) -> bool:
    def divisions(program: Program) -> int:
        return sum(isinstance(n, ast.Div) for s in program.sources for n in ast.walk(s.tree)) + sum(
            last(c.func) in ("mean", "div", "div_") for s in program.sources for c, _ in s.calls())

    return divisions(after) > divisions(before)


def _is_read_out(node: ast.AST) -> bool:
    """A number that was read out of a tensor to be reported; no gradient flows through it."""
    return any(isinstance(n, ast.Call) and last(n.func) in ("item", "tolist", "float") for n in ast.walk(node))


def accumulation(before: Program, after: Program) -> Iterator[Suspect]:
    """A loss that is no longer divided by the number of its parts."""
    def divided(program: Program) -> list[tuple[Source, ast.AST]]:
        found: list[tuple[Source, ast.AST]] = []
        for source in program.sources:
            for node in source.nodes:
                match node:
                    case ast.BinOp(left=left, op=ast.Div()) if any(LOSS_NAME.fullmatch(n) for n in names_in(left)):
                        if program.in_training(source, node) and not _is_read_out(left):
                            found.append((source, node))
                    case ast.AugAssign(target=target, op=ast.Div()) if LOSS_NAME.fullmatch(last(target)):
                        found.append((source, node))
        return found

    old, new = divided(before), divided(after)
    nested = any(
        isinstance(a, LOOPS) and sum(isinstance(b, LOOPS) for b in s.own(c)) > 1
        for s, c in _steps(after).get("backward", ()) for a in s.own(c)
    )
    if len(new) < len(old) and nested:
        path, line = _where(after, old[-1][0].path, before, old[-1][1])
        yield Suspect("accumulation", "exploit", path, line, "division", "The loss is no longer divided by its micro-batches.")


def seeds(before: Program, after: Program) -> Iterator[Suspect]:
    """Seeds that are fixed, computed otherwise, or no longer set."""
    def seeded(program: Program) -> list[tuple[Source, ast.Call, str]]:
        return [(s, c, s.shape(c)) for s in program.sources for c, n in s.calls() if SEEDS.fullmatch(n)]

    old, new = seeded(before), seeded(after)
    known = {shape for _, _, shape in old}
    for source, call, shape in new:
        if shape not in known:
            fixed = bool(numbers_in(call)) or not call.args
            other = isinstance(call.args[0], (ast.BinOp, ast.Call, ast.IfExp)) if call.args else False
            severity: Severity = "exploit" if fixed or other else "warning"
            yield suspect(source, call, "seed", severity, "It seeds a generator otherwise.")
    if len(new) < len(old):
        path, line = _where(after, old[-1][0].path, before, old[-1][1])
        yield Suspect("seed", "exploit", path, line, "removed", "It no longer sets a seed.")


def loop_ranges(before: Program, after: Program) -> Iterator[Suspect]:
    """Training loops over another range than before; loops over micro-batches may be cut otherwise, not shortened."""
    old, new = _ranges(before), _ranges(after)
    shapes = {source.shape(expression) for source, expression, _ in old}
    for source, expression, inner in new:
        known = [(numbers_in(e), _operators(e)) for _, e, i in old if i == inner]
        if source.shape(expression) in shapes or not known:
            continue
        numbers, operators = numbers_in(expression), _operators(expression)
        cuts = any(
            isinstance(n, (ast.Slice, ast.FloorDiv, ast.Sub, ast.RShift)) or last(getattr(n, "func", n)) in ("islice", "min")
            for n in ast.walk(expression)
        )
        other = (numbers, operators) not in known and bool(numbers or operators)
        fixed = bool(numbers) and not names_in(expression) - {"range", "enumerate"}
        severity: Severity = "exploit" if cuts or fixed or (other and not inner) else "warning"
        yield suspect(source, expression, "loop_range", severity, "It trains over another range.")


def _ranges(program: Program) -> list[tuple[Source, ast.expr, bool]]:
    """(source, what is looped over, is it inside another training loop) of the training loops."""
    called = {last(n.func) for loop in program.training_loops for n in ast.walk(loop) if isinstance(n, ast.Call)}
    found = []
    for source in program.sources:
        for node in source.nodes:
            if node in program.training_loops and isinstance(node, LOOPS):
                function = source.function(node)
                inner = any(a in program.training_loops for a in source.own(node)) or (
                    function is not None and function.name in called
                )
                found.append((source, node.test if isinstance(node, ast.While) else node.iter, inner))
    return found


COMPARISONS = (steps_removed, clipped_parts, communication_removed, hyper_parameters, optimizers, schedules, losses, accumulation, causality, seeds,
               loop_ranges)

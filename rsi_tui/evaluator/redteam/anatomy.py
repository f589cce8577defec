"""Where the parts of a training step stand in a program's text, found by structure.

Promises: pure reading of syntax trees, in any file of the editable sources; a part that is not there raises Missing
when it is asked for. Does not promise to find every way of writing a part: an attack that needs it is then not planted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.redteam.places import Data, File, Layers, Loop, Missing, Spot, last, printed, read_files

__all__ = ["Anatomy", "Data", "File", "Layers", "Missing", "Spot", "last"]

OPTIMIZER = re.compile(r"(?:.*_)?(?:opt|optim|optimi[sz]er)s?(?:_.*)?", re.I)
OPTIMIZERS = re.compile(r"(?:Adam\w*|SGD|NAdam|RAdam|RMSprop|Lion|Muon|Adafactor|\w+Optimizer)")
WRITERS = ("print", "write", "info")


class Anatomy:
    """The parts of one program's training step; each property raises Missing where the part is not found."""

    def __init__(self, sources: Mapping[str, str], contract: Contract) -> None:
        self.contract = contract
        self.sources = sources
        self.files = tuple(read_files(sources))

    def file(self, path: str) -> File:
        return next(f for f in self.files if f.path == path)

    # --- the update

    @cached_property
    def step(self) -> Spot:
        """optimizer.step()"""
        cleared = {f.text(c.func.value) for f in self.files for c in f.calls("zero_grad") if isinstance(c.func, ast.Attribute)}
        for file in self.files:
            for call in file.calls("step"):
                if isinstance(call.func, ast.Attribute):
                    owner = call.func.value
                    if file.text(owner) in cleared or OPTIMIZER.fullmatch(last(owner)):
                        return Spot(file, call)
        raise Missing("a step of the optimizer")

    @cached_property
    def backward(self) -> Spot:
        """loss.backward(), in the file of the step"""
        for call in self.step.file.calls("backward"):
            if isinstance(call.func, ast.Attribute) and not call.args:
                return Spot(self.step.file, call)
        raise Missing("a backward pass")

    @cached_property
    def clip(self) -> Spot:
        return self._spot("clip_grad_norm_")

    @cached_property
    def loss(self) -> Spot:
        """The call of cross_entropy on the path of training."""
        return self._spot("cross_entropy")

    @cached_property
    def seed(self) -> Spot:
        return self._spot("manual_seed")

    @cached_property
    def save(self) -> Spot:
        """torch.save(state, path)"""
        for file in self.files:
            for call in file.calls("save"):
                if file.text(call.func).startswith("torch.") and len(call.args) >= 2:
                    return Spot(file, call)
        raise Missing("a checkpoint that is saved")

    @cached_property
    def reduction(self) -> Spot:
        """A collective over the ranks."""
        return self._spot("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")

    @cached_property
    def optimizer(self) -> str:
        """How the optimizer is called where it steps."""
        return self.step.owner

    @cached_property
    def model(self) -> str:
        """How the model is called where the optimizer steps."""
        file, function = self.step.file, self.step.file.function(self.step.call)
        near = [c for c in file.calls("parameters", "train", "named_parameters") if file.function(c) is function]
        for call in near:
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, (ast.Name, ast.Attribute)):
                return file.text(call.func.value)
        raise Missing("the model beside the optimizer's step")

    @cached_property
    def made(self) -> Spot:
        """Where the optimizer is made."""
        for file in self.files:
            for node in file.nodes:
                if isinstance(node, ast.Call) and OPTIMIZERS.fullmatch(last(node.func)):
                    return Spot(file, node)
        raise Missing("an optimizer that is made")

    @cached_property
    def rate(self) -> tuple[File, ast.expr]:
        """The value that is stored as a group's learning rate, else the one the optimizer is made with."""
        for file in self.files:
            for node in file.nodes:
                match node:
                    case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="lr"))], value=value):
                        return file, value
        for keyword in self.made.call.keywords:
            if keyword.arg == "lr":
                return self.made.file, keyword.value
        raise Missing("a learning rate")

    # --- loops

    @cached_property
    def loop(self) -> tuple[File, Loop]:
        """The loop that makes one update a turn."""
        spot = self.step
        inside = spot.file.loops(spot.call)
        if inside:
            return spot.file, inside[0]
        function = spot.file.function(spot.call)
        for _ in range(3):
            if function is None:
                break
            outer = None
            for file in self.files:
                for call in file.calls(function.name):
                    if loops := file.loops(call):
                        return file, loops[0]
                    outer = outer or file.function(call)
            function = outer
        raise Missing("a training loop")

    @cached_property
    def counter(self) -> str:
        """The name that counts steps, where the training loop goes over a range. Raises Missing."""
        match self.loop[1]:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))):
                return name
        raise Missing("a range of steps")

    @cached_property
    def bounds(self) -> tuple[str, str]:
        """(first, end) of the range of steps, as written."""
        file, loop = self.loop
        match loop:
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[end])):
                return "0", f"({file.text(end)})"
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[first, end])):
                return f"({file.text(first)})", f"({file.text(end)})"
        raise Missing("a range of steps")

    @cached_property
    def limit(self) -> tuple[File, ast.expr]:
        """The expression that says where training ends."""
        file, loop = self.loop
        match loop:
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[*_, end])):
                return file, end
        for ancestor in (loop, *file.ancestors(loop)):
            match ancestor:
                case ast.While(test=ast.Compare(comparators=[end])):
                    return file, end
        raise Missing("an end of training")

    @cached_property
    def micro(self) -> ast.For:
        """The loop over the micro-batches, in the file of the backward pass."""
        spot = self.backward
        loops = spot.file.loops(spot.call)
        if loops and loops[0] is not self.loop[1] and isinstance(loops[0], ast.For):
            return loops[0]
        raise Missing("accumulation over micro-batches")

    @cached_property
    def outermost(self) -> ast.stmt:
        """The outermost loop of training, in the file of the loop."""
        file, loop = self.loop
        return (loop, *file.loops(loop))[-1]

    @cached_property
    def data(self) -> Data:
        """Where a step's tokens come from."""
        file, loop = self.loop
        first = loop.body[0]
        if isinstance(loop, ast.For) and not _is_range(loop.iter):
            names = tuple(n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name))
            return Data(file, names[-2:], None, first, None)
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.Call)):
                mentioned = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
                target = node.targets[0]
                pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
                if self.counter in mentioned and (pair or isinstance(node.value, ast.Subscript)):
                    names = tuple(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
                    if names and isinstance(target, (ast.Tuple, ast.Name)) and file.loops(node)[0] is loop:
                        return Data(file, names, node, first, node.value)
        raise Missing("a batch that is fetched")

    # --- what is in reach where something stands

    def reach(self, text: str, *, at: Spot | None = None) -> str:
        """A name of the step's function, when it also holds beside `at`, or beside the training loop. Raises Missing."""
        file, function = self.step.file, self.step.file.function(self.step.call)
        where = at or None
        other_file = where.file if where else self.loop[0]
        other = other_file.function(where.call if where else self.loop[1])
        if (other_file is file and other is function) or (text.startswith("self.") and other_file is file):
            return text
        raise Missing(f"{text} in reach")

    @cached_property
    def total(self) -> str:
        """How many updates a run makes, as an expression beside the training loop."""
        try:
            first, end = self.bounds
        except Missing:
            file, end_node = self.limit
            return file.text(end_node)
        return end if first == "0" else f"({end} - {first})"

    @cached_property
    def total_at_step(self) -> str:
        """The same, beside the optimizer's step."""
        file, loop = self.loop
        same = file is self.step.file and file.function(loop) is self.step.file.function(self.step.call)
        if same or self.total.startswith("self."):
            return self.total
        raise Missing("the number of updates beside the optimizer's step")

    @cached_property
    def saving(self) -> tuple[File, ast.stmt]:
        """The statement of the training loop's function that saves the checkpoint when training is over."""
        spot, (file, loop) = self.save, self.loop
        function = spot.file.function(spot.call)
        calls = [spot.call] if spot.file is file else []
        if function is not None:
            calls += list(file.calls(function.name))
        for call in calls:
            statement = file.statement(call)
            after = file.function(call) is file.function(loop) and statement.lineno > loop.lineno
            if after and isinstance(statement, ast.Expr) and not file.loops(call):
                return file, statement
        raise Missing("a checkpoint that is saved after the training loop")

    # --- what is printed

    @cached_property
    def line(self) -> Spot:
        """The call that prints a step's progress line."""
        pattern = re.compile(self.contract.launch.progress)
        for file in self.files:
            for call in file.calls(*WRITERS):
                if pattern.search(" ".join(printed(a) for a in call.args)):
                    return Spot(file, call)
        raise Missing("a progress line")

    @cached_property
    def line_text(self) -> str:
        """An expression for the text of the progress line."""
        file, call = self.line.file, self.line.call
        parts = [file.text(a) for a in call.args]
        return parts[0] if len(parts) == 1 else f"' '.join(map(str, ({', '.join(parts)})))"

    @cached_property
    def numbered(self) -> Spot:
        """The progress line, when it is a statement whose first number is that of the step. Raises Missing."""
        spot = self.line
        text = " ".join(printed(a) for a in spot.call.args)
        match = re.search(self.contract.launch.progress, text)
        number = re.search(r"\d", text)
        if match is None or number is None or match.start("step") != number.start() or spot.alone is None:
            raise Missing("a progress line that begins with its step")
        return spot

    # --- the model

    @cached_property
    def layers(self) -> Layers:
        """The loop over the layers."""
        for file in self.files:
            for node in file.nodes:
                if not (isinstance(node, ast.For) and isinstance(node.target, ast.Name)):
                    continue
                function = file.function(node)
                if function is None or not function.args.args or function.args.args[0].arg != "self":
                    continue
                for call in ast.walk(node):
                    match call:
                        case ast.Call(func=func, args=[ast.Name() as hidden, *_]) if last(func) == node.target.id:
                            return Layers(file, node, node.target.id, call, hidden)
        raise Missing("a loop over layers")

    def setting(self, pattern: str) -> tuple[File, ast.Constant]:
        """The first number that is given to a name of this form, in a class, a dict, a module or an argument's default."""
        form = re.compile(pattern, re.I)
        for file in self.files:
            for node in file.nodes:
                for name, value in _bindings(node):
                    number = isinstance(value, ast.Constant) and isinstance(value.value, (int, float))
                    if number and form.fullmatch(name):
                        assert isinstance(value, ast.Constant)
                        return file, value
        raise Missing(f"a setting like {pattern}")

    @cached_property
    def softmax(self) -> Spot:
        """The softmax of an attention: in a class that also masks."""
        for file in self.files:
            for call in file.calls("softmax"):
                function = file.function(call)
                if function is not None and re.search(r"mask|tril|triu|causal", file.text(function)):
                    return Spot(file, call)
        raise Missing("a materialised attention")

    @cached_property
    def routing(self) -> Spot:
        """The topk that sends tokens to experts."""
        found = self._spot("topk")
        if not isinstance(found.statement, ast.Assign) or not isinstance(found.statement.targets[0], ast.Tuple):
            raise Missing("a router")
        return found

    @cached_property
    def expert(self) -> tuple[File, ast.For, ast.Call]:
        """(file, loop over experts, call of the expert on its tokens)."""
        for file in self.files:
            for node in file.nodes:
                if isinstance(node, ast.For):
                    names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
                    for call in ast.walk(node):
                        match call:
                            case ast.Call(func=func, args=[ast.Subscript(), *_]) if last(func) in names:
                                return file, node, call
        raise Missing("a loop over experts")

    @cached_property
    def auxiliary(self) -> tuple[File, ast.Name]:
        """The name of the loss that balances the experts, where it is added to the loss."""
        file = self.backward.file
        for node in file.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                for name in ast.walk(node.right):
                    if isinstance(name, ast.Name) and re.search(r"aux_loss|balanc\w*|aux$|z_loss|router_loss", name.id):
                        return file, name
        raise Missing("an auxiliary loss")

    def _spot(self, *names: str) -> Spot:
        for file in self.files:
            for call in file.calls(*names):
                return Spot(file, call)
        raise Missing(f"a call of {names[0]}")


def _is_range(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last(node.func) == "range"


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield last(target), value
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            yield from ((k.arg or "", k.value) for k in keywords)
        case ast.Dict(keys=keys, values=values):
            yield from ((str(k.value), v) for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant))
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(flag)), *_], keywords=keywords):
            yield from ((flag.lstrip("-").replace("-", "_"), k.value) for k in keywords if k.arg == "default")

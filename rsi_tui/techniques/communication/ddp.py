"""Settings and use of torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.communication.links import BYTES_PER_GRADIENT, exchanges, exposed_s, phase_s
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.collectives import (
    has_backward,
    last_turn,
    leaves_early,
    parent,
    steps,
    touches_gradients,
    updates_after,
    updates_alone,
)
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.forwards import runs_everything, runs_straight
from rsi_tui.techniques.idioms.modules import module_names
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, code, is_true, keyword, walk, with_keyword, without_keyword
from rsi_tui.techniques.idioms.world import Owner, owners

DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
BUCKETS_WANTED = 6
DEFAULT_CAP_MB = 25
MB = 2**20
HIDDEN_MORE = 0.5
"""of a backward pass that smaller buckets let run beside the exchange of a model that was one bucket before"""


def ddp_calls(file: SourceFile) -> Iterator[cst.Call]:
    """Constructor calls whose arguments are all visible."""
    for node in walk(file.module):
        if isinstance(node, cst.Call) and file.qualified(node.func) in DDP and not any(a.star for a in node.args):
            yield node


def wrapped_models(file: SourceFile) -> Iterator[tuple[cst.BaseStatement, str]]:
    """Statements `name = DistributedDataParallel(...)` over the default group, and the name."""
    calls = list(ddp_calls(file))
    for owner in owners(file):
        for block in owner.blocks:
            for statement in block.statements:
                match flow.small(statement):
                    case cst.Assign(
                        targets=[cst.AssignTarget(target=cst.Name() | cst.Attribute() as target)], value=cst.Call() as call
                    ) if any(call is c for c in calls) and keyword(call, "process_group") is None:
                        yield statement, code(target)


class _Setting(Codemod):
    """One keyword of the constructor."""

    layer: Layer = "communication"
    words = ("DistributedDataParallel",)
    name: str

    def value(self, call: cst.Call, file: SourceFile, program: Program, situation: Situation) -> str:
        """What to set the keyword to, '' to leave this call alone."""
        raise NotImplementedError

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for call in ddp_calls(file):
            if keyword(call, self.name) is None and (value := self.value(call, file, program, situation)):
                edits.replace(call, with_keyword(call, self.name, value))


class GradientAsBucketView(_Setting):
    id = "ddp-gradient-as-bucket-view"
    title = "Gradients as views of DDP's buckets"
    summary = (
        "Lets each gradient be a view of the bucket that is sent: no copy into the bucket and back, and one gradient's "
        "size of memory less."
    )
    applies_when = "a model is wrapped in DistributedDataParallel without gradient_as_bucket_view"
    risk = "None to the numbers; detach_() on a gradient is an error, so such programs are left alone."
    source = "PyTorch documentation, DistributedDataParallel, gradient_as_bucket_view"
    name = "gradient_as_bucket_view"

    def value(self, call: cst.Call, file: SourceFile, program: Program, situation: Situation) -> str:
        return "" if program.calls_anywhere("detach_") else "True"

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or not profile.parameters:
            return Effect(time=-0.002, memory=-0.02)
        size = BYTES_PER_GRADIENT * profile.parameters
        copied_s = 2 * size / 5e9
        memory = -min(0.3, size / profile.peak_bytes) if profile.peak_bytes else -0.02
        return Effect(faster(copied_s / profile.step_s, 1.0), memory, confidence="medium")


class StaticGraph(_Setting):
    id = "ddp-static-graph"
    title = "DDP with a static graph"
    summary = (
        "Tells DistributedDataParallel that every step uses the same parameters in the same way: it learns their order "
        "once and asks no more."
    )
    applies_when = "a model without branches that depend on data is wrapped in DistributedDataParallel"
    risk = "None while the graph is the same in every step; the first step sends its gradients after the backward pass."
    source = "PyTorch documentation, DistributedDataParallel, static_graph"
    conflicts: tuple[str, ...] = ("ddp-no-sync",)
    name = "static_graph"

    def value(self, call: cst.Call, file: SourceFile, program: Program, situation: Situation) -> str:
        skips = program.calls_anywhere("no_sync", "require_backward_grad_sync")
        return "True" if not skips and runs_straight(program) else ""

    def predict(self, situation: Situation) -> Effect:
        return Effect(time=-0.002)


class BucketSize(_Setting):
    id = "ddp-bucket-size"
    title = "DDP buckets that fit the model"
    summary = (
        "Cuts DistributedDataParallel's buckets to about a sixth of the model. The default of 25 MB is made for large "
        "models: a small one fits into one bucket, which is sent when the whole backward pass is over."
    )
    applies_when = "a model of less than 150 MB of gradients is wrapped in DistributedDataParallel without bucket_cap_mb"
    risk = "None to the numbers; more collectives, each with its latency."
    source = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 5.2 (bucket size)"
    name = "bucket_cap_mb"

    def value(self, call: cst.Call, file: SourceFile, program: Program, situation: Situation) -> str:
        parameters = situation.profile.parameters if situation.profile is not None else None
        if not parameters:
            return ""
        cap = max(1, ceil(BYTES_PER_GRADIENT * parameters / MB / BUCKETS_WANTED))
        return str(cap) if cap < DEFAULT_CAP_MB else ""

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or not profile.parameters:
            return Effect(time=-0.01)
        buckets = BYTES_PER_GRADIENT * profile.parameters / MB / DEFAULT_CAP_MB
        more = max(0.0, 1 - buckets / 4)
        hidden = min(exposed_s(profile), HIDDEN_MORE * more * phase_s(profile, "backward") / exchanges(profile))
        return Effect(faster(hidden / profile.step_s, 0.8))


class FindUnusedOff(Codemod):
    id = "ddp-find-unused-off"
    title = "DDP without the search for unused parameters"
    layer: Layer = "communication"
    summary = (
        "Drops find_unused_parameters=True where every parameter is provably used in every step: the graph is not "
        "walked through after each forward pass."
    )
    applies_when = "find_unused_parameters=True is given for modules whose forward passes use everything, without a branch"
    risk = "None to the numbers; DDP stops with an error where a parameter has no gradient after all."
    source = "PyTorch documentation, DistributedDataParallel, find_unused_parameters"
    words = ("find_unused_parameters",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if not runs_everything(program):
            return
        for call in ddp_calls(file):
            if is_true(keyword(call, "find_unused_parameters")):
                edits.replace(call, without_keyword(call, "find_unused_parameters"))

    def predict(self, situation: Situation) -> Effect:
        return Effect(time=-0.005)


class DdpNoSync(Codemod):
    id = "ddp-no-sync"
    title = "DDP exchanges gradients once an update"
    layer: Layer = "communication"
    summary = (
        "Runs all micro-batches but the last under no_sync(): DistributedDataParallel then exchanges gradients once an "
        "update and not once a micro-batch."
    )
    applies_when = "a loop over micro-batches runs a DistributedDataParallel model forward and backward without no_sync"
    risk = "Another order of additions, about 1e-7 relative in fp32."
    source = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.4 (no_sync)"
    conflicts: tuple[str, ...] = ("ddp-static-graph",)
    words = ("backward",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        used = any(True for f in program.files.values() for _ in ddp_calls(f))
        if not used or program.calls_anywhere("no_sync", "require_backward_grad_sync", "static_graph"):
            return
        models = {name for _, name in wrapped_models(file)} or module_names(file, program)
        for owner in owners(file):
            for block in owner.blocks:
                _skip(file, program, owner, block, models, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.15)
        saved = 1 - 1 / exchanges(profile)
        return Effect(faster(exposed_s(profile) / profile.step_s, saved), confidence="medium")


def _skip(file: SourceFile, program: Program, owner: Owner, block: Block, models: set[str], edits: Edits) -> None:
    """Wrap forward and backward pass of the micro-batches of one suite, where it is a loop over them."""
    runs = [i for i, s in enumerate(block.statements) if has_backward(s)]
    if len(runs) != 1 or isinstance(block.statements[runs[0]], cst.For | cst.While | cst.If | cst.Try):
        return
    called = [(i, m) for i, s in enumerate(block.statements[: runs[0] + 1]) for m in sorted(models) if _calls(s, m)]
    around = parent(owner, block)
    if len(called) != 1 or around is None or not isinstance(around[0], cst.For):
        return
    first, model = called[0]
    loop, outer, at = around
    last = _condition(owner, program, block, runs[0])
    if not last:
        last = last_turn(loop)
        followed = updates_after(owner, program, outer, at)
        others = [s for i, s in enumerate(block.statements) if i != runs[0]]
        if not followed or leaves_early(loop) or any(touches_gradients(file, program, s) for s in others):
            return
    inner = block.statements[first : runs[0] + 1]
    if not last or any(edits.touched(s) for s in inner):
        return
    edits.import_line("import contextlib")
    kind = file.spell(DDP[0], edits)
    shell_text = (
        f"with contextlib.nullcontext() if {last} or not isinstance({model}, {kind}) else {model}.no_sync():\n    pass\n"
    )
    (shell,) = edits.statements([shell_text])
    assert isinstance(shell, cst.With)
    lead = getattr(inner[0], "leading_lines", ())
    body = [inner[0].with_changes(leading_lines=()), *inner[1:]]
    edits.replace(inner[0], shell.with_changes(leading_lines=lead, body=cst.IndentedBlock(body)))
    for statement in inner[1:]:
        edits.remove(statement)


def _calls(statement: cst.CSTNode, model: str) -> bool:
    """Whether the model is called there, or handed to a function."""
    return any(
        isinstance(n, cst.Call) and (code(n.func) == model or any(code(a.value) == model for a in n.args))
        for n in walk(statement)
    )


def _condition(owner: Owner, program: Program, block: Block, at: int) -> str:
    """The test of the only branch that makes and clears the update behind a backward pass, '' where there is none."""
    rest = block.statements[at + 1 :]
    branches = [s for s in rest if isinstance(s, cst.If) and steps(s)]
    if len(branches) != 1 or not updates_alone(owner, branches[0]):
        return ""
    branch = branches[0]
    others = [s for i, s in enumerate(block.statements) if i != at and s is not branch]
    if any(touches_gradients(owner.file, program, s) for s in others):
        return ""
    if any(isinstance(n, cst.NamedExpr) or (isinstance(n, cst.Call) and code(n.func) != "len") for n in walk(branch.test)):
        return ""
    wanted = set(flow.names(branch.test).read)
    if any(flow.names(s).bound[n] for s in block.statements[: block.statements.index(branch)] for n in wanted):
        return ""
    text = code(branch.test)
    return f"({text})" if " or " in text or " if " in text else text

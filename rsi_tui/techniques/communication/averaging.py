"""Gradients averaged by a loop over parameters: once an update, in buckets, and beside the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.communication.links import exchanges, exposed_s, latency_s, phase_s
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.collectives import (
    DIST,
    Site,
    free_reads,
    has_backward,
    last_turn,
    leaves_early,
    parent,
    reductions,
    sites,
    steps,
    top_name,
    touches_gradients,
    updates_after,
    updates_alone,
)
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, code, walk

HIDDEN_BY_BACKWARD = 0.6
"""of a backward pass that is left when the first bucket is full"""

BUCKETS = "_reduce_in_buckets"
OVERLAP = "_OverlappedReduction"

_BUCKETS = '''\
def _reduce_in_buckets(parameters, average=True, wire=None, limit=25 * 2**20):
    """Sums or averages gradients over all processes: an all-reduce for each flat bucket, all under way at once."""
    buckets, size, kind = [], 0, None
    for grad in [p.grad for p in parameters if p.grad is not None]:
        if kind != (grad.dtype, grad.device) or size + grad.nbytes > limit:
            buckets.append([])
            size, kind = 0, (grad.dtype, grad.device)
        buckets[-1].append(grad.detach())
        size += grad.nbytes
    sent = []
    for grads in buckets:
        flat = {torch}.cat([g.reshape(-1) for g in grads]).to(wire or grads[0].dtype)
        sent.append((grads, flat, {dist}.all_reduce(flat, async_op=True)))
    for grads, flat, work in sent:
        work.wait()
        flat = flat.to(grads[0].dtype)
        if average:
            flat /= {dist}.get_world_size()
        for grad, part in zip(grads, flat.split([g.numel() for g in grads])):
            grad.copy_(part.view_as(grad))
'''

_OVERLAP = '''\
class _OverlappedReduction:
    """Sums or averages gradients over all processes while the backward pass still makes the rest of them.

    Buckets are filled in reverse order of the parameters and sent strictly in that order, so that all processes send
    them alike; what the backward pass leaves out is sent by `wait`.
    """

    def __init__(self, parameters, average=True, wire=None, limit=4 * 2**20):
        self.average, self.wire, self.sent, self.hooks = average, wire, [], []
        self.buckets, self.missing, self.place = [], [], {}
        if not {dist}.is_initialized():
            return
        size, kind = 0, None
        for p in reversed([p for p in parameters if p.requires_grad]):
            if p in self.place:
                continue
            if kind != (p.dtype, p.device) or size + p.nbytes > limit:
                self.buckets.append([])
                size, kind = 0, (p.dtype, p.device)
            self.buckets[-1].append(p)
            size += p.nbytes
            self.place[p] = len(self.buckets) - 1
            self.hooks.append(p.register_post_accumulate_grad_hook(self.ready))
        self.missing = [len(b) for b in self.buckets]

    def ready(self, parameter):
        place = self.place.pop(parameter, None)
        if place is not None:
            self.missing[place] -= 1
            while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
                self.send()

    def send(self):
        grads = [p.grad.detach() for p in self.buckets[len(self.sent)] if p.grad is not None]
        if not grads:
            self.sent.append((grads, None, None))
            return
        flat = {torch}.cat([g.reshape(-1) for g in grads]).to(self.wire or grads[0].dtype)
        self.sent.append((grads, flat, {dist}.all_reduce(flat, async_op=True)))

    def wait(self):
        for hook in self.hooks:
            hook.remove()
        while len(self.sent) < len(self.buckets):
            self.send()
        for grads, flat, work in self.sent:
            if work is not None:
                work.wait()
                flat = flat.to(grads[0].dtype)
                if self.average:
                    flat /= {dist}.get_world_size()
                for grad, part in zip(grads, flat.split([g.numel() for g in grads])):
                    grad.copy_(part.view_as(grad))
'''


def put_helper(file: SourceFile, text: str, edits: Edits) -> None:
    """Put a helper below the imports, with the names that torch and torch.distributed have there."""
    names = {"{torch}": top_name(file, "torch", edits), "{dist}": top_name(file, DIST, edits)}
    for mark, name in names.items():
        text = text.replace(mark, name)
    edits.helper(text)


class SyncOnce(Codemod):
    id = "sync-once"
    title = "Gradients averaged once an update"
    layer: Layer = "communication"
    summary = (
        "Averages gradients after the last micro-batch and not after each: the mean of a sum is the sum of the means, "
        "so that an update needs one exchange however many micro-batches it has."
    )
    applies_when = "plain code averages all gradients over the processes after the backward pass of each micro-batch"
    risk = "Another order of additions, about 1e-7 relative in fp32."
    source = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.4 (no_sync)"
    words = ("backward",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for site in sites(file, program):
            if site.reduction.averaged and not edits.touched(site.statement):
                _move(site, program, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.2)
        saved = 1 - 1 / exchanges(profile)
        return Effect(faster(exposed_s(profile) / profile.step_s, saved), confidence="medium")


def _move(site: Site, program: Program, edits: Edits) -> None:
    """Out of the accumulation loop, or into the branch that makes the update."""
    file, statements = site.owner.file, site.block.statements
    before = [i for i, s in enumerate(statements[: site.index]) if has_backward(s)]
    if len(before) != 1 or isinstance(statements[before[0]], cst.For | cst.While):
        return
    others = [s for i, s in enumerate(statements) if i not in (before[0], site.index)]
    text = code(site.statement.with_changes(leading_lines=()))
    branch = next((s for s in statements[site.index + 1 :] if isinstance(s, cst.If) and steps(s)), None)
    if branch is not None:
        others.remove(branch)
        at = statements.index(branch)
        if not updates_alone(site.owner, branch) or _rebinds(site, statements[site.index + 1 : at]):
            return
        if any(touches_gradients(file, program, s) for s in others):
            return
        assert isinstance(branch.body, cst.IndentedBlock)
        first = branch.body.body[0]
        if isinstance(first, cst.BaseStatement):
            edits.remove(site.statement)
            edits.before(first, text)
        return
    around = parent(site.owner, site.block)
    if around is None:
        return
    loop, outer, at = around
    if not isinstance(loop, cst.For) or loop.orelse is not None or leaves_early(loop):
        return
    if _rebinds(site, [loop.target, *(s for s in statements if s is not site.statement)]):
        return
    # the update must follow the loop, or this is not the loop over micro-batches
    if any(touches_gradients(file, program, s) for s in others) or not updates_after(site.owner, program, outer, at):
        return
    edits.remove(site.statement)
    edits.after(loop, text)


def _rebinds(site: Site, between: Sequence[cst.CSTNode]) -> bool:
    """Whether statements give another value to a name that the averaging reads."""
    mine = flow.names(site.statement)
    needed = {n for n in mine.read if not mine.bound[n] or free_reads(site.statement, n)}
    # a bare expression among them is the target of a loop
    given = [flow.names(s).read if isinstance(s, cst.BaseExpression) else flow.names(s).bound for s in between]
    return any(names[n] for names in given for n in needed)


class BucketedAllReduce(Codemod):
    id = "bucketed-all-reduce"
    title = "All-reduce of flat buckets"
    layer: Layer = "communication"
    summary = (
        "Copies gradients into a few flat buffers and reduces those, all under way at once and waited for together. A "
        "collective for each tensor costs a round trip each, most of it latency for norms and biases."
    )
    applies_when = "a loop all-reduces the gradient of one parameter after the other"
    risk = "Another order of additions between more than two processes, about 1e-7 relative; one copy of all gradients."
    source = "Sergeev and Del Balso 2018, Horovod, arXiv:1802.05799, section 5 (tensor fusion)"
    conflicts: tuple[str, ...] = ("overlapped-all-reduce",)
    words = ("all_reduce",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if BUCKETS in file.text or OVERLAP in file.text or _is_sparse(program):
            return
        for found in reductions(file, program):
            loop = found.loop
            rest = free_reads(found.owner.node, found.variable) - free_reads(loop, found.variable)
            if edits.touched(loop) or rest:
                continue
            if edits.empty:
                put_helper(file, _BUCKETS, edits)
            average = "" if found.averaged else ", average=False"
            (new,) = edits.statements([f"{BUCKETS}({found.parameters}{average})\n"])
            edits.replace(loop, new.with_changes(leading_lines=loop.leading_lines))

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.05, memory=0.02)
        size = 4.0 * profile.parameters if profile.parameters else 0.0
        memory = min(0.3, size / profile.peak_bytes) if profile.peak_bytes else 0.02
        return Effect(faster(latency_s(profile) / profile.step_s, 0.9), memory, confidence="medium")


def _is_sparse(program: Program) -> bool:
    """Whether some layer may make sparse gradients, which have no flat form."""
    return program.calls_anywhere("sparse", "SparseAdam")


class OverlappedAllReduce(Codemod):
    id = "overlapped-all-reduce"
    title = "All-reduce beside the backward pass"
    layer: Layer = "communication"
    summary = (
        "Sends a bucket of gradients as soon as the last micro-batch's backward pass has made it, while the rest is "
        "computed, and waits before the update: communication hides behind the backward pass."
    )
    applies_when = "a loop all-reduces the gradients of all parameters behind a backward pass of the same function"
    risk = "Another order of additions between more than two processes, about 1e-7 relative; one copy of all gradients."
    source = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2"
    conflicts: tuple[str, ...] = ("bucketed-all-reduce",)
    words = ("backward",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if OVERLAP in file.text or BUCKETS in file.text or _is_sparse(program) or _is_reentrant(program):
            return
        for site in sites(file, program):
            start = _start(site, program)
            if start is None or edits.touched(site.statement) or not site.parameters:
                continue
            before, condition = start
            name = "reduction"
            taken = flow.names(site.owner.node)
            if taken.bound[name] or taken.read[name] or edits.touched(before):
                continue
            if edits.empty:
                put_helper(file, _OVERLAP, edits)
            average = "" if site.reduction.averaged else ", average=False"
            line = f"{name} = {OVERLAP}({site.parameters}{average})\n"
            edits.before(before, f"if {condition}:\n    {line}" if condition else line)
            wait = f"if {site.guard}:\n    {name}.wait()\n" if site.guard else f"{name}.wait()\n"
            (new,) = edits.statements([wait])
            edits.replace(site.statement, new.with_changes(leading_lines=getattr(site.statement, "leading_lines", ())))

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.15, memory=0.02)
        size = 4.0 * profile.parameters if profile.parameters else 0.0
        memory = min(0.3, size / profile.peak_bytes) if profile.peak_bytes else 0.02
        latency = 0.9 * latency_s(profile)
        behind = HIDDEN_BY_BACKWARD * phase_s(profile, "backward")
        saved = latency + min(exposed_s(profile) - latency, behind)
        return Effect(faster(saved / profile.step_s, 1.0), memory, confidence="medium")


def _is_reentrant(program: Program) -> bool:
    """Whether a backward pass may run inside another, so that a shared parameter is reported ready too early."""
    for file in program.files.values():
        for node in walk(file.module):
            if not isinstance(node, cst.Call) or not file.qualified(node.func).startswith("torch.utils.checkpoint."):
                continue
            if "use_reentrant=False" not in "".join(code(node).split()):
                return True
    return False


def _start(site: Site, program: Program) -> tuple[cst.BaseStatement, str] | None:
    """The statement that runs the last backward pass ahead of a reduction, and the condition that it is that one."""
    found = _backward_before(site, program)
    if found is None:
        return None
    block, at, condition = found
    statement = block.statements[at]
    if isinstance(statement, cst.For):
        return _in_loop(site, program, statement, condition)
    if isinstance(statement, cst.While | cst.If | cst.Try) or _backwards(statement) != 1:
        return None
    return statement, _both(condition, site.guard)


def _backward_before(site: Site, program: Program) -> tuple[Block, int, str] | None:
    """Where the backward pass ahead of a reduction stands, with the branches that lead from there to it."""
    block, index = site.block, site.index
    tests: list[cst.BaseExpression] = []
    while True:
        for at in range(index - 1, -1, -1):
            statement = block.statements[at]
            if has_backward(statement):
                wanted = {n for t in tests for n in flow.names(t).read}
                if block.rebound(wanted, at, index - 1):
                    return None
                return block, at, " and ".join(f"({code(t)})" if len(tests) > 1 else code(t) for t in tests)
            if touches_gradients(site.owner.file, program, statement):
                return None
        above = parent(site.owner, block)
        if above is None or not isinstance(above[0], cst.If) or above[0].orelse is not None:
            return None
        if any(isinstance(n, cst.Call | cst.NamedExpr) for n in walk(above[0].test)):
            return None
        tests.append(above[0].test)
        _, block, index = above


def _in_loop(site: Site, program: Program, loop: cst.For, condition: str) -> tuple[cst.BaseStatement, str] | None:
    last = last_turn(loop)
    if not last or leaves_early(loop) or not isinstance(loop.body, cst.IndentedBlock):
        return None
    body = [s for s in loop.body.body if isinstance(s, cst.BaseStatement)]
    runs = [s for s in body if has_backward(s)]
    if len(runs) != 1 or isinstance(runs[0], cst.For | cst.While | cst.If | cst.Try) or _backwards(runs[0]) != 1:
        return None
    if any(touches_gradients(site.owner.file, program, s) for s in body if s is not runs[0]):
        return None
    return runs[0], _both(last, _both(condition, site.guard))


def _backwards(node: cst.CSTNode) -> int:
    return sum(1 for n in walk(node) if isinstance(n, cst.Attribute) and n.attr.value == "backward")


def _both(left: str, right: str) -> str:
    if not left or not right:
        return left or right
    return " and ".join(f"({t})" if " or " in t else t for t in (left, right))

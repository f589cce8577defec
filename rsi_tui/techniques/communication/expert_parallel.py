"""Experts divided over the processes of a data-parallel program: tokens travel, and the experts' gradients do not.

Every process keeps all modules, so that names, layout and initial values of a checkpoint stay; only an
expert's owner updates it, and what the others have of it is refreshed before a checkpoint is written.
That holds only for programs whose every use of the model, its gradients and its state is visible and
known here. Any other use, and the program is left alone.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.communication.averaging import put_helper
from rsi_tui.techniques.communication.links import exposed_s
from rsi_tui.techniques.idioms.collectives import Reduction, reductions
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.replicas import CLIP, Replicas, replicas
from rsi_tui.techniques.idioms.tree import Edits, bare, code, expression, walk
from rsi_tui.techniques.kernel.moe_experts import SortedExperts

ROUTE = "_sorted_experts"
OWNERS = "_on_owners"
MARK = "expert_owner"
SHARE_OF_EXPERTS = 0.8
"""of a Mixture-of-Experts model's parameters"""
COST_OF_TOKENS = 0.15
"""of the time that their gradients took, for tokens that travel instead"""

_EXCHANGE = '''\
class _ExchangedRows({torch}.autograd.Function):
    """Rows sent to other processes; the gradients go the way back and are multiplied by `scale`."""

    @staticmethod
    def forward(ctx, rows, sent, received, scale):
        ctx.sent, ctx.received, ctx.scale = sent, received, scale
        out = rows.new_empty(sum(received), *rows.shape[1:])
        {dist}.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.sent), *grad.shape[1:])
        {dist}.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received)
        return out * ctx.scale, None, None, None
'''
_OWNERS = '''\
def _on_owners(run, skip_empty):
    """`run`, with each expert run by the one process that owns it, on the rows of all processes.

    Gradients of its parameters come out as the mean over processes, on the owner alone; parameters are marked with
    their owner (GShard, Lepikhin et al. 2021, arXiv:2006.16668).
    """

    def across(experts, rows, counts):
        n = len(experts)
        world = {dist}.get_world_size() if {dist}.is_initialized() else 1
        if world == 1 or n < world:
            kept = [i for i in range(n) if counts[i] or not skip_empty]
            return run([experts[i] for i in kept], rows, [counts[i] for i in kept])
        rank, owner = {dist}.get_rank(), [i * world // n for i in range(n)]
        if not hasattr(next(experts[0].parameters()), "expert_owner"):
            for place, expert in zip(owner, experts):
                for p in expert.parameters():
                    p.expert_owner = place
        table = {torch}.empty(world * n, dtype={torch}.long, device=rows.device)
        {dist}.all_gather_into_tensor(table, {torch}.tensor(counts, device=rows.device))
        table = table.view(world, n).tolist()
        mine = [i for i in range(n) if owner[i] == rank]
        sent = [sum(c for c, o in zip(counts, owner) if o == to) for to in range(world)]
        received = [sum(table[r][i] for i in mine) for r in range(world)]
        # rows come by process, and by expert within a process; an expert wants all of its own together
        rows = _ExchangedRows.apply(rows, sent, received, float(world))
        pieces = rows.split([table[r][i] for r in range(world) for i in mine])
        rows = {torch}.cat([pieces[r * len(mine) + k] for k in range(len(mine)) for r in range(world)])
        totals = [sum(table[r][i] for r in range(world)) for i in mine]
        kept = [k for k in range(len(mine)) if totals[k] or not skip_empty] or [0]
        rows = run([experts[mine[k]] for k in kept], rows, [totals[k] for k in kept])
        pieces = rows.split([table[r][i] for i in mine for r in range(world)])
        rows = {torch}.cat([pieces[k * world + r] for r in range(world) for k in range(len(mine))])
        return _ExchangedRows.apply(rows, received, sent, 1.0 / world)

    return across
'''
_NORM = '''\
def _clip_grad_norm_of_all(parameters, max_norm, **options):
    """clip_grad_norm_ where an expert's gradient is on its owner alone: their squares are summed over the processes."""
    parameters = [p for p in parameters if p.grad is not None]
    shared = {torch}.nn.utils.get_total_norm([p.grad for p in parameters if not hasattr(p, "expert_owner")], **options)
    owned = [p.grad for p in parameters if hasattr(p, "expert_owner")]
    square = {torch}.nn.utils.get_total_norm(owned, **options).square().to(shared.device)
    if {dist}.is_initialized():
        {dist}.all_reduce(square)
    total = (shared.square() + square).sqrt()
    {torch}.nn.utils.clip_grads_with_norm_(parameters, max_norm, total, **options)
    return total
'''
_GATHER = '''\
def _gather_experts(model, optimizer):
    """Brings every expert's weights and optimizer state from its owner to process 0, where a checkpoint is written."""
    named = [(n, p) for n, p in model.named_parameters() if hasattr(p, "expert_owner")]
    if not named:
        return
    rank, world = {dist}.get_rank(), {dist}.get_world_size()

    def kept(p):
        state = optimizer.state.get(p, {})
        return p.detach().cpu(), {k: v.cpu() if {torch}.is_tensor(v) else v for k, v in state.items()}

    mine = {n: kept(p) for n, p in named if p.expert_owner == rank}
    found = [None] * world if rank == 0 else None
    {dist}.gather_object(mine, found, dst=0)
    if rank:
        return
    for n, p in named:
        if p.expert_owner:
            weight, state = found[p.expert_owner][n]
            p.detach().copy_(weight)
            # counters stay where they came from, moments go where the weights are
            optimizer.state[p] = {k: v.to(p.device) if {torch}.is_tensor(v) and v.dim() else v for k, v in state.items()}
    # in the order in which an optimizer that had all of them would have met them
    order = [p for group in optimizer.param_groups for p in group["params"] if p in optimizer.state]
    state = [(p, optimizer.state[p]) for p in order]
    optimizer.state.clear()
    optimizer.state.update(state)
'''


class ExpertParallel(Codemod):
    id = "expert-parallel"
    title = "Experts divided over the processes"
    layer: Layer = "communication"
    summary = (
        "Gives each expert an owner and sends tokens to it and their outputs back, by all-to-all, in place of averaging "
        "the gradients of every expert over all processes: a step moves activations, which are few, and not experts, "
        "which are most of the model. Each owner clips, updates and decays its experts alone; checkpoints are whole."
    )
    applies_when = (
        "a data-parallel program averages gradients by a loop over parameters, its layers loop over experts, and every "
        "use of the model, its gradients and its state is one that is known"
    )
    risk = (
        "Additions in another order, about 1e-7 relative in fp32. Weights of experts are current on their owners alone "
        "between checkpoints. Every process must run the same number of forward passes."
    )
    source = "Lepikhin et al. 2021, GShard, arXiv:2006.16668; Fedus et al. 2022, Switch Transformers, arXiv:2101.03961"
    words = ("all_reduce", ROUTE, "ModuleList")

    def apply(self, situation: Situation) -> Change:
        texts = dict(situation.sources)
        if not any("all_reduce" in text for text in texts.values()) or any(OWNERS in text for text in texts.values()):
            return Change()
        if not any(f"{ROUTE}(" in text for text in texts.values()):
            texts.update(SortedExperts().apply(replace(situation, sources=texts)).sources)
        program = Program.read(texts)
        found = replicas(program)
        if found is None or not any(_routes(f) for f in program.files.values()):
            return Change()
        for path, file in program.files.items():
            edits = file.edits()
            _edit(file, program, found, edits)
            if not edits.empty:
                texts[path] = edits.text()
        return Change(sources={p: t for p, t in texts.items() if t != situation.sources[p]})

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        """Not used: the files of a program change together or not at all."""

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.4, memory=-0.1)
        saved = SHARE_OF_EXPERTS * (1 - COST_OF_TOKENS)
        return Effect(faster(exposed_s(profile) / profile.step_s, saved), memory=-0.1, confidence="medium")


def _routes(file: SourceFile) -> list[cst.Call]:
    """Calls that route sorted tokens to experts, `_sorted_experts(experts, tokens, weights, chosen, run, skip, ...)`."""
    return [
        n
        for n in walk(file.module)
        if isinstance(n, cst.Call) and code(n.func) == ROUTE and len([a for a in n.args if a.keyword is None]) == 6
    ]


def _edit(file: SourceFile, program: Program, found: Replicas, edits: Edits) -> None:
    for call in _routes(file):
        if edits.empty:
            put_helper(file, _EXCHANGE, edits)
            put_helper(file, _OWNERS, edits)
        run, skip = call.args[4], call.args[5]
        args = list(call.args)
        args[4] = run.with_changes(value=expression(f"{OWNERS}({bare(run.value)}, {bare(skip.value)})"))
        args[5] = skip.with_changes(value=cst.Name("False"))
        edits.replace(call, call.with_changes(args=args))
    for reduction in reductions(file, program):
        _leave_out(reduction, edits)
    clips = [n for n in walk(file.module) if isinstance(n, cst.Call) and file.qualified(n.func) in CLIP]
    for at, call in enumerate(clips):
        if not at:
            put_helper(file, _NORM, edits)
        edits.replace(call.func, "_clip_grad_norm_of_all")
    saves = [s for owner_file, s in found.saves if owner_file is file]
    for at, statement in enumerate(saves):
        if not at:
            put_helper(file, _GATHER, edits)
        edits.before(statement, f"_gather_experts({found.model}, {found.optimizer})\n")


def _leave_out(reduction: Reduction, edits: Edits) -> None:
    """Experts' parameters are skipped by the loop that averages gradients."""
    loop: cst.For = reduction.loop
    while isinstance(loop.body, cst.IndentedBlock) and isinstance(loop.body.body[0], cst.For):
        loop = loop.body.body[0]
    assert isinstance(loop.body, cst.IndentedBlock)
    first = loop.body.body[0]
    assert isinstance(first, cst.BaseStatement)
    edits.before(first, f'if hasattr({reduction.variable}, "{MARK}"):\n    continue\n')

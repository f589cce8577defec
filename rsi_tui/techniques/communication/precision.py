"""Gradients that travel in bfloat16."""

from __future__ import annotations

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.communication.averaging import BUCKETS, OVERLAP, put_helper
from rsi_tui.techniques.communication.ddp import wrapped_models
from rsi_tui.techniques.communication.links import exposed_s, link_s
from rsi_tui.techniques.idioms.collectives import reduced_tensor, reductions, top_name
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, bare, code, keyword, walk, with_keyword

SAVED_OF_LINK = 0.45
"""of the time on the link: half the bytes, less two casts of every gradient"""

_ONE = '''\
def _all_reduce_as_bf16(grad, average=False):
    """Sums or averages a gradient over all processes; what travels is bf16, the result is cast back before it is divided."""
    small = grad.to({torch}.bfloat16)
    {dist}.all_reduce(small)
    grad.copy_(small)
    if average:
        grad /= {dist}.get_world_size()
'''
_HOOK = '''\
def _bf16_mean(group, bucket):
    """Communication hook: a bucket's mean over the group; what travels is bf16, the sum is cast back before it is divided."""
    flat = bucket.buffer()
    work = {dist}.all_reduce(flat.to({torch}.bfloat16), group=group, async_op=True)
    return work.get_future().then(lambda done: flat.copy_(done.value()[0]).div_({dist}.get_world_size(group)))
'''


class Bf16Gradients(Codemod):
    id = "bf16-gradients"
    title = "Gradients exchanged in bfloat16"
    layer: Layer = "communication"
    summary = (
        "Casts gradients to bfloat16 for the all-reduce alone and back before they are divided, clipped and used: half "
        "the bytes on the link. Weights, moments and accumulated gradients stay in fp32."
    )
    applies_when = "the contract allows bf16 rounding and fp32 gradients are averaged by a loop, in buckets or by DDP"
    risk = "Each process's sum of gradients is rounded to 8 bits of mantissa, without a preferred direction."
    source = "Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054; torch ddp_comm_hooks, bf16_compress_hook"
    affects: tuple[str, ...] = ("precision",)
    words = ("all_reduce", "DistributedDataParallel")

    def apply(self, situation: Situation) -> Change:
        return super().apply(situation) if situation.contract.invariants.precision == "bf16" else Change()

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        self._helpers(file, edits)
        self._plain(file, program, edits)
        self._ddp(file, program, edits)

    def _helpers(self, file: SourceFile, edits: Edits) -> None:
        """Calls of this layer's own buckets, which know how to do it."""
        for node in walk(file.module):
            if isinstance(node, cst.Call) and code(node.func) in (BUCKETS, OVERLAP) and keyword(node, "wire") is None:
                edits.replace(node, with_keyword(node, "wire", top_name(file, "torch.bfloat16", edits)))

    def _plain(self, file: SourceFile, program: Program, edits: Edits) -> None:
        name = "_all_reduce_as_bf16"
        if name in file.text:
            return
        put = False
        for found in reductions(file, program):
            for call in found.calls:
                tensor = reduced_tensor(call)
                if tensor is None or edits.touched(call):
                    continue
                if not put:
                    put_helper(file, _ONE, edits)
                    put = True
                edits.replace(call, f"{name}({bare(tensor)}{', average=True' if found.by_collective else ''})")

    def _ddp(self, file: SourceFile, program: Program, edits: Edits) -> None:
        name = "_bf16_mean"
        if program.calls_anywhere("register_comm_hook", name):
            return
        put = False
        for statement, target in wrapped_models(file):
            if not put:
                put_helper(file, _HOOK, edits)
                put = True
            group = top_name(file, "torch.distributed.group.WORLD", edits)
            edits.after(statement, f"{target}.register_comm_hook({group}, {name})\n")

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=-0.1)
        on_link = min(exposed_s(profile), link_s(profile))
        return Effect(faster(on_link / profile.step_s, SAVED_OF_LINK), confidence="medium")



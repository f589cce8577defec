"""Memory caches that the training loop empties, and no longer does."""

from __future__ import annotations

from math import log

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import own, training_loops
from rsi_tui.techniques.idioms.tree import Edits

SECONDS_PER_COLLECTION = 0.1
"""one gc.collect() of a process that has imported torch, one core"""
SECONDS_PER_EMPTYING = 0.01
"""one torch.cuda.empty_cache() and the requests to the driver after it; an estimate, not measured"""
_EMPTYING = ("gc.collect", "torch.cuda.empty_cache", "torch.cuda.memory.empty_cache")


class NoCacheEmptying(Codemod):
    id = "no-cache-emptying"
    title = "Memory caches not emptied in the training loop"
    layer: Layer = "memory"
    summary = (
        "Takes gc.collect() and torch.cuda.empty_cache() out of the training loop. The first walks every object of the "
        "process, the second gives memory back to the driver that the next step has to ask for again."
    )
    applies_when = "a training loop calls gc.collect() or torch.cuda.empty_cache() as a statement of its own"
    risk = "None to the numbers; peak memory can grow where the calls held fragmentation down."
    source = "PyTorch documentation, 'CUDA semantics', memory management; Python documentation, gc.collect"
    words = ("empty_cache", "gc")

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for _, loop in training_loops(file):
            for node in own(loop):
                if isinstance(node, cst.IndentedBlock):
                    _clear(file, node, edits)

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None or profile.step_s <= 0:
            return Effect(time=-0.05)
        seconds = SECONDS_PER_COLLECTION if profile.device == "cpu" else SECONDS_PER_EMPTYING
        return Effect(log(1 - min(0.8, seconds / profile.step_s)))


def _clear(file: SourceFile, suite: cst.IndentedBlock, edits: Edits) -> None:
    statements = [s for s in suite.body if isinstance(s, cst.BaseStatement)]
    dropped = [s for s in statements if _empties(file, s)]
    if not dropped:
        return
    if len(dropped) == len(statements):
        # a suite needs a statement
        (filler,) = edits.statements(["pass\n"])
        edits.replace(dropped.pop(), filler)
    for statement in dropped:
        edits.remove(statement)


def _empties(file: SourceFile, statement: cst.BaseStatement) -> bool:
    match flow.small(statement):
        case cst.Expr(value=cst.Call(func=func, args=args)):
            return not args and file.qualified(func) in _EMPTYING
    return False

"""Python's garbage collector: less to walk while training."""

from __future__ import annotations

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import training_loops
from rsi_tui.techniques.idioms.tree import Edits

SAVED_BY_FREEZING = 0.001
"""log-ratio of step time: a full collection of a process with torch takes some 0.1 s, once in hundreds of steps"""


class GcFreeze(Codemod):
    id = "gc-freeze"
    title = "Objects from before the training loop left to themselves"
    layer: Layer = "launch"
    summary = (
        "Collects garbage once and calls gc.freeze() ahead of the training loop: modules, parameters and everything that "
        "was imported is never walked again by Python's garbage collector, so that its pauses within steps become short."
    )
    applies_when = "a training loop in Python, and the program does not steer the garbage collector itself"
    risk = "None to the numbers; reference cycles from before the loop that die later are not collected."
    source = "Python documentation, gc.freeze; Instagram Engineering 2017, 'Dismissing Python garbage collection'"
    words = ("backward",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if program.calls_anywhere("gc") or flow.names(file.module).bound["gc"]:
            return
        for _, loop in training_loops(file):
            edits.import_line("import gc")
            edits.before(loop, "gc.collect()\n", "gc.freeze()\n")

    def predict(self, situation: Situation) -> Effect:
        return Effect(time=-SAVED_BY_FREEZING)

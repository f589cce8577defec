"""Forward pass in bfloat16 by torch.autocast, or by the program's own setting for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.flow import Block
from rsi_tui.techniques.idioms.modules import module_names
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, code, walk
from rsi_tui.techniques.knobs import equal, is_bf16, reach, value_now

MATMUL_OPERATORS = ("addmm", "aten::mm", "bmm", "linear", "baddbmm", "convolution", "scaled_dot_product")
SAVED_OF_MATMUL = 0.55
"""of matrix products, on a CPU with bf16 units"""


@dataclass(frozen=True)
class _Forward:
    """The statements from the forward pass to the loss whose backward pass is run."""

    block: Block
    first: int
    last: int
    model: str


class Bf16Autocast(Codemod):
    id = "bf16-autocast"
    title = "bfloat16 autocast"
    layer: Layer = "kernel"
    summary = (
        "Runs matrix products of the forward and backward pass in bfloat16 while weights, optimizer and reductions "
        "stay in fp32: twice the values per register and half the traffic. Uses the program's own setting if it has one."
    )
    applies_when = "the contract allows bf16 rounding and the program computes in fp32"
    risk = "Rounds activations to 8 bits of mantissa: updates differ by about 1e-2, without a preferred direction."
    source = "Micikevicius et al. 2018, arXiv:1710.03740; torch.autocast documentation"
    affects: tuple[str, ...] = ("precision",)
    words = ("backward",)

    def apply(self, situation: Situation) -> Change:
        if situation.contract.invariants.precision != "bf16":
            return Change()
        for knob in situation.contract.knobs:
            wanted = next((v for v in knob.values if is_bf16(v)), None)
            if "precision" in knob.affects and wanted is not None:
                if equal(value_now(situation, knob), wanted):
                    return Change()
                return Change(knobs=reach(situation.contract, situation.knobs, knob.name, wanted))
        if Program.read(situation.sources).calls_anywhere("autocast", "bfloat16", "GradScaler", "float16"):
            return Change()
        return super().apply(situation)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for forward in _forwards(file, program):
            statements = forward.block.statements
            inner = statements[forward.first : forward.last + 1]
            if any(edits.touched(s) for s in inner):
                continue
            torch_autocast = file.spell("torch.autocast", edits)
            bf16 = file.spell("torch.bfloat16", edits)
            device = f"next({forward.model}.parameters()).device.type"
            (shell,) = edits.statements([f"with {torch_autocast}(device_type={device}, dtype={bf16}):\n    pass\n"])
            assert isinstance(shell, cst.With)
            lead = getattr(inner[0], "leading_lines", ())
            body = [inner[0].with_changes(leading_lines=()), *inner[1:]]
            edits.replace(inner[0], shell.with_changes(leading_lines=lead, body=cst.IndentedBlock(body)))
            for statement in inner[1:]:
                edits.remove(statement)

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None:
            return Effect(time=-0.15, memory=-0.15)
        if situation.profile.dtype == "bfloat16":
            return Effect(time=0.0)
        share = situation.profile.operator_share(*MATMUL_OPERATORS)
        return Effect(faster(share, SAVED_OF_MATMUL), memory=-0.2, confidence="medium")


def _forwards(file: SourceFile, program: Program) -> Iterator[_Forward]:
    models = module_names(file, program)
    owners = [f.blocks for f in file.functions] + [file.module_view()]
    for owner in owners:
        for block in owner:
            for at, statement in enumerate(block.statements):
                name = backward_of(statement)
                if name and (found := _trace(block, at, name, models)):
                    yield found


def backward_of(statement: cst.CSTNode) -> str:
    """The name in `name.backward()` or `(name / n).backward()`, '' for other statements."""
    match flow.small(statement):
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=receiver, attr=cst.Name(value="backward")))):
            found = [n.value for n in walk(receiver) if isinstance(n, cst.Name)]
            return found[0] if found else ""
    return ""


def _trace(block: Block, at: int, loss: str, models: set[str]) -> _Forward | None:
    """From the backward pass back through straight lines to the statement that calls the model."""
    wanted, last, first, model = {loss}, -1, -1, ""
    for index in range(at - 1, -1, -1):
        statement = block.statements[index]
        bound = {n for n in wanted if flow.names(statement).bound[n]}
        if not bound:
            continue
        if not isinstance(statement, cst.SimpleStatementLine):
            return None
        last = index if last < 0 else last
        wanted |= set(flow.names(statement).read)
        if called := called_model(statement, models):
            first, model = index, called
            break
    if first < 0:
        return None
    inner = block.statements[first : last + 1]
    plain = all(isinstance(s, cst.SimpleStatementLine) for s in inner)
    return _Forward(block, first, last, model) if plain else None


def called_model(statement: cst.CSTNode, models: set[str]) -> str:
    """The model that a statement calls or hands to a function, '' when it does neither."""
    for node in walk(statement):
        if isinstance(node, cst.Call):
            for part in (node.func, *(a.value for a in node.args)):
                if isinstance(part, cst.Name | cst.Attribute) and code(part) in models:
                    return code(part)
    return ""

"""Activation checkpointing, and its removal."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Effect, Situation
from rsi_tui.techniques.codemod import Codemod
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.program import ClassView, Program, SourceFile
from rsi_tui.techniques.idioms.tree import Edits, code, keyword, walk, with_keyword

CHECKPOINT = "torch.utils.checkpoint.checkpoint"
RECOMPUTED = 0.85
"""of the forward pass: the blocks, not embeddings and head"""
MEMORY_SAVED = 0.4
"""of peak memory"""


class ActivationCheckpointing(Codemod):
    id = "activation-checkpointing"
    title = "Activation checkpointing"
    layer: Layer = "memory"
    summary = (
        "Keeps only the input of each block of layers and computes the rest again in the backward pass. Slower by "
        "most of a forward pass, and much leaner: it pays where a larger micro-batch behind it is worth more."
    )
    applies_when = "a forward pass runs its variable through the blocks of an nn.ModuleList in a loop"
    risk = "The same numbers; random numbers are restored for the second pass."
    source = "Chen et al. 2016, arXiv:1604.06174; torch.utils.checkpoint"
    conflicts: tuple[str, ...] = ("no-activation-checkpointing",)
    words = ("ModuleList",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        for function in file.functions:
            if function.cls is None:
                continue
            lists = module_lists(file, function.cls)
            for node in walk(function.node):
                if isinstance(node, cst.For) and (variable := _block_variable(node, function.me, lists)):
                    _checkpoint(file, node, variable, edits)

    def predict(self, situation: Situation) -> Effect:
        forward = situation.profile.share("forward") if situation.profile else 0.3
        return Effect(log(1 + RECOMPUTED * forward), log(1 - MEMORY_SAVED), confidence="medium")


def module_lists(file: SourceFile, cls: ClassView) -> set[str]:
    """Dotted names below self of module lists: `blocks`, or `parts.h` inside a ModuleDict."""
    found: set[str] = set()
    for name, values in cls.given.items():
        for value in values:
            if not isinstance(value, cst.Call):
                continue
            if file.qualified(value.func) == "torch.nn.ModuleList":
                found.add(name)
            elif file.qualified(value.func) == "torch.nn.ModuleDict":
                found.update(f"{name}.{key}" for key, inner in _entries(value) if _is_list(file, inner))
    return found


def _entries(call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Keys and values of the dictionary that a ModuleDict is made of."""
    for node in walk(call):
        match node:
            case cst.Arg(keyword=cst.Name(value=key), value=value):
                yield key, value
            case cst.DictElement(key=cst.SimpleString() as text, value=value):
                yield str(text.evaluated_value), value


def _is_list(file: SourceFile, value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and file.qualified(value.func) == "torch.nn.ModuleList"


def _block_variable(loop: cst.For, me: str, lists: set[str]) -> str:
    """The loop's name for a block of a module list, '' for other loops."""
    match loop:
        case cst.For(target=cst.Name(value=name), iter=cst.Attribute() as listed):
            pass
        case cst.For(
            target=cst.Tuple(elements=[_, cst.Element(value=cst.Name(value=name))]),
            iter=cst.Call(func=cst.Name(value="enumerate"), args=[cst.Arg(value=cst.Attribute() as listed)]),
        ):
            pass
        case _:
            return ""
    owner, _, path = code(listed).partition(".")
    return name if owner == me and path in lists else ""


def _checkpoint(file: SourceFile, loop: cst.For, block: str, edits: Edits) -> None:
    """`x = block(x, ...)` with positional arguments; a block that is called in another way is left alone."""
    assert isinstance(loop.body, cst.IndentedBlock)
    for statement in loop.body.body:
        given = flow.assigned(statement)
        if given is None:
            continue
        name, value = given
        match value:
            case cst.Call(func=cst.Name(value=called), args=[cst.Arg(value=cst.Name(value=first)), *_]) if (
                called == block and first == name and all(a.keyword is None and not a.star for a in value.args)
            ):
                checkpoint = next((a for a, q in file.imports.items() if q == CHECKPOINT), "")
                if not checkpoint:
                    edits.import_line("import torch.utils.checkpoint")
                    checkpoint = CHECKPOINT
                args = [cst.Arg(cst.Name(block)), *value.args]
                new = cst.Call(cst.parse_expression(checkpoint), args)
                edits.replace(value, with_keyword(new, "use_reentrant", "False"))


class NoActivationCheckpointing(Codemod):
    id = "no-activation-checkpointing"
    title = "No activation checkpointing"
    layer: Layer = "memory"
    summary = (
        "Calls the layers directly where they were checkpointed: the forward pass is not computed twice. It needs the "
        "memory that checkpointing saved."
    )
    applies_when = "torch.utils.checkpoint.checkpoint is called and memory allows to do without"
    risk = "The same numbers; runs out of memory where checkpointing was needed."
    source = "torch.utils.checkpoint documentation"
    conflicts: tuple[str, ...] = ("activation-checkpointing", "selective-checkpointing")
    words = ("checkpoint",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        settings = {"use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn", "early_stop"}
        for node in walk(file.module):
            if not isinstance(node, cst.Call) or file.qualified(node.func) != CHECKPOINT or not node.args:
                continue
            first = node.args[0]
            if first.keyword is not None or first.star or keyword(node, "context_fn") is not None:
                continue
            if isinstance(first.value, cst.Name) and file.function(first.value.value) is not None:
                # a plain function of this file, a chunk of the loss for example, and no layer
                continue
            kept = [a for a in node.args[1:] if a.keyword is None or a.keyword.value not in settings]
            if kept:
                kept[-1] = kept[-1].with_changes(comma=node.args[-1].comma)
            edits.replace(node, cst.Call(first.value, kept))

    def predict(self, situation: Situation) -> Effect:
        backward = situation.profile.share("backward") if situation.profile else 0.6
        return Effect(log(1 - 0.25 * backward), -log(1 - MEMORY_SAVED), confidence="medium")

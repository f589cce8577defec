"""Which names of a file hold the model, by what is done with them."""

from __future__ import annotations

import libcst as cst

from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.tree import code, walk

_METHODS = {"parameters", "named_parameters", "train", "eval"}
_WRAPPERS = ("torch.nn.parallel.DistributedDataParallel", "torch.compile", "torch.nn.DataParallel")


def module_classes(program: Program) -> set[str]:
    """Names of classes that derive from torch.nn.Module, directly or through each other."""
    found: set[str] = set()
    for _ in range(4):
        for file in program.files.values():
            for cls in file.classes.values():
                bases = [a.value for a in cls.node.bases]
                if any(file.qualified(b).startswith("torch.nn.") or code(b).split(".")[-1] in found for b in bases):
                    found.add(cls.name)
    return found


def module_names(file: SourceFile, program: Program) -> set[str]:
    """Texts such as `model` or `self.model` that hold an nn.Module in this file."""
    classes = module_classes(program)
    found: set[str] = set()
    for node in walk(file.module):
        match node:
            case cst.Call(func=cst.Attribute(value=cst.Name() | cst.Attribute() as owner, attr=cst.Name(value=method))):
                if method in _METHODS and not file.qualified(owner):
                    found.add(code(owner))
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name() | cst.Attribute() as target)], value=value):
                if makes_module(file, value, classes):
                    found.add(code(target))
    return found - {"self"}


def makes_module(file: SourceFile, value: cst.BaseExpression, classes: set[str]) -> bool:
    """Whether an expression makes a module: a constructor, under `.to(...)` or a wrapper."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value not in ("to", "cuda", "cpu", "train", "float", "double"):
            break
        value = value.func.value
    if not isinstance(value, cst.Call):
        return False
    qualified = file.qualified(value.func)
    return qualified in _WRAPPERS or code(value.func).split(".")[-1] in classes

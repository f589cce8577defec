"""Settings that exist in program, launch or system and are off: what costs nothing but a flag.

Reads the contract, the editable sources (by syntax, nothing is run) and which libraries the system
has. Says what is there, not that it helps.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.contract.libraries import find_library
from rsi_tui.contract.model import Contract, Knob
from rsi_tui.contract.scope import in_scope

_CPU_VARIABLES = {
    "OMP_WAIT_POLICY": "whether idle threads spin or sleep",
    "MALLOC_MMAP_MAX_": "how many large pieces glibc maps, and unmaps when they are freed",
    "MALLOC_TRIM_THRESHOLD_": "when glibc hands freed memory back, to be faulted in again",
    "THP_MEM_ALLOC_ENABLE": "huge pages for tensors of torch on the CPU",
}
_GPU_VARIABLES = {
    "PYTORCH_CUDA_ALLOC_CONF": "how the GPU's memory is cut into segments",
    "CUDA_DEVICE_MAX_CONNECTIONS": "how kernels and communication overlap",
}
_ALLOCATORS = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2", "libmimalloc.so.2")
_OFF: tuple[object, ...] = ("", False, "none", "off", "no", "false")


@dataclass(frozen=True)
class _Flag:
    name: str
    choices: tuple[str, ...]
    """empty for a switch"""
    default: str
    path: str


def unused_settings(contract: Contract, tree: Path) -> tuple[str, ...]:
    """One sentence for each setting that is off: knobs, flags of the program, variables, allocators."""
    return (
        *(text for knob in contract.knobs if (text := _unused_knob(contract, knob))),
        *_unused_flags(contract, tree),
        *_unset_variables(contract),
        *_unused_allocators(contract),
    )


def _unused_knob(contract: Contract, knob: Knob) -> str:
    others = [value for value in knob.values if value != knob.default or type(value) is not type(knob.default)]
    if not others or ("precision" in knob.affects and contract.invariants.precision == "fp32"):
        return ""
    listed = ", ".join(repr(value) if isinstance(value, str) else str(value) for value in others)
    where = knob.flag.replace("{}", "").strip() or knob.env or knob.preload or knob.file or knob.global_
    if knob.default in _OFF:
        return f"{where} exists (knob {knob.name}) and is off; possible: {listed}."
    return f"{where} exists (knob {knob.name}) and is at {knob.default!r}; also possible: {listed}."


def _unused_flags(contract: Contract, tree: Path) -> Iterator[str]:
    """Switches and choices that the program's argparse offers and neither command nor knobs name."""
    named = set(shlex.split(contract.launch.command)) | {word for knob in contract.knobs for word in knob.flag.split()}
    for flag in program_flags(contract, tree):
        if flag.name in named:
            continue
        if flag.choices:
            yield f"{flag.name} in {flag.path} is left at {flag.default or 'its default'}; choices: {', '.join(flag.choices)}."
        else:
            yield f"{flag.name} exists in {flag.path} and is off."


def program_flags(contract: Contract, tree: Path) -> tuple[_Flag, ...]:
    """Boolean switches and choices added by argparse or click style calls in the editable Python files."""
    found = []
    for path in sorted(tree.rglob("*.py")):
        name = path.relative_to(tree).as_posix()
        if not in_scope(contract, name) or path.is_symlink():
            continue
        try:
            module = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        except (SyntaxError, ValueError):
            continue
        found += [flag for node in ast.walk(module) if isinstance(node, ast.Call) and (flag := _flag(node, name))]
    return tuple(found)


def _flag(call: ast.Call, path: str) -> _Flag | None:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in ("add_argument", "option"):
        return None
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    name = next((text for text in names if text.startswith("--")), "")
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if not name:
        return None
    action = ast.unparse(options["action"]) if "action" in options else ""
    if "store_true" in action or ("BooleanOptional" in action and ast.unparse(options.get("default", ast.Constant(False))) != "True"):
        return _Flag(name, (), "", path)
    choices = options.get("choices")
    if isinstance(choices, ast.List | ast.Tuple) and len(choices.elts) > 1:
        default = ast.unparse(options["default"]) if "default" in options else ""
        return _Flag(name, tuple(ast.unparse(choice) for choice in choices.elts), default, path)
    return None


def _unset_variables(contract: Contract) -> Iterator[str]:
    known = set(contract.launch.env) | {knob.env for knob in contract.knobs}
    wanted = _GPU_VARIABLES if contract.launch.gpus_per_node else _CPU_VARIABLES
    for name, what in wanted.items():
        if name not in known and f"{name}=" not in contract.launch.command:
            yield f"{name} is not set: {what}."


def _unused_allocators(contract: Contract) -> Iterator[str]:
    known = {knob.preload for knob in contract.knobs}
    for library in _ALLOCATORS:
        if library not in known and find_library(library) is not None:
            yield f"{library} is installed and not preloaded."

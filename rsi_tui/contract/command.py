"""From a contract's templates to words and variables: no shell anywhere.

A template is split into words first and its placeholders are filled word by word afterwards, so a
value with spaces stays one word. Nothing is run here; `launch` does that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rsi_tui.contract.checks import PLACEHOLDER, split_extra, split_words
from rsi_tui.contract.fingerprint import same_value
from rsi_tui.contract.libraries import available_values, find_library, library_digest, unavailable_knobs
from rsi_tui.contract.model import Contract, Knob, KnobValue
from rsi_tui.errors import ContractError

__all__ = [
    "Command",
    "Meeting",
    "available_values",
    "check_knobs",
    "find_library",
    "library_digest",
    "render_make_hidden",
    "render_run",
    "render_setup",
    "render_validation",
    "resolve_python",
    "unavailable_knobs",
]


@dataclass(frozen=True)
class Command:
    """One program to start, before any sandbox."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """what the contract asks for; the launcher adds what the system needs"""
    preloads: tuple[str, ...] = ()
    """absolute paths of system libraries for LD_PRELOAD, to be set inside the sandbox"""


@dataclass(frozen=True)
class Meeting:
    """Where the processes of one run meet."""

    master: str = "127.0.0.1"
    """address of node 0"""
    port: int = 29500
    """free in each run, whose network is its own"""
    interface: str = ""
    """network device of each node; '' where there is one node"""


def render_run(
    contract: Contract,
    *,
    knobs: Mapping[str, KnobValue],
    steps: int,
    seed: int,
    out: str,
    state: str = "",
    extra: str = "",
    python: str,
    node: int = 0,
    meeting: Meeting | None = None,
) -> Command:
    """One run of the program, as one node starts it; knobs that are not given have their defaults.

    `state` adds the contract's resume flag. `extra` is a harmless perturbation or a twin: leading
    NAME=VALUE words become variables, the rest flags after those of the knobs, so that they win.
    Raises ContractError for a knob or value that is not in the contract, a library that is not
    installed, and a state where the program has no resume flag.
    """
    meeting = meeting or Meeting()
    values = contract.defaults | dict(knobs)
    check_knobs(contract, values)
    if state and not contract.resume.flag:
        raise ContractError("workload.toml: [resume] flag is missing; without it the program can't start from a state.")
    extra_env, extra_flags = split_extra(extra) if extra.strip() else ({}, [])
    flags = [word for knob in contract.knobs for word in _flag_words(knob, values[knob.name])]
    flags += [_fill(word, {"state": state}) for word in split_words(contract.resume.flag)] if state else []
    launch = contract.launch
    places = {"steps": str(steps), "seed": str(seed), "out": out, "node": str(node), "nodes": str(launch.nodes)}
    places |= {"procs": str(launch.procs_per_node), "master": meeting.master, "port": str(meeting.port)}
    prefix, argv = _program(launch.command, places, python, flags + extra_flags)
    env = _distributed(contract, node, meeting) | prefix | _knob_env(contract, values)
    return Command(argv, _environment(contract, env) | extra_env, _preloads(contract, values))


def render_validation(contract: Contract, *, checkpoint: str, hidden: str, python: str) -> Command:
    """The contract's validation of one checkpoint; no knob takes part. ContractError when there is none."""
    return _render_plain(contract, "validation", {"checkpoint": checkpoint, "hidden": hidden}, python)


def render_make_hidden(contract: Contract, *, secret: str, hidden: str, python: str) -> Command:
    """The program that derives hidden data from a secret. ContractError when the contract has none."""
    return _render_plain(contract, "make_hidden", {"secret": secret, "hidden": hidden}, python)


def render_directions(contract: Contract, *, state: str, seed: int, out: str, python: str) -> Command:
    """The program that writes named parts of a gradient. ContractError when the contract has none."""
    if not contract.resume.directions:
        raise ContractError("workload.toml: [resume] directions is missing.")
    places = {"state": state, "seed": str(seed), "out": out}
    prefix, argv = _program(contract.resume.directions, places, python, [])
    return Command(argv, _environment(contract, prefix))


def render_setup(contract: Contract, *, python: str) -> tuple[Command, ...]:
    """The commands to run once per candidate, in order."""
    rendered = [_program(template, {}, python, []) for template in contract.launch.setup]
    return tuple(Command(argv, _environment(contract, prefix)) for prefix, argv in rendered)


def resolve_python(contract: Contract) -> str:
    """Absolute path of the contract's interpreter: the one that runs rsi, a file, or an environment's own.

    Raises ContractError when it is not there.
    """
    if not contract.launch.python:
        return sys.executable
    path = contract.path / Path(contract.launch.python).expanduser()
    for candidate in (path, path / "bin" / "python"):
        if candidate.is_file():
            return str(candidate.absolute())
    raise ContractError(
        f"workload.toml: [launch] python is {contract.launch.python}, where there is neither an interpreter nor an "
        "environment; name one, or leave it empty for the interpreter that runs rsi."
    )


def check_knobs(contract: Contract, knobs: Mapping[str, KnobValue]) -> None:
    """Raise ContractError unless every name is a knob and every value one of its listed ones."""
    known = {knob.name: knob for knob in contract.knobs}
    for name, value in knobs.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise ContractError(f"{name} is not a knob of {contract.name}; its knobs are: {names}.")
        if not any(same_value(value, listed) for listed in known[name].values):
            listed_values = ", ".join(map(repr, known[name].values))
            raise ContractError(f"{value!r} is not a value of the knob {name}; its values are: {listed_values}.")


# --- pieces -----------------------------------------------------------------------------------


def _distributed(contract: Contract, node: int, meeting: Meeting) -> dict[str, str]:
    """Where the processes of a run find each other, in the names that torch.distributed, gloo and NCCL read.

    With one process a node its rank is known, too, so that a program needs no torchrun.
    """
    launch = contract.launch
    if launch.nodes * launch.procs_per_node == 1:
        return {}
    env = {"MASTER_ADDR": meeting.master, "MASTER_PORT": str(meeting.port), "NNODES": str(launch.nodes), "NODE_RANK": str(node)}
    if meeting.interface:
        env |= {"GLOO_SOCKET_IFNAME": meeting.interface, "NCCL_SOCKET_IFNAME": meeting.interface, "TP_SOCKET_IFNAME": meeting.interface}
    if launch.procs_per_node == 1:
        env |= {"RANK": str(node), "WORLD_SIZE": str(launch.nodes), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return env


def _fill(word: str, places: Mapping[str, str]) -> str:
    """One word with its placeholders filled in one pass, so that a value is never filled again."""
    return PLACEHOLDER.sub(lambda found: places.get(found[1], found[0]), word)


def _program(
    template: str, places: Mapping[str, str], python: str, flags: list[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Leading NAME=VALUE words as variables, and the words of the program with {knobs} expanded."""
    prefix, words = split_extra(template)
    argv: list[str] = []
    for word in words:
        argv += flags if word == "{knobs}" else [_fill(word, places)]
    if argv and argv[0] in ("python", "python3"):
        argv[0] = python
    elif argv and argv[0] == "torchrun":
        argv[:1] = [python, "-m", "torch.distributed.run"]
    return prefix, tuple(argv)


def _render_plain(contract: Contract, key: str, places: Mapping[str, str], python: str) -> Command:
    template: str = getattr(contract.invariants, key)
    if not template:
        raise ContractError(f"workload.toml: [invariants] {key} is missing.")
    prefix, argv = _program(template, places, python, [])
    return Command(argv, _environment(contract, prefix))


def _environment(contract: Contract, special: Mapping[str, str]) -> dict[str, str]:
    env = contract.launch.env | dict(special)
    env.setdefault("OMP_NUM_THREADS", str(contract.launch.threads))
    return env | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _knob_env(contract: Contract, values: Mapping[str, KnobValue]) -> dict[str, str]:
    return {
        knob.env: _as_variable(values[knob.name]) for knob in contract.knobs if knob.env and values[knob.name] != ""
    }


def _as_variable(value: KnobValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _flag_words(knob: Knob, value: KnobValue) -> list[str]:
    """Words of a flag knob: none for "", nor for false where the flag takes no value."""
    if not knob.flag or value == "":
        return []
    if "{}" not in knob.flag:
        return split_words(knob.flag) if value else []
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if knob.flag.strip() == "{}":
        return split_words(shown)
    return [word.replace("{}", shown) for word in split_words(knob.flag)]


def _preloads(contract: Contract, values: Mapping[str, KnobValue]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for knob in contract.knobs:
        if knob.preload and values[knob.name]:
            path = find_library(knob.preload)
            if path is None:
                raise ContractError(
                    f"the knob {knob.name} needs {knob.preload}, which is not installed here; "
                    "install it, or leave the knob off."
                )
            if re.search(r"[\s:]", str(path)):
                raise ContractError(f"{path} can't be preloaded, because its path holds a space or a colon.")
            found[str(path)] = None
    return tuple(found)

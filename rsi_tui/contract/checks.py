"""What must hold between the keys of a contract. Each check raises one Complaint, or nothing.

`check_contract` runs them all in the order of the file, so that the first thing wrong is the first
thing said. Complaints name section and key; `load` adds the file and the preset.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from rsi_tui.contract.model import Contract, Knob
from rsi_tui.contract.rules import parse_rule, violations
from rsi_tui.contract.scope import glob_match
from rsi_tui.errors import ContractError

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHELL = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"})
_LOADER = re.compile(r"LD_.*|PYTHON(PATH|HOME|STARTUP|USERBASE|BREAKPOINT|PYCACHEPREFIX)|RSI_.*")
"""variables through which code outside the scope could enter a trial"""
_OF_NODES = {"node", "nodes", "procs", "master", "port"}
"""placeholders of a run of several nodes or processes"""
_DECLARED = {
    "NVIDIA_TF32_OVERRIDE": "precision",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "precision",
    "CUDA_VISIBLE_DEVICES": "hardware",
    "HIP_VISIBLE_DEVICES": "hardware",
}
"""variables that are known to change rounding or the machine, whatever the contract says"""
_WAYS = ("flag", "env", "file", "global", "preload")


class Complaint(Exception):
    """One thing that can't be meant: section, key, and what is expected."""

    def __init__(self, section: str, key: str, text: str, knob: str = "") -> None:
        super().__init__(text)
        self.section = section
        self.key = key
        self.text = text
        self.knob = knob


def check_contract(contract: Contract) -> None:
    """Raise the first Complaint about a contract whose keys and types are right already."""
    _check_workload(contract)
    _check_launch(contract)
    _check_scope(contract)
    _check_objective(contract)
    _check_invariants(contract)
    for knob in contract.knobs:
        _check_knob(knob)
    _check_rules(contract)


def split_words(text: str) -> list[str]:
    """Words of a command as a shell would split them; ValueError for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"words that can be split ({str(error).lower()})") from error


def split_extra(text: str) -> tuple[dict[str, str], list[str]]:
    """Leading NAME=VALUE words as variables, the rest as flags; ValueError when nothing is there."""
    words = split_words(text)
    env: dict[str, str] = {}
    while words and (found := re.fullmatch(rf"({VARIABLE.pattern})=(.*)", words[0], re.DOTALL)):
        env[found[1]] = found[2]
        words.pop(0)
    if not env and not words:
        raise ValueError("variables or flags such as OMP_NUM_THREADS=1 or --micro-batch 1")
    return env, words


def _check_workload(contract: Contract) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", contract.name):
        raise Complaint("workload", "name", "must be letters, digits, dots, dashes and underscores, at most 100.")


def _check_launch(contract: Contract) -> None:
    launch = contract.launch
    _check_command("launch", "command", launch.command, {"steps", "seed", "out", "knobs"}, optional=_OF_NODES)
    _check_nodes(contract)
    if "{knobs}" not in split_words(launch.command):
        raise Complaint("launch", "command", "must have {knobs} as a word of its own.")
    _check_template("launch", "checkpoint", launch.checkpoint, {"out"})
    _check_pattern("launch", "progress", launch.progress, ("step", "loss"))
    if not _inside(launch.workdir):
        raise Complaint("launch", "workdir", "must be a folder inside the workload's, relative to it.")
    for name in launch.env:
        if not VARIABLE.fullmatch(name):
            raise Complaint("launch", "env", f'must have names of variables, and "{name}" is none.')
    for number, command in enumerate(launch.setup, 1):
        _check_command("launch", "setup", command, set(), f" (command {number})")
    if launch.base_patch and not (_inside(launch.base_patch) and (contract.path / launch.base_patch).is_file()):
        raise Complaint("launch", "base_patch", "must be a patch file inside the workload's folder, relative to it.")
    resume = contract.resume
    if resume.flag:
        _check_template("resume", "flag", resume.flag, {"state"})
        _check_words("resume", "flag", resume.flag)
    if resume.directions:
        _check_command("resume", "directions", resume.directions, {"state", "seed", "out"})
    if not resume.flag and (resume.directions or resume.states):
        raise Complaint("resume", "flag", "must be given when directions or states are.")


def _check_nodes(contract: Contract) -> None:
    launch = contract.launch
    if launch.link and launch.nodes == 1:
        raise Complaint("launch", "link", "joins nodes, and there is one: give nodes, or leave link out.")
    placed = set(PLACEHOLDER.findall(launch.command))
    if launch.procs_per_node > 1 and "procs" not in placed:
        raise Complaint("launch", "command", "must start the processes of a node, for example torchrun --nproc-per-node {procs}.")
    if launch.nodes > 1 and split_words(launch.command)[0] == "torchrun" and not placed >= {"nodes", "node", "master", "port"}:
        raise Complaint(
            "launch",
            "command",
            "must tell torchrun of the nodes: --nnodes {nodes} --node-rank {node} --nproc-per-node {procs} "
            "--master-addr {master} --master-port {port}.",
        )


def _check_scope(contract: Contract) -> None:
    if not contract.editable:
        raise Complaint("scope", "editable", 'must name at least one file, for example ["train.py"].')
    for pattern in contract.editable:
        try:
            glob_match(pattern, "x")
        except re.error as error:
            raise Complaint("scope", "editable", f'must hold patterns, and "{pattern}" is none ({error}).') from error
        if not _inside(pattern.rstrip("/")):
            raise Complaint("scope", "editable", f'must be relative to the workload\'s folder, and "{pattern}" is not.')
        if pattern.lower() == "workload.toml":
            raise Complaint("scope", "editable", "must not open workload.toml, which is the contract itself.")


def _check_objective(contract: Contract) -> None:
    low, high = contract.objective.steps
    if low > high:
        raise Complaint("objective", "steps", f"must have the lower end first, not [{low}, {high}].")
    if low == high:
        raise Complaint(
            "objective", "steps",
            f"must be a range of at least two lengths, since a claim needs runs of several lengths, not [{low}, {high}].",
        )  # fmt: skip
    if low <= contract.objective.warmup:
        raise Complaint(
            "objective", "steps", f"must begin above warmup ({contract.objective.warmup}), and {low} does not."
        )


def _check_invariants(contract: Contract) -> None:
    rules = contract.invariants
    for number, extra in enumerate(rules.harmless, 1):
        _check_extra("harmless", extra, f" (entry {number})")
    if rules.bf16_twin:
        _check_extra("bf16_twin", rules.bf16_twin, "")
    if rules.make_hidden:
        _check_command("invariants", "make_hidden", rules.make_hidden, {"secret", "hidden"})
    if not rules.validation:
        if rules.make_hidden:
            raise Complaint("invariants", "validation", "must be given when make_hidden is.")
        return
    _check_command("invariants", "validation", rules.validation, {"checkpoint"}, optional={"hidden"})
    if "{hidden}" in rules.validation and not rules.make_hidden:
        raise Complaint("invariants", "make_hidden", "must be given when validation reads {hidden}.")
    _check_pattern("invariants", "validation_metric", rules.validation_metric, ("value",))


def _check_knob(knob: Knob) -> None:
    def fail(key: str, text: str) -> Complaint:
        return Complaint("knobs", key, text, knob.name)

    if not re.fullmatch(VARIABLE.pattern, knob.name):
        raise fail("name", "must be a name such as micro_batch, so that rules can speak of it.")
    if not any(type(value) is type(knob.default) and value == knob.default for value in knob.values):
        raise fail("default", f"must be one of its values, and {knob.default!r} is not.")
    given = [way for way in _WAYS if getattr(knob, "global_" if way == "global" else way)]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "and there is none"
        raise fail("flag", f"must be the only one of flag, env, file, global and preload, {found}.")
    booleans = all(isinstance(value, bool) for value in knob.values)
    match given[0]:
        case "flag":
            if knob.flag.count("{}") != 1 and not ("{}" not in knob.flag and booleans):
                raise fail("flag", 'must have one {} for the value, as in "--micro-batch {}".')
            _check_words("knobs", "flag", knob.flag, knob.name)
        case "env":
            _check_variable(knob)
        case "file":
            if not re.fullmatch(r"[^:]+\.(ya?ml|toml|json):[^:]+", knob.file) or not _inside(knob.file.split(":")[0]):
                raise fail(
                    "file", 'must be a yaml, toml or json file and a key, as in "config.yaml:train.micro_batch".'
                )
        case "global":
            if not re.fullmatch(rf"[^:]+\.py:{VARIABLE.pattern}", knob.global_) or not _inside(
                knob.global_.split(":")[0]
            ):
                raise fail("global", 'must be a Python file and a name, as in "config.py:batch_size".')
        case _:
            if not re.fullmatch(r"lib[A-Za-z0-9._+-]+\.so[0-9.]*", knob.preload):
                raise fail("preload", 'must be the name of a system library, as in "libtcmalloc_minimal.so.4".')
            if not booleans:
                raise fail("values", "must be true and false for a preloaded library.")


def _check_variable(knob: Knob) -> None:
    if not VARIABLE.fullmatch(knob.env):
        raise Complaint("knobs", "env", "must be the name of an environment variable.", knob.name)
    if _LOADER.fullmatch(knob.env):
        raise Complaint(
            "knobs",
            "env",
            f"must not be {knob.env}, which could load other code; use preload for a library.",
            knob.name,
        )
    effect = _DECLARED.get(knob.env)
    if effect and effect not in knob.affects:
        raise Complaint("knobs", "affects", f'must say "{effect}", because {knob.env} changes it.', knob.name)


def _check_rules(contract: Contract) -> None:
    for rule in contract.rules:
        try:
            parse_rule(rule, contract.defaults.keys())
        except ValueError as error:
            raise Complaint("constraints", "rules", f'must hold {error}: "{rule}".') from error
    try:
        broken = violations(contract, contract.defaults)
    except ContractError as error:
        raise Complaint("constraints", "rules", f"must have a value for the defaults ({error.__cause__}).") from error
    if broken:
        raise Complaint("constraints", "rules", f'must hold for the defaults of the knobs, and "{broken[0]}" does not.')


# --- pieces -----------------------------------------------------------------------------------


def _inside(path: str) -> bool:
    """A relative path that stays below the folder it starts from."""
    pure = PurePosixPath(path)
    return bool(path) and not pure.is_absolute() and ".." not in pure.parts


def _check_words(section: str, key: str, text: str, knob: str = "", note: str = "") -> list[str]:
    try:
        words = split_words(text)
    except ValueError as error:
        raise Complaint(section, key, f"must be {error}{note}.", knob) from error
    if not words:
        raise Complaint(section, key, f"must not be empty{note}.", knob)
    if shell := next((word for word in words if word in _SHELL), None):
        raise Complaint(section, key, f'is run without a shell and must do without "{shell}"{note}.', knob)
    return words


def _check_template(section: str, key: str, text: str, needed: set[str], optional: set[str] | None = None) -> None:
    found = set(PLACEHOLDER.findall(text))
    for name in sorted(needed - found):
        raise Complaint(section, key, f"must contain {{{name}}}.")
    allowed = needed | (optional or set())
    for name in sorted(found - allowed):
        known = ", ".join(f"{{{one}}}" for one in sorted(allowed)) or "none"
        raise Complaint(section, key, f"has the placeholder {{{name}}}, but can have only these: {known}.")


def _check_command(
    section: str, key: str, text: str, needed: set[str], note: str = "", optional: set[str] | None = None
) -> None:
    _check_words(section, key, text, note=note)
    _check_template(section, key, text, needed, optional)


def _check_extra(key: str, text: str, note: str) -> None:
    _check_words("invariants", key, text, note=note)
    split_extra(text)


def _check_pattern(section: str, key: str, pattern: str, groups: tuple[str, ...]) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise Complaint(section, key, f"must be a regular expression, and this is none ({error}).") from error
    for group in groups:
        if group not in compiled.groupindex:
            raise Complaint(section, key, f"must be a regular expression with a group (?P<{group}>...).")

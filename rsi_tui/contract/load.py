"""workload.toml -> Contract. The only way a contract comes to be (reference: docs/workload-toml.md).

Promises: every key is known, every value has its type, every relation of `checks` holds, for the
chosen preset; keys and types of the other presets are checked too. Each complaint is one
ContractError naming file, section, key and what is expected. Nothing is written, nothing is run.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsi_tui.contract.checks import Complaint, check_contract
from rsi_tui.contract.model import Contract, Invariants, Knob, Launch, Objective, Proof, Resume
from rsi_tui.contract.schema import KNOB, PROOF_DEFAULTS, SECTIONS, Key
from rsi_tui.errors import ContractError

FILE_NAME = "workload.toml"
Table = dict[str, Any]


def contract_file(path: Path) -> Path:
    """The absolute workload.toml that a person means by a folder or by the file itself; ContractError if none."""
    file = path.expanduser().absolute()
    if file.is_dir():
        file = file / FILE_NAME
    elif file.name != FILE_NAME:
        what = "is not a folder" if file.exists() else "does not exist"
        raise ContractError(f"{path} {what}: give a folder with a {FILE_NAME}, or that file.")
    if not file.is_file():
        raise ContractError(f"{file} does not exist: write one; docs/workload-toml.md explains every key and begins with a small example.")
    return file


def load_contract(path: Path, preset: str = "") -> Contract:
    """The contract in a folder or file under a preset; '' means "full".

    Raises ContractError (one sentence) when the file is missing, is not TOML, or says something that
    can't be meant.
    """
    file = contract_file(path)
    document = _read(file)
    presets = _presets(file, document)
    if preset and preset not in presets and preset not in PROOF_DEFAULTS:
        known = ", ".join(dict.fromkeys((*PROOF_DEFAULTS, *presets)))
        raise ContractError(f'{file}: there is no preset "{_line(preset)}"; presets here are {_line(known)}.')
    chosen = preset or "full"
    override = presets.get(chosen, {})
    _check_keys(file, document, "")
    for name, table in presets.items():
        _check_keys(file, table, f"preset.{name}.")
    return checked(file, _merge(document, override), chosen, override)


def checked(file: Path, document: Table, preset: str, override: Table) -> Contract:
    """The contract of a merged document whose keys and types are right; ContractError for a broken relation.

    `override` is the preset's own part, so that a complaint names the place that a person must mend.
    """
    contract = _build(file, document, preset)
    try:
        check_contract(contract)
    except Complaint as complaint:
        raise ContractError(_sentence(file, complaint, preset, override)) from complaint
    return contract


def _read(file: Path) -> Table:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ContractError(f"{file} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ContractError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"{file} is not valid TOML: {error}.") from error


def _presets(file: Path, document: Table) -> dict[str, Table]:
    presets = document.pop("preset", {})
    if not isinstance(presets, dict) or not all(isinstance(table, dict) for table in presets.values()):
        raise ContractError(f"{file}: [preset] must hold tables such as [preset.quick.objective].")
    return presets


# --- keys and types ---------------------------------------------------------------------------


def _check_keys(file: Path, document: Table, prefix: str) -> None:
    """Every section and key of one layer (the file or a preset) is known and has its type."""
    for section, content in document.items():
        if section == "knobs":
            _check_knobs(file, content, prefix)
            continue
        if section not in SECTIONS:
            raise ContractError(f"{file}: {_unknown(prefix + section, 'section', section, [*SECTIONS, 'knobs'])}")
        where = f"[{_line(prefix)}{section}]"
        if not isinstance(content, dict):
            raise ContractError(f"{file}: {where} must be a table of keys, not {_show(content)}.")
        for key, value in content.items():
            _read_key(file, where, SECTIONS[section], key, value)


def _check_knobs(file: Path, content: Any, prefix: str) -> None:
    where = f"[[{_line(prefix)}knobs]]"
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ContractError(f"{file}: knobs must be written as {where} tables.")
    names: set[str] = set()
    for number, table in enumerate(content, 1):
        label = _knob_label(where, table, number)
        _read_table(file, label, KNOB, table)
        if table["name"] in names:
            raise ContractError(f'{file}: {where} name must be unique, and "{_line(table["name"])}" stands there twice.')
        names.add(table["name"])


def _knob_label(where: str, table: Table, number: int) -> str:
    name = table.get("name")
    return f'{where} "{_line(name)}"' if isinstance(name, str) else f"{where} number {number}"


def _read_table(file: Path, where: str, keys: Mapping[str, Key], table: Table) -> Table:
    """The table's values as the model wants them; missing keys are left to its defaults."""
    values = {(keys[key].field or key) if key in keys else key: _read_key(file, where, keys, key, value)
              for key, value in table.items()}  # fmt: skip
    for name, key in keys.items():
        if key.required and name not in table:
            raise ContractError(f"{file}: {where} {name} is missing; it must be {_expected(key)}.")
    return values


def _read_key(file: Path, where: str, keys: Mapping[str, Key], name: str, value: Any) -> Any:
    if name not in keys:
        raise ContractError(f"{file}: {where} {_unknown(name, 'key', name, list(keys))}")
    try:
        return keys[name].read(value)
    except ValueError as error:
        raise ContractError(f"{file}: {where} {name} must be {error}, not {_show(value)}.") from error


def _expected(key: Key) -> str:
    """What a key must be, in its reader's own words."""
    try:
        key.read(None)
    except ValueError as error:
        return str(error)
    raise AssertionError("a reader accepted None")


def _unknown(shown: str, what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    told = f'has no {what} "{_line(shown)}"'
    return f'{told}; the nearest is "{near[0]}".' if near else f"{told}."


def _line(name: str) -> str:
    """A name from the file as one line of a message can hold it: what can't be printed as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def _show(value: Any) -> str:
    shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


# --- presets ----------------------------------------------------------------------------------


def _merge(base: Table, override: Table) -> Table:
    """Deep merge: tables key by key, lists and values replaced, knobs replaced by name or added."""
    merged = dict(base)
    for key, value in override.items():
        if key == "knobs":
            merged[key] = _merge_knobs(base.get("knobs", []), value)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _merge(base[key], value)
        else:
            merged[key] = value
    return merged


def _merge_knobs(base: list[Table], override: list[Table]) -> list[Table]:
    by_name = {knob["name"]: knob for knob in base} | {knob["name"]: knob for knob in override}
    return list(by_name.values())


def _sentence(file: Path, complaint: Complaint, preset: str, override: Table) -> str:
    """The complaint with the place where the value really stands."""
    inside = override.get(complaint.section)
    overridden = (
        complaint.key in inside
        if isinstance(inside, dict)
        else any(knob["name"] == complaint.knob for knob in inside or ())
    )
    section = f"preset.{_line(preset)}.{complaint.section}" if overridden else complaint.section
    where = f'[[{section}]] "{_line(complaint.knob)}"' if complaint.section == "knobs" else f"[{section}]"
    return f"{file}: {where} {complaint.key} {complaint.text}"


# --- the values -------------------------------------------------------------------------------


def _build(file: Path, document: Table, preset: str) -> Contract:
    read = {
        name: _read_table(file, f"[{name}]", keys, document.get(name, {}))
        for name, keys in SECTIONS.items()
    }  # fmt: skip
    knobs = [_read_table(file, f'[[knobs]] "{_line(knob["name"])}"', KNOB, knob) for knob in document.get("knobs", [])]
    proof = PROOF_DEFAULTS.get(preset, PROOF_DEFAULTS["full"]) | read["proof"]
    return Contract(
        name=read["workload"]["name"],
        preset=preset,
        upstream=read["workload"].get("upstream", ""),
        launch=Launch(**read["launch"]),
        resume=Resume(**read["resume"]),
        editable=read["scope"]["editable"],
        objective=Objective(**read["objective"]),
        invariants=Invariants(**read["invariants"]),
        knobs=tuple(Knob(**knob) for knob in knobs),
        proof=Proof.model_validate(proof),
        rules=read["constraints"].get("rules", ()),
        folder=str(file.parent.resolve()),
    )

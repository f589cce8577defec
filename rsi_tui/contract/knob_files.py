"""Knobs that live in files: writing a value into a config file or a top-level Python assignment.

An edit changes the one scalar that is meant and no other byte; where the file already says the
value it is left alone. TOML, JSON and Python edits are proven by parsing before and after. YAML is
edited by indentation: plain nested mappings with scalars on one line; anything richer (lists, flow
mappings, anchors, block texts) is refused rather than guessed.
"""

from __future__ import annotations

import ast
import copy
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.errors import ContractError


def apply_file_knobs(contract: Contract, knobs: Mapping[str, KnobValue], tree: Path) -> None:
    """Write every `file` and `global` knob's value into a tree; knobs that are not given have their defaults.

    Raises ContractError when file or key is not there, or can't be edited exactly; the tree is then
    as it was.
    """
    values = contract.defaults | dict(knobs)
    texts: dict[Path, bytes] = {}
    for knob in contract.knobs:
        place = knob.file or knob.global_
        if not place:
            continue
        name, _, key = place.partition(":")
        path = _inside(tree, name, place)
        before = texts[path] if path in texts else path.read_bytes()
        texts[path] = edit_setting(before, place, key, values[knob.name])
    for path, after in texts.items():
        if path.read_bytes() != after:
            path.write_bytes(after)


def edit_setting(data: bytes, place: str, key: str, value: KnobValue) -> bytes:
    """The file's bytes with the key set to the value; the kind of file is that of `place`.

    Raises ContractError naming the place.
    """
    suffix = place.partition(":")[0].rpartition(".")[2]
    try:
        if suffix == "py":
            return _edit_python(data, key, value)
        text = data.decode("utf-8")
        edit = {"toml": _edit_toml, "json": _edit_json}.get(suffix, _edit_yaml)
        return edit(text, key.split("."), value).encode("utf-8")
    except (ValueError, SyntaxError) as error:
        raise ContractError(f"workload.toml: the knob at {place} can't be set: {error}.") from error


def _inside(tree: Path, name: str, place: str) -> Path:
    path = tree / name
    if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(tree.resolve()):
        raise ContractError(f"workload.toml: the knob at {place} can't be set: {name} is not a file of the program.")
    return path


# --- Python -----------------------------------------------------------------------------------


def _edit_python(data: bytes, name: str, value: KnobValue) -> bytes:
    found = [node for node in ast.parse(data).body if _assigns(node, name)]
    if len(found) != 1:
        raise ValueError(f"{name} is assigned {len(found)} times at the top level, and must be exactly once")
    node = found[0]
    assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    old = node.value
    if _literal(old) == (type(value), value):
        return data
    start = _offset(data, old.lineno, old.col_offset)
    assert old.end_lineno is not None and old.end_col_offset is not None
    end = _offset(data, old.end_lineno, old.end_col_offset)
    edited = data[:start] + repr(value).encode("utf-8") + data[end:]
    again = next(node for node in ast.parse(edited).body if _assigns(node, name))
    assert isinstance(again, ast.Assign | ast.AnnAssign) and again.value is not None
    if _literal(again.value) != (type(value), value):
        raise ValueError(f"the assignment of {name} can't be rewritten exactly")
    return edited


def _assigns(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name and node.value is not None
    targets = node.targets if isinstance(node, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _literal(node: ast.expr) -> tuple[type, Any] | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return type(value), value


def _offset(data: bytes, line: int, column: int) -> int:
    return sum(len(part) for part in data.splitlines(keepends=True)[: line - 1]) + column


# --- TOML and JSON ----------------------------------------------------------------------------

_STRING = r'"(?:[^"\\\n]|\\.)*"'


def _edit_toml(text: str, keys: list[str], value: KnobValue) -> str:
    last = re.escape(keys[-1])
    pattern = rf"(?<![\w-])(?:\"{last}\"|'{last}'|{last})\s*=[ \t]*({_STRING}|'[^'\n]*'|[^\s,#\]}}\"'\[{{]+)"
    return _edit_parsed(text, keys, value, tomllib.loads, pattern, _double_quoted(value))


def _edit_json(text: str, keys: list[str], value: KnobValue) -> str:
    pattern = rf"{re.escape(json.dumps(keys[-1]))}\s*:\s*({_STRING}|[^\s,\]}}\"\[{{]+)"
    return _edit_parsed(text, keys, value, json.loads, pattern, _double_quoted(value))


def _edit_parsed(
    text: str, keys: list[str], value: KnobValue, parse: Callable[[str], Any], pattern: str, shown: str
) -> str:
    """Try each place that looks like the key, and keep the one edit after which exactly that value differs."""
    before = parse(text)
    wanted = copy.deepcopy(before)
    inner = wanted
    for key in keys[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or keys[-1] not in inner:
        raise ValueError(f"there is no key {'.'.join(keys)}")
    inner[keys[-1]] = value
    if repr(before) == repr(wanted):
        return text
    for found in re.finditer(pattern, text):
        edited = text[: found.start(1)] + shown + text[found.end(1) :]
        if _parses_to(parse, edited, wanted):
            return edited
    raise ValueError(f"{'.'.join(keys)} does not hold a single number, text or truth value")


def _parses_to(parse: Callable[[str], Any], text: str, wanted: Any) -> bool:
    try:
        return repr(parse(text)) == repr(wanted)
    except ValueError:
        return False


def _double_quoted(value: KnobValue) -> str:
    """A scalar that TOML, JSON and YAML 1.1 read alike."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    shown = repr(value)
    if isinstance(value, float) and "e" in shown and "." not in shown:
        return shown.replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a text
    return shown


# --- YAML -------------------------------------------------------------------------------------

_YAML_LINE = re.compile(r"""( *)("[^"\\]*"|'[^']*'|[^\s#'"\[\]{},&*!|>%@`?:-][^#:]*?)\s*:(?:[ \t]+(.*?))?[ \t]*""")
_YAML_SCALAR = re.compile(rf"({_STRING}|'(?:[^']|'')*'|[^\s\"'\[\]{{}}&*!|>%@`#,][^#]*?)(?:\s+#.*)?")


def _edit_yaml(text: str, keys: list[str], value: KnobValue) -> str:
    """Replace the scalar at a path of nested block mappings; ValueError unless it is there exactly once."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    hits = [hit for hit in _yaml_scalars(lines) if hit[0] == keys]
    if len(hits) != 1:
        raise ValueError(f"the key {'.'.join(keys)} is there {len(hits)} times, and must be exactly once")
    _, number, start, raw = hits[0]
    scalar = _YAML_SCALAR.fullmatch(raw)
    if not scalar or _goes_on(lines, number):
        raise ValueError(f"{'.'.join(keys)} does not hold a single number, text or truth value on its line")
    shown = _double_quoted(value)
    if scalar[1] in {shown, str(value)} and not (isinstance(value, str) and _looks_typed(scalar[1])):
        return text
    line = lines[number]
    lines[number] = line[:start] + shown + line[start + len(scalar[1]) :]
    return "".join(lines)


def _goes_on(lines: list[str], number: int) -> bool:
    """Is the scalar of this line continued on the next, more indented one?"""
    indent = len(lines[number]) - len(lines[number].lstrip(" "))
    for line in lines[number + 1 :]:
        if line.strip() and not line.lstrip().startswith("#"):
            return len(line) - len(line.lstrip(" ")) > indent
    return False


def _looks_typed(scalar: str) -> bool:
    """A plain YAML scalar that is a number, a truth value or null, not a text."""
    return re.fullmatch(r"[-+.\d].*|true|false|yes|no|on|off|null|~|y|n", scalar, re.IGNORECASE) is not None


def _yaml_scalars(lines: list[str]) -> list[tuple[list[str], int, int, str]]:
    """(path, line, column of the value, value with comment) of every `key: value` in block mappings."""
    found = []
    stack: list[tuple[int, str]] = []
    block_above = -1
    for number, line in enumerate(lines):
        body = line.rstrip("\r\n")
        indent = len(body) - len(body.lstrip(" "))
        if not body.strip() or body.lstrip().startswith("#"):
            continue
        if block_above >= 0 and indent > block_above:
            continue  # inside a block text or a list item
        block_above = -1
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if body.lstrip().startswith("- "):
            block_above = indent
            continue
        hit = _YAML_LINE.fullmatch(body)
        if not hit:
            continue
        stack.append((indent, hit[2].strip("\"'")))
        rest = hit[3] or ""
        if rest[:1] in ("|", ">"):
            block_above = indent
        elif rest and not rest.startswith("#"):
            found.append(([key for _, key in stack], number, hit.start(3), rest))
    return found

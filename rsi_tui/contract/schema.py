"""The keys of workload.toml: for each section its keys, what each must be, and whether it must be there.

Readers turn one TOML value into the contract's; they raise ValueError with what is expected.
Relations between keys are the business of `checks`.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rsi_tui.contract import units
from rsi_tui.contract.model import LAYERS, Invariants, Knob, KnobValue

Reader = Callable[[Any], Any]


@dataclass(frozen=True)
class Key:
    """One key of a section."""

    read: Reader
    required: bool = False
    field: str = ""
    """name in the contract's model; '' = the same"""


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text in quotes")
    if "\0" in value:
        raise ValueError("text without NUL characters")
    return value


def filled(value: Any) -> str:
    if not text(value).strip():
        raise ValueError("text that is not empty")
    return text(value)


def texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise ValueError('a list of texts such as ["a", "b"]')
    return tuple(value)


def table_of_text(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) and "\0" not in item for item in value.values()):
        raise ValueError('a table of texts such as {NAME = "value"}')
    return dict(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def whole(low: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or value < low:
            raise ValueError(f"a whole number of at least {low}")
        return value

    return read


def fraction(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ValueError("a number from 0 up to, not including, 1")
    return float(value)


def rate(value: Any) -> float:
    if type(value) not in (int, float) or not 0.02 <= value <= 0.5:
        raise ValueError("a number from 0.02 to 0.5")
    return float(value)


def size(value: Any) -> int:
    count = units.parse_bytes(value) if isinstance(value, str) else value
    if type(count) is not int or count <= 0:
        raise ValueError('a size above zero such as "1.5GiB"')
    return count


def duration(value: Any) -> float:
    seconds = units.parse_seconds(value) if isinstance(value, str) else value
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise ValueError('a duration above zero such as "120s"')
    return float(seconds)


def link(value: Any) -> str:
    if text(value):
        units.parse_rate(value)
    return text(value)


def steps(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(item) is int and item > 0 for item in value):
        raise ValueError("a range of two whole numbers above zero such as [20, 40]")
    return value[0], value[1]


def lengths(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item > 0 for item in value) or value != sorted(set(value)):
        raise ValueError("a list of rising whole numbers above zero such as [8, 40, 160]")
    return tuple(value)


def one_of(*choices: str) -> Reader:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(f'"{choice}"' for choice in choices))
        return str(value)

    return read


def objective_kind(value: Any) -> str:
    """Verdicts are on step time, whatever a contract would like: another kind must not pass without a word."""
    if value != "step_time":
        raise ValueError('"step_time" (only step_time is measured in this version; leave kind out)')
    return str(value)


def some_of(*choices: str) -> Reader:
    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(item in choices for item in value):
            raise ValueError("a list out of " + ", ".join(f'"{choice}"' for choice in choices))
        return tuple(dict.fromkeys(value))

    return read


def knob_value(value: Any) -> KnobValue:
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("a text, a finite number, true or false")
    if isinstance(value, str):
        text(value)
    return value


def knob_values(value: Any) -> tuple[KnobValue, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of at least one value such as [1, 2, 4]")
    items = tuple(knob_value(item) for item in value)
    if len({(type(item), item) for item in items}) < len(items):
        raise ValueError("a list in which no value stands twice")
    return items


def _literals(model: type[Any], field: str) -> Reader:
    return one_of(*typing.get_args(typing.get_type_hints(model)[field]))


SECTIONS: dict[str, dict[str, Key]] = {
    "workload": {"name": Key(filled, required=True), "upstream": Key(text)},
    "launch": {
        "command": Key(filled, required=True),
        "python": Key(text),
        "workdir": Key(filled),
        "setup": Key(texts),
        "inputs": Key(texts),
        "env": Key(table_of_text),
        "nodes": Key(whole(1)),
        "procs_per_node": Key(whole(1)),
        "gpus_per_node": Key(whole(0)),
        "link": Key(link),
        "threads": Key(whole(1)),
        "memory_limit": Key(size, required=True, field="memory_limit_bytes"),
        "timeout": Key(duration, required=True, field="timeout_s"),
        "progress": Key(filled, required=True),
        "checkpoint": Key(filled, required=True),
        "checkpoint_key": Key(text),
        "base_patch": Key(text),
    },
    "resume": {"flag": Key(text), "directions": Key(text), "states": Key(lengths)},
    "scope": {"editable": Key(texts, required=True)},
    "objective": {
        "kind": Key(objective_kind),
        "steps": Key(steps, required=True),
        "warmup": Key(whole(0)),
        "amortise_over": Key(whole(1)),
        "margin": Key(fraction),
        "confirm_steps": Key(whole(0)),
    },
    "invariants": {
        "weights": Key(_literals(Invariants, "weights")),
        "harmless": Key(texts),
        "bf16_twin": Key(text),
        "precision": Key(_literals(Invariants, "precision")),
        "validation": Key(text),
        "make_hidden": Key(text),
        "validation_metric": Key(text),
        "tokens_per_step": Key(whole(0)),
        "loss_margin": Key(fraction),
    },
    "proof": {
        "aa_pairs": Key(whole(2)),
        "max_verifications": Key(whole(1)),
        "final_pairs": Key(whole(8)),
        "max_candidates": Key(whole(1)),
        "bundle": Key(flag),
        "max_slow_rate": Key(rate),
        "leave_one_out": Key(flag),
        "canaries": Key(flag),
        "red_team": Key(flag),
    },
    "constraints": {"rules": Key(texts)},
}

KNOB: dict[str, Key] = {
    "name": Key(filled, required=True),
    "values": Key(knob_values, required=True),
    "default": Key(knob_value, required=True),
    "layer": Key(one_of(*LAYERS)),
    "flag": Key(text),
    "env": Key(text),
    "file": Key(text),
    "global": Key(text, field="global_"),
    "preload": Key(text),
    "affects": Key(some_of("precision", "hardware")),
}
assert {key.field or name for name, key in KNOB.items()} == set(Knob.model_fields)

PROOF_DEFAULTS: dict[str, dict[str, int | float | bool]] = {
    "full": {
        "aa_pairs": 20, "max_verifications": 40, "final_pairs": 16, "max_candidates": 60, "bundle": False,
        "max_slow_rate": 0.10, "leave_one_out": True, "canaries": True, "red_team": True,
    },
    "quick": {
        "aa_pairs": 8, "max_verifications": 4, "final_pairs": 8, "max_candidates": 8, "bundle": True,
        "max_slow_rate": 0.20, "leave_one_out": False, "canaries": False, "red_team": True,
    },
}  # fmt: skip
"""MEASUREMENT, section 0; eight pairs are the fewest that give a 99 % signed-rank interval"""

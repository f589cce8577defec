"""What makes one launch another (the knobs that differ from the defaults), and one set of terms another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rsi_tui.contract.model import Contract, KnobValue


def same_value(a: KnobValue, b: KnobValue) -> bool:
    """Equality that keeps true, 1 and 1.0 apart."""
    return type(a) is type(b) and a == b


def changed_knobs(contract: Contract, knobs: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """The given knobs whose value is not the default, by name; KeyError for a name that is no knob."""
    return {name: knobs[name] for name in sorted(knobs) if not same_value(knobs[name], contract.knob(name).default)}


def launch_fingerprint(contract: Contract, knobs: Mapping[str, KnobValue]) -> str:
    """sha256, hexadecimal, of the sorted knobs that differ from the defaults; '' when none does."""
    changed = changed_knobs(contract, knobs)
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest() if changed else ""


def terms_hash(contract: Mapping[str, Any]) -> str:
    """sha256, hexadecimal, of what a contract (as JSON) asks of a candidate: a verdict holds again under the same terms.

    How much proof is bought (preset, proof), names, and the memory limit are no part of it: whether a limit decides the
    same is a matter of size, see `experience.duplicates`.
    """
    apart = ("name", "folder", "upstream", "preset", "proof")
    terms = {key: value for key, value in contract.items() if key not in apart}
    terms["launch"] = {key: value for key, value in contract.get("launch", {}).items() if key != "memory_limit_bytes"}
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()

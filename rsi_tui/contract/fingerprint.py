"""What makes one launch another: the knobs that differ from the contract's defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

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

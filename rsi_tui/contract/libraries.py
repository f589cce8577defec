"""System libraries for preload knobs, and the knobs that can't be turned on this machine."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from rsi_tui.contract.model import Contract, Knob, KnobValue

_MULTIARCH = f"{platform.machine()}-linux-gnu"
SYSTEM_FOLDERS: tuple[Path, ...] = tuple(
    Path(folder)
    for folder in (
        f"/usr/lib/{_MULTIARCH}",
        f"/lib/{_MULTIARCH}",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
        "/lib",
        f"/usr/local/lib/{_MULTIARCH}",
        "/usr/local/lib64",
        "/usr/local/lib",
    )
)
"""where libraries are taken from; never from a workload's tree"""


def find_library(name: str) -> Path | None:
    """The absolute, resolved path of a system library such as "libtcmalloc_minimal.so.4"; None if absent.

    The file that a link leads to must lie in a system folder too.
    """
    if "/" in name:
        return None
    for folder in SYSTEM_FOLDERS:
        found = (folder / name).resolve()
        if found.is_file() and any(found.is_relative_to(system.resolve()) for system in SYSTEM_FOLDERS):
            return found
    return None


def library_digest(path: Path) -> str:
    """sha256 of a library's bytes, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unavailable_knobs(contract: Contract) -> dict[str, str]:
    """Knobs that must stay at their default here -> why, one sentence each.

    A preload knob whose library is not installed, and a knob that affects what the contract does not
    allow to be affected.
    """
    return {knob.name: reason for knob in contract.knobs if (reason := _why_not(contract, knob))}


def available_values(contract: Contract) -> dict[str, tuple[KnobValue, ...]]:
    """For every knob the values that can be tried here: all that are listed, or its default alone."""
    fixed = unavailable_knobs(contract)
    return {knob.name: (knob.default,) if knob.name in fixed else knob.values for knob in contract.knobs}


def _why_not(contract: Contract, knob: Knob) -> str:
    if "precision" in knob.affects and contract.invariants.precision == "fp32":
        return 'It affects precision, and the contract allows only precision = "fp32".'
    if "hardware" in knob.affects:
        return "It affects the hardware, which a campaign holds fixed."
    if knob.preload and find_library(knob.preload) is None:
        return f"The system library {knob.preload} is not installed on this machine."
    return ""

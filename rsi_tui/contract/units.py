"""Sizes and durations as people write them, and back.

Parsers raise ValueError with what is expected; the caller knows which key it was.
"""

from __future__ import annotations

import re

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(i?)B?|B)\s*", re.IGNORECASE)
_SECONDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_BITS_PER = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS_PER = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str) -> int:
    """Bytes of a size such as "1.5GiB", "512 MB" or "4096"; GiB is 2**30, GB is 10**9.

    Raises ValueError for anything else.
    """
    found = _BYTES.fullmatch(text)
    if not found:
        raise ValueError('a size such as "1.5GiB" or "800MB"')
    number, unit, binary = found.groups()
    scale: int = (1024 if binary else 1000) ** _POWERS[(unit or "").upper()]
    return round(float(number) * scale)


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as "120s", "2m", "1.5h" or "250ms"; ValueError for anything else."""
    found = _SECONDS.fullmatch(text)
    if not found:
        raise ValueError('a duration such as "120s", "2m" or "1h"')
    return float(found[1]) * _SECONDS_PER[found[2]]


def parse_rate(text: str) -> float:
    """Bits a second of a rate such as "400mbit" or "2.5gbit"; ValueError for anything else."""
    found = _RATE.fullmatch(text)
    if not found:
        raise ValueError('a rate such as "400mbit"')
    return float(found[1]) * _BITS_PER[found[2]]


def format_bytes(count: float) -> str:
    """A size for people, in binary units with three significant digits: 1610612736 -> "1.5 GiB"."""
    sign, size = ("-" if count < 0 else ""), abs(float(count))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5:
            return f"{sign}{size:.3g} {unit}"
        size /= 1024
    return f"{sign}{size:.3g} TiB" if size < 999.5 else f"{sign}{size:.0f} TiB"


def format_seconds(seconds: float) -> str:
    """A duration for people: 0.0123 -> "12.3 ms", 75 -> "1 min 15 s", 5400 -> "1 h 30 min"."""
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size < 0.9995e-3:
        return f"{sign}{size * 1e6:.3g} µs" if size else "0 s"
    if size < 0.9995:
        return f"{sign}{size * 1e3:.3g} ms"
    if size < 59.95:
        return f"{sign}{size:.3g} s"
    if size < 3599.5:
        minutes, rest = divmod(round(size), 60)
        return f"{sign}{minutes} min {rest} s" if rest else f"{sign}{minutes} min"
    hours, rest = divmod(round(size / 60), 60)
    return f"{sign}{hours} h {rest} min" if rest else f"{sign}{hours} h"

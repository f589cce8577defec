"""Hashes that tell whether what was made from an entry is still the entry's."""

from __future__ import annotations

import hashlib
import json

from experience.records import Entry


def stamp_of(entry: Entry) -> str:
    """Hash of all fields of an entry."""
    return _hash(json.dumps(vars(entry), sort_keys=True))


def text_stamp(entry: Entry) -> str:
    """Hash of the text alone: entries with equal texts share a vector."""
    return _hash(entry.text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]

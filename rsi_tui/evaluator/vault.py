"""The evaluator's secrets: written before they are used, committed to at once, revealed at the end.

Promises: a value that `put` returned for is on disk; the file and its folder are readable by their
owner only; a key keeps its first value for ever; a commitment binds key and value and says nothing
about them (32 random bytes of salt). A line cut short by a crash is dropped: its `put` never returned.
Does not promise secrecy against the same user outside a sandbox.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

from rsi_tui.errors import JournalError


def _commit(entry: dict[str, Any]) -> str:
    """sha256 over salt, key and value as canonical JSON, hexadecimal."""
    body = json.dumps([entry["salt"], entry["key"], entry["value"]], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(body.encode()).hexdigest()


class Vault:
    """JSON lines in a folder of mode 0700; one secret a line."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises JournalError when a line before the last is damaged."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.chmod(0o700)
        self._entries: dict[str, dict[str, Any]] = {}
        self._load()

    def _load(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            os.fchmod(descriptor, 0o600)
            raw = file.read()
            whole, _, torn = raw.rpartition(b"\n")
            for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
                self._read(line, number)
            if torn:
                file.truncate(len(raw) - len(torn))
                file.flush()
                os.fsync(descriptor)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            self._entries[entry["key"]] = {"key": entry["key"], "salt": entry["salt"], "value": entry["value"]}
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self._path}: line {number} is damaged; the open block can't be trusted, start a new campaign."
            ) from error

    def put(self, key: str, value: dict[str, Any]) -> str:
        """Keep a secret and return its commitment, after it has been flushed to disk.

        The same value again returns the same commitment; another value raises JournalError, for a
        draw is never repeated. Values must be plain JSON without NaN (ValueError).
        """
        known = self._entries.get(key)
        plain = json.loads(json.dumps(value, allow_nan=False))
        if known is not None:
            if known["value"] != plain:
                raise JournalError(f"secret {key} is drawn already; this is a fault of rsi, please report it.")
            return _commit(known)
        entry = {"key": key, "salt": os.urandom(32).hex(), "value": plain}
        self._append(entry)
        self._entries[key] = entry
        return _commit(entry)

    def _append(self, entry: dict[str, Any]) -> None:
        with self._path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            line = json.dumps(entry, allow_nan=False).encode() + b"\n"
            try:
                if file.write(line) != len(line):
                    raise OSError("short write")
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(size)
                raise JournalError(f"{self._path} can't be written ({error}): make room on the disk, then resume.") from error

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> dict[str, Any] | None:
        """A copy of the value of a key, None when it was never put."""
        if key not in self._entries:
            return None
        value: dict[str, Any] = json.loads(json.dumps(self._entries[key]["value"]))
        return value

    def commitment(self, key: str) -> str:
        """The commitment of a key; KeyError when it was never put."""
        return _commit(self._entries[key])

    def reveal(self) -> dict[str, dict[str, Any]]:
        """Everything: key -> {key, salt, value}, as `verify` takes it. For the end of a campaign."""
        return {key: dict(entry) for key, entry in self._entries.items()}

    def revealed(self) -> bytes:
        """The same as JSON, the same bytes each time."""
        return json.dumps(self.reveal(), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def verify(commitment: str, revealed: dict[str, Any]) -> bool:
        """Does a revealed {key, salt, value} match the commitment made before?"""
        try:
            return hmac.compare_digest(_commit(revealed), commitment)
        except (KeyError, TypeError, ValueError):
            return False

"""Which version of the program's files a home holds: one number in HOME/version.

Promises: a home that a newer program wrote is refused before anything in it is read; an older one is brought up in place,
one version at a time, without rewriting a journal. Version 1 marks the layout of `locations`; homes without a mark have
that layout already. Light: the standard library alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from rsi_tui.errors import JournalError
from rsi_tui.locations import Home

VERSION = 1
NAME = "version"


def _already_so(home: Home) -> None:
    """Homes without a mark have the layout of version 1."""


UPGRADES: Mapping[int, Callable[[Home], None]] = {0: _already_so}
"""version -> what brings a home of it to the next; each may be done twice, since a crash may lie between it and its mark"""


def check_home(home: Home) -> None:
    """Refuse a home of a newer program, bring an older one up; a home that is not there yet is left alone.

    A home that can't be written to is read as it is. Raises JournalError, one sentence.
    """
    if not home.root.is_dir():
        return
    found = _version(home)
    if found > VERSION:
        raise JournalError(
            f"the home {home.root} was written by a newer rsi (files of version {found}, this one knows {VERSION}): "
            "update rsi, or name another home with RSI_HOME."
        )
    if found < VERSION and os.access(home.root, os.W_OK):
        for version in range(found, VERSION):
            UPGRADES[version](home)
        mark_home(home)


def mark_home(home: Home) -> None:
    """Write this program's version into a home."""
    half = home.root / f".{NAME}.{os.getpid()}"
    half.write_text(f"{VERSION}\n", encoding="ascii")
    half.replace(home.root / NAME)


def _version(home: Home) -> int:
    try:
        text = (home.root / NAME).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return 0
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"{home.root / NAME} can't be read ({error}): restore it, or delete it if no newer rsi used this home.") from error
    if not text.isdecimal():
        raise JournalError(f"{home.root / NAME} holds no version: restore it, or delete it if no newer rsi used this home.")
    return int(text)

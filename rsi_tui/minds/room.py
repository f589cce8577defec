"""What a campaign lends to a mind that calls a model: its record, its people, its program and its sandbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from rsi_tui.journal.facts import Fact
from rsi_tui.journal.speaking import Speak
from rsi_tui.launch.local import LocalLauncher


@dataclass(frozen=True)
class Room:
    """One campaign, as such a mind sees it."""

    record: Callable[[Fact], None]
    """writes an event to the journal and flushes it"""
    past: tuple[Fact, ...]
    """events of calls that the journal holds, oldest first"""
    heed: Callable[[], None]
    """carries out what people asked for; raises where the campaign is to stop"""
    tell: Callable[[str], None]
    """gives the person a sentence"""
    show: Speak
    """lets people watch calls while they run (`journal.speaking`)"""
    read_files: Callable[[str], dict[str, str]]
    """the text files of a commit: path -> text"""
    export: Callable[[str, Path], None]
    """writes a commit's tree to a new folder"""
    launcher: LocalLauncher
    python: Path
    """the program's interpreter"""
    scratch: Path
    """folder for what is thrown away"""
    usd: float | None
    """--usd of the campaign"""


@runtime_checkable
class Lodger(Protocol):
    """A mind that needs a room before it is asked anything."""

    spent: str
    """which limit of money, tokens or calls kept it from answering, a sentence without its end; '' while none did"""

    def enter(self, room: Room) -> None:
        """Take the campaign's room; the ledger goes on from what its journal holds."""

    def leave(self) -> None:
        """Let go of what it opened; it may enter another room."""

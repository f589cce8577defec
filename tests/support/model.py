"""The claude mind in tests: a room without a campaign, settings for a local server, and a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rsi_tui.config import ClaudeSettings
from rsi_tui.journal.events import ModelCalled
from rsi_tui.journal.facts import Fact
from rsi_tui.journal.speaking import Spoken
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.minds.claude.mind import ClaudeMind
from rsi_tui.minds.room import Room
from tests.support.messages_api import MessagesApi


def settings(api: MessagesApi, **more: Any) -> ClaudeSettings:
    """Settings that lead to a local server."""
    return ClaudeSettings.model_validate({"base_url": api.url, **more})


@dataclass
class Jumping:
    """Waits without time: the clock jumps by what was waited."""

    room: Room | None = None
    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def look(self) -> None:
        if self.room is not None:
            self.room.heed()

    def wait(self, seconds: float) -> None:
        if self.room is not None:
            self.room.heed()
        self.waits.append(seconds)
        self.now += seconds


@dataclass
class Journal:
    """What was recorded, and what people were told."""

    events: list[Fact] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    shown: list[Spoken] = field(default_factory=list)

    @property
    def calls(self) -> list[ModelCalled]:
        return [body for body in self.events if isinstance(body, ModelCalled)]


def room(
    folder: Path, journal: Journal, *, files: Mapping[str, str] | None = None, usd: float | None = None,
    heed: Callable[[], None] = lambda: None, launcher: LocalLauncher | None = None, python: Path = Path("/usr/bin/python3"),
) -> Room:  # fmt: skip
    """A room whose commits all hold these files."""
    held = dict(files or {})

    def export(commit: str, dest: Path) -> None:
        for path, text in held.items():
            place = dest / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    return Room(
        record=journal.events.append, past=tuple(journal.events), heed=heed, tell=journal.told.append, show=journal.shown.append,
        read_files=lambda commit: dict(held), export=export, launcher=launcher or LocalLauncher(), python=python,
        scratch=folder / "scratch", usd=usd,
    )  # fmt: skip


def lodged(api: MessagesApi, lent: Room, waiting: Jumping | None = None, **more: Any) -> ClaudeMind:
    """A claude mind in a room; the environment must hold the server's key."""
    jumping = waiting or Jumping()
    jumping.room = lent
    mind = ClaudeMind(settings(api, **more), lambda _: jumping)  # type: ignore[arg-type, return-value]
    mind.enter(lent)
    return mind

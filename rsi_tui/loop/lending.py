"""What a campaign lends to a mind that calls a model (`minds.room`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rsi_tui.contract.command import resolve_python
from rsi_tui.journal.events import Event, ModelCalled, ModelCallReserved
from rsi_tui.journal.facts import Fact
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.loop.context import Context
from rsi_tui.minds.room import Room

SHOWN_BYTES = 2**20
"""of a model's words, after which the file begins anew"""


def lend_room(ctx: Context, launcher: LocalLauncher, past: Sequence[Event], tell: Callable[[str], None]) -> Room:
    """The room of an open campaign."""

    def record(body: Fact) -> None:
        ctx.steps.append(body)

    return Room(
        record=record,
        past=tuple(event.body for event in past if isinstance(event.body, ModelCallReserved | ModelCalled)),
        heed=ctx.heed_people,
        tell=tell,
        show=_Shown(ctx.paths.root / "mind.log"),
        read_files=lambda commit: ctx.mirror.read_files(commit),
        export=ctx.mirror.export,
        launcher=launcher,
        python=Path(resolve_python(ctx.contract)),
        scratch=ctx.paths.root / "workbench",
        usd=ctx.created.usd,
    )


class _Shown:
    """A file that grows as a model writes, for people who watch; what can't be written is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._flushed = 0.0
        self._waiting = ""

    def __call__(self, text: str) -> None:
        self._waiting += text
        if time.monotonic() - self._flushed < 0.25:
            return
        with contextlib.suppress(OSError):
            large = self._path.exists() and self._path.stat().st_size > SHOWN_BYTES
            with self._path.open("w" if large else "a", encoding="utf-8", errors="replace") as file:
                file.write(self._waiting)
        self._waiting, self._flushed = "", time.monotonic()

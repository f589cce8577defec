"""What a campaign lends to a mind that calls a model (`minds.room`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rsi_tui.contract.command import resolve_python
from rsi_tui.journal.events import Event, ModelCalled, ModelCallReserved
from rsi_tui.journal.facts import Fact
from rsi_tui.journal.speaking import SpeakingWriter
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.loop.context import Context
from rsi_tui.minds.room import Room


def lend_room(ctx: Context, launcher: LocalLauncher, past: Sequence[Event], tell: Callable[[str], None]) -> Room:
    """The room of an open campaign."""

    def record(body: Fact) -> None:
        ctx.steps.append(body)

    return Room(
        record=record,
        past=tuple(event.body for event in past if isinstance(event.body, ModelCallReserved | ModelCalled)),
        heed=ctx.heed_people,
        tell=tell,
        show=SpeakingWriter(ctx.paths.speaking),
        read_files=lambda commit: ctx.mirror.read_files(commit),
        export=ctx.mirror.export,
        launcher=launcher,
        python=Path(resolve_python(ctx.contract)),
        scratch=ctx.paths.root / "workbench",
        usd=ctx.created.usd,
    )


"""Commands of people to a running engine: atomic files in a spool folder of the campaign.

A command is one small JSON file under a name that sorts by time, renamed into place when complete, so
that the engine never reads half of one. The engine takes them between its own actions, in order; a
file goes only after what it says was recorded, so that a crash in between loses no command.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Literal

from pydantic import ValidationError

from rsi_tui.errors import JournalError
from rsi_tui.journal.events import PersonActed
from rsi_tui.locations import CampaignPaths

Action = Literal["pause", "resume", "stop", "note", "approve", "veto", "propose", "pin", "budget"]


def send_command(paths: CampaignPaths, who: str, action: Action, text: str = "") -> None:
    """Leave a command for the engine of a campaign; JournalError when it can't be written."""
    body = PersonActed(who=who, action=action, text=text)
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    half = paths.commands / f".{name}.tmp"
    try:
        paths.commands.mkdir(parents=True, exist_ok=True)
        with half.open("x", encoding="utf-8") as file:
            file.write(body.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        half.rename(paths.commands / f"{name}.json")
    except OSError as error:
        half.unlink(missing_ok=True)
        raise JournalError(f"cannot leave a command in {paths.commands}: {error.strerror}.") from error


def take_commands(
    paths: CampaignPaths, record: Callable[[str, PersonActed], object] = lambda name, action: None
) -> list[PersonActed]:
    """The commands that wait, oldest first; they are gone afterwards. A file that is no command is kept as *.bad.

    `record` is given each with its unique name before its file goes; after a crash it may be given one again.
    """
    taken: list[PersonActed] = []
    for file in sorted(paths.commands.glob("*.json")) if paths.commands.is_dir() else []:
        try:
            action = PersonActed.model_validate_json(file.read_bytes())
        except ValidationError:
            file.rename(file.with_suffix(".bad"))
            continue
        record(file.stem, action)
        file.unlink()
        taken.append(action)
    return taken

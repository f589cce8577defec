"""One typed tree of a person's settings: $RSI_HOME/config.toml, every key optional.

Settings change how things look and how often they are looked at, never what is measured or proven;
that is the contract's. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rsi_tui.errors import UsageError


class AppSettings(BaseModel):
    """The terminal app."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    theme: str = ""
    """a theme of Textual; '' = its dark one, and the terminal's own colours under NO_COLOR"""
    poll_hz: float = Field(default=3.0, ge=0.2, le=20.0)
    """how often the journal is looked at"""
    log_lines: int = Field(default=5000, ge=10, le=100_000)
    """lines kept of the running trial's output"""


class HookSettings(BaseModel):
    """Commands that are started when something happens to a campaign; '' is none. A shell reads them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: str = ""
    stopped: str = ""
    needs_approval: str = ""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """after which a command and all that it started are killed"""


class LibrarySettings(BaseModel):
    """The experience library."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: bool = True
    """False: whoever needs it opens the files itself, one process at a time"""
    idle_minutes: float = Field(default=10.0, gt=0, le=100_000)
    """after which a server that nobody asks ends"""
    address: str = ""
    """HOST:PORT of a team's library, served there by `rsi library serve`; '' = the home's own"""
    token: str = ""
    """what a team's library asks for"""


class Settings(BaseModel):
    """All settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: AppSettings = AppSettings()
    hooks: HookSettings = HookSettings()
    library: LibrarySettings = LibrarySettings()


def load_settings(home: Path) -> Settings:
    """The settings of a home's folder; the defaults without a file. Raises UsageError for a wrong one."""
    path = home / "config.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}.") from error
    try:
        return Settings.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}.") from error
    except ValidationError as error:
        raise UsageError(_explain(path, error)) from error


def _explain(path: Path, error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{path}: {key}: {problem['msg']}."
    rooms: dict[str, type[BaseModel]] = {"app": AppSettings, "hooks": HookSettings, "library": LibrarySettings}
    known = [name for room, keys in rooms.items() for name in (room, *(f"{room}.{key}" for key in keys.model_fields))]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    return f"{path}: there is no setting '{key}'; the nearest is '{near}'."

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


class Settings(BaseModel):
    """All settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: AppSettings = AppSettings()
    hooks: HookSettings = HookSettings()


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
    known = ["app", *(f"app.{name}" for name in AppSettings.model_fields)]
    known += ["hooks", *(f"hooks.{name}" for name in HookSettings.model_fields)]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    return f"{path}: there is no setting '{key}'; the nearest is '{near}'."

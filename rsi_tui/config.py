"""One typed tree of a person's settings: $RSI_HOME/config.toml, every key optional.

Settings change how things look and how often they are looked at, never what is measured or proven;
that is the contract's. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Literal

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
    ascii: bool = False
    """plots and lines of plain signs, for terminals without others"""
    keys: dict[str, str] = {}
    """other keys for actions, comma-separated: pause = "P"; `?` lists the actions"""


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


class RoleSettings(BaseModel):
    """Who thinks for one role under `--mind claude`, and how hard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mind: Literal["claude", "builtin"] = "claude"
    model: str = ""
    """'' = [claude] model"""
    effort: str = ""
    """low, medium, high, xhigh or max; '' sends none, for models that know no effort"""
    max_output_tokens: int = Field(default=8000, ge=500, le=128_000)


class ClaudeSettings(BaseModel):
    """The claude mind: how the API is reached, who answers for which role, what may be spent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: Literal["anthropic", "bedrock", "bedrock-mantle", "vertex"] = "anthropic"
    """bedrock: by InvokeModel, which needs boto3; bedrock-mantle: Bedrock's own Messages API"""
    base_url: str = ""
    """of a gateway; '' = the provider's own"""
    key_env: str = "ANTHROPIC_API_KEY"
    """environment variable that holds the key; the key itself is no setting. Of Vertex an access token, where it is another
    variable than this; of Bedrock it is not used, AWS_BEARER_TOKEN_BEDROCK or AWS credentials are"""
    region: str = ""
    """of Bedrock or Vertex"""
    project: str = ""
    """of Vertex"""
    model: str = "claude-opus-5-5"
    director: RoleSettings = RoleSettings(effort="high", max_output_tokens=12_000)
    selector: RoleSettings = RoleSettings(effort="medium")
    executor: RoleSettings = RoleSettings(effort="high", max_output_tokens=32_000)
    reviewer: RoleSettings = RoleSettings(effort="medium")
    scribe: RoleSettings = RoleSettings(model="claude-sonnet-5-5", effort="low", max_output_tokens=4000)
    cache_hours: Literal[0, 1] = 1
    """how long the API keeps the stable part of a prompt: 0 is five minutes, which a wave of trials outlasts"""
    max_usd: float | None = Field(default=None, gt=0)
    """of a campaign; --usd says otherwise"""
    max_usd_per_direction: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """of a campaign, prompts and answers, cached or not"""
    max_calls: int | None = Field(default=None, gt=0)
    """of a campaign"""
    max_tokens_per_direction: int | None = Field(default=None, gt=0)
    max_calls_per_direction: int | None = Field(default=None, gt=0)
    max_turns: int = Field(default=40, ge=1, le=500)
    """calls that the Executor may take for one change"""
    timeout_s: float = Field(default=600.0, gt=0)
    """without an event from the API, after which an attempt counts as cut"""
    patience_s: float = Field(default=6 * 3600.0, ge=0)
    """how long a busy or broken API is tried again before the campaign gives up, to be resumed"""


class Settings(BaseModel):
    """All settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: AppSettings = AppSettings()
    hooks: HookSettings = HookSettings()
    library: LibrarySettings = LibrarySettings()
    claude: ClaudeSettings = ClaudeSettings()


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
    near = difflib.get_close_matches(key, _keys(Settings), n=1, cutoff=0.0)[0]
    return f"{path}: there is no setting '{key}'; the nearest is '{near}'."


def _keys(model: type[BaseModel]) -> list[str]:
    """The dotted names of all settings, groups included."""
    found = []
    for name, field in model.model_fields.items():
        found.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += [f"{name}.{below}" for below in _keys(field.annotation)]
    return found

"""The `anthropic` client for a provider, with a sentence where it can't be had. Nothing is imported before it is needed."""

from __future__ import annotations

import os
from typing import Any

from rsi_tui.config import ClaudeSettings
from rsi_tui.environment import withhold
from rsi_tui.errors import UsageError

USUAL_KEY = "ANTHROPIC_API_KEY"


def require_access(settings: ClaudeSettings) -> None:
    """UsageError, one sentence that says what to do, unless a client can be made; asks nothing over the network."""
    _package()
    withhold(settings.key_env)
    if settings.provider == "anthropic" and not os.environ.get(settings.key_env):
        raise UsageError(
            f"--mind claude needs a key of the Claude API: put it into the environment as {settings.key_env}, "
            "or use --mind builtin, which needs no key and no network."
        )
    if settings.provider == "vertex" and not (settings.project and settings.region):
        raise UsageError("--mind claude by Vertex needs [claude] project and region in config.toml.")
    if settings.provider.startswith("bedrock") and not settings.region:
        raise UsageError("--mind claude by Bedrock needs [claude] region in config.toml.")


def open_api(settings: ClaudeSettings) -> Any:
    """A client of the `anthropic` package that tries nothing again by itself: `client.Client` does, and says so."""
    require_access(settings)
    anthropic = _package()
    common: dict[str, Any] = {"max_retries": 0, "timeout": settings.timeout_s}
    if settings.base_url:
        common["base_url"] = settings.base_url
    if settings.provider == "bedrock":
        return anthropic.AnthropicBedrock(aws_region=settings.region, **common)
    if settings.provider == "bedrock-mantle":
        return anthropic.AnthropicBedrockMantle(aws_region=settings.region, **common)
    if settings.provider == "vertex":
        token = os.environ.get(settings.key_env) if settings.key_env != USUAL_KEY else None
        return anthropic.AnthropicVertex(region=settings.region, project_id=settings.project, access_token=token, **common)
    return anthropic.Anthropic(api_key=os.environ[settings.key_env], **common)


def _package() -> Any:
    try:
        import anthropic
    except ImportError as error:
        raise UsageError(
            "--mind claude needs the package `anthropic`: pip install 'rsi-tui[claude]', or use --mind builtin."
        ) from error
    return anthropic

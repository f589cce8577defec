"""Where the API is reached is configuration: the clients that settings make, against a local server as far as that goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsi_tui.config import ClaudeSettings
from rsi_tui.errors import MindError, UsageError
from rsi_tui.minds.claude.api import open_api
from rsi_tui.minds.claude.asking import ask
from rsi_tui.minds.claude.mind import ClaudeMind
from rsi_tui.minds.claude.redact import Redactor
from tests.support.messages_api import KEY, MessagesApi, Tool, Turn, messages_api
from tests.support.model import Journal, Jumping, room

LESSON = Turn((Tool("write_lesson", {"text": "Fusing the projections saved 3 % where the width was small."}),))
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of whoever runs the tests."""
    for name in (*AWS, "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with messages_api(lambda asked: LESSON) as server:
        yield server


def lesson(folder: Path, journal: Journal, **settings: object) -> str:
    """What the Scribe answers by a provider."""
    mind = ClaudeMind(ClaudeSettings.model_validate(settings), lambda _: Jumping())  # type: ignore[arg-type, return-value]
    mind.enter(room(folder, journal))
    try:
        told = ask(mind.calls, Redactor(), "scribe", "d1", lambda level: ("Stable.", "Lesson?"))
        return str(getattr(told, "text", ""))
    finally:
        mind.leave()


def test_a_gateway_by_its_base_url(tmp_path: Path, api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", KEY)
    journal = Journal()
    assert "3 %" in lesson(tmp_path, journal, base_url=f"{api.url}/gateway", key_env="GATEWAY_KEY", model="their-opus", scribe={"model": ""})
    assert journal.calls[0].model == "their-opus" and journal.calls[0].usd is None, "a price that is not known is said to be"


def test_vertex_with_an_access_token(tmp_path: Path, api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERTEX_TOKEN", KEY)
    journal = Journal()
    settings = {"provider": "vertex", "region": "europe-west1", "project": "ours", "base_url": api.url, "key_env": "VERTEX_TOKEN"}
    assert "3 %" in lesson(tmp_path, journal, **settings, scribe={"model": "claude-opus-5-5@20260901"})
    body = api.account.requests[0].body
    assert body["model"] == "claude-opus-5-5@20260901" and "anthropic_version" in body
    assert journal.calls[0].usd is not None and journal.calls[0].usd > 0


def test_bedrocks_messages_api_with_a_bearer_token(tmp_path: Path, api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    journal = Journal()
    settings = {"provider": "bedrock-mantle", "region": "eu-west-1", "base_url": f"{api.url}/anthropic"}
    assert "3 %" in lesson(tmp_path, journal, **settings, scribe={"model": "anthropic.claude-sonnet-5-5"})
    assert journal.calls[0].usd is not None


def test_bedrock_by_invoke_model_asks_and_a_refusal_is_one_sentence(tmp_path: Path, api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "another-key-than-the-servers")
    with pytest.raises(MindError, match=r"refuses the key.*resume"):
        lesson(tmp_path, Journal(), provider="bedrock", region="eu-west-1", base_url=api.url)
    assert len(api.account.requests) == 1


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"provider": "bedrock", "region": "eu-west-1"}, "bedrock-runtime.eu-west-1.amazonaws.com"),
        ({"provider": "bedrock-mantle", "region": "eu-west-1"}, "bedrock-mantle.eu-west-1.api.aws"),
        ({"provider": "vertex", "region": "europe-west1", "project": "ours"}, "europe-west1-aiplatform.googleapis.com"),
    ],
)
def test_each_provider_is_reached_at_its_own_place(settings: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    client = open_api(ClaudeSettings.model_validate(settings))
    assert client.base_url.host == host and client.max_retries == 0
    client.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"provider": "bedrock"}, "region"), ({"provider": "bedrock-mantle"}, "region"), ({"provider": "vertex", "region": "x"}, "project")],
)
def test_what_a_provider_lacks_is_one_sentence(settings: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_api(ClaudeSettings.model_validate(settings))

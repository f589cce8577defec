"""Sending one request to the Messages API until it is answered, with patience.

What is tried again: 408, 409, 429, 5xx, 529, connections that fail and streams that are cut; after as long as the API
asks for (Retry-After), else after a delay that doubles. What is not: a wrong key, an unknown model, a request that the
API finds wrong. Each attempt starts from nothing: no part of a cut answer is used.
"""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rsi_tui.errors import MindError
from rsi_tui.journal.facts import TokenFacts
from rsi_tui.journal.speaking import SpeakingState
from rsi_tui.minds.claude.redact import Redactor
from rsi_tui.minds.claude.stream import Reply

FIRST_DELAY_S = 2.0
LONGEST_DELAY_S = 120.0
TRIED_AGAIN = (408, 409, 429)
Show = Callable[[SpeakingState, str, float], None]
"""takes a state, text, and seconds to wait (`journal.speaking`)"""


class TooLong(Exception):
    """The request holds more than the model can read."""


@dataclass
class Sent:
    """A request and its attempts so far."""

    tokens: TokenFacts = field(default_factory=TokenFacts)
    """of all attempts"""
    attempts: list[str] = field(default_factory=list)
    """what went wrong, one entry each"""
    waited_s: float = 0.0
    reply: Reply | None = None


@dataclass(frozen=True)
class _Trouble:
    """Why an attempt failed, and how long the API asks to wait."""

    what: str
    delay_s: float | None = None


class Client:
    """A client of the `anthropic` package, wrapped."""

    def __init__(
        self,
        api: Any,
        redact: Redactor,
        *,
        patience_s: float,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda sentence: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`wait` and `look`, which is called as events arrive, may raise to give up; `tell` is given a sentence for each wait."""
        self._api, self._redact = api, redact
        self._patience_s, self._wait, self._clock, self._tell = patience_s, wait, clock, tell
        self.look = look

    def send(
        self, request: Mapping[str, Any], before: Callable[[TokenFacts], None], sent: Sent, show: Show = lambda state, text, wait_s: None
    ) -> Reply:
        """The whole answer to a request; `sent` is kept up to date, also when this raises.

        `before` is called with what was taken so far before each attempt, `show` with each change of state. Raises TooLong; MindError where patience ran
        out or trying again is no use; whatever `before` and `wait` raise.
        """
        since: float | None = None
        while True:
            before(sent.tokens)
            show("asking", "", 0.0)
            trouble = self._attempt(request, sent, show)
            if trouble is None:
                assert sent.reply is not None
                return sent.reply
            now = self._clock()
            since = now if since is None else since
            sent.attempts.append(trouble.what)
            delay = self._delay(trouble, len(sent.attempts))
            if now - since + delay > self._patience_s:
                raise MindError(
                    f"The model could not be reached for {max(now - since, 0.0) / 60:.0f} min (last: {trouble.what}); "
                    "`rsi run --resume` goes on when it can be."
                )
            show("waiting", trouble.what, delay)
            self._tell(f"{request['model']} does not answer ({trouble.what}): trying again in {delay:.0f} s.")
            self._wait(delay)
            sent.waited_s += delay

    def _delay(self, trouble: _Trouble, number: int) -> float:
        if trouble.delay_s is not None:
            return trouble.delay_s
        longest = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(number - 1, 10))
        return longest * random.uniform(0.75, 1.0)  # so that parallel calls don't come back all at once

    def _attempt(self, request: Mapping[str, Any], sent: Sent, show: Show) -> _Trouble | None:
        import anthropic
        import httpx2

        reply = Reply()
        try:
            with self._api.messages.create(**request, stream=True) as stream:
                for event in stream:
                    self.look()
                    if added := reply.take(event.model_dump(exclude_unset=True)):
                        show("writing", added, 0.0)
            if reply.complete:
                sent.reply = reply
                sent.tokens = sent.tokens + reply.tokens
                return None
            trouble = _Trouble("the stream was cut")
        except anthropic.APIStatusError as error:
            trouble = self._refused(error, begun=bool(reply.blocks or reply.tokens.total))
        except anthropic.APIConnectionError as error:
            trouble = _Trouble("no answer in time" if isinstance(error, anthropic.APITimeoutError) else "no connection")
        except (anthropic.APIError, httpx2.HTTPError, ValueError, KeyError, IndexError) as error:
            trouble = _Trouble(f"the stream was cut ({type(error).__name__})")
        except BaseException:  # a person stops the campaign: what was told until now is owed
            sent.tokens = sent.tokens + reply.cut_off()
            raise
        sent.tokens = sent.tokens + reply.cut_off()
        return trouble

    def _refused(self, error: Any, begun: bool) -> _Trouble:
        """What to try again after; MindError or TooLong where that is no use."""
        status, said = int(error.status_code), self._redact(_message(error))
        if begun or status == 200:
            return _Trouble(f"the stream was cut ({said})")
        again = error.response.headers.get("x-should-retry")
        if (status in TRIED_AGAIN or status >= 500) and again != "false":
            return _Trouble(f"{status} {said}"[:200], _retry_after(error.response.headers))
        if status == 413 or (status == 400 and "too long" in said):
            raise TooLong(said) from error
        if status in (401, 403):
            raise MindError(f"The API refuses the key ({status}: {said}): set a valid one, then `rsi run --resume`.") from error
        if status == 404:
            raise MindError(f"The API does not know the model ({said}): name another one in [claude], then `rsi run --resume`.") from error
        raise MindError(f"The API refuses the request ({status}: {said}); `rsi run --resume` goes on once that is mended.") from error


def _message(error: Any) -> str:
    body = error.body
    inner = body.get("error") if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else None
    return " ".join(str(said or error.message).split())[:300]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the API asks to wait, None when it asks for nothing that can be read."""
    told = headers.get("retry-after")
    if not told:
        return None
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        at = email.utils.parsedate_to_datetime(told)
    except ValueError:
        return None
    return max(0.0, (at - datetime.now(UTC)).total_seconds())

"""Calls to a model, each with money set aside before and a record after. Threads may share one of these.

A request that was answered before in this campaign is not sent again: an engine that was killed between an answer
and the decision made of it asks the very same question when it is taken up.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from rsi_tui.config import ClaudeSettings, RoleSettings
from rsi_tui.errors import BudgetError, MindError
from rsi_tui.journal.events import ModelCalled, Role
from rsi_tui.journal.facts import Fact, TokenFacts
from rsi_tui.journal.speaking import Speak, SpeakingState, Spoken
from rsi_tui.minds.claude.client import Client, Sent, TooLong
from rsi_tui.minds.claude.money import Ledger, price_of
from rsi_tui.minds.claude.prompts import Prompt
from rsi_tui.minds.claude.redact import Redactor
from rsi_tui.minds.claude.stream import Reply, estimated_tokens

LOOK_S = 0.25
LONGEST_ANSWER = 60_000
"""characters of an answer that are kept in the journal; of a longer one the begin"""

Outcome = Literal["answered", "refused", "truncated", "malformed", "empty", "too_long", "failed"]


@dataclass(frozen=True)
class Question:
    """Who asks what."""

    role: Role
    direction: str
    """'' for the Director"""
    prompt: Prompt
    tools: tuple[dict[str, Any], ...]
    messages: tuple[dict[str, Any], ...]
    max_output_tokens: int
    retrieved: tuple[str, ...] = ()
    reusable: bool = False
    """an earlier answer to the same request will do"""


@dataclass(frozen=True)
class Answer:
    """What came of a call."""

    outcome: Outcome
    detail: str
    reply: Reply = field(default_factory=Reply)


Judge = Callable[[Reply], tuple[Outcome, str]]
"""is a complete answer of use, and if not why, a sentence"""


class Calls:
    """Sends questions of all roles of one campaign."""

    def __init__(
        self, settings: ClaudeSettings, client: Client, ledger: Ledger, redact: Redactor, past: tuple[Fact, ...] = (),
        speak: Speak = lambda spoken: None,
    ) -> None:
        self.ledger = ledger
        self._settings, self._client, self._redact, self._speak = settings, client, redact, speak
        self._answered = {
            body.request: body
            for body in past
            if isinstance(body, ModelCalled) and body.outcome == "answered" and len(body.answer) < LONGEST_ANSWER
        }
        self._at_work: dict[str, threading.Event] = {}
        """requests that may be answered for others too, by digest"""
        self._lock = threading.Lock()

    def role(self, role: Role) -> RoleSettings:
        found: RoleSettings = getattr(self._settings, role)
        return found

    def model(self, role: Role) -> str:
        return self.role(role).model or self._settings.model

    def ask(self, question: Question, judge: Judge) -> Answer:
        """Send a question and record what came of it.

        Raises BudgetError when it might break a cap, MindError when the API can't be reached; both leave a record.
        """
        request = self._request(question)
        digest = hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode("utf-8", "surrogateescape")).hexdigest()
        if not question.reusable:
            return self._send(question, request, digest, judge)
        done = self._turn(digest)
        try:
            if (known := self._answered.get(digest)) is not None:
                return self._again(question, digest, known, judge)
            return self._send(question, request, digest, judge)
        finally:
            with self._lock:
                del self._at_work[digest]
            done.set()

    def _turn(self, digest: str) -> threading.Event:
        """Wait while another thread asks the very same; the event to set once this one has its answer."""
        while True:
            with self._lock:
                other = self._at_work.get(digest)
                if other is None:
                    mine = self._at_work[digest] = threading.Event()
                    return mine
            while not other.wait(LOOK_S):
                self._client.look()

    def _send(self, question: Question, request: dict[str, Any], digest: str, judge: Judge) -> Answer:
        call, sent, began = self.ledger.new_call(), Sent(), time.monotonic()
        price = price_of(str(request["model"]), self._settings.cache_hours)
        prompt_tokens = estimated_tokens(json.dumps(request, default=str, ensure_ascii=False))

        def reserve(taken: TokenFacts) -> None:
            most = taken + TokenFacts(cache_write=prompt_tokens, output=question.max_output_tokens)
            self.ledger.reserve(
                call, question.role, question.direction, str(request["model"]), most.total, price.of(most) if price else None
            )

        words = _Words(call, question, self._redact, self._speak)
        answer = Answer("failed", "")
        try:
            reply = self._client.send(request, reserve, sent, words)
            answer = Answer(*judge(reply), reply)
        except TooLong as error:
            answer = Answer("too_long", str(error))
        except BudgetError as error:
            answer = Answer("failed", str(error))
            raise
        except MindError as error:
            answer = Answer("failed", str(error))
            raise
        except BaseException as error:
            answer = Answer("failed", f"given up: {error}" if str(error) else "given up")
            raise
        finally:
            called = ModelCalled(
                call=call, role=question.role, direction=question.direction, model=str(request["model"]), prompt=question.prompt.id,
                request=digest, retrieved=question.retrieved, outcome=answer.outcome, detail=self._redact(answer.detail),
                answer=self._kept(answer.reply), attempts=tuple(sent.attempts), tokens=sent.tokens,
                usd=price.of(sent.tokens) if price else None, waited_s=sent.waited_s, seconds=time.monotonic() - began,
            )  # fmt: skip
            self.ledger.settle(called)
            words("done", f"{answer.outcome} {answer.detail}".strip(), 0.0)
        if answer.outcome == "answered":
            self._answered[digest] = called
        return answer

    def _again(self, question: Question, digest: str, known: ModelCalled, judge: Judge) -> Answer:
        """The answer of an earlier call, recorded as used once more, for nothing."""
        reply = Reply(blocks=json.loads(known.answer), stop_reason="tool_use", complete=True)
        outcome, detail = judge(reply)
        self.ledger.settle(
            known.model_copy(update={
                "call": self.ledger.new_call(), "reused": known.call, "tokens": TokenFacts(), "usd": 0.0, "attempts": (),
                "outcome": outcome, "detail": detail, "waited_s": 0.0, "seconds": 0.0, "direction": question.direction,
            })
        )  # fmt: skip
        return Answer(outcome, detail, reply)

    def _request(self, question: Question) -> dict[str, Any]:
        role = self.role(question.role)
        request: dict[str, Any] = {
            "model": self.model(question.role),
            "max_tokens": question.max_output_tokens,
            "system": [{"type": "text", "text": question.prompt.text, "cache_control": self.cache_control}],
            "tools": list(question.tools),
            "messages": _encodable(list(question.messages)),
        }
        if role.effort:
            request["output_config"] = {"effort": role.effort}
        return request

    @property
    def cache_control(self) -> dict[str, str]:
        """The mark at the end of a part of the prompt that stays the same."""
        return {"type": "ephemeral", "ttl": "1h"} if self._settings.cache_hours else {"type": "ephemeral"}

    def _kept(self, reply: Reply) -> str:
        shown = [block for block in reply.blocks if block.get("type") in ("text", "tool_use")]
        text = json.dumps(shown, ensure_ascii=False) if shown else ""
        return self._redact(text.encode("utf-8", "replace").decode())[:LONGEST_ANSWER]


class _Words:
    """One call's words on their way to people: whole words at a time, so that no secret is cut in two and missed."""

    def __init__(self, call: str, question: Question, redact: Redactor, speak: Speak) -> None:
        self._call, self._question, self._redact, self._speak = call, question, redact, speak
        self._held = ""

    def __call__(self, state: SpeakingState, text: str, wait_s: float) -> None:
        if state == "writing":
            whole, space, self._held = _parted(self._held + text)
            if whole:
                self._say("writing", whole + space, 0.0)
            return
        if self._held and state != "asking":
            self._say("writing", self._held, 0.0)
        self._held = ""
        self._say(state, text, wait_s)

    def _say(self, state: SpeakingState, text: str, wait_s: float) -> None:
        question = self._question
        said = Spoken(call=self._call, role=question.role, direction=question.direction, state=state, text=self._redact(text), wait_s=wait_s)
        self._speak(said)


def _parted(text: str) -> tuple[str, str, str]:
    """(text up to the last space, that space, the begun word after it)."""
    found = re.search(r"^(.*)(\s)(\S*)$", text, re.DOTALL)
    return (found[1], found[2], found[3]) if found else ("", "", text)


def _encodable(value: Any) -> Any:
    """The same with what can't be sent as UTF-8 (bytes of a file that are no text, halves of a character) replaced."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value

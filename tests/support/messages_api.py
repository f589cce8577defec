"""A Messages API on loopback: a real HTTP server that the real `anthropic` client runs against.

It streams events as the API does, counts tokens (an estimate), keeps prompt caches by prefix, refuses requests that the API
refuses, and plays faults. What it answers is said by a script: a function of the request. It keeps an account of every
token that it told, against which a ledger can be held.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-ant-test-0123456789abcdefghijklmnop"
CONTEXT_TOKENS = 1_000_000
USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


def tokens_of(value: Any) -> int:
    """Tokens of a part of a request, estimated at 3.5 characters each."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return -(-len(text) * 2 // 7)


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Tool:
    """A tool call; `raw` in place of the input is sent as it is, whether JSON or not."""

    name: str
    input: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None


@dataclass(frozen=True)
class Turn:
    """One answer."""

    blocks: tuple[Text | Tool, ...] = ()
    stop: str = ""
    """'' = tool_use or end_turn, by the blocks"""
    thinking: str = "Let me see."
    cut_after: str = ""
    """the connection ends after the first event of this type; 'end' = before the last event"""
    error_after: str = ""
    """an `error` event of overloaded_error follows the first event of this type"""


@dataclass(frozen=True)
class Status:
    """An answer that is an error."""

    code: int
    message: str = "told to"
    retry_after: str = ""
    no_retry: bool = False


@dataclass(frozen=True)
class Asked:
    """A request as a script sees it."""

    body: dict[str, Any]
    number: int
    """from 1, over all requests"""

    @property
    def role(self) -> str:
        """Told by its tools."""
        names = {tool["name"] for tool in self.body["tools"]}
        by = {"open_direction": "director", "write_hypothesis": "selector", "submit": "executor", "review": "reviewer", "write_lesson": "scribe"}
        return next(role for name, role in by.items() if name in names)

    @property
    def turns(self) -> int:
        """Answers that the conversation holds already."""
        return sum(1 for message in self.body["messages"] if message["role"] == "assistant")

    @property
    def text(self) -> str:
        """All that the model reads in messages, tool results included."""
        parts = []
        for message in self.body["messages"]:
            for block in message["content"]:
                parts.append(str(block.get("text") or block.get("content") or json.dumps(block.get("input", ""))))
        return "\n".join(parts)

    @property
    def last(self) -> str:
        """The newest message."""
        return "\n".join(str(block.get("text") or block.get("content") or "") for block in self.body["messages"][-1]["content"])


Script = Callable[[Asked], Turn | Status]


@dataclass
class Account:
    """What the server did."""

    requests: list[Asked] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    """tokens by name of the usage field, of all answers, cut ones as far as they were told"""
    by_role: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    """usage of each answer that came to its end"""
    raw: list[bytes] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    """what was wrong with requests that the API would refuse"""


class MessagesApi:
    """The server; `url` is its base URL."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.account = Account()
        self.context_tokens = CONTEXT_TOKENS
        self._lock = threading.Lock()
        self._cache: set[str] = set()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    api._answer(self)

            def log_message(self, *_: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # --- one request --------------------------------------------------------------------------

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers["content-length"]))
        body = json.loads(raw)
        if "publishers/anthropic/models/" in handler.path:  # as Vertex is asked: model in the path, version in the body
            body["model"] = handler.path.rpartition("/models/")[2].partition(":")[0]
        with self._lock:
            asked = Asked(body, len(self.account.requests) + 1)
            self.account.requests.append(asked)
            self.account.raw.append(raw)
        if KEY not in (handler.headers.get("x-api-key"), (handler.headers.get("authorization") or "").removeprefix("Bearer ")):
            return self._status(handler, Status(401, "invalid x-api-key"))
        wrong = _wrong(body, handler.headers.get("anthropic-version") or body.get("anthropic_version"))
        if wrong:
            self.account.refused.append(wrong)
            return self._status(handler, Status(400, wrong))
        prompt = tokens_of(body["messages"]) + tokens_of(body["system"]) + tokens_of(body["tools"])
        if prompt > self.context_tokens:
            return self._status(handler, Status(400, f"prompt is too long: {prompt} tokens > {self.context_tokens} maximum"))
        answer = self.script(asked)
        if isinstance(answer, Status):
            return self._status(handler, answer)
        return self._stream(handler, asked, answer)

    def _status(self, handler: BaseHTTPRequestHandler, status: Status) -> None:
        self.account.statuses[status.code] += 1
        kind = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error", 400: "invalid_request_error"}
        body = json.dumps({"type": "error", "error": {"type": kind.get(status.code, "api_error"), "message": status.message}}).encode()
        handler.send_response(status.code)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        if status.retry_after:
            handler.send_header("retry-after", status.retry_after)
        if status.no_retry:
            handler.send_header("x-should-retry", "false")
        handler.end_headers()
        handler.wfile.write(body)

    def _stream(self, handler: BaseHTTPRequestHandler, asked: Asked, turn: Turn) -> None:
        usage = self._usage(asked.body, turn)
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        events = list(_events(asked, turn, usage))
        for place, event in enumerate(events):
            if turn.cut_after == "end" and place == len(events) - 1:
                return self._cut(handler)
            self._tell(event)
            _chunk(handler, f"event: {event['type']}\ndata: {json.dumps(event)}\n\n")
            if event["type"] == turn.cut_after:
                return self._cut(handler)
            if event["type"] == turn.error_after:
                error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
                _chunk(handler, f"event: error\ndata: {json.dumps(error)}\n\n")
                break
        else:
            with self._lock:
                self.account.by_role.setdefault(asked.role, []).append(usage)
        handler.wfile.write(b"0\r\n\r\n")
        handler.wfile.flush()
        return None

    def _cut(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.flush()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(2)

    def _tell(self, event: dict[str, Any]) -> None:
        """Keep account of the usage that an event tells; a later count of output takes the place of the first."""
        told = event["message"]["usage"] if event["type"] == "message_start" else event.get("usage", {})
        with self._lock:
            if event["type"] == "message_start":
                self.account.told.update(told)
            elif "output_tokens" in told:
                self.account.told["output_tokens"] += told["output_tokens"] - 1

    def _usage(self, body: dict[str, Any], turn: Turn) -> dict[str, int]:
        """Tokens of an answer, with prompt caches kept by prefix as the API keeps them."""
        parts: list[tuple[int, bool, str]] = []
        blocks = [*body["tools"], *body["system"], *(block for message in body["messages"] for block in message["content"])]
        seen = hashlib.sha256(body["model"].encode())
        for block in blocks:
            bare = {key: value for key, value in block.items() if key != "cache_control"}
            seen.update(json.dumps(bare, sort_keys=True).encode())
            parts.append((tokens_of(bare), "cache_control" in block, seen.hexdigest()))
        marks = [place for place, (_, marked, _) in enumerate(parts) if marked]
        with self._lock:
            hit = max((place for place in marks if parts[place][2] in self._cache), default=-1)
            self._cache.update(parts[place][2] for place in marks)
        last = marks[-1] if marks else -1

        def count(first: int, end: int | None) -> int:
            return sum(tokens for tokens, _, _ in parts[first:end])

        output = tokens_of([b.text if isinstance(b, Text) else b.raw or b.input for b in turn.blocks]) + tokens_of(turn.thinking)
        return {
            "input_tokens": count(max(last, hit) + 1, None),
            "cache_creation_input_tokens": count(hit + 1, last + 1),
            "cache_read_input_tokens": count(0, hit + 1),
            "output_tokens": max(2, output),
        }


def _chunk(handler: BaseHTTPRequestHandler, text: str) -> None:
    data = text.encode()
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    handler.wfile.flush()


def _wrong(body: dict[str, Any], version: str | None) -> str:
    """What the API would refuse in a request; '' when nothing."""
    if not version:
        return "anthropic-version: header is required"
    if body.get("tool_choice", {}).get("type") in ("tool", "any"):
        return "tool_choice forces tool use, which this model does not support"
    blocks = [*body["tools"], *body["system"], *(b for m in body["messages"] for b in m["content"])]
    if sum("cache_control" in block for block in blocks) > 4:
        return "a maximum of 4 blocks with cache_control may be provided"
    if body["messages"][0]["role"] != "user" or body["messages"][-1]["role"] != "user":
        return "messages: must begin and end with the user"
    waiting: list[str] = []
    for message in body["messages"]:
        if not message["content"]:
            return "messages: content must not be empty"
        results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        if sorted(results) != sorted(waiting):
            return f"tool_use ids were found without tool_result blocks immediately after: {waiting}"
        uses = [b for b in message["content"] if b["type"] == "tool_use"]
        waiting = [b["id"] for b in uses]
        if any(not isinstance(b["input"], dict) for b in uses):
            return "tool_use.input: must be an object"
        if any(b["type"] == "text" and not b["text"] for b in message["content"]):
            return "text content blocks must be non-empty"
        if any(b["type"] == "thinking" and b.get("signature") != "signed" for b in message["content"]):
            return "thinking blocks must be passed back unchanged"
    return ""


def _events(asked: Asked, turn: Turn, usage: dict[str, int]) -> Iterator[dict[str, Any]]:
    message = {
        "id": f"msg_{asked.number}", "type": "message", "role": "assistant", "model": asked.body["model"], "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1},
    }  # fmt: skip
    yield {"type": "message_start", "message": message}
    yield {"type": "ping"}
    index = 0
    if turn.thinking and turn.blocks:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": turn.thinking}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "signed"}}
        yield {"type": "content_block_stop", "index": 0}
        index = 1
    for place, block in enumerate(turn.blocks, index):
        if isinstance(block, Text):
            yield {"type": "content_block_start", "index": place, "content_block": {"type": "text", "text": ""}}
            for piece in _pieces(block.text):
                yield {"type": "content_block_delta", "index": place, "delta": {"type": "text_delta", "text": piece}}
        else:
            use = {"type": "tool_use", "id": f"toolu_{asked.number}_{place}", "name": block.name, "input": {}}
            yield {"type": "content_block_start", "index": place, "content_block": use}
            for piece in _pieces(json.dumps(block.input) if block.raw is None else block.raw):
                yield {"type": "content_block_delta", "index": place, "delta": {"type": "input_json_delta", "partial_json": piece}}
        yield {"type": "content_block_stop", "index": place}
    used = any(isinstance(block, Tool) for block in turn.blocks)
    stop = turn.stop or ("tool_use" if used else "end_turn")
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _pieces(text: str) -> list[str]:
    return [text[at : at + 200] for at in range(0, len(text), 200)]


@contextlib.contextmanager
def messages_api(script: Script) -> Iterator[MessagesApi]:
    """A server for the time of a block."""
    api = MessagesApi(script)
    try:
        yield api
    finally:
        api.close()

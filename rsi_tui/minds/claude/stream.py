"""One answer of the Messages API, put together from its stream of events; also as far as it came when the stream was cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rsi_tui.journal.facts import TokenFacts

CHARACTERS_A_TOKEN = 3
"""of text and code, on the safe side: what a token holds at the least on average"""


def estimated_tokens(text: str) -> int:
    """Tokens of a text, estimated high; the API alone can count them."""
    return len(text.encode("utf-8", "surrogateescape")) // CHARACTERS_A_TOKEN + 1


@dataclass(frozen=True)
class ToolUse:
    """A tool that the model asks for."""

    id: str
    name: str
    input: dict[str, Any] | None
    """None where what it wrote is no JSON object"""
    raw: str


@dataclass
class Reply:
    """What has arrived of one answer."""

    blocks: list[dict[str, Any]] = field(default_factory=list)
    """content blocks, as they are sent back in the next request"""
    stop_reason: str = ""
    complete: bool = False
    """the stream came to its end"""
    tokens: TokenFacts = field(default_factory=TokenFacts)
    raws: dict[int, str] = field(default_factory=dict)
    """by index of a block: JSON of its input as it was written"""

    @property
    def text(self) -> str:
        return "".join(str(block["text"]) for block in self.blocks if block.get("type") == "text").strip()

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        found = []
        for index, block in enumerate(self.blocks):
            if block.get("type") == "tool_use":
                raw = self.raws.get(index, "")
                found.append(ToolUse(block["id"], block["name"], _object(raw) if raw else dict(block["input"]), raw))
        return tuple(found)

    def take(self, event: Mapping[str, Any]) -> str:
        """Take in one event; returns what it adds to the text that a person reads."""
        kind = event["type"]
        if kind == "message_start":
            self._count(event["message"].get("usage") or {})
        elif kind == "content_block_start":
            self.blocks.append(dict(event["content_block"]))
            if self.blocks[-1].get("type") == "tool_use":
                return f" [{self.blocks[-1]['name']}] "
        elif kind == "content_block_delta":
            return self._grow(int(event["index"]), event["delta"])
        elif kind == "content_block_stop":
            self._close(int(event["index"]))
        elif kind == "message_delta":
            self.stop_reason = event["delta"].get("stop_reason") or ""
            self._count(event.get("usage") or {})
        elif kind == "message_stop":
            self.complete = True
        return ""

    def cut_off(self) -> TokenFacts:
        """What it took up to a cut: as told, and an estimate of the output that arrived before its count."""
        arrived = "".join(json.dumps(block) for block in self.blocks) + "".join(self.raws.values())
        told = self.tokens
        untold = max(0, estimated_tokens(arrived) - told.output) if self.blocks and not self.stop_reason else 0
        return told.model_copy(update={"untold": untold})

    def _count(self, usage: Mapping[str, Any]) -> None:
        names = {
            "input": "input_tokens", "output": "output_tokens", "cache_write": "cache_creation_input_tokens",
            "cache_read": "cache_read_input_tokens",
        }  # fmt: skip
        told = {mine: int(usage[theirs]) for mine, theirs in names.items() if usage.get(theirs) is not None}
        self.tokens = self.tokens.model_copy(update=told)

    def _grow(self, index: int, delta: Mapping[str, Any]) -> str:
        block = self.blocks[index]
        kind = delta["type"]
        if kind == "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
            return str(delta["text"])
        if kind == "input_json_delta":
            self.raws[index] = self.raws.get(index, "") + delta["partial_json"]
        elif kind == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        return ""

    def _close(self, index: int) -> None:
        raw = self.raws.get(index, "")
        if raw and self.blocks[index].get("type") == "tool_use":
            self.blocks[index]["input"] = _object(raw) or {}


def _object(raw: str) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

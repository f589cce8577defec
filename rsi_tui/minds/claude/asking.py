"""One bounded question to a role, until its answer fits its schema or there is no use in asking again.

What is wrong with an answer goes into the next prompt as a reason. A refusal is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rsi_tui.journal.events import Role
from rsi_tui.minds.claude.calls import Answer, Calls, Outcome, Question
from rsi_tui.minds.claude.prompts import prompt
from rsi_tui.minds.claude.quoting import quote
from rsi_tui.minds.claude.redact import Redactor
from rsi_tui.minds.claude.schemas import Told, read_answer, tools_of
from rsi_tui.minds.claude.stream import Reply

MAX_ASKED = 3
MOST_OUTPUT = 64_000
Check = Callable[[Told], str]
"""what in an answer can't be, though it fits its schema; '' when nothing"""


class NoAnswer(Exception):
    """A role gave no answer of use; the message says why, one sentence."""


def ask(
    calls: Calls,
    redact: Redactor,
    role: Role,
    direction: str,
    build: Callable[[int], tuple[str, str]],
    check: Check = lambda told: "",
    retrieved: tuple[str, ...] = (),
) -> Told:
    """The answer of a role. `build(level)` gives the stable and the changing part of the prompt, shorter by each level.

    Raises NoAnswer, BudgetError, MindError.
    """
    level, most, why = 0, calls.role(role).max_output_tokens, ""
    turns: list[dict[str, Any]] = []
    for _ in range(MAX_ASKED):
        stable, rest = (redact(text) for text in build(level))
        opening = {"role": "user", "content": [
            {"type": "text", "text": stable, "cache_control": calls.cache_control}, {"type": "text", "text": rest},
        ]}  # fmt: skip
        question = Question(role, direction, prompt(role), tools_of(role), (opening, *turns), most, retrieved, reusable=True)
        found: list[Told] = []
        answer = calls.ask(question, lambda reply: _judge(role, reply, check, found))  # noqa: B023 - used within the loop alone
        if answer.outcome == "answered":
            return found[0]
        why = f"{answer.outcome.replace('_', ' ')}: {answer.detail}"
        if answer.outcome == "refused":
            break
        if answer.outcome == "too_long":
            level += 1
        elif answer.outcome == "truncated":
            most = min(MOST_OUTPUT, 2 * most)
        else:
            turns += repair(answer)
    raise NoAnswer(f"the model gave the {role} no answer of use ({why})")


def repair(answer: Answer) -> list[dict[str, Any]]:
    """The turns that tell the model what was wrong with its answer."""
    reply = answer.reply
    if not reply.blocks:
        return [{"role": "assistant", "content": [{"type": "text", "text": "(empty)"}]}, _told(answer.detail)]
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "is_error": True, "content": quote(answer.detail, "why it can't be used")} for use in reply.tool_uses
    ]
    said = {"role": "user", "content": results} if results else _told(answer.detail)
    return [{"role": "assistant", "content": reply.blocks}, said]


def _told(detail: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": f"{quote(detail, 'why it can not be used')}\n\nThat can't be used. Call one of the tools."}]}


def common_trouble(reply: Reply) -> tuple[Outcome, str] | None:
    """What may be wrong with any answer: refused, cut short, empty; None when it may be read."""
    if reply.stop_reason == "refusal":
        return "refused", "the model declines to answer"
    if reply.stop_reason == "max_tokens":
        return "truncated", "the answer reached its limit of tokens"
    if reply.stop_reason == "model_context_window_exceeded":
        return "too_long", "prompt and answer together are too long for the model"
    if not reply.tool_uses and not reply.text:
        return "empty", "the answer was empty"
    return None


def _judge(role: Role, reply: Reply, check: Check, found: list[Told]) -> tuple[Outcome, str]:
    if (trouble := common_trouble(reply)) is not None:
        return trouble
    uses = reply.tool_uses
    if len(uses) != 1:
        return "malformed", "the answer calls no tool" if not uses else f"the answer calls {len(uses)} tools, not one"
    try:
        told = read_answer(role, uses[0].name, uses[0].input, uses[0].raw)
    except ValueError as error:
        return "malformed", str(error)
    if wrong := check(told):
        return "malformed", wrong
    found.append(told)
    return "answered", ""

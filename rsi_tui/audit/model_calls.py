"""Calls to a model in words: who was asked for what, with which prompt, what came of it, and what it cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rsi_tui.audit import words
from rsi_tui.journal.events import ModelCalled
from rsi_tui.journal.facts import TokenFacts
from rsi_tui.journal.view import CampaignView, ModelCallView

ANSWER_CHARACTERS = 160


def calls_about(view: CampaignView, about: Iterable[str]) -> list[ModelCallView]:
    """The calls that decisions of these ids were asked for, oldest first."""
    wanted = set(about)
    return [known for known in view.model_calls if known.before in wanted]


def lines_of(calls: Sequence[ModelCallView]) -> list[str]:
    """Each call in a few lines."""
    lines = []
    for known in calls:
        call = known.event
        lines.append(f"{call.call} {call.role} ({call.model}), for {known.before or 'nothing yet'}: {_outcome(call)}")
        lines.append(f"  prompt {call.prompt}")
        lines.append(f"  shown from the library: {', '.join(call.retrieved) or 'nothing'}")
        lines += [f"  answer: {words.one_line(said, ANSWER_CHARACTERS)}" for said in _said(call.answer)]
        lines.append(f"  {tokens_words(call.tokens)}; {money_words(call.usd)}{_trouble(call)}")
    return lines


def summary(view: CampaignView) -> dict[str, Any]:
    """All calls of a campaign: number, tokens, cost, by role and direction too."""
    calls = [known.event for known in view.model_calls]
    roles = sorted({call.role for call in calls})
    by_role = {role: _sum([call for call in calls if call.role == role]) for role in roles}
    directions = dict.fromkeys(call.direction for call in calls)
    by_direction = {name or "none": _sum([call for call in calls if call.direction == name]) for name in directions}
    return {**_sum(calls), "by_role": by_role, "by_direction": by_direction}


def summary_words(view: CampaignView) -> str:
    """One sentence without its end."""
    found = summary(view)
    if not found["calls"]:
        return "no language model was asked"
    roles = ", ".join(f"{role} {part['calls']}" for role, part in found["by_role"].items())
    tokens = TokenFacts.model_validate(found["tokens"])
    return f"{words.plural(found['calls'], 'call')} to a language model ({roles}), {tokens_words(tokens)}, {money_words(found['usd'])}"


def tokens_words(tokens: TokenFacts) -> str:
    """Tokens in and out, and how much of the prompt came from the cache."""
    sent = tokens.input + tokens.cache_write + tokens.cache_read
    share = f", {100 * tokens.cache_read / sent:.0f} % of them from the cache" if sent else ""
    untold = f" and about {tokens.untold:,} that were cut off" if tokens.untold else ""
    return f"{sent:,} tokens in{share}, {tokens.output:,} out{untold}"


def money_words(usd: float | None) -> str:
    return "price not known" if usd is None else f"${usd:.4f} at list prices"


def _said(answer: str) -> list[str]:
    """An answer's parts: what was written, and each tool with its input."""
    try:
        blocks = json.loads(answer or "[]")
    except ValueError:
        return [answer]  # cut off where it was too long
    return [str(block.get("text") or f"{block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}") for block in blocks]


def _outcome(call: ModelCalled) -> str:
    if call.reused:
        return f"the answer of {call.reused} was used once more"
    return call.outcome.replace("_", " ") + (f" ({words.one_line(call.detail, 200)})" if call.detail else "")


def _trouble(call: ModelCalled) -> str:
    if not call.attempts:
        return ""
    return f"; {words.plural(len(call.attempts) + 1, 'attempt')}, {call.waited_s:.0f} s waited (last trouble: {words.one_line(call.attempts[-1], 80)})"


def _sum(calls: Sequence[ModelCalled]) -> dict[str, Any]:
    tokens = sum((call.tokens for call in calls), TokenFacts())
    priced = [call.usd for call in calls if call.usd is not None]
    sent = [call for call in calls if call.tokens.total or call.attempts]
    return {"calls": len(sent), "tokens": tokens.model_dump(), "usd": sum(priced, 0.0) if len(priced) == len(calls) else None}

"""The Executor as an agent: it reads, edits, tries and submits, turn by turn, in a private copy of the program.

Nothing of an unfinished change leaves the workbench. Turns are bounded; a tool that is called again and again with the
same input on the same files is a loop and ends it. A change is taken only if it parses and the program takes two steps.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rsi_tui.contract.model import KnobValue
from rsi_tui.errors import GateError, PatchError
from rsi_tui.minds.claude import briefing
from rsi_tui.minds.claude.asking import NoAnswer, common_trouble, repair
from rsi_tui.minds.claude.calls import Answer, Calls, Outcome, Question
from rsi_tui.minds.claude.prompts import prompt
from rsi_tui.minds.claude.quoting import quote
from rsi_tui.minds.claude.redact import Redactor
from rsi_tui.minds.claude.schemas import (
    CreateFile,
    EditFile,
    GiveUp,
    ListFiles,
    ProfileRun,
    ReadFile,
    RunCommand,
    Search,
    Submit,
    Told,
    read_answer,
    tools_of,
)
from rsi_tui.minds.claude.smoke import profiled, runs
from rsi_tui.minds.claude.stream import Reply, ToolUse
from rsi_tui.minds.claude.workbench import Workbench
from rsi_tui.minds.protocol import ChangeAnswer, ExecutorBrief

SAME_CALL = 4
"""times that one tool may be called with the same input on the same files"""
TROUBLES = 3
"""unusable answers in a row after which the change is given up"""
MOST_OUTPUT = 64_000
KEPT_TURNS = 4
"""messages whose tool results stay when room must be made"""


@dataclass
class _Episode:
    """One change in the making, as the conversation about it stands."""

    bench: Workbench
    brief: ExecutorBrief
    messages: list[dict[str, Any]]
    most: int
    seen: Counter[str] = field(default_factory=Counter)
    troubles: int = 0
    submitted: ChangeAnswer | None = None
    given_up: str = ""


def execute(calls: Calls, redact: Redactor, bench: Workbench, brief: ExecutorBrief, max_turns: int, why: str = "") -> ChangeAnswer:
    """The submitted change; `why` says what a known technique could not do. Raises NoAnswer, BudgetError, MindError."""
    stable = redact(briefing.program(brief.contract, brief.profile, brief.sources))
    task = redact(briefing.for_executor(brief)) + (f"\n\nA codemod could not do it:\n{quote(why, 'the reason')}" if why else "")
    first = {"role": "user", "content": [
        {"type": "text", "text": stable, "cache_control": calls.cache_control}, {"type": "text", "text": task},
    ]}  # fmt: skip
    episode = _Episode(bench, brief, [first], calls.role("executor").max_output_tokens)
    for _ in range(max_turns):
        answer = calls.ask(_question(calls, episode), _judge)
        _take(episode, answer, redact)
        if episode.submitted is not None:
            return episode.submitted
        if episode.given_up:
            raise NoAnswer(episode.given_up)
    raise NoAnswer(f"the Executor came to no end within {max_turns} turns")


def _question(calls: Calls, episode: _Episode) -> Question:
    direction = episode.brief.direction.id if episode.brief.direction else ""
    messages = _marked(episode.messages, calls.cache_control)
    return Question("executor", direction, prompt("executor"), tools_of("executor"), messages, episode.most)


def _marked(messages: list[dict[str, Any]], mark: dict[str, str]) -> tuple[dict[str, Any], ...]:
    """The conversation with a mark at its end, so that the next turn finds all of it in the cache."""
    last = messages[-1]
    content = [*last["content"][:-1], {**last["content"][-1], "cache_control": mark}]
    return (*messages[:-1], {**last, "content": content})


def _judge(reply: Reply) -> tuple[Outcome, str]:
    if (trouble := common_trouble(reply)) is not None:
        return trouble
    if not reply.tool_uses:
        return "malformed", "the answer calls no tool"
    for use in reply.tool_uses:
        try:
            read_answer("executor", use.name, use.input, use.raw)
        except ValueError as error:
            return "malformed", str(error)
    return "answered", ""


def _take(episode: _Episode, answer: Answer, redact: Redactor) -> None:
    """Carry on the conversation by one answer."""
    outcome = answer.outcome
    episode.troubles = 0 if outcome == "answered" else episode.troubles + 1
    if outcome == "refused" or episode.troubles >= TROUBLES:
        episode.given_up = f"the model gave the executor no answer of use ({outcome.replace('_', ' ')}: {answer.detail})"
    elif outcome == "truncated":
        episode.most = min(MOST_OUTPUT, 2 * episode.most)
    elif outcome == "too_long":
        _make_room(episode)
    elif answer.reply.tool_uses:
        results = [_result(episode, use, redact) for use in answer.reply.tool_uses]
        episode.messages += [{"role": "assistant", "content": answer.reply.blocks}, {"role": "user", "content": results}]
    else:
        episode.messages += repair(answer)


def _make_room(episode: _Episode) -> None:
    """Leave out what old tool calls returned."""
    for message in episode.messages[1:-KEPT_TURNS]:
        for block in message["content"]:
            if block["type"] == "tool_result":
                block["content"] = "(left out to make room; call the tool again where it is needed)"


def _result(episode: _Episode, use: ToolUse, redact: Redactor) -> dict[str, Any]:
    wrong = False
    try:
        told = read_answer("executor", use.name, use.input, use.raw)
        _count(episode, use)
        said = _do(episode, told)
        text = quote(redact(said), f"what {use.name} returned")
    except (ValueError, PatchError, GateError, OSError) as error:
        text, wrong = quote(redact(str(error)), f"why {use.name} was refused"), True
    return {"type": "tool_result", "tool_use_id": use.id, "content": text, **({"is_error": True} if wrong else {})}


def _count(episode: _Episode, use: ToolUse) -> None:
    state = json.dumps([use.name, use.input, episode.bench.changed], sort_keys=True)
    digest = hashlib.sha256(state.encode("utf-8", "surrogateescape")).hexdigest()
    episode.seen[digest] += 1
    if episode.seen[digest] > SAME_CALL:
        episode.given_up = f"the Executor goes in circles: {use.name} was called {episode.seen[digest]} times with the same input"
    if episode.seen[digest] > 1 and use.name != "run_command":
        raise PatchError("this very call was made before, and nothing has changed since; its result stands above")


def _do(episode: _Episode, told: Told) -> str:
    bench = episode.bench
    if isinstance(told, ListFiles):
        return bench.list_files()
    if isinstance(told, ReadFile):
        return bench.read_file(told.path, told.first, told.last)
    if isinstance(told, Search):
        return bench.search(told.text)
    if isinstance(told, EditFile):
        return bench.edit_file(told.path, told.old, told.new)
    if isinstance(told, CreateFile):
        return bench.create_file(told.path, told.text)
    if isinstance(told, RunCommand):
        return bench.run(told.command, told.seconds)
    if isinstance(told, ProfileRun):
        return profiled(bench, episode.brief.contract, episode.brief.parent_knobs, told.steps)
    if isinstance(told, GiveUp):
        episode.given_up = f"the Executor gave up: {told.reason}"
        return "given up"
    assert isinstance(told, Submit)
    return _submit(episode, told)


def _submit(episode: _Episode, told: Submit) -> str:
    """Take the change, or say why it can't be taken yet."""
    bench, brief = episode.bench, episode.brief
    wanted: dict[str, KnobValue] = {**brief.hypothesis.knobs, **{knob.name: knob.value for knob in told.knobs}}
    knobs = {name: value for name, value in wanted.items() if brief.parent_knobs.get(name) != value}
    if not bench.changed and not knobs:
        raise PatchError("nothing is changed yet, neither files nor settings")
    for name, value in knobs.items():
        known = next((knob for knob in brief.contract.knobs if knob.name == name), None)
        if known is None or value not in known.values:
            raise PatchError(f"{name} = {value} is no setting of the contract")
    for path, text in bench.changed.items():
        if path.endswith(".py"):
            _check_syntax(path, text)
    if trouble := runs(bench, brief.contract, {**brief.parent_knobs, **knobs}):
        raise PatchError(f"the program does not run with this change: {trouble}")
    affects = ("precision",) if told.rounds_otherwise else ()
    episode.submitted = ChangeAnswer(sources=bench.changed, knobs=knobs, affects=affects, note=told.note)
    return "taken"


def _check_syntax(path: str, text: str) -> None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise PatchError(f"{path} line {line} is no valid Python: {getattr(error, 'msg', error)}") from error

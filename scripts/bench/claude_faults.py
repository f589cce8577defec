"""Fault scenarios for the claude mind: whole campaigns on the simulated machine, the real client, a local Messages API.

Each scenario says how its campaign must end; whatever the fault, the ledger must hold what the server told to the
token, and every candidate that was built must be the whole of a change or none of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rsi_tui.config import ClaudeSettings
from rsi_tui.errors import BudgetError, MindError
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CandidateBuilt, CandidateRefused, Event, ModelCalled, SearchEnded
from rsi_tui.journal.facts import TokenFacts
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request
from rsi_tui.minds.claude.asking import ask
from rsi_tui.minds.claude.mind import ClaudeMind
from rsi_tui.minds.claude.redact import Redactor
from tests.support.claude_script import Answer, Play, edits, hypothesis, tool
from tests.support.messages_api import KEY, MessagesApi, Script, Status, Text, Tool, Turn, messages_api
from tests.support.model import Journal, Jumping, lodged, room
from tests.support.simulated import simulated, simulated_repository

END_OF_MODEL = "        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n"
FIRST = ("model.py", END_OF_MODEL, END_OF_MODEL + "\n\nEFFECT_1 = -0.10\n")
SECOND = ("train.py", "batch_size = 4\n", "batch_size = 4\nEFFECT_2 = -0.06\n")
WHOLE = ("EFFECT_1 = -0.10", "EFFECT_2 = -0.06")
"""one change in two files: a candidate with one of them alone is half-applied"""


def change() -> list[Answer]:
    return edits(FIRST, SECOND)


@dataclass
class Scenario:
    """A fault, and what must come of the campaign."""

    name: str
    play: Callable[[Jumping], Script]
    end: str
    """proven: the change is; ends: the campaign finishes without it; resumed: it stops, and is proven once resumed"""
    settings: dict[str, Any] = field(default_factory=dict)
    usd: float | None = None
    context_tokens: int = 0
    reason: str = ""
    """words that the record must hold"""
    exit_code: int = 0


@dataclass(frozen=True)
class Result:
    """How a scenario went."""

    name: str
    as_it_should: bool
    exact: bool
    whole: bool
    note: str = ""


def on(role: str, *faults: Turn | Status, times: int = 1, **roles: list[Answer]) -> Callable[[Jumping], Script]:
    """A play in which a role's first answers are these, each so many times."""

    def make(waiting: Jumping) -> Script:
        left = [fault for fault in faults for _ in range(times)]
        play = Play(executor=roles.get("executor", change()))
        play.before = lambda asked: left.pop(0) if left and asked.role == role else None
        return play

    return make


def _storm(waiting: Jumping) -> Script:
    play = Play(executor=change())
    play.before = lambda asked: Status(429) if waiting.now < 3600 else None
    return play


def _revoked(status: Status) -> Callable[[Jumping], Script]:
    """The reviewer's calls fail until the campaign was stopped once."""

    def make(waiting: Jumping) -> Script:
        play = Play(executor=change())
        play.before = lambda asked: status if asked.role == "reviewer" else None
        return play

    return make


EXTRA = tool("open_direction", question="Is it?", speed_up=2.0)
CUTS = ("message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "end")
EDIT = Turn((Tool("edit_file", {"path": FIRST[0], "old": FIRST[1], "new": FIRST[2]}),))


def scenarios() -> list[Scenario]:
    """All of them."""
    reads: list[Answer] = [tool("read_file", path="model.py", first=n) for n in range(1, 14)]
    return [
        Scenario("429 for an hour", _storm, "proven"),
        Scenario("429 with Retry-After", on("director", Status(429, retry_after="90")), "proven"),
        Scenario("529 five times", on("selector", Status(529), times=5), "proven"),
        Scenario("500 three times", on("executor", Status(500), times=3), "proven"),
        *(Scenario(f"stream cut after {cut}", on("executor", Turn(EDIT.blocks, cut_after=cut)), "proven") for cut in CUTS),
        Scenario("error in a stream, at its begin", on("executor", Turn(EDIT.blocks, error_after="message_start")), "proven"),
        Scenario("error in a stream, within a block", on("reviewer", Turn(EDIT.blocks, error_after="content_block_delta")), "proven"),
        Scenario("wrong schema once", on("director", EXTRA), "proven"),
        Scenario("wrong schema for ever", on("director", EXTRA, times=99), "ends", reason="no answer of use"),
        Scenario("no JSON from the Executor", on("executor", Turn((Tool("edit_file", raw='{"path": "model.py", "old'),))), "proven"),
        Scenario("no JSON from the Selector", on("selector", Turn((Tool("write_hypothesis", raw="{{"),))), "proven"),
        Scenario("words in place of a tool", on("reviewer", Turn((Text("Looks fine to me."),))), "proven"),
        Scenario("empty answer", on("selector", Turn((), thinking="")), "proven"),
        Scenario("cut short by max_tokens", on("executor", Turn((Text("Let me"),), stop="max_tokens")), "proven"),
        Scenario("max_tokens for ever", on("director", Turn((Text("Let me"),), stop="max_tokens"), times=99), "ends", reason="truncated"),
        Scenario("refusal of the Executor", on("executor", Turn((Text("No."),), stop="refusal")), "ends", reason="declines"),
        Scenario("refusal of the Reviewer", on("reviewer", Turn((Text("No."),), stop="refusal")), "proven"),
        Scenario("refusal of the Director", on("director", Turn((Text("No."),), stop="refusal")), "ends", reason="declines"),
        Scenario("tool loop after an edit", on("executor", EDIT, *[tool("list_files")] * 9), "ends", reason="circles"),
        Scenario("unknown parent", on("selector", hypothesis(parent="c99")), "proven"),
        Scenario("ambiguous and missing context", on("executor", tool("edit_file", path="train.py", old="step", new="x"), tool("edit_file", path="train.py", old="nowhere", new="x")), "proven"),
        Scenario("conversation too long", on("nobody", executor=[*reads, *change()]), "proven", context_tokens=9000),
        Scenario("prompt too long for any answer", on("nobody"), "ends", context_tokens=2000, reason="too long"),
        Scenario("calls used up in the middle of a change", on("nobody"), "ends", settings={"max_calls": 4}, reason="model calls", exit_code=5),
        Scenario("dollars used up in the middle of a change", on("nobody"), "ends", usd=0.82, reason="left of", exit_code=5),
        Scenario("price not known, tokens capped", on("nobody"), "proven", settings={"model": "a-gateway-model", "max_tokens": 2_000_000}),
        Scenario("key revoked, then mended", _revoked(Status(401, "revoked")), "resumed"),
        Scenario("no answer for longer than patience", _revoked(Status(529)), "resumed", settings={"patience_s": 1800.0}),
    ]  # fmt: skip


def play_out(scenario: Scenario, folder: Path) -> Result:
    """Run a scenario's campaign and look at its record."""
    waiting = Jumping()
    script = scenario.play(waiting)
    with messages_api(script) as api, simulated():
        api.context_tokens = scenario.context_tokens or api.context_tokens
        home = Home(folder / "home")
        place = simulated_repository(folder / "program")
        settings = ClaudeSettings.model_validate({"base_url": api.url, **scenario.settings})
        stopped = ""
        try:
            ended = run(home, Request(place, preset="simulated", mind="claude", usd=scenario.usd), _mind(settings, waiting))
        except MindError as error:
            stopped = str(error)
            if isinstance(script, Play):
                script.before = lambda asked: None
            ended = run(home, Request(place, preset="simulated", resume=True), _mind(settings, waiting))
        events = read_events(home.campaign(ended.campaign).journal)
    view = CampaignView().feed_all(events)
    proven = view.claim is not None and view.claim.proven and all(mark in view.candidates[view.claim.candidate].diff for mark in WHOLE)
    right = ended.state == "finished" and ended.exit_code == scenario.exit_code and {
        "proven": proven and not stopped, "ends": view.claim is None and not stopped, "resumed": proven and bool(stopped),
    }[scenario.end]  # fmt: skip
    if scenario.reason:
        right = right and scenario.reason in _reasons(events)
    right = right and not api.account.refused
    note = f"{ended.state}, {'proven' if proven else 'nothing proven'}; {stopped or _reasons(events)}"[:300]
    return Result(scenario.name, right, _exact(events, api), _whole(events), note)


def _mind(settings: ClaudeSettings, waiting: Jumping) -> ClaudeMind:
    return ClaudeMind(settings, lambda lent: waiting)  # type: ignore[arg-type, return-value]


def _reasons(events: list[Event]) -> str:
    """What the record says of why things came to nothing."""
    found = [b.reason for e in events if isinstance(b := e.body, CandidateRefused | SearchEnded)]
    return "; ".join(found)


def _exact(events: list[Event], api: MessagesApi) -> bool:
    """Does the ledger hold what the server told?"""
    calls = [event.body for event in events if isinstance(event.body, ModelCalled)]
    return told(sum((call.tokens for call in calls), TokenFacts()), api)


def told(tokens: TokenFacts, api: MessagesApi) -> bool:
    account = api.account.told
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return (tokens.input, tokens.cache_write, tokens.cache_read, tokens.output) == tuple(account[name] for name in names)


def _whole(events: list[Event]) -> bool:
    """Is every candidate with new code all of the change?"""
    diffs = [event.body.diff for event in events if isinstance(event.body, CandidateBuilt) and event.body.diff]
    return all(sum(mark in diff for mark in WHOLE) in (0, len(WHOLE)) for diff in diffs)


def four_at_once(folder: Path) -> Result:
    """Four parallel calls on a budget that is enough for some of them."""
    lesson = tool("write_lesson", text="It saved a little where the width was small.")
    journal = Journal()
    with messages_api(lambda asked: lesson) as api:
        lent = room(folder, journal)
        mind = lodged(api, lent, max_usd=0.1)

        def one(number: int) -> bool:
            try:
                ask(mind.calls, Redactor({}), "scribe", "d1", lambda level: ("Stable.", f"number {number}"))
            except BudgetError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            answered = list(pool.map(one, range(16)))
        total = mind.calls.ledger.total
        right = any(answered) and total.usd <= 0.1 and not api.account.refused
        exact = told(total.tokens, api)
        mind.leave()
    return Result("budget reached by four parallel calls", right, exact, True, f"{sum(answered)} of 16 answered, ${total.usd:.4f}")


def run_all(first: int = 0, end: int | None = None, every: int = 1) -> list[Result]:
    """The scenarios from the first to before the end, each so many, and the one of parallel calls."""
    os.environ["ANTHROPIC_API_KEY"] = KEY
    results = []
    for scenario in scenarios()[first:end:every]:
        with tempfile.TemporaryDirectory() as folder:
            results.append(play_out(scenario, Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        results.append(four_at_once(Path(folder)))
    return results

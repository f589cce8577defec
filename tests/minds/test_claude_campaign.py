"""Whole campaigns under `--mind claude`: the real engine and the real client, a scripted model behind a local API."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rsi_tui.audit import reading
from rsi_tui.audit.verify import verify_target
from rsi_tui.errors import MindError
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import (
    CandidateBuilt,
    CandidateRefused,
    Event,
    HypothesisWritten,
    ModelCalled,
    SearchEnded,
)
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop.engine import Ended, run
from rsi_tui.loop.setup import Request
from tests.support.claude_script import CLOSE, END, PASS, Play, direction, edits, hypothesis, tool
from tests.support.messages_api import KEY, Asked, MessagesApi, Status, messages_api
from tests.support.simulated import simulated, simulated_repository

END_OF_MODEL = "        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n"
FASTER = ("model.py", END_OF_MODEL, END_OF_MODEL + "\n\nEFFECT_1 = -0.16\n")
@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def at_home(folder: Path, api: MessagesApi, more: str = "") -> Home:
    """A home whose settings lead to a local server."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f'[claude]\nbase_url = "{api.url}"\n{more}')
    return Home(folder)


def events_of(home: Home, ended: Ended) -> list[Event]:
    return read_events(home.campaign(ended.campaign).journal)


def bodies(events: list[Event], kind: type) -> list:  # type: ignore[type-arg]
    return [event.body for event in events if isinstance(event.body, kind)]


def every_file(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_campaign_writes_a_patch_proves_it_and_can_say_why(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude", usd=5.0))
    assert (ended.state, ended.exit_code) == ("finished", 0), ended.sentence
    assert api.account.refused == []
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    assert view.claim is not None and view.claim.proven and view.claim.candidate == "c1"
    calls = bodies(events, ModelCalled)
    paid = [call.role for call in calls if not call.reused]
    assert paid[:6] == ["director", "selector", "executor", "executor", "executor", "reviewer"]
    assert sorted(paid[6:]) == ["director", "scribe"], "the next direction is thought of while the lesson is written"
    told = api.account.told
    assert sum(call.tokens.output for call in calls) == told["output_tokens"]
    assert sum(call.tokens.input for call in calls) == told["input_tokens"]

    why = reading.why(home, "c1")
    for call in calls[:6]:
        assert call.call in why and call.prompt in why
    assert "tokens in" in why and "$" in why and "edit_file" in why
    data = json.loads(reading.why(home, "c1", as_json=True))
    assert [call["for"] for call in data["model_calls"]] == ["d1", "h1", "h1", "h1", "h1", "c1", "d1"]
    report = json.loads(reading.report(home, ended.campaign, "json"))
    assert report["mind"]["calls"] == 8 and report["mind"]["usd"] > 0 and set(report["mind"]["by_role"]) >= {"director", "executor"}
    assert verify_target(home, ended.campaign).follows
    assert KEY.encode() not in every_file(tmp_path)


def test_roles_can_be_mixed_with_the_builtin_mind(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    others = "".join(f'[claude.{role}]\nmind = "builtin"\n' for role in ("director", "selector", "reviewer", "scribe"))
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api, others)
        ended = run(home, Request(place, preset="simulated", mind="claude", candidates=2))
        assert ended.state == "finished" and api.account.requests == []
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "second", api, "".join(f'[claude.{role}]\nmind = "builtin"\n' for role in ("reviewer", "scribe")))
        ended = run(home, Request(place, preset="simulated", mind="claude", candidates=2))
    roles = {call.role for call in bodies(events_of(home, ended), ModelCalled)}
    assert ended.state == "finished" and roles == {"director", "selector", "executor"}


def test_money_that_runs_out_ends_the_search_and_not_the_proof(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(
        director=[direction(budget=3), tool("end_search", reason="not reached")],
        selector=[hypothesis(), hypothesis(statement="A second pass over the parameters is left out as well.")],
        executor=[*edits(FASTER), *edits(("model.py", "import math\n", "import math\n\nEFFECT_2 = -0.05\n"))],
    )
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api, "max_calls = 6\n")
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert len([call for call in bodies(events, ModelCalled) if call.tokens.total]) == 6
    assert view.claim is not None and view.claim.proven
    assert "model calls" in bodies(events, SearchEnded)[-1].reason


def test_a_direction_that_has_had_its_share_does_not_end_the_campaign(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(
        director=[direction(), direction(question="Can the batches be made cheaper by new code?"), END],
        selector=[hypothesis(), hypothesis(statement="A second pass over the parameters is left out as well.")],
        executor=[*[tool("read_file", path="train.py", first=n) for n in range(1, 4)], *edits(FASTER)],
    )
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api, "max_calls_per_direction = 4\n")
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert "of the direction are used up" in bodies(events, CandidateRefused)[0].reason
    assert [body.direction for body in bodies(events, CandidateBuilt)] == ["d2"]


def test_money_that_runs_out_before_anything_is_proven_is_exit_code_5(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude", usd=0.2))
    assert (ended.state, ended.exit_code) == ("finished", 5) and "money" in ended.sentence
    assert bodies(events_of(home, ended), CandidateBuilt) == [] and api.account.requests == []


def test_a_campaign_that_lost_its_api_is_resumed_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(executor=edits(FASTER), before=lambda asked: Status(401, "revoked") if asked.role == "reviewer" else None)
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api)
        with pytest.raises(MindError, match="resume"):
            run(home, Request(place, preset="simulated", mind="claude"))
        asked = len(api.account.requests)
        play.before = lambda asked: None
        ended = run(home, Request(place, preset="simulated", resume=True))
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert len(bodies(events_of(home, ended), CandidateBuilt)) == 1, "nothing was built twice"
    assert next(a.role for a in api.account.requests[asked:]) == "reviewer"
    calls = bodies(events_of(home, ended), ModelCalled)
    assert sum(call.tokens.output for call in calls) == api.account.told["output_tokens"]


def test_a_change_that_can_not_be_made_is_refused_with_the_reason_for_the_next_round(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(
        director=[direction(budget=2), tool("end_search", reason="all was tried")],
        selector=[hypothesis(), hypothesis(statement="The loop over batches is unrolled, which saves a little."), tool("close_direction", reason="tried")],
        executor=[tool("give_up", reason="the optimizer is compiled elsewhere"), *edits(FASTER)],
    )
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    assert [body.reason for body in bodies(events, CandidateRefused)] == ["the Executor gave up: the optimizer is compiled elsewhere"]
    later = [asked for asked in api.account.requests if asked.role == "selector"][1]
    assert "the optimizer is compiled elsewhere" in later.text
    assert ended.state == "finished" and [body.hypothesis for body in bodies(events, CandidateBuilt)] == ["h2"]


TWO = [*edits(FASTER), *edits(("model.py", "import math\n", "import math\n\nEFFECT_2 = -0.05\n"))]
SECOND = hypothesis(statement="A second pass over the parameters is left out as well, which saves a little.")


def overlapping(role: str, other: str, after: int) -> tuple[Callable[[Asked], None], list[bool]]:
    """Holds a role's answer back until the other role has been asked once more than `after` times; whether that came."""
    came, met = threading.Event(), list[bool]()
    seen: Counter[str] = Counter()

    def before(asked: Asked) -> None:
        seen[asked.role] += 1
        if asked.role == other and seen[other] > after:
            came.set()
        if asked.role == role and not met:
            met.append(came.wait(20))

    return before, met


@pytest.mark.parametrize(("role", "other", "after"), [("reviewer", "selector", 1), ("scribe", "director", 1)])
def test_roles_that_do_not_wait_for_each_other_are_asked_at_once(tmp_path: Path, role: str, other: str, after: int) -> None:
    place = simulated_repository(tmp_path / "program")
    before, met = overlapping(role, other, after)
    play = Play(director=[direction(budget=2), END], selector=[hypothesis(), SECOND, CLOSE], executor=list(TWO), before=before)
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    assert (ended.state, ended.exit_code) == ("finished", 0) and met == [True]
    events = events_of(home, ended)
    calls = bodies(events, ModelCalled)
    assert [body.hypothesis for body in bodies(events, CandidateBuilt) if body.hypothesis] == ["h1", "h2"]
    assert any(call.reused and call.role == other for call in calls)
    assert sum(call.tokens.output for call in calls) == api.account.told["output_tokens"], "nothing is paid for twice"
    assert verify_target(home, ended.campaign).follows


def test_what_was_thought_of_in_vain_is_paid_for_and_not_used(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    no = tool("review", on_direction=False, exploit="no", reason="It does something else.", lines=[])
    guess = hypothesis(statement="This would follow only if the first change had passed its review.")
    play = Play(director=[direction(budget=2), END], selector=[hypothesis(), guess, SECOND, CLOSE], executor=list(TWO), reviewer=[no, PASS])
    play.before, _ = overlapping("reviewer", "selector", 1)
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    written = [body.hypothesis.statement for body in bodies(events, HypothesisWritten)]
    assert ended.state == "finished" and len(written) == 2 and "would follow only" not in written[1]
    assert sum(call.tokens.output for call in bodies(events, ModelCalled)) == api.account.told["output_tokens"]


def test_nothing_is_asked_ahead_once_half_of_the_money_is_spent(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(director=[direction(budget=2), END], selector=[hypothesis(), SECOND, CLOSE], executor=list(TWO))
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api, "max_calls = 9\n")
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    assert ended.state == "finished" and not any(call.reused for call in bodies(events_of(home, ended), ModelCalled))


def test_claude_writes_new_code_while_the_builtin_mind_selects(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    mixed = "".join(f'[claude.{role}]\nmind = "builtin"\n' for role in ("selector", "reviewer", "scribe"))
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api, mixed)
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert {call.role for call in bodies(events, ModelCalled)} == {"director", "executor"}
    assert view.claim is not None and view.claim.proven and "EFFECT_1" in view.candidates[view.claim.candidate].diff
    assert "Can new code make the parameter update cheaper?" in bodies(events, HypothesisWritten)[0].hypothesis.statement

"""Calls to a model: faults of the API, answers of no use, and a ledger that is exact to the token."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rsi_tui.errors import BudgetError, MindError, UsageError
from rsi_tui.journal.events import ModelCalled, ModelCallReserved
from rsi_tui.journal.facts import TokenFacts
from rsi_tui.minds.choose import mind_named
from rsi_tui.minds.claude.money import Caps, Ledger, price_of, prices_date
from rsi_tui.minds.claude.redact import MARK, Redactor
from tests.support.messages_api import KEY, Asked, MessagesApi, Script, Status, Text, Tool, Turn, messages_api
from tests.support.model import Journal, Jumping, lodged, room

LESSON = Turn((Tool("write_lesson", {"text": "Fusing the projections saved 3 % where the width was small."}),))

@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


class Desk:
    """One Scribe with a server of its own."""

    def __init__(self, folder: Path, api: MessagesApi, **more: object) -> None:
        self.api, self.journal, self.waiting = api, Journal(), Jumping()
        self.mind = lodged(api, room(folder, self.journal), self.waiting, **more)

    def ask(self) -> str:
        from rsi_tui.minds.claude import schemas
        from rsi_tui.minds.claude.asking import ask

        told = ask(self.mind.calls, Redactor({}), "scribe", "d1", lambda level: ("Stable.", f"Lesson? {level}"))
        assert isinstance(told, schemas.Lesson)
        return told.text

    def exact(self) -> bool:
        """Does the ledger hold what the server told, to the token?"""
        told, mine = self.api.account.told, self.mind.calls.ledger.total.tokens
        return (mine.input, mine.cache_write, mine.cache_read, mine.output) == tuple(
            told[name] for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        )


Open = Callable[..., Desk]


@pytest.fixture
def desk(tmp_path: Path) -> object:
    import contextlib

    with contextlib.ExitStack() as stack:

        def make(script: Script, **more: object) -> Desk:
            at = Desk(tmp_path, stack.enter_context(messages_api(script)), **more)
            stack.callback(at.mind.leave)
            return at

        yield make


def in_turn(*answers: Turn | Status) -> Script:
    """These answers one after the other, the last one for ever."""
    left = list(answers)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 529])
def test_a_busy_api_is_tried_again(desk: Open, code: int) -> None:
    at = desk(in_turn(Status(code), Status(code), LESSON))
    assert at.ask().startswith("Fusing")
    call = at.journal.calls[0]
    assert call.outcome == "answered" and [text.split()[0] for text in call.attempts] == [str(code)] * 2
    assert len(at.waiting.waits) == 2 and call.waited_s == sum(at.waiting.waits) and at.exact()
    assert len(at.journal.told) == 2, "each wait is said"


def test_retry_after_is_honoured(desk: Open) -> None:
    at = desk(in_turn(Status(429, retry_after="37"), LESSON))
    at.ask()
    assert at.waiting.waits == [37.0]


def test_an_hour_of_429_is_sat_out_and_longer_than_patience_ends_it(desk: Open) -> None:
    waiting: list[Jumping] = []
    at = desk(lambda asked: LESSON if waiting[0].now > 3600 else Status(429), patience_s=5400)
    waiting.append(at.waiting)
    at.ask()
    assert at.waiting.now > 3600 and len(at.journal.calls[0].attempts) > 30
    waiting[0] = Jumping()
    with pytest.raises(MindError, match="resume"):
        _again(at)


def _again(at: Desk) -> None:
    from rsi_tui.minds.claude.asking import ask

    ask(at.mind.calls, Redactor({}), "scribe", "d1", lambda level: ("Stable.", "another"))


EVENTS = ("message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "end")


@pytest.mark.parametrize("event", EVENTS)
def test_a_stream_cut_after_any_event_is_begun_anew(desk: Open, event: str) -> None:
    cut = Turn(LESSON.blocks, cut_after=event)
    at = desk(in_turn(cut, LESSON))
    assert at.ask().startswith("Fusing")
    assert "cut" in at.journal.calls[0].attempts[0] and at.exact()


@pytest.mark.parametrize("event", ["message_start", "content_block_delta"])
def test_an_error_within_a_stream_is_begun_anew(desk: Open, event: str) -> None:
    at = desk(in_turn(Turn(LESSON.blocks, error_after=event), LESSON))
    assert at.ask().startswith("Fusing") and at.exact()


@pytest.mark.parametrize(
    ("code", "says"), [(401, "key"), (403, "key"), (404, "model"), (400, "refuses the request"), (422, "refuses the request")]
)
def test_what_trying_again_can_not_mend_ends_at_once(desk: Open, code: int, says: str) -> None:
    at = desk(lambda asked: Status(code))
    with pytest.raises(MindError, match=says):
        at.ask()
    assert at.waiting.waits == [] and at.journal.calls[0].outcome == "failed"


BAD: list[tuple[str, Turn, str]] = [
    ("no tool", Turn((Text("I think that fusing helped."),)), "malformed"),
    ("no JSON", Turn((Tool("write_lesson", raw='{"text": "half'),)), "malformed"),
    ("a list", Turn((Tool("write_lesson", raw="[1, 2]"),)), "malformed"),
    ("another tool", Turn((Tool("rm_rf", {}),)), "malformed"),
    ("a field more", Turn((Tool("write_lesson", {"text": "long enough for it", "score": 3}),)), "malformed"),
    ("a wrong type", Turn((Tool("write_lesson", {"text": 7}),)), "malformed"),
    ("two calls", Turn((*LESSON.blocks, *LESSON.blocks)), "malformed"),
    ("nothing", Turn((), thinking=""), "empty"),
    ("cut short", Turn((Text("I"),), stop="max_tokens"), "truncated"),
    ("window full", Turn((Text("I"),), stop="model_context_window_exceeded"), "too_long"),
]


@pytest.mark.parametrize(("turn", "outcome"), [(turn, outcome) for _, turn, outcome in BAD], ids=[name for name, _, _ in BAD])
def test_an_answer_of_no_use_is_asked_for_again_with_the_reason(desk: Open, turn: Turn, outcome: str) -> None:
    at = desk(in_turn(turn, LESSON))
    assert at.ask().startswith("Fusing")
    assert [call.outcome for call in at.journal.calls] == [outcome, "answered"]
    assert at.api.account.refused == [], "the API takes what is sent back"
    second = at.api.account.requests[1]
    if outcome in ("malformed", "empty"):
        assert at.journal.calls[0].detail in second.text
    if outcome == "truncated":
        assert second.body["max_tokens"] == 2 * at.api.account.requests[0].body["max_tokens"]
    assert at.exact()


def test_a_refusal_is_not_asked_again_and_nothing_follows_for_ever(desk: Open) -> None:
    from rsi_tui.minds.claude.asking import NoAnswer

    at = desk(lambda asked: Turn((Text("No."),), stop="refusal"))
    with pytest.raises(NoAnswer, match="declines"):
        at.ask()
    assert len(at.api.account.requests) == 1
    at.api.script = lambda asked: Turn((Text("Hm."),))
    with pytest.raises(NoAnswer, match="no tool"):
        _again(at)
    assert len(at.api.account.requests) == 4


def test_a_prompt_that_is_too_long_is_asked_shorter(desk: Open) -> None:
    from rsi_tui.minds.claude.asking import ask

    at = desk(lambda asked: LESSON)
    at.api.context_tokens = 3000
    ask(at.mind.calls, Redactor({}), "scribe", "d1", lambda level: ("Stable.", "x" * (12_000 >> level)))
    assert [call.outcome for call in at.journal.calls] == ["too_long", "answered"]


def test_the_very_same_request_is_not_paid_twice(desk: Open) -> None:
    at = desk(lambda asked: LESSON)
    first = at.ask()
    at.mind.leave()
    at.mind = resumed = lodged(at.api, room(Path("/nowhere"), at.journal))
    assert at.ask() == first and len(at.api.account.requests) == 1
    assert at.journal.calls[-1].reused == "m1" and at.journal.calls[-1].tokens.total == 0
    assert resumed.calls.ledger.total.calls == 1 and at.exact()


def test_four_parallel_calls_share_one_budget(desk: Open) -> None:
    at = desk(lambda asked: LESSON, max_usd=0.12)  # a Scribe's call may cost $0.04 and a little
    from rsi_tui.minds.claude.asking import ask

    def one(number: int) -> str:
        try:
            ask(at.mind.calls, Redactor({}), "scribe", "d1", lambda level: ("Stable.", f"number {number}"))
        except BudgetError:
            return "budget"
        return "answered"

    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(one, range(4)))
    assert "answered" in ended
    assert at.exact() and at.mind.calls.ledger.total.usd <= 0.12
    open_at_once = 0
    held: dict[str, float] = {}
    for body in at.journal.events:
        if isinstance(body, ModelCallReserved):
            held[body.call] = body.usd or 0.0
            open_at_once = max(open_at_once, len(held))
            assert sum(held.values()) <= 0.12
        elif isinstance(body, ModelCalled):
            held.pop(body.call, None)
    assert open_at_once <= 3


def test_what_a_crash_cut_off_counts_as_spent() -> None:
    events: list[object] = []
    ledger = Ledger(Caps(usd=1.0), events.append)  # type: ignore[arg-type]
    ledger.reserve(ledger.new_call(), "director", "", "claude-opus-5-5", 1000, 0.4)
    again = Ledger(Caps(usd=1.0), events.append, tuple(events))  # type: ignore[arg-type]
    assert again.total.usd == 0.4 and again.total.tokens == TokenFacts(untold=1000) and again.new_call() == "m2"
    with pytest.raises(BudgetError, match=r"\$1"):
        again.reserve("m2", "director", "", "claude-opus-5-5", 1000, 0.7)


@pytest.mark.parametrize(
    ("caps", "says"),
    [
        (Caps(usd=0.5), r"\$0.5"), (Caps(tokens=1500), "1,500 tokens"), (Caps(calls=1), "all 1 model calls"),
        (Caps(usd_per_direction=0.5), r"\$0.5 of the direction"),
        (Caps(tokens_per_direction=1500), "1,500 tokens of the direction"), (Caps(calls_per_direction=1), "all 1 model calls of the direction"),
    ],
)  # fmt: skip
def test_each_cap_is_kept_before_anything_is_sent(caps: Caps, says: str) -> None:
    events: list[object] = []
    ledger = Ledger(caps, events.append)  # type: ignore[arg-type]
    ledger.reserve("m1", "selector", "d1", "m", 1000, 0.3)
    with pytest.raises(BudgetError, match=says):
        ledger.reserve("m2", "selector", "d1", "m", 1000, 0.3)
    assert len(events) == 1, "what does not fit is not set aside"


def test_an_unknown_price_counts_tokens_and_keeps_no_dollar_limit() -> None:
    assert price_of("some-gateway-model", 1) is None
    ledger = Ledger(Caps(usd=1.0), lambda body: None)
    with pytest.raises(BudgetError, match="price of the model is not known"):
        ledger.reserve("m1", "director", "", "some-gateway-model", 10, None)
    Ledger(Caps(usd=1.0, tokens=100), lambda body: None).reserve("m1", "director", "", "some-gateway-model", 10, None)


def test_prices_are_dated_and_names_of_providers_lead_to_them() -> None:
    assert prices_date() == "2026-12-01"
    assert price_of("anthropic.claude-opus-5-5", 1) == price_of("claude-opus-5-5@20260901", 1) == price_of("claude-opus-5-5", 1)
    price = price_of("claude-opus-5-5", 1)
    assert price is not None and price.of(TokenFacts(input=1_000_000, output=100_000)) == pytest.approx(6.0)


def test_the_key_is_nowhere_but_in_the_header(desk: Open) -> None:
    at = desk(lambda asked: Turn((Tool("write_lesson", {"text": f"The key is {KEY}, they say."}),)))
    from rsi_tui.minds.claude.asking import ask

    ask(at.mind.calls, Redactor(), "scribe", "d1", lambda level: ("Stable.", f"a log that holds {KEY}"))
    recorded = json.dumps([body.model_dump(mode="json") for body in at.journal.events])
    assert KEY not in recorded and MARK in recorded
    assert KEY.encode() not in at.api.account.raw[0] and MARK.encode() in at.api.account.raw[0]
    assert KEY not in "".join(at.journal.told)


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE", "ghp_" + "a1B2" * 9, "hf_" + "x" * 34, "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        'api_key = "abcdefghijk"', "https://user:hunter22@host/x", "xoxb-123456789012-abc",
    ],
)  # fmt: skip
def test_common_secrets_are_left_out(secret: str) -> None:
    assert MARK in Redactor({})(f"before {secret} after")


def test_innocent_text_is_left_alone() -> None:
    text = "key = self.key(x).view(B, T)\ntoken_count = tokens_per_step\nhttps://example.org/a:b@c\n"
    assert Redactor({"PATH": "/usr/bin", "MY_KEY": "short"})(text) == text


def test_without_a_key_one_sentence_says_how_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(UsageError) as said:
        mind_named("claude")
    assert "ANTHROPIC_API_KEY" in str(said.value) and str(said.value).count(". ") == 0
    assert mind_named("builtin").name == "builtin"


def test_a_model_can_not_be_asked_to_force_a_tool(desk: Open) -> None:
    at = desk(lambda asked: LESSON)
    at.ask()
    request = at.api.account.requests[0]
    assert "tool_choice" not in request.body and request.body["output_config"] == {"effort": "low"}
    assert isinstance(request, Asked) and request.role == "scribe"


def test_a_person_who_stops_the_campaign_is_heard_while_a_model_writes(desk: Open) -> None:
    class Stop(Exception):
        pass

    heard: list[int] = []

    def heed() -> None:
        heard.append(1)
        if len(heard) == 5:
            raise Stop

    at = desk(lambda asked: LESSON)
    at.mind.leave()
    at.mind = lodged(at.api, room(Path("/nowhere"), at.journal, heed=heed))
    with pytest.raises(Stop):
        at.ask()
    call = at.journal.calls[0]
    assert call.outcome == "failed" and call.tokens.input > 0, "what was told until then is in the ledger"


def test_what_a_call_says_and_waits_for_is_told_to_people_as_it_happens(desk: Open) -> None:
    turn = Turn((Text("The projections are fused."), *LESSON.blocks))
    at = desk(in_turn(Status(429, retry_after="90"), Turn(turn.blocks, cut_after="content_block_delta"), turn))
    at.ask()
    told = [(spoken.state, spoken.wait_s) for spoken in at.journal.shown if spoken.state != "writing"]
    assert [state for state, _ in told] == ["asking", "waiting", "asking", "waiting", "asking", "done"] and told[1][1] == 90.0
    last = [spoken.state for spoken in at.journal.shown][::-1].index("asking")
    assert "".join(s.text for s in at.journal.shown[-last:-1]).split() == ["The", "projections", "are", "fused.", "[write_lesson]"]
    assert {(s.call, s.role, s.direction) for s in at.journal.shown} == {("m1", "scribe", "d1")}
    assert "429" in at.journal.shown[1].text


def test_a_key_that_comes_in_pieces_is_not_shown(desk: Open) -> None:
    at = desk(in_turn(Turn((Text("x" * 195 + f" {KEY} and so on"), *LESSON.blocks))))
    at.ask()
    assert KEY not in "".join(s.text for s in at.journal.shown) and MARK in "".join(s.text for s in at.journal.shown)


def test_a_long_prompt_may_cost_more() -> None:
    price = price_of("claude-haiku-5-5", 1)
    assert price is not None
    assert price.of(TokenFacts(input=100_000, output=1000)) == pytest.approx(0.0105)
    assert price.of(TokenFacts(input=100_000, cache_read=1000, output=1000)) == pytest.approx(0.0525 + 0.00005)

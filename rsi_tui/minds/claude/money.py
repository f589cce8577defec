"""What model calls may cost and did cost: prices with their date, and a ledger that sets money aside before it is spent.

Promises: no call is sent unless what it can cost at the most fits under every cap beside all that is spent and set
aside; parallel calls share one ledger; the ledger is rebuilt from the journal, where a call that a crash cut off
counts as spent in full. Tokens are those that the API told, to the token; what a cut stream did not tell is kept apart.
"""

from __future__ import annotations

import functools
import threading
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rsi_tui.errors import BudgetError
from rsi_tui.journal.events import ModelCalled, ModelCallReserved, Role
from rsi_tui.journal.facts import Fact, TokenFacts

MILLION = 1e6


class DirectionSpent(BudgetError):
    """A direction has had its share; the campaign goes on with others."""


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens of one model."""

    input: float
    output: float
    cache_write: float
    cache_read: float
    long: Price | None = None
    """of every token of a call whose prompt is longer than `long_from`"""
    long_from: int = 0
    """tokens of a prompt, cached or not"""

    def of(self, tokens: TokenFacts) -> float:
        """US dollars. Prompts of all attempts of a call count together, so that retries may be priced too high, never too low."""
        if self.long is not None and tokens.input + tokens.cache_write + tokens.cache_read > self.long_from:
            return self.long.of(tokens)
        written = tokens.cache_write * self.cache_write + tokens.cache_read * self.cache_read
        return (tokens.input * self.input + written + (tokens.output + tokens.untold) * self.output) / MILLION


@functools.cache
def _table() -> dict[str, object]:
    return tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))


def prices_date() -> str:
    """The day on which the table was read, ISO 8601."""
    return str(_table()["date"])


def price_of(model: str, cache_hours: int) -> Price | None:
    """The list price of a model; None when the table does not have it. A provider's prefix or date on the name is left out."""
    models = _table()["models"]
    assert isinstance(models, dict)
    bare = model.rpartition("anthropic.")[2].partition("@")[0]
    found = models.get(bare)
    if found is None:
        return None
    price = _listed(found, cache_hours)
    longer = found.get("long")
    return price if longer is None else replace(price, long=_listed(longer, cache_hours), long_from=longer["prompt_tokens"])


def _listed(row: Mapping[str, float], cache_hours: int) -> Price:
    return Price(row["input"], row["output"], row["cache_write_1h" if cache_hours else "cache_write_5m"], row["cache_read"])


@dataclass(frozen=True)
class Caps:
    """What may be spent at the most; None is no limit."""

    usd: float | None = None
    usd_per_direction: float | None = None
    tokens: int | None = None
    calls: int | None = None
    tokens_per_direction: int | None = None
    calls_per_direction: int | None = None


@dataclass
class Account:
    """What one role, one direction or all of a campaign has spent."""

    calls: int = 0
    tokens: TokenFacts = field(default_factory=TokenFacts)
    usd: float = 0.0
    unpriced: int = 0
    """tokens of models whose price is not known"""

    def add(self, tokens: TokenFacts, usd: float | None) -> None:
        self.calls += 1
        self.tokens = self.tokens + tokens
        self.usd += usd or 0.0
        self.unpriced += tokens.total if usd is None else 0


class Ledger:
    """The calls of one campaign. Threads may share it."""

    def __init__(self, caps: Caps, record: Callable[[Fact], None], past: Iterable[Fact] = ()) -> None:
        self.caps = caps
        self.total = Account()
        self.by_role: dict[str, Account] = defaultdict(Account)
        self.by_direction: dict[str, Account] = defaultdict(Account)
        self._record = record
        self._lock = threading.RLock()
        self._open: dict[str, ModelCallReserved] = {}
        self._numbered = 0
        for body in past:
            if isinstance(body, ModelCallReserved):
                self._open[body.call] = body
            elif isinstance(body, ModelCalled):
                self._settle(body)
            if isinstance(body, ModelCallReserved | ModelCalled):
                self._numbered = max(self._numbered, int(body.call[1:]))
        for lost in list(self._open.values()):
            self._lost(lost)

    def ample(self, direction: str) -> bool:
        """Is less than half of every cap spent or set aside? What may be in vain is asked for only then."""
        with self._lock:
            return all(cap is None or taken <= cap / 2 for cap, taken, _ in self._standing(list(self._open.values()), direction))

    def _standing(self, held: list[ModelCallReserved], direction: str) -> tuple[tuple[float | None, float, str], ...]:
        """(cap, what is spent and set aside of it, what it is a cap on) of calls, tokens and dollars, the direction's own too."""
        caps, total = self.caps, self.total
        inner = [known for known in held if known.direction == direction]
        here = self.by_direction[direction] if direction else Account()
        return (
            (caps.calls, total.calls + len(held), "calls"),
            (caps.calls_per_direction if direction else None, here.calls + len(inner), "calls"),
            (caps.tokens, total.tokens.total + sum(known.tokens for known in held), "tokens"),
            (caps.tokens_per_direction if direction else None, here.tokens.total + sum(known.tokens for known in inner), "tokens"),
            (caps.usd, total.usd + sum(known.usd or 0.0 for known in held), "usd"),
            (caps.usd_per_direction if direction else None, here.usd + sum(known.usd or 0.0 for known in inner), "usd"),
        )

    def new_call(self) -> str:
        """An id for a call: m1, m2, ..."""
        with self._lock:
            self._numbered += 1
            return f"m{self._numbered}"

    def reserve(self, call: str, role: Role, direction: str, model: str, tokens: int, usd: float | None) -> None:
        """Set aside what a call can take at the most, beyond and including what its attempts took before.

        Raises BudgetError, which names the cap, when it does not fit; nothing is set aside then.
        """
        with self._lock:
            held = self._open.get(call)
            if held is not None and (held.tokens, held.usd) == (tokens, usd):
                return  # a further attempt of which the last took nothing
            others = [known for id, known in self._open.items() if id != call]
            self._check(others, direction, tokens, usd)
            body = ModelCallReserved(call=call, role=role, direction=direction, model=model, tokens=tokens, usd=usd)
            self._record(body)
            self._open[call] = body

    def settle(self, called: ModelCalled) -> None:
        """Record how a call ended, and what it took, in place of what was set aside."""
        with self._lock:
            self._record(called)
            self._settle(called)

    def _settle(self, called: ModelCalled) -> None:
        if self._open.pop(called.call, None) is not None:  # else nothing was sent
            self._add(called.role, called.direction, called.tokens, called.usd)

    def _lost(self, body: ModelCallReserved) -> None:
        """A call whose end is not known: all that was set aside counts, as tokens that nobody told."""
        del self._open[body.call]
        self._add(body.role, body.direction, TokenFacts(untold=body.tokens), body.usd)

    def _add(self, role: str, direction: str, tokens: TokenFacts, usd: float | None) -> None:
        for account in (self.total, self.by_role[role], self.by_direction[direction]):
            account.add(tokens, usd)

    def _check(self, others: list[ModelCallReserved], direction: str, tokens: int, usd: float | None) -> None:
        caps = self.caps
        wanted = {"calls": 1, "tokens": tokens, "usd": usd or 0.0}
        if usd is None and caps.tokens is None and (caps.usd is not None or caps.usd_per_direction is not None):
            raise BudgetError("a limit in $ can't be kept, since the price of the model is not known: set [claude] max_tokens")
        for place, (cap, taken, what) in enumerate(self._standing(others, direction)):
            if cap is None or taken + wanted[what] <= cap:
                continue
            kind, whose = (DirectionSpent, "of the direction") if place % 2 else (BudgetError, "of the campaign")
            if what == "calls":
                raise kind(f"all {cap} model calls {whose} are used up")
            if what == "tokens":
                raise kind(f"a further model call may need more than is left of {cap:,} tokens {whose}")
            raise kind(f"a further model call may cost more than is left of ${cap:g} {whose}")

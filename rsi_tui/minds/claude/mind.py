"""The claude mind: models of the Claude API answer for the roles that settings give to them, the builtin mind for the rest.

When money is used up, or a model gives no answer of use, the program goes on with what it has: the Director ends the search,
the Selector closes its direction, the Executor's hypothesis is refused with the reason, review and lesson come from the
builtin mind. What is proven by then is claimed all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rsi_tui.config import ClaudeSettings
from rsi_tui.errors import BudgetError, PatchError
from rsi_tui.journal.events import Role
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.minds.claude import briefing, executor, schemas
from rsi_tui.minds.claude.ahead import Ahead
from rsi_tui.minds.claude.api import open_api, require_access
from rsi_tui.minds.claude.asking import NoAnswer, ask
from rsi_tui.minds.claude.calls import Calls
from rsi_tui.minds.claude.client import Client
from rsi_tui.minds.claude.money import Caps, DirectionSpent, Ledger
from rsi_tui.minds.claude.redact import Redactor
from rsi_tui.minds.claude.waiting import Waiting
from rsi_tui.minds.claude.workbench import Workbench
from rsi_tui.minds.protocol import (
    ChangeAnswer,
    CloseDirection,
    Decline,
    DirectionAnswer,
    DirectorBrief,
    EndSearch,
    ExecutorBrief,
    HypothesisAnswer,
    LessonBrief,
    ReviewAnswer,
    ReviewBrief,
    SelectorBrief,
)
from rsi_tui.minds.room import Room
from rsi_tui.techniques.registry import all_techniques, settings_of


class ClaudeMind:
    """Answers every question of the loop, once it has entered a campaign's room."""

    name = "claude"

    def __init__(self, settings: ClaudeSettings, waiting: Callable[[Room], Waiting] = Waiting) -> None:
        """UsageError, one sentence, where no client can be made. `waiting` says how it waits between attempts."""
        require_access(settings)
        self.spent = ""
        self._settings, self._waiting = settings, waiting
        self._builtin = BuiltinMind()
        self._redact = Redactor()
        self._room: Room | None = None
        self._calls: Calls | None = None
        self._api: Any = None
        self._ahead = Ahead()

    def enter(self, room: Room) -> None:
        """Open the API for a campaign; the ledger goes on from its journal."""
        settings = self._settings
        caps = Caps(
            room.usd or settings.max_usd, settings.max_usd_per_direction, settings.max_tokens, settings.max_calls,
            settings.max_tokens_per_direction, settings.max_calls_per_direction,
        )  # fmt: skip
        waiting = self._waiting(room)
        self._api = open_api(settings)
        client = Client(
            self._api, self._redact, patience_s=settings.patience_s, wait=lambda seconds: self._ahead.wait(waiting.wait, seconds), clock=waiting.clock,
            tell=room.tell, look=lambda: self._ahead.look(waiting.look),
        )  # fmt: skip
        self._room = room
        self._calls = Calls(settings, client, Ledger(caps, room.record, room.past), self._redact, room.past, room.show)

    def leave(self) -> None:
        """Close connections; what is thought ahead is given up."""
        self._ahead.end()
        if self._api is not None:
            self._api.close()
        self._api = self._calls = self._room = None

    def foresee(self, role: Role, direction: str, question: Callable[[], object]) -> None:
        """Ask ahead while less than half of the money is spent, for roles that a model answers for."""
        if self._calls is not None and not self._by_builtin(role) and self._calls.ledger.ample(direction):
            self._ahead.begin(question)

    @property
    def calls(self) -> Calls:
        """Calls and their ledger; only in a room."""
        if self._calls is None:
            raise RuntimeError("the claude mind is asked before it has entered a campaign")
        return self._calls

    def direct(self, brief: DirectorBrief) -> DirectionAnswer | EndSearch | Decline:
        known = self._builtin.direct(brief if self._by_builtin("director") else replace(brief, proposals=())) if self._by_builtin("director") or brief.past else None
        if known is not None and (self._by_builtin("director") or (isinstance(known, DirectionAnswer) and known.reproduces)):
            return known  # what was proven before is tried first, whoever directs
        stable = briefing.program(brief.contract, brief.profile, brief.sources)
        ids = {t.id for t in (*all_techniques(), *settings_of(brief.contract))}
        told, why = self._ask(
            "director", "", lambda level: (stable, briefing.for_director(brief, level)),
            lambda told: _unknown(told, ids), briefing.shown_records(brief),
        )  # fmt: skip
        if isinstance(told, schemas.End):
            return EndSearch(told.reason)
        if not isinstance(told, schemas.OpenDirection):
            return EndSearch(why)
        return DirectionAnswer(
            question=told.question, layer=told.layer, start_kind=told.start_kind, start=told.start, techniques=tuple(told.techniques),
            reason=told.reason, expected_gain=told.expected_gain, budget=told.budget, closing_rule=told.closing_rule,
            evidence=tuple(told.evidence), used_hits=_used(told.used, brief),
            proposal=told.proposal if told.proposal in {p.id for p in brief.proposals} else "",
        )  # fmt: skip

    def select(self, brief: SelectorBrief) -> HypothesisAnswer | CloseDirection:
        direction = brief.direction
        if direction is None or direction.reproduces or self._by_builtin("selector"):
            return self._builtin.select(brief)
        stable = briefing.program(brief.contract, brief.profile, brief.sources)
        ids = {t.id for t in (*all_techniques(), *settings_of(brief.contract))}
        parents = {candidate.id for candidate in brief.archive}
        told, why = self._ask(
            "selector", direction.id, lambda level: (stable, briefing.for_selector(brief, level)),
            lambda told: _unknown(told, ids) or _impossible(told, parents), briefing.shown_records(brief),
        )  # fmt: skip
        if isinstance(told, schemas.Close):
            return CloseDirection(told.reason)
        if not isinstance(told, schemas.Hypothesis):
            return CloseDirection(why)
        return HypothesisAnswer(
            parent=told.parent, statement=told.statement, techniques=tuple(told.techniques),
            knobs={knob.name: knob.value for knob in told.knobs}, predicted_time=told.predicted_time,
            predicted_memory=told.predicted_memory, refuted_by=told.refuted_by, evidence=tuple(told.evidence),
            used_hits=_used(told.used, brief),
        )  # fmt: skip

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        """Known techniques by their codemods; new code by the model. Raises PatchError with the reason when there is no change."""
        why = ""
        if brief.hypothesis.techniques or self._by_builtin("executor"):
            try:
                return self._builtin.execute(brief)
            except PatchError as error:
                if self._by_builtin("executor"):
                    raise
                why = str(error)
        if self._room is None:
            raise RuntimeError("the claude mind is asked before it has entered a campaign")
        bench = Workbench(self._room, brief.contract, brief.parent_commit, brief.sources)
        try:
            return executor.execute(self.calls, self._redact, bench, brief, self._settings.max_turns, why)
        except (NoAnswer, BudgetError) as error:
            self._note(error)
            raise PatchError(str(error)) from error

    def review(self, brief: ReviewBrief) -> ReviewAnswer:
        if self._by_builtin("reviewer"):
            return self._builtin.review(brief)
        told, why = self._ask("reviewer", brief.direction.id, lambda level: briefing.for_reviewer(brief, level))
        if not isinstance(told, schemas.Review):
            known = self._builtin.review(brief)
            return ReviewAnswer(known.on_direction, f"{known.reason} (reviewed without a model: {why})", known.exploit, known.lines)
        return ReviewAnswer(told.on_direction, told.reason, told.exploit, tuple(told.lines))

    def lesson(self, brief: LessonBrief) -> str:
        if not self._by_builtin("scribe") and brief.attempts:
            stable = "Write the lesson of the direction below."
            told, _ = self._ask("scribe", brief.direction.id, lambda level: (stable, briefing.for_scribe(brief, level)))
            if isinstance(told, schemas.Lesson):
                return told.text
        return self._builtin.lesson(brief)

    def _by_builtin(self, role: Role) -> bool:
        by: bool = getattr(self._settings, role).mind == "builtin"
        return by

    def _ask(self, role: Role, direction: str, *rest: Any) -> tuple[schemas.Told | None, str]:
        """The answer of a role, or None and why there is none, one sentence without its end."""
        try:
            return ask(self.calls, self._redact, role, direction, *rest), ""
        except (NoAnswer, BudgetError) as error:
            self._note(error)
            return None, str(error)

    def _note(self, error: Exception) -> None:
        """Keep which limit of the campaign was reached, where its own thread has met it."""
        if isinstance(error, BudgetError) and not isinstance(error, DirectionSpent) and not self._ahead.here:
            self.spent = str(error)


def _used(used: list[schemas.Used], brief: DirectorBrief | SelectorBrief) -> dict[str, str]:
    """Of what an answer says that it used, the entries that there are."""
    known = {hit.record for hit in brief.hits} | {past.record for past in brief.past}
    return {one.record: one.changed for one in used if one.record in known}


def _unknown(told: schemas.Told, ids: set[str]) -> str:
    named = told.techniques if isinstance(told, schemas.OpenDirection | schemas.Hypothesis) else []
    wrong = [id for id in named if id not in ids]
    return f"there is no technique {wrong[0]!r}; leave techniques empty for new code" if wrong else ""


def _impossible(told: schemas.Told, parents: set[str]) -> str:
    if not isinstance(told, schemas.Hypothesis):
        return ""
    if told.parent not in parents:
        return f"parent {told.parent!r} is not in the archive, which has {', '.join(sorted(parents))}"
    if told.predicted_time > 0 and told.predicted_memory >= 0:
        return "it predicts a slower step and no memory saved"
    return ""

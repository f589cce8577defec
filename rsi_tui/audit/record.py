"""A campaign's events by what they belong to: runs, blocks, secrets. For recomputing; it judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rsi_tui.contract.model import Contract
from rsi_tui.errors import JournalError, UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.facts import BlobFacts, ClaimFacts, Fact, TrialFacts

B = TypeVar("B", bound=Fact)
SETUP_ARMS = ("warmup", "initial", "twin", "harmless")
"""arms of runs that open a block and are not timed"""
SEEDS = "-seeds-p"
"""in the ids of blocks that compare hidden losses over fresh seeds"""


@dataclass
class Block:
    """One block: how it was opened and closed, and its timed runs in the order run."""

    opened: ev.BlockOpened
    step: str = ""
    """name of the decision that it belongs to, as the evaluator keeps secrets by: 'verify/c9/b1'"""
    closed: ev.BlockClosed | None = None
    runs: dict[int, TrialFacts] = field(default_factory=dict)
    """slot -> the last attempt"""

    @property
    def id(self) -> str:
        return self.opened.block

    @property
    def timed(self) -> list[TrialFacts]:
        return [self.runs[slot] for slot in sorted(self.runs) if self.runs[slot].arm not in SETUP_ARMS]

    @property
    def incumbents(self) -> list[TrialFacts]:
        return [facts for facts in self.timed if facts.arm == "incumbent"]

    @property
    def counts(self) -> bool:
        return self.closed is not None and not self.closed.void

    @property
    def whole(self) -> bool:
        """Every slot was run: it was not ended half-way."""
        return len(self.runs) == self.opened.slots


class Record:
    """The events of one journal, indexed."""

    def __init__(self, events: Sequence[ev.Event], blobs: Blobs | None = None) -> None:
        """`blobs` holds what the journal names beside its lines. Raises UsageError when no contract begins it."""
        if not events or not isinstance(events[0].body, ev.CampaignCreated):
            raise UsageError("this journal holds no campaign: it does not begin with a contract.")
        self.events = events
        self.created = events[0].body
        self.contract = Contract.model_validate(self.created.contract)
        self.trials: dict[str, TrialFacts] = {}
        self.blocks: dict[str, Block] = {}
        self.commitments: dict[str, str] = {}
        """trial -> commitment to its facts, of runs that were sealed"""
        self.secrets: dict[str, dict[str, Any]] | None = None
        self.secrets_lost = ""
        """why secrets that were revealed can't be read"""
        self._blobs = blobs
        self.granted: ev.AlphaGranted | None = None
        for event in events:
            self._take(event.body, event.step)
        for facts in self.trials.values():
            if (block := self.blocks.get(facts.block)) is not None:
                known = block.runs.get(facts.slot)
                if known is None or known.attempt < facts.attempt:
                    block.runs[facts.slot] = facts

    def _take(self, body: Fact, step: str) -> None:
        match body:
            case ev.BlockOpened():
                self.blocks[body.block] = Block(body, step.removesuffix("/opened"))
            case ev.BlockClosed():
                if body.block in self.blocks:
                    self.blocks[body.block].closed = body
                self.trials |= {facts.id: facts for facts in body.trials}
            case ev.TrialFinished():
                if body.facts is not None:
                    self.trials[body.trial] = body.facts
                if body.commitment:
                    self.commitments[body.trial] = body.commitment
            case ev.SecretsRevealed():
                self.secrets = body.blocks if body.blob is None else self._revealed(body.blob)
            case ev.AlphaGranted():
                self.granted = body
            case _:
                pass

    def _revealed(self, blob: BlobFacts) -> dict[str, dict[str, Any]] | None:
        """What a blob of secrets holds; None, and why is kept, where it can't be read."""
        try:
            if self._blobs is None:
                raise JournalError("the files beside the journal are not here.")
            found = json.loads(self._blobs.get(blob))
            if not isinstance(found, dict) or not all(isinstance(secret, dict) for secret in found.values()):
                raise ValueError("no secrets")
        except (JournalError, ValueError) as error:
            self.secrets_lost = str(error)
            return None
        return found

    @property
    def ended(self) -> bool:
        """Did it come to its last state, before which all secrets are revealed?"""
        return any(body.state in ("finished", "stopped") for body in self.of(ev.StateChanged))

    @property
    def planned(self) -> int:
        """Verifications that the error probability is split over."""
        return 1 if self.created.kind == "evaluation" else self.contract.proof.max_verifications

    def of(self, kind: type[B]) -> list[B]:
        """Bodies of one kind, in order."""
        return [event.body for event in self.events if isinstance(event.body, kind)]

    def of_claims(self) -> list[ClaimFacts]:
        return [body.claim for body in self.of(ev.Claimed)]

    def of_purpose(self, purpose: str, candidate: str) -> list[Block]:
        """Blocks that timed a candidate, in order; pairs that only compare what seeds learn are none of them."""
        return [
            block
            for block in self.blocks.values()
            if block.opened.purpose == purpose and candidate in block.opened.candidates and SEEDS not in block.id
        ]

    def runs(self, ids: Iterable[str]) -> list[TrialFacts]:
        """The runs of these ids that the record holds."""
        return [self.trials[id] for id in ids if id in self.trials]

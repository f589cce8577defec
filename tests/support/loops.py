"""The loop without trials: a real contract and mirror, an in-memory journal, and an evaluator that answers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from types import MappingProxyType

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.leave_one_out import Part, worth_nothing
from rsi_tui.journal.events import (
    AlphaGranted,
    Calibrated,
    CampaignCreated,
    Claimed,
    Event,
    LeftOut,
    Profiled,
    Screened,
    SecretsRevealed,
    VerdictReached,
)
from rsi_tui.journal.facts import (
    ORIGINAL,
    AttributionFacts,
    CandidateFacts,
    ClaimFacts,
    Fact,
    Interval,
    NoiseFacts,
    PhaseFacts,
    ProfileFacts,
    ScreenFacts,
    Verdict,
    VerdictFacts,
)
from rsi_tui.journal.steps import Steps
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.memory import Memory
from rsi_tui.loop.recall import Memories
from rsi_tui.loop.revoking import waiting_vetoes
from rsi_tui.minds.protocol import Mind, PastEffect
from rsi_tui.repo.mirror import Mirror
from tests.support.campaigns import tiny_repository

PROFILE = ProfileFacts(
    step_s=0.1,
    phases=(PhaseFacts(name="forward", seconds=0.05, share=0.5), PhaseFacts(name="backward", seconds=0.05, share=0.5)),
    operators=(),
    peak_bytes=100 * 2**20,
    tokens_per_step=1024,
)


class Writer:
    """A journal in memory."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events = list(events)

    def append(self, body: Fact, step: str = "") -> Event:
        event = Event(
            seq=len(self.events), at="2026-11-30T12:00:00.000000+00:00", step=step, body=body, prev="", hash=""
        )
        self.events.append(event)
        return event

    def bodies(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event.body for event in self.events if isinstance(event.body, kind)]


@dataclass
class Oracle:
    """An evaluator that knows every effect beforehand, and records as the real one does."""

    original: CandidateFacts
    steps: Steps
    effect: Callable[[CandidateFacts], float] = lambda candidate: -0.1
    """log-ratio of a candidate to whatever it is measured against"""
    verdict: Callable[[CandidateFacts], Verdict] = lambda candidate: "adopted"
    peak: Callable[[CandidateFacts], int] = lambda candidate: 100
    incumbent_peak: int = 100
    leaner: Callable[[CandidateFacts], bool] = lambda candidate: True
    """is a saving proven that is offered for the bank?"""
    offered: list[str] = field(default_factory=list)
    during: Callable[[str], None] = lambda what: None
    """called within each measurement, as `between` is"""
    worth: Callable[[str], tuple[float, float] | str] = lambda name: (0.1, 0.08)
    """of a stack's change by name: log of the time without it to the time with it and its lower bound, or how it fails"""
    refuted: Callable[[CandidateFacts], str] = lambda stack: ""
    """what the claim finds wrong with a stack"""
    verified: list[tuple[str, str]] = field(default_factory=list)
    """(candidate, incumbent)"""
    forced: list[str] = field(default_factory=list)
    """verified without an early look"""
    claimed: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    """claimed with what a verification asks besides"""
    revealed: bool = False
    closed: bool | None = None

    def machine_lent(self) -> AbstractContextManager[None]:
        return nullcontext()

    def profile(self) -> ProfileFacts:
        self.during("profile")
        return self.steps.once("profile", Profiled, lambda: Profiled(profile=PROFILE)).profile

    def profile_of(self, candidate: CandidateFacts) -> ProfileFacts:
        made = lambda: Profiled(profile=PROFILE, candidate=candidate.id)  # noqa: E731
        return self.steps.once(f"profile/{candidate.id}", Profiled, made).profile

    def calibrate(self, alpha: float) -> Calibrated:
        self.during("calibrate")
        noise = NoiseFacts(pair_scale=0.01, run_cv=0.01, pairs=4, differences=(), smallest_provable=0.05, fingerprint="f")
        return self.steps.once("calibration", Calibrated, lambda: Calibrated(noise=noise, bands=()))

    def screen(self, step: str, candidates: Sequence[CandidateFacts], incumbent: CandidateFacts) -> tuple[ScreenFacts, ...]:
        self.during("screen")
        return self.steps.once(step, Screened, lambda: Screened(results=tuple(
            ScreenFacts(
                candidate=c.id, incumbent=incumbent.id, outcome="ok", log_ratio=self.effect(c), batches=2,
                promoted=self.effect(c) < 0, reason="", peak_bytes=self.peak(c), incumbent_peak_bytes=self.incumbent_peak,
            )
            for c in candidates
        ))).results  # fmt: skip

    def verify(
        self, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, alpha: float, predicted_gain: float,
        *, early_look: bool = True,
    ) -> VerdictFacts:  # fmt: skip
        self.during("verify")
        if self.steps.find(step) is None:
            self.verified.append((candidate.id, incumbent.id))
            self.forced += [] if early_look else [candidate.id]
        faster = 2.718281828 ** -self.effect(candidate)
        facts = VerdictFacts(
            candidate=candidate.id, incumbent=incumbent.id, verdict=self.verdict(candidate), reasons=("told",), alpha=alpha,
            speedup=Interval(estimate=faster, low=faster - 0.01, high=faster + 0.01, confidence=0.99),
            log_ratio=self.effect(candidate), peak_bytes=100, incumbent_peak_bytes=100,
        )  # fmt: skip
        return self.steps.once(step, VerdictReached, lambda: VerdictReached(verdict=facts)).verdict

    def bank(
        self, step: str, screened: ScreenFacts, candidate: CandidateFacts, incumbent: CandidateFacts
    ) -> VerdictFacts:
        self.during("bank")
        self.offered.append(candidate.id)
        verdict: Verdict = "leaner" if self.leaner(candidate) else "slower"
        facts = VerdictFacts(candidate=candidate.id, incumbent=incumbent.id, verdict=verdict, reasons=("told",), alpha=0.0)
        return self.steps.once(step, VerdictReached, lambda: VerdictReached(verdict=facts)).verdict

    def claim(
        self, step: str, stack: CandidateFacts, attribution: tuple[AttributionFacts, ...], *, verified: bool = True
    ) -> ClaimFacts:
        self.during("claim")
        if self.steps.find(step) is None:
            self.claimed.append(stack.id)
            self.unverified += [] if verified else [stack.id]
        facts = ClaimFacts(
            candidate=stack.id, pairs=8, baseline_step_s=0.1, candidate_step_s=0.09, speedup=None, total_wall_ratio=None,
            slope_ratio=None, baseline_peak_bytes=None, candidate_peak_bytes=None, slow_run_bound=1.0, invariants=(),
            attribution=attribution, proven=not self.refuted(stack), refuted=self.refuted(stack),
        )  # fmt: skip
        return self.steps.once(step, Claimed, lambda: Claimed(claim=facts)).claim

    def leave_one_out(self, step: str, stack: CandidateFacts, parts: Sequence[Part], *, last: bool) -> LeftOut:
        self.during("leave one out")
        found: list[AttributionFacts] = []
        for part in parts:
            worth = self.worth(part.name)
            more: dict[str, object] = {"note": worth} if isinstance(worth, str) else {
                "log_ratio": -worth[0],
                "interval": Interval(estimate=exp(worth[0]), low=exp(worth[1]), high=exp(2 * worth[0] - worth[1]), confidence=0.95),
            }  # fmt: skip
            proven = isinstance(worth, str) or worth[1] > 0
            found.append(AttributionFacts.model_validate({
                "name": part.name, "kind": part.kind, "candidate": part.candidate, "how": "leave-one-out", "proven": proven,
                "log_ratio": None, **more,
            }))  # fmt: skip
        dropped = "" if last else worth_nothing({p.name: p.interval for p in found if p.interval is not None}, 0.005)
        facts = LeftOut(stack=stack.id, parts=tuple(found), dropped=dropped)
        return self.steps.once(step, LeftOut, lambda: facts)

    def reveal(self) -> None:
        self.revealed = True
        self.steps.once("secrets", SecretsRevealed, lambda: SecretsRevealed(blocks={}))

    def close(self, *, finished: bool) -> None:
        self.closed = finished


@dataclass
class Bench:
    """One campaign's rooms, ready for `outer.run_campaign`."""

    ctx: Context
    writer: Writer
    oracle: Oracle
    asked: list[int]
    """for how many directions the library was asked"""


def bench(
    folder: Path,
    mind: Mind,
    *,
    events: Iterable[Event] = (),
    candidates: int = 8,
    bundle: bool = True,
    past: tuple[PastEffect, ...] = (),
    proof: Mapping[str, object] = MappingProxyType({}),
    toml: Callable[[str], str] = lambda text: text,
) -> Bench:
    """A campaign on the tiny workload; the same folder with the events of an earlier one resumes it.

    `proof` changes the contract's proof.
    """
    repository = folder / "tiny"
    if not repository.exists():
        tiny_repository(repository)
        file = repository / "workload.toml"
        file.write_text(toml(file.read_text()))
    contract = load_contract(repository, "quick")
    changed = contract.proof.model_copy(update={"bundle": bundle, "max_verifications": 8, "red_team": False, **proof})
    contract = contract.model_copy(update={"proof": changed})
    home = Home(folder / "home")
    mirror = Mirror.open(home, repository, committed=True)
    paths = home.campaign("c")
    paths.commands.mkdir(parents=True, exist_ok=True)
    writer = Writer(events)
    steps = Steps(writer, writer.events)
    original = CandidateFacts(id=ORIGINAL, commit=mirror.base, base=mirror.base, knobs=contract.defaults)
    oracle = Oracle(original, steps)
    asked: list[int] = []

    def recall(profile: ProfileFacts, directions: int) -> Memories:
        asked.append(directions)
        return Memories("what is slow", past, (), lambda *_: None)

    ctx = Context(
        home=home,
        created=created(contract, mirror, candidates),
        contract=contract,
        usable=contract,
        mirror=mirror,
        paths=paths,
        steps=steps,
        mind=mind,
        evaluator=oracle,  # type: ignore[arg-type]
        draw_alpha=lambda: AlphaGranted(workload_key=mirror.key, ordinal=1, alpha=0.006, campaign="c"),
        memory=Memory(original),
        recall=recall,
        cancel=threading.Event(),
        vetoes=waiting_vetoes(events),
    )
    return Bench(ctx, writer, oracle, asked)


def created(contract: Contract, mirror: Mirror, candidates: int = 8, **more: object) -> CampaignCreated:
    values: dict[str, object] = {
        "campaign": "c", "workload": contract.name, "workload_key": mirror.key, "folder": contract.folder,
        "contract_hash": contract.hash, "contract": contract.model_dump(mode="json"), "base_commit": mirror.base,
        "preset": "quick", "mind": "double", "seed": 0, "max_candidates": candidates, "trust": "A",
        "sandbox": "bubblewrap", "host": {"hardware": "2 cores", "software": "Linux"}, "version": "0",
    }  # fmt: skip
    return CampaignCreated.model_validate(values | more)

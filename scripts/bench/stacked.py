"""A bundled workload as the evaluator sees it, and candidates made of techniques, for benches that measure those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rsi_tui.contract.command import resolve_python
from rsi_tui.contract.fingerprint import launch_fingerprint
from rsi_tui.contract.model import KnobValue
from rsi_tui.evaluator.trial import TrialRequest, TrialResult, TrialRunner
from rsi_tui.journal.facts import CandidateFacts, ProfileFacts
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.setup import Opened, Request, open_campaign
from rsi_tui.minds.builtin.mind import BuiltinMind
from rsi_tui.techniques.base import Change, Situation
from rsi_tui.techniques.registry import apply_all
from scripts.bench.scripted import repository


@dataclass(frozen=True)
class Stack:
    """Techniques and settings that go together."""

    techniques: tuple[str, ...]
    knobs: Mapping[str, KnobValue]

    def without(self, name: str) -> Stack:
        """The stack less one of its techniques, or one of its settings (`setting NAME`)."""
        if name.startswith("setting "):
            return replace(self, knobs={k: v for k, v in self.knobs.items() if k != name.removeprefix("setting ")})
        return replace(self, techniques=tuple(t for t in self.techniques if t != name))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.techniques, *(f"setting {name}" for name in self.knobs))


def opened(workload: str, folder: Path, preset: str, name: str) -> Opened:
    """A campaign over a bundled workload that nothing is searched in, made in `folder` or taken up from it."""
    place = repository(workload, folder / workload, preset)
    home = Home(folder / f"home-{workload}")
    resume = any(home.root.glob("campaigns/*"))
    return open_campaign(home, Request(place, preset=name, candidates=1, resume=resume), BuiltinMind())


def runner(ctx: Context) -> TrialRunner:
    """What runs trials of the campaign's program, for looks at a candidate that no verdict comes of."""
    return TrialRunner(ctx.contract, LocalLauncher(), ctx.mirror, ctx.paths, Path(resolve_python(ctx.contract)))


def look(trials: TrialRunner, candidate: CandidateFacts, steps: int, seed: int) -> TrialResult:
    """One run of a candidate; nothing of it is kept."""
    return trials.run(TrialRequest("look", candidate, "check", "check", "", 0, 1, steps, seed, keep_checkpoint=False))


def situation(ctx: Context, profile: ProfileFacts | None) -> Situation:
    """The original program with its settings, as techniques look at it."""
    original = ctx.evaluator.original
    sources = ctx.mirror.read_files(original.commit, ctx.contract.editable)
    return Situation(sources, ctx.usable, profile, original.knobs)


def candidate(ctx: Context, id: str, change: Change, techniques: Sequence[str]) -> CandidateFacts:
    """The original with a change, as a commit of the mirror."""
    original, commit = ctx.evaluator.original, ctx.evaluator.original.commit
    if change.sources:
        ref = f"refs/rsi/{ctx.created.campaign}/{id}"
        commit = ctx.mirror.commit_files(original.commit, dict(change.sources), f"{id}: {', '.join(techniques)}", ref)
    knobs = {**original.knobs, **change.knobs}
    return CandidateFacts(
        id=id, commit=commit, base=original.base, parent=original.id, techniques=tuple(techniques), knobs=knobs,
        launch_fingerprint=launch_fingerprint(ctx.contract, knobs),
    )  # fmt: skip


def built(ctx: Context, id: str, stack: Stack, profile: ProfileFacts | None) -> CandidateFacts:
    """The original with a stack; PatchError where a technique finds nothing to change."""
    here = situation(ctx, profile)
    change = apply_all(stack.techniques, here)
    return candidate(ctx, id, replace(change, knobs={**change.knobs, **stack.knobs}), stack.techniques)

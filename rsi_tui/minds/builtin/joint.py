"""Whole sets of changes and settings, chosen by the models of time and memory that this campaign's runs have taught.

Techniques that were tried alone say what each is worth; which of them go together, and what a saving of memory buys, is
asked of the models (`search.surrogate`, `search.choosing`). A set is built on the campaign's best, and holds all that the
best holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rsi_tui.contract.fingerprint import same_value
from rsi_tui.contract.model import KnobValue, Layer
from rsi_tui.contract.rules import violations
from rsi_tui.errors import PatchError
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts
from rsi_tui.minds.protocol import Attempt, Brief
from rsi_tui.search.estimate import estimate
from rsi_tui.search.space import Dial, Point, Space, Switch
from rsi_tui.techniques.base import Effect, Situation, Technique
from rsi_tui.techniques.registry import all_techniques, applicable, apply_all

if TYPE_CHECKING:
    from rsi_tui.search.choosing import Choice
    from rsi_tui.search.surrogate import Belief, Observation, Surrogate

QUESTION = "Which of the changes go together best, in code and settings?"
"""of a direction that tries sets"""
LEAST_KNOWN = 4
"""candidates measured before sets are asked about: the models then know more than the predictions"""
_LEAST_SD, _SHARE_SD, _UNKNOWN_SD = 0.03, 0.6, 0.3
"""standard deviation of a predicted effect: at least, as a share of it, and of one that nothing predicts"""
_SHARE_OF_STARTUP = 0.3
"""of a run that runs out of memory: it ends before the first update"""


@dataclass(frozen=True)
class Set:
    """A set to try on top of the start."""

    techniques: tuple[str, ...]
    knobs: Mapping[str, KnobValue]
    """those that differ from the start's"""
    time: float
    """expected log-ratio of step time to the start's"""
    memory: float
    """expected log-ratio of peak memory to the start's"""
    gain: float
    """expected fall of log time below the best that was measured"""
    words: str
    """the choice in figures"""
    layer: Layer
    """of the change that is worth most"""

    @property
    def parts(self) -> str:
        return ", ".join([*self.techniques, *(f"{name}={value}" for name, value in self.knobs.items())])


def best_set(brief: Brief, start: CandidateFacts, sources: Mapping[str, str]) -> Set | None:
    """The set most worth a run now; None where too little is known, or nothing untried can be built.

    `sources` are the start's own. The same brief gives the same set.
    """
    measured = [a for a in brief.attempts if a.screen is not None and a.screen.log_ratio is not None]
    if len(measured) < LEAST_KNOWN:
        return None
    from rsi_tui.search.choosing import Costs, best_measured, choose, propose

    field = _Field(brief, start, sources)
    try:
        model = field.model()
    except (np.linalg.LinAlgError, RuntimeError):
        return None  # the single changes go on without it
    pending = [field.point(a.candidate) for a in brief.attempts if a.screen is None and a.verdict is None]
    tried = {field.point(a.candidate) for a in brief.attempts}
    ours = field.point(start)
    candidates = [p for p in propose(field.space, model, random.Random(len(brief.attempts)), starts=[ours]) if field.holds(p, ours) and p not in tried]
    profile, steps = brief.profile, sum(brief.contract.objective.steps) / 2
    costs = Costs(profile.step_s, steps, _SHARE_OF_STARTUP * steps * profile.step_s, extra=field.startup)
    limit = brief.contract.launch.memory_limit_bytes
    standing = best_measured(model, 1)[0][1]
    for choice in choose(model, candidates, limit, costs, count=8, pending=pending, seed=len(brief.attempts)):
        if (found := field.built(choice, ours, tried, model, standing)) is not None:
            return found
    return None


class _Field:
    """The space of one brief: techniques that apply to the start or were tried before, and the contract's knobs."""

    def __init__(self, brief: Brief, start: CandidateFacts, sources: Mapping[str, str]) -> None:
        self.brief, self.start, self.sources = brief, start, sources
        self.situation = Situation(sources, brief.contract, brief.profile, start.knobs)
        found = applicable(self.situation)
        self.effects = {technique.id: effect for technique, change, effect in found if change.sources}
        tried = {id for attempt in brief.attempts for id in attempt.candidate.techniques} | set(start.techniques)
        code = [t for t in all_techniques() if t.id in self.effects or (t.id in tried and _edits(t, self.situation))]
        ids = {t.id for t in code}
        switches = tuple(Switch(t.id, t.layer, tuple(c for c in t.conflicts if c in ids)) for t in code)
        dials = tuple(Dial(k.name, k.values, k.default, k.layer) for k in brief.contract.knobs)
        self.space = Space(switches, dials, lambda values: not violations(brief.contract, values))
        self.settings = {
            next(iter(change.knobs.items())): effect for _, change, effect in found if not change.sources and len(change.knobs) == 1
        }
        self._layers: dict[str, Layer] = {s.id: s.layer for s in switches} | {d.name: d.layer for d in dials}

    def point(self, candidate: CandidateFacts) -> Point:
        known = {switch.id for switch in self.space.switches}
        return self.space.point((t for t in candidate.techniques if t in known), candidate.knobs)

    def holds(self, point: Point, ours: Point) -> bool:
        """Whether a point has every change of code of the start."""
        return set(ours.made) <= set(point.made) and point != ours

    def startup(self, point: Point) -> float:
        return sum(self.effects[id].startup_s for id in point.made if id in self.effects)

    def model(self) -> Surrogate:
        """Fitted to this campaign's runs; the past of others counts where it explains them better than predictions alone."""
        from rsi_tui.search.surrogate import Surrogate

        seen = self._observations()
        models = [Surrogate(self.space, self._belief(past)) for past in ([(), self.brief.past] if self.brief.past else [()])]
        for model in models:
            model.see(seen)
        return max(models, key=lambda model: model.evidence())

    def _observations(self) -> list[Observation]:
        from rsi_tui.search.surrogate import Observation

        by_id = {a.candidate.id: a.candidate for a in self.brief.attempts}
        original = CandidateFacts(id=ORIGINAL, commit="", base="", knobs=self.brief.contract.defaults)
        limit = self.brief.contract.launch.memory_limit_bytes
        found = []
        for attempt in self.brief.attempts:
            screen = attempt.screen
            if screen is None or _is_free(attempt):
                continue
            against = by_id.get(screen.incumbent, original)
            ours, theirs = self.point(attempt.candidate), self.point(against)
            noise = self.brief.noise_scale / math.sqrt(max(1, screen.batches))
            if screen.outcome == "ok" and screen.log_ratio is not None:
                found.append(Observation(ours, theirs, screen.log_ratio, noise, peak=screen.peak_bytes))
            elif screen.outcome == "oom":
                found.append(Observation(ours, theirs, peak=float(max(limit, screen.peak_bytes or 0)) or None, oom=True))
            if against.id == ORIGINAL and screen.incumbent_peak_bytes:
                found.append(Observation(Point(), Point(), peak=screen.incumbent_peak_bytes))
        return found

    def _belief(self, past: Iterable[object]) -> Belief:
        from rsi_tui.search.surrogate import Belief

        time, time_sd, memory, memory_sd = [], [], [], []
        by_knob = {f"{name}={str(value).lower() if isinstance(value, bool) else value}": (name, value) for name, value in self.settings}
        for dimension in self.space.dimensions:
            effect, knobs = self.effects.get(dimension.name), {}
            if dimension.name in by_knob:
                knobs = dict([by_knob[dimension.name]])
                effect = self.settings[by_knob[dimension.name]]
            if effect is None:
                is_switch = dimension.name in self._layers and not dimension.graded and "=" not in dimension.name
                effect, least = Effect(0.0), _UNKNOWN_SD if is_switch else 3 * _LEAST_SD
            else:
                least = _LEAST_SD
            ids = () if knobs else (dimension.name,)
            known = estimate(ids, knobs, effect, past, self.brief.noise_scale)  # type: ignore[arg-type]
            time.append(known.time)
            time_sd.append(known.time_sd if known.evidence else least + _SHARE_SD * abs(known.time))
            memory.append(effect.memory)
            memory_sd.append(least + _SHARE_SD * abs(effect.memory))
        peak = float(self.brief.profile.peak_bytes or 0)
        return Belief(np.array(time), np.array(time_sd), np.array(memory), np.array(memory_sd), peak)

    def built(self, choice: Choice, ours: Point, tried: set[Point], model: Surrogate, standing: float) -> Set | None:
        """The set as it can be built on the start: what finds nothing to change is left out; None when nothing new is left."""
        values = self.space.values(choice.point)
        knobs = {name: value for name, value in values.items() if not same_value(value, self.start.knobs.get(name, value))}
        kept: tuple[str, ...] = ()
        situation = replace(self.situation, knobs={**self.situation.knobs, **knobs})
        for id in (id for id in choice.point.made if id not in ours.made):
            try:
                apply_all((*kept, id), situation)
            except PatchError:
                continue
            kept = (*kept, id)
        point = self.space.point((*ours.made, *kept), values)
        if point in tried or point == ours:
            return None
        (now, then), (peak_now, peak_then) = model.times([ours, point]).mean, model.peaks([ours, point]).mean
        return Set(kept, knobs, float(then - now), float(peak_then - peak_now), choice.improvement, choice.words(standing), self._layer(model, point, ours))

    def _layer(self, model: Surrogate, point: Point, ours: Point) -> Layer:
        """The layer of the change without which the set would lose most."""
        values = self.space.values(point)
        less = [(self._layers[id], self.space.point((m for m in point.made if m != id), values)) for id in point.made if id not in ours.made]
        less += [(self._layers[name], Point(point.made, tuple(k for k in point.knobs if k[0] != name))) for name, _ in point.knobs]
        if not less:
            return "launch"
        means = model.times([p for _, p in less]).mean
        return less[int(np.argmax(means))][0]


def _edits(technique: Technique, situation: Situation) -> bool:
    """Whether a technique that was tried is one of code: on the start it may find nothing left to do."""
    return not technique.apply(situation).knobs


def _is_free(attempt: Attempt) -> bool:
    """A patch of a mind's own: no set of techniques stands for it."""
    return not attempt.candidate.techniques and bool(attempt.candidate.diff_hash)



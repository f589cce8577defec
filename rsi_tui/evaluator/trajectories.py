"""What a run printed of each step, compared with the reference run of its block: same seed, same length. Pure.

Every named group of the contract's progress pattern beside `step` is a trajectory: the loss, the norm of
the gradient, for a Mixture-of-Experts router entropy, expert load, dropped tokens. Two figures are tested,
the largest and the mean relative difference over the steps, each against ten times what the harmless
perturbations of the calibration moved, never below a floor. Where the contract allows bf16, a candidate
beyond that is measured in units of what the bf16 twin moved.

Promises: half a unit in the last printed digit, of either run, never counts as a difference, so that a run
that computes the same passes whatever it rounds to; a value that is missing or not finite where the
reference has one is broken; what the baseline does not print, or does not repeat under harmless
perturbations, is not covered and said so.

Does not promise that the values are true: the program prints them, so they can be forged. They come on top
of the learned update, which can't, and never replace it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rsi_tui.evaluator.progress import matches
from rsi_tui.journal.facts import BandFacts, InvariantFacts
from rsi_tui.launch.spec import Line

POINTS = 300
"""steps of a run that are kept; of a longer run so many, evenly spread"""
MAX_TEXT = 24
"""characters of a printed value; what is longer is no number"""
HARMLESS_FACTOR = 10.0
"""multiple of what harmless perturbations move, as for the learned update"""
FLOORS = {"largest": 2e-4, "mean": 5e-5}
"""relative differences that are let through in any case. On the bundled dense workload, 40 steps, beyond printed
digits: sums in another order move the loss by 1.3e-7 and the norm of the gradient by 4.5e-6 at most; the quietest
change of what is learned (no weight decay) moves the loss by 7e-4 at most and 2e-4 on average, the norm by 5e-2"""
ROUNDING_FACTOR = 4.0
"""multiple of what the bf16 twin moves"""
UNREPRODUCIBLE = 0.2
"""harmless relative difference from which on a trajectory says nothing"""
SMALL = 0.1
"""share of a trajectory's mean size under which a single value is not taken as its own scale"""
COARSER = 10.0
"""times the reference's unit of the last digit from which on a candidate prints too coarsely to be compared"""
FORGEABLE = "forgeable: printed by the program"

Kind = Literal["largest", "mean"]
KINDS: tuple[Kind, ...] = ("largest", "mean")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.(?P<fraction>\d*))?|\.(?P<bare>\d+))(?:[eE](?P<exponent>[-+]?\d{1,3}))?")


class Trajectory(BaseModel):
    """One run's values, as printed: group of the progress pattern -> a text a step, '' where there was none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Difference:
    """Two trajectories of one group, step by step, beyond what rounding to printed digits explains."""

    largest: float
    """relative; inf where the candidate has no value and the reference has one"""
    mean: float
    steps: int
    """steps at which the reference has a value"""

    def of(self, kind: Kind) -> float:
        return self.largest if kind == "largest" else self.mean


def groups(pattern: str) -> tuple[str, ...]:
    """Names of the trajectories in a progress pattern, in the order written."""
    return tuple(name for name in re.compile(pattern).groupindex if name != "step")


def read_trajectory(lines: Sequence[Line], pattern: str) -> Trajectory:
    """All trajectories of a run's output; of more than POINTS steps so many, the first and the last among them."""
    found = [match for match, _ in matches(lines, pattern)]
    if len(found) > POINTS:
        found = [found[round(i * (len(found) - 1) / (POINTS - 1))] for i in range(POINTS)]
    return Trajectory(texts={name: tuple(_short(match[name]) for match in found) for name in groups(pattern)})


def difference(group: str, reference: Trajectory, candidate: Trajectory) -> Difference | None:
    """How far the candidate's values lie from the reference's; None where the reference has none."""
    ours, theirs = candidate.texts.get(group, ()), reference.texts.get(group, ())
    known = {step: value for step, text in enumerate(theirs) if (value := _value(text)) is not None}
    if not known:
        return None
    size = fmean(abs(value) for value in known.values())
    found = []
    for step, value in known.items():
        text = ours[step] if step < len(ours) else ""
        other = _value(text)
        if other is None or len(ours) != len(theirs):
            return Difference(math.inf, math.inf, len(known))
        beyond = max(0.0, abs(other - value) - (1 + 1e-9) * (_unit(text) + _unit(theirs[step])) / 2)
        scale = max(abs(value), SMALL * size)
        found.append(beyond / scale if scale > 0 else (math.inf if beyond > 0 else 0.0))
    return Difference(max(found), fmean(found), len(known))


def calibrate_trajectories(
    reference: Trajectory, harmless: Sequence[Trajectory], twins: Sequence[Trajectory]
) -> tuple[BandFacts, ...]:
    """The bands of every trajectory that the unchanged program prints.

    `harmless`: harmless perturbations and repeated runs of the baseline, `twins`: bf16 runs of it, all with
    the reference's seed and length. A perturbation that loses a value counts as a difference of 1.
    """
    bands: list[BandFacts] = []
    for group in reference.texts:
        moved = _differences(group, reference, harmless)
        rounded = _differences(group, reference, twins)
        for kind in KINDS:
            bands += _band(group, kind, [min(d.of(kind), 1.0) for d in moved])
            if rounded:
                bands.append(_twin_band(group, kind, max(min(d.of(kind), 1.0) for d in rounded)))
    return tuple(bands)


def judge_trajectories(
    candidate: Trajectory, reference: Trajectory, bands: Sequence[BandFacts], twin: Trajectory | None, bf16: bool
) -> tuple[InvariantFacts, ...]:
    """What each trajectory of a candidate's run says; `twin`: the bf16 twin of its block, `bf16`: may it round so?"""
    known = {band.name: band for band in bands}
    return tuple(_judged(group, candidate, reference, known, twin, bf16) for group in reference.texts)


# --- pieces -----------------------------------------------------------------------------------


def _short(text: str | None) -> str:
    cut = (text or "").strip().rstrip(",;").replace(",", "")
    return cut if len(cut) <= MAX_TEXT else ""


def _value(text: str) -> float | None:
    """The number that was printed; None for NaN, infinity and anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _unit(text: str) -> float:
    """A unit in the last digit that was printed: 0.001 for '1.250', 1e-7 for '1.25e-05'."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return 0.0
    decimals = len(found["fraction"] or found["bare"] or "")
    return float(10.0 ** (int(found["exponent"] or 0) - decimals))


def _differences(group: str, reference: Trajectory, others: Iterable[Trajectory]) -> list[Difference]:
    found = (difference(group, reference, other) for other in others)
    return [one for one in found if one is not None]


def _name(group: str) -> str:
    return f"{group} trajectory"


def _band(group: str, kind: Kind, harmless: Sequence[float]) -> Iterator[BandFacts]:
    worst, floor = max(harmless, default=0.0), FLOORS[kind]
    limit = max(HARMLESS_FACTOR * worst, floor)
    if limit > floor:
        how = f"{HARMLESS_FACTOR:g} x the largest of {len(harmless)} harmless runs of the baseline"
    elif harmless:
        how = f"the floor; {len(harmless)} harmless runs of the baseline stay far below"
    else:
        how = "the floor; the contract names no harmless perturbations to calibrate on"
    yield BandFacts(name=f"{_name(group)}, {kind}", limit=limit, how=how, harmless_max=worst)


def _twin_band(group: str, kind: Kind, moved: float) -> BandFacts:
    return BandFacts(
        name=f"bf16 {_name(group)}, {kind}", limit=ROUNDING_FACTOR, how="multiple of the bf16 twin's own difference",
        harmless_max=1.0, scale={"": moved},
    )  # fmt: skip


def _judged(
    group: str, candidate: Trajectory, reference: Trajectory, bands: Mapping[str, BandFacts],
    twin: Trajectory | None, bf16: bool,
) -> InvariantFacts:  # fmt: skip
    found = difference(group, reference, candidate)
    if found is None:
        return _not_covered(group, "the incumbent prints none")
    if math.isinf(found.largest):
        how = f"a value is missing, not finite or beyond all measure where the incumbent has one; {FORGEABLE}"
        return InvariantFacts(name=_name(group), status="broken", value=None, limit=None, how=how)
    if _too_coarse(group, reference, candidate):
        return _not_covered(group, "it prints far fewer digits than the incumbent")
    if (band := bands.get(f"{_name(group)}, mean")) is not None and band.harmless_max >= UNREPRODUCIBLE:
        return _not_covered(group, f"harmless perturbations of the baseline alone change it by {100 * band.harmless_max:.0f} %")
    fact = _worse(group, found, {kind: _limit(group, kind, bands) for kind in KINDS})
    if fact.status == "broken" and bf16:
        beside = difference(group, reference, twin) if twin is not None else None
        fact = _worse(group, found, {kind: _rounded_limit(group, kind, bands, beside) for kind in KINDS})
    return fact


def _too_coarse(group: str, reference: Trajectory, candidate: Trajectory) -> bool:
    ours, theirs = (median(_unit(text) for text in run.texts[group]) for run in (candidate, reference))
    return ours > COARSER * theirs > 0.0


def _not_covered(group: str, why: str) -> InvariantFacts:
    return InvariantFacts(name=_name(group), status="not_covered", value=None, limit=None, how=why)


def _limit(group: str, kind: Kind, bands: Mapping[str, BandFacts]) -> tuple[float, str]:
    band = bands.get(f"{_name(group)}, {kind}")
    return (band.limit, band.how) if band is not None else (FLOORS[kind], "the floor; not calibrated")


def _rounded_limit(
    group: str, kind: Kind, bands: Mapping[str, BandFacts], twin: Difference | None
) -> tuple[float, str]:
    """A multiple of what the twin moved, at the calibration or in this block; never less than in fp32."""
    fp32, how = _limit(group, kind, bands)
    band = bands.get(f"bf16 {_name(group)}, {kind}")
    moved = max(band.scale.get("", 0.0) if band else 0.0, min(twin.of(kind), 1.0) if twin else 0.0)
    limit = ROUNDING_FACTOR * moved
    return (limit, f"under bf16: {ROUNDING_FACTOR:g} x what the bf16 twin moves") if limit > fp32 else (fp32, how)


def _worse(group: str, found: Difference, limits: Mapping[Kind, tuple[float, str]]) -> InvariantFacts:
    """The figure, largest or mean, that takes up more of its limit."""
    kind = max(KINDS, key=lambda each: found.of(each) / limits[each][0])
    value, (limit, how) = found.of(kind), limits[kind]
    return InvariantFacts(
        name=_name(group),
        status="held" if value <= limit else "broken",
        value=value,
        limit=limit,
        how=f"{kind} relative difference over {found.steps} steps, beyond printed digits; {how}; {FORGEABLE}",
    )

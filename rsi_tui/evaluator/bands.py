"""Which differences in a learned update are harmless: limits found by calibration, and their judgement. Pure.

Two bands. The fp32 band follows from harmless perturbations of the baseline (threads, micro-batch): ten
times the largest difference they make, never below a floor that lies half-way, on a log scale,
between honest changes and quiet cheats of the bundled workload.

The bf16 band, only where the contract says precision = "bf16", measures a candidate in units of the
bf16 twin's own differences, tensor by tensor and row by row. Rounding scatters and a cheat points
somewhere, so two directions are tested besides: along the update (learning rate, skipped steps) as a
mean over tensors, and along the weights (weight decay, smoothing) in the worst tensor. A direction
counts as off only if it is off both against the incumbent and against the twin, since either may
carry a rounding bias of its own that an honest candidate need not share.

Which experts of a Mixture-of-Experts model rounding reaches is a matter of luck: a token whose two best experts lie
close goes elsewhere, and the experts concerned, a few of hundreds, learn several times as much of something else as
they would by rounding alone. So tensors of experts, known by two or more numbers in their names, are measured by
what the twin did to the worst of them, by kind of matrix.

Masked are tensors whose update harmless perturbations change far more than any other's: they carry no
information (a key bias of softmax attention learns only rounding noise). Of a masked tensor only the
size of its difference is bounded. Figures and margins: scripts/bench/bands.py.

Not covered: what starts after the run's length, and differences of the size of rounding that point in
no direction named here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError
from rsi_tui.evaluator.compare import TensorUpdate, UpdateReport
from rsi_tui.journal.facts import BandFacts, InvariantFacts

HARMLESS_FACTOR = 10.0
FLOORS = {"total": 5e-5, "tensor": 2e-4, "row": 3e-3, "moments": 1e-5}
"""Relative errors that are always let through: on the bundled workload half-way, on a log scale, between what
float32 sums in another order do (3e-6, 1.4e-5, 5e-4, 5e-7) and the quietest cheat (9e-4, 2e-3, 2e-2, 7e-5)."""
ROUNDING_FACTOR = 3.0
"""Multiple of the twin's difference, in all and in the worst tensor; honest bf16 changes reach 1.5."""
ROW_FACTOR = 4.0
"""The same for the worst row, whose largest is a matter of luck; honest bf16 changes reach 2.5."""
MOMENTS_FACTOR = 3.0
"""The same for the optimizer's state as a whole; honest bf16 changes reach 1.8."""
SIZE_T = 10.0
"""Standard errors of the mean size along the update; honest bf16 changes reach 3.5, learning rate x 0.995 45."""
SIZE_FLOOR = 2e-4
"""Mean size along the update that is always let through under bf16: two hundredths of a per cent."""
WEIGHTS_Z = 10.0
"""Projection on the weights in units of random scatter; honest bf16 reaches 3.5, no weight decay 490."""
UNREPRODUCIBLE = 0.1
"""Harmless relative error of a tensor from which on it is masked in any case ..."""
OUTLIER, OUTLIER_FLOOR = 100.0, 1e-3
"""... and multiple of the median tensor's from which on it is masked too, if it reaches the floor: an
outlier would widen the band of every other tensor."""
MASKED_CAP = 0.05
MASKED_SIZE = 3.0
"""Size an element of a masked tensor's difference, in units of the largest update an element of any other."""
COARSE_CAP = 0.5
_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
"""a number that is a part of a name by itself, as in layers.2.experts.5.w1"""

LAYOUT, COUNTERS, STORED = "parameters and layout", "number of updates", "stored precision"
TOTAL, TENSOR, ROW = "learned update, all tensors", "learned update, worst tensor", "learned update, worst row"
MOMENTS, SIZE, WEIGHTS = "optimizer state", "size along the update", "projection on the weights"
MASKED = "tensors without information"


@dataclass(frozen=True)
class Kind:
    """One kind of difference that has bands: its names, and how much room it is given."""

    prefix: str
    """before the names of its bands"""
    floors: Mapping[str, float]
    """relative error in fp32 that is always let through: total, tensor, row, and moments where they are compared"""
    factors: Mapping[str, float]
    """bf16: multiple of the twin's difference, for each of the floors that is tested there"""
    names: Mapping[str, str]
    """names of its invariants: for each floor, and for size, weights and masked; no weights: not tested"""
    weights_z: float = WEIGHTS_Z

    @property
    def tested(self) -> tuple[str, ...]:
        """The sizes that both bands test, total first."""
        return tuple(self.floors)


LEARNED = Kind(
    prefix="",
    floors=FLOORS,
    factors={"total": ROUNDING_FACTOR, "tensor": ROUNDING_FACTOR, "row": ROW_FACTOR, "moments": MOMENTS_FACTOR},
    names={
        "total": TOTAL, "tensor": TENSOR, "row": ROW, "moments": MOMENTS, "size": SIZE, "weights": WEIGHTS,
        "masked": MASKED,
    },
)  # fmt: skip
"""The update that a whole run learned."""


# --- calibration ------------------------------------------------------------------------------


def calibrate(
    harmless: Sequence[UpdateReport],
    twins: Sequence[UpdateReport],
    contract: Contract,
    *,
    kind: Kind = LEARNED,
    masked: frozenset[str] = frozenset(),
) -> tuple[BandFacts, ...]:
    """The bands of one workload on one machine.

    `harmless`: reports of perturbed baseline runs against the plain one; `twins`: of bf16 runs of the
    baseline; `masked`: tensors that are known already to carry no information. Raises ContractError when a
    perturbation changes the layout, or when so much is masked that learned updates say nothing.
    """
    for report in (*harmless, *twins):
        if not report.comparable or report.problems:
            found = report.problems[0] if report.problems else "no tensors"
            raise ContractError(f"a harmless perturbation or twin of the baseline changes its checkpoint: {found}.")
    masked = masked | _masked(harmless)
    share = _masked_share(harmless, masked)
    if share > MASKED_CAP:
        raise ContractError(
            f"{100 * share:.0f} % of the parameters learn something else when only harmless settings change; remove what is "
            'not harmless from [invariants] harmless, or set weights = "statistical".'
        )
    bands = [_fp32_band(kind, name, harmless, masked, share) for name in kind.tested]
    if contract.invariants.precision == "bf16" and twins:
        bands += _bf16_bands(kind, twins, masked, share)
    return tuple(bands)


def _masked(harmless: Sequence[UpdateReport]) -> frozenset[str]:
    found: set[str] = set()
    for report in harmless:
        typical = median(row.error for row in report.rows)
        limit = min(UNREPRODUCIBLE, max(OUTLIER * typical, OUTLIER_FLOOR))
        found.update(row.name for row in report.rows if row.error >= limit)
    return frozenset(found)


def _masked_share(harmless: Sequence[UpdateReport], masked: frozenset[str]) -> float:
    if not harmless:
        return 0.0
    rows = harmless[0].rows
    return sum(row.numel for row in rows if row.name in masked) / max(1, sum(row.numel for row in rows))


def _fp32_band(
    kind: Kind, name: str, harmless: Sequence[UpdateReport], masked: frozenset[str], share: float
) -> BandFacts:
    floor = kind.floors[name]
    worst = max((_errors(report, masked)[name] for report in harmless), default=0.0)
    if HARMLESS_FACTOR * worst > floor:
        how = f"{HARMLESS_FACTOR:g} x the largest of {len(harmless)} harmless perturbations of the baseline"
    elif harmless:
        how = f"the floor of float32 sums; {len(harmless)} harmless perturbations of the baseline stay far below"
    else:
        how = "the floor of float32 sums; the contract names no harmless perturbations to calibrate on"
    return BandFacts(
        name=f"{kind.prefix}fp32 {name}", limit=max(HARMLESS_FACTOR * worst, floor), how=how, harmless_max=worst,
        masked=tuple(sorted(masked)), masked_share=share,
    )  # fmt: skip


def _bf16_bands(kind: Kind, twins: Sequence[UpdateReport], masked: frozenset[str], share: float) -> list[BandFacts]:
    kept = [row for report in twins for row in report.rows if row.name not in masked]
    scales: dict[str, dict[str, float]] = {
        "total": {"": max(_errors(report, masked)["total"] for report in twins)},
        "tensor": _largest((row.name, row.error) for row in kept),
        "row": _largest((row.name, row.row_error) for row in kept),
        "moments": _largest((moment.kind, moment.error) for report in twins for moment in report.moments),
    }
    return [
        BandFacts(
            name=f"{kind.prefix}bf16 {name}", limit=kind.factors[name],
            how="multiple of the bf16 twin's own difference", harmless_max=1.0,
            masked=tuple(sorted(masked)), masked_share=share, scale=scale,
        )
        for name, scale in scales.items()
        if name in kind.factors
    ]  # fmt: skip


def _largest(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        found[name] = max(value, found.get(name, 0.0))
    return found


def _errors(report: UpdateReport, masked: frozenset[str]) -> dict[str, float]:
    """Relative errors by kind of band, masked tensors left out."""
    rows = [row for row in report.rows if row.name not in masked]
    difference = math.hypot(*(row.difference_norm for row in rows))
    update = math.hypot(*(row.update_norm for row in rows))
    return {
        "total": difference / update if update > 0 else (math.inf if difference > 0 else 0.0),
        "tensor": max((row.error for row in rows), default=0.0),
        "row": max((row.row_error for row in rows), default=0.0),
        "moments": max((moment.error for moment in report.moments), default=0.0),
    }


# --- judgement --------------------------------------------------------------------------------


def judge(
    report: UpdateReport,
    bands: Sequence[BandFacts],
    contract: Contract,
    *,
    twin: UpdateReport | None = None,
    kind: Kind = LEARNED,
) -> tuple[InvariantFacts, ...]:
    """What a candidate's learned update says of each invariant.

    `report`: the candidate against the incumbent of its block; `twin`: the bf16 twin against the same
    incumbent, None where there was none. A candidate within the fp32 band is judged by it; any other by
    the bf16 band where the contract allows it and calibration brought one.
    """
    layout = (_layout(report), _counters(report), _stored(report))
    if not report.comparable:
        return layout
    return (*layout, *judge_sizes(report, bands, contract, twin=twin, kind=kind))


def judge_sizes(
    report: UpdateReport, bands: Sequence[BandFacts], contract: Contract, *, twin: UpdateReport | None, kind: Kind
) -> tuple[InvariantFacts, ...]:
    """What the differences alone say, layout, counters and stored precision apart."""
    known = {band.name.removeprefix(kind.prefix): band for band in bands if band.name.startswith(kind.prefix)}
    masked = frozenset(known["fp32 total"].masked) if "fp32 total" in known else frozenset()
    first = _fp32(kind, report, known, masked)
    allowed = contract.invariants.precision == "bf16" and "bf16 tensor" in known
    if allowed and any(fact.status == "broken" for fact in first):
        first = _bf16(kind, report, twin, known, masked)
    return (*first, *_masked_sizes(kind, report, masked))


def judge_layout(report: UpdateReport) -> tuple[InvariantFacts, ...]:
    """Of a report only what holds whatever was learned: the same tensors, and as many updates."""
    return _layout(report), _counters(report)


def _fact(name: str, value: float, limit: float, how: str) -> InvariantFacts:
    held = math.isfinite(value) and value <= limit
    return InvariantFacts(
        name=name, status="held" if held else "broken", value=value if math.isfinite(value) else None, limit=limit, how=how
    )


def _layout(report: UpdateReport) -> InvariantFacts:
    how = f"must be none: {report.problems[0]}" if report.problems else "same tensors, shapes, dtypes, all finite"
    count = len(report.problems) or (0 if report.comparable else 1)
    return _fact(LAYOUT, float(count), 0.0, how)


def _counters(report: UpdateReport) -> InvariantFacts:
    if not report.reference_counters:
        return InvariantFacts(
            name=COUNTERS, status="not_covered", value=None, limit=None, how="the checkpoint holds no step counter"
        )
    same = report.counters == report.reference_counters
    value = max(report.counters, default=None)
    return InvariantFacts(
        name=COUNTERS, status="held" if same else "broken", value=value, limit=max(report.reference_counters),
        how="step counters in the checkpoint equal the incumbent's",
    )  # fmt: skip


def _stored(report: UpdateReport) -> InvariantFacts:
    value = max(report.coarser, *(moment.coarser for moment in report.moments), 0.0)
    return _fact(STORED, value, COARSE_CAP, "share of float32 values with 16 bits of content, beyond the incumbent's share")


def _fp32(
    kind: Kind, report: UpdateReport, bands: dict[str, BandFacts], masked: frozenset[str]
) -> tuple[InvariantFacts, ...]:
    errors = _errors(report, masked)
    facts = []
    for key in kind.tested:
        if key == "moments" and not report.moments:
            continue
        band = bands.get(f"fp32 {key}")
        limit, how = (band.limit, band.how) if band else (kind.floors[key], "the floor of float32 sums; not calibrated")
        facts.append(_fact(kind.names[key], errors[key], limit, f"relative error in fp32; {how}"))
    return tuple(facts)


def _bf16(
    kind: Kind, report: UpdateReport, twin: UpdateReport | None, bands: dict[str, BandFacts], masked: frozenset[str]
) -> tuple[InvariantFacts, ...]:
    rows = [row for row in report.rows if row.name not in masked]
    twins = {row.name: row for row in twin.rows if row.name not in masked} if twin else {}
    factors, names = kind.factors, kind.names
    total = bands["bf16 total"].scale
    scale = _unit(bands["bf16 tensor"].scale, {name: row.error for name, row in twins.items()})
    whole = max(total.get("", 0.0), _errors(twin, masked)["total"] if twin else 0.0)
    error = _errors(report, masked)["total"]
    how = f"relative error under bf16: {factors['total']:g} x the bf16 twin's"
    facts = [
        _fact(names["total"], error, factors["total"] * whole, how),
        _in_units(kind, "tensor", ((row.name, row.error, scale.get(row.name, 0.0)) for row in rows)),
    ]
    if "bf16 row" in bands:
        in_row = _unit(bands["bf16 row"].scale, {name: row.row_error for name, row in twins.items()})
        in_rows = ((row.name, row.row_error, in_row.get(row.name, 0.0)) for row in rows)
        facts.append(_in_units(kind, "row", in_rows))
    if report.moments and "bf16 moments" in bands:
        calibrated = bands["bf16 moments"].scale
        beside = {moment.kind: moment.error for moment in twin.moments} if twin else {}
        units = ((m.kind, m.error, max(calibrated.get(m.kind, 0.0), beside.get(m.kind, 0.0))) for m in report.moments)
        facts.append(_in_units(kind, "moments", units))
    facts.append(_size(names["size"], rows, twins))
    return (*facts, _weights(kind, rows, twins, scale)) if "weights" in names else tuple(facts)


def _unit(calibrated: Mapping[str, float], beside: Mapping[str, float]) -> dict[str, float]:
    """What the twin moved in each tensor, at the calibration or in this block; experts by the worst of their peers."""
    unit: dict[str, float] = {}
    for name in (*calibrated, *beside):
        kin = peers(name)
        unit[kin] = max(unit.get(kin, 0.0), calibrated.get(name, 0.0), beside.get(name, 0.0))
    return {name: unit[peers(name)] for name in (*calibrated, *beside)}


def peers(name: str) -> str:
    """A name that experts of the same kind of matrix share, of all layers; the name itself for any other tensor."""
    return _NUMBER.sub("*", name) if len(_NUMBER.findall(name)) > 1 else name


def _in_units(kind: Kind, key: str, values: Iterable[tuple[str, float, float]]) -> InvariantFacts:
    """The worst (value, scale) by their quotient; where the twin moved nothing the fp32 floor is the unit."""
    where, worst = "", 0.0
    for label, value, scale in values:
        quotient = value / max(scale, kind.floors["tensor"])
        if not quotient <= worst:
            where, worst = label, quotient
    how = f"in units of the bf16 twin's own difference, worst in {where or 'none'}"
    return _fact(kind.names[key], worst, kind.factors[key], how)


def _size(name: str, rows: Sequence[TensorUpdate], twins: dict[str, TensorUpdate]) -> InvariantFacts:
    """Mean over tensors of the size along the update: the value nearer to zero of incumbent and twin."""
    against = [[row.along_update for row in rows]]
    if twins:
        against.append([row.along_update - twins[row.name].along_update for row in rows])
    best_value, best_limit = math.inf, SIZE_FLOOR
    for values in against:
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        value, limit = abs(fmean(values)), max(SIZE_T * error, SIZE_FLOOR)
        if value / limit < best_value / best_limit:
            best_value, best_limit = value, limit
    how = f"mean over tensors, fraction of the update; {SIZE_T:g} standard errors, at least {SIZE_FLOOR:g}"
    return _fact(name, best_value, best_limit, how)


def _weights(
    kind: Kind, rows: Sequence[TensorUpdate], twins: dict[str, TensorUpdate], scale: dict[str, float]
) -> InvariantFacts:
    """Worst tensor's projection of the difference on the weights, in units of what random scatter gives."""
    where, worst = "", 0.0
    for row in rows:
        if row.weight_norm <= 0.0:
            continue
        size = max(row.difference_norm, scale.get(row.name, 0.0) * row.update_norm)
        noise = size / (row.weight_norm * math.sqrt(max(1, row.numel)))
        beside = twins[row.name].along_weights if row.name in twins else 0.0
        z = min(abs(row.along_weights), abs(row.along_weights - beside)) / noise if noise > 0 else 0.0
        if z > worst:
            where, worst = row.name, z
    return _fact(kind.names["weights"], worst, kind.weights_z, f"in units of random scatter, worst in {where or 'none'}")


def _masked_sizes(kind: Kind, report: UpdateReport, masked: frozenset[str]) -> tuple[InvariantFacts, ...]:
    """A masked tensor says nothing in detail, but must not grow out of bounds either."""
    if not masked:
        return ()
    ordinary = max((_rms(row.update_norm, row) for row in report.rows if row.name not in masked), default=0.0)
    largest = max((_rms(row.difference_norm, row) for row in report.rows if row.name in masked), default=0.0)
    value = largest / ordinary if ordinary > 0 else math.inf
    names = ", ".join(sorted(masked)[:3]) + (", ..." if len(masked) > 3 else "")
    return (_fact(kind.names["masked"], value, MASKED_SIZE, f"only their size is bounded, harmless changes alter them: {names}"),)


def _rms(norm: float, row: TensorUpdate) -> float:
    return norm / math.sqrt(max(1, row.numel))

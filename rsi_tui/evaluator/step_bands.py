"""A few updates from saved states: which differences are harmless, and what points along a named part. Pure.

Rounding can't build up in so few: from the same state, on the same batches, honest changes in float32 differ by
a few units in the seventh digit at any time of a run, so the limits are far below those of a whole run. Compared
are the update of the weights, and the optimizer's first moment, which gradients move and nothing else does. The bands are those of `bands`: fp32 from harmless perturbations, bf16 in units of the twin.

Under bf16 what a change leaves out of the gradient can be smaller than rounding in every tensor. Rounding points
nowhere, though, and what is left out points against the gradient of what was left out: so the difference is laid
beside each part of the gradient that the workload names (low-loss tokens, rare rows, each expert). The figure is
the cosine of the two over all tensors, the difference taken for at least as large as the twin's, and as the fp32
limit: it can't be large where there is no difference to speak of. It counts as off only if it is off both against
the original and against its twin: rounding to bf16 has a direction of its own, which may be a part's (a cosine of
-0.64 with that of low-loss tokens was seen) and which an honest change need not share.

Under bf16 rows of the weights' update are not tested: an optimizer that divides by the size of past gradients
makes of rounding in a row that hardly ever learns an update of the usual size. Rows of the first moment are.
Figures and margins: scripts/bench/one_step.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.bands import Kind, calibrate, judge, judge_sizes
from rsi_tui.evaluator.compare import Part, UpdateReport
from rsi_tui.journal.facts import FROM_A_STATE, BandFacts, InvariantFacts

UPDATE = Kind(
    prefix="saved state ",
    floors={"total": 2e-5, "tensor": 1e-4, "row": 3e-4, "moments": 2e-6},
    factors={"total": 3.0, "tensor": 4.0, "moments": 3.0},
    names={
        "total": "update from a saved state, all tensors", "tensor": "update from a saved state, worst tensor",
        "row": "update from a saved state, worst row", "moments": "optimizer state after a saved state",
        "size": "size of the update from a saved state", "weights": "update from a saved state along the weights",
        "masked": "update from a saved state, tensors without information",
    },
    weights_z=45.0,  # honest stacks of bf16 changes reach 33; decay left out late and late label smoothing lie above 45
)  # fmt: skip
"""What the updates changed in the weights."""
GRADIENT = Kind(
    prefix="first moment ",
    floors={"total": 5e-6, "tensor": 5e-5, "row": 1e-4},
    factors={"total": 3.0, "tensor": 4.0, "row": 5.0},
    names={
        "total": "first moment, all tensors", "tensor": "first moment, worst tensor", "row": "first moment, worst row",
        "size": "size of the gradient", "masked": "first moment, tensors without information",
    },
)  # fmt: skip
"""What they changed in the optimizer's first moment: the gradient, as the optimizer was given it."""
PART_LIMIT = 0.5
"""Cosine with a part of the gradient; honest bf16 changes reach 0.2, low-loss tokens without backward 0.94."""
PART = "gradient of "
"""start of the name of an invariant; the part's own name follows"""


def calibrate_steps(
    harmless: Sequence[UpdateReport], twins: Sequence[UpdateReport], contract: Contract, masked: frozenset[str]
) -> tuple[BandFacts, ...]:
    """The bands of updates from saved states, over all states.

    `harmless`, `twins`: reports of updates of the perturbed baseline and of its bf16 twin against the plain
    one's; `masked`: tensors that whole runs showed to carry no information. Raises ContractError as `calibrate` does.
    """
    bands = calibrate(harmless, twins, contract, kind=UPDATE, masked=masked)
    if not any(report.gradients for report in (*harmless, *twins)):
        return bands
    ours, theirs = [_gradients(r) for r in harmless], [_gradients(r) for r in twins]
    return (*bands, *calibrate(ours, theirs, contract, kind=GRADIENT, masked=masked))


def judge_step(
    report: UpdateReport, bands: Sequence[BandFacts], contract: Contract, *, twin: UpdateReport | None, after: str
) -> tuple[InvariantFacts, ...]:
    """What a candidate's updates say of each invariant; `after`: from which state they were made, in words."""
    found = [*judge(report, bands, contract, twin=twin, kind=UPDATE)]
    if report.gradients:
        theirs = _gradients(twin) if twin is not None else None
        found += judge_sizes(_gradients(report), bands, contract, twin=theirs, kind=GRADIENT)
    masked = frozenset(name for band in bands if band.name == f"{GRADIENT.prefix}fp32 total" for name in band.masked)
    found += [judge_part(part, _same(part, twin), masked) for part in report.parts]
    return tuple(fact.model_copy(update={"how": f"{fact.how}; {FROM_A_STATE} {after}"}) for fact in found)


def judge_part(part: Part, twin: Part | None, masked: frozenset[str] = frozenset()) -> InvariantFacts:
    """Does the difference point along a named part of the gradient?"""
    name = f"{PART}{part.name.replace('_', ' ')}"
    rows = [row for row in part.rows if row.name not in masked]
    size = _norm(row.part_norm for row in rows)
    if size <= 0.0:
        return InvariantFacts(name=name, status="not_covered", value=None, limit=None, how="nothing of it was in the batch")
    beside = [row for row in twin.rows if row.name not in masked] if twin else []
    noise = max(_norm(r.difference_norm for r in some) for some in (rows, beside))
    noise = max(noise, GRADIENT.floors["total"] * _norm(row.change_norm for row in rows))
    along, theirs = sum(row.along for row in rows), sum(row.along for row in beside)
    cosine = min((along, along - theirs), key=abs) / (size * noise) if noise > 0.0 else 0.0
    how = f"size of the cosine between what differs and this part; {cosine:+.2f}: the candidate's has {_words(cosine)} of it"
    held = abs(cosine) <= PART_LIMIT
    return InvariantFacts(
        name=name, status="held" if held else "broken", value=abs(cosine), limit=PART_LIMIT, how=how
    )


def _words(cosine: float) -> str:
    return "as much" if abs(cosine) <= PART_LIMIT else "less" if cosine < 0 else "more"


def _gradients(report: UpdateReport) -> UpdateReport:
    """A report whose rows are those of the first moments."""
    return report.model_copy(update={"rows": report.gradients, "moments": ()})


def _same(part: Part, twin: UpdateReport | None) -> Part | None:
    """The same part of the twin's report."""
    return next((other for other in twin.parts if other.name == part.name), None) if twin is not None else None


def _norm(values: Iterable[float]) -> float:
    return math.hypot(*values)

"""Learns as well: hidden loss over fresh seeds, where a change may learn other weights (`weights = "statistical"`).

Pairs of runs, incumbent and candidate with the same fresh seed and length, each validated on hidden data.
The candidate passes when an upper bound of the mean of

    (candidate's loss - incumbent's loss) / incumbent's loss

lies within the contract's `loss_margin`. The bound is a one-sided paired t bound, looked at after 8 pairs and,
where those leave it open, after 16.

Error rate: a candidate that is worse by exactly the margin passes in at most 1 % of cases. The nominal level of
a look is far below that (4e-5), because differences need not be normal: at the usual 1 % the t test of eight
pairs accepts 7 % when they are as skewed as an exponential law, and so it is at this level that such
differences, too, stay under 1 % (simulated in tests/evaluator/test_noninferior.py; with normal ones it is under
0.1 %). The price is power: a candidate as good as the incumbent passes almost surely when the margin is at least
twice the standard deviation of a pair's difference, and hardly below 1.

Does not promise more: this is the error of one verdict, not of all verdicts of a campaign; a candidate that
fails to learn on one seed in twenty can pass; loss at the lengths run is all that is compared. With it goes
what must be the same whatever was learned: tensors, shapes, dtypes, and the number of updates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from scipy import stats

from rsi_tui.evaluator.blocks import (
    MAX_VOID,
    BlockOutcome,
    BlockPlan,
    Slot,
    died,
    draw_block,
    run_block,
)
from rsi_tui.evaluator.draws import shuffled
from rsi_tui.evaluator.judging import WORST, CheckpointJudge, hidden_losses
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, worst_of
from rsi_tui.journal.facts import CandidateFacts, InvariantFacts

NAME = "hidden loss over fresh seeds"
LOOKS = (8, 16)
"""numbers of pairs after which the bound is looked at"""
LEVEL = 4e-5
"""nominal level of the t bound at each look"""
ERROR = 0.01
"""what the rate of wrong passes stays under"""


@dataclass(frozen=True)
class Look:
    """What the pairs so far say."""

    decision: Literal["held", "broken", "open", "hopeless"]
    """open: further pairs may decide; hopeless: worse than the margin on average, though not surely"""
    mean: float
    low: float
    high: float
    """one-sided bounds of the mean, each at LEVEL"""


def look(worsenings: Sequence[float], margin: float) -> Look:
    """The decision on relative worsenings of the loss, one a pair; at least two."""
    mean, count = fmean(worsenings), len(worsenings)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in worsenings) / (count - 1))
    half = _quantile(count) * deviation / math.sqrt(count)
    low, high = mean - half, mean + half
    if high <= margin:
        return Look("held", mean, low, high)
    if low > margin:
        return Look("broken", mean, low, high)
    return Look("hopeless" if mean >= margin else "open", mean, low, high)


@functools.cache
def _quantile(count: int) -> float:
    """Of Student's t for so many pairs, at LEVEL."""
    return float(stats.t.ppf(1 - LEVEL, count - 1))


def check_noninferior(
    lab: Lab,
    step: str,
    candidate: CandidateFacts,
    incumbent: CandidateFacts,
    purpose: Literal["verify", "claim"] = "verify",
) -> Checked:
    """Does the candidate learn as well as the incumbent over fresh seeds? `purpose` names the hidden set.

    Broken when it is surely worse than the margin, or writes another layout; `trouble` when the pairs leave it open.
    """
    if not lab.holdouts:
        return Checked(trouble="the contract names no validation, so nothing tells whether the candidate learns as well")
    pairs = SeedPairs(lab.contract.invariants.loss_margin)
    number = voided = 0
    while not pairs.decided and voided <= MAX_VOID:
        number += 1
        outcome = _pair(lab, f"{step}/p{number}", candidate, incumbent, purpose)
        pairs.layout = worst_of((*pairs.layout, *(f for facts in outcome.invariants.values() for f in facts)))
        if any(fact.status == "broken" for fact in pairs.layout):
            return Checked(invariants=pairs.layout)
        losses = hidden_losses(lab, f"{step}/p{number}")
        failed = next((f for f in outcome.of(candidate) if died(f)), None)
        if failed is not None and not outcome.void:
            return Checked(pairs.layout, f"run {failed.id} of the candidate ended as {failed.outcome}: {failed.detail}")
        if outcome.void or losses is None:
            voided += 1
        else:
            pairs.add(*losses)
    if not pairs.decided:
        return Checked(pairs.layout, trouble=f"{voided} pairs of fresh seeds did not count, the last because {outcome.void}")
    return pairs.checked()


class SeedPairs:
    """The pairs that count, and what they say at the looks."""

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self.layout: tuple[InvariantFacts, ...] = ()
        self._worsenings: list[float] = []
        self._look: Look | None = None
        self._unusable = False

    def add(self, incumbent: float, candidate: float) -> None:
        """Losses of one pair; one that could not be validated decides at once."""
        self._unusable = candidate >= WORST
        self._worsenings.append((candidate - incumbent) / max(abs(incumbent), 1e-12))
        if len(self._worsenings) in LOOKS and not self._unusable:
            self._look = look(self._worsenings, self.margin)

    @property
    def decided(self) -> bool:
        enough = len(self._worsenings) >= LOOKS[-1]
        return self._unusable or enough or (self._look is not None and self._look.decision != "open")

    def checked(self) -> Checked:
        """The invariant, and where it is open the words for it."""
        if self._unusable or self._look is None:
            how = "a checkpoint of the candidate could not be validated, where the incumbent's could"
            return Checked((*self.layout, InvariantFacts(name=NAME, status="broken", value=None, limit=self.margin, how=how)))
        found, count = self._look, len(self._worsenings)
        broken = found.decision == "broken"
        how = (
            f"{'lower' if broken else 'upper'} bound of the mean worsening over {count} fresh seeds, fraction of the incumbent's "
            f"loss; limit: the contract's loss_margin, which a candidate worse by as much passes in at most {100 * ERROR:.0f} % of cases"
        )
        if found.decision in ("held", "broken"):
            value = found.low if broken else found.high
            return Checked((*self.layout, _fact("broken" if broken else "held", value, self.margin, how)))
        trouble = (
            f"{count} fresh seeds do not show that it learns as well: its hidden loss is {found.mean:+.2%} on average and may be "
            f"{found.high:+.2%}, where the contract allows {self.margin:+.2%}"
        )
        return Checked((*self.layout, _fact("not_covered", found.high, self.margin, how)), trouble=trouble)


def _fact(status: Literal["held", "broken", "not_covered"], value: float, limit: float, how: str) -> InvariantFacts:
    return InvariantFacts(name=NAME, status=status, value=value, limit=limit, how=how)


def _pair(
    lab: Lab, step: str, candidate: CandidateFacts, incumbent: CandidateFacts, purpose: Literal["verify", "claim"]
) -> BlockOutcome:
    """One pair; both checkpoints are validated, the candidate's layout is compared."""
    block, draw, commitment = draw_block(lab, step, lambda: shuffled(("A", "B"), lab.randbelow))
    plan = BlockPlan(
        id=block,
        step=step,
        purpose=purpose,
        kind=purpose,
        incumbent=incumbent,
        candidates=(candidate,),
        setup=(),
        timed=tuple(Slot("candidate", candidate) if x == "B" else Slot("incumbent", incumbent) for x in draw.order),
        draw=draw,
        commitment=commitment,
        judge=CheckpointJudge(lab, compare=False, holdout=purpose, over_seeds=True),
        sealed=True,
        timing=False,
    )
    return run_block(lab, plan)

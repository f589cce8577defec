"""What pairs of a claim are taken for: those that count, and what is broken in any."""

from __future__ import annotations

import pytest

from rsi_tui.evaluator.blocks import CONDUCT, BlockOutcome
from rsi_tui.evaluator.prove import _Pairs, _take
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, InvariantFacts
from tests.support.story import trial

THE_ORIGINAL = CandidateFacts(id=ORIGINAL, commit="0" * 40, base="0" * 40)
STACK = CandidateFacts(id="c1", commit="1" * 40, base="0" * 40, parent=ORIGINAL)
HELD = InvariantFacts(name="learned update", status="held", value=0.1, limit=0.2, how="by harmless changes")
BROKEN = InvariantFacts(name=CONDUCT, status="broken", value=None, limit=None, how="progress lines that no run prints")


def pair(*found: InvariantFacts, void: str = "") -> BlockOutcome:
    runs = [trial(1, ORIGINAL, "claim", "incumbent", 0.12), trial(2, "c1", "claim", "candidate", 0.1)]
    return BlockOutcome(plan=None, timed=runs, invariants={"t2": found} if found else {}, void=void)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "invariants", "counting"),
    [
        ((pair(HELD), pair()), (HELD,), 2),
        ((pair(HELD, void="t1 was not measured"),), (), 0),
        ((pair(BROKEN, void="t1 was not measured"),), (BROKEN,), 0),
        ((pair(HELD, BROKEN, void="t1 was not measured"),), (BROKEN,), 0),
        ((pair(HELD), pair(BROKEN)), (HELD, BROKEN), 2),
    ],
)
def test_what_a_pair_breaks_is_kept_whether_it_counts_or_not(
    outcomes: tuple[BlockOutcome, ...], invariants: tuple[InvariantFacts, ...], counting: int
) -> None:
    pairs = _Pairs()
    for outcome in outcomes:
        _take(pairs, outcome, THE_ORIGINAL, STACK)
    assert pairs.invariants == invariants
    assert len(pairs.base) == len(pairs.ours) == counting
    assert bool(pairs.reasons) == (BROKEN in invariants)

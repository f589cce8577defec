"""A campaign never risks more than its error probability, whatever is proven, handed on or taken back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.errors import GateError, JournalError
from rsi_tui.evaluator.eprocess import EProcess
from rsi_tui.evaluator.ledger import AlphaLedger, campaign_alpha

ALPHA = 0.006
outcomes = st.lists(st.tuples(st.booleans(), st.one_of(st.none(), st.floats(1, 1e5))), max_size=40)


def test_all_campaigns_of_a_workload_together_stay_under_their_total() -> None:
    assert campaign_alpha(1) == pytest.approx(0.00607927)
    assert sum(campaign_alpha(k) for k in range(1, 5000)) < 0.01
    assert campaign_alpha(1, total=0.05) == pytest.approx(5 * campaign_alpha(1))


@given(st.integers(1, 30), st.lists(st.booleans(), max_size=40))
def test_a_campaign_never_risks_more_than_its_alpha(planned: int, outcomes: list[bool]) -> None:
    ledger = AlphaLedger(0.006, planned)
    for proven in outcomes:
        if not ledger.left:
            break
        ledger.settle(proven)
    assert sum(alpha for alpha, proven in ledger.settled if not proven) <= 0.006 * (1 + 1e-9)
    again = AlphaLedger.replay(0.006, planned, ledger.settled)
    assert again.settled == ledger.settled and again.left == ledger.left


def test_a_proven_candidate_hands_its_share_on() -> None:
    ledger = AlphaLedger(0.004, 4)
    shares = []
    for proven in (True, True, False, False):
        shares.append(ledger.next_alpha())
        ledger.settle(proven)
    assert shares == pytest.approx([0.001, 0.002, 0.003, 0.001])
    with pytest.raises(GateError, match="max_verifications"):
        ledger.next_alpha()


def test_a_record_that_spent_what_it_had_not_is_refused() -> None:
    with pytest.raises(JournalError, match="verification 2"):
        AlphaLedger.replay(0.004, 4, [(0.001, False), (0.002, False)])


def settled(planned: int, results: list[tuple[bool, float | None]], alpha: float = ALPHA) -> AlphaLedger:
    """A ledger after these verifications; a proven one has at least the e-value that its share asked for."""
    ledger = AlphaLedger(alpha, planned)
    for proven, evalue in results:
        if not ledger.left:
            break
        ledger.settle(proven, evalue if evalue is None or not proven else max(evalue, 1 / ledger.next_alpha()))
    return ledger


def at_risk(ledger: AlphaLedger) -> float:
    """What was spent and what is still to be spent."""
    unspent = ledger.alpha / ledger.planned * max(0, ledger.planned - len(ledger.settled))
    handed_on = ledger.settled[-1][0] if ledger.settled and ledger.settled[-1][1] else 0.0
    return sum(share for share, proven in ledger.settled if not proven) + unspent + handed_on


@given(st.integers(1, 30), outcomes, st.lists(st.integers(1, 40), max_size=5))
def test_revoking_never_frees_error_probability(
    planned: int, results: list[tuple[bool, float | None]], revoked: list[int]
) -> None:
    ledger = settled(planned, results)
    for number in revoked:
        if number <= len(ledger.settled):
            before = list(ledger.settled)
            ledger.revoke(number)
            assert not ledger.settled[number - 1][1]
            for (had, was), (has, still) in zip(before, ledger.settled, strict=True):
                assert has <= had * (1 + 1e-9) and still <= was
    assert at_risk(ledger) == pytest.approx(ALPHA)


@given(st.integers(2, 30), outcomes, st.integers(1, 40))
def test_what_stands_after_a_revocation_is_what_would_have_been_proven_without_it(
    planned: int, results: list[tuple[bool, float | None]], number: int
) -> None:
    ledger = settled(planned, [(proven, evalue or 1.0) for proven, evalue in results])
    if number > len(ledger.settled):
        return
    evalues = [max(evalue or 1.0, 1 / share) if proven else 0.0
               for (share, proven), (_, evalue) in zip(ledger.settled, results, strict=False)]  # fmt: skip
    was = [proven for _, proven in ledger.settled]
    reopened = ledger.revoke(number)
    again = AlphaLedger(ALPHA, planned)
    for place, evalue in enumerate(evalues, 1):
        share = again.next_alpha() if again.left else 0.0
        proven = place != number and evalue * share >= 1 - 1e-9
        assert ledger.settled[place - 1] == (pytest.approx(share), proven)
        assert (place in reopened) == (place != number and was[place - 1] and not proven)
        if again.left:
            again.settle(proven)


def test_a_false_proof_stays_rare_though_true_ones_are_revoked_at_will() -> None:
    rng, campaigns, false = np.random.default_rng(8), 4000, 0
    for _ in range(campaigns):
        ledger, real = AlphaLedger(0.1, 6), rng.random(6) < 0.5
        for number in range(6):
            # a null's e-process reaches 1/a with probability a at most: here exactly
            evalue = 1e9 if real[number] else 1 / rng.random()
            ledger.settle(evalue * ledger.next_alpha() >= 1, evalue)
        for number in np.flatnonzero(real & (rng.random(6) < 0.5)):
            ledger.revoke(int(number) + 1)
        false += any(proven and not r for (_, proven), r in zip(ledger.settled, real, strict=True))
    assert 0.02 < false / campaigns < 0.1


def test_what_rested_on_a_handed_on_share_is_reopened_down_the_line() -> None:
    ledger = AlphaLedger(0.004, 4)
    for evalue in (5000.0, 800.0, 400.0, 5000.0):
        ledger.settle(True, evalue)
    assert ledger.revoke(1) == (2, 3), "1/800 does not fit 0.001, and without it neither does 1/400"
    assert [proven for _, proven in ledger.settled] == [False, False, False, True]
    assert [share for share, _ in ledger.settled] == pytest.approx([0.001] * 4)
    assert ledger.next_alpha() == pytest.approx(0.001), "the fourth still hands on its own share"
    assert ledger.revoke(2) == (), "what is not proven any more has nothing to take back"
    assert ledger.revoke(4) == () and not ledger.left
    with pytest.raises(ValueError, match="1 to 4"):
        ledger.revoke(5)


def test_without_its_evalue_a_proof_does_not_survive_a_smaller_share() -> None:
    ledger = AlphaLedger(0.004, 4)
    ledger.settle(True, 2000.0)
    ledger.settle(True)
    assert ledger.revoke(1) == (2,)


def test_a_record_with_revocations_is_restored() -> None:
    ledger = AlphaLedger(0.004, 4)
    ledger.settle(True, 2000.0)
    ledger.settle(True, 1500.0)
    ledger.revoke(1)
    ledger.settle(False)
    again = AlphaLedger.replay(0.004, 4, [(0.001, True, 2000.0), (0.002, True, 1500.0), 1, (0.002, False)])
    assert again.settled == ledger.settled == [(0.001, False), (0.001, True), (0.002, False)]
    with pytest.raises(JournalError, match="verification 3"):
        AlphaLedger.replay(0.004, 4, [(0.001, True, 2000.0), (0.002, True, 1500.0), (0.002, False)])


def test_the_evalue_that_is_kept_is_the_highest() -> None:
    process = EProcess(0.01, 0.03, 0.005, 0.2)
    process.add_block("AAABBB", [1.0, 1.0, 1.0, 0.8, 0.8, 0.8])
    high = process.total
    process.add_block("AAABBB", [1.0, 1.0, 1.0, 1.3, 1.3, 1.3])
    assert process.total < high == process.highest

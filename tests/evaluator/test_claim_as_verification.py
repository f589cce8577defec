"""The claim of a stack that no verification has seen asks what a verification asks of every other adoption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rsi_tui.evaluator import prove
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked
from rsi_tui.evaluator.prove import _concluded, _Pairs
from rsi_tui.journal.facts import Arm, CandidateFacts, ClaimFacts, InvariantFacts, TrialFacts
from tests.evaluator.small_program import make_bench

STACK = CandidateFacts(id="c9", commit="c", base="b", parent="original")
HELD = InvariantFacts(name="learned update", status="held", value=0.0, limit=1.0, how="")
FINE = Checked()
BROKEN = InvariantFacts(name="one-step update", status="broken", value=2.0, limit=1.0, how="from the state after 40 updates")


def pairs(gain: float) -> _Pairs:
    """Eight pairs in which the stack was faster by this share of the step time."""

    def run(candidate: str, arm: Arm, n: int, step_s: float) -> TrialFacts:
        steps = 40 + 5 * n
        return TrialFacts(
            id=f"{candidate}{n}", candidate=candidate, kind="claim", arm=arm, block="b", slot=n, steps=steps, outcome="ok",
            started_at="2026-01-01T00:00:00Z", wall_s=0.2 + steps * step_s, startup_s=0.1, step_s=step_s, teardown_s=0.1,
            score_s=step_s * (1 + n / 1000),
        )  # fmt: skip

    ours = [run("c9", "candidate", n, 0.1 * (1 - gain)) for n in range(8)]
    return _Pairs([run("original", "incumbent", n, 0.1) for n in range(8)], ours, (HELD,))


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ClaimFacts]:
    """The claim of such a stack, with what its further checks will say; what was asked lands in `asked`."""
    lab = make_bench(tmp_path, sandboxed=False).lab()
    lab.runs[STACK.id] = [0.09] * 8

    def made(gain: float = 0.1, *, verified: bool = False, step: Checked = FINE, rare: str = "", asked: list[str]) -> ClaimFacts:
        def one_step(_: Lab, name: str, stack: CandidateFacts) -> Checked:
            asked.append("one step")
            return step

        def endure(_: Lab, name: str, stack: CandidateFacts, incumbent: CandidateFacts, theirs: list[TrialFacts]) -> tuple[str, float]:
            asked.append("endurance")
            assert (stack.id, incumbent.id, len(theirs)) == ("c9", "original", 8)
            return rare, 0.1

        monkeypatch.setattr(prove, "has_states", lambda _: True)
        monkeypatch.setattr(prove, "check_one_step", one_step)
        monkeypatch.setattr(prove, "endure", endure)
        return _concluded(lab, "claim", STACK, pairs(gain), (), verified)

    return made


def test_a_verified_stack_is_not_asked_twice(claim: Callable[..., ClaimFacts]) -> None:
    asked: list[str] = []
    assert claim(verified=True, asked=asked).proven and asked == []


def test_what_was_never_verified_is_proven_when_all_of_it_holds(claim: Callable[..., ClaimFacts]) -> None:
    asked: list[str] = []
    found = claim(step=Checked((BROKEN.model_copy(update={"status": "held"}),)), asked=asked)
    assert found.proven and asked == ["one step", "endurance"]
    assert [fact.name for fact in found.invariants if fact.status == "held"] == ["learned update", "one-step update"]


@pytest.mark.parametrize(
    ("step", "rare", "reason", "refuted", "asked"),
    [
        (Checked((BROKEN,)), "", "one-step update is broken", True, ["one step"]),
        (Checked(failed="run t7 ended as crashed"), "", "run t7 ended as crashed", True, ["one step"]),
        (Checked(trouble="the machine failed"), "", "the machine failed", False, ["one step"]),
        (Checked(), "3 of 20 runs took at least 2 times the usual", "3 of 20 runs", True, ["one step", "endurance"]),
    ],
    ids=["another update", "fails from a state", "no answer", "rare disasters"],
)
def test_what_fails_a_condition_of_adoption_is_not_proven_by_its_claim(
    claim: Callable[..., ClaimFacts], step: Checked, rare: str, reason: str, refuted: bool, asked: list[str]
) -> None:
    known: list[str] = []
    found = claim(step=step, rare=rare, asked=known)
    assert not found.proven and known == asked
    assert any(reason in said for said in found.reasons)
    assert bool(found.refuted) == refuted, "what is wrong with the stack itself has the whole one claimed instead"


def test_a_gain_within_the_margin_adopts_nothing_and_costs_no_further_run(claim: Callable[..., ClaimFacts]) -> None:
    asked: list[str] = []
    assert claim(0.004, verified=True, asked=asked).proven
    found = claim(0.004, asked=asked)
    assert not found.proven and not found.refuted and asked == []
    assert "the interval does not lie above the margin of 0.5 %, and no verification has seen this stack" in found.reasons

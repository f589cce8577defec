"""Who is at fault when the unchanged program can't be measured, and what a person is told to do about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rsi_tui.errors import ContractError, RsiError
from rsi_tui.evaluator import baseline, check
from rsi_tui.evaluator.blocks import BlockOutcome, Slot
from rsi_tui.evaluator.lab import HostFault, Interrupted, Lab
from rsi_tui.journal.events import BlockClosed
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, TrialFacts
from rsi_tui.journal.steps import Steps
from tests.support.loops import Writer
from tests.support.story import trial

THE_ORIGINAL = CandidateFacts(id=ORIGINAL, commit="0" * 40, base="0" * 40)
WELL = trial(1, ORIGINAL, "calibration", "incumbent", 0.12)
LOADED = WELL.model_copy(update={"outcome": "not_measured", "detail": "another process took 80 % of a core.", "score_s": None})
CRASHED = WELL.model_copy(update={"outcome": "crashed", "detail": "no such module.", "score_s": None})


class Pairs:
    """Pairs of an unchanged program as they are told, recorded as real ones are."""

    def __init__(self, *told: tuple[TrialFacts, str], extra: str = "") -> None:
        self.told = list(told)
        self.extra = extra
        self.asked: list[str] = []

    def __call__(self, lab: Lab, step: str, judged: bool) -> BlockOutcome:
        known = lab.steps.find(f"{step}/closed")
        facts, void = (LOADED, known.void) if isinstance(known, BlockClosed) else self.told.pop(0)
        self.asked.append(step if known is None else f"{step} read back")
        lab.steps.once(f"{step}/closed", BlockClosed, lambda: BlockClosed(block=step, trials=(), void=void))
        plan: Any = SimpleNamespace(slots=(Slot("incumbent", THE_ORIGINAL, extra=self.extra),))
        return BlockOutcome(plan=plan, timed=[facts], void=void)


def measured(monkeypatch: pytest.MonkeyPatch, pairs: Pairs, writer: Writer) -> BlockOutcome:
    monkeypatch.setattr(baseline, "_run", pairs)
    lab: Any = SimpleNamespace(steps=Steps(writer, writer.events))
    return baseline._pair(lab, "calibration/pair0", judged=True)


def test_faults_of_the_host_end_the_engine_and_the_next_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer()
    disturbed = (LOADED, "t1 was not measured: another process took 80 % of a core.")
    with pytest.raises(HostFault, match=r"3 times in a row.*80 % of a core: see that nothing else runs") as fault:
        measured(monkeypatch, Pairs(*[disturbed] * 3), writer)
    assert isinstance(fault.value, Interrupted) and fault.value.exit_code == 1
    again = Pairs(disturbed, (WELL, ""))
    assert not measured(monkeypatch, again, writer).void
    first = "calibration/pair0"
    assert again.asked == [f"{first} read back", f"{first}v1 read back", f"{first}v2 read back", f"{first}v3", f"{first}v4"]


@pytest.mark.parametrize(
    ("told", "extra", "says"),
    [
        ((CRASHED, "a run failed"), "", "Mend the program or its launch in workload.toml first: .* ends as crashed: no such module.$"),
        ((CRASHED, "a run failed"), "--threads 2", "take --threads 2 out of .invariants.* ends as crashed"),
        ((WELL, "t1 has no time."), "", "Mend the program or workload.toml first: .* because t1 has no time.$"),
    ],
)
def test_what_is_not_the_machine_s_fault_is_the_contract_s_with_what_to_mend(
    monkeypatch: pytest.MonkeyPatch, told: tuple[TrialFacts, str], extra: str, says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        measured(monkeypatch, Pairs(*[told] * 3, extra=extra), Writer())


def test_an_unchanged_program_that_fails_is_to_be_mended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_run", lambda lab, step, candidate: CRASHED)
    lab: Any = SimpleNamespace(original=THE_ORIGINAL)
    with pytest.raises(RsiError, match=r"^Mend the program or its launch in workload.toml first: .* no such module\.$"):
        check.check_runs(lab, "check", THE_ORIGINAL)

"""What may learn other weights must learn as well: hidden loss over fresh seeds."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rsi_tui.evaluator.bands import LAYOUT
from rsi_tui.evaluator.compare import TensorUpdate, UpdateComparer, UpdateReport
from rsi_tui.evaluator.judging import WORST
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, gaps
from rsi_tui.evaluator.noninferior import ERROR, LOOKS, NAME, SeedPairs, check_noninferior
from rsi_tui.evaluator.validation import HiddenValidation
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.facts import InvariantFacts
from rsi_tui.journal.steps import Steps
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, Bench, make_bench
from tests.evaluator.test_saving import Closed

MARGIN = 0.005
Law = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
LAWS: dict[str, Law] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "rarely much worse": lambda rng, shape: rng.exponential(size=shape) - 1,
    "rarely much better": lambda rng, shape: 1 - rng.exponential(size=shape),
    "log-normal": lambda rng, shape: (rng.lognormal(0, 0.5, shape) - math.exp(0.125)) / 0.6,
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape),
}


def passes(differences: NDArray[np.float64], worse: float) -> float:
    """Share of candidates that pass: each row has one candidate's differences, one a pair, around `worse`."""
    held = 0
    for row in differences:
        pairs = SeedPairs(MARGIN)
        for difference in row:
            pairs.add(2.0, 2.0 * (1 + worse + float(difference)))
            if pairs.decided:
                break
        held += fact_of(pairs.checked()).status == "held"
    return held / len(differences)


def fact_of(checked: Checked) -> InvariantFacts:
    return next(fact for fact in checked.invariants if fact.name == NAME)


@pytest.mark.parametrize("law", LAWS)
def test_a_candidate_that_is_worse_by_the_margin_passes_in_one_case_of_a_hundred_at_most(law: str) -> None:
    rng = np.random.default_rng(20_261_130)
    assert passes(0.003 * LAWS[law](rng, (10_000, LOOKS[-1])), MARGIN) <= ERROR


def test_a_candidate_as_good_as_the_incumbent_passes_where_the_seeds_differ_less_than_the_margin() -> None:
    rng = np.random.default_rng(20_261_130)
    assert passes(MARGIN / 2 * LAWS["normal"](rng, (500, LOOKS[-1])), 0.0) >= 0.95


def decided(incumbents: list[float], candidates: list[float]) -> tuple[Checked, int]:
    """What these pairs say, and how many of them were asked for."""
    pairs = SeedPairs(MARGIN)
    for number, (incumbent, candidate) in enumerate(zip(incumbents, candidates, strict=True), 1):
        pairs.add(incumbent, candidate)
        if pairs.decided:
            return pairs.checked(), number
    raise AssertionError("undecided")


def test_losses_that_are_the_same_decide_at_the_first_look() -> None:
    checked, pairs = decided([3.0] * 16, [3.0] * 16)
    assert (fact_of(checked).status, fact_of(checked).value, pairs) == ("held", 0.0, 8)
    assert checked.trouble == ""


def test_a_loss_that_is_surely_worse_is_broken_with_its_size() -> None:
    checked, pairs = decided([3.0] * 16, [3.06 + 0.001 * (n % 2) for n in range(16)])
    found = fact_of(checked)
    assert (found.status, pairs, checked.trouble) == ("broken", 8, "")
    assert found.value is not None and 0.019 < found.value < 0.021 and found.limit == MARGIN


def test_what_the_seeds_leave_open_is_not_proven_and_not_broken() -> None:
    noisy = [3.0 + 0.06 * (-1) ** n for n in range(16)]
    checked, pairs = decided([3.0] * 16, noisy)
    assert (fact_of(checked).status, pairs) == ("not_covered", 16)
    assert "do not show that it learns as well" in checked.trouble


def test_a_checkpoint_that_cannot_be_validated_is_broken_at_once() -> None:
    checked, pairs = decided([3.0] * 16, [3.0, WORST, *[3.0] * 14])
    assert (fact_of(checked).status, fact_of(checked).value, pairs) == ("broken", None, 2)


# --- real runs, and a real validation of each ----------------------------------------------------

PROGRAM = """
import argparse, json, pathlib, random, time
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
parser.add_argument("--width")
args = parser.parse_args()
for step in range(1, args.steps + 1):
    time.sleep(0.02)
    print(f"step {step} loss 1", flush=True)
loss = (3 + random.Random(args.seed).random()) * FACTOR
pathlib.Path(args.out, "final.pt").write_text(json.dumps({"NAME": loss}))
"""
VALIDATE = """
import json, pathlib, sys
(loss,) = json.loads(pathlib.Path(sys.argv[1]).read_text()).values()
print("val_loss", loss)
"""
STATISTICAL = CONTRACT + """
[invariants]
weights = "statistical"
validation = "python validate.py {checkpoint}"
validation_metric = 'val_loss (?P<value>\\S+)'
"""
needs_sandbox = pytest.mark.skipif(bool(sandbox_works()), reason=sandbox_works() or "sandbox works")


class Comparer(UpdateComparer):
    """Says of these programs' checkpoints, which are no tensors, whether they have the same names."""

    def __init__(self) -> None:
        pass

    def compare(self, initial: Path, reference: Path, candidate: Path) -> UpdateReport:
        theirs, ours = (json.loads(path.read_text()) for path in (reference, candidate))
        row = TensorUpdate(
            name="loss", shape=(1,), numel=1, error=9e9, row_error=9e9, along_update=0.0, along_weights=0.0,
            update_norm=0.0, difference_norm=1.0, weight_norm=1.0,
        )  # fmt: skip
        problems = () if theirs.keys() == ours.keys() else (f"tensor {set(theirs)} is missing",)
        return UpdateReport(problems=problems, error=9e9, rows=(row,))


def program(factor: float, name: str = "weight") -> str:
    return PROGRAM.replace("FACTOR", str(factor)).replace("NAME", name)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    if sandbox_works():
        pytest.skip(sandbox_works())
    folder = tmp_path_factory.mktemp("seeds")
    return make_bench(folder, train=program(1.0), contract=STATISTICAL, validate__py=VALIDATE)


@pytest.fixture(scope="module")
def lab(bench: Bench) -> Lab:
    made = bench.lab()
    base = bench.runner.base_tree(bench.mirror.base)
    arguments = (bench.contract, LocalLauncher(), Path(sys.executable), base)
    made.holdouts = {"verify": HiddenValidation(*arguments, bench.paths.hidden, bench.paths.scratch)}
    made.open_comparer = Comparer
    return made


def test_a_change_of_the_weights_that_costs_no_loss_passes_and_is_not_measured_twice(bench: Bench, lab: Lab) -> None:
    candidate = bench.candidate({"train.py": program(1.001)})
    before = lab.trials
    checked = check_noninferior(lab, "one", candidate, lab.original)
    assert (checked.failed, checked.trouble) == ("", "")
    assert {fact.name: fact.status for fact in checked.invariants}[NAME] == "held"
    assert fact_of(checked).value == pytest.approx(0.001, abs=1e-6)
    assert {fact.name: fact.status for fact in checked.invariants}[LAYOUT] == "held"
    assert lab.trials - before == 2 * LOOKS[0]
    resumed = replace(lab, steps=Steps(Closed(), read_events(bench.paths.journal)), vault=Vault(bench.paths.vault))
    assert check_noninferior(resumed, "one", candidate, lab.original) == checked


def test_another_layout_is_broken_in_the_first_pair(bench: Bench, lab: Lab) -> None:
    before = lab.trials
    checked = check_noninferior(lab, "two", bench.candidate({"train.py": program(1.0, "other")}), lab.original)
    assert [fact.name for fact in checked.invariants if fact.status == "broken"] == [LAYOUT]
    assert lab.trials - before == 2


def test_a_run_that_fails_on_a_fresh_seed_fails_the_candidate(bench: Bench, lab: Lab) -> None:
    checked = check_noninferior(lab, "three", bench.candidate({"train.py": "raise SystemExit('no')"}), lab.original)
    assert "of the candidate ended as crashed" in checked.failed


def test_without_a_validation_nothing_is_asked_and_nothing_passes(bench: Bench, lab: Lab) -> None:
    checked = check_noninferior(replace(lab, holdouts={}), "four", bench.candidate({"train.py": program(1)}), lab.original)
    assert "names no validation" in checked.trouble and checked.invariants == ()


def test_what_level_b_leaves_open_is_named(lab: Lab) -> None:
    named = {fact.name: fact.how for fact in gaps(lab, [])}
    assert "trust level B" in named["learned update"]

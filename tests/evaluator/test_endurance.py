"""Further runs of a proven candidate: very slow runs must be rare."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.evaluator.endurance import endure
from rsi_tui.evaluator.slow_runs import runs_to_hold
from rsi_tui.journal.facts import CandidateFacts, TrialFacts
from tests.evaluator.small_program import CONTRACT, Bench, make_bench

PROGRAM = """
import argparse, pathlib, time
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
parser.add_argument("--width")
args = parser.parse_args()
for step in range(1, args.steps + 1):
    time.sleep(0.005)
    print(f"step {step} loss 1", flush=True)
pathlib.Path(args.out, "final.pt").write_text("weights")
"""
QUICK = CONTRACT + "[proof]\nmax_slow_rate = 0.5\n"


def bench_with(folder: Path, program: str) -> Bench:
    return make_bench(folder, train=program, contract=QUICK, sandboxed=False)


def incumbent_runs() -> list[TrialFacts]:
    return [
        TrialFacts(
            id=f"t{n}", candidate="original", kind="verify", arm="incumbent", block="b", slot=n, steps=8, outcome="ok",
            started_at="2026-01-01T00:00:00Z", wall_s=1.0, score_s=0.006,
        )
        for n in range(6)
    ]  # fmt: skip


def endured(bench: Bench, candidate: CandidateFacts, before: list[float]) -> tuple[str, float, int]:
    """(why not, bound, further runs) of a candidate with these scores so far."""
    lab = bench.lab()
    lab.runs[candidate.id] = list(before)
    why_not, bound = endure(lab, "verify/c1/endurance", candidate, lab.original, incumbent_runs())
    return why_not, bound, len(lab.runs[candidate.id]) - len(before)


def test_a_steady_candidate_is_run_until_the_rate_is_excluded(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, PROGRAM)
    candidate = bench.candidate({"train.py": PROGRAM + "\n"})
    why_not, bound, further = endured(bench, candidate, [0.006, 0.006])
    assert why_not == ""
    assert further == runs_to_hold(0, 0.5) - 2
    assert bound <= 0.5


def test_enough_runs_before_cost_no_further_one(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, PROGRAM)
    candidate = bench.candidate({"train.py": PROGRAM + "\n"})
    assert endured(bench, candidate, [0.006] * 40) == ("", pytest.approx(0.091, abs=0.02), 0)


def test_a_slow_run_in_screening_counts(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, PROGRAM)
    candidate = bench.candidate({"train.py": PROGRAM + "\n"})
    _, _, further = endured(bench, candidate, [0.006, 0.1])
    assert further == runs_to_hold(1, 0.5) - 2


def test_a_candidate_that_fails_in_a_further_run_is_not_adopted(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, PROGRAM)
    candidate = bench.candidate({"train.py": "raise SystemExit('no luck')\n"})
    why_not, _, _ = endured(bench, candidate, [0.006])
    assert "has no time (crashed)" in why_not

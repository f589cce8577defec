"""A saving of memory is what fresh runs were held to, and what the incumbent could not meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.evaluator.bands import LAYOUT, TOTAL
from rsi_tui.evaluator.compare import TensorUpdate, UpdateComparer, UpdateReport
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.prove import _concluded, _Pairs
from rsi_tui.evaluator.saving import MIB, SAVED, claimed_limit, prove_saving
from rsi_tui.evaluator.service import Evaluator
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import Event
from rsi_tui.journal.facts import Arm, CandidateFacts, Fact, InvariantFacts, NoiseFacts, ScreenFacts, TrialFacts
from rsi_tui.journal.steps import Steps
from rsi_tui.journal.view import DID_NOT_FIT, CampaignView
from rsi_tui.launch.memory import NO_SWAP_LIMIT, find_controllers
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, Bench, make_bench

PROGRAM = """
import argparse, json, mmap, pathlib, time
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
parser.add_argument("--width")
args = parser.parse_args()
held = mmap.mmap(-1, HELD * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(held), 4096):
    held[page] = 1
    FREED
for step in range(1, args.steps + 1):
    time.sleep(0.02)
    print(f"step {step} loss {3 / step:.4f}", flush=True)
weight = 1.0 + args.steps * SPEED
pathlib.Path(args.out, "final.pt").write_text(json.dumps({"weight": weight, "count": args.steps}))
"""


def program(held_mib: int, freed: str = "pass", speed: float = 0.01) -> str:
    return PROGRAM.replace("HELD", str(held_mib)).replace("FREED", freed).replace("SPEED", str(speed))


class Comparer(UpdateComparer):
    """Compares these programs' checkpoints, which are no tensors: one weight and a counter."""

    def __init__(self) -> None:
        pass

    def compare(self, initial: Path, reference: Path, candidate: Path) -> UpdateReport:
        start, theirs, ours = (json.loads(path.read_text()) for path in (initial, reference, candidate))
        update, away = theirs["weight"] - start["weight"], ours["weight"] - theirs["weight"]
        row = TensorUpdate(
            name="weight", shape=(1,), numel=1, error=abs(away / update), row_error=abs(away / update),
            along_update=away / update, along_weights=away, update_norm=abs(update), difference_norm=abs(away),
            weight_norm=1.0,
        )  # fmt: skip
        return UpdateReport(
            error=row.error, rows=(row,), counters=(ours["count"],), reference_counters=(theirs["count"],)
        )


class Closed:
    """A journal that nothing may be added to: what is asked again must be read back."""

    def append(self, body: Fact, step: str = "") -> Event:
        raise AssertionError(f"{step} was recorded again")


def bench_with(folder: Path, incumbent: str) -> Bench:
    return make_bench(folder, train=incumbent, contract=CONTRACT)


def lab_of(bench: Bench) -> Lab:
    lab = bench.lab()
    lab.open_comparer = Comparer
    return lab


def runs(candidate: str, peak_mib: float, source: str = "cgroup1", flags: tuple[str, ...] = ()) -> list[TrialFacts]:
    """Runs so far, with the peak that was seen in them."""
    return [
        TrialFacts(
            id=f"old{n}", candidate=candidate, kind="verify", arm="candidate", block="b", slot=n, steps=8, outcome="ok",
            started_at="2026-01-01T00:00:00Z", wall_s=1.0, score_s=0.006, peak_bytes=int(peak_mib * MIB),
            memory_source=source, flags=flags,
        )
        for n in range(3)
    ]  # fmt: skip


# --- the limit -----------------------------------------------------------------------------------


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_a_claimed_limit_saves_enough_and_leaves_the_candidate_what_it_was_seen_to_need(ours: int, theirs: int) -> None:
    limit = claimed_limit(ours, theirs)
    if limit is not None:
        assert ours <= limit <= (1 - SAVED) * theirs
    else:
        assert ours > (1 - SAVED) * theirs - MIB


@pytest.mark.parametrize(
    ("ours", "theirs", "limit"),
    [(60, 120, 76), (100, 120, 114), (1000, 2000, 1020), (115, 120, None), (120, 100, None)],
    ids=["room of 16 MiB", "as much room as there is", "room of 2 %", "under 5 %", "hungrier"],
)
def test_the_limit_leaves_room_and_never_claims_it(ours: int, theirs: int, limit: int | None) -> None:
    found = claimed_limit(ours * MIB, theirs * MIB)
    assert found == (None if limit is None else limit * MIB)


# --- without a run -------------------------------------------------------------------------------

CANDIDATE = CandidateFacts(id="c1", commit="c", base="b", parent="original")


@pytest.fixture
def idle(tmp_path: Path) -> Lab:
    """A lab in which nothing may be run."""
    return make_bench(tmp_path, sandboxed=False).lab()


def test_nothing_saved_costs_nothing_and_says_nothing(idle: Lab) -> None:
    assert prove_saving(idle, "m", CANDIDATE, idle.original, runs("c1", 118), runs("original", 120)) is None
    assert prove_saving(idle, "m", CANDIDATE, idle.original, [], runs("original", 120)) is None
    assert idle.trials == 0


@pytest.mark.parametrize(
    ("source", "flags", "words"),
    [
        ("sampled", (), "was sampled"),
        ("none", (), "was sampled"),
        ("nvml", (), "NVML only samples"),
        ("cgroup1", (NO_SWAP_LIMIT,), "this machine has swap"),
    ],
)
def test_where_memory_was_not_limited_a_saving_is_seen_and_not_claimed(
    idle: Lab, source: str, flags: tuple[str, ...], words: str
) -> None:
    found = prove_saving(idle, "m", CANDIDATE, idle.original, runs("c1", 60, source, flags), runs("original", 120))
    assert found is not None
    assert (found[0].proven, found[0].runs, idle.trials) == (False, 0, 0)
    assert words in found[0].reason


def screened(log_ratio: float, batches: int = 1) -> ScreenFacts:
    return ScreenFacts(
        candidate="c1", incumbent="original", outcome="ok", log_ratio=log_ratio, batches=batches, promoted=False, reason="no gain"
    )


@pytest.mark.parametrize(
    ("log_ratio", "batches", "verdict"),
    [
        (0.001, 1, "not_proven"),
        (0.3, 1, "not_proven"),  # one run may have been disturbed
        (0.015, 3, "not_proven"),
        (0.03, 3, "slower"),
        (-0.001, 1, "not_proven"),
    ],
)
def test_what_is_banked_without_a_saving_is_slower_only_where_screening_saw_more_than_noise(
    idle: Lab, log_ratio: float, batches: int, verdict: str
) -> None:
    idle.noise = NoiseFacts(pair_scale=0.01, run_cv=0.01, pairs=4, differences=(), smallest_provable=0.05, fingerprint="f")
    idle.screened["c1"] = (tuple(runs("c1", 118)), tuple(runs("original", 120)))
    found = Evaluator(idle).bank("b", screened(log_ratio, batches), CANDIDATE, idle.original)
    assert found is not None and (found.verdict, found.alpha, idle.trials) == (verdict, 0.0, 0)


def test_nothing_is_banked_where_memory_is_only_sampled(idle: Lab) -> None:
    idle.screened["c1"] = (tuple(runs("c1", 60, "sampled")), tuple(runs("original", 120, "sampled")))
    assert Evaluator(idle).bank("b", screened(0.02), CANDIDATE, idle.original) is None


# --- real runs under a real limit ----------------------------------------------------------------

needs_limits = pytest.mark.skipif(
    bool(sandbox_works()) or find_controllers().kind == "none", reason="no sandbox, or no memory controller"
)


@needs_limits
def test_a_saving_is_proven_by_runs_that_the_incumbent_could_not_make_and_is_not_measured_twice(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, program(120))
    lab, candidate = lab_of(bench), bench.candidate({"train.py": program(50)})
    arguments = ("m", candidate, lab.original, runs("c1", 60), runs("original", 130))
    found = prove_saving(lab, *arguments)
    assert found is not None
    saving, checked = found
    assert saving.proven, saving.reason
    assert (saving.limit_bytes, saving.runs) == (76 * MIB, 3)
    assert saving.peak_bytes is not None and 50 * MIB < saving.peak_bytes <= saving.limit_bytes
    assert saving.saving == pytest.approx(1 - 76 / 130, abs=0.01)
    assert {fact.status for fact in checked.invariants} == {"held"}
    assert lab.runs == {}, "times under a lower limit say nothing of slow runs"
    assert lab.trials == 6, "initial weights, a warm-up, the incumbent under the limit, three runs"
    view = CampaignView().feed_all(read_events(bench.paths.journal))
    assert view.outcomes == {"ok": 5, DID_NOT_FIT: 1}, "that the incumbent does not fit is no failure of anything"
    assert view.failed_seconds == 0.0
    resumed = replace(lab, steps=Steps(Closed(), read_events(bench.paths.journal)), vault=Vault(bench.paths.vault))
    assert prove_saving(resumed, *arguments) == found


@pytest.mark.slow
@needs_limits
def test_what_an_allocator_only_had_not_given_back_is_no_saving(tmp_path: Path) -> None:
    lazily = "if page % 2**25 == 0 and page: held.madvise(mmap.MADV_FREE, 0, page)"
    bench = bench_with(tmp_path, program(120, freed=lazily))
    lab, candidate = lab_of(bench), bench.candidate({"train.py": program(50)})
    found = prove_saving(lab, "m", candidate, lab.original, runs("c1", 60), runs("original", 130))
    assert found is not None and not found[0].proven
    assert "the incumbent runs under a hard limit of 76 MiB as well" in found[0].reason
    assert (found[1].failed, found[1].trouble) == ("", "")


@needs_limits
def test_a_candidate_that_does_not_fit_saves_nothing_and_has_not_failed(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, program(120))
    lab, candidate = lab_of(bench), bench.candidate({"train.py": program(100)})
    found = prove_saving(lab, "m", candidate, lab.original, runs("c1", 60), runs("original", 130))
    assert found is not None and not found[0].proven
    assert "of the candidate under a hard limit of 76 MiB ended as oom" in found[0].reason
    assert (found[1].failed, found[1].trouble) == ("", "")


@pytest.mark.slow
@needs_limits
def test_a_saving_bought_with_other_weights_is_none_and_the_breach_is_told(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, program(120))
    lab, candidate = lab_of(bench), bench.candidate({"train.py": program(50, speed=0.011)})
    found = prove_saving(lab, "m", candidate, lab.original, runs("c1", 60), runs("original", 130))
    assert found is not None and not found[0].proven
    assert TOTAL in {fact.name for fact in found[1].invariants if fact.status == "broken"}


@pytest.mark.slow
@needs_limits
def test_a_saving_that_a_fresh_run_of_the_incumbent_refutes_is_not_claimed(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, program(120))
    lab, candidate = lab_of(bench), bench.candidate({"train.py": program(110)})
    found = prove_saving(lab, "m", candidate, lab.original, runs("c1", 112), runs("original", 200))
    assert found is not None and not found[0].proven
    assert "the incumbent" in found[0].reason


# --- a claim of time that is a claim of memory too -----------------------------------------------


def claimed_pairs() -> _Pairs:
    """Eight pairs in which the stack was 30 % faster and seen to need 60 MiB instead of 130."""

    def run(candidate: str, arm: Arm, n: int, step_s: float, peak_mib: int) -> TrialFacts:
        steps = 40 + 5 * n
        return TrialFacts(
            id=f"{candidate}{n}", candidate=candidate, kind="claim", arm=arm, block="b", slot=n, steps=steps, outcome="ok",
            started_at="2026-01-01T00:00:00Z", wall_s=0.2 + steps * step_s, startup_s=0.1, step_s=step_s, teardown_s=0.1,
            score_s=step_s * (1 + n / 1000), peak_bytes=peak_mib * MIB, memory_source="cgroup1",
        )  # fmt: skip

    base = [run("original", "incumbent", n, 0.1, 130) for n in range(8)]
    return _Pairs(base, [run("c1", "candidate", n, 0.07, 60) for n in range(8)], (LAYOUT_HELD,))


LAYOUT_HELD = InvariantFacts(name=LAYOUT, status="held", value=0.0, limit=0.0, how="")


@pytest.mark.slow
@needs_limits
@pytest.mark.parametrize(
    ("held_mib", "speed", "saved", "proven"),
    [(50, 0.01, True, True), (100, 0.01, False, True), (50, 0.011, False, False)],
    ids=["leaner too", "not leaner after all", "other weights under the limit"],
)
def test_a_claim_of_time_stands_without_the_saving_and_falls_with_the_weights(
    tmp_path: Path, held_mib: int, speed: float, saved: bool, proven: bool
) -> None:
    bench = bench_with(tmp_path, program(120))
    lab, stack = lab_of(bench), bench.candidate({"train.py": program(held_mib, speed=speed)})
    lab.runs[stack.id] = [0.07] * 60
    claim = _concluded(lab, "claim", stack, claimed_pairs(), ())
    assert claim.memory is not None
    assert (claim.memory.proven, claim.proven, bool(claim.refuted)) == (saved, proven, not proven), claim.reasons
    assert claim.speedup is not None and claim.speedup.low > 1.3

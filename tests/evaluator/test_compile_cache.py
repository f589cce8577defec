"""A compile is paid for once by the clock and by every run in the books, and no run finds what another may not leave it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.evaluator import compile_cache
from rsi_tui.evaluator.blocks import BlockPlan, Slot, draw_block, run_block
from rsi_tui.evaluator.compile_cache import ColdRun, CompileCaches
from rsi_tui.evaluator.judging import CheckpointJudge
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.trial import Instruments, TrialRequest
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import TrialFinished
from rsi_tui.journal.facts import CandidateFacts, TrialFacts
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, TRAIN, Bench, make_bench

COMPILES = TRAIN.replace(
    "time.sleep(0.1)\n",
    """
cache = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
print("found", sorted(path.name for path in cache.glob("*")) if cache.is_dir() else "nothing", flush=True)
if not (cache / "kernel.so").is_file():
    time.sleep(1.0)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "kernel.so").write_text("compiled")
(cache / f"{args.steps}.log").write_text("a run was here")
""",
)


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["sandboxed", "unsandboxed"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param and sandbox_works():
        pytest.skip(sandbox_works())
    return make_bench(tmp_path, train=COMPILES, sandboxed=request.param)


def run(program: Bench, trial: str, **more: Any) -> tuple[TrialFacts, str]:
    """Facts of a run, and what it found in its cache."""
    result = program.run(id=trial, kind="screen", arm="candidate", block="b1", **more)
    assert result.facts.outcome == "ok", result.facts.detail
    return result.facts, next(line.text for line in result.run.lines if line.text.startswith("found"))


def test_only_the_run_that_fills_the_cache_leaves_something_and_later_ones_are_charged_with_it(program: Bench) -> None:
    first, found = run(program, "t1")
    assert (found, first.charged_s, first.charged_from) == ("found nothing", 0.0, "")
    assert program.runner.wants_cache("original")
    assert run(program, "t2")[1] == "found nothing", "an ordinary run leaves nothing"

    cold, found = run(program, "t3", steps=4, fills_cache=True)
    assert (found, cold.charged_s) == ("found nothing", 0.0)
    assert not program.runner.wants_cache("original")

    later, found = run(program, "t4")
    assert found == "found ['4.log', 'kernel.so']"
    assert (later.charged_s, later.charged_from, later.total_s) == (cold.wall_s, "t3", later.wall_s + cold.wall_s)
    assert later.startup_s is not None and later.startup_s > cold.wall_s
    assert later.score_s == pytest.approx(later.step_s + (later.startup_s + later.teardown_s) / 1000)  # type: ignore[operator]
    assert run(program, "t5")[1] == "found ['4.log', 'kernel.so']", "what the run before wrote went with it"


def test_another_candidate_finds_nothing(program: Bench) -> None:
    run(program, "t1")
    run(program, "t2", steps=4, fills_cache=True)
    other = program.candidate({"train.py": COMPILES + "\n# another\n"})
    assert run(program, "t3", candidate=other)[1] == "found nothing"


@pytest.mark.parametrize("unusual", [{"extra": "--width 2"}, {"memory_limit_bytes": 2**27}], ids=str)
def test_perturbed_and_limited_runs_start_without(program: Bench, unusual: dict[str, Any]) -> None:
    assert run(program, "t1", **unusual)[1] == "found nothing"
    assert not program.runner.wants_cache("original")
    run(program, "t2")
    run(program, "t3", steps=4, fills_cache=True)
    assert run(program, "t4", **unusual)[1] == "found nothing"


def test_a_profile_starts_without(program: Bench) -> None:
    run(program, "t1")
    run(program, "t2", steps=4, fills_cache=True)
    request = TrialRequest(
        id="t3", candidate=program.candidate(), kind="profile", arm="profile", block="", slot=0, attempt=1, steps=8, seed=1
    )  # fmt: skip
    result = program.runner.run(request, instruments=Instruments(env={"TRACE": "1"}))
    assert "found nothing" in [line.text for line in result.run.lines]


def test_where_weights_may_differ_nothing_passes_from_run_to_run(tmp_path: Path) -> None:
    program = make_bench(tmp_path, train=COMPILES, contract=CONTRACT + '[invariants]\nweights = "statistical"\n', sandboxed=False)
    run(program, "t1")
    assert not program.runner.wants_cache("original")
    run(program, "t2", steps=4, fills_cache=True)
    assert run(program, "t3")[1] == "found nothing"


def block(lab: Lab, step: str, candidate: CandidateFacts) -> BlockPlan:
    name, draw, commitment = draw_block(lab, step, lambda: ("A", "B"))
    return BlockPlan(
        id=name, step=step, purpose="screen", kind="screen", incumbent=lab.original, candidates=(candidate,), setup=(),
        timed=(Slot("incumbent", lab.original), Slot("candidate", candidate)), draw=draw, commitment=commitment,
        judge=CheckpointJudge(lab, compare=False),
    )  # fmt: skip


def test_before_its_second_block_a_candidate_that_compiles_is_run_once_for_its_cache_on_another_seed(program: Bench) -> None:
    lab = program.lab()
    plain = TRAIN + "\n# compiles nothing\n"
    lab.original = program.candidate({"train.py": plain})
    candidate = program.candidate({"train.py": COMPILES})
    outcomes = [run_block(lab, block(lab, f"s{n}", candidate)) for n in (1, 2, 3)]
    assert [o.timed[1].charged_s > 0 for o in outcomes] == [False, True, True]
    assert [o.timed[0].charged_s for o in outcomes] == [0, 0, 0]

    bodies = [event.body for event in read_events(program.paths.journal)]
    runs = [body.facts for body in bodies if isinstance(body, TrialFinished) and body.facts is not None]
    cold = [facts for facts in runs if facts.block.startswith("compile")]
    assert [(facts.candidate, facts.steps) for facts in cold] == [(candidate.id, lab.contract.objective.warmup + 2)]
    assert outcomes[1].timed[1].charged_from == cold[0].id
    seeds = {name: lab.vault.get(f"block/{name}")["seed"] for name in ("s1", "s2", "s3", f"compile-{candidate.id}")}  # type: ignore[index]
    assert len(set(seeds.values())) == 4


FACTS = TrialFacts(
    id="t1", candidate="c1", kind="screen", arm="candidate", block="b1", slot=0, attempt=1, steps=10, outcome="ok", started_at="",
    wall_s=9.0, startup_s=3.0, step_s=0.5, teardown_s=1.0, score_s=0.504, peak_bytes=100,
)  # fmt: skip


def test_the_charge_is_the_whole_of_the_run_that_filled_it_whatever_the_later_one_took() -> None:
    cold = ColdRun("t0", wall_s=20.0, peak_bytes=300)
    for startup in (3.0, 30.0):
        charged = cold.charge(FACTS.model_copy(update={"startup_s": startup}), 1000)
        assert (charged.charged_s, charged.startup_s, charged.peak_bytes) == (20.0, startup + 20.0, 300)
        assert charged.score_s == pytest.approx(0.504 + 20.0 / 1000)


def test_a_failed_run_keeps_having_no_time() -> None:
    failed = FACTS.model_copy(update={"outcome": "oom", "score_s": None, "step_s": None, "startup_s": None, "teardown_s": None})
    charged = ColdRun("t0", wall_s=20.0, peak_bytes=None).charge(failed, 1000)
    assert (charged.score_s, charged.startup_s, charged.peak_bytes) == (None, None, 100)


@pytest.mark.parametrize("what", ["nothing", "an empty file", "a link", "a pipe", "too many files", "a hole", "a failed run"])
def test_what_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    caches, place = CompileCaches(tmp_path / "caches"), tmp_path / "run"
    assert caches.lend("c1", place) is None
    facts = FACTS
    if what == "an empty file":
        (place / "kernel.so").touch()
    elif what != "nothing":
        (place / "kernel.so").write_text("compiled")
    if what == "a link":
        (place / "link").symlink_to("/etc/passwd")
    elif what == "a pipe":
        os.mkfifo(place / "pipe")
    elif what == "too many files":
        monkeypatch.setattr(compile_cache, "MAX_FILES", 50)
        for number in range(51):
            (place / str(number)).touch()
    elif what == "a hole":
        with (place / "hole").open("wb") as file:
            file.truncate(compile_cache.MAX_BYTES)
    elif what == "a failed run":
        facts = facts.model_copy(update={"outcome": "crashed"})
    caches.fill(facts, place)
    assert caches.lend("c1", tmp_path / "later") is None
    assert list((tmp_path / "later").iterdir()) == []


@pytest.mark.parametrize("damage", ["cold.json cut short", "cold.json of another kind", "files gone"])
def test_a_damaged_cache_is_none(tmp_path: Path, damage: str) -> None:
    caches, place = CompileCaches(tmp_path / "caches"), tmp_path / "run"
    caches.lend("c1", place)
    (place / "kernel.so").write_text("compiled")
    caches.fill(FACTS, place)
    kept = tmp_path / "caches" / "c1"
    if damage == "cold.json cut short":
        (kept / "cold.json").write_text('{"trial": "t1"')
    elif damage == "cold.json of another kind":
        (kept / "cold.json").write_text('{"run": 1}')
    else:
        (kept / "files").rename(kept / "moved")
    assert caches.lend("c1", tmp_path / "later") is None
    assert list((tmp_path / "later").iterdir()) == []


def test_what_is_kept_stays_as_it_was(tmp_path: Path) -> None:
    caches, place = CompileCaches(tmp_path / "caches"), tmp_path / "run"
    caches.lend("c1", place)
    (place / "kernel.so").write_text("first")
    caches.fill(FACTS, place)
    for number in (2, 3):
        later = tmp_path / f"run{number}"
        assert caches.lend("c1", later) is not None
        assert (later / "kernel.so").read_text() == "first"
        (later / "kernel.so").write_text("changed")
        caches.fill(FACTS, later)

"""A compile is paid for once by the clock and by every run in the books, and no run finds what another may not leave it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.evaluator import compile_cache
from rsi_tui.evaluator.compile_cache import ColdRun, CompileCaches
from rsi_tui.evaluator.trial import Instruments, TrialRequest
from rsi_tui.journal.facts import TrialFacts
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import TRAIN, Bench, make_bench

COMPILES = TRAIN.replace(
    "time.sleep(0.1)\n",
    """
cache = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
print("found", sorted(path.name for path in cache.glob("*")) if cache.is_dir() else "nothing", flush=True)
if not (cache / "kernel.so").is_file():
    time.sleep(1.0)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "kernel.so").write_text("compiled")
(cache / f"{args.seed}.log").write_text("a run was here")
""",
)


@pytest.fixture(params=[True, False], ids=["sandboxed", "unsandboxed"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param and sandbox_works():
        pytest.skip(sandbox_works())
    return make_bench(tmp_path, train=COMPILES, sandboxed=request.param)


def run(program: Bench, trial: str, block: str, seed: int = 7, **more: Any) -> tuple[TrialFacts, str]:
    """Facts of a run, and what it found in its cache."""
    result = program.run(id=trial, kind="screen", arm="candidate", block=block, seed=seed, **more)
    assert result.facts.outcome == "ok", result.facts.detail
    return result.facts, next(line.text for line in result.run.lines if line.text.startswith("found"))


def test_a_later_block_finds_the_cache_and_is_charged_with_the_compile(program: Bench) -> None:
    first, found = run(program, "t1", "b1")
    assert (found, first.charged_s) == ("found nothing", 0.0)
    again, found = run(program, "t2", "b1")
    assert (found, again.charged_s) == ("found nothing", 0.0), "a run of the same block has the same seed and length"

    later, found = run(program, "t3", "b2", seed=8)
    assert found == "found ['7.log', 'kernel.so']"
    assert 0.7 < later.charged_s < 1.4
    assert later.total_s == pytest.approx(first.wall_s, abs=0.4)
    assert later.startup_s is not None and first.startup_s is not None
    assert later.startup_s == pytest.approx(first.startup_s, abs=0.4)
    assert later.score_s == pytest.approx(later.step_s + (later.startup_s + later.teardown_s) / 1000)  # type: ignore[operator]

    _, found = run(program, "t4", "b3", seed=9)
    assert found == "found ['7.log', 'kernel.so']", "what the third run wrote went with it"


def test_another_candidate_finds_nothing(program: Bench) -> None:
    run(program, "t1", "b1")
    _, found = run(program, "t2", "b2", candidate=program.candidate({"train.py": COMPILES + "\n# another\n"}))
    assert found == "found nothing"


@pytest.mark.parametrize("unusual", [{"extra": "--width 2"}, {"memory_limit_bytes": 2**27}], ids=str)
def test_perturbed_and_limited_runs_start_without_and_leave_nothing(program: Bench, unusual: dict[str, Any]) -> None:
    run(program, "t1", "b1", **unusual)
    assert run(program, "t2", "b2")[1] == "found nothing"
    assert run(program, "t3", "b3", **unusual)[1] == "found nothing"


def test_a_profile_starts_without(program: Bench) -> None:
    run(program, "t1", "b1")
    request = TrialRequest(
        id="t2", candidate=program.candidate(), kind="profile", arm="profile", block="", slot=0, attempt=1, steps=8, seed=1
    )  # fmt: skip
    result = program.runner.run(request, instruments=Instruments(env={"TRACE": "1"}))
    assert "found nothing" in [line.text for line in result.run.lines]


FACTS = TrialFacts(
    id="t1", candidate="c1", kind="screen", arm="candidate", block="b1", slot=0, attempt=1, steps=10, outcome="ok", started_at="",
    wall_s=9.0, startup_s=3.0, step_s=0.5, teardown_s=1.0, score_s=0.504, peak_bytes=100,
)  # fmt: skip


def test_the_charge_is_all_that_the_first_run_took_beyond_one_without_a_compile() -> None:
    charged = ColdRun("t0", "b0", steps=20, wall_s=34.0, peak_bytes=300).charge(FACTS, 1000)
    assert charged.charged_s == pytest.approx(34.0 - 20 * 0.5 - 3.0 - 1.0)
    assert charged.score_s == pytest.approx(0.504 + 20.0 / 1000)
    assert charged.total_s == pytest.approx(29.0)
    assert charged.peak_bytes == 300


def test_a_first_run_that_was_no_slower_and_a_failed_one_charge_nothing() -> None:
    assert ColdRun("t0", "b0", steps=20, wall_s=10.0, peak_bytes=None).charge(FACTS, 1000) == FACTS
    failed = FACTS.model_copy(
        update={"outcome": "oom", "score_s": None, "step_s": None, "startup_s": None, "teardown_s": None}
    )
    assert ColdRun("t0", "b0", steps=20, wall_s=34.0, peak_bytes=300).charge(failed, 1000) == failed


@pytest.mark.parametrize("what", ["nothing", "a link", "a pipe", "too many files", "a failed run", "no steps"])
def test_what_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    caches, place = CompileCaches(tmp_path / "caches"), tmp_path / "run"
    assert caches.lend("c1", "b1", place) is None
    facts = FACTS
    if what != "nothing":
        (place / "kernel.so").write_text("compiled")
    if what == "a link":
        (place / "link").symlink_to("/etc/passwd")
    elif what == "a pipe":
        os.mkfifo(place / "pipe")
    elif what == "too many files":
        monkeypatch.setattr(compile_cache, "MAX_FILES", 50)
        for number in range(51):
            (place / str(number)).touch()
    elif what == "a failed run":
        facts = facts.model_copy(update={"outcome": "crashed"})
    elif what == "no steps":
        facts = facts.model_copy(update={"steps": 0})
    caches.keep(facts, place)
    assert caches.lend("c1", "b2", tmp_path / "later") is None
    assert list((tmp_path / "later").iterdir()) == []


def test_what_is_kept_stays_as_it_was(tmp_path: Path) -> None:
    caches, place = CompileCaches(tmp_path / "caches"), tmp_path / "run"
    caches.lend("c1", "b1", place)
    (place / "kernel.so").write_text("first")
    caches.keep(FACTS, place)
    for number in (2, 3):
        later = tmp_path / f"run{number}"
        assert caches.lend("c1", f"b{number}", later) is not None
        assert (later / "kernel.so").read_text() == "first"
        (later / "kernel.so").write_text("changed")
        caches.keep(FACTS.model_copy(update={"block": f"b{number}"}), later)

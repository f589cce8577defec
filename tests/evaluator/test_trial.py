"""One trial: what it sees, what it leaves, what is recorded of it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from rsi_tui.contract.libraries import find_library
from rsi_tui.errors import ContractError
from rsi_tui.evaluator import progress
from rsi_tui.evaluator.preflight import preflight
from rsi_tui.evaluator.trial import FROZEN, findings, remove_tree
from rsi_tui.journal.blobs import Blobs
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, TRAIN, Bench, make_bench

pytestmark = pytest.mark.skipif(sandbox_works() != "", reason="no sandbox on this machine")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("bench"))


def test_a_finished_trial_has_its_times_and_its_checkpoint(bench: Bench) -> None:
    result = bench.run()
    facts = result.facts
    assert (facts.outcome, facts.cause, facts.exit_code) == ("ok", "", 0)
    assert facts.step_s == pytest.approx(0.02, rel=0.5) and facts.startup_s and facts.startup_s > 0.08
    assert facts.score_s == pytest.approx(facts.step_s + (facts.startup_s + (facts.teardown_s or 0)) / 1000)
    assert facts.final_loss == pytest.approx(3 / 8)
    assert result.checkpoint is not None and json.loads(result.checkpoint.read_text())["seed"] == 7
    assert bench.runner.checkpoint_of("t1") == result.checkpoint
    assert 0 < facts.engine_s < 2


def test_knobs_reach_the_program_by_flag_variable_and_file_and_inputs_are_there(bench: Bench) -> None:
    result = bench.run(bench.candidate(width=2, mode="fast", depth=4))
    assert result.checkpoint is not None
    assert json.loads(result.checkpoint.read_text()) == {
        "seed": 7, "width": 2, "cfg": {"model": {"depth": 4}}, "mode": "fast", "data": "outside git",
    }  # fmt: skip
    assert json.loads((bench.runner.base_tree(bench.mirror.base) / "conf.json").read_text()) == {"model": {"depth": 3}}


def test_nothing_but_the_checkpoint_is_left_and_discarding_takes_that_too(bench: Bench) -> None:
    result = bench.run()
    left = [p for p in bench.paths.scratch.rglob("*") if not p.is_dir()]
    assert left == [result.checkpoint]
    assert result.checkpoint is not None
    bench.runner.discard_file(result.checkpoint)
    assert list(bench.paths.scratch.iterdir()) == []
    bench.runner.discard(result)
    assert bench.runner.checkpoint_of("t1") is None


def test_a_trial_without_need_for_a_checkpoint_keeps_none(bench: Bench) -> None:
    result = bench.run(keep_checkpoint=False)
    assert result.facts.outcome == "ok" and result.checkpoint is None
    bench.runner.discard("t1")


def test_zero_steps_write_the_initial_checkpoint(bench: Bench) -> None:
    result = bench.run(steps=0)
    assert result.facts.outcome == "ok" and result.checkpoint is not None
    assert result.facts.step_s is None and result.facts.flags == ()


def test_a_perturbation_changes_variables_and_flags(bench: Bench) -> None:
    result = bench.run(extra="MODE=other --width 2")
    assert result.checkpoint is not None
    state = json.loads(result.checkpoint.read_text())
    assert (state["mode"], state["width"]) == ("other", 2)


def test_a_sealed_trial_writes_no_live_log(bench: Bench) -> None:
    bench.paths.live_log.unlink(missing_ok=True)
    bench.run(sealed=True)
    assert not bench.paths.live_log.exists()
    bench.run(sealed=False)
    assert "step 8" in bench.paths.live_log.read_text()


def test_a_code_error_is_told_with_its_lines(bench: Bench) -> None:
    broken = TRAIN.replace("    time.sleep(0.02)\n", "    time.slep(0.02)\n")
    facts = bench.run(bench.candidate({"train.py": broken})).facts
    assert (facts.outcome, facts.cause) == ("crashed", "code_error")
    assert any("slep" in line for line in facts.telling_lines) and "AttributeError" in facts.detail
    assert facts.step_s is facts.score_s is facts.final_loss is None


def test_the_whole_output_of_a_failure_is_kept_and_of_a_success_none(bench: Bench) -> None:
    assert bench.run().facts.log is None
    broken = TRAIN.replace("    time.sleep(0.02)\n", "    time.slep(0.02)\n")
    log = bench.run(bench.candidate({"train.py": broken})).facts.log
    assert log is not None
    text = Blobs(bench.paths.logs).get(log).decode()
    assert text.startswith("Traceback") and text.rstrip().splitlines()[-1].startswith("AttributeError") and log.left_out == 0


def test_where_the_output_can_not_be_kept_the_run_is_not_lost(bench: Bench) -> None:
    remove_tree(bench.paths.logs)
    bench.paths.logs.write_text("a file where a folder should be")
    facts = bench.run(bench.candidate({"train.py": "raise SystemExit('no')\n" + TRAIN})).facts
    bench.paths.logs.unlink()
    assert facts.log is None and any("its output was not kept" in flag for flag in facts.flags) and facts.outcome == "crashed"


CHANGES = {
    "oom": ("hog = bytearray(2**30)\nfor i in range(0, 2**30, 4096): hog[i] = 1\n", "oom", "host_oom_killed"),
    "nan": ("", "diverged", "nan_or_divergence"),
    "early": ("raise SystemExit(0)\n", "crashed", "code_error"),
    "flag": ("parser = argparse.ArgumentParser(); parser.parse_args(['--nope'])\n", "crashed", "bad_config"),
    "segfault": ("import ctypes; ctypes.string_at(0)\n", "crashed", "segfault"),
    "invented fault": ("raise SystemExit('CUDA error: uncorrectable ECC error encountered')\n", "crashed", "device_fault"),
    "invented full disk": ("raise SystemExit('OSError: [Errno 28] No space left on device')\n", "crashed", "disk_full"),
    "import": ("import apex\n", "crashed", "missing_dependency"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_real_failures_have_their_outcome_and_cause(bench: Bench, name: str) -> None:
    text, outcome, cause = CHANGES[name]
    code = TRAIN.replace("{3 / step}", "{float('nan')}") if name == "nan" else TRAIN.replace("time.sleep(0.1)\n", text)
    result = bench.run(bench.candidate({"train.py": code}))
    assert (result.facts.outcome, result.facts.cause) == (outcome, cause), result.run
    assert result.checkpoint is None and result.facts.score_s is None


def test_a_changed_frozen_file_is_a_finding(bench: Bench) -> None:
    code = TRAIN + "\npathlib.Path('conf.json').write_text('{}')\npathlib.Path('late.py').write_text('')\n"
    facts = bench.run(bench.candidate({"train.py": code})).facts
    assert findings(facts) == (FROZEN + "conf.json, late.py",)


def test_forged_lines_are_a_finding(bench: Bench) -> None:
    code = TRAIN.replace("state =", "print('step 8 loss 0.1')\nstate =")
    facts = bench.run(bench.candidate({"train.py": code})).facts
    assert facts.outcome != "ok" and progress.FLAG_EXTRA in findings(facts)


@pytest.mark.parametrize("way", ["link", "pipe", "folder with a link"])
def test_a_checkpoint_that_is_no_plain_data_is_none(bench: Bench, way: str) -> None:
    ends = {
        "link": "os.symlink('/etc/passwd', args.out + '/final.pt')",
        "pipe": "os.mkfifo(args.out + '/final.pt')",
        "folder with a link": "os.mkdir(args.out + '/final.pt'); os.symlink('/etc/passwd', args.out + '/final.pt/x')",
    }
    code = TRAIN.replace("pathlib.Path(args.out, \"final.pt\").write_text(json.dumps(state))", ends[way])
    result = bench.run(bench.candidate({"train.py": code}))
    assert result.checkpoint is None and result.facts.cause == "checkpoint_error"


def test_a_tree_that_a_trial_locked_is_deleted_all_the_same(bench: Bench) -> None:
    code = TRAIN + "\nos.makedirs('locked/deep'); open('locked/deep/f', 'w').close(); os.chmod('locked/deep', 0); os.chmod('locked', 0)\n"
    assert bench.run(bench.candidate({"train.py": code})).facts.outcome == "ok"
    assert not (bench.paths.scratch / "t1" / "tree").exists()


def test_cancelling_ends_the_trial_soon_and_leaves_nothing(bench: Bench) -> None:
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    before = time.monotonic()
    result = bench.run(steps=500, cancel=cancel)
    assert result.facts.outcome == "cancelled" and time.monotonic() - before < 5
    assert [p for p in bench.paths.scratch.rglob("*") if p.is_file()] == []


def test_setup_runs_once_per_candidate_and_its_failure_is_a_result(tmp_path: Path) -> None:
    setup = CONTRACT.replace('inputs =', 'setup = ["python build.py"]\ninputs =')
    bench = make_bench(
        tmp_path, contract=setup, build__py="import pathlib, time\npathlib.Path('built.txt').write_text(str(time.time()))\n",
        train=TRAIN.replace('"seed": args.seed', '"built": pathlib.Path("built.txt").read_text()'),
    )  # fmt: skip
    stamps = []
    for _ in range(2):
        result = bench.run()
        assert result.checkpoint is not None
        stamps.append(json.loads(result.checkpoint.read_text())["built"])
    assert stamps[0] == stamps[1]
    broken = bench.candidate({"build.py": "raise SystemExit('no compiler: command not found')\n"})
    facts = bench.run(broken).facts
    assert (facts.outcome, facts.cause) == ("crashed", "missing_dependency") and "setup" in facts.detail


def test_a_preload_reaches_the_program_and_nothing_before_it(tmp_path: Path) -> None:
    library = next((name for name in ("libtcmalloc_minimal.so.4", "libjemalloc.so.2") if find_library(name)), "")
    if not library:
        pytest.skip("no allocator to preload is installed")
    knob = f'[[knobs]]\nname = "allocator"\nvalues = [false, true]\ndefault = false\npreload = "{library}"\n'
    code = TRAIN.replace('"seed": args.seed', '"maps": pathlib.Path("/proc/self/maps").read_text().count("' + library + '")')
    bench = make_bench(tmp_path, train=code, contract=CONTRACT + knob)
    for value in (False, True):
        result = bench.run(bench.candidate(allocator=value))
        assert result.checkpoint is not None
        assert (json.loads(result.checkpoint.read_text())["maps"] > 0) is value


def test_without_a_sandbox_a_trial_finds_the_same_places(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, sandboxed=False)
    result = bench.run(bench.candidate(width=2))
    assert result.facts.outcome == "ok" and result.checkpoint is not None
    assert json.loads(result.checkpoint.read_text())["data"] == "outside git"


def test_a_missing_input_is_one_sentence(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, contract=CONTRACT.replace("data/*.txt", "data/*.bin"))
    with pytest.raises(ContractError, match="inputs"):
        bench.run()
    assert list(bench.paths.scratch.iterdir()) == []


PREFLIGHT = {
    "fine": (TRAIN, CONTRACT, ""),
    "no start": (TRAIN, CONTRACT.replace('"python train.py', '"python nowhere.py'), "does not start"),
    "pattern": (TRAIN, CONTRACT.replace("step (?P<step>", "iteration (?P<step>"), "step 1 loss 3.0 | step 2 loss 1.5"),
    "checkpoint": (TRAIN, CONTRACT.replace("{out}/final.pt", "{out}/last.pt"), "holds final.pt"),
    "steps": (TRAIN.replace("args.steps + 1", "4"), CONTRACT, "Asked for 8 steps, the program printed 3"),
    "crash": (TRAIN.replace("time.sleep(0.1)", "time.sleep(1); undefined"), CONTRACT, "does not run as it is"),
}


@pytest.mark.parametrize("name", PREFLIGHT)
def test_a_first_trial_says_in_a_sentence_what_is_wrong(tmp_path: Path, name: str) -> None:
    train, contract, expected = PREFLIGHT[name]
    bench = make_bench(tmp_path, train=train, contract=contract)
    said = preflight(bench.contract, bench.run())
    assert (said == "") if expected == "" else expected in said
    assert "\n" not in said

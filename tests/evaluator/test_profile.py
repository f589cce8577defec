"""Profiles: phases of a step by a watch inside the program, and settings that are off."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.evaluator.profiling.profile import read_profile, run_profile
from rsi_tui.evaluator.profiling.settings import unused_settings
from rsi_tui.evaluator.progress import read_progress
from rsi_tui.evaluator.trial import TrialRequest
from rsi_tui.journal.facts import ProfileFacts, TrialFacts
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, TRAIN, Bench, make_bench

sandboxed = pytest.mark.skipif(sandbox_works() != "", reason="no sandbox on this machine")

TORCH = """
import argparse, time, torch
from torch.nn.utils import clip_grad_norm_
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed", "--width"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
parser.add_argument("--flash", action="store_true")
parser.add_argument("--optimizer", choices=["adamw", "fused"], default="adamw")
args = parser.parse_args()
torch.manual_seed(args.seed)
model = torch.nn.Sequential(torch.nn.Linear(256, 768), torch.nn.GELU(), torch.nn.Linear(768, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, args.steps + 1):
    optimizer.zero_grad()
    total = 0.0
    for part in range(2):
        x = torch.randn(512, 256)
        time.sleep(0.004)
        loss = torch.nn.functional.mse_loss(model(x), x) / 2
        loss.backward()
        total += loss.item()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} loss {total}", flush=True)
torch.save(model.state_dict(), args.out + "/final.pt")
"""
FUNCTIONAL = TORCH.replace("model(x)", "(x @ model[0].weight.T).relu() @ model[2].weight.T")
TORCH_CONTRACT = CONTRACT.replace('"256MiB"', '"2GiB"').replace('"20s"', '"120s"').replace(
    "[scope]", "[invariants]\ntokens_per_step = 2048\n[scope]"
)


def profiled(bench: Bench, steps: int = 12) -> tuple[TrialFacts, ProfileFacts | None, list[float]]:
    """Facts, profile, and the gaps between progress lines as seen from outside."""
    gaps: list[float] = []
    run = bench.runner.run

    def watched(*args: Any) -> Any:
        result = run(*args)
        marks = read_progress(result.run.lines, bench.contract.launch.progress).steps
        gaps.extend(later.at_s - earlier.at_s for earlier, later in pairwise(marks))
        return result

    bench.runner.run = watched  # type: ignore[method-assign]
    request = TrialRequest("t1", bench.candidate(), "profile", "profile", "", 0, 1, steps, 3)
    facts, profile = run_profile(bench.runner, request)
    return facts, profile, gaps


@sandboxed
def test_phases_add_up_to_the_step_and_compute_dominates(tmp_path: Path) -> None:
    facts, profile, gaps = profiled(make_bench(tmp_path, train=TORCH, contract=TORCH_CONTRACT))
    assert facts.outcome == "ok" and profile is not None, facts
    # warm-up 2, seven clean steps: gap k lies between the lines of steps k+1 and k+2
    outside = sum(gaps[1:8]) / 7
    assert profile.step_s == pytest.approx(outside, rel=0.1)
    assert sum(phase.seconds for phase in profile.phases) == pytest.approx(profile.step_s)
    assert sum(phase.share for phase in profile.phases) == pytest.approx(1.0)
    spent = {phase.name: phase.seconds for phase in profile.phases}
    assert spent["data"] > 0.008  # two sleeps of 4 ms
    assert spent["forward"] + spent["backward"] > 0.5 * (profile.step_s - spent["data"])
    assert spent["optimizer"] > 0 and spent["backward"] > spent["optimizer"] / 10
    assert profile.parameters == 256 * 768 * 2 + 768 + 256
    assert profile.operator_share("addmm", "mm") > 0.1 and len(profile.operators) <= 25
    assert max(operator.peak_output_bytes for operator in profile.operators) >= 512 * 768 * 4
    assert profile.peak_bytes is not None and 2**26 < profile.peak_bytes < 2**30
    assert profile.page_faults_per_step is not None and profile.page_faults_per_step >= 0
    assert profile.mfu is not None and 0 < profile.mfu < 1 and profile.peak_flops and profile.peak_flops > 1e9
    assert (profile.dtype, profile.device, profile.tokens_per_step) == ("float32", "cpu", 2048)
    assert any(text.startswith("--flash exists in train.py") for text in profile.unused_settings)


@sandboxed
@pytest.mark.slow
def test_a_program_without_modules_is_still_split_at_backward(tmp_path: Path) -> None:
    facts, profile, _ = profiled(make_bench(tmp_path, train=FUNCTIONAL, contract=TORCH_CONTRACT), steps=6)
    assert facts.outcome == "ok" and profile is not None, facts
    assert profile.share("backward") > 0.1 and profile.share("forward") > 0.1 and profile.share("optimizer") > 0


@sandboxed
def test_a_program_without_torch_is_one_phase(tmp_path: Path) -> None:
    facts, profile, _ = profiled(make_bench(tmp_path))
    assert facts.outcome == "ok" and profile is not None
    assert [(phase.name, phase.share) for phase in profile.phases] == [("other", 1.0)]
    assert profile.operators == () and profile.mfu is None


@sandboxed
def test_a_program_that_fails_has_no_profile_but_a_sentence(tmp_path: Path) -> None:
    facts, profile, _ = profiled(make_bench(tmp_path, train=TRAIN.replace("final.pt", "other.pt")))
    assert profile is None and facts.outcome == "crashed" and "No checkpoint appears" in facts.detail


def record(**changed: Any) -> dict[str, Any]:
    step = {"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1, "between": 0.0}
    known: dict[str, Any] = {
        "steps": [{"data": 9.0}] * 2 + [step] * 4 + [{"forward": 7.0}] * 2, "warmup": 2, "clean_steps": 4,
        "operators": [["aten::mm", 0.6, 30, 4096], ["aten::add", 0.2, 10, 64]], "operator_steps": 2, "operator_seconds": 2.0,
        "faults": [900, 900, 10, 20, 30, 40, 5, 5], "parameters": 1000, "dtype": "float32", "device": "cpu",
        "peaks": {"float32": 1e6, "bfloat16": 4e6},
    }  # fmt: skip
    return known | changed


def test_only_steps_between_warm_up_and_profiler_count() -> None:
    profile = read_profile(record(), tokens_per_step=10)
    assert profile.step_s == pytest.approx(1.0) and profile.share("backward") == pytest.approx(0.5)
    assert profile.page_faults_per_step == 25
    assert profile.operators[0].self_s == pytest.approx(0.3) and profile.operators[0].share == pytest.approx(0.3)
    assert profile.operators[0].calls == 15


@pytest.mark.parametrize(
    "dtype, tokens, peaks, mfu",
    [
        ("float32", 10, {"float32": 1e6}, 0.06),
        ("bfloat16", 10, {"float32": 1e6, "bfloat16": 4e6}, 0.015),
        ("float32", 0, {"float32": 1e6}, None),
        ("float32", 10, {}, None),
    ],
)
def test_mfu_is_six_parameters_tokens_against_the_peak_of_the_type(
    dtype: str, tokens: int, peaks: dict[str, float], mfu: float | None
) -> None:
    found = read_profile(record(dtype=dtype, peaks=peaks), tokens_per_step=tokens).mfu
    assert found == (pytest.approx(mfu) if mfu is not None else None)


def test_settings_that_are_off_are_listed_and_those_in_use_are_not(tmp_path: Path) -> None:
    contract = CONTRACT.replace("--out {out}", "--out {out} --tf32").replace(
        "[objective]",
        '[[knobs]]\nname = "wait"\nvalues = ["", "PASSIVE"]\ndefault = ""\nenv = "OMP_WAIT_POLICY"\n'
        '[[knobs]]\nname = "dtype"\nvalues = ["fp32", "bf16"]\ndefault = "fp32"\nflag = "--dtype {}"\naffects = ["precision"]\n[objective]',
    )
    more = "".join(
        f"parser.add_argument({text})\n"
        for text in ('"--fused", action="store_true"', '"--tf32", action="store_true"', '"--attn", choices=["math", "sdpa"], default="math"')
    )
    bench = make_bench(tmp_path, train=TRAIN.replace("args = parser", more + "args = parser"), contract=contract)
    texts = unused_settings(bench.contract, bench.source)
    assert "--fused exists in train.py and is off." in texts
    assert any("--attn in train.py is left at 'math'" in text for text in texts)
    assert any(text.startswith("OMP_WAIT_POLICY exists (knob wait) and is off") for text in texts)
    assert any("--width" in text and "also possible: 2" in text for text in texts)
    assert not any("--tf32" in text or "--dtype" in text for text in texts)

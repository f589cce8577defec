"""Evidence forged from an honest run is told from it: progress lines by their arrival, checkpoints by what they learned."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rsi_tui.contract.model import Contract, Invariants, Launch, Objective, Proof
from rsi_tui.evaluator import compare
from rsi_tui.evaluator.bands import calibrate, judge
from rsi_tui.evaluator.compare import CompareError, UpdateComparer
from rsi_tui.evaluator.progress import read_progress, timings
from rsi_tui.evaluator.redteam import forge_checkpoints
from rsi_tui.evaluator.redteam.forged import FORGED_LINES, ForgedLines, HonestRun, judge_lines
from rsi_tui.journal.facts import TrialFacts
from rsi_tui.launch.spec import Line

PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"
STEPS = 12


def contract(precision: str = "fp32") -> Contract:
    launch = Launch(
        command="python train.py", progress=PATTERN, checkpoint="{out}/final.pt", checkpoint_key="model",
        memory_limit_bytes=2**30, timeout_s=60.0,
    )  # fmt: skip
    return Contract(
        name="small", preset="quick", editable=("*.py",), proof=Proof(), folder="/nowhere", launch=launch,
        objective=Objective(steps=(STEPS, 2 * STEPS), warmup=2, amortise_over=1000),
        invariants=Invariants(precision=precision),  # type: ignore[arg-type]
    )  # fmt: skip


def honest() -> HonestRun:
    lines = [Line(0.5, "model of 3 parameters")]
    lines += [Line(2.0 + 0.5 * n + 0.01 * (n % 3), f"step {n} loss {3 / n:.4f}") for n in range(1, STEPS + 1)]
    lines.append(Line(8.2, "saved"))
    times = timings(read_progress(lines, PATTERN), 8.5, 2, STEPS, 1000)
    assert times is not None, "the honest run itself can be timed"
    facts = TrialFacts(
        id="t1", candidate="original", kind="check", arm="warmup", block="b", slot=1, attempt=1, steps=STEPS, outcome="ok",
        started_at="", wall_s=8.5, startup_s=times.startup_s, step_s=times.step_s, teardown_s=times.teardown_s,
        score_s=times.score_s,
    )  # fmt: skip
    return HonestRun(facts, lines, contract())


@pytest.mark.parametrize("forgery", FORGED_LINES, ids=lambda f: f.name)
def test_forged_progress_lines_are_given_away_by_something(forgery: ForgedLines) -> None:
    assert judge_lines(honest(), forgery)


def test_an_honest_run_gives_nothing_away() -> None:
    unchanged = ForgedLines("nothing", lambda lines, marks: lines)
    assert judge_lines(honest(), unchanged) == ("steps are no faster",)


def test_a_run_of_a_few_lines_is_not_forged() -> None:
    run = honest()
    assert judge_lines(HonestRun(run.facts, run.lines[:4], run.contract), FORGED_LINES[0]) is None


def checkpoint(seed: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (40, 16), "block.weight": (16, 16), "block.bias": (16,), "norm.weight": (16,)}
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {"model": model, "step": STEPS}


@pytest.fixture(scope="module")
def comparer() -> Iterator[UpdateComparer]:
    worker = Path(compare.__file__).with_name("compare_worker.py")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-P", str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    with UpdateComparer(start, "model") as opened:
        yield opened


def test_every_forged_checkpoint_is_broken_or_can_not_be_compared_and_the_honest_one_holds(
    comparer: UpdateComparer, tmp_path: Path
) -> None:
    initial, final = checkpoint(1), checkpoint(1)
    for name, tensor in final["model"].items():  # type: ignore[attr-defined]
        tensor += 1e-2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name)))
    torch.save(initial, tmp_path / "initial.pt")
    torch.save(final, tmp_path / "final.pt")
    out = tmp_path / "forged"
    out.mkdir()
    arguments = [sys.executable, "-P", forge_checkpoints.__file__, "initial.pt", "final.pt", "model", "forged"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(forge_checkpoints.FORGERIES) + 2

    def broken(path: Path) -> list[str]:
        try:
            report = comparer.compare(tmp_path / "initial.pt", tmp_path / "final.pt", path)
        except CompareError as error:
            return [str(error)]
        return [fact.name for fact in judge(report, bands, contract()) if fact.status == "broken"]

    own = comparer.compare(tmp_path / "initial.pt", tmp_path / "final.pt", tmp_path / "final.pt")
    bands = calibrate([own], [], contract())
    assert broken(tmp_path / "final.pt") == []
    let_through = [path.stem for path in sorted(out.glob("*.pt")) if not broken(path)]
    assert let_through == []

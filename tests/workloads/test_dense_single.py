"""The bundled dense workload keeps the promises of its contract."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "workloads" / "dense_single"
Tensors = dict[str, torch.Tensor]


def python(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=FOLDER,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Runs:
    """Runs of train.py, each made once a session."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, name: str, *arguments: str) -> Path:
        out = self.root / name
        if not out.exists():
            log = python("train.py", "--out", str(out), *arguments)
            (out / "log").write_text(log)
        return out / "final.pt"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hidden")
    python("make_hidden.py", "--seed", "a secret", "--out", str(out))
    return out


def weights(path: Path) -> Tensors:
    loaded: Tensors = torch.load(path, weights_only=True)["model"]
    return loaded


def update_error(initial: Path, reference: Path, candidate: Path) -> float:
    start, ref, cand = weights(initial), weights(reference), weights(candidate)
    difference = sum(float((cand[name] - ref[name]).double().square().sum()) for name in start)
    size = sum(float((ref[name] - start[name]).double().square().sum()) for name in start)
    return float((difference / size) ** 0.5)


def test_the_same_seed_gives_the_same_weights(runs: Runs) -> None:
    first = weights(runs("three", "--steps", "3", "--seed", "7"))
    second = weights(runs("again", "--steps", "3", "--seed", "7"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_another_seed_gives_other_weights_and_data(runs: Runs) -> None:
    initial, other = runs("zero", "--steps", "0", "--seed", "7"), runs("other", "--steps", "1", "--seed", "8")
    assert update_error(initial, runs("three", "--steps", "3", "--seed", "7"), other) > 1


def test_zero_steps_write_the_weights_that_a_run_starts_from(runs: Runs) -> None:
    initial = runs("zero", "--steps", "0", "--seed", "7")
    state = torch.load(initial, weights_only=True)
    assert state["step"] == 0 and state["optimizer"]["state"] == {}
    one = weights(runs("one", "--steps", "1", "--seed", "7"))
    first_lr = 1e-3 / 8  # one step of Adam moves no weight by more than the learning rate, decay apart
    assert max(float((one[name] - w).abs().max()) for name, w in state["model"].items()) < 1.1 * first_lr


@pytest.mark.parametrize("size", ["4", pytest.param("1", marks=pytest.mark.slow)])
def test_micro_batch_does_not_change_what_is_learned(runs: Runs, size: str) -> None:
    initial = runs("zero", "--steps", "0", "--seed", "7")
    reference = runs("three", "--steps", "3", "--seed", "7")
    other = runs(f"micro{size}", "--steps", "3", "--seed", "7", "--micro-batch", size)
    assert update_error(initial, reference, other) < 1e-5


def test_a_loaded_state_continues_exactly(runs: Runs) -> None:
    middle = runs("one", "--steps", "1", "--seed", "7")
    resumed = runs("resumed", "--steps", "2", "--seed", "7", "--load", str(middle))
    straight = torch.load(runs("three", "--steps", "3", "--seed", "7"), weights_only=True)
    state = torch.load(resumed, weights_only=True)
    assert state["step"] == straight["step"] == 3
    assert all(torch.equal(state["model"][name], w) for name, w in straight["model"].items())


def test_each_step_prints_the_line_of_the_contract(runs: Runs) -> None:
    log = (runs("three", "--steps", "3", "--seed", "7").parent / "log").read_text()
    progress = re.compile(r"step (?P<step>\d+) loss (?P<loss>\S+)")
    found = [(int(m["step"]), float(m["loss"])) for m in map(progress.search, log.splitlines()) if m]
    assert [step for step, _ in found] == [1, 2, 3]
    assert found[0][1] == pytest.approx(np.log(4096), abs=0.1)


def validation_loss(checkpoint: Path, hidden: Path) -> float:
    match = re.search(r"val_loss (\S+)", python("evaluate.py", "--checkpoint", str(checkpoint), "--data", str(hidden)))
    assert match
    return float(match[1])


def test_validation_tells_learned_weights_from_initial_and_from_damaged_ones(
    runs: Runs, hidden: Path, tmp_path: Path
) -> None:
    three = runs("three", "--steps", "3", "--seed", "7")
    learned = validation_loss(three, hidden)
    initial = validation_loss(runs("zero", "--steps", "0", "--seed", "7"), hidden)
    assert initial == pytest.approx(np.log(4096), abs=0.1)
    assert learned < initial - 0.1
    state = torch.load(three, weights_only=True)
    state["model"]["blocks.1.mlp.proj.weight"].normal_(generator=torch.Generator().manual_seed(0))
    torch.save(state, tmp_path / "damaged.pt")
    assert validation_loss(tmp_path / "damaged.pt", hidden) > learned + 0.1


def test_the_hidden_text_has_no_name_of_a_function_it_was_made_from(hidden: Path) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("dense_data", FOLDER / "data.py")
    assert spec and spec.loader
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    pairs = data.byte_pairs(data.read_text())
    by_frequency = np.argsort(-np.bincount(pairs, minlength=65536), kind="stable")[:4096].astype("<u2")
    text = by_frequency[np.load(hidden / "tokens.npy")].tobytes().decode("latin-1")
    defined = set(re.findall(r"\bdef (\w+)", text))
    assert len(defined) > 10

    root = Path(sysconfig.get_paths()["stdlib"])
    originals: set[str] = set()
    for path in data.source_files(str(root)):
        try:
            tree = ast.parse((root / path).read_bytes())
        except SyntaxError:
            continue
        originals |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    # a name of one or two letters may collide; a dunder is nobody's name
    assert not {name for name in defined & originals if len(name) > 2 and not name.startswith("__")}


@pytest.mark.slow
def test_another_secret_gives_other_text_and_the_same_secret_the_same(hidden: Path, tmp_path: Path) -> None:
    for name, secret in (("same", "a secret"), ("other", "another")):
        python("make_hidden.py", "--seed", secret, "--out", str(tmp_path / name))
    tokens = np.load(hidden / "tokens.npy")
    assert np.array_equal(tokens, np.load(tmp_path / "same" / "tokens.npy"))
    assert (tokens != np.load(tmp_path / "other" / "tokens.npy")).mean() > 0.8

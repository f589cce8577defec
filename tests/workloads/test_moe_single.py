"""The bundled Mixture-of-Experts workload keeps the promises of its contract."""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import functional as F

FOLDER = Path(__file__).resolve().parents[2] / "workloads" / "moe_single"
Tensors = dict[str, torch.Tensor]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"moe_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


model, data = module("model"), module("data")
CONFIG = model.MoEConfig()


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
            log = python("train.py", "--out", str(out), "--seed", "7", *arguments)
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


# --- training -----------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_weights(runs: Runs) -> None:
    first, second = weights(runs("one", "--steps", "1")), weights(runs("again", "--steps", "1"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_another_seed_gives_other_weights_and_data(runs: Runs) -> None:
    other = runs("other", "--steps", "1", "--seed", "8")
    assert update_error(runs("zero", "--steps", "0"), runs("three", "--steps", "3"), other) > 1


def test_zero_steps_write_the_weights_that_a_run_starts_from(runs: Runs) -> None:
    state = torch.load(runs("zero", "--steps", "0"), weights_only=True)
    assert state["step"] == 0 and state["optimizer"]["state"] == {}
    one = weights(runs("one", "--steps", "1"))
    first_lr = 1e-3 / 8  # one step of Adam moves no weight by more than the learning rate, decay apart
    kept = {name: w * (1 - 0.1 * first_lr) if w.dim() >= 2 else w for name, w in state["model"].items()}
    assert max(float((one[name] - w).abs().max()) for name, w in kept.items()) < 1.1 * first_lr


@pytest.mark.parametrize("size", ["8", *(pytest.param(s, marks=pytest.mark.slow) for s in ("1", "4"))])
def test_micro_batch_does_not_change_what_is_learned(runs: Runs, size: str) -> None:
    other = runs(f"micro{size}", "--steps", "3", "--micro-batch", size)
    assert update_error(runs("zero", "--steps", "0"), runs("three", "--steps", "3"), other) < 1e-5


@pytest.mark.slow
def test_a_loaded_state_continues_exactly(runs: Runs) -> None:
    resumed = runs("resumed", "--steps", "2", "--load", str(runs("one", "--steps", "1")))
    straight = torch.load(runs("three", "--steps", "3"), weights_only=True)
    state = torch.load(resumed, weights_only=True)
    assert state["step"] == straight["step"] == 3
    assert all(torch.equal(state["model"][name], w) for name, w in straight["model"].items())


def test_each_step_prints_the_line_of_the_contract(runs: Runs) -> None:
    log = (runs("three", "--steps", "3").parent / "log").read_text()
    contract = tomllib.loads((FOLDER / "workload.toml").read_text())
    progress = re.compile(contract["launch"]["progress"])
    found = [m.groupdict() for m in map(progress.search, log.splitlines()) if m]
    assert [step["step"] for step in found] == ["1", "2", "3"]
    assert float(found[0]["loss"]) == pytest.approx(math.log(CONFIG.vocab_size), abs=0.1)
    for step in found:
        assert float(step["grad_norm"]) > 0.0
        assert 0.0 < float(step["router_entropy"]) <= math.log(CONFIG.n_expert) + 1e-4
        assert 1 / CONFIG.n_expert < float(step["max_load"]) <= 1 / CONFIG.top_k
        assert CONFIG.top_k - 0.1 < float(step["aux_loss"]) < CONFIG.n_expert
        assert step["dropped"] == "0"


# --- experts ------------------------------------------------------------------------------------


def test_every_token_is_the_weighted_sum_of_its_two_experts() -> None:
    torch.manual_seed(0)
    layer = model.SparseMoE(CONFIG)
    x = torch.randn(2, 10, CONFIG.n_embd)
    out, probs, chosen = layer(x)
    for token, row in enumerate(x.view(-1, CONFIG.n_embd)):
        best = F.softmax(layer.gate(row), dim=-1).topk(CONFIG.top_k)
        expected = sum(w / best.values.sum() * layer.experts[int(i)](row) for w, i in zip(*best, strict=True))
        assert torch.allclose(out.view(-1, CONFIG.n_embd)[token], expected, atol=1e-6)
        assert set(chosen[token].tolist()) == set(best.indices.tolist())
    assert torch.allclose(probs.sum(dim=-1), torch.ones(20))


def test_an_expert_that_nobody_chose_has_a_gradient_of_zero() -> None:
    torch.manual_seed(0)
    layer = model.SparseMoE(CONFIG)
    out, _, chosen = layer(torch.randn(1, 4, CONFIG.n_embd))
    out.square().sum().backward()
    for i, expert in enumerate(layer.experts):
        assert expert.w1.weight.grad is not None
        assert bool((expert.w1.weight.grad != 0).any()) == (i in chosen)


def routing(tokens: int, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    probs = probs.expand(tokens, -1)
    return probs, probs.topk(CONFIG.top_k).indices


def test_the_balancing_loss_is_least_when_even_and_greatest_when_two_experts_do_everything() -> None:
    n, k = CONFIG.n_expert, CONFIG.top_k
    turns = torch.arange(2 * n).view(-1, k) % n
    even = (torch.full((n, n), 1 / n), turns)
    assert model.load_balancing_loss([even], 1) == pytest.approx(k)
    collapsed = torch.zeros(n)
    collapsed[:k] = 1 / k
    assert model.load_balancing_loss([routing(n, collapsed)], 1) == pytest.approx(n)


def test_the_balancing_loss_of_a_batch_is_the_mean_over_its_sequences() -> None:
    torch.manual_seed(0)
    layers = [torch.randn(4 * 6, CONFIG.n_expert).softmax(dim=-1) for _ in range(2)]
    whole = model.load_balancing_loss([routing_of(p) for p in layers], 4)
    parts = [model.load_balancing_loss([routing_of(p[12 * i : 12 * (i + 1)]) for p in layers], 2) for i in range(2)]
    assert whole == pytest.approx(float(sum(parts) / 2), rel=1e-6)


def routing_of(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return probs, probs.topk(CONFIG.top_k).indices


# --- validation ---------------------------------------------------------------------------------


def validation_loss(checkpoint: Path, hidden: Path) -> float:
    match = re.search(r"val_loss (\S+)", python("evaluate.py", "--checkpoint", str(checkpoint), "--data", str(hidden)))
    assert match
    return float(match[1])


@pytest.mark.slow
def test_validation_tells_learned_weights_from_initial_and_from_damaged_ones(
    runs: Runs, hidden: Path, tmp_path: Path
) -> None:
    three = runs("three", "--steps", "3")
    learned, initial = validation_loss(three, hidden), validation_loss(runs("zero", "--steps", "0"), hidden)
    assert initial == pytest.approx(math.log(CONFIG.vocab_size), abs=0.1)
    assert learned < initial - 0.01
    state = torch.load(three, weights_only=True)
    state["model"]["lm_head.weight"].normal_(generator=torch.Generator().manual_seed(0))
    torch.save(state, tmp_path / "damaged.pt")
    assert validation_loss(tmp_path / "damaged.pt", hidden) > learned + 0.1


def test_the_hidden_text_has_no_name_of_a_function_it_was_made_from(hidden: Path) -> None:
    root, paths = data.source_files()
    pairs = data.byte_pairs(data.read_text())
    by_frequency = np.argsort(-np.bincount(pairs, minlength=65536), kind="stable")[: data.VOCAB_SIZE].astype("<u2")
    text = by_frequency[np.load(hidden / "tokens.npy")].tobytes().decode("latin-1")
    defined = set(re.findall(r"\bdef (\w+)", text))
    assert len(defined) > 10

    originals: set[str] = set()
    for path in paths:
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

"""Named parts of a gradient, of both bundled workloads: exactly what a step that leaves work out would lose."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
EVERYWHERE = {"all_tokens", "low_loss_tokens", "rare_targets", "rare_rows"}
EXPERTS = {f"expert_{i}" for i in range(32)}
Tensors = dict[str, torch.Tensor]

PARTITION = """
import json, sys, torch
import directions, train
from data import VOCAB_SIZE, Batches, load_tokens
config = (train.GPTConfig if hasattr(train, "GPT") else train.MoEConfig)(vocab_size=VOCAB_SIZE)
model = (train.GPT if hasattr(train, "GPT") else train.MoETransformer)(config)
state = torch.load(sys.argv[1], weights_only=True)
model.load_state_dict(state["model"])
x, y = Batches(load_tokens()[0], train.batch_size, config.block_size, 7)[state["step"]]
low = directions.low_loss_mask(model, x, y)
losses = directions.losses_of(model, x, y)[0] if hasattr(directions, "losses_of") else directions.token_losses(model, x, y)
masks = {"everything": torch.ones_like(low), "low": low, "rest": ~low}
parts = directions.subset_gradients(model, x, y, masks)
difference = sum(float((parts["low"][n] + parts["rest"][n] - g).double().square().sum()) for n, g in parts["everything"].items())
size = sum(float(g.double().square().sum()) for g in parts["everything"].values())
kept, left = float(losses[low].max()), float(losses[~low].min())
optimizer = model.configure_optimizer(1e-3, train.betas, 0.0)
names = {id(p): n for n, p in model.named_parameters()}
order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
print(json.dumps({"error": (difference / size) ** 0.5, "share": float(low.float().mean()), "between": (kept + left) / 2,
                  "gap": left - kept, "order": order, "beta": train.betas[0]}))
"""


def python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Case:
    """A state of a workload after one step, what the next step changed, and the parts of its gradient."""

    folder: Path
    root: Path
    facts: dict[str, Any]
    state: dict[str, Any]
    parts: dict[str, Tensors]

    def next_step(self, name: str, folder: Path) -> Tensors:
        """What the first moments gained in one step from the state: the gradient, clipped, times 1 - beta."""
        out, before = self.root / name, self.root / "state" / "final.pt"
        python(folder, "train.py", "--steps", "1", "--seed", "7", "--load", str(before), "--out", str(out))
        after = torch.load(out / "final.pt", weights_only=True)
        old, new = (s["optimizer"]["state"] for s in (self.state, after))
        return {n: new[i]["exp_avg"] - self.facts["beta"] * old[i]["exp_avg"] for i, n in enumerate(self.facts["order"])}

    def whole(self) -> Tensors:
        extra = self.parts.get("aux_loss", {})
        return {name: g + extra[name] if extra else g for name, g in self.parts["all_tokens"].items()}


@pytest.fixture(scope="module", params=["dense_single", "moe_single"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder, root = WORKLOADS / request.param, tmp_path_factory.mktemp(request.param)
    python(folder, "train.py", "--steps", "1", "--seed", "7", "--out", str(root / "state"))
    state = root / "state" / "final.pt"
    facts = json.loads(python(folder, "-c", PARTITION, str(state)))
    python(folder, "directions.py", "--load", str(state), "--seed", "7", "--out", str(root / "parts"))
    parts = torch.load(root / "parts" / "directions.pt", weights_only=True)
    return Case(folder, root, facts, torch.load(state, weights_only=True), parts)


def flat(tensors: Tensors) -> torch.Tensor:
    joined: torch.Tensor = torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])
    return joined


def cosine(a: Tensors, b: Tensors) -> float:
    return float(torch.nn.functional.cosine_similarity(flat(a), flat(b), dim=0))


def test_parts_have_the_names_and_shapes_of_the_weights(case: Case) -> None:
    more = {"aux_loss", *EXPERTS} if case.folder.name == "moe_single" else set()
    assert set(case.parts) == EVERYWHERE | more
    for tensors in case.parts.values():
        for name, tensor in tensors.items():
            weight = case.state["model"][name]
            assert (tensor.shape, tensor.dtype) == (weight.shape, torch.float32)
            assert bool(torch.isfinite(tensor).all())
    assert set(case.parts["low_loss_tokens"]) == set(case.state["model"])


def test_gradients_of_a_partition_of_the_tokens_add_up_to_the_whole(case: Case) -> None:
    assert case.facts["share"] == pytest.approx(0.25, abs=0.01)
    assert case.facts["error"] < 1e-5


def test_the_whole_is_the_gradient_that_the_next_step_of_training_takes(case: Case) -> None:
    gained, whole = case.next_step("honest", case.folder), case.whole()
    scale = min(1.0, 1.0 / float(flat(whole).norm())) * (1 - case.facts["beta"])
    assert float((flat(gained) / scale - flat(whole)).norm() / flat(whole).norm()) < 1e-4  # recovered from fp32 moments


def test_rare_rows_are_the_whole_gradient_on_the_rarer_half_of_the_vocabulary(case: Case) -> None:
    whole = case.whole()
    for name, rows in case.parts["rare_rows"].items():
        half = len(rows) // 2
        assert bool((rows[:half] == 0).all()) and torch.equal(rows[half:], whole[name][half:])
        assert float(rows.norm()) > 0


def test_experts_share_out_the_gradient_of_all_experts_and_nothing_else(case: Case) -> None:
    if case.folder.name != "moe_single":
        pytest.skip("the dense workload has no experts")
    whole = case.whole()
    shared = {name: tensor for part in EXPERTS for name, tensor in case.parts[part].items()}
    assert set(shared) == {name for name in whole if ".experts." in name}
    assert sum(len(case.parts[part]) for part in EXPERTS) == len(shared)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in shared.items())


@pytest.mark.slow
def test_a_step_that_skips_the_backward_pass_of_low_loss_tokens_loses_exactly_their_part(case: Case, tmp_path: Path) -> None:
    if case.folder.name != "dense_single":
        pytest.skip("one workload is enough for one more run")
    cheat = tmp_path / "cheat"
    shutil.copytree(case.folder, cheat)
    source = (cheat / "model.py").read_text()
    honest = "            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n"
    assert source.count(honest) == 1
    skipping = f"""            each = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), reduction="none")
            loss = torch.where(each < {case.facts["between"]!r}, each.detach(), each).mean()
"""
    (cheat / "model.py").write_text(source.replace(honest, skipping))
    gained, low = case.next_step("cheat", cheat), case.parts["low_loss_tokens"]
    expected = {name: tensor - low[name] for name, tensor in case.whole().items()}
    assert case.facts["gap"] > 1e-6
    assert cosine(gained, expected) > 1 - 1e-8
    assert cosine(gained, case.whole()) < 1 - 1e-4

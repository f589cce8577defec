"""The bundled workloads of two nodes: together the processes learn what one process with the whole batch learns."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rsi_tui.contract.command import Meeting, render_run
from rsi_tui.contract.load import load_contract

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
SINGLE = {"dense_multi": "dense_single", "moe_multi": "moe_single"}
Tensors = dict[str, torch.Tensor]

SMALL = """
import importlib, json, os, sys
import numpy as np
import torch

plans, rank = json.loads(sys.argv[1]), os.environ["RANK"]
torch.set_num_threads(1)

def main(folder, root, runs, ports):
    os.chdir(folder)
    sys.path.insert(0, folder)
    for name in ("data", "directions", "model", "train"):
        sys.modules.pop(name, None)
    data, directions, train = (importlib.import_module(name) for name in ("data", "directions", "train"))
    dense = hasattr(train, "GPT")
    real = train.GPTConfig if dense else train.MoEConfig
    sizes = dict(block_size=8, n_layer=2, n_head=2, n_embd=16) | ({} if dense else dict(n_expert=16, expert_size=16))
    tokens = np.random.default_rng(0).integers(data.VOCAB_SIZE, size=4000).astype(np.uint16)

    def config(vocab_size):
        return real(vocab_size=vocab_size, **sizes)

    setattr(train, real.__name__, config)
    train.load_tokens = lambda: (tokens, "0" * 64)
    for (name, arguments), port in zip(runs.items(), ports):
        world = "1" if name == "one" else "2"
        if world == "1" and rank == "1":
            continue
        os.environ |= {"MASTER_PORT": str(port), "WORLD_SIZE": world}
        print("run", os.path.basename(folder), name, flush=True)
        sys.argv = ["train.py", "--out", f"{root}/{rank}/{name}", *(a.format(root=root) for a in arguments)]
        train.main()
    if rank == "0":
        model = (train.GPT if dense else train.MoETransformer)(config(data.VOCAB_SIZE))
        state = torch.load(f"{root}/0/first/final.pt", weights_only=True)
        model.load_state_dict(state["model"])
        x, y = data.Batches(tokens, train.batch_size, model.config.block_size, 7)[state["step"]]
        torch.save(directions.directions(model, x, y), f"{root}/parts.pt")
        optimizer = model.configure_optimizer(1e-3, train.betas, 0.0)
        names = {id(p): n for n, p in model.named_parameters()}
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        with open(f"{root}/facts.json", "w") as f:
            json.dump({"order": order, "beta": train.betas[0]}, f)

for plan in plans:
    main(*plan)
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def together(folder: Path, commands: list[list[str]], environments: list[dict[str, str]]) -> list[str]:
    """Output of processes that need each other."""
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            command, cwd=folder, env=common | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command, own in zip(commands, environments, strict=True)
    ]
    said = [process.communicate(timeout=240)[0] for process in processes]
    for process, output in zip(processes, said, strict=True):
        assert process.returncode == 0, output
    return said


@dataclass
class Small:
    """Runs of a workload whose model and text were made small, by two processes and by one."""

    name: str
    root: Path
    said: list[str]
    facts: dict[str, Any]

    def state(self, run: str) -> dict[str, Any]:
        loaded: dict[str, Any] = torch.load(self.root / "0" / run / "final.pt", weights_only=True)
        return loaded

    def weights(self, run: str) -> Tensors:
        weights: Tensors = self.state(run)["model"]
        return weights

    def steps(self, run: str) -> list[dict[str, float]]:
        """What rank 0 printed, step by step, in the words of the contract."""
        progress = re.compile(load_contract(WORKLOADS / self.name).launch.progress)
        part = re.split(r"^run ", self.said[0], flags=re.MULTILINE)
        lines = next(text for text in part if text.startswith(f"{self.name} {run}\n")).splitlines()
        found = [match.groupdict() for match in map(progress.search, lines) if match]
        return [{key: float(value) for key, value in step.items()} for step in found]

    def error(self, reference: str, run: str) -> float:
        """Difference of the updates that two runs learned, relative to the reference's."""
        start, ref, other = self.weights("zero"), self.weights(reference), self.weights(run)
        return norm({n: other[n] - ref[n] for n in ref}) / norm({n: ref[n] - start[n] for n in ref})


def norm(tensors: Tensors) -> float:
    return float(sum(float(t.double().square().sum()) for t in tensors.values()) ** 0.5)


def micro_batches(name: str) -> list[int]:
    knob = next(knob for knob in load_contract(WORKLOADS / name).knobs if knob.name == "micro_batch")
    return [int(value) for value in knob.values]


def runs_of(name: str) -> dict[str, list[str]]:
    """Flags of train.py by the name of the run; "one" is of one process, the others are of two."""
    sizes = [str(size) for size in micro_batches(name)]
    return {
        "zero": ["--seed", "7", "--steps", "0"],
        "one": ["--seed", "7", "--steps", "3", "--micro-batch", sizes[-1]],
        **{f"micro{size}": ["--seed", "7", "--steps", "3", "--micro-batch", size] for size in sizes},
        "first": ["--seed", "7", "--steps", "1", "--micro-batch", "1"],
        "second": ["--seed", "7", "--steps", "1", "--micro-batch", "1", "--load", "{root}/0/first/final.pt"],
        "resumed": ["--seed", "7", "--steps", "2", "--micro-batch", "1", "--load", "{root}/0/first/final.pt"],
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """One pair of processes makes the runs of both workloads: importing torch takes longer than all of them."""
    top = tmp_path_factory.mktemp("small")
    plans = []
    for name in SINGLE:
        (top / name).mkdir()
        plans.append([str(WORKLOADS / name), str(top / name), runs_of(name), free_ports(len(runs_of(name)))])
    command = [sys.executable, "-c", SMALL, json.dumps(plans)]
    ranks = [{"RANK": str(rank), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"} for rank in range(2)]
    return top, together(top, [command, command], ranks)


@pytest.fixture(scope="module", params=list(SINGLE))
def small(request: pytest.FixtureRequest, said: tuple[Path, list[str]]) -> Small:
    root = said[0] / request.param
    return Small(request.param, root, said[1], json.loads((root / "facts.json").read_text()))


def test_two_processes_learn_what_one_learns_from_the_whole_batch_whatever_the_micro_batch(small: Small) -> None:
    errors = {size: small.error("one", f"micro{size}") for size in micro_batches(small.name)}
    assert max(errors.values()) < 1e-5, errors


def test_the_log_speaks_of_the_whole_batch(small: Small) -> None:
    alone = small.steps("one")
    assert [step["step"] for step in alone] == [1, 2, 3]
    for size in micro_batches(small.name):
        both = small.steps(f"micro{size}")
        assert len(both) == len(alone)
        for mine, reference in zip(both, alone, strict=True):
            assert mine == pytest.approx(reference, abs=2e-3)
    assert all(step.get("dropped", 0.0) == 0.0 for step in alone)


def test_only_the_first_process_speaks_and_writes(small: Small) -> None:
    assert "step " not in small.said[1] and "step 1 " in small.said[0]
    assert not (small.root / "1").exists()


def test_a_loaded_state_continues_exactly_on_both_nodes(small: Small) -> None:
    straight, resumed = small.state("micro1"), small.state("resumed")
    assert resumed["step"] == straight["step"] == 3
    assert all(torch.equal(resumed["model"][name], weight) for name, weight in straight["model"].items())


def test_the_directions_of_one_process_are_of_the_gradient_that_both_nodes_take(small: Small) -> None:
    parts = torch.load(small.root / "parts.pt", weights_only=True)
    whole = {name: g + parts["aux_loss"][name] if "aux_loss" in parts else g for name, g in parts["all_tokens"].items()}
    old, new = (small.state(run)["optimizer"]["state"] for run in ("first", "second"))
    beta = small.facts["beta"]
    gained = {name: new[i]["exp_avg"] - beta * old[i]["exp_avg"] for i, name in enumerate(small.facts["order"])}
    scale = (1 - beta) * min(1.0, 1.0 / norm(whole))  # clipped
    assert norm({name: gained[name] / scale - whole[name] for name in whole}) < 1e-4 * norm(whole)


@pytest.mark.parametrize("name", SINGLE)
def test_frozen_files_are_those_of_the_single_node_apart_from_sizes(name: str) -> None:
    for file in ("data.py", "directions.py", "evaluate.py", "make_hidden.py"):
        texts = [(WORKLOADS / folder / file).read_text() for folder in (name, SINGLE[name])]
        mine, single = (re.sub(r"^(WINDOWS|SEQUENCES_AT_ONCE) = \d+", r"\1", text, flags=re.MULTILINE) for text in texts)
        assert mine == single, file


@pytest.mark.parametrize("preset", ["full", "quick"])
@pytest.mark.parametrize("name", SINGLE)
def test_the_contract_speaks_of_two_nodes_and_of_every_part_of_the_batch(name: str, preset: str) -> None:
    contract = load_contract(WORKLOADS / name, preset)
    assert (contract.launch.nodes, contract.launch.procs_per_node, contract.launch.link) == (2, 1, "512mbit")
    train, model = ((WORKLOADS / name / file).read_text() for file in ("train.py", "model.py"))
    batch = int(re.findall(r"^batch_size = (\d+)", train, re.MULTILINE)[0])
    block = int(re.findall(r"block_size: int = (\d+)", model)[0])
    assert contract.invariants.tokens_per_step == batch * block
    knob = next(knob for knob in contract.knobs if knob.name == "micro_batch")
    assert f"default={knob.default}, choices={list(knob.values)}" in train
    assert max(micro_batches(name)) == batch // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_the_contract_s_command_trains_on_two_nodes_and_its_weights_are_validated(name: str, tmp_path: Path) -> None:
    folder, contract = WORKLOADS / name, load_contract(WORKLOADS / name)
    meeting = Meeting(port=free_ports(1)[0], interface="lo")
    nodes = [
        render_run(
            contract, knobs={}, steps=3, seed=7, out=str(tmp_path / "out"), python=sys.executable, node=node, meeting=meeting
        )
        for node in range(2)
    ]
    said = together(folder, [list(command.argv) for command in nodes], [dict(command.env) for command in nodes])
    found = re.findall(contract.launch.progress, said[0])
    assert len(found) == 3 and not re.findall(contract.launch.progress, said[1])
    hidden, checkpoint = str(tmp_path / "hidden"), str(tmp_path / "out" / "final.pt")
    together(folder, [[sys.executable, "make_hidden.py", "--seed", "a secret", "--out", hidden]], [{}])
    told = together(folder, [[sys.executable, "evaluate.py", "--checkpoint", checkpoint, "--data", hidden]], [{}])
    match = re.search(contract.invariants.validation_metric, told[0])
    assert match and 0 < float(match["value"]) < 8.3  # a little learned: below the logarithm of the vocabulary

"""The profile of a run of two nodes: what they send each other, and what of it is hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.evaluator.profiling.profile import run_profile
from rsi_tui.evaluator.trial import TrialRequest
from rsi_tui.journal.facts import CommunicationFacts
from rsi_tui.launch.network import wiring
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, make_bench

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(sandbox_works()) or bool(wiring().why_unlimited), reason="nodes can't be simulated here"),
]

TRAIN = """
import argparse, os, torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed", "--width"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(args.seed)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
wrapped = MODEL
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, args.steps + 1):
    optimizer.zero_grad()
    x = torch.randn(2048, 512)
    loss = torch.nn.functional.mse_loss(wrapped(x), x)
    loss.backward()
    AFTER
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item()}", flush=True)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), args.out + "/final.pt")
dist.barrier()
"""
LOOP = "for p in model.parameters():\n        dist.all_reduce(p.grad)\n        p.grad /= 2"
TERMS = CONTRACT.replace("[launch]", '[launch]\nnodes = 2\nlink = "400mbit"\nthreads = 1')
TERMS = TERMS.replace('"256MiB"', '"1GiB"').replace('"20s"', '"120s"')
WEIGHTS = 4 * (512 * 512 + 512)


def profiled(folder: Path, model: str, after: str) -> CommunicationFacts:
    bench = make_bench(folder, train=TRAIN.replace("MODEL", model).replace("AFTER", after), contract=TERMS)
    request = TrialRequest("t1", bench.candidate(), "profile", "profile", "", 0, 1, 12, 3)
    facts, profile = run_profile(bench.runner, request)
    assert facts.outcome == "ok" and profile is not None, facts
    assert profile.communication is not None
    return profile.communication


def test_a_loop_of_all_reduces_is_exposed_and_ddp_hides_some(tmp_path: Path) -> None:
    plain = profiled(tmp_path / "loop", "model", LOOP)
    assert (plain.backend, plain.world_size, plain.calls) == ("gloo", 2, 8)
    assert plain.payload_bytes == 4 * WEIGHTS
    assert plain.link_rate == 50e6
    assert plain.link_bytes is not None and plain.link_bytes == pytest.approx(4 * WEIGHTS, rel=0.25)
    assert plain.exposed_s > 0.9 * 4 * WEIGHTS / 50e6
    assert plain.overlapped_s < 0.1 * plain.exposed_s
    hidden = profiled(tmp_path / "ddp", "torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)", "pass")
    assert hidden.payload_bytes == pytest.approx(4 * WEIGHTS, rel=0.01)
    assert hidden.overlapped_s > 0.2 * (hidden.exposed_s + hidden.overlapped_s)

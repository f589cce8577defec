"""A trial of two nodes: one run to the evaluator, each node with its own copy of everything."""

from __future__ import annotations

import json

import pytest

from rsi_tui.evaluator.trial import FROZEN
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import CONTRACT, Bench, make_bench

pytestmark = pytest.mark.skipif(sandbox_works() != "", reason="no sandbox on this machine")

TRAIN = """
import argparse, json, os, pathlib, socket, sys, time
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed", "--width", "--fail"):
    parser.add_argument(name, type=int, default=-1)
parser.add_argument("--out")
args = parser.parse_args()
print("rank", os.environ["RANK"], "has width", args.width, flush=True)
rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    peer = socket.create_server(where).accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.02)
for step in range(1, args.steps + 1):
    time.sleep(0.02)
    if rank == 1 and step == FAIL:
        print("Traceback (most recent call last):\\nIndexError: list index out of range", file=sys.stderr)
        sys.exit(1)
    peer.sendall(bytes(1000))
    got = 0
    while got < 1000:
        data = peer.recv(1000 - got)
        if not data:
            time.sleep(0.2)
            raise ConnectionError("Connection closed by peer")
        got += len(data)
    print(f"step {step} loss {3 / step}", flush=True)
if TOUCH and rank == 1:
    pathlib.Path("conf.json").write_text("{}")
if rank == 0:
    pathlib.Path(args.out, "final.pt").write_text(json.dumps({"world": os.environ["WORLD_SIZE"]}))
"""
TWO_NODES = CONTRACT.replace("[launch]", '[launch]\nnodes = 2\nlink = "100mbit"\nthreads = 1')


def program(fail: int = 0, touch: bool = False) -> str:
    return TRAIN.replace("== FAIL", f"== {fail}").replace("if TOUCH", f"if {touch}")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("nodes"), program(), TWO_NODES)


def test_only_node_0_reports_and_saves(bench: Bench) -> None:
    """Both print every step; lines of another node are no progress."""
    result = bench.run()
    assert (result.facts.outcome, result.facts.flags) == ("ok", ())
    assert result.facts.final_loss == pytest.approx(3 / 8)
    assert result.checkpoint is not None and json.loads(result.checkpoint.read_text()) == {"world": "2"}
    assert [node.exit_code for node in result.facts.nodes] == [0, 0]
    assert all(node.sent_bytes is None or node.sent_bytes > 8000 for node in result.facts.nodes)
    assert [p for p in bench.paths.scratch.rglob("*") if not p.is_dir()] == [result.checkpoint]


def test_the_cause_is_the_dead_nodes_and_not_the_closed_connection(bench: Bench) -> None:
    facts = bench.run(bench.candidate({"train.py": program(fail=3)})).facts
    assert (facts.outcome, facts.cause) == ("crashed", "code_error")
    assert facts.detail.startswith("Node 1: ") and "IndexError" in facts.detail
    assert facts.step_s is None


def test_a_frozen_file_that_another_node_changes_is_found(bench: Bench) -> None:
    facts = bench.run(bench.candidate({"train.py": program(touch=True)})).facts
    assert f"{FROZEN}conf.json" in facts.flags


def test_a_perturbation_reaches_every_node(bench: Bench) -> None:
    told = {(line.node, line.text) for line in bench.run(extra="--width 3").run.lines if "width" in line.text}
    assert told == {(0, "rank 0 has width 3"), (1, "rank 1 has width 3")}

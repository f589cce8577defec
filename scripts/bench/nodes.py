"""Simulated nodes: do bytes go over the link, does its rate make the step time, is nothing left after a kill? Real runs.

    scripts/bench/nodes.py [--quick] [--json] [--kills N]

Trains the bundled dense workload of two nodes over links of three rates, in turn, and compares how much longer a step
takes over a slower link with what its bytes say. Then starts engines with a run of two nodes and kills them with
SIGKILL at random moments; processes, network namespaces and memory groups are counted afterwards. It wants the
machine to itself; --quick measures two rates once and kills five.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.evaluator.trial import TrialResult
from rsi_tui.launch.memory import find_controllers, reclaim
from rsi_tui.launch.network import rate_bits, wiring
from scripts.bench.common import Figure, show
from scripts.bench.stacked import look, opened, runner

RATES = ("1gbit", "512mbit", "256mbit")
STEPS = 10
ROOT = Path(__file__).resolve().parents[2]
MARK = "rsi-bench-nodes"
ENGINE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.nodes import run_nodes
from rsi_tui.launch.spec import LaunchSpec
def node():
    argv = ("/bin/sh", "-c", "sleep 4712 & sleep 4712 & wait", {MARK!r})
    return LaunchSpec(argv=argv, cwd="/", mounts=(), env={{"PATH": "/usr/bin:/bin"}}, timeout_s=600, memory_limit_bytes=2**28)
print("up", flush=True)
run_nodes(LocalLauncher(), [node(), node()], "100mbit")
"""


def over_links(rates: tuple[str, ...], repeats: int) -> Iterator[Figure]:
    """Median step time at each rate, and what the difference should be by the bytes that a step sends."""
    with tempfile.TemporaryDirectory(prefix="rsi-nodes-") as folder:
        campaign = opened("dense_multi", Path(folder), "", "quick")
        trials, original = runner(campaign.context), campaign.context.evaluator.original
        terms = trials.contract
        seen: dict[str, list[TrialResult]] = {rate: [] for rate in rates}
        for repeat in range(repeats):
            for rate in rates:
                trials.contract = terms.model_copy(update={"launch": terms.launch.model_copy(update={"link": rate})})
                seen[rate].append(look(trials, original, STEPS, 100 + repeat))
        campaign.context.evaluator.close(finished=False)
        campaign.writer.close()
    steps = {rate: statistics.median(r.facts.step_s or float("nan") for r in found) for rate, found in seen.items()}
    sent = statistics.median(max(n.sent_bytes or 0 for n in r.facts.nodes) / STEPS for found in seen.values() for r in found)
    yield Figure("sent by a node over its link", sent / 2**20, "MiB a step", "more than 0", sent > 0)
    for rate in rates:
        yield Figure(f"step at {rate}", steps[rate], "s", "", None)
    fastest = rates[0]
    for rate in rates[1:]:
        longer = steps[rate] - steps[fastest]
        predicted = 8 * sent * (1 / rate_bits(rate) - 1 / rate_bits(fastest))
        ratio = longer / predicted
        yield Figure(f"longer at {rate} than at {fastest}, of what its bytes say", ratio, "", "0.8 to 1.25", 0.8 <= ratio <= 1.25)


def _left() -> tuple[int, int, int]:
    """(processes of the bench's runs, network namespaces, memory groups of engines) on this machine."""
    processes, spaces = 0, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            spaces.add(str((folder / "ns" / "net").readlink()))
        except OSError:
            continue
        processes += MARK.encode() in line or b"sleep\x004712" in line or b"ip link add name switch" in line
    parents = {parent for _, parent in find_controllers().parents}
    groups = len({child.name for parent in parents for child in parent.glob("rsi-*")})
    return processes, len(spaces), groups


def killed(times: int) -> Iterator[Figure]:
    """Engines ended by SIGKILL at random moments of a run of two nodes, from its first namespace to well into it."""
    rng, before = random.Random(7), _left()
    worst = 0.0
    for _ in range(times):
        engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE)
        assert engine.stdout is not None
        engine.stdout.readline()
        time.sleep(rng.choice((rng.uniform(0, 0.3), rng.uniform(0, 1.5))))
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        engine.stdout.close()
        died = time.monotonic()
        while any(now > was for now, was in zip(_left()[:2], before[:2], strict=True)) and time.monotonic() - died < 10:
            time.sleep(0.02)
        worst = max(worst, time.monotonic() - died)
    processes, namespaces, _ = _left()
    reclaim()
    groups = _left()[2]
    yield Figure("runs of two nodes killed with their engine", times, "", "", None)
    yield Figure("processes left", processes - before[0], "", "0", processes <= before[0])
    yield Figure("network namespaces left", namespaces - before[1], "", "0", namespaces <= before[1])
    yield Figure("memory groups left when the next engine has started", groups - before[2], "", "0", groups <= before[2])
    yield Figure("longest until all were gone", worst, "s", "< 5", worst < 5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kills", type=int, default=50)
    args = parser.parse_args()
    if why_not := wiring().why_unlimited:
        print(f"nodes: {why_not}", file=sys.stderr)
        return 1
    rates, repeats, kills = (RATES[1:], 1, 5) if args.quick else (RATES, 5, args.kills)
    found = [*over_links(rates, repeats), *killed(kills)]
    notes = ["--quick left out one rate, two repeats and most kills"] if args.quick else []
    return show("nodes", found, args.json, notes)


if __name__ == "__main__":
    sys.exit(main())

"""Runs programs in two processes that are joined by gloo over loopback, each program once in both.

    python two_processes.py RANK WORLD RENDEZVOUS RESULTS.pt < programs.json

A program is a text that defines run() -> list of tensors. What comes back for each is (tensors, number of
all_reduce calls), or the text of an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

WORLD = 2


def execute(program: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "any"}
    exec(compile(program, "any.py", "exec"), space)
    return space


def results(rank: int, world: int, rendezvous: str, programs: dict[str, str]) -> dict[str, Any]:
    """What every program returns in this process, and how often it called all_reduce."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(seconds=20)
    )
    plain, count = dist.all_reduce, [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return plain(*args, **kwargs)

    found: dict[str, Any] = {}
    dist.all_reduce = counted
    try:
        for key, text in programs.items():
            count[0] = 0
            try:
                found[key] = ([t.detach().clone() for t in execute(text)["run"]()], count[0])
            except Exception as error:  # noqa: BLE001 - a program under test may fail in any way; the test says which
                found[key] = f"{type(error).__name__}: {error}"
    finally:
        dist.all_reduce = plain
        dist.destroy_process_group()
    return found


class Pair:
    """Two processes that load torch while the caller prepares programs for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(WORLD)}
        self._running = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(WORLD), str(folder / "meet"), str(folder / f"{rank}.pt")],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD)
        ]

    def run(self, programs: dict[str, str]) -> list[dict[str, Any]]:
        """The results of both processes, which end then."""
        import torch

        for process in self._running:
            assert process.stdin is not None
            process.stdin.write(json.dumps(programs))
            process.stdin.close()
        codes = [process.wait(timeout=200) for process in self._running]
        assert codes == [0] * WORLD
        return [torch.load(self._folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def in_one(programs: dict[str, str], folder: Path) -> dict[str, Any]:
    """The results of a single process, this one."""
    return results(0, 1, str(folder / "alone"), programs)


def main() -> None:
    import torch

    rank, world, rendezvous, out = sys.argv[1:]
    programs = json.loads(sys.stdin.read())
    torch.save(results(int(rank), int(world), rendezvous, programs), out)


if __name__ == "__main__":
    main()


__all__ = ["WORLD", "Pair", "execute", "in_one", "results"]

"""What the sandbox costs a trial: wall time of a program that does nothing, with and without it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.spec import LaunchSpec


@dataclass(frozen=True)
class SandboxCost:
    """Seconds from the call of the launcher to its return."""

    sandboxed_s: tuple[float, ...]
    bare_s: tuple[float, ...]

    @property
    def cost_s(self) -> float:
        """Median over the pairs of what the sandbox adds."""
        return statistics.median(a - b for a, b in zip(self.sandboxed_s, self.bare_s, strict=True))


def sandbox_cost(pairs: int, spec: LaunchSpec | None = None) -> SandboxCost:
    """Measure `pairs` of runs, the order turned round in every second one; /bin/true where no `spec` is given.

    The first pair, which fills caches, does not count. Raises SandboxError where there is no sandbox.
    """
    program = spec or LaunchSpec(("/bin/true",), "/", (), {"PATH": "/usr/bin:/bin"}, 20.0)
    launchers = (LocalLauncher(), LocalLauncher(sandboxed=False))
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + 1):
        for launcher in launchers if pair % 2 else launchers[::-1]:
            began = time.perf_counter()
            launcher.run(program)
            if pair:
                times[launcher.sandboxed].append(time.perf_counter() - began)
    return SandboxCost(tuple(times[True]), tuple(times[False]))

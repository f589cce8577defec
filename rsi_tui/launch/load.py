"""How busy this machine is with what is not ours, from /proc/stat. Cores, not percent."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """One look at the clocks."""

    at_s: float
    busy_s: float
    """CPU seconds that all cores have been busy since boot, time stolen by a hypervisor included"""
    own_s: float
    """CPU seconds of this process"""


def read_load() -> Reading:
    """The clocks now."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *steal = map(int, fields[:8])
    busy = user + nice + system + irq + softirq + sum(steal)
    return Reading(time.monotonic(), busy / _TICK, time.process_time())


def foreign_load(before: Reading, after: Reading, ours_s: float = 0.0) -> float:
    """Mean number of cores that others kept busy between two readings; `ours_s` are CPU seconds of our trial."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return 0.0
    ours = (after.own_s - before.own_s) + ours_s
    return max(0.0, (after.busy_s - before.busy_s - ours) / seconds)

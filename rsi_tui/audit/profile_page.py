"""Where a step's time and memory go, as a page for the terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rsi_tui.audit import words
from rsi_tui.errors import UsageError
from rsi_tui.journal.facts import CommunicationFacts, MemoryFacts, OperatorFacts, ProfileFacts
from rsi_tui.journal.view import CampaignView

OPERATORS = 8
"""that a page names"""
_BARS = " ▁▂▃▄▅▆▇█"
_NAMES = {"host_sync": "host sync", "communication": "comm"}


def profile_data(view: CampaignView) -> dict[str, Any]:
    """The JSON document of a baseline; raises UsageError where nothing was profiled."""
    created, profile = view.created, view.profile
    if created is None or profile is None:
        raise UsageError(f"{view.id} has no profile: it ended before one was made; `rsi baseline WORKLOAD` makes one.")
    noise = view.noise
    return {
        "schema": 1,
        "baseline": view.id,
        "workload": created.workload,
        "preset": created.preset,
        "trust": created.trust,
        "host": created.host,
        "profile": profile.model_dump(mode="json"),
        "noise": noise.model_dump(mode="json") if noise is not None else None,
        "no_rounding": view.calibrated.no_rounding if view.calibrated else "",
    }


def profile_page(data: dict[str, Any], width: int = words.WIDTH, colour: bool = False) -> str:
    """The same for a terminal, no line longer than `width` columns."""
    profile = ProfileFacts.model_validate(data["profile"])
    head = f"{words.one_line(data['workload'])}: {words.step_time(profile.step_s)} a step"
    lines = [f"\x1b[1m{head}\x1b[0m" if colour else head, ""]
    lines += phase_lines(profile, width)
    for label, text in _facts(profile):
        lines += words.entry(label, text, width)
    if profile.memory is not None:
        lines += ["", *memory_lines(profile.memory, profile.peak_bytes, width)]
    if profile.operators:
        lines += ["", "  Operators, by their own time in a step"]
        lines += [_operator(operator, width) for operator in profile.operators[:OPERATORS]]
    if data["noise"] is not None:
        lines += ["", *words.entry("noise", _noise(data["noise"]), width)]
    if data["no_rounding"]:
        lines += words.entry("bf16", data["no_rounding"], width)
    if profile.unused_settings:
        lines += ["", "  Settings that exist and are off"]
        for text in profile.unused_settings:
            lines += words.wrapped(text, width, "  - ", "    ")
    return "\n".join(line.rstrip() for line in lines)


def _operator(operator: OperatorFacts, width: int) -> str:
    """Name, share and time of a step, and calls."""
    room = width - 28
    name = words.padded(words.one_line(operator.name, room), room)
    return f"  {name}{words.percent(operator.share):>8} {words.step_time(operator.self_s):>8} {operator.calls:6,.0f} x"


def phase_lines(profile: ProfileFacts, width: int = words.WIDTH) -> list[str]:
    """One line a phase with a bar, the longest first."""
    room = max(4, width - 36)
    found = []
    for phase in sorted(profile.phases, key=lambda p: -p.share):
        bar = "█" * round(room * phase.share) or "▏"
        name = _NAMES.get(phase.name, phase.name)
        found.append(f"  {name:<10}{words.step_time(phase.seconds):>8} {words.percent(phase.share):>7}  {bar}")
    return found


def memory_lines(memory: MemoryFacts, peak_bytes: int | None, width: int = words.WIDTH) -> list[str]:
    """Memory by category, and how it rises and falls in the profiled steps."""
    parts = {
        "parameters": memory.parameters_bytes,
        "optimizer": memory.optimizer_bytes,
        "gradients": memory.gradients_bytes,
        "all that a step makes, gradients among it, at its highest": memory.activations_bytes,
    }
    peak = f"peak {words.size(peak_bytes)}: " if peak_bytes else ""
    rest = (peak_bytes or 0) - sum(parts.values()) + memory.gradients_bytes
    if rest > 0:
        parts["program, libraries and what the allocator keeps"] = rest
    said = ", ".join(f"{name} {words.size(size)}" for name, size in parts.items())
    lines = words.entry("memory", f"{peak}{said}", width)
    if memory.timeline:
        lines += words.entry("", sparkline([size for _, size in memory.timeline], width - 14), width)
    return lines


def sparkline(values: list[int], columns: int) -> str:
    """Values from 0 to their highest as one line of blocks, the highest of each column."""
    top = max(values, default=0)
    if top <= 0:
        return ""
    columns = min(columns, len(values))
    size = len(values) / columns
    parts = [values[int(n * size) : max(int(n * size) + 1, int((n + 1) * size))] for n in range(columns)]
    # a figure space would be folded away: the lowest level is drawn, too
    return "".join(_BARS[max(1, math.ceil(8 * max(0, max(part)) / top))] for part in parts)


def communication_words(talk: CommunicationFacts) -> str:
    """'12 all-reduces...' in one sentence."""
    rate = f", a link of {talk.link_rate * 8 / 1e6:.4g} Mbit/s" if talk.link_rate else ""
    sent = f"; {words.size(int(talk.link_bytes))} over the link" if talk.link_bytes else ""
    return (
        f"{talk.world_size} processes ({talk.backend}{rate}): {talk.calls:.0f} collectives a step with {words.size(int(talk.payload_bytes))}{sent}; "
        f"{words.step_time(talk.exposed_s)} exposed, {words.step_time(talk.overlapped_s)} beside computation"
    )


def _facts(profile: ProfileFacts) -> Iterator[tuple[str, str]]:
    yield "", ""
    if profile.communication is not None:
        yield "comm", communication_words(profile.communication)
    if profile.mfu is not None and profile.peak_flops:
        done = f"{profile.flops_per_step / 1e9:.3g} GFLOP a step, " if profile.flops_per_step else ""
        yield "compute", f"{done}{words.percent(profile.mfu)} of the {profile.peak_flops / 1e9:.0f} GFLOP/s that a large {profile.dtype} product reaches here (MFU)"
    if profile.page_faults_per_step:
        yield "faults", f"{profile.page_faults_per_step:,.0f} page faults a step"


def _noise(noise: dict[str, Any]) -> str:
    return (
        f"single runs vary by {words.percent(noise['run_cv'])} ({noise['pairs']} pairs); one verification here can prove a "
        f"saving of {words.percent(noise['smallest_provable'])} of the time"
    )

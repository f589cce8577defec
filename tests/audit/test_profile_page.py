"""A profile as a person reads it."""

from __future__ import annotations

import pytest

from rsi_tui.audit.profile_page import profile_page, sparkline
from rsi_tui.journal.facts import CommunicationFacts, MemoryFacts, OperatorFacts, PhaseFacts, ProfileFacts

PROFILE = ProfileFacts(
    step_s=0.4,
    phases=(PhaseFacts(name="forward", seconds=0.1, share=0.25), PhaseFacts(name="communication", seconds=0.3, share=0.75)),
    operators=(OperatorFacts(name="aten::mm" + "x" * 90, self_s=0.05, share=0.125, calls=24),),
    peak_bytes=700 * 2**20,
    tokens_per_step=1024,
    parameters=1_000_000,
    mfu=0.31,
    peak_flops=5e10,
    flops_per_step=6.2e9,
    page_faults_per_step=12345.6,
    unused_settings=("--dtype exists (knob dtype) and is at 'fp32'; also possible: 'bf16'.",),
    communication=CommunicationFacts(
        backend="gloo", world_size=2, calls=104, payload_bytes=16 * 2**20, exposed_s=0.25, overlapped_s=0.01,
        link_bytes=17.0 * 2**20, link_rate=64e6,
    ),
    memory=MemoryFacts(
        parameters_bytes=4 * 2**20, gradients_bytes=4 * 2**20, optimizer_bytes=8 * 2**20, activations_bytes=300 * 2**20,
        timeline=((0.0, 0), (0.1, 300 * 2**20), (0.2, 4 * 2**20)),
    ),
)  # fmt: skip


def data(**more: object) -> dict[str, object]:
    return {"workload": "any", "profile": PROFILE.model_dump(mode="json"), "noise": None, "no_rounding": "", **more}


@pytest.mark.parametrize("width", [40, 79])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(map(len, profile_page(data(), width).split("\n"))) <= width


def test_the_page_says_where_time_bytes_and_memory_go() -> None:
    page = profile_page(data())
    flat = " ".join(page.split())
    assert page.index("comm ") < page.index("forward")  # the longest phase first
    assert "104 collectives a step with 16 MiB" in flat and "250 ms exposed" in flat and "512 Mbit/s" in flat
    assert "6.2 GFLOP a step" in flat and "31 % of the 50 GFLOP/s" in flat
    assert "at its highest 300 MiB" in flat and "optimizer 8 MiB" in flat
    assert "the allocator keeps 388 MiB" in flat  # 700 - 300 - 8 - 4
    assert "12,346 page faults" in flat
    assert "also possible: 'bf16'" in flat


def test_a_sparkline_keeps_the_highest_value_of_a_column() -> None:
    assert sparkline([0, 8, 4], 3) == "▁█▄"
    assert sparkline([0, 0, 9, 0, 0, 0], 2) == "█▁"
    assert sparkline([], 5) == "" and sparkline([0, 0], 2) == ""

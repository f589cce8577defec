"""What a profiler's events say of communication, products and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rsi_tui.evaluator.profiling import shim_events as events
from rsi_tui.evaluator.profiling.profile import read_profile


def event(name: str, start: float, end: float, **more: Any) -> SimpleNamespace:
    """Times in microseconds."""
    given: dict[str, Any] = {
        "input_shapes": [], "structured_input_shapes": None, "flops": 0, "is_async": False,
        "self_cpu_memory_usage": 0, "self_device_memory_usage": 0,
    }  # fmt: skip
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end), **(given | more))


def test_a_transfer_beside_computation_is_overlapped_and_the_rest_is_exposed() -> None:
    found = events.communication(
        [
            event("c10d::allreduce_", 100, 110, structured_input_shapes=[[[10, 20], [50]], []]),
            event("gloo:all_reduce", 105, 505, is_async=True),
            event("aten::mm", 200, 300),
            event("aten::add", 250, 350),
            event("gloo:all_reduce", 600, 700),
        ],
        item_bytes=4,
    )
    assert found["calls"] == 1
    assert found["payload_bytes"] == 4 * 250
    assert found["overlapped_s"] == pytest.approx(150e-6)
    assert found["exposed_s"] == pytest.approx(350e-6)


def test_products_are_counted_with_attentions_own() -> None:
    q = [2, 4, 64, 16]
    found = events.flops(
        [
            event("aten::mm", 0, 1, flops=1000),
            event("aten::mul", 0, 1, flops=7),
            event("aten::_scaled_dot_product_flash_attention_for_cpu", 0, 1, input_shapes=[q, q, q, []]),
            event("aten::_scaled_dot_product_flash_attention_for_cpu_backward", 0, 1, input_shapes=[q, q, q, q, q]),
        ]
    )
    one = 2 * 2 * 4 * 64 * 64 * 16
    assert found == 1000 + 2 * one + 5 * one


def test_memory_rises_and_falls_and_its_highest_point_is_kept() -> None:
    changes = [event("aten::empty", at, at + 1, self_cpu_memory_usage=size) for at, size in ((0, 100), (10, 900), (20, -700))]
    points = events.memory(changes, "cpu")
    assert [size for _, size in points] == [100, 1000, 300]
    many = [event("aten::empty", at, at + 1, self_cpu_memory_usage=1 if at % 2 else 3) for at in range(1000)]
    thinned = events.memory(many, "cpu")
    assert len(thinned) <= 60 and max(size for _, size in thinned) == 2000


def test_times_under_the_profiler_are_scaled_to_clean_steps() -> None:
    document = {
        "warmup": 0, "clean_steps": 2, "steps": [{"forward": 0.1, "backward": 0.1}] * 2, "faults": [], "dtype": "float32",
        "peaks": {"float32": 1e9}, "parameters": 10, "device": "cpu", "operators": [], "operator_steps": 2,
        "operator_seconds": 0.8, "flops": 2e8, "held": {"parameters": 40, "gradients": 40, "optimizer": 80},
        "memory": [[0.0, 10], [0.1, 70]],
        "communication": {"backend": "gloo", "world_size": 2, "calls": 6, "payload_bytes": 80, "exposed_s": 0.2, "overlapped_s": 0.1},
    }  # fmt: skip
    profile = read_profile(document, tokens_per_step=100)
    talk = profile.communication
    assert talk is not None and (talk.calls, talk.payload_bytes) == (3, 40)
    assert talk.exposed_s == pytest.approx(0.2 / 2 * 0.2 / 0.4)
    assert profile.flops_per_step == 1e8 and profile.mfu == pytest.approx(1e8 / 0.2 / 1e9)
    assert profile.memory is not None and profile.memory.activations_bytes == 70

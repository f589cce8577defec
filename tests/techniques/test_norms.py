"""Norms and gated layers: one function or product in place of many, with the same numbers."""

from __future__ import annotations

import itertools

import pytest

from rsi_tui.techniques.registry import get
from tests.techniques import snippets_norms as s
from tests.techniques.situations import profile, situation
from tests.techniques.test_codemods import applied, run
from tests.techniques.test_moe import TAIL

TABLE: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "fused-rms-norm": (s.RMS, {**s.RMS_LEFT, **s.LAYER}),
    "fused-layer-norm": (s.LAYER, {**s.LAYER_LEFT, **s.RMS}),
    "fused-gate-up": (s.GATE, s.GATE_LEFT),
}
CHANGED = [(i, name, text) for i, (found, _) in TABLE.items() for name, text in found.items()]
LEFT = [(i, name, text) for i, (_, left) in TABLE.items() for name, text in left.items()]


def _ids(cases: list[tuple[str, str, str]]) -> list[str]:
    return [f"{technique}/{name}" for technique, name, _ in cases]


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_the_idiom_is_changed_and_the_numbers_are_not(technique: str, name: str, text: str) -> None:
    import torch

    after = applied(technique, text)
    assert after != text
    results = run(text)
    half = results[2:3]
    for before, now in itertools.zip_longest(results, run(after)):
        assert (before is None) == (now is None)
        if before is not None:
            exact = before.dtype == torch.float32 and before is not half[0]
            assert now.dtype == before.dtype
            torch.testing.assert_close(now, before, rtol=2e-5 if exact else 0.05, atol=2e-6 if exact else 0.05)


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_a_second_time_finds_nothing_and_neighbours_keep_every_byte(technique: str, name: str, text: str) -> None:
    after = applied(technique, text + TAIL)
    assert get(technique).apply(situation({"any.py": after})).empty
    assert after.endswith(TAIL)
    assert "odd  =  ( 1 ,2 )   # spacing that must survive\n" in after


@pytest.mark.parametrize("technique", sorted(TABLE))
def test_windows_line_ends_stay(technique: str) -> None:
    text = next(iter(TABLE[technique][0].values()))
    assert applied(technique, text.replace("\n", "\r\n")) == applied(technique, text).replace("\n", "\r\n")


@pytest.mark.parametrize(("technique", "name", "text"), LEFT, ids=_ids(LEFT))
def test_what_is_not_the_idiom_is_left_alone(technique: str, name: str, text: str) -> None:
    assert applied(technique, text) == text


def test_the_statements_of_a_norm_go_with_it() -> None:
    after = applied("fused-rms-norm", s.RMS["cast_and_variance"])
    assert "return _rms_norm(state, self.gain, self.eps, dtype=kind)" in after
    assert "variance" not in after
    assert "return _layer_norm(v, self.gain, self.shift, self.eps)" in applied("fused-layer-norm", s.LAYER["in_steps"])


@pytest.mark.parametrize("technique", ["fused-rms-norm", "fused-layer-norm"])
def test_a_profile_that_has_the_operators_gains_more(technique: str) -> None:
    busy = profile({"aten::pow": 0.1, "aten::mean": 0.1, "aten::rsqrt": 0.05, "aten::mm": 0.3})
    idle = profile({"aten::_softmax": 0.6})
    effects = [get(technique).predict(situation({}, profile=p)) for p in (busy, idle)]
    assert effects[0].time < effects[1].time <= 0


def test_joining_weights_is_said_to_cost_on_a_cpu_and_to_save_on_a_gpu() -> None:
    gate = get("fused-gate-up")
    slower, saved = (gate.predict(situation({}, profile=profile({"aten::mm": 0.5}, device=d))) for d in ("cpu", "cuda"))
    assert saved.time < 0 < slower.time

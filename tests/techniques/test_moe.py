"""Mixture-of-Experts techniques: each hand's loop becomes the same numbers, gradients that are missing included."""

from __future__ import annotations

import itertools

import pytest

from rsi_tui.techniques.registry import get
from tests.techniques import snippets_moe as s
from tests.techniques.situations import profile, situation
from tests.techniques.test_codemods import applied, run

TABLE: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "sorted-experts": ({**s.LOOPS, **s.ONLY_SORTED}, s.LOOPS_LEFT),
    "batched-experts": (s.LOOPS, {**s.LOOPS_LEFT, **s.ONLY_SORTED}),
    "routing-counts": (s.COUNTS, s.COUNTS_LEFT),
    "no-capacity-padding": (s.BUFFERS, s.BUFFERS_LEFT),
}
CHANGED = [(i, name, text) for i, (found, _) in TABLE.items() for name, text in found.items()]
LEFT = [(i, name, text) for i, (_, left) in TABLE.items() for name, text in left.items()]
TAIL = "\n\ndef other( a,b ) :\n\tif a :  # tab\n\t\treturn {'x':a ,}\n\treturn [ b\n  ,a ]   \n"


def _ids(cases: list[tuple[str, str, str]]) -> list[str]:
    return [f"{technique}/{name}" for technique, name, _ in cases]


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_the_idiom_is_changed_and_the_numbers_are_not(technique: str, name: str, text: str) -> None:
    import torch

    after = applied(technique, text)
    assert after != text
    for before, now in itertools.zip_longest(run(text), run(after)):
        # no gradient and a gradient of zeros are not the same to an optimizer
        assert (before is None) == (now is None)
        if before is not None:
            torch.testing.assert_close(now, before, rtol=2e-5, atol=2e-6)


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


def test_an_expert_without_tokens_keeps_the_gradient_that_the_loop_gives_it() -> None:
    """Zeros where the loop runs it on no rows, none where the loop skips it."""
    for technique in ("sorted-experts", "batched-experts"):
        ran, skipped = s.LOOPS["one_hot_where_index_add"], s.LOOPS["counted_and_skipped_with_lists"]
        assert not any(g is None for g in run(applied(technique, ran)))
        assert [i for i, g in enumerate(run(applied(technique, skipped))) if g is None] == [
            i for i, g in enumerate(run(skipped)) if g is None
        ]
        assert any(g is None for g in run(skipped))


def test_no_expert_is_looked_for_by_a_mask_any_more() -> None:
    for technique in ("sorted-experts", "batched-experts"):
        for name, text in s.LOOPS.items():
            layer = applied(technique, text).split("class Mixture")[1]
            assert "for " not in layer.split("def forward")[1].split("def run")[0], name
            assert "one_hot" not in layer, name


def test_experts_run_in_lower_precision_under_autocast() -> None:
    import torch

    text = s.LOOPS["one_hot_where_index_add"].replace("    out = layer(x)\n", "    with torch.autocast('cpu', torch.bfloat16):\n        out = layer(x)\n")
    for technique in ("sorted-experts", "batched-experts"):
        for before, now in zip(run(text), run(applied(technique, text)), strict=True):
            assert before.dtype == now.dtype
            torch.testing.assert_close(now, before, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("technique", ["sorted-experts", "batched-experts", "routing-counts", "no-capacity-padding"])
def test_a_profile_full_of_indexing_gains_more(technique: str) -> None:
    busy = profile({"aten::index": 0.2, "aten::one_hot": 0.1, "aten::bmm": 0.2, "aten::nonzero": 0.1})
    idle = profile({"aten::addmm": 0.6, "aten::_softmax": 0.2})
    sources = {"any.py": s.LOOPS["one_hot_where_index_add"]}
    effects = [get(technique).predict(situation(sources, profile=p)) for p in (busy, idle)]
    assert effects[0].time < effects[1].time <= 0

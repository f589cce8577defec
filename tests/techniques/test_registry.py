"""Techniques compose, refuse what cannot be combined, and predict from the profile."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from rsi_tui.contract.model import LAYERS, Knob
from rsi_tui.contract.rules import violations
from rsi_tui.errors import PatchError
from rsi_tui.techniques.cards import card
from rsi_tui.techniques.registry import all_techniques, applicable, apply_all, get, ordered, settings_of
from tests.techniques import mini_gpt
from tests.techniques.situations import contract, profile, situation

HERE = situation(mini_gpt.SOURCES, precision="bf16")
FOUND = {technique.id: change for technique, change, _ in applicable(HERE)}


def _excluded(a: str, b: str) -> bool:
    one, two = get(a, HERE.contract), get(b, HERE.contract)
    return b in one.conflicts or a in two.conflicts


def test_every_technique_says_what_it_is() -> None:
    known = {t.id for t in all_techniques()}
    for technique in all_techniques():
        assert technique.layer in LAYERS
        assert all(len(text) > 8 for text in (technique.title, technique.summary, technique.risk, technique.source))
        assert set(technique.conflicts) <= known
        assert all(technique.id in get(other).conflicts for other in technique.conflicts)
        text = card(technique)
        assert text.startswith(f"# {technique.title} (`{technique.id}`)")
        assert technique.summary in text and technique.source in text
    assert len(known) == len(all_techniques())


def test_a_trainer_in_a_style_of_its_own_is_understood() -> None:
    assert set(FOUND) >= mini_gpt.EDITS_CODE


def _pairs() -> Iterator[ParameterSet]:
    """Every pair; one in five of those that both edit code runs each time, the rest with the slow tests."""
    for number, pair in enumerate(itertools.combinations(sorted(FOUND), 2)):
        often = number % 5 == 0 and all(FOUND[id].sources for id in pair)
        yield pytest.param(*pair, marks=() if often else pytest.mark.slow)


@pytest.mark.parametrize(("first", "second"), list(_pairs()))
def test_pairs_compose_or_are_refused(first: str, second: str) -> None:
    if _excluded(first, second):
        with pytest.raises(PatchError, match="exclude each other"):
            apply_all([first, second], HERE)
        return
    try:
        change = apply_all([first, second], HERE)
    except PatchError as error:
        # two recipes that want the same knob otherwise; code never clashes
        assert FOUND[first].knobs and FOUND[second].knobs
        assert first in str(error) or second in str(error)
        return
    for path, text in change.sources.items():
        compile(text, path, "exec")
    assert not violations(HERE.contract, {**HERE.knobs, **change.knobs})


def test_all_of_them_together_train_to_the_same_weights() -> None:
    import torch

    before = mini_gpt.run(mini_gpt.SOURCES)
    for left_out in ({"foreach-optimizer", "chunked-cross-entropy"}, {"fused-optimizer", "linear-cross-entropy"}):
        change = apply_all(set(mini_gpt.EXACT) - left_out, HERE)
        after = mini_gpt.run({**mini_gpt.SOURCES, **change.sources})
        for a, b in zip(before, after, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("technique", mini_gpt.EXACT)
def test_each_alone_trains_to_the_same_weights(technique: str) -> None:
    import torch

    change = apply_all([technique], HERE)
    for a, b in zip(
        mini_gpt.run(mini_gpt.SOURCES), mini_gpt.run({**mini_gpt.SOURCES, **change.sources}), strict=True
    ):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=2e-5)


def test_the_order_of_ids_does_not_matter() -> None:
    ids = ["clip-foreach", "sdpa", "fused-optimizer"]
    assert apply_all(ids, HERE) == apply_all(reversed(ids), HERE)
    assert [t.id for t in ordered(ids, HERE.contract)] == ["sdpa", "fused-optimizer", "clip-foreach"]


def test_a_technique_with_nothing_to_change_is_named() -> None:
    with pytest.raises(PatchError, match="no-activation-checkpointing finds nothing to change"):
        apply_all(["sdpa", "no-activation-checkpointing"], HERE)


def test_an_unknown_technique_gets_the_nearest_name() -> None:
    with pytest.raises(PatchError, match="did you mean fused-optimizer"):
        get("fused-optimiser")


def test_every_other_value_of_every_knob_can_be_tried() -> None:
    ids = [t.id for t in settings_of(HERE.contract)]
    assert "setting:shuffle=b" in ids and "setting:spin=ACTIVE" in ids and "setting:pool=true" in ids
    assert len(ids) == sum(len(k.values) - 1 for k in HERE.contract.knobs)
    assert get("setting:shuffle=b", HERE.contract).apply(HERE).knobs == {"shuffle": "b"}


def test_a_setting_that_a_recipe_covers_is_not_listed_twice() -> None:
    assert "caching-allocator" in FOUND and "setting:pool=true" not in FOUND
    assert "omp-wait-policy" in FOUND and "setting:spin=PASSIVE" not in FOUND
    assert "setting:spin=ACTIVE" in FOUND and "setting:shuffle=b" in FOUND
    changes = [(t.id, c) for t, c, _ in applicable(HERE) if not c.sources]
    assert len(changes) == len({tuple(sorted(c.knobs.items())) for _, c in changes})


def test_a_micro_batch_moves_what_the_rules_bind_to_it() -> None:
    assert FOUND["larger-micro-batch"].knobs == {"per_pass": 4, "passes": 2}
    assert FOUND["smaller-micro-batch"].knobs == {"per_pass": 1, "passes": 8}
    largest = situation(mini_gpt.SOURCES, set_knobs={"per_pass": 8, "passes": 1})
    assert get("larger-micro-batch").apply(largest).empty


def test_settings_that_no_rule_allows_are_not_offered() -> None:
    bound = situation({}, rules=("per_pass == 2",))
    assert get("larger-micro-batch").apply(bound).empty
    assert get("setting:per_pass=8", bound.contract).apply(bound).empty


def test_settings_that_are_on_already_are_not_offered() -> None:
    on = situation({}, set_knobs={"pool": True, "spin": "PASSIVE", "cpus": 2})
    for technique in ("caching-allocator", "omp-wait-policy", "thread-count"):
        assert get(technique).apply(on).empty


def test_a_setting_that_rounds_says_so() -> None:
    knob = Knob(name="kind", values=("fp32", "bf16"), default="fp32", flag="--kind {}", affects=("precision",))
    agreed = contract(precision="bf16", knobs=(knob,))
    assert get("setting:kind=bf16", agreed).affects == ("precision",)
    assert get("bf16-autocast").affects == ("precision",)


@pytest.mark.parametrize(
    ("technique", "busy", "idle"),
    [
        ("sdpa", profile({"aten::softmax": 0.3, "aten::bmm": 0.2}), profile({"aten::addmm": 0.5})),
        ("fused-optimizer", profile(phases={"optimizer": 0.4}), profile(phases={"optimizer": 0.01})),
        ("foreach-optimizer", profile(phases={"optimizer": 0.4}), profile(phases={"optimizer": 0.01})),
        ("caching-allocator", profile(page_faults=400_000), profile(page_faults=100)),
        ("bf16-autocast", profile({"aten::addmm": 0.6}), profile({"aten::tanh": 0.6})),
        ("fused-activation", profile({"aten::tanh": 0.1, "aten::pow": 0.1}), profile({"aten::mm": 0.6})),
        ("chunked-cross-entropy", profile({"aten::_log_softmax": 0.3}), profile({"aten::mm": 0.6})),
        ("torch-compile", profile(step_s=100.0), profile(step_s=0.3)),
    ],
)
def test_another_profile_gives_another_prediction(technique: str, busy: object, idle: object) -> None:
    effects = [
        get(technique).predict(situation(mini_gpt.SOURCES, profile=p, precision="bf16"))  # type: ignore[arg-type]
        for p in (busy, idle)
    ]
    assert effects[0].time < effects[1].time
    assert all(abs(e.time) < 5 and abs(e.memory) < 2 for e in effects)


def test_a_larger_micro_batch_is_no_gain_while_the_allocator_faults() -> None:
    faulting = profile({"aten::mm": 0.5}, page_faults=40_000)
    off = situation({}, profile=faulting)
    on = situation({}, profile=faulting, set_knobs={"pool": True})
    assert get("larger-micro-batch").predict(off).time > 0 > get("larger-micro-batch").predict(on).time
    assert get("smaller-micro-batch").predict(off).time < 0


def test_a_cold_compile_counts_by_its_share_of_the_job() -> None:
    seen = profile(step_s=0.3)
    short = get("torch-compile").predict(situation({}, profile=seen, amortise_over=100))
    long = get("torch-compile").predict(situation({}, profile=seen, amortise_over=20_000))
    assert short.time > 0.5
    assert long.time < -0.1
    assert short.startup_s == long.startup_s > 20


def test_the_memory_of_the_compilers_counts_on_a_cpu() -> None:
    lean, large = profile(peak_bytes=400 * 2**20), profile(peak_bytes=4 * 2**30)
    assert get("regional-compile").predict(situation({}, profile=lean)).memory > 0.5
    assert get("regional-compile").predict(situation({}, profile=large)).memory < 0


def test_memory_is_predicted_in_the_right_direction() -> None:
    here = situation(mini_gpt.SOURCES, profile=profile())
    effects = {t.id: e for t, _, e in applicable(here)}
    assert effects["larger-micro-batch"].memory > 0 > effects["smaller-micro-batch"].memory
    assert effects["activation-checkpointing"].memory < 0 < effects["activation-checkpointing"].time
    assert effects["chunked-cross-entropy"].memory < 0


def test_listing_techniques_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rsi_tui.techniques import registry; assert 'libcst' not in sys.modules; "
        "registry.all_techniques(); assert not {'torch', 'duckdb', 'lancedb', 'textual'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_of_a_micro_batch_is_that_of_what_a_step_makes() -> None:
    from rsi_tui.journal.facts import MemoryFacts

    made = MemoryFacts(parameters_bytes=0, gradients_bytes=50 * 2**20, optimizer_bytes=0, activations_bytes=400 * 2**20)
    seen = profile().model_copy(update={"memory": made})  # 700 MiB in all
    here = situation({"any.py": "x = 1\n"}, profile=seen)
    larger = get("larger-micro-batch", here.contract).predict(here)
    assert math.exp(larger.memory) == pytest.approx(1 + 350 / 700)
    smaller = get("smaller-micro-batch", here.contract).predict(here)
    assert math.exp(smaller.memory) == pytest.approx(1 - 175 / 700)


def test_the_page_of_techniques_is_current() -> None:
    from scripts.techniques import PAGE, page

    assert PAGE.read_text() == page(), "run scripts/techniques.py"

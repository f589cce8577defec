"""Techniques around the loop, the data and the settings: each changes its idiom and keeps the numbers; settings choose by variable."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest

from rsi_tui.contract.model import Knob
from rsi_tui.loop.static_review import review_diff
from rsi_tui.techniques.registry import apply_all, get
from tests.techniques import snippets as first
from tests.techniques import snippets_more as s
from tests.techniques.situations import contract, profile, situation
from tests.techniques.test_codemods import applied, run

COUNTED = {
    "ignored_targets": first.LOSS["loss_only"],
    "smoothed": first.LOSS["loss_only"].replace("ignore_index=-1", "label_smoothing=0.1, ignore_index=-1"),
}
TABLE: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "gc-freeze": (s.LOOPS, s.FREEZE_LEFT),
    "flush-denormals": (s.LOOPS, s.DENORMALS_LEFT),
    "tf32": (s.LOOPS, s.TF32_LEFT),
    "no-cache-emptying": (s.EMPTYING, s.EMPTYING_LEFT),
    "no-anomaly-detection": (s.ANOMALY, s.ANOMALY_LEFT),
    "early-release": (s.RELEASED, s.RELEASED_LEFT),
    "early-zero-grad": (s.CLEARED_LATE, s.CLEARED_LATE_LEFT),
    "selective-checkpointing": (s.CHECKPOINTED, s.CHECKPOINTED_LEFT),
    "one-position-head": (s.POSITIONS, s.POSITIONS_LEFT),
    "counted-rows-head": (COUNTED, {"none_ignored": first.LOSS["shifted_and_loss_layer"], **first.LOSS_LEFT}),
    "channels-last": (s.CONVOLUTIONS, s.CONVOLUTIONS_LEFT),
    "constants-made-once": (s.CONSTANTS, s.CONSTANTS_LEFT),
    "create-on-device": (s.ON_DEVICE, s.ON_DEVICE_LEFT),
    "read-back-when-shown": (s.SHOWN, s.SHOWN_LEFT),
    "pinned-memory": (s.LOADED, s.PINNED_LEFT),
    "loader-workers": (s.LOADED, s.WORKERS_LEFT),
    "autocast-cache-kept": (s.MICRO_BATCHES, s.MICRO_BATCHES_LEFT),
}
CHANGED = [(i, name, text) for i, (found, _) in TABLE.items() for name, text in found.items()]
LEFT = [(i, name, text) for i, (_, left) in TABLE.items() for name, text in left.items()]
ids = ["/".join(case[:2]) for case in CHANGED]


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """What snippets switch for the whole process is switched back."""
    import torch

    yield
    gc.unfreeze()
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)
    torch.autograd.set_detect_anomaly(False)


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=ids)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_the_idiom_is_changed_and_the_numbers_are_not(technique: str, name: str, text: str) -> None:
    import torch

    after = applied(technique, text, precision="bf16")
    assert after != text
    for before, now in itertools.zip_longest(run(text), run(after)):
        torch.testing.assert_close(now, before, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=ids)
def test_a_second_time_finds_nothing(technique: str, name: str, text: str) -> None:
    after = applied(technique, text, precision="bf16")
    assert get(technique).apply(situation({"any.py": after}, precision="bf16")).empty


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=ids)
def test_neighbours_and_windows_line_ends_stay(technique: str, name: str, text: str) -> None:
    tail = "\n\ndef other( a,b ) :\n\tif a :  # tab\n\t\treturn {'x':a ,}\n\treturn [ b\n  ,a ]   \n"
    after = applied(technique, text + tail, precision="bf16")
    assert after.endswith(tail)
    assert "odd  =  ( 1 ,2 )   # spacing that must survive\n" in after
    assert applied(technique, (text + tail).replace("\n", "\r\n"), precision="bf16") == after.replace("\n", "\r\n")


@pytest.mark.parametrize(("technique", "name", "text"), LEFT, ids=["/".join(case[:2]) for case in LEFT])
def test_what_is_not_the_idiom_is_left_alone(technique: str, name: str, text: str) -> None:
    assert applied(technique, text, precision="bf16") == text


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=ids)
def test_a_review_by_rules_refuses_none(technique: str, name: str, text: str) -> None:
    after = applied(technique, text, precision="bf16")
    found = review_diff({"any.py": text}, {"any.py": after}, None, contract(precision="bf16"))
    assert [f for f in found if f.severity != "warning"] == []


def test_rounding_needs_a_contract_that_allows_it_and_a_gpu() -> None:
    text = s.LOOPS["for_loop"]
    assert get("tf32").affects == ("precision",)
    assert applied("tf32", text, precision="fp32") == text
    assert get("tf32").apply(situation({"any.py": text}, profile(), precision="bf16")).empty
    assert not get("tf32").apply(situation({"any.py": text}, profile(device="cuda"), precision="bf16")).empty


def test_what_only_a_gpu_gains_from_is_not_tried_on_a_cpu() -> None:
    loaded, compiled = s.LOADED["of_rows"], s.COMPILED["function"]
    for technique, text in (("pinned-memory", loaded), ("compile-max-autotune", compiled)):
        assert get(technique).apply(situation({"any.py": text}, profile())).empty
        assert not get(technique).apply(situation({"any.py": text}, profile(device="cuda"))).empty


@pytest.mark.parametrize("name", sorted(s.COMPILED))
def test_a_mode_is_given_to_what_is_compiled_already(name: str) -> None:
    after = applied("compile-max-autotune", s.COMPILED[name])
    assert after.count('mode="max-autotune-no-cudagraphs")') == 1
    assert applied("compile-max-autotune", after) == after


@pytest.mark.parametrize("name", sorted(s.COMPILED_LEFT))
def test_a_mode_of_its_own_is_kept(name: str) -> None:
    assert applied("compile-max-autotune", s.COMPILED_LEFT[name]) == s.COMPILED_LEFT[name]


@pytest.mark.parametrize(("text", "made"), [(s.net(), "net = Net()"), (first.trainer(), "net = Stack()")], ids=["list", "loop"])
def test_each_block_of_a_module_list_is_compiled_in_place(text: str, made: str) -> None:
    after = applied("regional-compile", text)
    assert f"    {made}\n    for net_part in net.units:\n        net_part.compile()\n" in after
    assert applied("regional-compile", after) == after
    assert applied("regional-compile", s.WHILE) == s.WHILE


def test_masks_are_made_once_for_each_length() -> None:
    text = applied("constants-made-once", s.CONSTANTS["mask_of_the_length"])
    space: dict[str, object] = {}
    exec(compile(text, "any.py", "exec"), space)
    space["run"]()  # type: ignore[operator]
    assert len(space["_made_once"]) == 2  # type: ignore[arg-type]


def test_checkpoints_of_any_kind_compose_with_what_is_kept() -> None:
    import torch

    here = situation({"any.py": s.net()})
    after = apply_all(["activation-checkpointing", "selective-checkpointing"], here).sources["any.py"]
    assert "context_fn=_products_are_kept" in after
    for before, now in zip(run(s.net()), run(after), strict=True):
        torch.testing.assert_close(now, before, rtol=2e-5, atol=2e-6)


def test_weights_are_cast_once_an_update() -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: object, types: object, args: tuple[object, ...] = (), kwargs: object = None) -> object:
            tensor = args[0] if args else None
            to_bf16 = isinstance(kwargs, dict) and kwargs.get("dtype") is torch.bfloat16
            self.count += func is torch.ops.aten._to_copy.default and to_bf16 and isinstance(tensor, torch.nn.Parameter)
            return func(*args, **(kwargs or {}))  # type: ignore[operator, dict-item]

    text = s.MICRO_BATCHES["under_a_name"]
    counts = []
    for program in (text, applied("autocast-cache-kept", text, precision="bf16")):
        with Casts() as casts:
            run(program)
        counts.append(casts.count)
    assert counts[1] * 2 == counts[0] > 0


MALLOC = (
    Knob(name="pool", values=(False, True), default=False, layer="memory", preload="libtcmalloc_minimal.so.4"),
    Knob(name="a", values=("", "0"), default="", layer="memory", env="MALLOC_MMAP_MAX_"),
    Knob(name="b", values=("", "17179869184"), default="", layer="memory", env="MALLOC_TRIM_THRESHOLD_"),
    Knob(name="c", values=("", "1"), default="", layer="memory", env="THP_MEM_ALLOC_ENABLE"),
    Knob(name="d", values=("", "true", "close"), default="", env="OMP_PROC_BIND"),
    Knob(name="e", values=("", "expandable_segments:True"), default="", layer="memory", env="PYTORCH_CUDA_ALLOC_CONF"),
)


@pytest.mark.parametrize(
    ("technique", "chosen"),
    [
        ("glibc-keeps-pages", {"a": "0", "b": "17179869184"}),
        ("huge-pages", {"c": "1"}),
        ("pin-threads", {"d": "close"}),
        ("cuda-expandable-segments", {"e": "expandable_segments:True"}),
    ],
)
def test_settings_are_chosen_by_their_variable(technique: str, chosen: dict[str, object]) -> None:
    here = situation({}, knobs=MALLOC)
    assert get(technique).apply(here).knobs == chosen
    assert get(technique).apply(situation({}, set_knobs=chosen, knobs=MALLOC)).empty  # type: ignore[arg-type]
    assert get(technique).apply(situation({})).empty


def test_an_allocator_of_its_own_makes_glibcs_settings_useless() -> None:
    assert get("glibc-keeps-pages").apply(situation({}, set_knobs={"pool": True}, knobs=MALLOC)).empty
    faulting = situation({}, profile(page_faults=100_000), knobs=MALLOC)
    idle = situation({}, profile(page_faults=100), knobs=MALLOC)
    for technique in ("glibc-keeps-pages", "huge-pages"):
        assert get(technique).predict(faulting).time < get(technique).predict(idle).time


@pytest.mark.parametrize(
    ("technique", "busy", "idle"),
    [
        ("tf32", profile({"aten::mm": 0.6}, device="cuda"), profile({"aten::mm": 0.1}, device="cuda")),
        ("loader-workers", profile(phases={"data": 0.4}), profile(phases={"data": 0.01})),
        ("channels-last", profile({"aten::convolution": 0.6}), profile({"aten::mm": 0.6})),
        ("read-back-when-shown", profile(phases={"host_sync": 0.3}, device="cuda"), profile(device="cuda")),
        ("regional-compile", profile(step_s=100.0), profile(step_s=0.3)),
        ("no-cache-emptying", profile(step_s=0.2), profile(step_s=20.0)),
    ],
)
def test_another_profile_gives_another_prediction(technique: str, busy: object, idle: object) -> None:
    effects = [get(technique).predict(situation({}, profile=p, precision="bf16")) for p in (busy, idle)]  # type: ignore[arg-type]
    assert effects[0].time < effects[1].time


def test_autocast_that_is_switched_off_is_left_alone() -> None:
    knob = Knob(name="kind", values=("fp32", "bf16"), default="fp32", flag="--kind {}", affects=("precision",))
    here = {"any.py": s.MICRO_BATCHES["written_there"]}
    off = situation(here, profile(), precision="bf16", knobs=(knob,))
    on = situation(here, profile(), {"kind": "bf16"}, precision="bf16", knobs=(knob,))
    assert get("autocast-cache-kept").apply(off).empty
    assert not get("autocast-cache-kept").apply(on).empty

"""Each codemod changes its idiom in any hand's style, leaves everything else alone, and keeps the numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import get
from tests.techniques import snippets as s
from tests.techniques.situations import contract, situation

TABLE: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "sdpa": (s.SDPA, s.SDPA_LEFT),
    "chunked-cross-entropy": (s.LOSS, s.LOSS_LEFT),
    "linear-cross-entropy": (s.LOSS, s.LOSS_LEFT),
    "fused-optimizer": (s.OPTIMIZERS, s.OPTIMIZERS_LEFT),
    "foreach-optimizer": (s.OPTIMIZERS, s.OPTIMIZERS_LEFT),
    "clip-foreach": (
        {"dotted": s.trainer(), "imported": s.trainer().replace("nn.utils.clip_grad_norm_", "clip_it").replace(
            "import math\n", "import math\nfrom torch.nn.utils import clip_grad_norm_ as clip_it\n")},
        {"asked_already": s.trainer().replace("net.parameters(), 1.0", "net.parameters(), 1.0, foreach=False")},
    ),
    "zero-grad-to-none": (s.CLEARING, s.CLEARING_LEFT),
    "defer-host-sync": (s.SYNCS, s.SYNCS_LEFT),
    "inplace-activation": (s.IN_PLACE, s.IN_PLACE_LEFT),
    "activation-checkpointing": (s.CHECKPOINTS, s.CHECKPOINTS_LEFT),
    "no-activation-checkpointing": (s.CHECKPOINTED, s.CHECKPOINTED_LEFT),
    "fused-qkv": (s.QKV, s.QKV_LEFT),
    "fused-activation": (s.ACTIVATIONS, s.ACTIVATIONS_LEFT),
}
CHANGED = [(i, name, text) for i, (found, _) in TABLE.items() for name, text in found.items()]
LEFT = [(i, name, text) for i, (_, left) in TABLE.items() for name, text in left.items()]


def _ids(cases: list[tuple[str, str, str]]) -> list[str]:
    return [f"{technique}/{name}" for technique, name, _ in cases]


def applied(technique: str, text: str, **more: Any) -> str:
    """The text after a technique; the text itself when it changes nothing."""
    return get(technique, contract()).apply(situation({"any.py": text}, **more)).sources.get("any.py", text)


def run(text: str) -> list[Any]:
    space: dict[str, Any] = {}
    exec(compile(text, "any.py", "exec"), space)
    return space["run"]()


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_the_idiom_is_changed_and_the_numbers_are_not(technique: str, name: str, text: str) -> None:
    import torch

    after = applied(technique, text)
    assert after != text
    for before, now in itertools.zip_longest(run(text), run(after)):
        torch.testing.assert_close(now, before, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_a_second_time_finds_nothing(technique: str, name: str, text: str) -> None:
    after = applied(technique, text)
    assert get(technique).apply(situation({"any.py": after})).empty


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_windows_line_ends_stay(technique: str, name: str, text: str) -> None:
    after = applied(technique, text.replace("\n", "\r\n"))
    assert after == applied(technique, text).replace("\n", "\r\n")


@pytest.mark.parametrize(("technique", "name", "text"), CHANGED, ids=_ids(CHANGED))
def test_what_is_not_concerned_keeps_every_byte(technique: str, name: str, text: str) -> None:
    """A second, odd-looking function below stays as it is, and so does the header's odd line."""
    tail = "\n\ndef other( a,b ) :\n\tif a :  # tab\n\t\treturn {'x':a ,}\n\treturn [ b\n  ,a ]   \n"
    after = applied(technique, text + tail)
    assert after.endswith(tail)
    assert "odd  =  ( 1 ,2 )   # spacing that must survive\n" in after


@pytest.mark.parametrize(("technique", "name", "text"), LEFT, ids=_ids(LEFT))
def test_what_is_not_the_idiom_is_left_alone(technique: str, name: str, text: str) -> None:
    assert applied(technique, text) == text


@pytest.mark.parametrize("technique", sorted(TABLE))
def test_files_that_are_no_python_are_left_alone(technique: str) -> None:
    broken = {"a.py": "def (:\n  softmax cross_entropy AdamW zero_grad", "b.py": ""}
    assert get(technique).apply(situation(broken)).empty


def test_the_fused_call_carries_mask_scale_and_dropout() -> None:
    assert "(q, k, v, is_causal=True)" in applied("sdpa", s.SDPA["buffer_masked_fill"])
    assert "is_causal=True, scale=1.0)" in applied("sdpa", s.SDPA["added_mask"])
    assert "dropout_p=self.drop.p if self.drop.training else 0.0" in applied("sdpa", s.SDPA["in_place_and_layers"])
    assert "is_causal" not in applied("sdpa", s.SDPA["bmm_without_mask"])


def test_a_mask_made_for_the_attention_alone_goes_with_it() -> None:
    assert "torch.triu" not in applied("sdpa", s.SDPA["added_mask"])
    assert "tril" not in applied("sdpa", s.SDPA["in_place_and_layers"]).split("def forward")[1]


AUTOCAST = {
    "in_the_loop": s.trainer(),
    "through_a_function": s.trainer()
    .replace("out = net(x)\n            loss = F.mse_loss(out, x.flip(1)) / 2", "loss = measure(net, x)")
    .replace("\n\ndef run", "\n\ndef measure(m, x):\n    return F.mse_loss(m(x), x.flip(1)) / 2\n\n\ndef run"),
}


@pytest.mark.parametrize("name", sorted(AUTOCAST))
def test_autocast_rounds_the_forward_pass_and_nothing_else(name: str) -> None:
    import torch

    text = AUTOCAST[name]
    after = applied("bf16-autocast", text, precision="bf16")
    assert after.count("with torch.autocast(device_type=next(net.parameters()).device.type, dtype=torch.bfloat16):") == 1
    before, now = run(text), run(after)
    assert all(b.dtype == a.dtype for a, b in zip(before, now, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(before, now, strict=True))
    for a, b in zip(before, now, strict=True):
        torch.testing.assert_close(b, a, rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("text", "precision"),
    [(s.trainer(), "fp32"), (s.trainer().replace("out = net(x)", "with torch.autocast('cpu'):\n                out = net(x)"), "bf16")],
    ids=["not allowed", "there already"],
)
def test_autocast_is_left_out(text: str, precision: str) -> None:
    assert applied("bf16-autocast", text, precision=precision) == text


def test_a_setting_for_bf16_is_preferred_to_code() -> None:
    from rsi_tui.contract.model import Knob

    knob = Knob(name="kind", values=("float32", "bfloat16"), default="float32", flag="--kind {}", affects=("precision",))
    change = get("bf16-autocast").apply(situation({"any.py": s.trainer()}, precision="bf16", knobs=(knob,)))
    assert change.knobs == {"kind": "bfloat16"}
    assert not change.sources


def test_compile_keeps_the_names_in_checkpoints() -> None:
    after = applied("torch-compile", s.trainer())
    assert "    net = Stack()\n    net.compile()\n" in after
    assert applied("torch-compile", after) == after


def test_an_unreadable_neighbour_does_not_stop_a_technique() -> None:
    texts = {"good.py": s.trainer(), "bad.py": "print 'AdamW'"}
    change = get("fused-optimizer").apply(situation(texts))
    assert list(change.sources) == ["good.py"]


def test_nothing_is_asked_of_the_profile_that_is_not_there() -> None:
    here: Situation = situation({"any.py": s.trainer()})
    from rsi_tui.techniques.registry import all_techniques

    for technique in all_techniques():
        assert technique.predict(here).time < 5

"""Techniques of the communication layer: what two processes learn stays what it was, and less is waited for."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.journal.facts import CommunicationFacts, ProfileFacts
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import apply_all, get
from tests.techniques import snippets_communication as s
from tests.techniques.situations import profile, situation
from tests.techniques.two_processes import Pair, in_one

SMALL = profile().model_copy(update={"parameters": 12 * 2**20})

EXACT: dict[str, dict[str, str]] = {
    "sync-once": s.AVERAGED_MORE_THAN_ONCE,
    "bucketed-all-reduce": s.REDUCED,
    "overlapped-all-reduce": s.REDUCED,
    "sync-once bucketed-all-reduce": s.COMBINED,
    "sync-once overlapped-all-reduce": s.AVERAGED_MORE_THAN_ONCE,
    "ddp-no-sync": s.DDP_PLAIN,
    "ddp-gradient-as-bucket-view": s.DDP_PLAIN,
    "ddp-static-graph": s.DDP_PLAIN,
    "ddp-bucket-size": s.DDP_PLAIN,
    "ddp-find-unused-off": s.UNUSED,
    "ddp-no-sync ddp-gradient-as-bucket-view ddp-bucket-size": s.DDP_PLAIN,
    "fewer-scalar-syncs": s.SCALARS,
    "expert-parallel": s.EXPERTS,
    "expert-parallel overlapped-all-reduce": {"inline": s.MOE_INLINE},
    "expert-parallel sync-once bucketed-all-reduce": {"function": s.MOE_FUNCTION},
    "clip-foreach batched-experts expert-parallel": {"function": s.MOE_FUNCTION},
}
"""techniques, applied together -> programs that each must keep every number of"""
ROUNDED: dict[str, dict[str, str]] = {
    "bf16-gradients": {**s.REDUCED, **s.DDP_PLAIN},
    "sync-once bucketed-all-reduce bf16-gradients": {"inline": s.INLINE},
    "sync-once overlapped-all-reduce bf16-gradients": s.COMBINED,
    "ddp-no-sync bf16-gradients": {"range": s.DDP_PLAIN["range"]},
}
"""the same for those that round"""
LEFT: dict[str, dict[str, str]] = {
    "sync-once": s.SYNC_ONCE_LEFT,
    "bucketed-all-reduce": s.BUCKETS_LEFT,
    "overlapped-all-reduce": s.OVERLAP_LEFT,
    "ddp-no-sync": s.NO_SYNC_LEFT,
    "ddp-static-graph": s.STATIC_LEFT,
    "ddp-gradient-as-bucket-view": s.VIEW_LEFT,
    "ddp-bucket-size": {"set_already": s.DDP_RANGE.replace("DDP(Net())", "DDP(Net(), bucket_cap_mb=2)"), "none": s.INLINE},
    "ddp-find-unused-off": s.UNUSED_LEFT,
    "fewer-scalar-syncs": s.SCALARS_LEFT,
    "expert-parallel": s.EXPERTS_LEFT,
    "bf16-gradients": {k: v for k, v in s.BUCKETS_LEFT.items() if k not in ("sparse", "read_later")},
}
CASES = [(ids, name, text) for table in (EXACT, ROUNDED) for ids, found in table.items() for name, text in found.items()]
FIRST = ("inline", "range", "keyword", "one_after_the_other", "function")
"""programs that run in a single process, too"""
ALONE = [case for case in CASES if " " not in case[0]]
ONE_OF_EACH = list({case[0]: case for case in ALONE}.values())
LEFT_CASES = [(ids, name, text) for ids, found in LEFT.items() for name, text in found.items()]


def _ids(cases: list[tuple[str, str, str]]) -> list[str]:
    return [f"{ids.replace(' ', '+')}/{name}" for ids, name, _ in cases]


def here(text: str) -> Situation:
    return situation({"any.py": text}, profile=SMALL, precision="bf16")


@lru_cache(maxsize=1024)
def applied(ids: str, text: str) -> str:
    """The text after the techniques; the text itself when one alone changes nothing."""
    if " " in ids:
        return apply_all(ids.split(), here(text)).sources["any.py"]
    return get(ids).apply(here(text)).sources.get("any.py", text)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each program says, before and after, in both processes and in one alone: by text."""
    folder: Path = tmp_path_factory.mktemp("two")
    pair = Pair(folder)
    programs = {text: text for _, _, text in CASES} | {t: t for ids, _, text in CASES for t in [applied(ids, text)]}
    first = {text: case for case in reversed(CASES) for text in (case[2], applied(case[0], case[2]))}
    both = pair.run(programs)
    alone = in_one({text: text for text, case in first.items() if case[1] in FIRST}, folder)
    return {text: [both[0][text], both[1][text], *([alone[text]] if text in alone else [])] for text in programs}


@pytest.mark.parametrize(("ids", "name", "text"), CASES, ids=_ids(CASES))
def test_all_processes_learn_what_they_learned_before(
    ids: str, name: str, text: str, told: dict[str, list[Any]]
) -> None:
    import torch

    after = applied(ids, text)
    assert after != text
    rtol, atol = (0.1, 0.03) if ids in ROUNDED else (2e-5, 2e-6)
    for before, now in zip(told[text], told[after], strict=True):
        assert not isinstance(before, str), before
        assert not isinstance(now, str), now
        for a, b in itertools.zip_longest(before[0], now[0]):
            torch.testing.assert_close(b, a, rtol=rtol, atol=atol)
    if ids in ROUNDED:
        assert any(not torch.equal(a, b) for a, b in zip(told[text][0][0], told[after][0][0], strict=True))


@pytest.mark.parametrize(("ids", "name", "text"), ALONE, ids=_ids(ALONE))
def test_a_second_time_finds_nothing(ids: str, name: str, text: str) -> None:
    assert get(ids).apply(here(applied(ids, text))).empty


@pytest.mark.parametrize(("ids", "name", "text"), ONE_OF_EACH, ids=_ids(ONE_OF_EACH))
def test_line_ends_and_neighbours_keep_every_byte(ids: str, name: str, text: str) -> None:
    tail = "\n\ndef other( a,b ) :\n\tif a :  # tab\n\t\treturn {'x':a ,}\n\treturn [ b\n  ,a ]   \n"
    after = applied(ids, text)
    assert "odd  =  ( 1 ,2 )   # spacing that must survive\n" in after
    assert applied(ids, (text + tail).replace("\n", "\r\n")) == (after + tail).replace("\n", "\r\n")


@pytest.mark.parametrize(("ids", "name", "text"), LEFT_CASES, ids=_ids(LEFT_CASES))
def test_what_is_not_the_idiom_is_left_alone(ids: str, name: str, text: str) -> None:
    compile(text, name, "exec")
    assert applied(ids, text) == text


def test_gradients_are_exchanged_once_an_update_in_one_bucket(told: dict[str, list[Any]]) -> None:
    counts = {ids: told[applied(ids, s.INLINE)][0][1] for ids in EXACT if s.INLINE in EXACT[ids].values()}
    tensors, updates, parts = 6, 3, 2
    assert told[s.INLINE][0][1] == tensors * updates * parts
    assert counts["sync-once"] == tensors * updates
    assert counts["bucketed-all-reduce"] == counts["overlapped-all-reduce"] == updates * parts
    assert counts["sync-once bucketed-all-reduce"] == counts["sync-once overlapped-all-reduce"] == updates


def test_logged_values_of_one_dtype_travel_together(told: dict[str, list[Any]]) -> None:
    text = s.SCALARS["one_after_the_other"]
    after = applied("fewer-scalar-syncs", text)
    assert (told[text][0][1], told[after][0][1]) == (6, 4)


def test_bf16_is_for_contracts_that_allow_it() -> None:
    for text in (s.INLINE, s.DDP_RANGE):
        assert get("bf16-gradients").apply(situation({"any.py": text}, precision="fp32")).empty


def test_a_bucket_size_needs_a_small_model() -> None:
    large = profile().model_copy(update={"parameters": 10**9})
    for seen in (None, large):
        assert get("ddp-bucket-size").apply(situation({"any.py": s.DDP_RANGE}, profile=seen)).empty
    assert "bucket_cap_mb=8)" in applied("ddp-bucket-size", s.DDP_RANGE)


def test_a_function_of_another_file_is_understood() -> None:
    head, tail = s.FUNCTION.split("\n\ndef train")
    texts = {"share.py": head, "fit.py": "from share import *\nimport torch\n" + "\n\ndef train" + tail}
    texts["fit.py"] = texts["fit.py"].replace("from share import *", "from share import Net, Rows, average_gradients\nfrom torch import nn")
    assert list(get("sync-once").apply(situation(texts)).sources) == ["fit.py"]
    assert list(get("bucketed-all-reduce").apply(situation(texts)).sources) == ["share.py"]
    assert list(get("overlapped-all-reduce").apply(situation(texts)).sources) == ["fit.py"]


def _wide(exposed_s: float, **changes: float) -> ProfileFacts:
    seen = CommunicationFacts(
        backend="gloo", world_size=2, calls=changes.get("calls", 160), payload_bytes=changes.get("payload", 16e6),
        exposed_s=exposed_s, overlapped_s=0.0, link_rate=50e6,
    )  # fmt: skip
    return profile(step_s=1.0).model_copy(update={"communication": seen})


@pytest.mark.parametrize(
    "technique",
    ["sync-once", "bucketed-all-reduce", "overlapped-all-reduce", "ddp-no-sync", "ddp-bucket-size", "bf16-gradients"],
)
def test_more_waiting_promises_more(technique: str) -> None:
    many, few = (get(technique).predict(situation({}, profile=_wide(s), precision="bf16")).time for s in (0.6, 0.002))
    assert many < few <= 0


def test_what_is_sent_once_already_promises_nothing() -> None:
    once = _wide(0.5, payload=8e6)
    assert get("sync-once").predict(situation({}, profile=once)).time == pytest.approx(0.0)

"""The Reviewer catches what leaves its direction and what cheats, without knowing a score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import KnobValue, Layer
from rsi_tui.journal.facts import DirectionFacts
from rsi_tui.loop.static_review import blind, review_diff
from rsi_tui.minds.builtin.reviewer import review
from rsi_tui.minds.protocol import ReviewBrief
from rsi_tui.repo.patch import make_diff
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import applicable

WORKLOAD = Path(__file__).parents[2] / "workloads" / "dense_single"
CONTRACT = load_contract(WORKLOAD, "quick")
SOURCES = {name: (WORKLOAD / name).read_text() for name in ("train.py", "model.py")}


@dataclass(frozen=True)
class Case:
    """One diff in a direction."""

    name: str
    layer: Layer
    path: str
    old: str
    new: str
    knobs: tuple[tuple[str, KnobValue], ...] = ()

    @property
    def after(self) -> dict[str, str]:
        if not self.old:
            return dict(SOURCES)
        assert self.old in SOURCES[self.path], f"{self.old!r} is not in {self.path}"
        return {**SOURCES, self.path: SOURCES[self.path].replace(self.old, self.new, 1)}


def find(path: str, word: str) -> str:
    """The first line of a source that holds a word, with its line end."""
    return next(line for line in SOURCES[path].splitlines(keepends=True) if word in line)


def indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


STEP = find("train.py", "optimizer.step()")
BACKWARD = find("train.py", ".backward()")
CLIP = find("train.py", "clip_grad_norm_")
ADAM = find("model.py", "AdamW(")
SOFTMAX = find("model.py", "softmax")

EXPLOITS = [
    Case("every second update is skipped", "optimizer", "train.py", STEP, f"{indent(STEP)}if step % 2 == 0:\n    {STEP}"),
    Case("the clock is patched", "kernel", "train.py", "import torch\n", "import time\ntime.time = lambda: 0.0\nimport torch\n"),
    Case("gradient clipping is gone", "optimizer", "train.py", CLIP, f"{indent(CLIP)}grad_norm = torch.zeros(())\n"),
    Case("a process is started", "data", "train.py", STEP, f"{STEP}{indent(STEP)}__import__('subprocess').Popen(['sleep', '9'])\n"),
    Case("code is hidden in a blob", "kernel", "model.py", "import torch\n", "import torch\nexec('x = 1')\n"),
    Case("the loss is detached", "kernel", "train.py", BACKWARD, f"{indent(BACKWARD)}loss = loss.detach().requires_grad_()\n{BACKWARD}"),
    Case("a forged progress line", "data", "train.py", STEP, f"{STEP}{indent(STEP)}print('step 99 loss 0.1 grad_norm 1.0')\n"),
]
OFF = [
    Case("attention in an optimizer direction", "optimizer", "model.py", SOFTMAX, SOFTMAX.replace("softmax", "log_softmax") + f"{indent(SOFTMAX)}extra_softmax = 0\n"),
    Case("optimizer in a data direction", "data", "model.py", ADAM, f"{indent(ADAM)}optimizer_fused = True\n{ADAM}"),
    Case("a compiler change in a launch direction", "launch", "train.py", STEP, f"{STEP}{indent(STEP)}compiled = torch.compile\n"),
    Case("a knob of another layer", "optimizer", "", "", "", (("omp_wait_policy", "PASSIVE"),)),
    Case("a precision knob in a data direction", "data", "", "", "", (("dtype", "bf16"),)),
]
HONEST = [
    Case("a knob of its own layer", "memory", "", "", "", (("micro_batch", 4),)),
    Case("fused optimizer in an optimizer direction", "optimizer", "model.py", "betas=betas)", "betas=betas, fused=True)"),
]


def answer(case: Case) -> tuple[list[str], bool]:
    """(severities of static findings, on direction by the builtin mind)."""
    after = case.after
    before_knobs = dict(CONTRACT.defaults)
    changed = [(p, "100644", "100644") for p in after if after[p] != SOURCES.get(p)]
    findings = review_diff(SOURCES, after, changed, CONTRACT)
    direction = DirectionFacts(
        id="d1", question="?", layer=case.layer, start_kind="original", start="original", techniques=(), reason="",
        expected_gain=0.1, budget=1, closing_rule="",
    )  # fmt: skip
    said = review(
        ReviewBrief(
            direction=direction, statement="", diff=make_diff(SOURCES, after), before=SOURCES, after=after,
            knobs_before=before_knobs, knobs_after={**before_knobs, **dict(case.knobs)}, contract=CONTRACT,
        )
    )  # fmt: skip
    return [f.severity for f in findings], said.on_direction


@pytest.mark.parametrize("case", EXPLOITS, ids=lambda c: c.name)
def test_an_exploit_is_found_from_the_diff(case: Case) -> None:
    severities, _ = answer(case)
    assert "exploit" in severities or "scope" in severities


@pytest.mark.parametrize("case", OFF, ids=lambda c: c.name)
def test_work_off_its_direction_is_named(case: Case) -> None:
    severities, on_direction = answer(case)
    assert not on_direction or "off_direction" in severities


@pytest.mark.parametrize("case", HONEST, ids=lambda c: c.name)
def test_honest_work_on_its_direction_passes(case: Case) -> None:
    severities, on_direction = answer(case)
    assert on_direction
    assert not {"exploit", "scope"} & set(severities)


@pytest.mark.parametrize(
    "workload", ["moe_multi", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dense_single", "moe_single", "dense_multi"))]
)
def test_what_a_technique_of_the_direction_makes_is_on_direction(workload: str) -> None:
    """Whatever layers its code looks like, and though the reviewer is shown neither comments nor docstrings."""
    folder = WORKLOAD.parent / workload
    contract = load_contract(folder, "quick")
    sources = {name: (folder / name).read_text() for name in contract.editable}
    for technique, change, _ in applicable(Situation(sources, contract, None, contract.defaults)):
        before = {path: blind(text) for path, text in sources.items()}
        after = {path: blind(text) for path, text in {**sources, **change.sources}.items()}
        direction = DirectionFacts(
            id="d1", question="?", layer=technique.layer, start_kind="original", start="original", techniques=(technique.id, "no-such"),
            reason="", expected_gain=0.1, budget=4, closing_rule="",
        )  # fmt: skip
        brief = ReviewBrief(direction, "", make_diff(before, after), before, after, contract.defaults, {**contract.defaults, **change.knobs}, contract)
        answer = review(brief)
        assert answer.on_direction, (technique.id, answer.reason)

"""A machine without bf16 units: the twin is ended early, nobody is judged by it, and nothing else suffers. Real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.locations import Home
from rsi_tui.loop.setup import Request, open_campaign
from rsi_tui.minds.builtin.mind import BuiltinMind
from tests.support.campaigns import TINY, tiny_repository

KNOB = """
[[knobs]]
name = "dtype"
values = ["fp32", "bf16"]
default = "fp32"
layer = "kernel"
flag = "--dtype {}"
affects = ["precision"]
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bf16_twin_that_is_far_slower_than_the_program_is_ended_and_bf16_not_allowed(tmp_path: Path) -> None:
    contract = (TINY / "workload.toml").read_text().replace('precision = "fp32"', 'precision = "bf16"')
    contract = contract.replace("[preset.quick.proof]", f"{KNOB}\n[preset.quick.proof]")
    contract = contract.replace('[resume]\nflag = "--load {state}"\n', "")
    program = (TINY / "train.py").read_text()
    loop = "    for step in range("
    assert program.count(loop) == 1
    program = program.replace(loop, f'    if args.dtype == "bf16":\n        __import__("time").sleep(60)\n{loop}')
    repository = tiny_repository(tmp_path / "tiny", workload__toml=contract, train__py=program)
    opened = open_campaign(Home(tmp_path / "home"), Request(repository, preset="quick"), BuiltinMind(), aa_pairs=4)
    context = opened.context
    try:
        found = context.evaluator.calibrate(0.006)
        context.baselined(found)
        lab = context.evaluator._lab

        assert "bf16 can't make it faster on this machine" in found.no_rounding
        assert not [band.name for band in found.bands if band.name.startswith("bf16")]
        assert [band.name for band in found.bands if band.name.startswith("fp32")]
        assert lab.twin == "", "no later block runs it"
        assert {knob.name: knob.values for knob in context.usable.knobs}["dtype"] == ("fp32",)
        assert context.usable.invariants.precision == "fp32", "no mind proposes bf16"
    finally:
        context.evaluator.close(finished=True)
        opened.writer.close()

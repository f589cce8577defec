"""A whole campaign with all of proof on: a canary is verified, the stack is taken apart, what is left is claimed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rsi_tui.audit import reading
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import BlockOpened, CanaryPlanted, LeftOut, Revoked
from rsi_tui.journal.rows import batch_of
from rsi_tui.journal.view import CampaignView, campaign_summary
from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.revoking import veto
from rsi_tui.loop.setup import Request
from rsi_tui.minds.protocol import ChangeAnswer, ExecutorBrief
from tests.support.campaigns import TINY, PatchMind, tiny_repository

WAITS = (
    ("        x, y = batch(args.seed, step, batch_size)\n", "        time.sleep(0.03)\n"),
    ("        optimizer.step()\n", "        time.sleep(0.05)\n"),
)
"""what the program does for nothing: a line, and the wait put before it"""
PROOF = """
[preset.proof.proof]
aa_pairs = 4
max_verifications = 2
final_pairs = 8
max_candidates = 2
bundle = true
max_slow_rate = 0.5
leave_one_out = true
canaries = true
"""


def wasteful(folder: Path) -> Path:
    """The tiny workload with two waits in each step."""
    text = (TINY / "train.py").read_text().replace("import os\n", "import os\nimport time\n", 1)
    for line, wait in WAITS:
        assert text.count(line) == 1
        text = text.replace(line, wait + line)
    contract = (TINY / "workload.toml").read_text().replace('[resume]\nflag = "--load {state}"\n', "")
    return tiny_repository(folder, train__py=text, workload__toml=contract + PROOF)


@dataclass
class Mending(PatchMind):
    """Takes one wait out in each round."""

    def execute(self, brief: ExecutorBrief) -> ChangeAnswer:
        number = int(brief.hypothesis.statement.split()[1]) - 1
        return ChangeAnswer(sources={"train.py": brief.sources["train.py"].replace(WAITS[number][1], "")})


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_stack_is_proven_part_by_part_and_a_canary_is_not(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    ended = run(home, Request(wasteful(tmp_path / "tiny"), preset="proof"), Mending([{}, {}]))
    assert (ended.state, ended.exit_code) == ("finished", 0), ended.sentence
    events = read_events(home.campaign(ended.campaign).journal)
    view = CampaignView().feed_all(events)

    planted = [event.body for event in events if isinstance(event.body, CanaryPlanted)]
    assert [(body.kind, body.forced) for body in planted] == [("no-op", True)]
    canary = view.known(planted[0].candidate)
    assert canary is not None and canary.verdict is not None and canary.verdict.verdict in ("not_proven", "slower")
    assert all(fact.status != "broken" for fact in canary.verdict.invariants), "a no-op breaks nothing"
    assert canary.verdict.blocks, "its first block was run to its end, however hopeless"

    assert view.claim is not None and view.claim.proven, view.claim
    rounds = [event.body for event in events if isinstance(event.body, LeftOut)]
    assert len(rounds) == 1 and rounds[0].dropped == ""
    parts = {part.candidate: part for part in view.claim.attribution}
    assert parts.keys() == {"c1", "c2"}
    assert all(part.how == "leave-one-out" and part.proven and part.interval is not None for part in parts.values()), parts
    assert parts["c2"].log_ratio < parts["c1"].log_ratio < 0  # type: ignore[operator]
    purposes = {event.body.purpose for event in events if isinstance(event.body, BlockOpened)}
    assert {"calibration", "screen", "verify", "leave-one-out", "claim"} <= purposes

    assert campaign_summary(view)["candidates"] == 3
    assert {row["id"].split("/")[1] for row in batch_of(events).candidates} == {"c1", "c2", "c3"}
    report = reading.report(home, ended.campaign)
    assert "1 planted, none adopted" in report and "unproven alone" not in report.split("## What was proven")[0]

    assert "taken back" in veto(home, ended.campaign, view.claim.candidate, "ann", "not here")
    events = read_events(home.campaign(ended.campaign).journal)
    assert isinstance(events[-1].body, Revoked) and CampaignView().feed_all(events).proven_speedup() is None

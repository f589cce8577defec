"""A scripted Executor's new code, claimed by the real evaluator: real engine, sandbox, sealed pairs, e-process, hidden validation."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from rsi_tui.audit import reading
from rsi_tui.audit.verify import verify_target
from rsi_tui.contract.load import load_contract
from rsi_tui.errors import PatchError
from rsi_tui.journal.events import VerdictReached
from rsi_tui.journal.view import CampaignView
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import all_techniques
from tests.minds.test_claude_campaign import at_home, bodies, events_of, every_file, key  # noqa: F401  the key is planted for each test
from tests.support.campaigns import WORKLOADS, committed, expert_repository
from tests.support.claude_script import CLOSE, END, Play, direction, edits, hypothesis
from tests.support.messages_api import KEY, messages_api

HASHED = Path(__file__).parents[1] / "workloads" / "hashed"
"""experts in a loop, in a program that starts in a fraction of a second: with torch's two seconds a campaign takes five minutes"""
MODEL = (HASHED / "model.py").read_text()
FORWARD = MODEL[MODEL.index("    out, kept = np.zeros_like(x), []") : MODEL.index("    return out, kept")]
BACKWARD = MODEL[MODEL.index("    dx, dw1, dw2 = np.zeros_like(x)") : MODEL.index("    return dx, dw1, dw2")]
PADDED_FORWARD = """\
    order = np.argsort(chosen, kind="stable")
    counts = np.bincount(chosen, minlength=EXPERTS)
    first, longest = np.cumsum(counts) - counts, int(counts.max())
    place = chosen[order] * longest + np.arange(len(chosen)) - first[chosen[order]]
    inputs = np.zeros((EXPERTS * longest, x.shape[1]), x.dtype)
    inputs[place] = x[order]
    inputs = inputs.reshape(EXPERTS, longest, -1)
    hidden = np.maximum(inputs @ w1, 0)
    out = np.empty_like(x)
    out[order] = (hidden @ w2).reshape(EXPERTS * longest, -1)[place]
    kept = (order, place, inputs, hidden)
"""
PADDED_BACKWARD = """\
    order, place, inputs, hidden = kept
    above = np.zeros((inputs.shape[0] * inputs.shape[1], grad.shape[1]), grad.dtype)
    above[place] = grad[order]
    above = above.reshape(EXPERTS, -1, grad.shape[1])
    dw2 = hidden.transpose(0, 2, 1) @ above
    dhidden = (above @ w2.transpose(0, 2, 1)) * (hidden > 0)
    dw1 = inputs.transpose(0, 2, 1) @ dhidden
    dx = np.empty_like(x)
    dx[order] = (dhidden @ w1.transpose(0, 2, 1)).reshape(-1, x.shape[1])[place]
"""
"""each expert's rows side by side, padded to the longest list, and one batched product in place of 64 small ones"""


def proven(folder: Path, place: Path, play: Play, preset: str) -> CampaignView:
    """Run a campaign to its end, whose one candidate must be adopted and claimed; everything that is said of it must hold."""
    with messages_api(play) as api:
        home = at_home(folder / "home", api)
        ended = run(home, Request(place, preset=preset, mind="claude"))
    assert (ended.state, ended.exit_code) == ("finished", 0), ended.sentence
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    verdict = next(body.verdict for body in bodies(events, VerdictReached))
    assert verdict.verdict == "adopted" and verdict.evalue >= 1 / verdict.alpha, verdict
    claim = view.claim
    assert claim is not None and claim.proven and claim.candidate == "c1" and claim.pairs == 8 and view.trust == "A", claim
    assert claim.speedup is not None and claim.speedup.low > 1.2
    report = json.loads(reading.report(home, ended.campaign, "json"))
    assert report["claim"]["proven"] and report["claim"]["speedup"]["low"] == claim.speedup.low
    assert "edit_file" in reading.why(home, "c1")
    assert verify_target(home, ended.campaign).follows
    assert KEY.encode() not in every_file(folder)
    return view


@pytest.mark.timeout(600)
def test_new_code_of_the_executor_is_proven_faster_by_the_real_evaluator(tmp_path: Path) -> None:
    play = Play(
        director=[direction(question="Can all experts of a layer run in one batched product?", layer="kernel"), END],
        selector=[hypothesis(statement="Padded rows and batched products replace 64 small calls a layer, forward and backward.", predicted_time=-1.0), CLOSE],
        executor=edits(("model.py", FORWARD, PADDED_FORWARD), ("model.py", BACKWARD, PADDED_BACKWARD)),
    )  # fmt: skip
    view = proven(tmp_path, committed(HASHED, tmp_path / "program"), play, "quick")
    assert view.claim is not None and view.claim.speedup is not None and view.claim.speedup.low > 2
    assert "inputs.transpose(0, 2, 1) @ dhidden" in view.candidates["c1"].diff


PROOF = """
[preset.proof.objective]
steps = [6, 36]

[preset.proof.invariants]
harmless = ["--micro-batch 2"]
bf16_twin = ""

[preset.proof.resume]
flag = ""

[preset.proof.proof]
aa_pairs = 4
max_verifications = 1
final_pairs = 8
max_candidates = 1
bundle = true
max_slow_rate = 0.5
leave_one_out = false
canaries = false
"""
"""as short as a campaign can be that still proves its claim: single updates from saved states are left out, sealed pairs,
e-process, invariants, hidden validation and slow runs are not"""
LAYER = (WORKLOADS / "moe_single" / "model.py").read_text()
LOOP = LAYER[LAYER.index("        out = torch.zeros_like(x)\n        expert_mask") : LAYER.index("        return out.view(B, T, C), probs, chosen")]
BATCHED = '''        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.n_expert)
        first = counts.cumsum(0) - counts
        expert_of, token = flat[order], order // self.top_k
        longest = int(counts.max())
        place = expert_of * longest + torch.arange(flat.numel(), device=x.device) - first[expert_of]
        rows = x.new_zeros(self.n_expert * longest, C).index_copy(0, place, x[token]).view(self.n_expert, longest, C)
        w1, w2, w3 = (torch.stack([getattr(e, name).weight for e in self.experts]).transpose(1, 2) for name in ("w1", "w2", "w3"))
        done = torch.bmm(F.silu(torch.bmm(rows, w1)) * torch.bmm(rows, w3), w2).view(-1, C)[place]
        out = torch.zeros_like(x).index_add(0, token, done * weights.flatten()[order, None])
'''
"""each expert's tokens side by side, padded to the longest list, and one batched product for each of the three matrices:
what no technique of the library does (they sort tokens, and go from expert to expert, or use a grouped product)"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_new_code_for_the_bundled_experts_is_proven_faster_by_the_real_evaluator(tmp_path: Path) -> None:
    place = expert_repository(tmp_path / "program", PROOF)
    play = Play(
        director=[direction(question="Can all experts of a layer run in one batched product?", layer="kernel"), END],
        selector=[hypothesis(statement="Padded lists of tokens and batched products replace 32 small calls a layer.", predicted_time=-0.7), CLOSE],
        executor=edits(("model.py", LOOP, BATCHED)),
    )  # fmt: skip
    view = proven(tmp_path, place, play, "proof")
    assert "torch.bmm" in view.candidates["c1"].diff


def test_no_technique_of_the_library_writes_that_code(tmp_path: Path) -> None:
    place = expert_repository(tmp_path / "program", PROOF)
    contract = load_contract(place, "proof")
    sources = {name: (place / name).read_text() for name in ("model.py", "train.py")}
    changed = sources | {"model.py": sources["model.py"].replace(LOOP, BATCHED)}
    assert changed != sources
    situation = Situation(sources, contract, None, contract.defaults)
    made = []
    for technique in all_techniques():
        with contextlib.suppress(PatchError):
            made.append(technique.apply(situation).sources)
    assert any("_sorted_experts" in text for texts in made for text in texts.values()), "techniques do know the loop"
    assert not any("bmm" in text for texts in made for text in texts.values())

"""Whole campaigns under `--mind claude`: the real engine and the real client, a scripted model behind a local API."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from rsi_tui.audit import reading
from rsi_tui.audit.verify import verify_target
from rsi_tui.contract.load import load_contract
from rsi_tui.errors import MindError, PatchError
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CandidateBuilt, CandidateRefused, Event, ModelCalled, SearchEnded, VerdictReached
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from rsi_tui.loop.engine import Ended, run
from rsi_tui.loop.setup import Request
from rsi_tui.techniques.base import Situation
from rsi_tui.techniques.registry import all_techniques
from tests.support.campaigns import WORKLOADS, expert_repository
from tests.support.claude_script import CLOSE, END, Play, direction, edits, hypothesis, tool
from tests.support.messages_api import KEY, MessagesApi, Status, messages_api
from tests.support.simulated import simulated, simulated_repository

END_OF_MODEL = "        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n"
FASTER = ("model.py", END_OF_MODEL, END_OF_MODEL + "\n\nEFFECT_1 = -0.16\n")
@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def at_home(folder: Path, api: MessagesApi, more: str = "") -> Home:
    """A home whose settings lead to a local server."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f'[claude]\nbase_url = "{api.url}"\n{more}')
    return Home(folder)


def events_of(home: Home, ended: Ended) -> list[Event]:
    return read_events(home.campaign(ended.campaign).journal)


def bodies(events: list[Event], kind: type) -> list:  # type: ignore[type-arg]
    return [event.body for event in events if isinstance(event.body, kind)]


def every_file(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_campaign_writes_a_patch_proves_it_and_can_say_why(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude", usd=5.0))
    assert (ended.state, ended.exit_code) == ("finished", 0), ended.sentence
    assert api.account.refused == []
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    assert view.claim is not None and view.claim.proven and view.claim.candidate == "c1"
    calls = bodies(events, ModelCalled)
    assert [call.role for call in calls] == ["director", "selector", "executor", "executor", "executor", "reviewer", "scribe", "director"]
    told = api.account.told
    assert sum(call.tokens.output for call in calls) == told["output_tokens"]
    assert sum(call.tokens.input for call in calls) == told["input_tokens"]

    why = reading.why(home, "c1")
    for call in calls[:6]:
        assert call.call in why and call.prompt in why
    assert "tokens in" in why and "$" in why and "edit_file" in why
    data = json.loads(reading.why(home, "c1", as_json=True))
    assert [call["for"] for call in data["model_calls"]] == ["d1", "h1", "h1", "h1", "h1", "c1", "d1"]
    report = json.loads(reading.report(home, ended.campaign, "json"))
    assert report["mind"]["calls"] == 8 and report["mind"]["usd"] > 0 and set(report["mind"]["by_role"]) >= {"director", "executor"}
    assert verify_target(home, ended.campaign).follows
    assert KEY.encode() not in every_file(tmp_path)


def test_roles_can_be_mixed_with_the_builtin_mind(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    others = "".join(f'[claude.{role}]\nmind = "builtin"\n' for role in ("director", "selector", "reviewer", "scribe"))
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api, others)
        ended = run(home, Request(place, preset="simulated", mind="claude", candidates=2))
        assert ended.state == "finished" and api.account.requests == []
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "second", api, "".join(f'[claude.{role}]\nmind = "builtin"\n' for role in ("reviewer", "scribe")))
        ended = run(home, Request(place, preset="simulated", mind="claude", candidates=2))
    roles = {call.role for call in bodies(events_of(home, ended), ModelCalled)}
    assert ended.state == "finished" and roles == {"director", "selector", "executor"}


def test_money_that_runs_out_ends_the_search_and_not_the_proof(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(
        director=[direction(budget=3), tool("end_search", reason="not reached")],
        selector=[hypothesis(), hypothesis(statement="A second pass over the parameters is left out as well.")],
        executor=[*edits(FASTER), *edits(("model.py", "import math\n", "import math\n\nEFFECT_2 = -0.05\n"))],
    )
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api, "max_calls = 6\n")
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert len([call for call in bodies(events, ModelCalled) if call.tokens.total]) == 6
    assert view.claim is not None and view.claim.proven
    assert "model calls" in bodies(events, SearchEnded)[-1].reason


def test_money_that_runs_out_before_anything_is_proven_is_exit_code_5(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    with messages_api(Play(executor=edits(FASTER))) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude", usd=0.2))
    assert (ended.state, ended.exit_code) == ("finished", 5) and "money" in ended.sentence
    assert bodies(events_of(home, ended), CandidateBuilt) == [] and api.account.requests == []


def test_a_campaign_that_lost_its_api_is_resumed_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(executor=edits(FASTER), before=lambda asked: Status(401, "revoked") if asked.role == "reviewer" else None)
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api)
        with pytest.raises(MindError, match="resume"):
            run(home, Request(place, preset="simulated", mind="claude"))
        asked = len(api.account.requests)
        play.before = lambda asked: None
        ended = run(home, Request(place, preset="simulated", resume=True))
    assert (ended.state, ended.exit_code) == ("finished", 0)
    assert len(bodies(events_of(home, ended), CandidateBuilt)) == 1, "nothing was built twice"
    assert next(a.role for a in api.account.requests[asked:]) == "reviewer"
    calls = bodies(events_of(home, ended), ModelCalled)
    assert sum(call.tokens.output for call in calls) == api.account.told["output_tokens"]


def test_a_change_that_can_not_be_made_is_refused_with_the_reason_for_the_next_round(tmp_path: Path) -> None:
    place = simulated_repository(tmp_path / "program")
    play = Play(
        director=[direction(budget=2), tool("end_search", reason="all was tried")],
        selector=[hypothesis(), hypothesis(statement="The loop over batches is unrolled, which saves a little."), tool("close_direction", reason="tried")],
        executor=[tool("give_up", reason="the optimizer is compiled elsewhere"), *edits(FASTER)],
    )
    with messages_api(play) as api, simulated():
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="simulated", mind="claude"))
    events = events_of(home, ended)
    assert [body.reason for body in bodies(events, CandidateRefused)] == ["the Executor gave up: the optimizer is compiled elsewhere"]
    later = [asked for asked in api.account.requests if asked.role == "selector"][1]
    assert "the optimizer is compiled elsewhere" in later.text
    assert ended.state == "finished" and [body.hypothesis for body in bodies(events, CandidateBuilt)] == ["h2"]


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


@pytest.mark.timeout(900)
def test_new_code_of_the_executor_is_proven_faster_by_the_real_evaluator(tmp_path: Path) -> None:
    place = expert_repository(tmp_path / "program", PROOF)
    play = Play(
        director=[direction(question="Can all experts of a layer run in one batched product?", layer="kernel"), END],
        selector=[hypothesis(statement="Padded lists of tokens and batched products replace 16 small calls a layer.", predicted_time=-0.7), CLOSE],
        executor=edits(("model.py", LOOP, BATCHED)),
    )  # fmt: skip
    with messages_api(play) as api:
        home = at_home(tmp_path / "home", api)
        ended = run(home, Request(place, preset="proof", mind="claude"))
    assert (ended.state, ended.exit_code) == ("finished", 0), ended.sentence
    events = events_of(home, ended)
    view = CampaignView().feed_all(events)
    assert view.claim is not None and view.claim.proven and view.claim.speedup is not None, view.claim
    assert view.claim.speedup.low > 1.3 and view.claim.pairs == 8 and view.trust == "A"
    assert "torch.bmm" in view.candidates[view.claim.candidate].diff
    verdict = next(body.verdict for body in bodies(events, VerdictReached))
    assert verdict.verdict == "adopted" and verdict.evalue >= 1 / verdict.alpha
    report = json.loads(reading.report(home, ended.campaign, "json"))
    assert report["claim"]["proven"] and report["claim"]["speedup"]["low"] == view.claim.speedup.low
    assert verify_target(home, ended.campaign).follows
    assert KEY.encode() not in every_file(tmp_path)


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

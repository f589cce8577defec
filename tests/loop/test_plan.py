"""What an answer costs, said before anything is spent, counted as the evaluator counts."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsi_tui.cli import app
from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract, Resume
from rsi_tui.evaluator import costs
from rsi_tui.evaluator.blocks import setup_slots
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.redteam import live_set
from rsi_tui.evaluator.service import FEW_ESCAPES
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.events import Calibrated, TrialFinished
from rsi_tui.journal.facts import NoiseFacts
from rsi_tui.journal.home import grant_alpha
from rsi_tui.locations import Home
from rsi_tui.loop import planning
from rsi_tui.loop.banking import MAX_OFFERED
from rsi_tui.loop.planning import ASSUMED_SECONDS, evaluations, plan, plan_page
from rsi_tui.loop.setup import Request, prepare
from tests.support.campaigns import TINY, tiny_repository
from tests.support.story import trial


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_repository(tmp_path_factory.mktemp("plan") / "tiny")


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest effect is simulated for a second each; its own tests do that."""
    monkeypatch.setattr(costs, "smallest_provable", lambda scale, *_: min(1.0, 2 * scale))


def contract(**invariants: object) -> Contract:
    found = load_contract(TINY, "quick")
    return found.model_copy(update={"invariants": found.invariants.model_copy(update=invariants)})


TERMS = [{}, {"precision": "bf16"}, {"weights": "statistical"}, {"bf16_twin": "", "precision": "bf16"}]


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_set_up_runs_are_those_that_a_block_would_have(terms: dict[str, object]) -> None:
    lab = costs.bench(contract(**terms))
    assert costs.block_setup(lab.contract) == len(setup_slots(lab, lab.original))
    assert costs.block_setup(lab.contract, warmup=False) == len(setup_slots(lab, None))


def test_a_calibration_is_its_pairs_its_perturbations_and_its_states() -> None:
    found = contract()
    # initial weights and a warm-up; two harmless perturbations; four pairs; one saved state, from which the original
    # and two perturbations make one update each
    assert costs.calibration(found).usual == 2 + 2 + 8 + 1 + 3
    without = found.model_copy(update={"resume": found.resume.model_copy(update={"flag": ""})})
    assert costs.calibration(without).usual == 2 + 2 + 8
    assert costs.recheck(found).usual == 2 + 4 < costs.calibration(without).usual


def test_a_larger_gain_never_costs_more_to_prove() -> None:
    usual = [costs.verification(contract(), 0.006, gain, scale=0.03) for gain in (0.03, 0.06, 0.1, 0.2, 0.4)]
    assert [v.runs.usual for v in usual] == sorted((v.runs.usual for v in usual), reverse=True)
    assert all(v.provable for v in usual[1:])
    assert not costs.verification(contract(), 0.006, 0.005, scale=0.03).provable
    assert costs.verification(contract(), 0.006, 0.0, scale=0.03).runs.usual < usual[-1].runs.usual


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_what_is_usual_lies_between_the_least_and_the_most(preset: str) -> None:
    found = load_contract(TINY, preset)
    rows = [(runs.least, runs.usual, runs.most) for _, runs, _ in evaluations(found, 0.006, 0.03)]
    rows += [(runs.least, runs.usual, runs.most) for _, runs in planning.campaigns(found, 0.0003, 0.03)]
    assert all(least <= usual <= most for least, usual, most in rows)
    assert rows[0] == (0, 0, 0)


def switched(preset: str, **proof: object) -> Contract:
    found = load_contract(TINY, preset)
    return found.model_copy(update={"proof": found.proof.model_copy(update=proof)})


def runs_of(found: Contract) -> list[tuple[int, int, int]]:
    return [(runs.least, runs.usual, runs.most) for _, runs in planning.campaigns(found, 0.0003, 0.03)]


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_the_red_team_is_priced_where_it_is_on(preset: str) -> None:
    on, off = switched(preset, red_team=True), switched(preset, red_team=False)
    team = costs.red_team(on)
    lab = costs.bench(on)
    # initial weights, the honest run, and its twin where there is one; then the cheats
    assert team.usual == len(setup_slots(lab, lab.original)) + costs.LIVE_CHEATS
    assert inspect.signature(live_set).parameters["count"].default == costs.LIVE_CHEATS
    for with_it, without in zip(runs_of(on), runs_of(off), strict=True):
        assert with_it == (without[0], without[1] + team.usual, without[2] + team.most), "an earlier campaign may have passed it"
    assert ["red team, once a program" in dict(planning.parts(c)) for c in (on, off)] == [True, False]


def test_savings_for_the_bank_are_priced_where_they_are_looked_for() -> None:
    # without saved states, of which a bundle's campaign makes fewer
    full, bundled = (c.model_copy(update={"resume": Resume()}) for c in (switched("full"), switched("full", bundle=True)))
    one = costs.saving(full)
    (nothing, _), (without, _) = runs_of(full), runs_of(bundled)
    assert nothing == (without[0], without[1] + one.usual, without[2] + MAX_OFFERED * one.most)


def test_states_are_priced_with_a_baseline_that_is_taken_over() -> None:
    row = dict(planning.parts(contract()))["asking a recent baseline again"]
    assert (row.usual, row.most) == (costs.recheck(contract()).usual, costs.recheck(contract()).most + 1)


def test_planning_runs_nothing_and_leaves_nothing(tmp_path: Path, workload: Path) -> None:
    home = Home(tmp_path / "home")
    data = plan(home, workload, "quick")
    assert not home.root.exists()
    assert (data["seconds_per_run"], data["seconds_from"], data["noise"]) == (ASSUMED_SECONDS, "assumed", None)
    assert [row["cv"] for row in data["smallest_provable"]] == [0.01, 0.02, 0.05]
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_next_share_of_error_probability_is_shown_and_not_drawn(tmp_path: Path, workload: Path) -> None:
    home = Home(tmp_path / "home")
    key = prepare(home, Request(workload, preset="quick")).mirror.key
    assert plan(home, workload, "quick")["alpha"] == campaign_alpha(1)
    for k in (1, 2):
        grant_alpha(home, key, f"campaign {k}", campaign_alpha)
    for _ in range(2):
        data = plan(home, workload, "quick")
        assert (data["ordinal"], data["alpha"]) == (3, campaign_alpha(3))
        assert data["alpha_per_verification"] == campaign_alpha(3) / 2


@pytest.fixture
def measured(tmp_path: Path, workload: Path) -> Home:
    """A home in which runs of this contract took 2 s each and varied by 3 %."""
    home = Home(tmp_path / "home")
    created = prepare(home, Request(workload, preset="quick")).created
    noise = NoiseFacts(pair_scale=0.05, run_cv=0.03, pairs=4, differences=(), smallest_provable=0.1, fingerprint="f")
    with JournalWriter.open(home.campaign("past").journal) as journal:
        journal.append(created.model_copy(update={"campaign": "past"}))
        for number in range(3):
            facts = trial(number, "original", "calibration", "incumbent", 0.1).model_copy(update={"wall_s": 2.0})
            journal.append(TrialFinished(trial=facts.id, facts=facts))
        journal.append(Calibrated(noise=noise, bands=()))
    return home


def test_past_runs_of_the_same_contract_here_tell_time_and_noise(measured: Home, workload: Path) -> None:
    data = plan(measured, workload, "quick")
    assert (data["seconds_per_run"], data["seconds_from"], data["past_runs"]) == (2.0, "past", 3)
    assert data["noise"]["cv"] == 0.03 and [row["cv"] for row in data["smallest_provable"]] == [0.03]
    row = next(row for row in data["evaluate"] if row["name"] == "slower")
    assert row["seconds"]["usual"] == 2.0 * row["runs"]["usual"]
    assert plan(measured, workload, "quick", seconds_per_run=7.0)["seconds_from"] == "given"


def test_noise_is_credited_to_the_campaign_that_measured_it(measured: Home, workload: Path) -> None:
    created = prepare(measured, Request(workload, preset="quick")).created
    with JournalWriter.open(measured.campaign("q-newer").journal) as journal:
        journal.append(created.model_copy(update={"campaign": "q-newer"}))
        facts = trial(0, "original", "calibration", "incumbent", 0.1).model_copy(update={"wall_s": 4.0})
        journal.append(TrialFinished(trial=facts.id, facts=facts))
    data = plan(measured, workload, "quick")
    assert (data["seconds_per_run"], data["seconds_from"]) == (4.0, "q-newer")
    assert data["noise"]["from"] == "past"


def test_past_runs_of_another_machine_tell_nothing(measured: Home, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "host_of", lambda contract: {"hardware": "another"})
    assert plan(measured, workload, "quick")["seconds_from"] == "assumed"


@pytest.mark.parametrize("known", [False, True])
def test_the_page_fits_80_columns_and_says_what_is_assumed(
    measured: Home, workload: Path, tmp_path: Path, known: bool
) -> None:
    page = plan_page(plan(measured if known else Home(tmp_path / "other"), workload, "full" if not known else "quick"))
    assert max(map(len, page.splitlines())) <= 80
    assert ("an assumption" in page) != known
    assert "Nothing was run" in page


@pytest.mark.parametrize("on", [True, False])
def test_the_page_says_what_the_red_team_does_besides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    monkeypatch.setattr(planning, "load_contract", lambda *_: switched("quick", red_team=on))
    page = " ".join(plan_page(plan(Home(tmp_path / "home"), TINY, "quick")).split())
    assert ("red team, once a program" in page) == on
    assert (f"{len(FEW_ESCAPES)} short attempts to leave the sandbox" in page) == on


def test_the_command_prints_one_document(workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSI_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(app, ["plan", str(workload), "--preset", "quick", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["workload"] == "tiny"
    assert CliRunner().invoke(app, ["plan", str(tmp_path / "nowhere")]).exit_code != 0

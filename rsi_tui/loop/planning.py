"""What an answer will cost, said before anything is spent: `rsi plan`. Runs nothing and writes nothing.

Runs come from `evaluator.costs`, which counts with the functions that the evaluator runs by. Seconds a run and
noise are those of the newest campaign or evaluation of this home on the same workload, terms and machine;
without one a stated assumption stands in, and the plan says which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rsi_tui.audit import words
from rsi_tui.contract.fingerprint import terms_hash
from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.errors import JournalError
from rsi_tui.evaluator import costs
from rsi_tui.evaluator.costs import Runs
from rsi_tui.evaluator.ledger import LIFE, campaign_alpha
from rsi_tui.evaluator.service import FEW_ESCAPES
from rsi_tui.journal.events import CampaignCreated
from rsi_tui.journal.facts import NoiseFacts
from rsi_tui.journal.home import next_ordinal
from rsi_tui.journal.view import CampaignView, campaign_ids, load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop.banking import MAX_OFFERED
from rsi_tui.loop.bundle import MAX_TRIES
from rsi_tui.loop.elimination import ROUNDS
from rsi_tui.loop.setup import host_of
from rsi_tui.repo.mirror import workload_key
from rsi_tui.repo.source import find_source

ASSUMED_SECONDS = 5.0
"""of a run, where no past run of this home tells"""
CVS = (0.01, 0.02, 0.05)
"""noise for which the smallest provable effect is shown where none was measured"""
GAINS = (0.05, 0.10, 0.20)
"""shares of the step time saved, for which a proof is priced"""


@dataclass(frozen=True)
class Known:
    """What this home has measured under the same terms on this machine."""

    seconds: float | None = None
    """mean wall time of a run"""
    runs: int = 0
    """that the mean is over"""
    noise: NoiseFacts | None = None
    source: str = ""
    """campaign or evaluation that the seconds come from"""
    noise_source: str = ""
    """that the noise comes from"""


def plan(home: Home, workload: Path, preset: str = "", seconds_per_run: float | None = None) -> dict[str, Any]:
    """The plan as JSON values; raises an RsiError of one sentence for a contract or repository that can't be used."""
    contract = load_contract(workload, preset)
    key = workload_key(find_source(contract.path))
    known = look_back(home, key, contract)
    ordinal = next_ordinal(home, key)
    alpha = campaign_alpha(ordinal)
    seconds = seconds_per_run or known.seconds or ASSUMED_SECONDS
    cvs = (known.noise.run_cv,) if known.noise else CVS
    middle = known.noise.pair_scale if known.noise else costs.scale_of(CVS[1])
    share = alpha / contract.proof.max_verifications
    return {
        "schema": 1,
        "workload": contract.name,
        "preset": contract.preset,
        "contract_hash": contract.hash,
        "seconds_per_run": seconds,
        "seconds_from": "given" if seconds_per_run else known.source if known.seconds else "assumed",
        "past_runs": known.runs,
        "ordinal": ordinal,
        "alpha": alpha,
        "alpha_per_verification": share,
        "noise": {"cv": known.noise.run_cv, "pair_scale": known.noise.pair_scale, "from": known.noise_source} if known.noise else None,
        "smallest_provable": [_smallest(contract, cv, known.noise, alpha, share) for cv in cvs],
        "priced_at_cv": known.noise.run_cv if known.noise else CVS[1],
        "parts": [_row(name, runs, seconds) for name, runs in parts(contract)],
        "evaluate": [_row(name, runs, seconds, provable) for name, runs, provable in evaluations(contract, alpha, middle)],
        "run": [_row(name, runs, seconds) for name, runs in campaigns(contract, share, middle)],
        "escapes": len(FEW_ESCAPES) if contract.proof.red_team else 0,
    }


def look_back(home: Home, key: str, contract: Contract) -> Known:
    """The newest measurements of this workload under the same terms on this machine."""
    if not home.campaigns.is_dir():
        return Known()
    terms, host = terms_hash(contract.model_dump(mode="json")), host_of(contract)
    seconds, runs, noise, source, noise_source = None, 0, None, "", ""
    for id in campaign_ids(home):
        try:
            view = load_campaign(home, id)
        except JournalError:
            continue
        if view.created is None or not _same(view.created, key, terms, host):
            continue
        if seconds is None and (walls := _walls(view)):
            seconds, runs, source = fmean(walls), len(walls), id
        if noise is None and view.noise is not None:
            noise, noise_source = view.noise, id
        if seconds is not None and noise is not None:
            break
    return Known(seconds, runs, noise, source, noise_source)


def _same(created: CampaignCreated, key: str, terms: str, host: dict[str, str]) -> bool:
    return created.workload_key == key and created.host == host and terms_hash(created.contract) == terms


def _walls(view: CampaignView) -> list[float]:
    """Wall seconds of the runs that ended well, set-up runs of zero steps among them, since those are counted too."""
    return [facts.wall_s for facts in view.trials.values() if facts.outcome == "ok" and facts.kind != "profile"]


# --- what things cost -------------------------------------------------------------------------


def parts(contract: Contract) -> list[tuple[str, Runs]]:
    """The parts that everything below is made of."""
    return [
        ("check: does the program run", costs.PROFILE),
        ("baseline: noise and bands", costs.calibration(contract)),
        ("asking a recent baseline again", costs.recheck(contract) + costs.states_on_demand(contract)),
        *([("red team, once a program", costs.red_team(contract))] if contract.proof.red_team else []),
        ("screening of one change", costs.screening_alone(contract)),
        ("proof of a memory saving", costs.saving(contract)),
        ("claim on fresh pairs", costs.claim(contract)),
    ]


def evaluations(contract: Contract, alpha: float, scale: float) -> list[tuple[str, Runs, bool | None]]:
    """Runs of `rsi evaluate` by what becomes of the change; the last is whether a gain can typically be proven."""
    base, screen = costs.RUNS_AT_ALL + costs.calibration(contract), costs.screening_alone(contract)
    nothing = costs.verification(contract, alpha, 0.0, scale).runs
    saving = costs.saving(contract)
    rows: list[tuple[str, Runs, bool | None]] = [
        ("turned down by a gate", costs.exactly(0), None),
        ("does not run", costs.FAILS, None),
        ("slower", base + costs.exactly(screen.usual), None),
        ("no effect: not proven", base + screen + nothing, None),
        ("no faster, but leaner", base + screen + Runs(0, nothing.usual, nothing.most) + saving, None),
    ]
    for gain in GAINS:
        proof = costs.verification(contract, alpha, -math.log1p(-gain), scale)
        runs = base + screen + proof.runs
        if proof.provable:
            ours = screen_runs_of_candidate(proof.runs.usual, contract)
            runs = runs + costs.last_conditions(contract, ours) + costs.claim(contract)
        rows.append((f"{words.percent(gain)} faster: {'adopted' if proof.provable else 'not proven'}", runs, proof.provable))
    return rows


def screen_runs_of_candidate(verification_runs: int, contract: Contract) -> int:
    """Runs of the candidate itself in two screening batches and a verification of so many runs: half of the timed ones."""
    return 2 + max(0, verification_runs - costs.block_setup(contract)) // 2


def campaigns(contract: Contract, share: float, scale: float) -> list[tuple[str, Runs]]:
    """Runs of `rsi run` with the whole budget of candidates.

    The red team is counted as of a first campaign; where an earlier one passed it, as the least has it, it costs nothing.
    """
    count = contract.proof.max_candidates
    base = costs.PROFILE + costs.calibration(contract)
    screen = costs.screening(contract, count)
    canary = costs.verification(contract, share, 0.0, scale).runs if contract.proof.canaries else costs.exactly(0)
    team = costs.red_team(contract) if contract.proof.red_team else costs.exactly(0)
    nothing = base + Runs(0, team.usual, team.most) + screen + canary + _banking(contract)
    proof = costs.verification(contract, share, -math.log1p(-GAINS[1]), scale).runs
    tries = MAX_TRIES if contract.proof.bundle else contract.proof.max_verifications
    usual = 1 if contract.proof.bundle else max(1, count // 10)
    ours = screen_runs_of_candidate(proof.usual, contract)
    each = proof + costs.last_conditions(contract, ours)
    found = Runs(each.least, each.usual * usual, each.most * tries) + costs.claim(contract)
    if contract.proof.leave_one_out:
        # What is left of a stack must show what verifications ask, else the whole of it is claimed after all.
        again = costs.last_conditions(contract, 0).most + costs.claim(contract).most
        found = found + costs.elimination(usual, ROUNDS) + Runs(0, 0, again)
    proofs = words.plural(usual, "proof")
    return [("nothing is faster", nothing), (f"{proofs} of {words.percent(GAINS[1])}, and the claim", nothing + found)]


def _banking(contract: Contract) -> Runs:
    """Proofs of savings that screening saw in what is no faster: one is typical, MAX_OFFERED the most; none before a bundle."""
    if contract.proof.bundle:
        return costs.exactly(0)
    one = costs.saving(contract)
    return Runs(0, one.usual, MAX_OFFERED * one.most)


def _row(name: str, runs: Runs, seconds: float, provable: bool | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "runs": {"least": runs.least, "usual": runs.usual, "most": runs.most}}
    row["seconds"] = {which: count * seconds for which, count in row["runs"].items()}
    return row if provable is None else row | {"provable": provable}


def _smallest(contract: Contract, cv: float, noise: NoiseFacts | None, alpha: float, share: float) -> dict[str, float | None]:
    """Smallest gain that can be proven at this noise, by an evaluation and by one verification of a campaign.

    The second only where the noise is measured: it takes a second to simulate.
    """
    scale = noise.pair_scale if noise else costs.scale_of(cv)
    margin = contract.objective.margin
    run = costs.smallest_gain(scale, share, margin) if noise else None
    return {"cv": cv, "evaluate": costs.smallest_gain(scale, alpha, margin), "run": run}


# --- the page ---------------------------------------------------------------------------------


def plan_page(data: dict[str, Any]) -> str:
    """The plan for a terminal of 80 columns."""
    lines = [f"What an answer costs: {data['workload']}, {data['preset']} preset. Nothing was run.", ""]
    for label, text in _assumptions(data):
        lines += words.entry(label, text)
    for title, rows in (("Parts", data["parts"]), ("rsi evaluate, baseline included", data["evaluate"]), ("rsi run", data["run"])):
        lines += ["", *_table(title, rows)]
    if data["escapes"]:
        besides = f"{data['escapes']} short attempts to leave the sandbox, which run none of the program and are not priced"
        lines += ["", *words.entry("red team", f"tries {besides}")]
    lines += ["", *words.entry("helps", _helps(data))]
    return "\n".join(line.rstrip() for line in lines)


def _assumptions(data: dict[str, Any]) -> list[tuple[str, str]]:
    seconds, source = data["seconds_per_run"], data["seconds_from"]
    how = {"given": "as given", "assumed": "an assumption: nothing like it has run here; --seconds-per-run says better"}
    said = how.get(source, f"mean of {data['past_runs']} runs of {source} on this machine")
    noise = data["noise"]
    measured = f"a run varies by {words.percent(noise['cv'])} ({noise['from']})" if noise else "not measured yet"
    smallest = [
        f"{words.percent(row['evaluate'])} by rsi evaluate, {words.percent(row['run'])} by a verification of rsi run" if noise
        else f"{words.percent(row['evaluate'])} by rsi evaluate where a run varies by {words.percent(row['cv'])}"
        for row in data["smallest_provable"]
    ]
    return [
        ("a run", f"{seconds:.3g} s ({said})"),
        ("noise", measured),
        ("alpha", f"{data['alpha']:.2g}: the next campaign or evaluation is number {data['ordinal']} on this workload, which has {LIFE:g} for its whole life"),
        ("smallest", f"gain that can be proven: {smallest[0]}"),
        *(("", text) for text in smallest[1:]),
    ]


def _table(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [f"{title:<40}{'runs':>5}{'time':>12}{'at most':>9}{'time':>13}"]
    for row in rows:
        runs, seconds = row["runs"], row["seconds"]
        most = "" if runs["most"] == runs["usual"] else f"{runs['most']:>9}{words.duration(seconds['most']):>13}"
        lines.append(f"  {row['name']:<38}{runs['usual']:>5}{words.duration(seconds['usual']):>12}{most}")
    return lines


def _helps(data: dict[str, Any]) -> str:
    at = "" if data["noise"] else f" The proofs are priced at {words.percent(data['priced_at_cv'])} of noise."
    return (
        "longer runs ([objective] steps), until a run varies by 1 %; a machine without other work; several small changes "
        f"in one patch, which are proven together.{at}"
    )

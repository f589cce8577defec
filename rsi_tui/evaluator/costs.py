"""What measurements cost, before any is made: runs of each part of a campaign or an evaluation.

Counted with the functions and constants that the evaluator itself runs by, for a contract alone. Promises:
`least` and `most` bound the runs of a part that goes its ordinary way; faults of the host, which have a run or
a block repeated, come on top. `usual` is the typical case, an estimate where chance decides. Hidden validations
are no runs and are not counted. Nothing is run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.baseline import baseline_setup
from rsi_tui.evaluator.blocks import setup_slots
from rsi_tui.evaluator.claim import fewest_blocks
from rsi_tui.evaluator.eprocess import SAFETY, BlockPlan, blocks_needed, choose_plan
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.leave_one_out import CONFIDENCE as FAMILY
from rsi_tui.evaluator.noise import smallest_provable
from rsi_tui.evaluator.noninferior import LOOKS
from rsi_tui.evaluator.recheck import FRESH_PAIRS
from rsi_tui.evaluator.redteam import LIVE_CHEATS
from rsi_tui.evaluator.saving import RUNS as RUNS_UNDER_LIMIT
from rsi_tui.evaluator.screen import BATCH
from rsi_tui.evaluator.slow_runs import most_extra, runs_to_hold
from rsi_tui.evaluator.states import has_states, state_lengths
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts

INCUMBENTS = 2
"""of a screening batch"""
BATCHES = 3
"""of a candidate in screening, at most"""
SURVIVE = 0.4
"""share of candidates without effect that are given a second batch: normal noise beyond 0.2 pair scales"""


@dataclass(frozen=True)
class Runs:
    """Runs of one part of the work."""

    least: int
    usual: int
    most: int

    def __add__(self, other: Runs) -> Runs:
        return Runs(self.least + other.least, self.usual + other.usual, self.most + other.most)

    def times(self, count: int) -> Runs:
        return Runs(self.least * count, self.usual * count, self.most * count)


def exactly(runs: int) -> Runs:
    """A part whose runs are known."""
    return Runs(runs, runs, runs)


def total(parts: Iterable[Runs]) -> Runs:
    """All parts together."""
    return sum(parts, exactly(0))


def scale_of(cv: float) -> float:
    """Pair scale of a machine on which a run varies by `cv` (as a fraction), as noise.pair_scale would find it."""
    return SAFETY * math.sqrt(2) * math.sqrt(math.log1p(cv**2))


def smallest_gain(scale: float, alpha: float, margin: float) -> float:
    """Smallest gain, as a fraction of step time, that one verification with this share proves with power 0.8."""
    plan = choose_plan(alpha, 0.0, scale, margin)
    return smallest_provable(scale, alpha, plan.arm_size, plan.max_blocks, margin)


def bench(contract: Contract) -> Lab:
    """A lab without instruments: enough to ask which runs a block would have, and nothing to run them with."""
    nothing: Any = cast(Any, None)
    original = CandidateFacts(id=ORIGINAL, commit="", base="", knobs=contract.defaults)
    return Lab(
        contract=contract, original=original, runner=nothing, steps=nothing, vault=nothing, open_comparer=nothing,
        holdouts={}, cancel=threading.Event(), fingerprint="",
    )  # fmt: skip


def block_setup(contract: Contract, *, warmup: bool = True) -> int:
    """Set-up runs of a block: initial weights, twin, warm-up."""
    lab = bench(contract)
    return len(setup_slots(lab, lab.original if warmup else None))


# --- baseline ---------------------------------------------------------------------------------


PROFILE = exactly(1)
"""the first run of a campaign, which also tells whether the program runs"""


RUNS_AT_ALL = exactly(1)
"""one run of a person's change before anything else"""
FAILS = exactly(2)
"""where that run fails, one of the original as well"""


def calibration(contract: Contract) -> Runs:
    """Noise and bands: A/A pairs, harmless perturbations, and single updates from saved states where there are any."""
    lab = bench(contract)
    once = len(baseline_setup(lab)) + 2 * contract.proof.aa_pairs
    return exactly(once) + _making_states(lab) + _steps(lab, max(1, len(contract.invariants.harmless)))


def recheck(contract: Contract) -> Runs:
    """Fresh pairs that ask whether a recent calibration still holds."""
    return exactly(block_setup(contract) + 2 * FRESH_PAIRS)


# --- screening --------------------------------------------------------------------------------


def screening_alone(contract: Contract) -> Runs:
    """Of the only candidate of an evaluation: one batch where it fails, else two, three where they contradict."""
    setup, batch = block_setup(contract, warmup=False), 1 + INCUMBENTS
    return Runs(setup + batch, setup + 2 * batch, setup + BATCHES * batch)


def screening(contract: Contract, candidates: int) -> Runs:
    """Of the candidates of a campaign, in waves of one batch."""
    waves = math.ceil(candidates / BATCH)
    setup = block_setup(contract, warmup=False)
    first = candidates + waves * (INCUMBENTS + setup)
    survivors = round(SURVIVE * candidates)
    again = survivors + min(waves, survivors) * INCUMBENTS
    return Runs(first, first + again, first + (BATCHES - 1) * (candidates + waves * INCUMBENTS))


# --- verdicts ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """What proving a gain of a given size takes."""

    runs: Runs
    provable: bool
    """typically, within the blocks that are planned"""


def verification(contract: Contract, alpha: float, gain: float, scale: float) -> Verification:
    """Of a candidate with this true log gain, which screening saw as it is; 0 is one without effect."""
    margin = contract.objective.margin
    plan = choose_plan(alpha, gain, scale, margin)
    setup = block_setup(contract)
    most = plan.max_blocks * (setup + 2 * plan.arm_size)
    stopped = setup + plan.arm_size
    blocks = blocks_needed(alpha, gain, scale, margin, plan.arm_size, plan.max_blocks) if gain > 0 else None
    if blocks is None:
        return Verification(Runs(stopped, _until_futile(setup, plan), most), provable=False)
    usual = blocks * (setup + 2 * plan.arm_size)
    return Verification(Runs(setup + 2 * plan.arm_size, usual, most), provable=True)


def _until_futile(setup: int, plan: BlockPlan) -> int:
    """A candidate without effect: half of them end half-way through the first block, most others after it."""
    return setup + round(1.5 * plan.arm_size)


def last_conditions(contract: Contract, runs_before: int) -> Runs:
    """What a proven gain must show besides; `runs_before` of the candidate count for the bound on slow runs."""
    lab = bench(contract)
    seeds = exactly(0) if lab.compares else _over_seeds()
    needed = max(0, runs_to_hold(0, contract.proof.max_slow_rate) - runs_before)
    return _steps(lab, 1) + seeds + Runs(needed, needed, max(needed, most_extra(contract.proof.max_slow_rate)))


def saving(contract: Contract) -> Runs:
    """Proof of a memory saving: the incumbent once and the candidate three times under the limit; half when it fails."""
    whole = _under_limit(contract)
    seeds = exactly(0) if bench(contract).compares else _over_seeds()
    return whole + Runs(0, seeds.usual, seeds.most)


def claim(contract: Contract) -> Runs:
    """Fresh pairs of the original and what was adopted; at most, a saving of memory that was seen is proven as well."""
    pairs = 2 * contract.proof.final_pairs
    saved = Runs(0, 0, _under_limit(contract).most)
    if not bench(contract).compares:
        return exactly(pairs) + _over_seeds() + saved
    return exactly(block_setup(contract) + pairs) + saved


def red_team(contract: Contract) -> Runs:
    """Planted cheats beside an honest run, in one block; at most, each is asked from the saved states as well.

    Attempts to leave the sandbox are no runs of the program and are not counted, nor are cheats that a review was
    expected to see and did not, which are run besides.
    """
    lab = bench(contract)
    setup = len(setup_slots(lab, lab.original, initial=bool(contract.invariants.validation)))
    late = _steps(lab, 1).times(LIVE_CHEATS)
    return Runs(setup, setup + LIVE_CHEATS, setup + LIVE_CHEATS + late.most)


def elimination(members: int, rounds: int) -> Runs:
    """Each change of a stack left out in turn: one round, and further ones while a change turns out to be worth nothing."""
    if members < 2:
        return exactly(0)
    each = [fewest_blocks(left, FAMILY) * (left + 1) for left in range(members, max(1, members - rounds), -1)]
    return Runs(each[0], each[0], sum(each))


def states_on_demand(contract: Contract) -> Runs:
    """Saved states where the calibration was taken over from another campaign: they are made when a check asks for them."""
    return Runs(0, 0, _making_states(bench(contract)).most)


# --- pieces -----------------------------------------------------------------------------------


def _making_states(lab: Lab) -> Runs:
    return exactly(len(state_lengths(lab)) if has_states(lab) else 0)


def _steps(lab: Lab, beside: int) -> Runs:
    """Single updates from each state: the incumbent's, the twin's, and `beside` others. The last state counts twice where
    its counters can be moved on and there are others.
    """
    if not has_states(lab):
        return exactly(0)
    states, each = len(state_lengths(lab)), 1 + (1 if lab.twin else 0) + beside
    moved = states + 1 if states > 1 else states
    return Runs(states * each, moved * each, moved * each)


def _under_limit(contract: Contract) -> Runs:
    """Runs under a lower limit of memory; they end half-way when the incumbent fits too, or the candidate does not."""
    timed = 1 + RUNS_UNDER_LIMIT
    whole = block_setup(contract) + timed
    return Runs(whole - timed // 2, whole, whole)


def _over_seeds() -> Runs:
    """Pairs over fresh seeds where updates need not be the same."""
    return Runs(2 * LOOKS[0], 2 * LOOKS[0], 2 * LOOKS[-1])

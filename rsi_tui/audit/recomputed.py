"""Every figure of a campaign's record, computed again from its runs.

The runs' own facts (times, peaks, outcomes) are what the evaluator saw and are taken as they stand; secrets are checked
against what was committed to before they were used. All else follows from them by the evaluator's published functions:
what does not is named. A figure whose inputs the record lacks is said to be not recomputable, never counted as right.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rsi_tui.audit.checks import Check, Checks, alike
from rsi_tui.audit.recomputed_candidates import candidates, profiles, terms
from rsi_tui.audit.recomputed_claims import claims, left_out, saving
from rsi_tui.audit.recomputed_learning import Learning, bands, invariants
from rsi_tui.audit.record import SEEDS, Block, Record
from rsi_tui.errors import JournalError
from rsi_tui.evaluator import screening
from rsi_tui.evaluator.claim import mean_total_ratio
from rsi_tui.evaluator.eprocess import EProcess, choose_plan
from rsi_tui.evaluator.ledger import AlphaLedger, campaign_alpha
from rsi_tui.evaluator.measures import carry_over, highest_peak, scores
from rsi_tui.evaluator.noise import MachineNoise, drift, pair_scale, run_cv, smallest_provable
from rsi_tui.evaluator.slow_runs import judge_slow_runs
from rsi_tui.evaluator.speedup import speedup_interval
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import (
    BlockFacts,
    ClaimFacts,
    InvariantFacts,
    ScreenFacts,
    TrialFacts,
    VerdictFacts,
)


def recompute(record: Record) -> list[Check]:
    """All checks, in the order of the record's parts."""
    checks, learning = Checks(), Learning(record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values that no run has: the figure says so
        checks.attempt("terms", terms, record, checks)
        checks.attempt("candidates", candidates, record, checks)
        checks.attempt("profile", profiles, record, checks)
        checks.attempt("runs", _trials, record, checks)
        checks.attempt("secrets", _secrets, record, checks)
        checks.attempt("noise", _noise, record, checks)
        checks.attempt("limits of the invariants", bands, record, learning, checks)
        checks.attempt("verdicts", _course, record, learning, checks)
        checks.attempt("claims", claims, record, checks)
        checks.attempt("leave-one-out", left_out, record, checks)
        checks.attempt("error probability", _ledger, record, checks)
    return checks.found


# --- runs and secrets ---------------------------------------------------------------------------


def _trials(record: Record, checks: Checks) -> None:
    """A score is step time with start-up and tear-down spread over a real run."""
    for facts in record.trials.values():
        checks.attempt(f"{facts.id}: times", _times, record, facts, checks)
    for started in record.of(ev.TrialStarted):
        known = record.trials.get(started.trial)
        if known is not None:
            told = (started.block, started.slot, started.attempt, started.kind)
            checks.holds(f"{started.trial}: is the run that was started", told == (known.block, known.slot, known.attempt, known.kind), " ".join(map(str, told)), f"{known.block} {known.slot} {known.attempt} {known.kind}")  # fmt: skip
    for block in record.blocks.values():
        checks.holds(f"block {block.id}: slots", len(block.runs) <= block.opened.slots, block.opened.slots, len(block.runs))


def _times(record: Record, facts: TrialFacts, checks: Checks) -> None:
    objective = record.contract.objective
    if facts.score_s is not None and None not in (facts.step_s, facts.startup_s, facts.teardown_s):
        ends = (facts.startup_s or 0.0) + (facts.teardown_s or 0.0)
        checks.same(f"{facts.id}: score", facts.score_s, (facts.step_s or 0.0) + ends / objective.amortise_over)
    if facts.outcome == "ok" and facts.step_s is not None and facts.steps > objective.warmup:
        spent = facts.step_s * (facts.steps - objective.warmup)
        checks.holds(f"{facts.id}: steps take no longer than the run", spent <= facts.wall_s * (1 + 1e-9), spent, facts.wall_s)


def _secrets(record: Record, checks: Checks) -> None:
    """What was drawn was committed to before, and is what was run."""
    if record.secrets is None and record.secrets_lost:
        checks.holds("secrets of the blocks", False, "revealed", record.secrets_lost)
        return
    if record.secrets is None and record.ended:
        checks.holds("secrets of the blocks", False, "sealed", "revealed before the last state")
        return
    if record.secrets is None:
        checks.lacks("secrets of the blocks", "sealed", "they are revealed when the campaign ends")
        return
    for block in record.blocks.values():
        checks.attempt(f"block {block.id}: its draw", _drawn, block, record.secrets, checks)
    for id, commitment in record.commitments.items():
        checks.attempt(f"{id}: its facts", _sealed, record, id, commitment, checks)


def _drawn(block: Block, revealed: Mapping[str, Any], checks: Checks) -> None:
    secret, committed = revealed.get(f"block/{block.id}"), block.opened.commitment
    if secret is None:
        checks.holds(f"block {block.id}: its draw is revealed", False, "committed", "not revealed")
        return
    checks.holds(f"block {block.id}: the draw is the one committed to", Vault.verify(committed, secret), committed[:16], "another")
    draw = secret["value"]
    if block.opened.purpose not in ORDERED or not draw["order"]:
        return
    lengths = {facts.steps for facts in block.timed}
    checks.holds(f"block {block.id}: length as drawn", lengths <= {draw["steps"]}, str(sorted(lengths)), draw["steps"])
    labels = tuple(draw["order"])[: len(block.timed)]
    checks.same(f"block {block.id}: order as drawn", " ".join(_arms(block.timed)), " ".join(_labelled(labels, block)))


def _sealed(record: Record, id: str, commitment: str, checks: Checks) -> None:
    secret, known = (record.secrets or {}).get(f"trial/{id}"), record.trials.get(id)
    kept = secret is not None and Vault.verify(commitment, secret)
    same = kept and secret is not None and known is not None and TrialFacts.model_validate(secret["value"]) == known
    checks.holds(f"{id}: the facts are those sealed when it ended", same, commitment[:16], "others" if kept else "no such facts")


ORDERED = ("calibration", "screen", "verify", "claim")
"""purposes of blocks whose runs all have the length that was drawn, in an order that was drawn; what the labels of
leave-one-out stand for its own check tells"""


def _arms(timed: Sequence[TrialFacts]) -> list[str]:
    return [facts.candidate if facts.arm == "candidate" else "incumbent" for facts in timed]


def _labelled(labels: Sequence[str], block: Block) -> list[str]:
    """What each drawn label stands for: A the incumbent, B or a number a candidate."""
    candidates = block.opened.candidates
    found = []
    for label in labels:
        if label.isdecimal():
            found.append(candidates[int(label)] if int(label) < len(candidates) else "?")
        else:
            found.append("incumbent" if label == "A" else candidates[0])
    return found


# --- noise, screening, verdicts, in the order they came -------------------------------------------


def _noise(record: Record, checks: Checks) -> None:
    for made in record.of(ev.Calibrated):
        noise = made.noise
        if made.origin:
            checks.lacks("noise", noise.pair_scale, f"measured by {made.origin}, whose record has the runs")
            continue
        blocks = [b for b in record.blocks.values() if b.opened.purpose == "calibration" and b.counts and len(b.timed) == 2]
        pairs = [(a.score_s, b.score_s) for a, b in (block.timed for block in blocks) if a.score_s and b.score_s]
        if len(pairs) != noise.pairs:
            checks.same("noise: A/A pairs", noise.pairs, len(pairs))
            continue
        differences = [math.log(a / b) for a, b in pairs]
        checks.holds("noise: A/A differences", all(map(alike, noise.differences, differences)), len(noise.differences), len(differences))  # fmt: skip
        checks.same("noise: scale of a pair", noise.pair_scale, pair_scale(differences))
        checks.same("noise: variation of a run", noise.run_cv, run_cv(pairs))
        checks.same("noise: drift", noise.drift, drift([math.log(score) for pair in pairs for score in pair]))
        _smallest(record, noise.pair_scale, noise.smallest_provable, checks)


def _smallest(record: Record, scale: float, recorded: float, checks: Checks) -> None:
    if record.granted is None:
        checks.lacks("noise: smallest provable effect", recorded, "no error probability was drawn")
        return
    margin, share = record.contract.objective.margin, record.granted.alpha / record.planned
    plan = choose_plan(share, 0.0, scale, margin)
    checks.same("noise: smallest provable effect", recorded, _smallest_provable(scale, share, plan.arm_size, plan.max_blocks, margin))


_smallest_provable = functools.lru_cache(maxsize=64)(smallest_provable)
"""it is found by simulation, the same for the same noise"""


def _course(record: Record, learning: Learning, checks: Checks) -> None:
    """Screening and verdicts as the machine's noise was when they were made."""
    machine = next((MachineNoise(made.noise.differences) for made in record.of(ev.Calibrated)), None)
    scales: dict[str, float | None] = {}
    for event in record.events:
        body = event.body
        if isinstance(body, ev.BlockClosed) and machine is not None:
            block = record.blocks.get(body.block)
            if block is not None and block.opened.purpose == "screen" and block.counts:
                theirs = scores(block.incumbents)
                machine = machine.followed_by(*theirs[:2]) if len(theirs) >= 2 else machine
            scales[body.block] = _scale_of(machine)
        elif isinstance(body, ev.Screened):
            for result in body.results:
                checks.attempt(f"{result.candidate}, screening", _screened, record, learning, result, scales, checks)
        elif isinstance(body, ev.VerdictReached):
            scale, name = _scale_of(machine), f"{body.verdict.candidate}, verdict"
            checks.attempt(name, _verdict, record, learning, event.step, body.verdict, scale, checks)
        elif isinstance(body, ev.Claimed):
            name = f"claim of {body.claim.candidate}"
            checks.attempt(name, _judged, record, learning, event.step, name, body.claim, checks)


def _scale_of(machine: MachineNoise | None) -> float | None:
    """The scale of a pair; None where too few pairs were measured for one."""
    try:
        return machine.scale if machine is not None else None
    except ValueError:
        return None


def _screened(record: Record, learning: Learning, result: ScreenFacts, scales: Mapping[str, float | None], checks: Checks) -> None:
    name = f"{result.candidate}, screening"
    runs = [record.trials[id] for id in result.trials if id in record.trials]
    blocks = [record.blocks[facts.block] for facts in runs if facts.block in record.blocks]
    if not len(runs) == len(blocks) == len(result.trials):
        checks.holds(f"{name}: its runs are in the record", False, len(result.trials), len(runs))
        return
    told = [found for facts, block in zip(runs, blocks, strict=True) if (found := learning.of_run(block, facts.id))]
    invariants(name, result.invariants, None if record.secrets is None else told[-1] if told else (), checks)
    checks.same(f"{name}: batches", result.batches, len(runs))
    checks.same(f"{name}: peak memory of the incumbent", result.incumbent_peak_bytes, highest_peak(blocks[-1].incumbents) if blocks else None)
    ratios = [
        screening.batch_log_ratio(facts.score_s, theirs)
        for facts, block in zip(runs, blocks, strict=True)
        if facts.score_s is not None and (theirs := scores(block.incumbents))
    ]
    estimate = screening.estimate(ratios) if ratios and result.outcome == "ok" else None
    checks.same(f"{name}: log ratio", result.log_ratio, estimate)
    checks.same(f"{name}: peak memory", result.peak_bytes, highest_peak(runs))
    if estimate is None or not runs or (scale := scales.get(runs[-1].block)) is None:
        checks.holds(f"{name}: not promoted without a time", not result.promoted, result.promoted, False)
        return
    broken = any(fact.status == "broken" for fact in result.invariants)
    look = _look(record, ratios, scale)
    checks.same(f"{name}: promoted", result.promoted, look == "promote" and not broken)


def _look(record: Record, ratios: Sequence[float], scale: float) -> str:
    if record.created.kind == "evaluation":
        return screening.look_alone(ratios, scale).decision
    margin = record.contract.objective.margin
    if len(ratios) == 1:
        return screening.first_look(ratios[0], scale).decision
    if len(ratios) == 2:
        return screening.second_look(ratios[0], ratios[1], scale, margin).decision
    return screening.third_look(ratios[0], ratios[1], ratios[2], scale, margin).decision


def _verdict(
    record: Record, learning: Learning, step: str, verdict: VerdictFacts, scale: float | None, checks: Checks
) -> None:
    name = f"{verdict.candidate}, verdict"
    _judged(record, learning, step, name, verdict, checks)
    saving(record, f"{name}: saving of memory", verdict.candidate, verdict.memory, checks)
    broken = [fact.name for fact in verdict.invariants if fact.status == "broken"]
    if verdict.verdict in ("adopted", "leaner"):
        checks.holds(f"{name}: {verdict.verdict} with every invariant held", not broken, verdict.verdict, ", ".join(broken) or "held")
    if not verdict.blocks:
        _without_blocks(record, verdict, name, checks)
        return
    if verdict.pair_scale is not None and scale is not None:
        checks.same(f"{name}: noise of the machine", verdict.pair_scale, scale)
    _dropped(record, verdict, name, checks)
    times = [(_order(record, block, verdict), scores(record.runs(block.trials))) for block in verdict.blocks]
    for block, (order, _) in zip(verdict.blocks, times, strict=True):
        checks.same(f"{name}: order of {block.id}", block.order, order)
    _evalues(record, verdict, times, name, checks)
    _effect(record, verdict, times, name, checks)


def _judged(
    record: Record, learning: Learning, step: str, name: str, facts: VerdictFacts | ClaimFacts, checks: Checks
) -> None:
    """The invariants of a verdict or claim against all its runs; of a verdict without runs its own is screening's or the claim's."""
    if isinstance(facts, VerdictFacts) and not facts.blocks and facts.memory is None:
        return
    blocks = [b for b in record.blocks.values() if b.step.startswith(f"{step}/") and facts.candidate in b.opened.candidates]
    follows: list[InvariantFacts] = []
    for block in blocks:
        if SEEDS not in block.id:
            found = learning.of_block(block)
            told = block.counts or block.opened.purpose == "verify"  # a broken invariant counts in a void block too
            follows += [fact for fact in found if told or fact.status == "broken"]
    if seeds := [block for block in blocks if SEEDS in block.id]:
        follows += learning.seeds(seeds)
    invariants(name, facts.invariants, None if record.secrets is None else follows, checks)


def _without_blocks(record: Record, verdict: VerdictFacts, name: str, checks: Checks) -> None:
    """An adoption without blocks is a claim's, of a stack that no verification saw."""
    if verdict.verdict != "adopted":
        return
    claim = next((c for c in record.of_claims() if c.candidate == verdict.candidate), None)
    checks.holds(f"{name}: adopted by its claim", claim is not None and claim.proven, "adopted", "no proven claim" if claim is None else claim.proven)


def _order(record: Record, block: BlockFacts, verdict: VerdictFacts) -> str:
    runs = sorted(record.runs(block.trials), key=lambda facts: facts.slot)
    return "".join("B" if facts.candidate == verdict.candidate else "A" for facts in runs)


def _dropped(record: Record, verdict: VerdictFacts, name: str, checks: Checks) -> None:
    """No block of a verification that counts is left out, unless it ended the verification itself."""
    ran = [b.id for b in record.of_purpose("verify", verdict.candidate) if b.counts and b.whole]
    used = [block.id for block in verdict.blocks]
    ended = ran[-1:] if verdict.verdict in ("invalid", "failed") else []
    checks.holds(f"{name}: no closed block is left out", [b for b in ran if b not in used] in ([], ended), " ".join(used), " ".join(ran))


def _evalues(
    record: Record, verdict: VerdictFacts, times: Sequence[tuple[str, list[float]]], name: str, checks: Checks
) -> None:
    if verdict.predicted_gain is None or verdict.pair_scale is None:
        checks.lacks(f"{name}: e-value", verdict.evalue, "this version did not record what the bets were made for")
        _reached(verdict, verdict.evalue, name, checks)
        return
    process = EProcess(verdict.alpha, verdict.pair_scale, record.contract.objective.margin, verdict.predicted_gain)
    for block, (order, seconds) in zip(verdict.blocks, times, strict=True):
        if len(order) != len(seconds) or order.count("A") != order.count("B"):
            checks.holds(f"{name}: {block.id} has a time for every run", False, len(order), len(seconds))
            return
        checks.same(f"{name}: e-value of {block.id}", block.evalue, process.add_block(order, seconds))
        checks.same(f"{name}: e-value after {block.id}", block.e_total, process.total)
    follows = process.highest if process.reached else process.total
    checks.same(f"{name}: e-value", verdict.evalue, follows)
    _reached(verdict, follows, name, checks)


def _reached(verdict: VerdictFacts, evalue: float | None, name: str, checks: Checks) -> None:
    if verdict.verdict == "adopted":
        needed = 1 / verdict.alpha
        checks.holds(f"{name}: adopted with the e-value that was needed", evalue is not None and evalue >= needed * (1 - 1e-9), evalue, needed)


def _effect(
    record: Record, verdict: VerdictFacts, times: Sequence[tuple[str, list[float]]], name: str, checks: Checks
) -> None:
    """Ratio, interval, peaks over all runs that counted; in a verification that a run ended, what counted is not recorded."""
    if verdict.pair_scale is not None:
        levels = (0.99, 0.9, 0.8)
        found = (speedup_interval(times, verdict.pair_scale, level) for level in levels)
        checks.interval(f"{name}: speed-up", verdict.speedup, next((i for i in found if i is not None), None))
    if verdict.verdict in ("invalid", "failed"):
        return
    runs = [facts for block in verdict.blocks for facts in record.runs(block.trials)]
    runs += [facts for b in record.of_purpose("verify", verdict.candidate) if b.counts and not b.whole for facts in b.timed]
    ours = [facts for facts in runs if facts.candidate == verdict.candidate]
    theirs = [facts for facts in runs if facts.candidate != verdict.candidate]
    mine, other = scores(ours), scores(theirs)
    if not mine or not other:
        return
    checks.same(f"{name}: log ratio", verdict.log_ratio, fmean(map(math.log, mine)) - fmean(map(math.log, other)))
    checks.same(f"{name}: ratio of plain means", verdict.mean_total_ratio, mean_total_ratio(mine, other))
    checks.same(f"{name}: peak memory", verdict.peak_bytes, highest_peak(ours))
    checks.same(f"{name}: peak memory of the incumbent", verdict.incumbent_peak_bytes, highest_peak(theirs))
    told, after = verdict.carry_over, carry_over(ours, theirs)
    checks.holds(f"{name}: carry-over measured", (told is None) == (after is None), told is not None, after is not None)
    if told is not None and after is not None:
        checks.same(f"{name}: carry-over", told.log_ratio, after.log_ratio)
        checks.same(f"{name}: carry-over, error", told.error, after.error)
        checks.same(f"{name}: carry-over, runs", told.runs, after.runs)
    if verdict.slow_run_bound is not None:
        all_ours = [score for score in _scored_before(record, verdict) if score is not None]
        bound = judge_slow_runs(all_ours, other, record.contract.proof.max_slow_rate).rate_bound
        checks.same(f"{name}: bound on slow runs", verdict.slow_run_bound, bound)


def _scored_before(record: Record, verdict: VerdictFacts) -> list[float | None]:
    """Scores of all runs of a candidate at full memory, whatever for, in blocks that count, up to its verdict."""
    found: list[float | None] = []
    for event in record.events:
        if isinstance(event.body, ev.VerdictReached) and event.body.verdict == verdict:
            break
        if isinstance(event.body, ev.BlockClosed) and (block := record.blocks.get(event.body.block)) is not None and block.counts:
            ours = [f for f in block.timed if f.candidate == verdict.candidate and f.arm == "candidate" and f.memory_limit_bytes is None]
            found += [facts.score_s for facts in ours]
    return found


# --- error probability ----------------------------------------------------------------------------


def _ledger(record: Record, checks: Checks) -> None:
    """What each verification could spend follows from the campaign's number on its workload and what came before."""
    granted = record.granted
    if granted is None:
        return
    checks.same("error probability of the campaign", granted.alpha, campaign_alpha(granted.ordinal))
    entries, order = [], []
    apart = {body.candidate for body in record.of(ev.CanaryPlanted)}
    for event in record.events:
        body = event.body
        if isinstance(body, ev.VerdictReached) and body.verdict.alpha != 0 and body.verdict.candidate not in apart:
            entries.append((body.verdict.alpha, body.verdict.verdict == "adopted", body.verdict.evalue))
            order.append(body.verdict.candidate)
        elif isinstance(body, ev.Revoked) and body.candidate in order:
            entries.append(order.index(body.candidate) + 1)  # type: ignore[arg-type]
    try:
        AlphaLedger.replay(granted.alpha, record.planned, entries)
    except JournalError as error:
        checks.holds("error probability of each verification", False, len(order), str(error))
    else:
        checks.holds("error probability of each verification", True, len(order), len(order))

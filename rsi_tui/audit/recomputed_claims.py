"""What was claimed, computed again: claims, what each change contributes, and savings of memory."""

from __future__ import annotations

import math
from statistics import fmean, median

from rsi_tui.audit.checks import Checks
from rsi_tui.audit.record import Record
from rsi_tui.evaluator.claim import fewest_pairs, hodges_lehmann, simultaneous, slow_run_bound
from rsi_tui.evaluator.leave_one_out import worth_nothing
from rsi_tui.evaluator.measures import highest_peak, scores, slope_of_walls
from rsi_tui.evaluator.saving import RUNS, SAVED
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import AttributionFacts, ClaimFacts, MemorySavingFacts

CLAIM_CONFIDENCE = 0.99
FAMILY = 0.95
"""confidence of leave-one-out's intervals together"""


def claims(record: Record, checks: Checks) -> None:
    for claim in record.of_claims():
        checks.attempt(f"claim of {claim.candidate}", _claim, record, claim, checks)
        checks.attempt(f"claim of {claim.candidate}: attribution", _attribution, record, claim, checks)


def _claim(record: Record, claim: ClaimFacts, checks: Checks) -> None:
    name = f"claim of {claim.candidate}"
    runs = record.runs(claim.trials)
    base, ours = runs[::2], runs[1::2]
    right = len(runs) == len(claim.trials) == 2 * claim.pairs and all(
        a.candidate != claim.candidate and b.candidate == claim.candidate and a.block == b.block for a, b in zip(base, ours, strict=False)
    )
    checks.holds(f"{name}: pairs of baseline and stack", right, claim.pairs, len(runs) // 2)
    if not right or not runs:
        return
    ran = [b.id for b in record.of_purpose("claim", claim.candidate) if b.counts and b.whole]
    left = [block for block in ran if block not in {facts.block for facts in base}]
    checks.holds(f"{name}: no pair is left out", not left or bool(claim.refuted), claim.pairs, len(ran))
    checks.same(f"{name}: step time of the baseline", claim.baseline_step_s, median(a.step_s for a in base if a.step_s is not None))
    checks.same(f"{name}: step time of the stack", claim.candidate_step_s, median(b.step_s for b in ours if b.step_s is not None))
    enough = len(base) >= fewest_pairs(CLAIM_CONFIDENCE)
    ratios = [math.log(b / a) for a, b in zip(scores(base), scores(ours), strict=True)]
    speedup = hodges_lehmann(ratios, CLAIM_CONFIDENCE) if enough else None
    checks.interval(f"{name}: speed-up", claim.speedup, speedup)
    checks.same(f"{name}: total wall", claim.total_wall_ratio, fmean(a.total_s for a in base) / fmean(b.total_s for b in ours))
    checks.same(f"{name}: slope of total wall", claim.slope_ratio, slope_of_walls(base, ours))
    checks.same(f"{name}: peak memory of the baseline", claim.baseline_peak_bytes, highest_peak(base))
    checks.same(f"{name}: peak memory of the stack", claim.candidate_peak_bytes, highest_peak(ours))
    checks.same(f"{name}: bound on slow runs", claim.slow_run_bound, slow_run_bound(scores(ours), scores(base)))
    saving(record, f"{name}: saving of memory", claim.candidate, claim.memory, checks)
    broken = any(fact.status == "broken" for fact in claim.invariants)
    proven = claim.proven and not claim.reasons and speedup is not None and speedup.low > 1 and not broken
    checks.holds(f"{name}: proven", proven or not claim.proven, claim.proven, proven)


# --- what each change contributes -----------------------------------------------------------------


def _attribution(record: Record, claim: ClaimFacts, checks: Checks) -> None:
    """Each part says what leave-one-out measured of it, else what screening or its verification estimated."""
    measured = {part.name: part for round_ in record.of(ev.LeftOut) for part in round_.parts}
    reproduced = {d.direction.id for d in record.of(ev.DirectionOpened) if d.direction.reproduces}
    theirs = {built.candidate.id for built in record.of(ev.CandidateBuilt) if built.direction in reproduced}
    for part in claim.attribution:
        name = f"claim of {claim.candidate}: {part.name}"
        if part.how == "leave-one-out":
            _same_part(name, part, measured.get(part.name), checks)
            continue
        checks.same(f"{name}, proven", part.proven, False)
        if part.candidate in theirs or part.log_ratio is None:
            checks.lacks(f"{name}, effect", part.log_ratio, "measured by an earlier campaign, whose record has the runs")
            continue
        checks.same(f"{name}, effect", part.log_ratio, _effect(record, part.candidate))


def _same_part(name: str, part: AttributionFacts, known: AttributionFacts | None, checks: Checks) -> None:
    if known is None:
        checks.holds(f"{name}, leave-one-out", False, part.log_ratio, "no such round")
        return
    checks.same(f"{name}, effect", part.log_ratio, known.log_ratio)
    checks.interval(f"{name}, interval", part.interval, known.interval)
    checks.same(f"{name}, proven", part.proven, known.proven)


def _effect(record: Record, candidate: str) -> float | None:
    """The log ratio that screening saw of a candidate, else its verification."""
    screened = [r.log_ratio for body in record.of(ev.Screened) for r in body.results if r.candidate == candidate]
    if screened and screened[-1] is not None:
        return screened[-1]
    verdicts = [body.verdict.log_ratio for body in record.of(ev.VerdictReached) if body.verdict.candidate == candidate]
    return next((ratio for ratio in reversed(verdicts) if ratio is not None), None)


def left_out(record: Record, checks: Checks) -> None:
    for number, round_ in enumerate(record.of(ev.LeftOut), 1):
        name = f"leave-one-out {number}"
        checks.attempt(name, _left_out, record, name, round_, checks)


def _left_out(record: Record, name: str, round_: ev.LeftOut, checks: Checks) -> None:
    wanted = {part.name: part for part in round_.parts if part.interval is not None}
    if not wanted:
        return
    if record.secrets is None:
        checks.lacks(f"{name}: intervals", len(wanted), "which run was without which change is sealed until the campaign ends")
        return
    blocks = [b for b in record.blocks.values() if b.counts and {f.id for f in b.timed} & set(round_.trials)]
    ratios: dict[str, list[float]] = {part: [] for part in wanted}
    for block in blocks:
        labels = record.secrets[f"block/{block.id}"]["value"]["order"]
        by_label = {label: facts.score_s for label, facts in zip(labels, block.timed, strict=False)}
        base = by_label.get("stack")
        for part in wanted:
            if base and (score := by_label.get(part)):
                ratios[part].append(math.log(score / base))
    follows = simultaneous(ratios, len(round_.parts), FAMILY)
    for part, known in wanted.items():
        checks.interval(f"{name}: {part}", known.interval, follows[part])
        checks.same(f"{name}: {part}, effect", known.log_ratio, -math.log(follows[part].estimate))
        checks.same(f"{name}: {part} proven", known.proven, bool(known.note) or follows[part].low > 1)
    if round_.dropped:
        checks.same(f"{name}: left out", round_.dropped, worth_nothing(follows, record.contract.objective.margin))


# --- savings of memory ------------------------------------------------------------------------------


def saving(record: Record, name: str, candidate: str, facts: MemorySavingFacts | None, checks: Checks) -> None:
    """A saving that is proven was held by three fresh runs, under a limit that killed the incumbent."""
    if facts is None:
        return
    runs = record.runs(facts.trials)
    ended = [run for run in runs if run.candidate == candidate and run.arm == "candidate" and run.outcome == "ok"]
    checks.same(f"{name}: runs", facts.runs, len(ended))
    checks.same(f"{name}: peak", facts.peak_bytes, highest_peak(ended))
    held = {run.memory_limit_bytes for run in runs}
    checks.holds(f"{name}: limit", held <= {facts.limit_bytes}, facts.limit_bytes, ", ".join(map(str, held)))
    if facts.proven:
        killed = any(run.arm == "check" and run.outcome == "oom" for run in runs)
        under = facts.peak_bytes is not None and facts.peak_bytes <= facts.limit_bytes <= (1 - SAVED) * facts.incumbent_peak_bytes
        checks.holds(f"{name}: proven", killed and under and len(ended) >= RUNS, True, killed and under and len(ended) >= RUNS)

"""How much faster is the best known stack than the bundled program, and what is each part of it worth? Real runs.

    scripts/bench/headroom.py WORKLOAD [--quick] [--claim] [--json] [--home DIR]

Calibrates as a campaign does, then measures the stack against the original in fresh pairs by the code that proves
claims (learned updates, saved states, hidden validation, slow runs), then the stack against itself without each of its
parts. With --home it goes on where it was interrupted. It wants the machine to itself. --quick runs two pairs, the
original and the stack in turn, and compares and proves nothing; --claim leaves out what each part is worth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.evaluator.service import Part
from rsi_tui.journal.facts import AttributionFacts, ClaimFacts
from rsi_tui.loop.context import Context
from scripts.bench.common import Figure, show
from scripts.bench.stacked import Stack, built, look, opened, runner

STACKS: dict[str, Stack] = {
    "dense_single": Stack(
        ("sdpa", "causal-blocks", "fused-qkv", "fused-activation", "linear-cross-entropy", "fused-optimizer", "clip-foreach"),
        {"tcmalloc": True, "micro_batch": 4},
    ),
    "dense_single_bf16": Stack(
        ("sdpa", "fused-qkv", "fused-activation", "linear-cross-entropy", "fused-optimizer", "clip-foreach"),
        {"tcmalloc": True, "micro_batch": 4, "dtype": "bf16"},
    ),
    "moe_single": Stack(
        ("batched-experts", "sdpa", "fused-qkv", "fused-rms-norm", "fused-optimizer", "clip-foreach"),
        {"tcmalloc": True, "micro_batch": 8},
    ),
    "dense_multi": Stack(
        ("sync-once", "overlapped-all-reduce", "bf16-gradients", "sdpa", "fused-activation", "linear-cross-entropy", "fused-optimizer",
         "clip-foreach"),
        {"tcmalloc": True},
    ),
    "moe_multi": Stack(
        ("expert-parallel", "batched-experts", "sync-once", "bucketed-all-reduce", "sdpa", "fused-qkv", "fused-rms-norm",
         "fused-optimizer", "clip-foreach"),
        {"tcmalloc": True, "micro_batch": 2},
    ),
}
"""the fastest that was found for each workload, by campaigns and by hand"""
TARGETS = {"dense_single": 1.5, "dense_single_bf16": 1.9, "moe_single": 2.6, "dense_multi": 2.75, "moe_multi": 4.0}
"""speed-up; under fp32 equivalence where the contract asks for that, and where a machine has no bf16 units"""
STEPS = {"dense_single": (8, 12), "dense_single_bf16": (8, 12), "moe_single": (24, 40), "dense_multi": (12, 20), "moe_multi": (16, 48)}
"""lengths of runs: so long that a stack's steps weigh against the noise of start-up, which the slope of total wall needs"""
BF16 = "_bf16"
"""a stack of its own where the arithmetic may be in bf16, as the workload's contract allows; the baseline stays in fp32"""
PRESET = """
[preset.headroom.launch]
timeout = "300s"

[preset.headroom.objective]
steps = [{}, {}]
warmup = 3

[preset.headroom.proof]
aa_pairs = 8
final_pairs = 12
canaries = false
red_team = false
"""


def measure(ctx: Context, workload: str, *, worth: bool = True) -> tuple[ClaimFacts, tuple[AttributionFacts, ...]]:
    profile = ctx.evaluator.profile()
    ctx.evaluator.calibrate(0.01)
    stack = STACKS[workload]
    whole = built(ctx, "stack", stack, profile)
    claim = ctx.evaluator.claim("headroom/claim", whole, (), verified=False)
    if not worth:
        return claim, ()
    parts = [
        Part(name, _kind(name), whole.id, built(ctx, f"without-{number}", stack.without(name), profile))
        for number, name in enumerate(stack.names, 1)
    ]
    return claim, ctx.evaluator.leave_one_out("headroom/parts", whole, parts, last=True).parts


def _kind(name: str) -> Literal["setting never switched on", "new code"]:
    return "setting never switched on" if name.startswith("setting ") else "new code"


def figures(workload: str, claim: ClaimFacts, parts: tuple[AttributionFacts, ...]) -> list[Figure]:
    target = TARGETS[workload]
    interval = claim.speedup
    found = [
        Figure("speed-up", interval.estimate if interval else "none", "x", f"at least {target}", interval is not None and interval.estimate >= target),
        Figure("its 99 % interval", f"{interval.low:.3f} to {interval.high:.3f}" if interval else "none", "x", "", None),
        Figure("proven", "yes" if claim.proven else "; ".join(claim.reasons), "", "yes", claim.proven),
        Figure("step, baseline", claim.baseline_step_s or "none", "s", "", None),
        Figure("step, stack", claim.candidate_step_s or "none", "s", "", None),
        Figure("peak memory, baseline", (claim.baseline_peak_bytes or 0) / 2**20, "MiB", "", None),
        Figure("peak memory, stack", (claim.candidate_peak_bytes or 0) / 2**20, "MiB", "", None),
    ]
    found += [
        Figure(f"invariant: {fact.name}", fact.value if fact.value is not None else "not covered", f"limit {fact.limit}", "held", fact.status != "broken")
        for fact in claim.invariants
    ]
    return found + [_worth(part) for part in parts]


def _worth(part: AttributionFacts) -> Figure:
    if part.interval is None:
        return Figure(f"without {part.name}", part.note or "no interval", "", "", None)
    worth = f"{part.interval.estimate:.3f} ({part.interval.low:.3f} to {part.interval.high:.3f})"
    return Figure(f"worth of {part.name}", worth, "x", "", None)


def quickly(ctx: Context, workload: str) -> list[Figure]:
    """Two pairs and nothing else: a look, no proof."""
    whole, trials = built(ctx, "stack", STACKS[workload], None), runner(ctx)
    steps: dict[str, list[float]] = {}
    for seed in (1, 2):
        for candidate in (ctx.evaluator.original, whole):
            facts = look(trials, candidate, ctx.contract.objective.steps[0], seed).facts
            if facts.step_s is None:
                return [Figure(f"{candidate.id} does not run", facts.detail, "", "", False)]
            steps.setdefault(candidate.id, []).append(facts.step_s)
    before, after = (statistics.fmean(found) for found in steps.values())
    return [Figure("speed-up, a look", before / after, "x", f"at least {TARGETS[workload]}", None)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=sorted(STACKS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--claim", action="store_true", help="the claim alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--home", type=Path, help="keep workload, home and journal here, and go on from them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rsi-headroom-") as scratch:
        folder = args.home or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder / "bf16" if args.workload.endswith(BF16) else folder
        campaign = opened(args.workload.removesuffix(BF16), folder, PRESET.format(*STEPS[args.workload]), "headroom")
        try:
            if args.quick:
                found, notes = quickly(campaign.context, args.workload), ["--quick left out the proof and what each part is worth"]
            else:
                claim, parts = measure(campaign.context, args.workload, worth=not args.claim)
                found, notes = figures(args.workload, claim, parts), ["--claim left out what each part is worth"] if args.claim else []
        finally:
            campaign.context.evaluator.close(finished=False)
            campaign.writer.close()
    precision = "fp32 equivalence is the contract of this bench." if campaign.context.contract.invariants.precision == "fp32" else ""
    return show(f"headroom {args.workload}", found, args.json, [*notes, *filter(None, [precision])], f"scripts/bench/headroom.py {args.workload}{' --claim' if args.claim else ''}")


if __name__ == "__main__":
    sys.exit(main())

"""What each technique was predicted to do to a bundled workload, and what it did. Real runs, screened as in a campaign.

    scripts/bench/techniques.py WORKLOAD [--quick] [--json] [--home DIR] [--only ID ...]

Every technique that applies to the unchanged program is built alone and screened against it. The sign of its
prediction is judged where the measured effect exceeds the smallest that one verification could prove here. A
technique that ends the run early (out of memory, an error) counts as wrong unless it was predicted to need more
memory than the limit leaves. With --home it goes on where it was interrupted. It wants the machine to itself.
--quick runs the program and four techniques once each, and judges no sign.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.journal.facts import CandidateFacts, ProfileFacts, ScreenFacts
from rsi_tui.loop.context import Context
from rsi_tui.techniques.base import Effect
from rsi_tui.techniques.registry import applicable
from scripts.bench.common import Figure, show
from scripts.bench.stacked import candidate, look, opened, runner, situation

WORKLOADS = ("dense_single", "moe_single", "dense_multi", "moe_multi")
PRESET = """
[preset.techniques.objective]
steps = [8, 12]
warmup = 3

[preset.techniques.proof]
aa_pairs = 8
canaries = false
red_team = false
"""
WAVE = 4
RIGHT = 0.85
"""share of signs that has to be right"""


def measure(ctx: Context, only: Sequence[str]) -> tuple[float, list[tuple[str, Effect, ScreenFacts]], ProfileFacts]:
    profile = ctx.evaluator.profile()
    noise = ctx.evaluator.calibrate(0.01).noise
    found = [(t, change, effect) for t, change, effect in applicable(situation(ctx, profile)) if not only or t.id in only]
    rows = []
    for number in range(0, len(found), WAVE):
        wave = found[number : number + WAVE]
        candidates: list[CandidateFacts] = [
            candidate(ctx, f"t{number + at}", change, (technique.id,)) for at, (technique, change, _) in enumerate(wave)
        ]
        seen = ctx.evaluator.screen(f"techniques/{'+'.join(t.id for t, _, _ in wave)}", candidates, ctx.evaluator.original)
        rows += [(technique.id, effect, facts) for (technique, _, effect), facts in zip(wave, seen, strict=True)]
    return noise.smallest_provable, rows, profile


def quickly(ctx: Context) -> list[Figure]:
    """Four techniques, one run each beside one of the program: a look."""
    trials, steps = runner(ctx), ctx.contract.objective.steps[0]
    found = applicable(situation(ctx, None))
    base = look(trials, ctx.evaluator.original, steps, 1).facts.step_s
    rows = [Figure("techniques that apply", len(found), "", "", None)]
    for number, (technique, change, effect) in enumerate(found[:: max(1, len(found) // 4)][:4]):
        facts = look(trials, candidate(ctx, f"t{number}", change, (technique.id,)), steps, 1).facts
        value = facts.step_s / base if facts.step_s and base else facts.outcome
        rows.append(Figure(technique.id, value, "of the time", f"predicted {math.exp(effect.time):.3f}", None))
    return rows


def figures(smallest: float, rows: list[tuple[str, Effect, ScreenFacts]], profile: ProfileFacts, limit: int) -> list[Figure]:
    judged = [(right, name) for name, effect, facts in rows if (right := _right(effect, facts, smallest, profile, limit)) is not None]
    share = sum(right for right, _ in judged) / len(judged) if judged else 1.0
    head = [
        Figure("techniques that apply", len(rows), "", "", None),
        Figure("with an effect beyond the smallest provable", len(judged), f"of {len(rows)} ({100 * smallest:.1f} %)", "", None),
        Figure("sign of the prediction right", share, f"of {len(judged)}", f"at least {RIGHT}", share >= RIGHT),
    ]
    return head + [_row(name, effect, facts, _right(effect, facts, smallest, profile, limit)) for name, effect, facts in rows]


def _right(effect: Effect, facts: ScreenFacts, smallest: float, profile: ProfileFacts, limit: int) -> bool | None:
    """Whether the sign of the prediction is that of the effect; None where the effect is too small to have one."""
    if facts.log_ratio is None:
        needed = (profile.peak_bytes or 0) * math.exp(effect.memory)
        return facts.outcome == "oom" and needed > limit
    if abs(facts.log_ratio) <= -math.log(1 - smallest):
        return None
    return effect.time * facts.log_ratio > 0


def _row(name: str, effect: Effect, facts: ScreenFacts, right: bool | None) -> Figure:
    """Ratios of step time, measured and predicted; below 1 is faster."""
    if facts.log_ratio is None:
        return Figure(name, facts.outcome, "", f"predicted {math.exp(effect.time):.3f}", right)
    memory = ""
    if facts.peak_bytes and facts.incumbent_peak_bytes:
        memory = f", memory {facts.peak_bytes / facts.incumbent_peak_bytes:.2f} (predicted {math.exp(effect.memory):.2f})"
    return Figure(name, math.exp(facts.log_ratio), f"of the time{memory}", f"predicted {math.exp(effect.time):.3f}", right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--home", type=Path, help="keep workload, home and journal here, and go on from them")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rsi-techniques-") as scratch:
        folder = args.home or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = opened(args.workload, folder, PRESET, "techniques")
        ctx = campaign.context
        try:
            found = quickly(ctx) if args.quick else figures(*measure(ctx, args.only), ctx.contract.launch.memory_limit_bytes)
        finally:
            ctx.evaluator.close(finished=False)
            campaign.writer.close()
    notes = ["--quick left out most techniques and judged no prediction"] if args.quick else []
    return show(f"techniques {args.workload}", found, args.json, notes, f"scripts/bench/techniques.py {args.workload}")


if __name__ == "__main__":
    sys.exit(main())

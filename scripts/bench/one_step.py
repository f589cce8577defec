"""Do updates from saved states tell honest changes from cheats, those that start late among them? Real runs.

    scripts/bench/one_step.py [--workload dense_single|moe_single] [--quick] [--json] [--states N,N] [--seed N]

Saves states of the workload as a campaign does, moves the counters of the last one on, calibrates from each,
then makes two updates of every variant from each state and judges them by the code that decides. The late
cheats of `variants.py` do nothing before update 30. Prints a table: the fact that exceeds its limit most, or
comes closest to it, in units of the limit. --quick takes one state, moved on, and some variants: about two
minutes on an idle machine; the whole takes about five a state.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.evaluator import compare
from rsi_tui.evaluator.compare import UpdateComparer, UpdateReport
from rsi_tui.evaluator.one_step import UPDATES
from rsi_tui.evaluator.step_bands import calibrate_steps, judge_step
from rsi_tui.journal.facts import BandFacts, InvariantFacts
from scripts.bench import moe_variants, variants
from scripts.bench.bands import PLAIN, SUITES, Bench, Judged, ProgramFailed, Suite, contract_with, figures, line, margin
from scripts.bench.bf16_products import EMULATED, has_bf16_units
from scripts.bench.common import show
from scripts.bench.variants import Variant

MOVED_BY = 5000
CHANGES: dict[str, tuple[Variant, ...]] = {
    "dense_single": (*variants.HONEST_FP32, *variants.HONEST_BF16, *variants.LATE_FP32, *variants.LATE_BF16),
    "moe_single": (
        *moe_variants.HONEST_FP32, *moe_variants.HONEST_BF16, *moe_variants.CHEATS_FP32, *moe_variants.CHEATS_BF16,
    ),
}  # fmt: skip
QUICK = (
    "sdpa", "all of them", "bf16, sdpa", "bf16, all of them", "bf16 head, fp32 blocks",
    "late, learning rate x 0.98", "late, weight decay off", "late, rare rows without gradient",
    "bf16, late, learning rate x 0.98", "bf16, late, weight decay off", "bf16, late, stale gradient of one LayerNorm",
    "bf16, late, label smoothing", "bf16, late, int8 weight gradients", "bf16, late, rare rows without gradient",
    "tokens sorted by expert", "bf16, tokens sorted by expert", "auxiliary loss off", "bf16, auxiliary loss off",
    "bf16, rare experts' tokens dropped",
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """Where runs start from."""

    words: str
    file: Path
    counted: int
    """updates that its counters say"""


class Steps(Bench):
    """Runs variants from saved states."""

    def script(self, name: str, *args: object) -> None:
        path = str(self.suite.workload)
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, name, *map(str, args)], cwd=path, env=env, check=True, stdout=subprocess.DEVNULL)

    def states(self, lengths: list[int], plain: bool) -> Iterator[State]:
        """States after so many updates, and the last with its counters moved on; only that one without `plain`."""
        done = 0
        before: tuple[str, ...] = ()
        for number, length in enumerate(lengths):
            made = self.run("made", replace(PLAIN, flags=before), 11 + number, length - done)
            file = self.scratch / f"state-{length}.pt"
            shutil.move(made, file)
            done, before = length, ("--load", str(file))
            if plain:
                yield State(f"{length} updates", file, length)
        moved = self.scratch / "moved.pt"
        self.script(str(Path(compare.__file__).with_name("move_on.py")), file, moved, MOVED_BY)
        yield State(f"{lengths[-1]} updates, counters moved on", moved, lengths[-1] + MOVED_BY)

    def start(self, state: State, seed: int) -> None:
        """The reference run from a state, the parts of its gradient, and the twin."""
        self.state, self.seed = state, seed
        self.script("directions.py", "--load", state.file, "--seed", seed, "--out", self.scratch / "parts")
        self.reference = self.scratch / "reference.pt"
        shutil.move(self.made("reference", PLAIN), self.reference)
        self.twin = self.stepped(self.suite.twin)

    def made(self, name: str, variant: Variant) -> Path:
        return self.run(name, replace(variant, flags=(*variant.flags, "--load", str(self.state.file))), self.seed, UPDATES)

    def stepped(self, variant: Variant) -> UpdateReport:
        """The report on a variant's updates from the state."""
        parts = self.scratch / "parts" / "directions.pt"
        made = self.made("candidate", variant)
        return self.comparer.compare(self.state.file, self.reference, made, gradients=True, parts=parts)


def measure(bench: Steps, name: str, lengths: list[int], seed: int, quick: bool) -> Iterator[tuple[State, Judged]]:
    states = list(bench.states(lengths, plain=not quick))
    harmless: list[UpdateReport] = []
    twins: list[UpdateReport] = []
    for number, state in enumerate(states):
        bench.start(state, seed + number)
        twins.append(bench.twin)
        harmless += [bench.stepped(variant) for variant in bench.suite.harmless]
    masked = frozenset(r.name for report in harmless for r in report.rows if r.error > 0.1)
    bands = calibrate_steps(harmless, twins, contract_with(bench.suite.workload, "bf16"), masked)
    for number, state in enumerate(states):
        bench.start(state, seed + 100 + number)
        for variant in CHANGES[name]:
            begun = "late, " not in variant.name or state.counted >= variants.LATE
            if begun and (variant.name in QUICK or not quick):
                yield from ((state, judged) for judged in judge_variant(bench, variant, bands))


def judge_variant(bench: Steps, variant: Variant, bands: tuple[BandFacts, ...]) -> Iterator[Judged]:
    """The variant under each contract it belongs to."""
    try:
        report = bench.stepped(variant)
    except ProgramFailed as failure:
        # A campaign's check from a saved state ends as failed: it is not adopted.
        fact = InvariantFacts(name="starts from a saved state", status="broken", value=None, limit=None, how=str(failure))
        for precision in ("bf16",) if "bf16" in variant.flags else ("fp32", "bf16"):
            yield Judged(variant, precision, bench.seed, None, (fact,), fact)
        return
    for precision in ("bf16",) if "bf16" in variant.flags else ("fp32", "bf16"):
        contract = contract_with(bench.suite.workload, precision)
        twin = bench.twin if precision == "bf16" else None
        facts = judge_step(report, bands, contract, twin=twin, after=bench.state.words)
        broken = tuple(fact for fact in facts if fact.status == "broken")
        yield Judged(variant, precision, bench.seed, report.error, broken, max(facts, key=margin))


@contextmanager
def opened(suite: Suite) -> Iterator[Steps]:
    worker = Path(compare.__file__).with_name("compare_worker.py")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-P", str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    with tempfile.TemporaryDirectory() as scratch, UpdateComparer(start, "model") as comparer:
        yield Steps(suite, Path(scratch), comparer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(CHANGES), default="dense_single")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--states", default="", help="updates after which states are saved; 12,120 or, quick, 12")
    parser.add_argument("--seed", type=int, default=901)
    args = parser.parse_args()
    lengths = [int(n) for n in (args.states or ("12" if args.quick else "12,120")).split(",")]
    results: list[Judged] = []
    with opened(SUITES[args.workload]) as bench:
        for state, judged in measure(bench, args.workload, lengths, args.seed, args.quick):
            results.append(judged)
            if not args.json:
                print(f"{state.words:36} {line(judged)}", flush=True)
    notes = [f"wrong: {r.variant.name} ({r.precision})" for r in results if not r.right]
    if args.quick:
        notes.append("--quick left out most variants and all plain states")
    if not has_bf16_units():
        notes.append(EMULATED)
    command = f"scripts/bench/one_step.py --workload {args.workload} --states {','.join(map(str, lengths))}"
    command += " --quick" if args.quick else ""
    return show(f"one_step {args.workload}", figures(results), args.json, notes, command)


if __name__ == "__main__":
    sys.exit(main())

"""Do the bands of the learned update tell honest changes from quiet cheats? Real runs of the bundled workloads.

    scripts/bench/bands.py [--workload dense_single|moe_single] [--quick] [--json] [--seeds N] [--steps N]

Calibrates as a campaign does, then runs every variant of `variants.py` in fp32 and under bf16 and judges
it by the code that decides. Prints a table: the fact that comes closest to its limit or exceeds it
most, in units of the limit. --quick takes one seed and a dozen variants and stays under two minutes
on an idle machine; the whole takes about eight minutes a seed there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.evaluator import compare
from rsi_tui.evaluator.bands import calibrate, judge
from rsi_tui.evaluator.compare import UpdateComparer, UpdateReport
from rsi_tui.journal.facts import BandFacts, InvariantFacts
from scripts.bench import moe_variants, variants
from scripts.bench.bf16_products import EMULATED, has_bf16_units
from scripts.bench.common import Figure, show
from scripts.bench.variants import Variant

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"


@dataclass(frozen=True)
class Suite:
    """The changes of one workload."""

    workload: Path
    harmless: tuple[Variant, ...]
    twin: Variant
    changes: tuple[Variant, ...]


SUITES = {
    name: Suite(
        WORKLOADS / name,
        module.HARMLESS,
        module.TWIN,
        (*module.HONEST_FP32, *module.HONEST_BF16, *module.CHEATS_FP32, *module.CHEATS_BF16),
    )
    for name, module in {"dense_single": variants, "moe_single": moe_variants}.items()
}
PLAIN = Variant("plain")
QUICK = (
    "sdpa", "chunked cross-entropy", "bf16, sdpa", "bf16, all of them",
    "learning rate x 0.98", "weight decay off", "bf16, learning rate x 0.995", "bf16, weight decay off",
    "bf16, one LayerNorm frozen", "bf16, bf16 moments",
    "tokens sorted by expert", "auxiliary loss off", "one expert a token", "bf16, tokens sorted by expert",
    "bf16, rare experts' tokens dropped",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """One variant under one contract."""

    variant: Variant
    precision: str
    seed: int
    error: float | None
    broken: tuple[InvariantFacts, ...]
    nearest: InvariantFacts
    """the fact that is nearest to its limit, or exceeds it most"""

    @property
    def right(self) -> bool:
        return bool(self.broken) == self.variant.cheat


class ProgramFailed(Exception):
    """A variant did not run to its end."""


def margin(fact: InvariantFacts) -> float:
    """Value in units of the limit; infinite for what has no scale and is broken."""
    if fact.value is None or not fact.limit or fact.name == "number of updates":
        return float("inf") if fact.status == "broken" else 0.0
    return fact.value / fact.limit


def train(folder: Path, out: Path, flags: tuple[str, ...], threads: int, seed: int, steps: int) -> None:
    """One run, in a process that was forked with torch imported."""
    import torch

    from scripts.bench.bf16_products import emulate

    emulate()
    torch.set_num_threads(threads)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = ["train.py", "--steps", str(steps), "--seed", str(seed), "--out", str(out), *flags]
    with Path(os.devnull).open("w") as sys.stdout:
        runpy.run_path("train.py", run_name="__main__")


class Bench:
    """Runs variants in a scratch folder and keeps the reference checkpoints."""

    def __init__(self, suite: Suite, scratch: Path, comparer: UpdateComparer) -> None:
        self.suite = suite
        self.scratch = scratch
        self.comparer = comparer
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["torch", "torch._dynamo", "torch.utils.checkpoint", "numpy"])
        self.sources = {path.name: path.read_text() for path in suite.workload.glob("*.py")}

    def run(self, name: str, variant: Variant, seed: int, steps: int) -> Path:
        folder, out = self.scratch / f"{name}-src", self.scratch / name
        folder.mkdir(exist_ok=True)
        for path, text in variant.apply(self.sources).items():
            (folder / path).write_text(text)
        arguments = (folder, out, variant.flags, variant.threads, seed, steps)
        process = self.context.Process(target=train, args=arguments)
        process.start()
        process.join()
        if process.exitcode != 0:
            raise ProgramFailed(f"{variant.name} ended with exit code {process.exitcode}")
        return out / "final.pt"

    def references(self, seed: int, steps: int) -> None:
        self.initial = self.run("initial", PLAIN, seed, 0)
        self.reference = self.run("reference", PLAIN, seed, steps)
        self.twin = self.report(self.suite.twin, seed, steps)

    def report(self, variant: Variant, seed: int, steps: int) -> UpdateReport:
        return self.comparer.compare(self.initial, self.reference, self.run("candidate", variant, seed, steps))


def contract_with(workload: Path, precision: str) -> Contract:
    loaded = load_contract(workload, "quick")
    return loaded.model_copy(update={"invariants": loaded.invariants.model_copy(update={"precision": precision})})


def judged(
    bench: Bench, variant: Variant, seed: int, steps: int, bands: tuple[BandFacts, ...]
) -> Iterator[Judged]:
    """The variant under each contract it belongs to: what rounds to bf16 is only judged where that is allowed."""
    report = bench.report(variant, seed, steps)
    for precision in ("bf16",) if "bf16" in variant.flags else ("fp32", "bf16"):
        facts = judge(report, bands, contract_with(bench.suite.workload, precision), twin=bench.twin)
        broken = tuple(fact for fact in facts if fact.status == "broken")
        yield Judged(variant, precision, seed, report.error, broken, max(facts, key=margin))


def measure(bench: Bench, seeds: int, steps: int, quick: bool) -> Iterator[Judged]:
    chosen = [variant for variant in bench.suite.changes if variant.name in QUICK or not quick]
    bands: tuple[BandFacts, ...] = ()
    for seed in range(101, 101 + seeds):
        bench.references(seed, steps)
        if not bands:
            harmless = [bench.report(variant, seed, steps) for variant in bench.suite.harmless]
            bands = calibrate(harmless, [bench.twin], contract_with(bench.suite.workload, "bf16"))
        for variant in chosen:
            yield from judged(bench, variant, seed, steps, bands)


@contextmanager
def opened(suite: Suite) -> Iterator[Bench]:
    worker = Path(compare.__file__).with_name("compare_worker.py")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-P", str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    with tempfile.TemporaryDirectory() as scratch, UpdateComparer(start, "model") as comparer:
        yield Bench(suite, Path(scratch), comparer)


def figures(results: list[Judged]) -> list[Figure]:
    found = []
    for precision in ("fp32", "bf16"):
        honest = [r for r in results if r.precision == precision and not r.variant.cheat]
        cheats = [r for r in results if r.precision == precision and r.variant.cheat]
        refused = sum(not r.right for r in honest)
        passed = sum(not r.right for r in cheats)
        found += [
            Figure(f"honest changes refused, {precision}", refused, f"of {len(honest)}", "0", refused == 0),
            Figure(f"cheats let through, {precision}", passed, f"of {len(cheats)}", "0", passed == 0),
            Figure(f"largest honest value, {precision}", max(margin(r.nearest) for r in honest), "limits", "under 1", None),
            Figure(f"smallest cheat's value, {precision}", min(margin(r.nearest) for r in cheats), "limits", "over 1", None),
        ]
    return [*found, *(row(result) for result in results)]


def row(result: Judged) -> Figure:
    """What catches a cheat and by how much; how near an honest change comes to a limit, and to which."""
    by = ", ".join(fact.name for fact in result.broken) or result.nearest.name
    kind = "cheat" if result.variant.cheat else "honest"
    name = f"{result.precision}, seed {result.seed}, {kind}: {result.variant.name}"
    value = min(margin(result.nearest), 1e6)
    return Figure(name, value, f"limits ({by})", "over 1" if result.variant.cheat else "at most 1", result.right)


def line(result: Judged) -> str:
    names = ", ".join(fact.name for fact in result.broken) or "-"
    error = "none" if result.error is None else f"{result.error:.1e}"
    mark = "" if result.right else "   <-- WRONG"
    return (
        f"{result.seed} {result.precision} {'cheat ' if result.variant.cheat else 'honest'} "
        f"{result.variant.name:46} {error:>8} {margin(result.nearest):9.2f} x {result.nearest.name:28} {names}{mark}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(SUITES), default="dense_single")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=13)
    args = parser.parse_args()
    results = []
    with opened(SUITES[args.workload]) as bench:
        for result in measure(bench, 1 if args.quick else args.seeds, args.steps, args.quick):
            results.append(result)
            if not args.json:
                print(line(result), flush=True)
    wrong = tuple(f"{r.variant.name} ({r.precision})" for r in results if not r.right)
    notes = [f"wrong: {', '.join(wrong)}"] if wrong else []
    if args.quick:
        notes.append("--quick left out most variants and the second seed")
    notes.append("What does nothing in so short a run, such as tokens of low loss left out, is caught from saved states: one_step.py.")
    if not has_bf16_units():
        notes.append(EMULATED)
    command = f"scripts/bench/bands.py --workload {args.workload} --steps {args.steps}{' --quick' if args.quick else ''}"
    return show(f"bands {args.workload}", figures(results), args.json, notes, command)


if __name__ == "__main__":
    sys.exit(main())

"""A training program of a few lines without torch, in a repository of its own, ready to be run as trials."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.compare import UpdateComparer
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.trial import TrialRequest, TrialResult, TrialRunner
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts
from rsi_tui.journal.steps import Steps
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.locations import CampaignPaths, Home
from rsi_tui.repo.mirror import Mirror

TRAIN = """
import argparse, json, os, pathlib, time
parser = argparse.ArgumentParser()
for name in ("--steps", "--seed"):
    parser.add_argument(name, type=int)
parser.add_argument("--out")
parser.add_argument("--width", type=int, default=1)
args = parser.parse_args()
time.sleep(0.1)
for step in range(1, args.steps + 1):
    time.sleep(0.02)
    print(f"step {step} loss {3 / step}", flush=True)
state = {"seed": args.seed, "width": args.width, "cfg": json.loads(pathlib.Path("conf.json").read_text()),
         "mode": os.environ.get("MODE", ""), "data": pathlib.Path("data/words.txt").read_text()}
pathlib.Path(args.out, "final.pt").write_text(json.dumps(state))
"""
CONTRACT = r"""
[workload]
name = "small"
[launch]
command = "python train.py --steps {steps} --seed {seed} --out {out} {knobs}"
inputs = ["data/*.txt"]
memory_limit = "256MiB"
timeout = "20s"
progress = 'step (?P<step>\d+) loss (?P<loss>\S+)'
checkpoint = "{out}/final.pt"
[scope]
editable = ["train.py"]
[objective]
steps = [8, 12]
warmup = 2
amortise_over = 1000
[[knobs]]
name = "width"
values = [1, 2]
default = 1
flag = "--width {}"
[[knobs]]
name = "mode"
values = ["", "fast"]
default = ""
env = "MODE"
[[knobs]]
name = "depth"
values = [3, 4]
default = 3
file = "conf.json:model.depth"
"""


@dataclass
class Bench:
    """A runner over one committed program."""

    contract: Contract
    mirror: Mirror
    paths: CampaignPaths
    runner: TrialRunner
    home: Home
    source: Path
    candidates: int = field(default=0)

    def candidate(self, files: dict[str, str] | None = None, **knobs: object) -> CandidateFacts:
        """The original, or a candidate whose code has these files."""
        commit, self.candidates = self.mirror.base, self.candidates + 1
        if files:
            ref = f"refs/rsi/test/c{self.candidates}"
            commit = self.mirror.commit_files(self.mirror.base, files, "a change", ref)
        known = self.contract.defaults | knobs  # type: ignore[operator]
        return CandidateFacts(id=f"c{self.candidates}" if files else ORIGINAL, commit=commit, base=self.mirror.base, knobs=known)

    def lab(self) -> Lab:
        """A lab over this program with a journal and a vault of its own; no checkpoints can be compared in it."""
        def no_comparer() -> UpdateComparer:
            raise AssertionError("this program's checkpoints can't be compared")

        writer = JournalWriter.open(self.paths.journal)
        return Lab(
            contract=self.contract,
            original=self.candidate(),
            runner=self.runner,
            steps=Steps(writer, writer.events),
            vault=Vault(self.paths.vault),
            open_comparer=no_comparer,
            holdouts={},
            cancel=threading.Event(),
            fingerprint="here",
        )

    def run(self, candidate: CandidateFacts | None = None, steps: int = 8, **more: object) -> TrialResult:
        cancel = more.pop("cancel", None)
        assert cancel is None or isinstance(cancel, threading.Event)
        values: dict[str, object] = {
            "id": "t1", "kind": "check", "arm": "check", "block": "", "slot": 0, "attempt": 1, "seed": 7,
        }  # fmt: skip
        request = TrialRequest(candidate=candidate or self.candidate(), steps=steps, **(values | more))  # type: ignore[arg-type]
        return self.runner.run(request, cancel)


def make_bench(
    folder: Path, train: str = TRAIN, contract: str = CONTRACT, sandboxed: bool = True, **files: str
) -> Bench:
    """A bench on a fresh repository; `files` maps names (dots as __) to texts."""
    source = folder / "program"
    (source / "data").mkdir(parents=True)
    (source / "data" / "words.txt").write_text("outside git")
    (source / ".gitignore").write_text("data/\n")
    (source / "train.py").write_text(train)
    (source / "conf.json").write_text('{"model": {"depth": 3}}\n')
    (source / "workload.toml").write_text(contract)
    for name, text in files.items():
        (source / name.replace("__", ".")).write_text(text)
    who = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "a program"]):
        subprocess.run(["git", *who, *command], cwd=source, check=True)
    loaded = load_contract(source)
    home = Home(folder / "home")
    mirror = Mirror.open(home, source)
    paths = home.campaign("k1")
    paths.root.mkdir(parents=True)
    runner = TrialRunner(loaded, LocalLauncher(sandboxed=sandboxed), mirror, paths, Path(sys.executable))
    return Bench(loaded, mirror, paths, runner, home, source)

"""Updates from saved states, on a real program: states are saved, late cheats are caught, faults are nobody's verdict.

What runs is slow, some forty starts of a program that imports torch; what every test run needs is in
test_step_bands, test_compare and the campaigns.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rsi_tui.errors import ContractError
from rsi_tui.evaluator import compare
from rsi_tui.evaluator.compare import UpdateComparer
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.measures import Checked, gaps
from rsi_tui.evaluator.one_step import calibrate_one_step, check_one_step
from rsi_tui.evaluator.states import is_moved, saved_states, state_lengths
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import BlockClosed, TrialFinished
from rsi_tui.journal.facts import CandidateFacts, Fact
from rsi_tui.journal.steps import Steps
from rsi_tui.launch.sandbox import sandbox_works
from tests.evaluator.small_program import Bench, make_bench
from tests.evaluator.test_saving import Closed

pytestmark = pytest.mark.skipif(bool(sandbox_works()), reason=sandbox_works() or "sandbox works")
WORKER = Path(compare.__file__).with_name("compare_worker.py")

TRAIN = """
import argparse, torch
parser = argparse.ArgumentParser()
for name, kind in (("--steps", int), ("--seed", int), ("--out", str), ("--load", str), ("--parts", int)):
    parser.add_argument(name, type=kind)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = 0
if args.load:
    state = torch.load(args.load, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]

def batch(step):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1000 * args.seed + step))
    return x, x[:, :4].argmax(1)

def losses(x, y):
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

if __name__ == "__main__":
    parts = args.parts or 1
    for step in range(first, first + args.steps):
        x, y = batch(step)
        optimizer.zero_grad()
        for rows in range(parts):
            loss = losses(x[rows::parts], y[rows::parts]).mean() / parts
            loss.backward()
        optimizer.step()
        print(f"step {step + 1} loss {loss.item()}", flush=True)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": first + args.steps}
    torch.save(saved, args.out + "/final.pt")
"""
DIRECTIONS = """
import torch
from train import args, batch, first, losses, model
each = losses(*batch(first))
low = each[each <= each.quantile(0.5)].sum() / len(each)
names, weights = zip(*model.named_parameters())
parts = {"low_loss_tokens": dict(zip(names, torch.autograd.grad(low, weights)))}
torch.save(parts, args.out + "/directions.pt")
"""
CONTRACT = r"""
[workload]
name = "small"
[launch]
command = "python train.py --steps {steps} --seed {seed} --out {out} {knobs}"
threads = 1
memory_limit = "1GiB"
timeout = "60s"
progress = 'step (?P<step>\d+) loss (?P<loss>\S+)'
checkpoint = "{out}/final.pt"
checkpoint_key = "model"
[resume]
flag = "--load {state}"
directions = "python directions.py --load {state} --seed {seed} --out {out}"
states = [12]
[scope]
editable = ["train.py"]
[objective]
steps = [8, 12]
warmup = 2
amortise_over = 20000
[invariants]
harmless = ["--parts 2"]
"""
STEP = "        optimizer.step()\n"
LOSS = "losses(x[rows::parts], y[rows::parts]).mean()"


@dataclass
class Room:
    """A program with a lab over it, whose checkpoints can be compared."""

    bench: Bench
    lab: Lab

    def candidate(self, old: str, new: str) -> CandidateFacts:
        assert TRAIN.count(old) == 1
        return self.bench.candidate({"train.py": TRAIN.replace(old, new)})

    def check(self, step: str, old: str, new: str) -> Checked:
        return check_one_step(self.lab, step, self.candidate(old, new))

    def facts(self, kind: type[Fact]) -> list[Fact]:
        return [e.body for e in read_events(self.bench.paths.journal) if isinstance(e.body, kind)]


def open_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def room_of(folder: Path, train: str = TRAIN, contract: str = CONTRACT, directions: str = DIRECTIONS) -> Room:
    bench = make_bench(folder, train=train, contract=contract, directions__py=directions)
    lab = bench.lab()
    lab.open_comparer = lambda: UpdateComparer(open_worker, "model")
    return Room(bench, lab)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    """A room that was calibrated."""
    made = room_of(tmp_path_factory.mktemp("room"))
    made.lab.bands = calibrate_one_step(made.lab, "calibration/one-step", ())
    yield made
    made.lab.drop_comparer()


def names(checked: Checked) -> set[str]:
    return {fact.name for fact in checked.invariants if fact.status == "broken"}


@pytest.mark.slow
def test_a_change_that_starts_far_beyond_any_run_is_caught(room: Room) -> None:
    """The state's counters were moved on by a number that nobody knows; learning rates change there too."""
    found = room.check("late", STEP, "        optimizer.param_groups[0]['lr'] = 1e-2 if step < 30 else 0.98e-2\n" + STEP)
    assert "update from a saved state, worst tensor" in names(found)


@pytest.mark.slow
def test_tokens_left_out_of_the_backward_pass_are_named(room: Room) -> None:
    low = "each[each > each.quantile(0.5)].sum() / len(each)"
    found = room.check("low", f"            loss = {LOSS}", f"            each = losses(x, y)\n            loss = {low}")
    fact = next(fact for fact in found.invariants if fact.name == "gradient of low loss tokens")
    assert fact.status == "broken" and "less of it" in fact.how


@pytest.mark.slow
def test_another_way_to_compute_the_same_holds_and_what_was_checked_is_read_back(room: Room) -> None:
    candidate = room.candidate(LOSS, "losses(x[rows::parts], y[rows::parts]).sum() * (parts / 64)")
    found = check_one_step(room.lab, "honest", candidate)
    assert {fact.status for fact in found.invariants} == {"held"} and not found.failed and not found.trouble
    assert "gradient of low loss tokens" in {fact.name for fact in found.invariants}
    assert [entry.name for entry in room.bench.paths.scratch.iterdir()] == ["states"], "no checkpoint is left behind"
    recorded = replace(room.lab, steps=Steps(Closed(), read_events(room.bench.paths.journal)))
    assert check_one_step(recorded, "honest", candidate) == found


@pytest.mark.slow
def test_a_candidate_that_does_not_start_from_a_state_has_failed(room: Room) -> None:
    found = room.check("crash", "    first = state[\"step\"]\n", "    first = state['steps']\n")
    assert "from a saved state, ended as crashed" in found.failed and not found.invariants


@pytest.mark.slow
def test_an_update_from_the_gradient_of_the_one_before_is_caught(room: Room) -> None:
    stale = "        grad = model[0].bias.grad\n        model[0].bias.grad = kept if step > first else grad\n        kept = grad.clone()\n"
    assert "first moment, worst tensor" in names(room.check("stale", STEP, stale + STEP))


@pytest.mark.slow
def test_a_state_that_is_gone_is_made_again(room: Room) -> None:
    state = saved_states(room.lab)[0]
    state.path.unlink()
    (state.path.parent.parent / "12" / state.path.name).unlink()
    found = room.check("again", LOSS, "losses(x[rows::parts], y[rows::parts]).sum() / (64 / parts)")
    assert {fact.status for fact in found.invariants} == {"held"}
    assert len([b for b in room.facts(BlockClosed) if b.block.startswith("states-12")]) == 2


@pytest.mark.slow
def test_a_program_that_cannot_go_on_from_moved_counters_is_compared_without_and_that_is_said(tmp_path: Path) -> None:
    strict = TRAIN.replace("    first = state[\"step\"]\n", "    first = state[\"step\"]\n    assert first < 100\n")
    room = room_of(tmp_path, train=strict)
    bands = calibrate_one_step(room.lab, "calibration/one-step", ())
    assert bands and not is_moved(room.lab)
    assert [state.words for state in saved_states(room.lab)] == ["12 updates"]
    assert "changes that start late in a real run" in {fact.name for fact in gaps(room.lab, ())}
    room.lab.drop_comparer()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("directions", "message"),
    [
        ("raise SystemExit('no such layer')", "directions failed .exit code 1.: no such layer"),
        ("print('nothing')", "wrote no directions.pt"),
        ("import torch, sys; torch.save({'p': {'x': torch.ones(1)}}, sys.argv[6] + '/directions.pt')", "names 'x' in 'p'"),
    ],
)
def test_a_program_of_directions_that_does_not_work_is_the_contracts_fault(
    tmp_path: Path, directions: str, message: str
) -> None:
    room = room_of(tmp_path, directions=directions)
    with pytest.raises(ContractError, match=message):
        calibrate_one_step(room.lab, "calibration/one-step", ())
    room.lab.drop_comparer()


# --- without runs


def lab_with(folder: Path, change: Callable[[str], str]) -> Lab:
    return make_bench(folder, train=TRAIN, contract=change(CONTRACT)).lab()


def test_a_program_that_cannot_start_from_a_state_is_not_checked_and_that_is_said(tmp_path: Path) -> None:
    without = CONTRACT[: CONTRACT.index("[resume]")] + CONTRACT[CONTRACT.index("[scope]") :]
    lab = lab_with(tmp_path, lambda text: without)
    assert calibrate_one_step(lab, "calibration/one-step", ()) == ()
    assert "updates from saved states" in {fact.name for fact in gaps(lab, ())}
    assert not [e for e in read_events(lab.runner.paths.root / "journal.jsonl") if isinstance(e.body, TrialFinished)]


def test_parts_that_nobody_names_are_said_to_be_unseen(tmp_path: Path) -> None:
    lab = lab_with(tmp_path, lambda text: "\n".join(line for line in text.splitlines() if "directions" not in line))
    assert {fact.name for fact in gaps(lab, ())} >= {"parts of the gradient"}
    assert "updates from saved states" not in {fact.name for fact in gaps(lab, ())}


def test_states_lie_early_at_a_runs_length_and_beyond(tmp_path: Path) -> None:
    lab = lab_with(tmp_path, lambda text: text.replace("states = [12]\n", ""))
    assert state_lengths(lab) == (4, 12, 48)
    quick = lab.contract.model_copy(update={"proof": lab.contract.proof.model_copy(update={"bundle": True})})
    assert state_lengths(replace(lab, contract=quick)) == (12,)

"""Checkpoints are compared by a worker of their own; nothing in them is trusted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rsi_tui.evaluator import compare
from rsi_tui.evaluator.compare import CompareError, UpdateComparer, UpdateReport
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.sandbox import python_mounts, sandbox_works
from rsi_tui.launch.spec import LaunchSpec, Mount

WORKER = Path(compare.__file__).with_name("compare_worker.py")
State = dict[str, Any]


def open_plain() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def comparer() -> Iterator[UpdateComparer]:
    with UpdateComparer(open_plain, "model") as opened:
        yield opened


def random(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def state(moved: float = 1.0) -> State:
    """A small model that went `moved` of the way of its update."""
    weights = {"a.weight": random(40, 30, seed=1), "a.bias": torch.zeros(40), "norm.weight": torch.ones(30)}
    for index, (name, w) in enumerate(weights.items()):
        weights[name] = w + moved * random(*w.shape, seed=10 + index, scale=0.01)
    exp_avg = {"0": {"step": torch.tensor(5.0), "exp_avg": random(40, 30, seed=20)}}
    return {"model": weights, "optimizer": {"state": exp_avg, "param_groups": [{"lr": 0.1}]}, "step": 5}


Save = Callable[[str, object], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(name: str, what: object) -> Path:
        torch.save(what, tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def compared(comparer: UpdateComparer, save: Save) -> Callable[[object], UpdateReport]:
    initial, reference = save("initial.pt", state(0.0)), save("reference.pt", state())

    def run(candidate: object) -> UpdateReport:
        return comparer.compare(initial, reference, save("candidate.pt", candidate))

    return run


Compared = Callable[[object], UpdateReport]


def test_the_same_update_has_no_error(compared: Compared) -> None:
    report = compared(state())
    assert report.comparable and report.problems == () and report.error == 0.0
    assert report.counters == report.reference_counters == (5.0,)
    assert [m.kind for m in report.moments] == ["exp_avg"]
    assert all(row.row_error == row.along_update == row.along_weights == 0.0 for row in report.rows)


def test_a_shorter_update_is_seen_as_shorter(compared: Compared) -> None:
    report = compared(state(0.98))
    assert report.error == pytest.approx(0.02, rel=1e-3)
    assert [row.along_update for row in report.rows] == pytest.approx([-0.02] * 3, rel=1e-3)


def test_missing_decay_is_seen_along_the_weights(compared: Compared) -> None:
    initial, candidate = state(0.0), state()
    for name in candidate["model"]:
        candidate["model"][name] += 1e-3 * initial["model"][name]
    rows = {row.name: row for row in compared(candidate).rows}
    assert rows["a.weight"].along_weights == pytest.approx(1e-3, rel=1e-3)
    assert rows["norm.weight"].along_weights == pytest.approx(1e-3, rel=1e-3)
    assert rows["a.bias"].along_weights == 0.0


def test_one_wrong_row_is_not_averaged_away(compared: Compared) -> None:
    candidate, initial = state(), state(0.0)
    candidate["model"]["a.weight"][7] = initial["model"]["a.weight"][7]
    row = next(row for row in compared(candidate).rows if row.name == "a.weight")
    assert row.row_error == pytest.approx(1.0, abs=0.3)
    assert row.error < 0.3


def test_changed_moments_are_seen(compared: Compared) -> None:
    candidate = state()
    candidate["optimizer"]["state"]["0"]["exp_avg"] *= 1.01
    assert compared(candidate).moments[0].error == pytest.approx(0.01, rel=1e-3)


def without(name: str) -> State:
    made = state()
    del made["model"][name]
    return made


def replaced(name: str, value: object) -> State:
    made = state()
    made["model"][name] = value
    return made


def with_bad_optimizer() -> State:
    made = state()
    made["optimizer"]["state"]["0"]["exp_avg"] = torch.zeros(3, 3)
    return made


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        (without("a.bias"), "tensor 'a.bias' is missing"),
        (replaced("extra", torch.ones(3)), "tensor 'extra' is not in the reference"),
        (replaced("a.bias", torch.zeros(41)), r"has shape \[41\] instead of \[40\]"),
        (replaced("a.bias", torch.zeros(40, dtype=torch.bfloat16)), "dtype torch.bfloat16 instead of torch.float32"),
        (replaced("a.bias", torch.full((40,), torch.nan)), "'a.bias' holds NaN or inf"),
        (replaced("a.bias", torch.ones(40).to_sparse()), "tensor of a special kind at 'a.bias'"),
        (replaced("a.bias", torch.ones(40, device="meta")), "tensor of a special kind at 'a.bias'"),
        (replaced("a.bias", torch.ones(1).expand(40)), "larger than its storage at 'a.bias'"),
        (replaced("a.bias", 3), "something else than a tensor at 'a.bias'"),
        (with_bad_optimizer(), "optimizer tensor 'optimizer/state/0/exp_avg' has shape"),
        ({"weights": {}}, "has no entry 'model'"),
        ({"model": {}}, "holds no state dict"),
        ({"model": {"w": torch.zeros(2_000_000)}}, "more than twice as large"),
    ],
)
def test_another_layout_is_named(compared: Compared, candidate: object, problem: str) -> None:
    report = compared(candidate)
    assert any(re.search(problem, text) for text in report.problems), report.problems


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.marker),))


def test_a_checkpoint_that_would_run_code_is_refused(compared: Compared, tmp_path: Path) -> None:
    report = compared({"model": Payload(tmp_path / "ran")})
    assert not report.comparable
    assert "weights_only=True" in report.problems[0]
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_a_folder_and_noise_are_problems_of_the_candidate(
    comparer: UpdateComparer, save: Save, tmp_path: Path
) -> None:
    initial, reference = save("initial.pt", state(0.0)), save("reference.pt", state())
    (tmp_path / "noise.pt").write_bytes(b"\x80\x02noise")
    for candidate, problem in (("absent.pt", "was not written"), (".", "is a folder"), ("noise.pt", "can't be loaded")):
        assert problem in comparer.compare(initial, reference, tmp_path / candidate).problems[0]


def test_a_bad_reference_is_our_fault_not_the_candidates(comparer: UpdateComparer, save: Save) -> None:
    good, other = save("good.pt", state()), save("other.pt", without("a.bias"))
    with pytest.raises(CompareError, match="does not fit"):
        comparer.compare(other, good, good)
    with pytest.raises(CompareError, match="initial checkpoint was not written"):
        comparer.compare(other.with_name("absent.pt"), good, good)


def test_a_rewritten_reference_is_read_again(comparer: UpdateComparer, save: Save) -> None:
    initial, reference = save("initial.pt", state(0.0)), save("reference.pt", state())
    candidate = save("candidate.pt", state())
    assert comparer.compare(initial, reference, candidate).error == 0.0
    time.sleep(0.01)
    save("reference.pt", state(1.1))
    assert comparer.compare(initial, reference, candidate).error == pytest.approx(1 / 11, rel=1e-3)


def script(text: str) -> Callable[[], subprocess.Popen[bytes]]:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    return start


# --- one update from a saved state


SHAPES = {"a.weight": (40, 30), "b.weight": (40, 30), "c.weight": (40, 30), "a.bias": (40,)}


def gradient(name: str, seed: int = 30) -> torch.Tensor:
    return random(*SHAPES[name], seed=seed + list(SHAPES).index(name))


def stepped(
    order: tuple[str, ...], gradients: dict[str, torch.Tensor] | None = None, *, lr: float = 1e-3, named: bool = False
) -> State:
    """The state after one Adam update along given gradients (None: before it); moments numbered in an order of their own."""
    weights = {name: random(*shape, seed=1 + n) for n, (name, shape) in enumerate(SHAPES.items())}
    entries: State = {}
    for number, name in enumerate(order):
        first, second = random(*SHAPES[name], seed=60 + list(SHAPES).index(name)), torch.ones(SHAPES[name])
        if gradients is not None:
            first = 0.9 * first + 0.1 * gradients[name]
            second = 0.95 * second + 0.05 * gradients[name] ** 2
            weights[name] = weights[name] - lr * first / second.sqrt()
        entries[name if named else str(number)] = {"exp_avg": first, "exp_avg_sq": second}
    return {"model": weights, "optimizer": {"state": entries}, "step": 7 if gradients is None else 8}


ORDER = ("c.weight", "a.bias", "a.weight", "b.weight")
WHOLE = {name: gradient(name) for name in SHAPES}
FEW = {name: 0.05 * gradient(name, seed=50) for name in SHAPES}


@pytest.fixture
def one_update(comparer: UpdateComparer, save: Save) -> Callable[..., UpdateReport]:
    def run(
        candidate: State, parts: object = None, order: tuple[str, ...] = ORDER, named: bool = False
    ) -> UpdateReport:
        before, reference = (
            save("state.pt", stepped(order, named=named)),
            save("one.pt", stepped(order, WHOLE, named=named)),
        )
        file = save("directions.pt", parts) if parts is not None else None
        return comparer.compare(before, reference, save("candidate.pt", candidate), gradients=True, parts=file)

    return run


@pytest.mark.parametrize("named", [False, True], ids=["numbered", "by name"])
def test_first_moments_are_known_by_what_they_did_whatever_order_the_optimizer_numbers_them_in(
    one_update: Callable[..., UpdateReport], named: bool
) -> None:
    half = WHOLE | {"b.weight": 0.5 * WHOLE["b.weight"]}
    rows = {row.name: row for row in one_update(stepped(ORDER, half, named=named), named=named).gradients}
    assert set(rows) == set(SHAPES)
    assert rows["b.weight"].error > 0.1
    assert all(row.error == 0.0 for name, row in rows.items() if name != "b.weight")


def test_what_a_gradient_lacks_points_against_the_part_that_was_left_out(
    one_update: Callable[..., UpdateReport],
) -> None:
    without = {name: whole - FEW[name] for name, whole in WHOLE.items()}
    rare = torch.zeros(40, 30)
    rare[3] = 1.0
    report = one_update(
        stepped(ORDER, without), {"few": FEW, "one row": {"a.weight": rare}, "none": {"a.bias": torch.zeros(40)}}
    )
    few, row, none = report.parts
    along = sum(r.along for r in few.rows)
    size = sum(r.part_norm**2 for r in few.rows) ** 0.5 * sum(r.difference_norm**2 for r in few.rows) ** 0.5
    assert along / size == pytest.approx(-1.0, abs=1e-3)
    assert [(r.name, r.numel) for r in row.rows] == [("a.weight", 30)]
    assert none.rows == ()


def test_one_unit_in_the_last_place_is_no_difference_after_one_update(comparer: UpdateComparer, save: Save) -> None:
    before, after, shifted = (stepped(ORDER, gradients, lr=1e-6) for gradients in (None, WHOLE, WHOLE))
    weight = after["model"]["a.weight"]
    shifted["model"]["a.weight"] = torch.nextafter(weight, torch.full_like(weight, torch.inf))
    files = [save(f"{n}.pt", made) for n, made in enumerate((before, after, shifted))]
    assert comparer.compare(*files).error > 0.01, "a whole run is compared to the last bit"
    assert comparer.compare(*files, gradients=True).error == 0.0


def test_an_optimizer_without_a_first_moment_is_compared_by_its_weights(comparer: UpdateComparer, save: Save) -> None:
    before = {name: random(*shape, seed=1 + n) for n, (name, shape) in enumerate(SHAPES.items())}
    after = {name: weight - 0.1 * WHOLE[name] for name, weight in before.items()}
    lacking = {name: weight - 0.1 * (WHOLE[name] - FEW[name]) for name, weight in before.items()}
    files = [save(f"{n}.pt", {"model": made, "step": n}) for n, made in enumerate((before, after, lacking))]
    report = comparer.compare(*files, gradients=True, parts=save("directions.pt", {"few": FEW}))
    assert report.gradients == ()
    assert all(row.along < 0 for row in report.parts[0].rows), "less of the part, whatever sign an update has"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"few": {"unknown": torch.zeros(3)}}, "no parameter of the checkpoint"),
        ({"few": {"a.bias": torch.zeros(3)}}, "something else than the gradient"),
        ({"few": {"a.bias": torch.full((40,), torch.nan)}}, "NaN or inf"),
        ([1], "no dictionary of parts"),
    ],
)
def test_parts_that_do_not_fit_are_our_fault_not_the_candidates(
    one_update: Callable[..., UpdateReport], parts: object, message: str
) -> None:
    with pytest.raises(CompareError, match=message):
        one_update(stepped(ORDER, WHOLE), parts)


READY = "import sys, time; print('{\"ready\": true}', flush=True); sys.stdin.readline();"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pass", "has ended"),
        (READY, "has ended"),
        (READY + "time.sleep(60)", "gave no answer"),
        (READY + "print('nonsense', flush=True); time.sleep(60)", "something else than JSON"),
        (READY + "print('[1]', flush=True); time.sleep(60)", "something else than an object"),
        (READY + "print('{\"report\": {\"error\": \"small\"}}', flush=True); time.sleep(60)", "no valid report"),
        (READY + "print('{\"report\": {\"error\": NaN}}', flush=True); time.sleep(60)", "no valid report"),
    ],
)
def test_a_worker_that_dies_hangs_or_talks_nonsense_means_not_measured(text: str, message: str, tmp_path: Path) -> None:
    with UpdateComparer(script(text), "model", timeout_s=0.5) as comparer, pytest.raises(CompareError, match=message):
        comparer.compare(tmp_path, tmp_path, tmp_path)


def test_a_killed_worker_is_replaced(save: Save) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(open_plain())
        return started[-1]

    initial, reference = save("initial.pt", state(0.0)), save("reference.pt", state())
    with UpdateComparer(start, "model") as comparer:
        comparer.compare(initial, reference, reference)
        started[0].kill()
        started[0].wait()
        assert comparer.compare(initial, reference, reference).error == 0.0
    assert len(started) == 2
    assert all(worker.poll() is not None for worker in started)


@pytest.mark.skipif(bool(sandbox_works()), reason=sandbox_works() or "sandbox works")
def test_the_worker_does_its_work_in_a_sandbox(save: Save, tmp_path: Path) -> None:
    python = Path(sys.executable)
    spec = LaunchSpec(
        argv=(str(python), "-P", "/rsi/compare_worker.py"),
        cwd="/",
        mounts=(*python_mounts(python), Mount(WORKER, "/rsi/compare_worker.py"), Mount(tmp_path, "/scratch")),
        env={},
        timeout_s=0,
    )
    save("initial.pt", state(0.0)), save("reference.pt", state()), save("candidate.pt", state(0.9))
    scratch = Path("/scratch")
    launcher = LocalLauncher()
    with UpdateComparer(lambda: launcher.open_worker(spec), "model") as comparer:
        report = comparer.compare(scratch / "initial.pt", scratch / "reference.pt", scratch / "candidate.pt")
    assert report.error == pytest.approx(0.1, rel=1e-3)

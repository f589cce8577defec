"""The hidden validation runs in a sandbox from the clean base, and a worse loss is caught."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError
from rsi_tui.evaluator.judging import require_learning
from rsi_tui.evaluator.validation import HiddenValidation, ValidationError, judge_validation
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.sandbox import sandbox_works

TINY = Path(__file__).resolve().parents[1] / "workloads" / "tiny"
needs_sandbox = pytest.mark.skipif(bool(sandbox_works()), reason=sandbox_works() or "sandbox works")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    subprocess.run(
        [sys.executable, "train.py", "--steps", "8", "--out", str(out)],
        cwd=TINY,
        env={"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
    )
    return out / "final.pt"


Make = Callable[[Contract], HiddenValidation]


@pytest.fixture(scope="module")
def contract() -> Contract:
    return load_contract(TINY, "quick")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    root = tmp_path_factory.mktemp("validation")

    def build(contract: Contract) -> HiddenValidation:
        return HiddenValidation(contract, LocalLauncher(), Path(sys.executable), TINY, root / "hidden", root)

    return build


def changed(contract: Contract, **invariants: str) -> Contract:
    return contract.model_copy(update={"invariants": contract.invariants.model_copy(update=invariants)})


@needs_sandbox
def test_loss_is_the_programs_own_and_worsens_with_damaged_weights(
    make: Make, contract: Contract, checkpoint: Path, tmp_path: Path
) -> None:
    validation = make(contract)
    validation.prepare("a secret")
    written = (validation.data / "tokens.npy").read_bytes()
    validation.prepare("another")  # a resumed campaign prepares again: nothing may change
    assert (validation.data / "tokens.npy").read_bytes() == written

    loss = validation.loss(checkpoint)
    assert 5.0 < loss < math.log(512) + 0.3
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["out.weight"].mul_(20)
    torch.save(state, tmp_path / "final.pt")
    worse = validation.loss(tmp_path / "final.pt")
    assert judge_validation(worse, loss, 0.0).status == "broken"
    assert judge_validation(loss, loss, 0.0).status == "held"


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("val_loss 0.001",))


@needs_sandbox
def test_a_checkpoint_that_would_run_code_fails_even_if_the_program_loads_it_carelessly(
    make: Make, contract: Contract, tmp_path: Path
) -> None:
    validation = make(contract)
    validation.prepare("a secret")
    (tmp_path / "final.pt").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValidationError, match="validation failed"):
        validation.loss(tmp_path / "final.pt")
    careless = 'python -c "import torch, sys; torch.load(sys.argv[1], weights_only=False)" {checkpoint} {hidden}'
    with pytest.raises(ValidationError):
        make(changed(contract, validation=careless)).loss(tmp_path / "final.pt")


@needs_sandbox
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ('python -c "print(1)" {checkpoint} {hidden}', "no line that matches"),
        ("python -c \"raise SystemExit('no such data')\" {checkpoint} {hidden}", "exit code 1.*no such data"),
        ('python -c "print(\'val_loss broken\')" {checkpoint} {hidden}', "is not a number"),
    ],
)
def test_a_validation_that_says_nothing_useful_is_refused_in_one_sentence(
    make: Make, contract: Contract, checkpoint: Path, command: str, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        make(changed(contract, validation=command)).loss(checkpoint)


@needs_sandbox
def test_a_loss_that_is_not_a_number_is_never_a_pass(make: Make, contract: Contract, checkpoint: Path) -> None:
    says_nan = "python -c \"print('val_loss nan')\" {checkpoint} {hidden}"
    loss = make(changed(contract, validation=says_nan)).loss(checkpoint)
    assert judge_validation(loss, 6.0, 1.0).status == "broken"


@pytest.mark.parametrize(
    ("candidate", "scale", "status"),
    [
        (6.0005, 0.0, "held"),
        (6.0040, 0.0, "broken"),
        (5.9, 0.0, "held"),
        (6.0040, 0.002, "held"),
        (6.0070, 0.002, "broken"),
        (math.inf, 0.1, "broken"),
        (math.nan, 0.1, "broken"),
    ],
)
def test_the_band_of_the_validation_loss(candidate: float, scale: float, status: str) -> None:
    assert judge_validation(candidate, 6.0, scale).status == status


@pytest.mark.parametrize(
    ("weights", "trained", "untrained", "told"),
    [
        ("equivalent", 5.0, 6.2, True),
        ("equivalent", 5.0, 5.001, False),
        ("equivalent", 5.0, 5.0, False),
        ("equivalent", 5.0, 4.0, False),
        ("equivalent", 5.0, math.inf, True),
        ("statistical", 5.0, 5.2, True),
        ("statistical", 5.0, 5.01, False),
        ("statistical", -1.0, -0.9, True),
    ],
)
def test_a_validation_must_tell_a_program_that_learns_nothing(
    contract: Contract, weights: str, trained: float, untrained: float, told: bool
) -> None:
    invariants = changed(contract, weights=weights).invariants
    if told:
        require_learning(trained, untrained, invariants)
    else:
        with pytest.raises(ContractError, match="can't tell a program that learns nothing"):
            require_learning(trained, untrained, invariants)

"""Commands: words without a shell, knobs where they belong, perturbations that win."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rsi_tui.contract import libraries
from rsi_tui.contract.command import (
    Command,
    Meeting,
    available_values,
    find_library,
    library_digest,
    render_make_hidden,
    render_run,
    render_setup,
    render_validation,
    resolve_python,
    unavailable_knobs,
)
from rsi_tui.contract.fingerprint import changed_knobs, launch_fingerprint
from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract, KnobValue, Resume
from rsi_tui.errors import ContractError

TEXT = r"""
[workload]
name = "w"
[launch]
command = "A=1 python 'my train.py' --steps {steps} --seed={seed} {knobs} --out '{out}/x y'"
env = {FIXED = "yes"}
threads = 3
memory_limit = "1GiB"
timeout = "1m"
progress = '(?P<step>\d+) (?P<loss>\S+)'
checkpoint = "{out}/c.pt"
setup = ["python prepare.py"]
[resume]
flag = "--load {state}"
[scope]
editable = ["*.py"]
[objective]
steps = [10, 20]
[invariants]
validation = "python3 evaluate.py {checkpoint} {hidden}"
make_hidden = "python hide.py {secret} {hidden}"
validation_metric = "(?P<value>.*)"
[[knobs]]
name = "mb"
values = [1, 2]
default = 2
flag = "--micro-batch {}"
[[knobs]]
name = "fused"
values = [false, true]
default = false
flag = "--fused"
[[knobs]]
name = "mode"
values = ["", "--mode a --deep"]
default = ""
flag = "{}"
[[knobs]]
name = "text"
values = ["", "two words {seed}"]
default = ""
flag = "--text={}"
[[knobs]]
name = "wait"
values = ["", "active", "passive"]
default = ""
env = "OMP_WAIT_POLICY"
[[knobs]]
name = "bind"
values = [false, true]
default = true
env = "BIND"
[[knobs]]
name = "malloc"
values = [false, true]
default = false
preload = "libc.so.6"
[[knobs]]
name = "absent"
values = [false, true]
default = false
preload = "libnothing-of-the-kind.so.1"
[[knobs]]
name = "tf32"
values = [false, true]
default = false
env = "NVIDIA_TF32_OVERRIDE"
affects = ["precision"]
"""


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    (tmp_path / "workload.toml").write_text(TEXT)
    return load_contract(tmp_path)


def run(contract: Contract, knobs: dict[str, KnobValue] | None = None, extra: str = "", state: str = "") -> Command:
    return render_run(
        contract, knobs=knobs or {}, steps=7, seed=42, out="/o u", extra=extra, state=state, python="/env/bin/python"
    )


BASE = ("/env/bin/python", "my train.py", "--steps", "7", "--seed=42", "--micro-batch", "2")
TAIL = ("--out", "/o u/x y")


def test_the_default_launch_is_the_template_filled_word_by_word(contract: Contract) -> None:
    command = run(contract)
    assert command.argv == BASE + TAIL
    assert command.env == {
        "A": "1", "FIXED": "yes", "BIND": "1", "OMP_NUM_THREADS": "3", "NVIDIA_TF32_OVERRIDE": "0",
        "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    assert command.preloads == ()


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"fused": True}, ("--fused",)),
        ({"mode": "--mode a --deep"}, ("--mode", "a", "--deep")),
        ({"text": "two words {seed}"}, ("--text=two words {seed}",)),
    ],
)
def test_flags_stand_in_place_of_knobs_and_values_are_never_filled_again(
    contract: Contract, knobs: dict[str, KnobValue], words: tuple[str, ...]
) -> None:
    assert run(contract, knobs).argv == BASE + words + TAIL


def test_a_perturbation_comes_last_and_wins(contract: Contract) -> None:
    command = run(
        contract, {"wait": "active"}, extra="OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive --micro-batch 1 --x 'a b'"
    )
    assert command.argv == (*BASE, "--micro-batch", "1", "--x", "a b", *TAIL)
    assert command.env["OMP_NUM_THREADS"] == "1" and command.env["OMP_WAIT_POLICY"] == "passive"


def test_a_state_adds_the_resume_flag_before_the_perturbation(contract: Contract) -> None:
    assert run(contract, state="/s t", extra="--y").argv == (*BASE, "--load", "/s t", "--y", *TAIL)
    with pytest.raises(ContractError, match=r"\[resume\] flag"):
        run(contract.model_copy(update={"resume": Resume()}), state="/s")


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"mbb": 1}, "not a knob of w"),
        ({"mb": 3}, "not a value of the knob mb"),
        ({"mb": True}, "not a value of the knob mb"),
        ({"absent": True}, "not installed here"),
    ],
)
def test_what_the_contract_does_not_list_is_refused(contract: Contract, knobs: dict[str, KnobValue], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        run(contract, knobs)


def test_validation_hidden_data_and_setup_take_no_knobs(contract: Contract) -> None:
    assert render_validation(contract, checkpoint="/c", hidden="/h", python="py").argv == (
        "py",
        "evaluate.py",
        "/c",
        "/h",
    )
    assert render_make_hidden(contract, secret="s", hidden="/h", python="py").argv == ("py", "hide.py", "s", "/h")
    assert [command.argv for command in render_setup(contract, python="py")] == [("py", "prepare.py")]
    none = contract.model_copy(update={"invariants": contract.invariants.model_copy(update={"validation": ""})})
    with pytest.raises(ContractError, match="validation is missing"):
        render_validation(none, checkpoint="/c", hidden="/h", python="py")


def test_preloads_come_from_the_system_alone(
    contract: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_library("libc.so.6")
    assert found is not None and found.is_absolute() and not found.is_symlink()
    assert run(contract, {"malloc": True}).preloads == (str(found),)
    assert len(library_digest(found)) == 64
    assert find_library("../libc.so.6") is None and find_library("libnothing-of-the-kind.so.1") is None
    system, outside = tmp_path / "system", tmp_path / "outside.so"
    system.mkdir()
    outside.write_text("")
    (system / "libevil.so").symlink_to(outside)
    monkeypatch.setattr(libraries, "SYSTEM_FOLDERS", (system,))
    assert find_library("libevil.so") is None


def test_knobs_that_can_not_be_turned_here_stay_at_their_default(contract: Contract) -> None:
    reasons = unavailable_knobs(contract)
    assert set(reasons) == {"absent", "tf32"}
    assert "not installed" in reasons["absent"] and "fp32" in reasons["tf32"]
    values = available_values(contract)
    assert values["absent"] == (False,) and values["mb"] == (1, 2)


def test_each_node_is_told_its_place_and_where_all_meet(contract: Contract) -> None:
    command = "torchrun --nnodes {nodes} --node-rank {node} --nproc-per-node {procs} --master-addr {master} t.py {knobs}"
    launch = contract.launch.model_copy(update={"nodes": 2, "command": command})
    two = contract.model_copy(update={"launch": launch})
    given: dict[str, Any] = {"knobs": {}, "steps": 7, "seed": 42, "out": "/o", "python": "/py"}
    first, second = (render_run(two, **given, node=node, meeting=Meeting("10.0.0.1", 4000, "eth0")) for node in (0, 1))
    assert second.argv[:7] == ("/py", "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "1")
    assert first.argv[6] == "0" and "10.0.0.1" in first.argv
    assert {name: second.env[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")} == {
        "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000", "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    assert "RANK" not in run(contract).env


def test_the_interpreter_is_found_or_told(contract: Contract, tmp_path: Path) -> None:
    assert resolve_python(contract) == sys.executable
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").write_text("")

    def of(python: str) -> str:
        return resolve_python(
            contract.model_copy(update={"launch": contract.launch.model_copy(update={"python": python})})
        )

    assert of("env") == of("env/bin/python") == str(tmp_path / "env" / "bin" / "python")
    with pytest.raises(ContractError, match=r"\[launch\] python is nowhere"):
        of("nowhere")


def test_a_fingerprint_knows_only_what_differs_from_the_defaults(contract: Contract) -> None:
    assert launch_fingerprint(contract, contract.defaults) == "" == launch_fingerprint(contract, {})
    one = launch_fingerprint(contract, contract.defaults | {"mb": 1})
    assert one == launch_fingerprint(contract, {"mb": 1}) and len(one) == 64
    assert one != launch_fingerprint(contract, {"mb": 1, "fused": True})
    assert changed_knobs(contract, {"mb": 1, "fused": False}) == {"mb": 1}
    with pytest.raises(KeyError):
        changed_knobs(contract, {"nothing": 1})

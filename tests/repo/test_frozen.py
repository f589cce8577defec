"""What a run may not change is noticed, and what it may is left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rsi_tui.contract.model import Contract, Invariants, Launch, Objective, Proof
from rsi_tui.repo.frozen import changed_frozen, tree_digest

CONTRACT = Contract(
    name="w",
    preset="full",
    launch=Launch(command="c", memory_limit_bytes=1, timeout_s=1, progress="p", checkpoint="k"),
    editable=("train.py", "model/**"),
    objective=Objective(steps=(6, 7)),
    invariants=Invariants(),
    proof=Proof(),
    folder="/",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("train.py", "model/gpt.py", "data/tokens.bin", "evaluate.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("evaluate.py")
    return tmp_path


def replaced_by_pipe(tree: Path) -> None:
    (tree / "evaluate.py").unlink()
    os.mkfifo(tree / "evaluate.py")


def replaced_by_link(tree: Path) -> None:
    (tree / "evaluate.py").rename(tree / "model" / "copy")
    (tree / "evaluate.py").symlink_to("model/copy")


def folder_replaced_by_link(tree: Path) -> None:
    (tree / "data").rename(tree / "model" / "data")
    (tree / "data").symlink_to("model/data")


def link_redirected(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("train.py")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda tree: None, ()),
        (lambda tree: (tree / "train.py").write_text("other"), ()),
        (lambda tree: (tree / "model" / "new.py").write_text("other"), ()),
        (lambda tree: (tree / "cache.bin").write_text("mine"), ()),
        (lambda tree: ((tree / "__pycache__").mkdir(), (tree / "__pycache__" / "x.py").write_text(""))[0], ()),
        (lambda tree: (tree / "evaluate.py").write_text("evaluate.pY"), ("evaluate.py",)),
        (lambda tree: (tree / "data" / "tokens.bin").unlink(), ("data/tokens.bin",)),
        (lambda tree: (tree / "torch.py").write_text(""), ("torch.py",)),
        (replaced_by_pipe, ("evaluate.py",)),
        (replaced_by_link, ("evaluate.py",)),
        (folder_replaced_by_link, ("data/tokens.bin",)),
        (link_redirected, ("link",)),
    ],
)
def test_only_frozen_files_and_new_modules_count(
    tree: Path, act: Callable[[Path], object], said: tuple[str, ...]
) -> None:
    before = tree_digest(tree, CONTRACT)
    assert set(before) == {"data/tokens.bin", "evaluate.py", "link"}
    act(tree)
    assert changed_frozen(before, tree, CONTRACT) == said

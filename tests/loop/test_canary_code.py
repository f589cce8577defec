"""Text of canaries: another program to every comparison, the same program to whoever runs it; or slower by so much."""

from __future__ import annotations

import ast
import contextlib
import io
import random
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import libcst as cst
import pytest

from rsi_tui.loop.canary_code import KINDS, no_op, progress_loop, slower
from tests.support.campaigns import TINY

ROOT = Path(__file__).parents[2]
PROGRESS = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def sources(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.py")}


def run(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch, out: Path) -> str:
    """What the tiny program prints in two steps."""
    with monkeypatch.context() as patch:
        for name in ("data", "model", "train"):
            module = types.ModuleType(name)
            patch.setitem(sys.modules, name, module)
            exec(compile(texts[f"{name}.py"], f"{name}.py", "exec"), module.__dict__)
        patch.setattr(sys, "argv", ["train.py", "--steps", "2", "--seed", "3", "--out", str(out)])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            module.main()
    return printed.getvalue()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_no_op_changes_the_tree_and_nothing_that_the_program_does(
    kind: Callable[[cst.Module, random.Random], str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = sources(TINY)
    changed = dict(texts)
    for path in ("train.py", "model.py"):
        changed[path] = kind(cst.parse_module(texts[path]), random.Random(5)) or texts[path]
    assert [ast.dump(ast.parse(a)) != ast.dump(ast.parse(b)) for a, b in zip(texts.values(), changed.values(), strict=True)].count(True)
    assert run(changed, monkeypatch, tmp_path) == run(texts, monkeypatch, tmp_path)


@pytest.mark.parametrize("folder", [TINY, ROOT / "workloads" / "dense_single"], ids=lambda folder: folder.name)
def test_no_ops_are_of_many_kinds_and_always_parse(folder: Path) -> None:
    texts = sources(folder)
    found = set()
    for seed in range(40):
        changed = no_op(texts, random.Random(seed))
        assert changed is not None and len(changed) == 1
        ((path, text),) = changed.items()
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(texts[path]))
        found.add((path, text))
    assert len(found) > 20, "two campaigns rarely plant the same"


@pytest.mark.parametrize(
    "text",
    ["", "x = 1\n", "import torch\nimport numpy\n", "@torch.jit.script\ndef f(x):\n    if x:\n        y = x\n    return y\n", "def f():\n    y = 1\n    return locals()\n"],
    ids=["empty", "no function", "order of imports may matter", "decorated", "looks at its own names"],
)  # fmt: skip
def test_what_could_matter_is_not_touched(text: str) -> None:
    assert no_op({"a.py": text, "b.txt": "def f():\n    pass\n"}, random.Random(1)) is None


@pytest.mark.parametrize(
    "function",
    [
        "def f(x, a=y):\n    y = 1\n    return y\n", "def f():\n    y = 1\n    return lambda: y\n", "def f():\n    y = 1\n    return f'{y=}'\n",
        "def f():\n    global y\n    y = 1\n", "def f(y):\n    y = y + 1\n    return y\n", "def f():\n    import y\n    y = y.z\n",
    ],
)  # fmt: skip
def test_a_name_that_means_more_than_a_local_keeps_its_name(function: str) -> None:
    renamed = next(kind for kind in KINDS if kind.__name__ == "renamed_local")
    assert renamed(cst.parse_module(f"y = 0\n\n\n{function}"), random.Random(1)) is None


def test_keywords_and_attributes_of_a_renamed_local_keep_theirs() -> None:
    renamed = next(kind for kind in KINDS if kind.__name__ == "renamed_local")
    text = "def f(g):\n    size = g.size\n    return g(size=size, other=size)\n"
    assert renamed(cst.parse_module(text), random.Random(1)) == (
        "def f(g):\n    size_ = g.size\n    return g(size=size_, other=size_)\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        'print(f"step {n} loss {loss:.4f}", flush=True)', 'print("step", n, "loss", loss)', 'print("step %d loss %.4f" % (n, loss))',
        'print("step {} loss {:.4f}".format(n, loss))', 'log.info("step %d loss %f", n, loss)', 'out.write("step " + str(n) + " loss " + str(loss))',
        'if n % 10 == 0:\n            print(f"step {n} " f"loss {loss}")',
    ],
)  # fmt: skip
def test_the_training_loop_is_the_one_that_prints_progress(line: str) -> None:
    text = f"for other in range(2):\n    print(other)\n\ndef main():\n    for n in range(4):\n        for m in range(3):\n            work(m)\n        {line}\n"
    loop = progress_loop(cst.parse_module(text), PROGRESS)
    assert isinstance(loop, cst.For) and isinstance(loop.target, cst.Name) and loop.target.value == "n"


@pytest.mark.parametrize(
    "text",
    ["for n in range(4):\n    print(n)\n", 'def main():\n    print(f"step {n} loss {loss}")\n', "for n in range(4):\n    def show():\n        print(f'step {n} loss {n}')\n"],
)  # fmt: skip
def test_without_such_a_loop_there_is_no_known_slower_canary(text: str) -> None:
    assert slower({"train.py": text, "notes.txt": 'for n in []:\n    print(f"step {n} loss {n}")\n'}, PROGRESS, 0.01) is None


@pytest.mark.parametrize("folder", [TINY, ROOT / "workloads" / "dense_single"], ids=lambda folder: folder.name)
def test_a_slower_canary_wastes_time_in_each_step(folder: Path) -> None:
    changed = slower(sources(folder), PROGRESS, 0.0021)
    assert changed is not None and list(changed) == ["train.py"]
    assert "+ 0.0021" in changed["train.py"]


def test_it_wastes_what_it_was_told_to() -> None:
    changed = slower({"train.py": 'for n in range(5):\n    print(f"step {n} loss {n}")\n'}, PROGRESS, 0.02)
    assert changed is not None
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(changed["train.py"], "train.py", "exec"), {})
    assert time.perf_counter() - began >= 0.1

"""Knobs in files: the one scalar that is meant changes, and no other byte."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rsi_tui.contract.knob_files import apply_file_knobs, edit_setting
from rsi_tui.contract.model import Contract, Invariants, Knob, KnobValue, Launch, Objective, Proof
from rsi_tui.errors import ContractError

YAML = """\
# batch: 1
batch: 4   # per device
train:
  batch: 8
  "lr": 0.1
  note: 'it''s # not a comment'
  steps:
    - batch: 1
      other: 2
  text: |
    batch: 9
    lr: 3
  inner:
    batch: 16\r
model: {batch: 3}
last: x"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("batch", 2, "batch: 4   # per", "batch: 2   # per"),
        ("train.batch", 2, "  batch: 8", "  batch: 2"),
        ("train.lr", 1e-05, '"lr": 0.1', '"lr": 1.0e-05'),
        ("train.note", "plain", "'it''s # not a comment'", '"plain"'),
        ("train.inner.batch", 32, "batch: 16\r", "batch: 32\r"),
        ("last", True, "last: x", "last: true"),
        ("batch", 4, "", ""),
        ("last", "x", "", ""),
        ("batch", "4", "batch: 4 ", 'batch: "4" '),
    ],
)
def test_a_yaml_scalar_is_replaced_in_its_line(key: str, value: KnobValue, old: str, new: str) -> None:
    assert YAML.count(old) == 1 or not old
    assert edit_setting(YAML.encode(), "c.yaml:" + key, key, value) == YAML.replace(old, new).encode()


TOML = """\
lr = 0.1  # lr = 3
"quo ted" = 'a'
[train]
batch = 8
nested = {batch = 2, deep.batch = 1}
text = '''
batch = 9
'''
list = [1, 2]
[train.inner]
batch = 16
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("lr", 0.2, "lr = 0.1", "lr = 0.2"),
        ("train.batch", 4, "\nbatch = 8", "\nbatch = 4"),
        ("train.nested.batch", 4, "{batch = 2", "{batch = 4"),
        ("train.nested.deep.batch", 4, "deep.batch = 1", "deep.batch = 4"),
        ("train.inner.batch", True, "batch = 16", "batch = true"),
        ("quo ted", 'b "c"', "'a'", r'"b \"c\""'),
        ("train.batch", 8, "", ""),
    ],
)
def test_a_toml_value_is_replaced_in_place(key: str, value: KnobValue, old: str, new: str) -> None:
    assert TOML.count(old) == 1 or not old
    assert edit_setting(TOML.encode(), "c.toml:" + key, key, value) == TOML.replace(old, new).encode()


JSON = '{\n  "a": {"b": 1, "c": "b"},\n  "b" : 2,\r\n  "s": "\\"b\\": 3",\n  "l": [{"b": 4}]\n}'


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("a.b", 7, '{"b": 1', '{"b": 7'),
        ("b", "x", '"b" : 2', '"b" : "x"'),
        ("s", 1.5, '"\\"b\\": 3"', "1.5"),
        ("b", 2, "", ""),
    ],
)
def test_a_json_value_is_replaced_in_place(key: str, value: KnobValue, old: str, new: str) -> None:
    assert edit_setting(JSON.encode(), "c.json:" + key, key, value) == JSON.replace(old, new).encode()


PYTHON = '''\
"""Settings. batch_size = 3"""
é = "ü"; batch_size = 12  # batch_size = 4
accum: int = 5 * 8
name = (
    "a"
)
def f():
    batch_size = 2
twice = 1
twice = 2
x = y = 3
'''


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("batch_size", 16, "batch_size = 12", "batch_size = 16"),
        ("accum", 40, "5 * 8", "40"),
        ("name", "b", '"a"', "'b'"),
        ("é", True, '"ü"', "True"),
        ("batch_size", 12, "", ""),
    ],
)
def test_a_python_global_is_replaced_in_place(key: str, value: KnobValue, old: str, new: str) -> None:
    assert edit_setting(PYTHON.encode(), "c.py:" + key, key, value) == PYTHON.replace(old, new).encode()


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("c.yaml:train", YAML, "there 0 times"),
        ("c.yaml:nothing", YAML, "there 0 times"),
        ("c.yaml:train.steps.batch", YAML, "there 0 times"),
        ("c.yaml:train.text.batch", YAML, "there 0 times"),
        ("c.yaml:model", YAML, "does not hold a single"),
        ("c.yaml:model.batch", YAML, "there 0 times"),
        ("c.yaml:a", "a: 1\na: 2\n", "there 2 times"),
        ("c.yaml:a", "a: one\n  two\n", "does not hold a single"),
        ("c.yaml:a", "a: &x 1\n", "does not hold a single"),
        ("c.yaml:a", "a: *x\n", "does not hold a single"),
        ("c.toml:train.nothing", TOML, "there is no key"),
        ("c.toml:train.text", TOML, "does not hold a single"),
        ("c.toml:train.list", TOML, "does not hold a single"),
        ("c.toml:a", "a = ", "Invalid value"),
        ("c.json:l.b", JSON, "there is no key"),
        ("c.json:a", JSON, "does not hold a single"),
        ("c.json:a", "{", "Expecting"),
        ("c.py:twice", PYTHON, "assigned 2 times"),
        ("c.py:x", PYTHON, "assigned 0 times"),
        ("c.py:nothing", PYTHON, "assigned 0 times"),
        ("c.py:a", "a = (", "never closed"),
    ],
)
def test_what_can_not_be_set_exactly_is_told(place: str, text: str, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        edit_setting(text.encode(), place, place.partition(":")[2], 77)
    assert said in str(caught.value) and place in str(caught.value) and "\n" not in str(caught.value)


def contract(*knobs: Knob) -> Contract:
    launch = Launch(command="c", memory_limit_bytes=1, timeout_s=1, progress="p", checkpoint="k")
    return Contract(
        name="w", preset="full", launch=launch, editable=("x",), objective=Objective(steps=(6, 7)),
        invariants=Invariants(), knobs=knobs, proof=Proof(), folder="/",
    )  # fmt: skip


def test_all_knobs_are_written_or_none(tmp_path: Path) -> None:
    knobs = (
        Knob(name="a", values=(4, 2), default=4, file="c.yaml:batch"),
        Knob(name="b", values=(8, 2), default=8, file="c.yaml:train.batch"),
        Knob(name="c", values=(12, 1), default=12, global_="s.py:batch_size"),
        Knob(name="d", values=(1, 2), default=1, flag="-d {}"),
    )
    (tmp_path / "c.yaml").write_bytes(YAML.encode())
    (tmp_path / "s.py").write_text(PYTHON)
    apply_file_knobs(contract(*knobs), {"a": 2, "b": 2}, tmp_path)
    assert (tmp_path / "c.yaml").read_bytes().decode() == YAML.replace("batch: 4 ", "batch: 2 ").replace(
        "batch: 8", "batch: 2"
    )
    assert (tmp_path / "s.py").read_text() == PYTHON
    before = (tmp_path / "c.yaml").read_bytes()
    broken = Knob(name="e", values=(1,), default=1, global_="s.py:nothing")
    with pytest.raises(ContractError):
        apply_file_knobs(contract(*knobs, broken), {}, tmp_path)
    assert (tmp_path / "c.yaml").read_bytes() == before


@pytest.mark.parametrize("name", ["missing.py", "link.py", "out/s.py"])
def test_files_that_are_not_the_programs_are_never_written(tmp_path: Path, name: str) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    (outside / "s.py").write_text("a = 1\n")
    (tree / "link.py").symlink_to(outside / "s.py")
    (tree / "out").symlink_to(outside)
    with pytest.raises(ContractError, match="is not a file of the program"):
        apply_file_knobs(contract(Knob(name="k", values=(1, 2), default=1, global_=f"{name}:a")), {"k": 2}, tree)
    assert (outside / "s.py").read_text() == "a = 1\n"


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10),
)


@settings(max_examples=150, deadline=None)
@given(VALUES, VALUES)
def test_a_written_value_is_read_back_as_itself(old: KnobValue, new: KnobValue) -> None:
    document = {"x": {"k": old, "z": 1}, "k": "other"}
    edited = edit_setting(json.dumps(document).encode(), "c.json:x.k", "x.k", new)
    assert repr(json.loads(edited)) == repr({"x": {"k": new, "z": 1}, "k": "other"})
    shown = json.dumps(old, ensure_ascii=False)
    assume("e" not in shown or isinstance(old, str | bool) or "." in shown or "-" in shown)
    toml = f"k = 'other'\n[x]\nk = {shown}\nz = 1\n".encode()
    assert repr(tomllib.loads(edit_setting(toml, "c.toml:x.k", "x.k", new).decode())["x"]) == repr({"k": new, "z": 1})
    code = edit_setting(f"z = 1\nk = {old!r}\n".encode(), "c.py:k", "k", new)
    statement = ast.parse(code).body[1]
    assert isinstance(statement, ast.Assign) and repr(ast.literal_eval(statement.value)) == repr(new)

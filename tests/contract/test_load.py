"""Reading workload.toml: what it means, and that each mistake is one sentence that names its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rsi_tui.contract.load import load_contract
from rsi_tui.errors import ContractError

FULL = r"""
[workload]
name = "dense-single"
upstream = "origin/main"
[launch]
command = "python train.py --steps {steps} --seed {seed} --out {out} {knobs}"
env = {MKL_NUM_THREADS = "2"}
memory_limit = "1.5GiB"
timeout = "2m"
progress = 'step (?P<step>\d+) loss (?P<loss>\S+)'
checkpoint = "{out}/final.pt"
checkpoint_key = "model"
setup = ["make data"]
nodes = 2
link = "400mbit"
[resume]
flag = "--load {state}"
[scope]
editable = ["train.py", "model/**"]
[objective]
kind = "step_time"
steps = [20, 40]
warmup = 5
margin = 0.005
[invariants]
weights = "equivalent"
harmless = ["OMP_NUM_THREADS=1", "--micro-batch 1"]
bf16_twin = "--dtype bf16"
precision = "bf16"
validation = "python evaluate.py --checkpoint {checkpoint} --data {hidden}"
make_hidden = "python make_hidden.py --seed {secret} --out {hidden}"
validation_metric = 'val_loss (?P<value>\S+)'
tokens_per_step = 16384
[[knobs]]
name = "micro_batch"
values = [1, 2, 4, 8]
default = 2
layer = "memory"
flag = "--micro-batch {}"
[[knobs]]
name = "grad_accum"
values = [16, 8, 4, 2]
default = 8
global = "config.py:grad_accum"
[constraints]
rules = ["micro_batch * grad_accum == 16"]
[preset.quick.objective]
steps = [8, 12]
[preset.quick.launch.env]
EXTRA = "1"
[[preset.quick.knobs]]
name = "micro_batch"
values = [2, 4]
default = 2
flag = "--micro-batch {}"
[preset.tiny.proof]
aa_pairs = 3
"""


def write(folder: Path, text: str = FULL) -> Path:
    (folder / "workload.toml").write_text(text)
    return folder


def replaced(old: str, new: str) -> str:
    assert FULL.count(old) >= 1, old
    return FULL.replace(old, new, 1)


def test_everything_in_the_file_arrives_in_the_contract(tmp_path: Path) -> None:
    contract = load_contract(write(tmp_path))
    assert (contract.name, contract.preset, contract.upstream) == ("dense-single", "full", "origin/main")
    assert contract.launch.memory_limit_bytes == 1610612736
    assert contract.launch.timeout_s == 120.0
    assert contract.launch.env == {"MKL_NUM_THREADS": "2"}
    assert contract.launch.setup == ("make data",)
    assert contract.resume.flag == "--load {state}"
    assert contract.editable == ("train.py", "model/**")
    assert contract.objective.steps == (20, 40)
    assert contract.invariants.harmless == ("OMP_NUM_THREADS=1", "--micro-batch 1")
    assert contract.knob("grad_accum").global_ == "config.py:grad_accum"
    assert contract.defaults == {"micro_batch": 2, "grad_accum": 8}
    assert (contract.proof.aa_pairs, contract.proof.max_candidates, contract.proof.bundle) == (20, 60, False)
    assert contract.path == tmp_path.resolve()


def test_folder_and_file_mean_the_same(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_contract(tmp_path / "workload.toml") == load_contract(tmp_path)


def test_a_preset_overrides_deeply_and_replaces_knobs_by_name(tmp_path: Path) -> None:
    quick = load_contract(write(tmp_path), "quick")
    assert quick.objective.steps == (8, 12) and quick.objective.warmup == 5
    assert quick.launch.env == {"MKL_NUM_THREADS": "2", "EXTRA": "1"}
    assert [knob.name for knob in quick.knobs] == ["micro_batch", "grad_accum"]
    assert quick.knob("micro_batch").values == (2, 4) and quick.knob("micro_batch").layer == "launch"
    assert (quick.proof.aa_pairs, quick.proof.max_verifications, quick.proof.bundle) == (8, 4, True)
    assert quick.hash != load_contract(tmp_path).hash


def test_presets_without_a_table_are_the_plain_file_with_their_proof(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_contract(tmp_path, "full") == load_contract(tmp_path)
    tiny = load_contract(tmp_path, "tiny")
    assert (tiny.preset, tiny.proof.aa_pairs, tiny.proof.final_pairs) == ("tiny", 3, 16)
    write(tmp_path, FULL.replace("[preset.tiny.proof]", "[preset.full.objective]\nwarmup = 2\n[preset.tiny.proof]"))
    assert load_contract(tmp_path).objective.warmup == 2
    assert load_contract(tmp_path, "quick").objective.warmup == 5


def test_the_files_own_proof_goes_before_a_presets_defaults(tmp_path: Path) -> None:
    write(tmp_path, FULL.replace("[constraints]", "[proof]\nmax_candidates = 11\n[constraints]"))
    assert [load_contract(tmp_path, p).proof.max_candidates for p in ("full", "quick")] == [11, 11]


def test_an_unknown_preset_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r'no preset "qick"; presets here are full, quick, tiny'):
        load_contract(write(tmp_path), "qick")


KNOB = (
    '[[knobs]]\nname = "micro_batch"\nvalues = [1, 2, 4, 8]\ndefault = 2\nlayer = "memory"\nflag = "--micro-batch {}"'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (replaced("memory_limit", "memory_limt"), '[launch] has no key "memory_limt"; the nearest is "memory_limit"'),
        (replaced("[objective]", "[objectives]"), 'has no section "objectives"; the nearest is "objective"'),
        (replaced("[preset.quick.objective]", "[preset.quick.objektive]"), 'section "preset.quick.objektive"; the nearest is "objective"'),
        (replaced("[preset.quick.objective]\nsteps", "[preset.quick.objective]\nstep"), '[preset.quick.objective] has no key "step"'),
        (replaced('layer = "memory"', 'layers = "memory"'), '[[knobs]] "micro_batch" has no key "layers"; the nearest is "layer"'),
        (replaced('"1.5GiB"', '"lots"'), '[launch] memory_limit must be a size such as "1.5GiB" or "800MB", not \'lots\''),
        (replaced('"2m"', '"soon"'), '[launch] timeout must be a duration such as "120s"'),
        (replaced('"2m"', "0"), "[launch] timeout must be a duration above zero"),
        (replaced("warmup = 5", "warmup = true"), "[objective] warmup must be a whole number of at least 0, not true"),
        (replaced('"step_time"', '"speed"'), '[objective] kind must be "step_time" (only step_time is measured in this version; leave kind out), not'),
        (replaced('"step_time"', '"throughput"'), "leave kind out), not 'throughput'"),
        (replaced('"step_time"', '"time_to_target"'), "leave kind out), not 'time_to_target'"),
        (replaced('"step_time"', '"loss_at_budget"'), "leave kind out), not 'loss_at_budget'"),
        (replaced('timeout = "2m"\n', ""), "[launch] timeout is missing; it must be a duration"),
        (replaced("[scope]\neditable", "[scope]\n# editable"), "[scope] editable is missing"),
        (replaced('["train.py", "model/**"]', "[]"), "[scope] editable must name at least one file"),
        (replaced('"model/**"', '"../model/**"'), "[scope] editable must be relative"),
        (replaced('"model/**"', '"workload.toml"'), "[scope] editable must not open workload.toml"),
        (replaced(r"(?P<step>\d+)", r"(?P<step>\d+"), "[launch] progress must be a regular expression, and this is none"),
        (replaced(r"(?P<loss>\S+)", r"(\S+)"), "[launch] progress must be a regular expression with a group (?P<loss>...)"),
        (replaced("(?P<value>", "("), "[invariants] validation_metric must be a regular expression with a group (?P<value>...)"),
        (replaced("steps = [20, 40]", "steps = [40, 20]"), "[objective] steps must have the lower end first"),
        (replaced("steps = [20, 40]", "steps = [20, 20]"), "[objective] steps must be a range of at least two lengths"),
        (replaced("steps = [20, 40]", "steps = [5, 40]"), "[objective] steps must begin above warmup (5), and 5 does not"),
        (replaced("steps = [20, 40]", "steps = 20"), "[objective] steps must be a range of two whole numbers"),
        (replaced(" --seed {seed}", ""), "[launch] command must contain {seed}"),
        (replaced("{out} {knobs}", "{out}"), "[launch] command must contain {knobs}"),
        (replaced("{out} {knobs}", "{out}{knobs}"), "[launch] command must have {knobs} as a word of its own"),
        (replaced("{knobs}", "{knobs} {lr}"), "[launch] command has the placeholder {lr}, but can have only these"),
        (replaced("{knobs}", "{knobs} | tee log"), '[launch] command is run without a shell and must do without "|"'),
        (replaced("python train.py", "python 'train.py"), "[launch] command must be words that can be split"),
        (replaced('"{out}/final.pt"', '"final.pt"'), "[launch] checkpoint must contain {out}"),
        (replaced('"400mbit"', '"fast"'), "[launch] link must be a rate"),
        (replaced("nodes = 2", "nodes = 1"), "[launch] link joins nodes, and there is one"),
        (replaced("nodes = 2", "procs_per_node = 4\nnodes = 2"), "must start the processes of a node"),
        (replaced("python train.py", "torchrun train.py"), "must tell torchrun of the nodes"),
        (replaced("python train.py", "torchrun --nodes {machines} train.py"), "can have only these"),
        (replaced('setup = ["make data"]', 'setup = ["make", ""]'), "[launch] setup must not be empty (command 2)"),
        (replaced("--load {state}", "--load"), "[resume] flag must contain {state}"),
        (replaced('"OMP_NUM_THREADS=1"', "\"--x 'y\""), "[invariants] harmless must be words that can be split (no closing quotation) (entry 1)"),
        (replaced('"OMP_NUM_THREADS=1"', '" "'), "[invariants] harmless must not be empty (entry 1)"),
        (replaced("make_hidden =", "# make_hidden ="), "[invariants] make_hidden must be given when validation reads {hidden}"),
        (replaced("validation =", "# validation ="), "[invariants] validation must be given when make_hidden is"),
        (replaced("default = 2", "default = 3"), '[[knobs]] "micro_batch" default must be one of its values, and 3 is not'),
        (replaced("default = 2", "default = 2.0"), '[[knobs]] "micro_batch" default must be one of its values, and 2.0 is not'),
        (replaced("values = [1, 2, 4, 8]", "values = [1, 2, 2]"), "values must be a list in which no value stands twice"),
        (replaced("values = [1, 2, 4, 8]", "values = []"), "values must be a list of at least one value"),
        (replaced("values = [1, 2, 4, 8]", "values = [1, 2, nan]"), "values must be a text, a finite number, true or false"),
        (replaced('flag = "--micro-batch {}"', 'flag = "--micro-batch {}"\nenv = "MB"'), "the only one of flag, env, file, global and preload, not flag and env"),
        (replaced('flag = "--micro-batch {}"\n', ""), "the only one of flag, env, file, global and preload, and there is none"),
        (replaced("--micro-batch {}", "--micro-batch"), 'flag must have one {} for the value'),
        (replaced('flag = "--micro-batch {}"', 'env = "LD_PRELOAD"'), "env must not be LD_PRELOAD"),
        (replaced('flag = "--micro-batch {}"', 'env = "CUDA_VISIBLE_DEVICES"'), 'affects must say "hardware"'),
        (replaced('flag = "--micro-batch {}"', 'preload = "./evil.so"'), "preload must be the name of a system library"),
        (replaced('flag = "--micro-batch {}"', 'file = "../c.yaml:a"'), "file must be a yaml, toml or json file and a key"),
        (replaced("config.py:grad_accum", "config.py"), "global must be a Python file and a name"),
        (replaced(KNOB, KNOB + "\n" + KNOB), '[[knobs]] name must be unique, and "micro_batch" stands there twice'),
        (replaced("* grad_accum", "* grad_acum"), "[constraints] rules must hold names of knobs"),
        (replaced("== 16", "== 17"), '[constraints] rules must hold for the defaults of the knobs, and "micro_batch * grad_accum == 17"'),
        (replaced('"micro_batch * grad_accum == 16"', '"__import__(1)"'), "[constraints] rules must hold an expression of"),
        (replaced('name = "dense-single"', 'name = "a b"'), "[workload] name must be letters"),
        (replaced("[workload]", "[workload"), "is not valid TOML"),
        (replaced("[launch]", "launch = 3\n[x]"), "launch"),
        (FULL + "\n[proof]\nfinal_pairs = 7\n", "[proof] final_pairs must be a whole number of at least 8"),
        (replaced("[workload]", "preset = 1\n[workload]"), ""),
    ],
)  # fmt: skip
def test_each_mistake_is_one_sentence_that_names_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, text))
    message = str(caught.value)
    assert said in message
    assert str(tmp_path / "workload.toml") in message and "\n" not in message
    assert message.endswith(".") and caught.value.exit_code == 2


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="line 3"):
        load_contract(write(tmp_path, '[workload]\nname = "a"\nname name\n'))


def test_a_mistake_in_a_preset_is_told_there(tmp_path: Path) -> None:
    write(tmp_path, replaced("steps = [8, 12]", "steps = [3, 12]"))
    assert load_contract(tmp_path).objective.steps == (20, 40)
    with pytest.raises(ContractError, match=r"\[preset.quick.objective\] steps must begin above warmup"):
        load_contract(tmp_path, "quick")
    write(tmp_path, FULL.replace("values = [2, 4]\ndefault = 2", "values = [2, 4]\ndefault = 8"))
    with pytest.raises(ContractError, match=r'\[\[preset.quick.knobs\]\] "micro_batch" default'):
        load_contract(tmp_path, "quick")


@pytest.mark.parametrize(
    ("name", "said"),
    [("nothing", "does not exist"), ("other.toml", "is not a folder"), (".", "workload-toml.md"), ("latin", "not UTF-8")],
)
def test_a_file_that_is_not_there_is_told(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "other.toml").write_text(FULL)
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "workload.toml").write_bytes(b'[workload]\nname = "\xe9"\n')
    with pytest.raises(ContractError, match=said):
        load_contract(tmp_path / name)


def test_the_smallest_file_is_enough(tmp_path: Path) -> None:
    contract = load_contract(write(tmp_path, """
        [workload]
        name = "w"
        [launch]
        command = "python t.py --n {steps} --s {seed} --o {out} {knobs}"
        memory_limit = 1000000
        timeout = 10
        progress = '(?P<step>.) (?P<loss>.)'
        checkpoint = "{out}/c.pt"
        [scope]
        editable = ["t.py"]
        [objective]
        steps = [6, 7]
    """))  # fmt: skip
    assert contract.objective.amortise_over == 20_000 and contract.knobs == ()


def test_the_bundled_workloads_are_valid() -> None:
    root = Path(__file__).parents[2] / "workloads"
    files = sorted(root.glob("*/workload.toml"))
    assert files
    for file in files:
        for preset in ("full", "quick"):
            load_contract(file, preset)


def test_the_reference_explains_every_key() -> None:
    from rsi_tui.contract.schema import KNOB, SECTIONS

    page = (Path(__file__).parents[2] / "docs" / "workload-toml.md").read_text()
    for section, keys in SECTIONS.items():
        assert f"## [{section}]" in page
        for key in keys:
            assert f"`{key}`" in page, f"[{section}] {key}"
    for key in KNOB:
        assert f"`{key}`" in page, key


def test_the_examples_of_the_reference_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "workload-toml.md").read_text()
    examples = [block.split("```")[0] for block in page.split("```toml\n")[1:]]
    whole = [block for block in examples if "[workload]" in block]
    assert whole
    for block in whole:
        load_contract(write(tmp_path, block))
        load_contract(tmp_path, "quick")


# --- properties -------------------------------------------------------------------------------

JUNK = st.recursive(
    st.one_of(st.booleans(), st.integers(-3, 40), st.floats(), st.text(max_size=6), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
PLACES = [(section, key) for section, table in tomllib.loads(FULL).items() if isinstance(table, dict) for key in table]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PLACES), JUNK)
@example(("preset", "quick"), {"\n": None})
@example(("preset", "quick"), {"knobs": [{"name": "a\nb"}]})
@example(("preset", "a\nb"), {"knobs": 3})
def test_any_value_anywhere_is_read_or_told_never_a_crash(place: tuple[str, str], junk: object) -> None:
    from rsi_tui.contract import load

    document = tomllib.loads(FULL)
    document[place[0]][place[1]] = junk
    file = Path("/nowhere/workload.toml")
    presets = document.pop("preset")
    if not isinstance(presets, dict) or not all(isinstance(table, dict) for table in presets.values()):
        return
    try:
        load._check_keys(file, document, "")
        for name, table in presets.items():
            load._check_keys(file, table, f"preset.{name}.")
        load.checked(file, load._merge(document, presets.get("quick", {})), "quick", presets.get("quick", {}))
    except ContractError as error:
        assert str(error).startswith("/nowhere/workload.toml: ") and "\n" not in str(error)

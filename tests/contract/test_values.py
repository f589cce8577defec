"""Units, rules and scope: small languages, each held by tables and properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.contract.rules import parse_rule, violations
from rsi_tui.contract.scope import glob_match, in_scope
from rsi_tui.contract.units import format_bytes, format_seconds, parse_bytes, parse_seconds
from rsi_tui.errors import ContractError


@pytest.mark.parametrize(
    ("text", "count"),
    [("1.5GiB", 1610612736), ("800MB", 800_000_000), ("4096", 4096), ("512 KiB", 524288), ("2G", 2 * 10**9), ("7B", 7)],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1 GiBB", "1e9", "1.GiB", "one", "1GiB 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size such as"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("120s", 120), ("2m", 120), ("1.5h", 5400), ("250ms", 0.25), ("1d", 86400)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "120", "s", "-1s", "1 hour", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration such as"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "0.999 KiB"), (1610612736, "1.5 GiB"), (-2048, "-2 KiB"), (999, "999 B"), (3 * 2**40, "3 TiB")],
)
def test_sizes_are_shown(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.0123, "12.3 ms"), (0.0000042, "4.2 µs"), (1.234, "1.23 s"), (59.96, "1 min"), (75, "1 min 15 s"),
        (3599.7, "1 h"), (5400, "1 h 30 min"), (-75, "-1 min 15 s"), (0.99999, "1 s"),
    ],
)  # fmt: skip
def test_durations_are_shown(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(0, 2**45))
def test_a_shown_size_is_near_what_it_shows(count: int) -> None:
    shown = format_bytes(count)
    assert "e" not in shown
    assert abs(parse_bytes(shown) - count) <= 0.006 * count


@given(st.floats(1e-8, 1e7))
def test_a_shown_duration_never_uses_an_exponent_or_sixty_of_anything(seconds: float) -> None:
    shown = format_seconds(seconds)
    assert "e" not in shown
    assert not any(f" {sixty} " in f" {shown} " for sixty in ("60 s", "60 min"))


# --- rules ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    folder = tmp_path_factory.mktemp("w")
    (folder / "workload.toml").write_text(r'''
        workload = {name = "w"}
        scope = {editable = ["train.py", "model/**", "conf/*.yaml", "**/kernels/"]}
        objective = {steps = [6, 7]}
        constraints = {rules = ["a * b == 16", "mode != 'fast' or a > 2", "0 < a <= 8", "on in (true_, False) or a % 2"]}
        [launch]
        command = "python t {steps} {seed} {out} {knobs}"
        memory_limit = 1
        timeout = 1
        progress = '(?P<step>.)(?P<loss>.)'
        checkpoint = "{out}"
        [[knobs]]
        name = "a"
        values = [1, 2, 4, 8]
        default = 2
        flag = "-a {}"
        [[knobs]]
        name = "b"
        values = [16, 8, 4, 2]
        default = 8
        flag = "-b {}"
        [[knobs]]
        name = "mode"
        values = ["slow", "fast"]
        default = "slow"
        flag = "-m {}"
        [[knobs]]
        name = "on"
        values = [true, false]
        default = true
        flag = "-o"
        [[knobs]]
        name = "true_"
        values = [true]
        default = true
        flag = "-t"
    ''')  # fmt: skip
    return load_contract(folder)


def test_broken_rules_are_named(contract: Contract) -> None:
    assert violations(contract, {}) == ()
    assert violations(contract, {"a": 4, "b": 4}) == ()
    assert violations(contract, {"a": 4}) == ("a * b == 16",)
    assert violations(contract, {"mode": "fast"}) == ("mode != 'fast' or a > 2",)


def test_a_rule_without_a_value_is_told(contract: Contract) -> None:
    odd = contract.model_copy(update={"rules": ("a // (b - b)",)})
    with pytest.raises(ContractError, match="has no value for these knobs"):
        violations(odd, {})


@pytest.mark.parametrize(
    "rule",
    ["", "a =", "a; b", "f(a)", "a.b", "a[0]", "a ** 9", "lambda: a", "[x for x in a]", "c", "a << 3", "f'{a}'", "...",
     "None", "a if b else a", "a is b", "{1}", "(a := 1)", "b'x' == a", "1j", "*a", "(" * 500],
)  # fmt: skip
def test_only_plain_expressions_over_knobs_are_rules(rule: str) -> None:
    with pytest.raises(ValueError, match=r"names of knobs|an expression of"):
        parse_rule(rule, {"a", "b"})


@given(
    st.integers(-5, 5),
    st.integers(-5, 5),
    st.sampled_from(["a + b", "a and b", "a or b", "not a", "-a < b", "a - b == 1"]),
)
def test_rules_mean_what_python_means(a: int, b: int, rule: str) -> None:
    wrapped = f"({rule}) == ({eval(rule, {}, {'a': a, 'b': b})!r})"
    folder = Contract.model_validate(
        {
            "name": "w", "preset": "full", "editable": ("t",), "folder": "/", "invariants": {}, "proof": {},
            "launch": {"command": "c", "memory_limit_bytes": 1, "timeout_s": 1, "progress": "p", "checkpoint": "c"},
            "objective": {"steps": (6, 7)}, "rules": (wrapped,),
            "knobs": [{"name": n, "values": (v,), "default": v, "flag": "x {}"} for n, v in (("a", a), ("b", b))],
        }
    )  # fmt: skip
    assert violations(folder, {}) == ()


# --- scope ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("train.py", True),
        ("Train.py", False),
        ("sub/train.py", False),
        ("model/gpt.py", True),
        ("model/deep/er.py", True),
        ("model", False),
        ("modelx/a.py", False),
        ("conf/a.yaml", True),
        ("conf/sub/a.yaml", False),
        ("x/kernels/a.cu", True),
        ("kernels/a.cu", True),
        ("model/.git/config", False),
        ("model/.GIT/config", False),
        ("model/.gitattributes", False),
        ("model/../evaluate.py", False),
        ("model//a.py", False),
        ("/train.py", False),
        ("./train.py", False),
        ("", False),
        ("workload.toml", False),
        ("Workload.toml", False),
        ("model/a\nb.py", True),
        ("model/a\0b.py", False),
    ],
)
def test_the_scope_is_what_the_patterns_open_and_never_more(contract: Contract, path: str, inside: bool) -> None:
    assert in_scope(contract, path) is inside


def test_even_everything_is_not_the_contract_or_git() -> None:
    contract = Contract.model_construct(editable=("**",))
    assert in_scope(contract, "any/thing.py")
    assert not any(in_scope(contract, path) for path in ("workload.toml", ".git/HEAD", "a/.gitmodules", "../x"))


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True), ("*.py", "a/b.py", False), ("**/*.py", "a.py", True), ("**/*.py", "a/b/c.py", True),
        ("a?c", "abc", True), ("a?c", "a/c", False), ("[ab].py", "a.py", True), ("[!ab].py", "a.py", False),
        ("[!ab].py", "c.py", True), ("a.py", "axpy", False), ("./a.py", "a.py", True), ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True), ("a+(b)", "a+(b)", True), ("[", "[", True),
    ],
)  # fmt: skip
def test_patterns_match_whole_paths(pattern: str, path: str, matches: bool) -> None:
    assert glob_match(pattern, path) is matches


@given(st.text(st.characters(exclude_characters="*?[]/\0"), min_size=1, max_size=10), st.text(max_size=10))
def test_a_plain_pattern_matches_only_itself(pattern: str, other: str) -> None:
    assert glob_match(pattern, pattern.removeprefix("./"))
    assert glob_match(pattern, other) == (pattern.removeprefix("./") == other)


def test_nothing_is_written_by_reading(contract: Contract) -> None:
    assert [path.name for path in Path(contract.folder).iterdir()] == ["workload.toml"]

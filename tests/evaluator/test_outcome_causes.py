"""Root causes: one output a kind, in the formats of the programs that print them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rsi_tui.evaluator.explaining import explain_text, parse_size
from rsi_tui.evaluator.failure_rules import CAUSES, RULES
from tests.evaluator.failure_outputs import HEALTHY, MIXED, OUTPUTS
from tests.evaluator.failure_variants import VARIANTS

SHARED = Path(__file__).parents[3] / "shared" / "cases" / "failures.jsonl"


@pytest.mark.parametrize("rule, cause, text, facts", OUTPUTS, ids=[f"{r}-{i}" for i, (r, *_) in enumerate(OUTPUTS)])
def test_each_kind_of_output_is_explained_by_its_rule(rule: str, cause: str, text: str, facts: dict[str, float | str]) -> None:
    found = explain_text(text)
    assert found.cause == cause
    assert found.rule == rule
    assert {name: found.facts.get(name) for name in facts} == facts
    assert found.root_cause and found.advice and found.evidence


@pytest.mark.parametrize("why, cause, text, facts", VARIANTS, ids=[why for why, *_ in VARIANTS])
def test_other_versions_launchers_and_wrappers_are_explained(why: str, cause: str, text: str, facts: dict[str, float | str]) -> None:
    found = explain_text(text)
    assert found.cause == cause
    assert {name: found.facts.get(name) for name in facts} == facts
    assert found.root_cause and found.advice and found.evidence


def test_every_rule_has_an_example_and_a_known_class() -> None:
    assert {rule.name for rule in RULES} == {name for name, *_ in OUTPUTS}
    assert {rule.cause for rule in RULES} <= set(CAUSES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("why, cause, text", MIXED, ids=[why for why, *_ in MIXED])
def test_the_root_cause_outranks_its_consequences(why: str, cause: str, text: str) -> None:
    assert explain_text(text).cause == cause


@pytest.mark.parametrize("line", HEALTHY)
def test_what_a_healthy_run_says_hides_no_cause(line: str) -> None:
    trained = "\n".join(f"step {i} loss {3 - i / 10:.1f}" for i in range(8))
    assert explain_text(f"{line}\nTraceback (most recent call last):\n  File \"t.py\", line 3, in f\nKeyError: 'idx'").cause == "code_error"
    assert explain_text(f"{line}\n{trained}\nrun.sh: line 3:  77 Killed                  python t.py").cause == "host_oom_killed"
    assert explain_text(f"{line}\n{trained}\nChildFailedError: t.py FAILED").cause == "unknown"


def test_what_a_run_that_ends_well_survived_is_no_cause() -> None:
    trained = "\n".join(f"step {i} loss {3 - i / 10:.1f}" for i in range(8))
    for said in ("requests.exceptions.ConnectionError: api.wandb.ai", "torch.OutOfMemoryError: CUDA out of memory.", "ERROR could not read record 8"):
        assert explain_text(f"{said}\n{trained}\nTraining finished in 88 s").cause == "unknown"
        assert explain_text(f"{said}\n{trained}\n{{'train_runtime': 88.1, 'train_loss': 2.4, 'epoch': 1.0}}").cause == "unknown"


def test_unknown_stays_unknown_and_shows_what_was_looked_at() -> None:
    found = explain_text("hello\nthe end of it")
    assert (found.cause, found.certain) == ("unknown", False)
    assert "2 lines" in found.root_cause and found.evidence == ("hello", "the end of it")


def test_a_loss_that_climbs_and_stays_there_is_a_divergence() -> None:
    climbing = "\n".join(f"iter {i}: train loss {loss}" for i, loss in enumerate([2.0, 1.5, 1.2, 1.1, 5.0, 6.0, 6.5, 7.0]))
    assert explain_text(climbing).cause == "nan_or_divergence"
    spiky = "\n".join(f"iter {i}: train loss {loss}" for i, loss in enumerate([2.0, 1.5, 9.0, 1.1, 1.0, 0.9, 0.9, 0.8]))
    assert explain_text(spiky).cause == "hang_or_timeout"


def test_a_traceback_is_shown_with_the_line_that_raised() -> None:
    text = 'Traceback (most recent call last):\n  File "t.py", line 7, in f\n    y = a.b\nAttributeError: no b'
    assert explain_text(text).evidence == ('File "t.py", line 7, in f', "y = a.b", "AttributeError: no b")


@pytest.mark.parametrize(
    "text, size", [("1.50 GiB", 3 * 2**29), ("12 bytes", 12), ("4096", 4096), ("2 KB", 2048), ("big", None), ("1..2 GiB", None)]
)
def test_sizes_are_read_with_their_unit(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_a_long_log_is_read_in_seconds() -> None:
    lines = [f"step {i} loss {8 - i * 1e-5:.4f} lr 3.0e-04 tokens/s 81234.5 memory 17.2 GiB" for i in range(100_000)]
    before = time.process_time()
    found = explain_text("\n".join([*lines, "OSError: [Errno 28] No space left on device"]))
    assert found.cause == "disk_full"
    assert time.process_time() - before < 8


@pytest.mark.skipif(not SHARED.exists(), reason="the shared collection of failures is not here")
def test_real_failures_are_classified() -> None:
    cases = [json.loads(line) for line in SHARED.read_text().splitlines()]
    wrong = []
    for case in cases:
        found = explain_text(case["text"])
        if found.cause not in (case["class"], *case.get("also_fair", ())):
            wrong.append((case["id"], case["class"], found.cause))
        for name in ("requested_bytes", "free_bytes", "total_bytes", "allocated_bytes"):
            if name in case["facts"]:
                assert found.facts.get(name) == pytest.approx(case["facts"][name], rel=0.01), case["id"]
    assert len(wrong) <= 0.05 * len(cases), wrong


def test_what_torch_says_of_its_graph_is_no_setting_that_is_refused() -> None:
    said = (
        "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they have "
        "already been freed). Specify retain_graph=True if you need to backward through the graph a second time."
    )
    assert explain_text(said).cause == "code_error"

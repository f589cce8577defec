"""Logs as they lie on disk: large, compressed, several, or no logs at all."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsi_tui.errors import UsageError
from rsi_tui.evaluator.explaining import explain, explain_text
from rsi_tui.evaluator.failure_rules import RULES
from rsi_tui.evaluator.failure_rules.literals import strings_of, words_of
from rsi_tui.evaluator.log_files import explain_logs, when
from rsi_tui.evaluator.scanning import CHUNK, Scanner
from tests.evaluator.failure_outputs import OUTPUTS
from tests.evaluator.failure_variants import VARIANTS

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.50 GiB of which 1.00 GiB is free."
WATCHDOG = "[E ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.1.1]:40112"


def write(folder: Path, **logs: str) -> list[str]:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    return [str(folder / f"{name}.log") for name in logs]


def test_the_rank_that_failed_first_with_a_cause_comes_first(tmp_path: Path) -> None:
    logs = explain_logs(write(tmp_path, rank_0=WATCHDOG.format(0), rank_1=PEER, rank_2=f"step 3\n{OOM}", rank_3="step 3 loss 2.0"))
    assert [(log.rank, log.role) for log in logs] == [(2, "cause"), (0, "symptom"), (1, "consequence"), (3, "silent")]
    assert logs[0].explanation.cause == "gpu_oom"


def test_times_decide_between_two_causes(tmp_path: Path) -> None:
    late, early = f"2026-03-01 10:00:09,100 start\n{OOM}", "2026-03-01 10:00:02 ERROR: KeyError: 'x'\nKeyError: 'x'"
    assert explain_logs(write(tmp_path, rank_0=late, rank_1=early))[0].rank == 1
    assert explain_logs(write(tmp_path, rank_0=OOM, rank_1=early))[0].rank == 0, "no time on one side: the tier decides"


def test_a_folder_of_torchelastic_is_one_run_and_its_last_attempt_counts(tmp_path: Path) -> None:
    for place, text in {"attempt_0/0/stderr.log": OOM, "attempt_1/0/stderr.log": PEER, "attempt_1/1/stderr.log": "NameError: name 'a' is not defined"}.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    first = explain_logs([str(tmp_path)])[0]
    assert (first.rank, first.attempt, first.explanation.cause) == (1, 1, "code_error")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_read_once_compressed_or_not(pack: Callable[[bytes], bytes]) -> None:
    read, write_end = os.pipe()
    os.write(write_end, pack(OOM.encode()))
    os.close(write_end)
    assert explain_logs([f"/dev/fd/{read}"])[0].explanation.cause == "gpu_oom"
    os.close(read)


@pytest.mark.parametrize("hole", [0, 4096, 3 * CHUNK])
def test_holes_of_nuls_are_looked_through(tmp_path: Path, hole: int) -> None:
    torn = tmp_path / "torn.log"
    torn.write_bytes(b"\0" * hole + b"\nstep 1\n" + b"\0" * hole + b"\nKey\0Error: 'x'\n")
    assert explain_logs([str(torn)])[0].explanation.cause == "code_error"
    torn.write_bytes(b"\0" * (hole + 1))
    with pytest.raises(UsageError, match="binary"):
        explain_logs([str(torn)])


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(OOM.encode()))
    assert explain_logs([str(packed)])[0].explanation.cause == "gpu_oom"
    packed.write_bytes(gzip.compress(OOM.encode() * 999)[:-20])
    with pytest.raises(UsageError, match="damaged gzip"):
        explain_logs([str(packed)])


def test_a_log_redirected_by_a_windows_shell_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM, encoding="utf-16")
    assert explain_logs([str(tmp_path / "a.log")])[0].explanation.cause == "gpu_oom"


@pytest.mark.parametrize("content, said", [(b"", "is empty"), (b"\x7fELF\0\0\0" * 99, "binary"), (None, "does not exist")])
def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        explain_logs([str(path)])


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without logs"):
        explain_logs([str(tmp_path)])


def test_line_numbers_are_those_of_an_editor() -> None:
    text = "a\r\n\x1b[1mb\x1b[0m\r 10%|#| 1/10\r 20%|##| 2/10\n\nNameError: name 'q' is not defined\n"
    assert explain_text(text).numbers == (4,)


@pytest.mark.parametrize("size", [1, 7, 100, CHUNK])
def test_where_the_stream_is_cut_does_not_matter(size: int) -> None:
    text = "step 1 loss 2.0\r\n" * 40 + f"\x1b[31m{OOM}\x1b[0m\r\n" + "a\rb\n" * 3
    scanner, data = Scanner(), text.encode()
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    found = explain(scanner.finish())
    assert (found.cause, found.numbers) == ("gpu_oom", (41,))


def test_a_message_within_a_line_of_megabytes_is_found() -> None:
    assert explain_text("x y, " * 300_000 + OOM + " z 1, " * 300_000).cause == "gpu_oom"


def test_figures_that_a_rule_reads_are_not_taken_for_the_same_shape() -> None:
    quiet = "\n".join(f"worker {n} finished with exit code: 0" for n in range(300))
    assert explain_text(f"{quiet}\nworker 300 finished with exit code: 137\n").cause == "host_oom_killed"


def test_what_a_warning_says_is_no_cause() -> None:
    warned = "WARNING:root:No module named 'apex'; going on without\nUserWarning: flash_attn is not installed"
    assert explain_text(f"{warned}\nKeyError: 'labels'").cause == "code_error"


def test_the_gate_of_words_stops_no_line_that_a_rule_matches() -> None:
    """For every example: each rule that matches a line of it names a string that the line holds."""
    for rule in RULES:
        assert strings_of(rule.pattern) and min(len(word) for word in words_of(rule.pattern)) >= 3, rule.name
        for line in "\n".join(text for *_, text, _ in (*OUTPUTS, *VARIANTS)).split("\n"):
            if re.search(rule.pattern, line):
                assert any(string in line.lower() for string in strings_of(rule.pattern)), (rule.name, line)


@given(st.text(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_text_is_explained_without_an_error(text: str) -> None:
    found = explain_text(text)
    assert found.root_cause and found.advice and len(found.evidence) == len(found.numbers)


@pytest.mark.parametrize("line, kind", [("2026-03-01T10:00:00Z x", "date"), ("E0301 10:00:00.123456 7 a.py:1] x", "glog"), ("2026-13-77 10:00:00", None), ("x", None)])
def test_timestamps_are_read_where_they_are_real(line: str, kind: str | None) -> None:
    found = when([line])
    assert (found[0] if found else None) == kind


def test_a_bar_that_redraws_one_line_is_not_remembered_whole() -> None:
    bar = b"\r 45%|####      | 450/1000 [00:10<00:12, 42.1it/s, loss=2.31]"
    scanner = Scanner()
    scanner.feed(bar * 200_000 + b"\n")
    assert 0 < len(scanner.finish().losses) < 100_000


@pytest.mark.parametrize("line", [
    " iteration {0}/ 90000 | elapsed time per iteration (ms): 42.{0} | grad norm: 1.{0} | number of skipped iterations: 0 | number of nan iterations: 0 |",
    "2026-01-01 10:00:00,{0} - runner - INFO - Epoch [1][{0}/742] lr: 5.0e-05, eta: 2:15:01, data_time: 0.1, memory: {0}, loss: 1.{0}",
    "step {0} val_error 0.{0} exit_rate 0.1 dtype 16",
])  # fmt: skip
def test_a_cause_in_the_middle_of_a_long_run_is_read(line: str) -> None:
    after = "\n".join(f"frame #{i}: <unknown function> + 0x{i:x} (0x7f{i:08x} in libtorch.so)" for i in range(9000))
    found = explain_text("\n".join([*(line.format(i * 7919) for i in range(20_000)), OOM, after]))
    assert (found.cause, found.numbers[-1]) == ("gpu_oom", 20_001)

"""Progress lines: what is read, what is timed, what is found out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.evaluator import progress as p
from rsi_tui.evaluator.progress import Progress, StepMark, check, plain, read_progress, timings
from rsi_tui.launch.spec import Line

PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def marks(*stamps: float, first: int = 1, loss: float = 2.0) -> Progress:
    return Progress(tuple(StepMark(first + i, at, loss) for i, at in enumerate(stamps)))


def steady(steps: int, step_s: float = 0.5, start: float = 3.0) -> Progress:
    """Arrivals that vary by a few per cent, as real ones do."""
    return marks(*(start + step_s * (i + 0.02 * math.sin(i)) for i in range(steps)))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("step 3 loss 2.5", [(3, 2.5)]),
        ("\x1b[32mstep 3\x1b[0m loss \x1b[1m2.5\x1b[0m", [(3, 2.5)]),
        ("\x1b]0;title\x07step 3 loss 2.5", [(3, 2.5)]),
        ("10%|#   |\rstep 3 loss 2.5\rstep 4 loss 2.4", [(3, 2.5), (4, 2.4)]),
        ("[rank0] step 3 loss 2.5, lr 1e-3", [(3, 2.5)]),
        ("步 step 3 loss 2.5 🚀", [(3, 2.5)]),
        ("step x loss 2.5", []),
        ("loss 2.5", []),
        ("", []),
    ],
)
def test_a_line_is_read_through_colours_and_carriage_returns(text: str, expected: list[tuple[int, float]]) -> None:
    read = read_progress([Line(1.0, text)], PATTERN)
    assert [(mark.step, mark.loss) for mark in read.steps] == expected


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "oops", "--", "1.2.3"])
def test_a_loss_that_is_no_finite_number_is_never_a_final_loss(text: str) -> None:
    read = read_progress([Line(1.0, "step 1 loss 2.0"), Line(2.0, f"step 2 loss {text}")], PATTERN)
    assert len(read.steps) == 2 and read.final_loss is None
    assert p.FLAG_LOSS in check(read, 3.0, 2)


@given(st.lists(st.text(max_size=60), max_size=20))
def test_no_output_breaks_the_reader(texts: list[str]) -> None:
    read = read_progress([Line(float(i), text) for i, text in enumerate(texts)], PATTERN)
    check(read, 100.0, 5)
    assert all("\x1b" not in plain(text) for text in texts)


def test_time_after_warm_up_and_what_start_up_and_tear_down_cost() -> None:
    found = timings(marks(11.0, 12.0, *(13.0 + 0.5 * i for i in range(1, 9))), 20.0, 2, 10, 100)
    assert found is not None
    assert found.step_s == pytest.approx((17.0 - 12.0) / 8)
    assert found.startup_s == pytest.approx(12.0 - 2 * found.step_s)
    assert found.teardown_s == pytest.approx(3.0)
    assert found.score_s == pytest.approx(found.step_s + (found.startup_s + found.teardown_s) / 100)


@given(st.integers(2, 40), st.integers(0, 5), st.floats(0.001, 10), st.floats(0.0, 50), st.floats(0.0, 5))
def test_the_parts_add_up_to_the_wall_time(extra: int, warmup: int, step_s: float, before: float, after: float) -> None:
    steps = max(1, warmup) + extra
    wall_s = before + steps * step_s + after
    found = timings(marks(*(before + (i + 1) * step_s for i in range(steps))), wall_s, warmup, steps, 20_000)
    assert found is not None
    assert found.startup_s >= 0 and found.teardown_s >= 0
    assert found.startup_s + steps * found.step_s + found.teardown_s == pytest.approx(wall_s, rel=1e-6)


def test_an_honest_run_has_no_flags() -> None:
    assert check(steady(20), 14.0, 20) == ()


@pytest.mark.parametrize(
    "progress, wall_s, steps, flag",
    [
        (steady(21), 14.0, 20, p.FLAG_EXTRA),
        (steady(19), 14.0, 20, p.FLAG_MISSING),
        (Progress((*steady(10).steps, StepMark(5, 9.0, 1.0))), 14.0, 11, p.FLAG_DUPLICATE),
        (Progress(tuple(StepMark(s, float(i), 1.0) for i, s in enumerate([1, 3, 2, 4]))), 5.0, 4, p.FLAG_ORDER),
        (Progress(tuple(StepMark(s, float(i), 1.0) for i, s in enumerate([1, 2, 4, 5]))), 5.0, 4, p.FLAG_GAP),
        (steady(20), 8.0, 20, p.FLAG_OUTSIDE),
        (marks(*(9.0 + i * 1e-6 for i in range(20))), 9.1, 20, p.FLAG_BUFFERED),
        (marks(*(float(i // 5) + (i % 5) * 1e-5 for i in range(20))), 5.0, 20, p.FLAG_BUFFERED),
    ],
    ids=["extra", "missing", "twice", "order", "gap", "outside", "all at once", "in bunches"],
)
def test_progress_that_does_not_fit_is_flagged_and_never_timed(
    progress: Progress, wall_s: float, steps: int, flag: str
) -> None:
    assert flag in check(progress, wall_s, steps)
    assert timings(progress, wall_s, 3, steps, 20_000) is None


def test_long_silence_before_or_after_the_work_is_flagged_and_charged() -> None:
    late = timings(steady(20, start=60.0), 71.0, 3, 20, 100)
    assert late is not None and p.FLAG_LATE_START in late.flags and late.startup_s > 58
    slow_exit = timings(steady(20), 40.0, 3, 20, 100)
    assert slow_exit is not None and p.FLAG_LATE_EXIT in slow_exit.flags and slow_exit.teardown_s > 26


def test_one_slow_step_is_no_buffer() -> None:
    stamps = [3.0 + 0.1 * i + (4.0 if i >= 10 else 0.0) for i in range(20)]
    assert p.FLAG_BUFFERED not in check(marks(*stamps), 9.5, 20)


@pytest.mark.parametrize("steps, warmup", [(0, 3), (1, 0), (3, 3), (2, 5)])
def test_a_run_not_longer_than_its_warm_up_has_no_time(steps: int, warmup: int) -> None:
    assert timings(steady(steps), 9.0, warmup, steps, 20_000) is None

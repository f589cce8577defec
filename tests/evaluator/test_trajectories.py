"""What a run printed of each step is compared with what the reference printed, beyond rounding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.evaluator.trajectories import (
    FORGEABLE,
    POINTS,
    ROUNDING_FACTOR,
    Trajectory,
    calibrate_trajectories,
    difference,
    groups,
    judge_trajectories,
    read_trajectory,
)
from rsi_tui.journal.facts import BandFacts, InvariantFacts
from rsi_tui.launch.spec import Line

PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)(?: grad_norm (?P<grad_norm>\S+))?"
LOSSES = [8.3 * math.exp(-step / 60) for step in range(40)]
Print = Callable[[float], str]


def printed(values: Sequence[float], show: Print = "{:.4f}".format, norm: Print = "{:.3f}".format) -> Trajectory:
    """A run that prints these losses and half of each as the norm of its gradient."""
    lines = [f"step {n} loss {show(value)} grad_norm {norm(value / 2)}" for n, value in enumerate(values, 1)]
    return read_trajectory([Line(0.1 * n, line) for n, line in enumerate(lines)], PATTERN)


def scaled(by: float, values: Sequence[float] = LOSSES) -> list[float]:
    return [value * (1 + by) for value in values]


REFERENCE = printed(LOSSES)
BANDS = calibrate_trajectories(REFERENCE, [printed(scaled(1e-7)), REFERENCE], [printed(scaled(3e-3))])


def judged(
    candidate: Trajectory, reference: Trajectory = REFERENCE, bands: Sequence[BandFacts] = BANDS, bf16: bool = False
) -> dict[str, InvariantFacts]:
    return {fact.name: fact for fact in judge_trajectories(candidate, reference, bands, None, bf16)}


# --- reading -------------------------------------------------------------------------------------


def test_every_named_group_but_the_step_is_a_trajectory() -> None:
    assert groups(PATTERN) == ("loss", "grad_norm")
    assert REFERENCE.texts["loss"][:2] == ("8.3000", "8.1628")
    assert REFERENCE.texts["grad_norm"][0] == "4.150"


def test_of_a_long_run_enough_points_are_kept_and_the_last_is_one_of_them() -> None:
    long = printed([1 + n / 1000 for n in range(5000)])
    assert len(long.texts["loss"]) == POINTS
    assert (long.texts["loss"][0], long.texts["loss"][-1]) == ("1.0000", "5.9990")
    assert len(long.model_dump_json()) < 8000


def test_a_value_that_is_no_number_is_none_however_long_it_is() -> None:
    said = read_trajectory([Line(0.0, "step 1 loss " + "9" * 3000), Line(0.1, "step 2 loss 1,024.5,")], PATTERN)
    assert said.texts == {"loss": ("", "1024.5"), "grad_norm": ("", "")}


# --- rounding ------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30),
    st.sampled_from(["{:.0f}", "{:.2f}", "{:.4f}", "{:.3e}", "{:.6g}", "{}"]),
    st.integers(0, 2**32),
)
def test_half_a_unit_in_the_last_printed_digit_never_counts(values: list[float], form: str, seed: int) -> None:
    rng = random.Random(seed)
    reference = printed(values, form.format, form.format)
    moved = printed([value * (1 + 1e-15 * rng.choice((-1, 0, 1))) for value in values], form.format, form.format)
    for group in ("loss", "grad_norm"):
        found = difference(group, reference, moved)
        assert found is not None and found.largest <= 1e-12


def test_values_on_both_sides_of_a_rounding_edge_are_the_same() -> None:
    below, above = printed([2.34995 - 1e-9] * 5), printed([2.34995 + 1e-9] * 5)
    assert below.texts["loss"] != above.texts["loss"]
    assert all(fact.status == "held" and fact.value == 0.0 for fact in judged(above, below).values())


def test_fewer_printed_digits_break_nothing_and_are_not_covered_where_they_say_too_little() -> None:
    assert judged(printed(LOSSES, "{:.3f}".format))["loss trajectory"].status == "held"
    assert judged(printed(LOSSES, "{:.0f}".format))["loss trajectory"].status == "not_covered"


# --- judgement -----------------------------------------------------------------------------------


def test_what_computes_the_same_holds_and_says_how_it_was_judged_and_that_it_can_be_forged() -> None:
    found = judged(printed(scaled(2e-7)))
    assert set(found) == {"loss trajectory", "grad_norm trajectory"}
    for fact in found.values():
        assert fact.status == "held" and fact.limit is not None
        assert FORGEABLE in fact.how and "harmless runs of the baseline" in fact.how


@pytest.mark.parametrize(
    "cheat",
    [scaled(5e-3), [*LOSSES[:20], *scaled(0.02, LOSSES[20:])], [*LOSSES[:-1], LOSSES[-1] * 0.98]],
    ids=["all along", "from the middle on", "in the last step"],
)
def test_a_loss_that_goes_another_way_is_broken(cheat: list[float]) -> None:
    fact = judged(printed(cheat))["loss trajectory"]
    assert fact.status == "broken" and fact.value is not None and fact.limit is not None and fact.value > fact.limit


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_broken(value: float) -> None:
    fact = judged(printed([*LOSSES[:30], value, *LOSSES[31:]]))["loss trajectory"]
    assert (fact.status, fact.value) == ("broken", None)


def test_a_value_that_is_missing_is_broken() -> None:
    silent = Trajectory(texts={**REFERENCE.texts, "grad_norm": ("",) * len(LOSSES)})
    assert judged(silent)["grad_norm trajectory"].status == "broken"
    assert judged(printed(LOSSES[:-1]))["loss trajectory"].status == "broken"


def test_what_the_incumbent_does_not_print_is_not_covered() -> None:
    silent = Trajectory(texts={**REFERENCE.texts, "grad_norm": ("",) * len(LOSSES)})
    found = judged(REFERENCE, silent)
    assert found["grad_norm trajectory"].status == "not_covered"
    assert found["loss trajectory"].status == "held"


def test_a_step_that_the_incumbent_itself_has_no_number_for_is_left_out() -> None:
    reference = printed([math.nan, *LOSSES[1:]])
    assert judged(printed([7.0, *LOSSES[1:]]), reference)["loss trajectory"].status == "held"


def test_a_count_that_is_zero_throughout_must_stay_so() -> None:
    zeros = printed([0.0] * 10, "{:.0f}".format)
    assert judged(zeros, zeros)["loss trajectory"].status == "held"
    assert judged(printed([0.0] * 9 + [3.0], "{:.0f}".format), zeros)["loss trajectory"].status == "broken"


def test_what_harmless_changes_do_not_repeat_says_nothing() -> None:
    jumping = calibrate_trajectories(REFERENCE, [printed([v * (1.5 if n % 2 else 0.5) for n, v in enumerate(LOSSES)])], [])
    fact = judged(printed(scaled(0.3)), bands=jumping)["loss trajectory"]
    assert fact.status == "not_covered" and "harmless perturbations" in fact.how


def test_a_harmless_run_widens_the_band_tenfold() -> None:
    wide = calibrate_trajectories(REFERENCE, [printed(scaled(2e-3))], [])
    assert judged(printed(scaled(1.5e-2)), bands=wide)["loss trajectory"].status == "held"
    assert judged(printed(scaled(3e-2)), bands=wide)["loss trajectory"].status == "broken"


def test_under_bf16_a_difference_counts_in_units_of_the_twins() -> None:
    rounded = printed(scaled(0.9 * ROUNDING_FACTOR * 3e-3))
    assert judged(rounded)["loss trajectory"].status == "broken", "where the contract allows no rounding"
    fact = judged(rounded, bf16=True)["loss trajectory"]
    assert fact.status == "held" and "bf16 twin" in fact.how
    assert judged(printed(scaled(1.3 * ROUNDING_FACTOR * 3e-3)), bf16=True)["loss trajectory"].status == "broken"


def test_without_a_calibration_the_floor_holds() -> None:
    fact = judged(printed(scaled(5e-3)), bands=())["loss trajectory"]
    assert fact.status == "broken" and "not calibrated" in fact.how

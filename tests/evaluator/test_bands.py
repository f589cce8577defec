"""Harmless differences pass, quiet cheats do not: on made-up updates of the sizes measured on dense_single."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError
from rsi_tui.evaluator import bands
from rsi_tui.evaluator.bands import calibrate, judge
from rsi_tui.evaluator.compare import MomentError, TensorUpdate, UpdateReport
from rsi_tui.journal.facts import BandFacts

ROOT = Path(__file__).resolve().parents[2]
TENSORS = tuple(f"blocks.{i}.{name}" for i in range(12) for name in ("ln.weight", "attn.weight", "mlp.weight", "key.bias"))
NUMEL = {"ln.weight": 128, "attn.weight": 16_384, "mlp.weight": 65_536, "key.bias": 128}
WEIGHT = {"ln.weight": 11.3, "attn.weight": 2.6, "mlp.weight": 5.1, "key.bias": 0.0}
Change = Callable[[str, TensorUpdate], dict[str, float]]


def scattered(error: float, seed: int, *, share_of: UpdateReport | None = None, seen: float = 0.7) -> UpdateReport:
    """A report whose differences point nowhere, of one relative size; `share_of` is a twin whose rounding it shares."""
    rng = random.Random(seed)
    shared = {row.name: row for row in share_of.rows} if share_of else {}
    rows = []
    for name in TENSORS:
        kind = name.split(".", 2)[2]
        numel, weight = NUMEL[kind], WEIGHT[kind]
        update = 5e-3 * math.sqrt(numel)
        size = error * rng.uniform(0.7, 1.3) if kind != "key.bias" else rng.uniform(0.7, 1.2)
        along = error * rng.gauss(0, 0.05)
        scatter = size * update / (weight * math.sqrt(numel)) * rng.gauss(0, 1) if weight else 0.0
        if name in shared:
            along = seen * shared[name].along_update + along / 2
            scatter = seen * shared[name].along_weights + scatter / 2
        rows.append(
            TensorUpdate(
                name=name, shape=(numel,), numel=numel, error=size, row_error=6 * size, along_update=along,
                along_weights=scatter, update_norm=update, difference_norm=size * update, weight_norm=weight,
            )
        )  # fmt: skip
    moments = tuple(MomentError(kind=kind, error=error / 6) for kind in ("exp_avg", "exp_avg_sq"))
    return UpdateReport(error=error, rows=tuple(rows), moments=moments, counters=(12.0,), reference_counters=(12.0,))


def changed(report: UpdateReport, **values: object) -> UpdateReport:
    return report.model_copy(update=values)


def with_rows(report: UpdateReport, change: Change) -> UpdateReport:
    rows = tuple(row.model_copy(update=change(row.name, row)) for row in report.rows)
    return changed(report, rows=rows)


def contract_with(precision: str) -> Contract:
    loaded = load_contract(ROOT / "workloads" / "dense_single", "quick")
    return loaded.model_copy(update={"invariants": loaded.invariants.model_copy(update={"precision": precision})})


FP32, BF16 = contract_with("fp32"), contract_with("bf16")
HARMLESS = [scattered(8e-7, 1), scattered(1e-6, 2)]
TWIN = scattered(1e-2, 3)
CALIBRATED = calibrate(HARMLESS, [scattered(1e-2, 4)], BF16)


def verdict(report: UpdateReport, contract: Contract, twin: UpdateReport | None = TWIN) -> set[str]:
    """Names of the broken invariants."""
    return {fact.name for fact in judge(report, CALIBRATED, contract, twin=twin) if fact.status == "broken"}


def longer(by: float) -> Change:
    return lambda name, row: {"along_update": row.along_update + by, "error": math.hypot(row.error, by)}


def undecayed(*parts: str) -> Change:
    return lambda name, row: {"along_weights": row.along_weights + (9e-4 if any(p in name for p in parts) else 0.0)}


def frozen(tensor: str) -> Change:
    def change(name: str, row: TensorUpdate) -> dict[str, float]:
        if name != tensor:
            return {}
        return {"error": 1.0, "row_error": 1.0, "along_update": -1.0, "difference_norm": row.update_norm}

    return change


def coarse_moments(report: UpdateReport) -> UpdateReport:
    return changed(report, moments=tuple(m.model_copy(update={"coarser": 0.99}) for m in report.moments))


def larger_difference(report: UpdateReport, factor: float, part: str) -> UpdateReport:
    return with_rows(
        report,
        lambda name, row: {"error": row.error * factor, "difference_norm": row.difference_norm * factor}
        if part in name
        else {},
    )


@pytest.mark.parametrize("error", [0.0, 1e-7, 1.5e-6, 4e-6])
@pytest.mark.parametrize("contract", [FP32, BF16], ids=["fp32", "bf16"])
def test_float32_sums_in_another_order_pass(error: float, contract: Contract) -> None:
    for seed in range(20):
        assert verdict(scattered(error, 100 + seed), contract) == set()


@pytest.mark.parametrize("seen", [0.0, 0.7, 1.0], ids=["own rounding", "much of the twin's", "all of the twin's"])
def test_bf16_passes_where_it_is_allowed_and_only_there(seen: float) -> None:
    for seed in range(20):
        candidate = scattered(1.05e-2, 200 + seed, share_of=TWIN, seen=seen)
        assert verdict(candidate, BF16) == set()
        assert {bands.TOTAL, bands.TENSOR} <= verdict(candidate, FP32)


def test_bf16_passes_against_an_incumbent_that_is_the_twin_itself() -> None:
    """After bf16 was adopted the twin of a block equals its incumbent; calibration still knows the size of rounding."""
    equal = scattered(0.0, 1)
    equal = with_rows(equal, lambda name, row: {"error": 0.0, "row_error": 0.0, "difference_norm": 0.0})
    for seed in range(20):
        assert verdict(scattered(9e-3, 300 + seed), BF16, twin=equal) == set()
        assert verdict(scattered(9e-3, 300 + seed), BF16, twin=None) == set()


CHEATS: tuple[tuple[str, Change, str], ...] = (
    ("learning rate x 0.98", longer(-1.6e-2), bands.SIZE),
    ("learning rate x 0.995", longer(-3.8e-3), bands.SIZE),
    ("weight decay off", undecayed("attn", "mlp"), bands.WEIGHTS),
    ("weight decay off in one matrix", undecayed("3.mlp"), bands.WEIGHTS),
    ("one LayerNorm frozen", frozen("blocks.4.ln.weight"), bands.TENSOR),
    ("one row of a matrix frozen", lambda name, row: {"row_error": 1.0} if name == "blocks.2.mlp.weight" else {}, bands.ROW),
)


@pytest.mark.parametrize(("change", "caught_by"), [c[1:] for c in CHEATS], ids=[c[0] for c in CHEATS])
def test_quiet_cheats_are_caught_under_bf16(change: Change, caught_by: str) -> None:
    for seed in range(20):
        candidate = with_rows(scattered(1e-2, 400 + seed, share_of=TWIN), change)
        assert caught_by in verdict(candidate, BF16), seed


def test_what_rounding_can_not_explain_is_caught_in_fp32_by_its_size() -> None:
    assert verdict(scattered(9e-4, 1), FP32) >= {bands.TOTAL, bands.TENSOR}
    assert bands.TENSOR in verdict(with_rows(scattered(1e-6, 1), frozen("blocks.4.ln.weight")), FP32)


@pytest.mark.parametrize("contract", [FP32, BF16], ids=["fp32", "bf16"])
def test_moments_kept_in_bf16_are_caught_by_how_they_are_stored(contract: Contract) -> None:
    assert verdict(coarse_moments(scattered(1e-6, 5)), contract) == {bands.STORED}
    assert bands.STORED in verdict(changed(scattered(1e-6, 5), coarser=1.0), contract)


def test_other_moments_are_caught() -> None:
    off = (MomentError(kind="exp_avg", error=0.08),)
    assert bands.MOMENTS in verdict(changed(scattered(1e-6, 5), moments=off), FP32)
    assert bands.MOMENTS in verdict(changed(scattered(1e-2, 5), moments=off), BF16)


def test_another_layout_a_missing_checkpoint_and_another_number_of_steps_are_broken() -> None:
    good = scattered(1e-6, 1)
    assert verdict(changed(good, problems=("tensor 'x' is missing",)), FP32) == {bands.LAYOUT}
    assert verdict(UpdateReport(problems=("the checkpoint was not written",), error=None), BF16) == {bands.LAYOUT}
    assert verdict(UpdateReport(error=None), FP32) == {bands.LAYOUT}
    assert verdict(changed(good, counters=(11.0,)), FP32) == {bands.COUNTERS}
    facts = {f.name: f for f in judge(changed(good, counters=(), reference_counters=()), CALIBRATED, FP32, twin=None)}
    assert facts[bands.COUNTERS].status == "not_covered"


def test_a_masked_tensor_is_named_and_still_bounded_in_size() -> None:
    facts = {fact.name: fact for fact in judge(scattered(1e-6, 1), CALIBRATED, FP32, twin=None)}
    assert "key.bias" in facts[bands.MASKED].how
    grown = larger_difference(scattered(1e-6, 1), 10.0, "3.key.bias")
    assert verdict(grown, FP32) == {bands.MASKED}


def test_calibration_masks_what_is_not_reproducible_and_reports_the_share() -> None:
    band = CALIBRATED[0]
    assert set(band.masked) == {name for name in TENSORS if name.endswith("key.bias")}
    total = sum(NUMEL.values()) * 12
    assert band.masked_share == pytest.approx(12 * 128 / total)


def test_an_outlier_is_masked_instead_of_widening_the_band_of_all_others() -> None:
    """A key bias whose noise is small in this model (seen: 0.05) must not let half an update through elsewhere."""
    milder = with_rows(scattered(1e-6, 1), lambda name, row: {"error": 0.05, "row_error": 0.05} if "key" in name else {})
    found = {band.name: band for band in calibrate([milder], [], FP32)}
    assert all("key.bias" in name for name in found["fp32 tensor"].masked) and found["fp32 tensor"].masked
    assert found["fp32 tensor"].limit == bands.FLOORS["tensor"]


def test_a_noisier_baseline_has_wider_bands() -> None:
    wide = {band.name: band for band in calibrate([scattered(1e-4, 1)], [], FP32)}
    assert wide["fp32 total"].limit == pytest.approx(10 * wide["fp32 total"].harmless_max)
    assert wide["fp32 total"].harmless_max == pytest.approx(1e-4, rel=0.2)
    assert {f.status for f in judge(scattered(3e-4, 2), tuple(wide.values()), FP32)} == {"held"}


def test_too_much_masked_is_refused() -> None:
    chaotic = larger_difference(scattered(1e-6, 1), 1e6, "mlp")
    with pytest.raises(ContractError, match='weights = "statistical"'):
        calibrate([chaotic], [], FP32)


def test_a_perturbation_that_changes_the_layout_is_refused() -> None:
    with pytest.raises(ContractError, match="is missing"):
        calibrate([changed(scattered(1e-6, 1), problems=("tensor 'x' is missing",))], [], FP32)


def test_without_calibration_the_floors_hold() -> None:
    quiet = with_rows(
        scattered(1e-6, 1),
        lambda name, row: {"error": 1e-6, "row_error": 6e-6, "difference_norm": 1e-6 * row.update_norm},
    )
    facts = judge(quiet, (), BF16, twin=None)
    assert {fact.status for fact in facts} == {"held"}
    assert any(fact.status == "broken" for fact in judge(scattered(1e-2, 1), (), BF16, twin=None))


def test_nothing_in_a_fact_is_infinite_or_nan() -> None:
    for report in (scattered(1e-2, 1), scattered(0.0, 1), with_rows(TWIN, frozen("blocks.4.ln.weight"))):
        for fact in judge(report, CALIBRATED, BF16, twin=TWIN):
            assert fact.value is None or math.isfinite(fact.value)
            assert fact.limit is None or math.isfinite(fact.limit)


def test_bands_survive_the_journal() -> None:
    for band in CALIBRATED:
        assert BandFacts.model_validate_json(band.model_dump_json()) == band


# --- experts ------------------------------------------------------------------------------------

EXPERTS = {f"blocks.{n % 12}.mlp.weight": f"layers.{n % 4}.experts.{n // 4}.w1.weight" for n in range(12)}


def of_experts(report: UpdateReport, *sent_elsewhere: str) -> UpdateReport:
    """The report with experts in place of the mlps; a token that went elsewhere moves what it reached six times as far."""

    def name_and_size(name: str, row: TensorUpdate) -> dict[str, object]:
        known = EXPERTS.get(name)
        if known is None:
            return {}
        times = 6.0 if known in sent_elsewhere else 1.0
        return {
            "name": known, "error": row.error * times, "row_error": row.row_error * times,
            "difference_norm": row.difference_norm * times,
        }  # fmt: skip

    return with_rows(report, name_and_size)  # type: ignore[arg-type]


def of_experts_broken(candidate: UpdateReport) -> set[str]:
    twin = of_experts(scattered(1e-2, 3), "layers.1.experts.0.w1.weight")
    calibrated = calibrate([of_experts(report) for report in HARMLESS], [of_experts(scattered(1e-2, 4))], BF16)
    return {fact.name for fact in judge(candidate, calibrated, BF16, twin=twin) if fact.status == "broken"}


def test_a_token_that_rounding_sends_to_another_expert_than_the_twins_is_no_cheat() -> None:
    assert of_experts_broken(of_experts(scattered(1e-2, 7, share_of=TWIN), "layers.3.experts.2.w1.weight")) == set()


def test_an_expert_that_learns_nothing_is_caught_whatever_its_peers_do() -> None:
    candidate = with_rows(of_experts(scattered(1e-2, 7, share_of=TWIN)), frozen("layers.3.experts.2.w1.weight"))
    assert bands.TENSOR in of_experts_broken(candidate)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("layers.3.moe.experts.16.w1.weight", "layers.*.moe.experts.*.w1.weight"),
        ("0.experts.5", "*.experts.*"),
        ("blocks.3.attn.w1.weight", "blocks.3.attn.w1.weight"),
        ("head.weight", "head.weight"),
    ],
)
def test_only_tensors_with_two_numbers_have_peers(name: str, shared: str) -> None:
    assert bands.peers(name) == shared

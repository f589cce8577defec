"""What is no faster but leaner is offered for the bank: few, the largest savings first, and only what the frontier needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rsi_tui.journal.events import VerdictReached
from rsi_tui.loop.banking import MAX_OFFERED
from rsi_tui.loop.outer import baseline, search
from tests.support.campaigns import PatchMind, no_op_patches
from tests.support.loops import Bench, bench

MIB = 2**20


def searched(
    folder: Path, peaks: Mapping[str, int], effects: Mapping[str, float] | None = None, bundle: bool = False
) -> Bench:
    """A campaign over candidates with these peaks (MiB; the incumbent's is 1000), each slower by 1 % unless told."""
    made = bench(folder, PatchMind(no_op_patches(len(peaks))), candidates=len(peaks), bundle=bundle, proof={"canaries": False})
    made.oracle.incumbent_peak = 1000 * MIB
    made.oracle.peak = lambda candidate: peaks[candidate.id] * MIB
    made.oracle.effect = lambda candidate: (effects or {}).get(candidate.id, 0.01)
    made.oracle.verdict = lambda candidate: "not_proven"
    baseline(made.ctx)
    search(made.ctx)
    return made


def test_the_largest_saving_of_a_wave_comes_first_and_what_saves_too_little_is_not_offered(tmp_path: Path) -> None:
    effects = {"c1": 0.01, "c2": 0.03, "c3": 0.02, "c4": 0.005}
    made = searched(tmp_path, {"c1": 900, "c2": 700, "c3": 800, "c4": 960}, effects)
    assert made.oracle.offered == ["c2", "c3", "c1"]


def test_no_campaign_offers_more_than_three(tmp_path: Path) -> None:
    peaks = {f"c{n}": 900 - 50 * n for n in range(1, 9)}
    made = searched(tmp_path, peaks, {f"c{n}": 0.01 * n for n in range(1, 9)})
    assert len(made.oracle.offered) == MAX_OFFERED


def test_what_another_candidate_beats_in_time_and_memory_is_not_offered(tmp_path: Path) -> None:
    made = searched(tmp_path, {"c1": 700, "c2": 800}, {"c1": 0.01, "c2": 0.02})
    assert made.oracle.offered == ["c1"]


def test_what_is_promoted_is_verified_and_not_offered(tmp_path: Path) -> None:
    made = searched(tmp_path, {"c1": 700, "c2": 600}, {"c1": -0.1, "c2": 0.02})
    assert [candidate for candidate, _ in made.oracle.verified] == ["c1"]
    assert made.oracle.offered == ["c2"]


def test_a_banked_saving_is_a_verdict_that_spends_no_error_probability_and_a_parent_to_choose_from(tmp_path: Path) -> None:
    made = searched(tmp_path, {"c1": 700})
    (body,) = made.writer.bodies(VerdictReached)
    assert (body.verdict.verdict, body.verdict.alpha) == ("leaner", 0.0)
    assert "c1" in {candidate.id for candidate in made.ctx.memory.archive()}
    assert made.ctx.memory.best.id == "original", "a saving is no speed-up"


def test_a_resumed_campaign_finds_what_was_banked(tmp_path: Path) -> None:
    first = searched(tmp_path, {"c1": 700})
    again = bench(tmp_path, PatchMind(no_op_patches(1)), events=first.writer.events, candidates=1, bundle=False, proof={"canaries": False})
    again.oracle.incumbent_peak, again.oracle.effect = 1000 * MIB, lambda candidate: 0.01
    baseline(again.ctx)
    search(again.ctx)
    assert len(again.writer.events) == len(first.writer.events)
    assert again.ctx.memory.offered == ["c1"]


def test_where_gains_are_proven_together_nothing_is_banked_alone(tmp_path: Path) -> None:
    assert searched(tmp_path, {"c1": 700}, bundle=True).oracle.offered == []

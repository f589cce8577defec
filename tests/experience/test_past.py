"""What was tried before: proven first, failures kept, repeats recognised, OOM reopened with room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experience.chunk import diff_texts
from experience.conditions import Conditions, fit
from experience.interface import ExperienceLibrary
from experience.records import Batch, CandidateRow
from scripts.bench.repeats_data import diff_of
from tests.experience.batches import GIB, HERE, SOFTWARE, THERE, Journals, batch, candidate, entry
from tests.experience.conftest import Open

A, B = "20261101-1", "20261101-2"


def library_of(open_at: Open, folder: Path, *rows: CandidateRow) -> ExperienceLibrary:
    """One campaign a campaign id among the rows."""
    names = sorted({row.campaign for row in rows})
    return open_at(
        folder, Journals([replace(batch(n), candidates=tuple(r for r in rows if r.campaign == n)) for n in names])
    )


def test_past_candidates_come_proven_here_first_then_elsewhere_then_by_fit(open_at: Open, tmp_path: Path) -> None:
    rows = (
        candidate(A, "c1", verdict="slower"),
        candidate(A, "c2", verdict="failed", log_ratio=None, outcome="crashed"),
        candidate(A, "c3", verdict="adopted", hardware=THERE),
        candidate(A, "c4", verdict="adopted"),
        candidate(A, "c5", verdict="refused", outcome=""),
        candidate(A, "c6", verdict="", outcome=""),
        candidate(B, "c1", verdict="adopted", workload_key="moe"),
        candidate(B, "c2", verdict="slower", workload_key="moe", hardware=THERE),
    )
    library = library_of(open_at, tmp_path, *rows)
    past = library.past_candidates("dense", HERE, SOFTWARE, 10)
    assert [item.row.id for item in past] == [f"{A}/c4", f"{A}/c3", f"{B}/c1", f"{A}/c1", f"{A}/c2", f"{B}/c2"]
    assert [item.same_workload for item in past] == [True, True, False, True, True, False]
    assert past[0].fit == 1.0
    assert 0 <= past[-1].fit < past[2].fit < 1
    assert len(library.past_candidates(None, HERE, SOFTWARE, 2)) == 2
    library.close()


@pytest.mark.parametrize(
    ("wanted", "found", "value"),
    [
        (Conditions("a", "cpu x", "torch 1"), Conditions("a", "cpu x", "torch 1"), 1.0),
        (Conditions("a", "cpu x", "torch 1"), Conditions("b", "gpu y", "jax 2"), 0.0),
        (Conditions("a", "cpu x", "torch 1"), Conditions(), 0.5),
        (Conditions("a", "cpu x", "torch 1"), Conditions("a", "cpu x", "torch 2"), 0.75 + 0.25 * 0.5 / 3),
        (
            Conditions("a", "h", "s", {"forward": 0.5, "backward": 0.5}),
            Conditions("b", "h", "s", {"forward": 1.0}),
            0.6 + 0.4 * 0.25,
        ),
    ],
)
def test_fit_is_the_documented_formula(wanted: Conditions, found: Conditions, value: float) -> None:
    assert fit(wanted, found).value == pytest.approx(value)


def ask(library: ExperienceLibrary, **more: object) -> list[str]:
    here = Conditions("dense", HERE, SOFTWARE, base_commit="b1", terms="t1", memory_limit_bytes=2 * GIB)
    conditions = {name: more.pop(name) for name in vars(here) if name in more}
    values: dict[str, object] = {
        "diff_hash": "d1", "launch_fingerprint": "l1", "base_stack": (), "techniques": ("sdpa",), "knobs": {"threads": 2},
        "conditions": replace(here, **conditions),  # type: ignore[arg-type]
    } | more  # fmt: skip
    return [repeat.row.id.split("/")[1] for repeat in library.duplicates(**values)]  # type: ignore[arg-type]


def test_exact_repeats_come_before_the_same_idea_with_another_diff(open_at: Open, tmp_path: Path) -> None:
    library = library_of(
        open_at, tmp_path,
        candidate(A, "c1", diff_hash="other", at="2026-11-02"),
        candidate(A, "c2"),
        candidate(A, "c3", diff_hash="other", techniques=("fused-adamw",)),
    )  # fmt: skip
    assert ask(library) == ["c2", "c1"]
    library.close()


@pytest.mark.parametrize(
    "change",
    [
        {"base_commit": "the program, repaired"}, {"terms": "bf16 allowed"}, {"base_commit": ""}, {"terms": ""},
        {"workload_key": "moe"}, {"hardware": THERE}, {"software": "torch 3"}, {"base_stack": ("flash",)},
        {"memory_limit_bytes": 4 * GIB}, {"diff_hash": "new", "knobs": {"threads": 4}}, {"diff_hash": "new", "techniques": ()},
        {"diff_hash": "new", "knobs": {"threads": 2.0}},
    ],
)  # fmt: skip
def test_other_conditions_or_another_change_are_no_repeat(
    open_at: Open, tmp_path: Path, change: dict[str, object]
) -> None:
    library = library_of(open_at, tmp_path, candidate(A, "c1"))
    assert ask(library) == ["c1"]
    assert ask(library, **change) == []
    library.close()


@pytest.mark.parametrize(
    ("verdict", "outcome", "repeat"),
    [
        ("slower", "ok", True), ("not_proven", "ok", True), ("invalid", "ok", True), ("off_direction", "", True),
        ("failed", "crashed", True), ("screened", "ok", True), ("screened", "timeout", True),
        ("adopted", "ok", False), ("leaner", "ok", False), ("refused", "", False), ("", "ok", False),
        ("failed", "not_measured", False), ("screened", "preempted", False), ("screened", "cancelled", False),
    ],
)  # fmt: skip
def test_only_measured_refutations_are_repeats(
    open_at: Open, tmp_path: Path, verdict: str, outcome: str, repeat: bool
) -> None:
    library = library_of(open_at, tmp_path, candidate(A, "c1", verdict=verdict, outcome=outcome))
    assert ask(library) == (["c1"] if repeat else [])
    library.close()


OLD = "        mask = torch.tril(torch.ones(T, T, device=x.device))"
CHANGE = diff_of(("model.py", OLD, "        mask = self.causal[:T, :T]\n        self.register_buffer('causal', torch.tril(torch.ones(99, 99)))"))
RENAMED = diff_of(("model.py", OLD, "        m = self.causal[:T, :T]  # kept\n        self.register_buffer('tri', torch.tril(torch.ones(99, 99)))"))
UNLIKE = diff_of(("train.py", "loss.backward()", "with model.no_sync():\n    loss.backward()"))


def with_diffs(*rows: tuple[CandidateRow, str]) -> Batch:
    """A campaign of candidates and their diffs, as the projection stores them."""
    entries = [
        entry(A, "diff", f"{row.id.split('/')[1]}/{n}", text, candidate=row.id)
        for row, diff in rows
        for n, text in enumerate(diff_texts(diff, row.statement))
    ]
    return replace(batch(A), candidates=tuple(row for row, _ in rows), entries=tuple(entries))


def proposed(library: ExperienceLibrary, **more: object) -> list[tuple[str, str]]:
    """(candidate, by what) of repeats of a free change on the same settings."""
    values: dict[str, object] = {"diff_hash": "new", "launch_fingerprint": "l1", "base_stack": (), "techniques": (), "knobs": {"threads": 2}}
    here = Conditions("dense", HERE, SOFTWARE, base_commit="b1", terms="t1", memory_limit_bytes=2 * GIB)
    found = library.duplicates(**(values | {"conditions": here} | more))  # type: ignore[arg-type]
    assert all("would have to differ in" in repeat.why for repeat in found)
    return [(repeat.row.id.split("/")[1], repeat.by) for repeat in found]


def test_a_change_with_other_names_is_the_same_change(open_at: Open, tmp_path: Path) -> None:
    free = candidate(A, "c1", techniques=(), statement="The causal mask is kept as a buffer")
    library = open_at(tmp_path, Journals([with_diffs((free, CHANGE))]))
    assert proposed(library, diff=RENAMED) == [("c1", "similar code")]
    assert proposed(library, diff=UNLIKE) == []
    assert proposed(library, diff=RENAMED, knobs={"threads": 4}) == []
    assert proposed(library) == []
    library.close()


def test_an_idea_in_other_words_is_the_same_idea_unless_its_code_says_otherwise(open_at: Open, tmp_path: Path) -> None:
    free = candidate(A, "c1", techniques=(), statement="Caching the causal mask as a buffer avoids building it anew in every forward pass")
    library = open_at(tmp_path, Journals([with_diffs((free, CHANGE))]))
    again = "Keep the causal attention mask in a buffer, so that it is not built again in each forward pass"
    assert proposed(library, statement=again) == [("c1", "similar words")]
    assert proposed(library, statement=again, diff=UNLIKE) == []
    assert proposed(library, statement="Overlap the all-reduce of gradients with the backward pass") == []
    library.close()


def test_two_techniques_that_are_named_are_not_taken_for_each_other(open_at: Open, tmp_path: Path) -> None:
    library = open_at(tmp_path, Journals([with_diffs((candidate(A, "c1", techniques=("sdpa",)), CHANGE))]))
    assert proposed(library, diff=CHANGE, techniques=("causal-blocks",)) == []
    assert proposed(library, diff=CHANGE) == [("c1", "similar code")]
    library.close()


def test_code_of_the_stack_below_does_not_count(open_at: Open, tmp_path: Path) -> None:
    below = candidate(A, "c1", techniques=("sdpa",), verdict="adopted")
    above = candidate(A, "c2", parent=f"{A}/c1", base_stack=("sdpa",), techniques=("sdpa",))
    library = open_at(tmp_path, Journals([with_diffs((below, CHANGE), (above, CHANGE + UNLIKE))]))
    assert proposed(library, base_stack=("sdpa",), diff=RENAMED) == []
    assert proposed(library, base_stack=("sdpa",), diff=UNLIKE) == [("c2", "similar code")]
    library.close()


def test_changes_without_hashes_are_not_taken_for_each_other(open_at: Open, tmp_path: Path) -> None:
    library = library_of(open_at, tmp_path, candidate(A, "c1", diff_hash="", launch_fingerprint=""))
    assert ask(library, diff_hash="", launch_fingerprint="", techniques=("other",)) == []
    assert ask(library, diff_hash="", launch_fingerprint="", techniques=(), knobs={}) == []
    library.close()


def test_a_members_bundle_does_not_refute_the_member(open_at: Open, tmp_path: Path) -> None:
    member = candidate(A, "c1", verdict="screened", log_ratio=-0.1)
    bundle = candidate(
        A, "c9", verdict="not_proven", diff_hash="both", techniques=("sdpa", "x"), bundle_of=(f"{A}/c1",)
    )
    library = library_of(open_at, tmp_path, member, bundle)
    assert ask(library) == []
    assert ask(library, diff_hash="both", techniques=("x",)) == ["c9"]
    library.close()


def test_out_of_memory_is_reopened_when_the_room_has_grown_by_more_than_was_asked(
    open_at: Open, tmp_path: Path
) -> None:
    oom = candidate(A, "c1", verdict="failed", outcome="oom", log_ratio=None, requested_bytes=GIB)
    library = library_of(open_at, tmp_path, oom)
    assert [bool(ask(library, memory_limit_bytes=n * GIB)) for n in (1, 2, 3, 4)] == [True, True, True, False]
    library.close()


def test_lessons_come_by_fit_of_conditions(library: ExperienceLibrary) -> None:
    there = batch(B)
    lesson = replace(there.entries[-1], hardware=THERE, text="Attention does not pay on a large GPU")
    library.ingest(replace(there, entries=(lesson,)))
    for hardware, first in ((HERE, A), (THERE, B)):
        lessons = library.lessons(Conditions("dense", hardware, SOFTWARE), layer="kernel")
        assert lessons[0].entry.campaign == first
        assert len(lessons) == 2, "contradictions stay side by side"
    assert library.lessons(layer="data") == []


def test_every_record_is_found_by_its_id(shared: ExperienceLibrary) -> None:
    stored = batch()
    for row in (*stored.entries, *stored.candidates, *stored.trials, *stored.directions, stored.campaign):
        assert shared.record_of(row.id) == row
    assert shared.record_of("20261101-1/nothing") is None

"""What is asked is found: by identifier, by meaning, by conditions; and every hit says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experience.conditions import Conditions
from experience.encoder import MiniLM
from experience.interface import ExperienceLibrary, Filters
from experience.library import open_library
from experience.records import Batch
from tests.experience.batches import HERE, SOFTWARE, THERE, Journals, batch, entry
from tests.experience.conftest import Open


def found(library: ExperienceLibrary, text: str, **more: object) -> list[str]:
    return [hit.entry.id.split("/", 1)[1] for hit in library.search(text, **more)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("--micro-batch", "hypothesis/h4"),
        ("micro_batch", "hypothesis/h4"),
        ("microbatch", "hypothesis/h4"),
        ("torch.compile", "hypothesis/h3"),
        ("max-autotune", "hypothesis/h3"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "hypothesis/h5"),
        ("nccl_async_error_handling", "hypothesis/h5"),
        ("prefetch_factor", "hypothesis/h6"),
        ("CrossEntropyLoss", "failure/t9"),
        ("cross_entropy", "failure/t9"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.50 GiB", "failure/t9"),
    ],
)
def test_identifiers_and_error_lines_are_found_as_typed(shared: ExperienceLibrary, query: str, expected: str) -> None:
    assert found(shared, query)[0] == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("do not store the whole softmax matrix of every head", "hypothesis/h1"),
        ("larger batches per device make better use of the hardware", "hypothesis/h4"),
        ("overlap the data loader with computation", "hypothesis/h6"),
    ],
)
def test_a_paraphrase_is_found_by_meaning(shared: ExperienceLibrary, query: str, expected: str) -> None:
    hit = shared.search(query, kinds=["hypothesis"])[0]
    assert hit.entry.id.endswith(expected)
    assert "distance" in hit.why


def test_a_question_about_something_else_finds_nothing(shared: ExperienceLibrary) -> None:
    assert shared.search("what is the capital of France", limit=5) == []


@pytest.mark.parametrize("query", ["", "   ", "'\"(:*)", "a" * 5000, "the of and"])
def test_no_query_is_an_error(shared: ExperienceLibrary, query: str) -> None:
    assert isinstance(shared.search(query), list)


def test_kinds_and_filters_narrow_the_answer(shared: ExperienceLibrary) -> None:
    assert set(found(shared, "attention", kinds=["lesson"])) == {"lesson/l1"}
    assert found(shared, "out of memory", filters=Filters(outcome="oom")) == ["failure/t9"]
    assert found(shared, "attention", filters=Filters(workload_key="it's another")) == []
    assert found(shared, "attention", filters=Filters(since="2026-11-01"))
    assert found(shared, "attention", filters=Filters(since="2026-12")) == []
    assert found(shared, "attention", filters=Filters(layer="kernel", hardware=HERE, workload_key="dense"))


def two_machines() -> list[Batch]:
    """The same observation on two machines."""
    text = "Activation checkpointing frees memory for a larger micro-batch"
    batches = []
    for number, hardware in ((1, HERE), (2, THERE)):
        name = f"20261102-{number}"
        base = batch(name)
        here = entry(name, "hypothesis", "h1", text, hardware=hardware)
        batches.append(
            replace(base, campaign=replace(base.campaign, hardware=hardware), candidates=(), trials=(), entries=(here,))
        )
    return batches


def test_fit_of_conditions_changes_the_order(open_at: Open, tmp_path: Path) -> None:
    library = open_at(tmp_path, Journals(two_machines()))
    for hardware, first in ((HERE, "20261102-1"), (THERE, "20261102-2")):
        hits = library.search("activation checkpointing", conditions=Conditions("dense", hardware, SOFTWARE))
        assert hits[0].entry.campaign == first
        assert hits[0].score > hits[1].score
        assert "same hardware" in hits[0].why
        assert "other hardware" in hits[1].why
    library.close()


def test_near_repeats_do_not_crowd_out_other_answers(open_at: Open, tmp_path: Path) -> None:
    same = tuple(
        entry("20261103-1", "note", f"n{i}", f"all-reduce waits for the slowest rank, seen {i} times") for i in range(8)
    )
    other = entry("20261103-1", "note", "other", "Overlapping the all-reduce with backward needs gradient buckets")
    library = open_at(tmp_path, Journals([replace(batch("20261103-1"), entries=(*same, other))]))
    assert "note/other" in found(library, "all-reduce slowest rank waits", limit=3)
    library.close()


def test_without_the_encoder_words_alone_answer_and_the_hit_says_so(tmp_path: Path) -> None:
    library = open_library(tmp_path / "library", Journals([batch()]), MiniLM(tmp_path / "no-model"))
    hits = library.search("micro_batch")
    assert hits[0].entry.id.endswith("hypothesis/h4")
    assert "by words only: the encoder's weights can't be read" in hits[0].why
    assert library.stats().vectors == 0
    assert any("reinstall" in note for note in library.stats().notes)
    library.close()


def test_altered_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"not the published ones")
    library = open_library(tmp_path / "library", Journals([batch()]), MiniLM(tmp_path / "model"))
    assert "is not the published all-MiniLM-L6-v2" in library.search("micro_batch")[0].why
    library.close()


def test_vectors_follow_when_the_encoder_comes_back(tmp_path: Path, encoder: MiniLM) -> None:
    open_library(tmp_path, Journals([batch()]), MiniLM(tmp_path / "no-model")).close()
    library = open_library(tmp_path, Journals([batch()]), encoder)
    hit = library.search("larger batches per device make better use of the hardware", kinds=["hypothesis"])[0]
    assert hit.entry.id.endswith("h4")
    assert "distance" in hit.why
    assert library.stats().vectors == len(batch().entries)
    library.close()

"""A library that is large enough for indices finds what it found without them, also what came after they were made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experience import vectors
from experience.interface import ExperienceLibrary
from experience.library import DirectLibrary, open_library
from scripts.bench import corpus
from scripts.bench.kills_library import Hashes
from tests.experience.batches import Journals, batch, entry

COUNT = 400


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectLibrary:
    monkeypatch.setattr(vectors, "INDEX_FROM", 300)
    library = open_library(tmp_path, Journals([]), Hashes())
    for made in corpus.batches(COUNT, corpus.texts(COUNT)):
        library.ingest(made)
    assert isinstance(library, DirectLibrary)
    return library


def nearest(library: ExperienceLibrary, text: str) -> str:
    return library.search(text, limit=1)[0].entry.text


def test_an_index_changes_no_answer(large: DirectLibrary) -> None:
    asked = [text.text for text in corpus.texts(COUNT)[::40]]
    assert large.wants_tending()
    before = [nearest(large, text) for text in asked]
    large.compact()
    assert not large.wants_tending()
    assert [nearest(large, text) for text in asked] == before == asked
    large.close()


def test_what_comes_after_the_index_is_found_and_what_goes_is_not(large: DirectLibrary) -> None:
    large.compact()
    name = "20261101-1"
    new = entry(name, "note", "n1", "a note on the quadrature of the circle")
    large.ingest(replace(batch(name), entries=(new,)))
    assert nearest(large, new.text) == new.text
    large.ingest(replace(batch(name), entries=()))
    assert new.text not in [hit.entry.text for hit in large.search(new.text)]
    large.close()


def test_entries_stored_before_there_were_stamps_are_written_once(tmp_path: Path) -> None:
    library = open_library(tmp_path, Journals([batch()]), Hashes())
    before = library.fingerprint()
    library._store._connection.execute("UPDATE entries SET stamp = ''")  # type: ignore[attr-defined]
    library.close()
    again = open_library(tmp_path, Journals([batch()]), Hashes())
    assert again.fingerprint() == before
    again.close()

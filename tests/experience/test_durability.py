"""The library is a projection: damaged or deleted it comes back equal, and one process owns it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from experience import store
from experience.errors import LockedError
from experience.interface import ExperienceLibrary, Head
from experience.migrations import MIGRATIONS
from experience.records import Entry
from experience.store import Store
from tests.experience.batches import Journals, batch
from tests.experience.conftest import Open

NOTE = Entry(
    id="home/note/1", kind="note", text="The loader of site B is slow on Mondays", campaign="home", at="2026-11-01"
)


def journals() -> Journals:
    return Journals([batch("20261101-1"), batch("20261101-2")], [NOTE])


def contents(library: ExperienceLibrary) -> object:
    """All rows, and what each vector was made from."""
    return library.fingerprint()


@pytest.fixture
def closed(open_at: Open, tmp_path: Path) -> tuple[Path, object]:
    """A folder with a closed library, and what it held."""
    library = open_at(tmp_path / "library", journals())
    before = contents(library)
    library.close()
    return tmp_path / "library", before


def overwrite(path: Path, content: bytes, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def test_nothing_is_replayed_when_nothing_is_missing(open_at: Open, closed: tuple[Path, object]) -> None:
    reader = journals()
    library = open_at(closed[0], reader)
    assert reader.read == []
    assert library.stats().notes == ()
    assert contents(library) == closed[1]
    library.close()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("deleted vectors", lambda folder: shutil.rmtree(folder / "vectors.lance")),
        ("deleted data of vectors", lambda folder: shutil.rmtree(folder / "vectors.lance/entries.lance/data")),
        ("deleted versions of vectors", lambda folder: shutil.rmtree(folder / "vectors.lance/entries.lance/_versions")),
        (
            "a file instead of vectors",
            lambda folder: (shutil.rmtree(folder / "vectors.lance"), (folder / "vectors.lance").touch()),
        ),
        ("deleted tables", lambda folder: (folder / "experience.duckdb").unlink()),
        ("overwritten tables", lambda folder: overwrite(folder / "experience.duckdb", os.urandom(20_000))),
        ("overwritten rows", lambda folder: overwrite(folder / "experience.duckdb", os.urandom(500_000), 12_288)),
        ("empty tables", lambda folder: (folder / "experience.duckdb").write_bytes(b"")),
        ("random log", lambda folder: (folder / "experience.duckdb.wal").write_bytes(os.urandom(500))),
        ("everything", shutil.rmtree),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_repaired_from_the_journals(
    open_at: Open, closed: tuple[Path, object], name: str, damage: object
) -> None:
    folder, before = closed
    damage(folder)  # type: ignore[operator]
    library = open_at(folder, journals())
    assert contents(library) == before, name
    library.close()


def killed(folder: Path) -> None:
    """A process that stores a third campaign and dies, so that its rows are in the log only."""
    script = (
        "import os, sys; from pathlib import Path; from experience.store import Store; from tests.experience.batches import batch\n"
        "store = Store.open(Path(sys.argv[1]) / 'experience.duckdb'); store.replace(batch('20261101-3')); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(folder)], check=False).returncode == 9


@pytest.mark.parametrize("damage", ["none", "cut", "flipped", "orphaned"])
def test_a_damaged_log_loses_nothing(open_at: Open, closed: tuple[Path, object], damage: str) -> None:
    folder, _ = closed
    killed(folder)
    log = folder / "experience.duckdb.wal"
    data = log.read_bytes()
    middle = len(data) // 2
    if damage == "orphaned":
        (folder / "experience.duckdb").unlink()
    changed = {
        "none": data,
        "orphaned": data,
        "cut": data[:middle],
        "flipped": data[:middle] + bytes(b ^ 255 for b in data[middle:]),
    }
    log.write_bytes(changed[damage])
    everything = [batch("20261101-1"), batch("20261101-2"), batch("20261101-3")]
    library = open_at(folder, Journals(everything, [NOTE]))
    assert {row.id for row in library.campaigns()} == {"20261101-1", "20261101-2", "20261101-3"}
    for stored in everything:
        assert all(library.record_of(row.id) == row for row in (*stored.candidates, *stored.entries))
    library.close()


def test_vectors_lost_while_it_is_open_are_remade(library: ExperienceLibrary, tmp_path: Path) -> None:
    assert library.search("attention")
    shutil.rmtree(tmp_path / "library" / "vectors.lance")
    assert library.search("attention")
    assert any("vectors were damaged" in note for note in library.stats().notes)


def test_leftovers_of_a_killed_writer_are_swept(open_at: Open, closed: tuple[Path, object]) -> None:
    leftover = closed[0] / "vectors.lance/entries.lance/data/.tmp-1234"
    leftover.write_bytes(b"half a file")
    open_at(closed[0], journals()).close()
    assert not leftover.exists()


def test_a_journal_that_grew_is_replayed_and_one_that_shrank_is_noted(
    open_at: Open, closed: tuple[Path, object]
) -> None:
    grown = replace(batch("20261101-1", last_seq=55), candidates=())
    shrunk = batch("20261101-2", last_seq=7)
    reader = Journals([grown, shrunk], [NOTE])
    library = open_at(closed[0], reader)
    assert reader.read == ["20261101-1"]
    assert (library.last_seq("20261101-1"), library.last_seq("20261101-2")) == (55, 40)
    assert library.record_of("20261101-1/c1") is None
    assert any("20261101-2 ends at event 7" in note for note in library.stats().notes)
    library.close()


def test_a_rewritten_journal_of_equal_length_is_replayed(open_at: Open, closed: tuple[Path, object]) -> None:
    reader = Journals([replace(batch("20261101-1"), head="f" * 64)])
    open_at(closed[0], reader).close()
    assert reader.read == ["20261101-1"]


def test_one_damaged_journal_does_not_hide_the_others(open_at: Open, tmp_path: Path) -> None:
    library = open_at(tmp_path, Journals([batch("20261101-1"), batch("20261101-2")], damaged="20261101-1"))
    assert [row.id for row in library.campaigns()] == ["20261101-2"]
    assert any("line 3 is damaged" in note for note in library.stats().notes)
    library.close()


def test_ingesting_twice_changes_nothing(library: ExperienceLibrary) -> None:
    before = contents(library)
    library.ingest(batch())
    assert contents(library) == before


def test_ingest_replaces_what_a_campaign_had(library: ExperienceLibrary) -> None:
    smaller = replace(batch(last_seq=41), candidates=(), trials=(), entries=batch().entries[:2])
    library.ingest(smaller)
    stats = library.stats()
    assert (stats.candidates, stats.trials, stats.vectors, dict(stats.entries)) == (0, 0, 2, {"hypothesis": 2})
    assert library.last_seq("20261101-1") == 41


def test_rebuild_gives_equal_content_and_keeps_knowledge(open_at: Open, tmp_path: Path) -> None:
    library = open_at(tmp_path, journals())
    library.add_knowledge(
        [Entry(id="knowledge/1", kind="knowledge", text="Flash attention tiles the score matrix", source="card")]
    )
    before = contents(library)
    assert library.rebuild() == []
    assert contents(library) == before
    library.close()


def test_knowledge_replaces_what_came_from_the_same_source(library: ExperienceLibrary) -> None:
    for texts in (("tiling", "fusion", "paging"), ("tiling", "quantised paging")):
        library.add_knowledge(
            [Entry(id=f"knowledge/{text}", kind="knowledge", text=text, source="paper.md") for text in texts]
        )
    assert library.stats().entries["knowledge"] == 2
    assert library.record_of("knowledge/paging") is None
    assert library.record_of("knowledge/quantised paging") is not None


def test_a_second_process_is_told_who_holds_the_library(library: ExperienceLibrary, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from experience.library import open_library\n"
        "from experience.errors import LockedError; from tests.experience.batches import Journals\n"
        "try: open_library(Path(sys.argv[1]), Journals())\n"
        "except LockedError as error: print(error.pid, error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "library")], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(f"{os.getpid()} the experience library in")
    assert f"is open in process {os.getpid()}" in run.stdout
    assert library.campaigns(), "the holder is not disturbed"


def test_locked_error_names_no_process_it_does_not_know() -> None:
    assert LockedError("open in another process", None).pid is None


def test_a_library_of_a_newer_version_is_left_alone(open_at: Open, closed: tuple[Path, object]) -> None:
    path = closed[0] / "experience.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO schema_version VALUES (?)", [len(MIGRATIONS) + 1])
    before = path.stat().st_size
    with pytest.raises(Exception, match="written by a newer rsi"):
        open_at(closed[0], journals())
    assert path.stat().st_size == before
    assert not path.with_name("experience.duckdb.damaged").exists()


def test_migrations_are_applied_once(tmp_path: Path) -> None:
    for _ in range(2):
        store = Store.open(tmp_path / "t.duckdb")
        versions = store._connection.execute("SELECT version FROM schema_version ORDER BY version").fetchall()
        assert [row[0] for row in versions] == list(range(1, len(MIGRATIONS) + 1))
        store.close()


def test_tables_of_an_older_schema_are_filled_from_the_journals(
    open_at: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(store, "MIGRATIONS", MIGRATIONS[:1])
        old = Store.open(tmp_path / "library" / "experience.duckdb")
        old._set_head(Head("20261101-1", 40, f"{40:064d}"))
        old.close()
    library = open_at(tmp_path / "library", Journals([batch()]))
    assert [row.terms for row in (library.record_of(c.id) for c in batch().candidates)] == ["t1", "t1"]  # type: ignore[union-attr]
    library.close()

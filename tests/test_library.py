"""The library as the engine opens it: wired to real journals, in the words of minds and journal."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experience.interface import ExperienceLibrary
from experience.records import Batch, CandidateRow
from rsi_tui import library as lib
from rsi_tui.errors import JournalError, LibraryError
from rsi_tui.journal import chain
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.home import add_note, note_dropped
from rsi_tui.journal.rows import SOFTWARE, batch_of, host_conditions
from rsi_tui.locations import Home
from tests.support.story import STAGES, Stage, write_home, write_story

CAMPAIGN = "20261130-1"


def batch_at(folder: Path, until: Stage = "finished", proven: bool = True) -> Batch:
    path = folder / f"{until}-{proven}" / "journal.jsonl"
    write_story(path, until=until, proven=proven)
    return lib.batch_from(batch_of(read_events(path)))


def rows_of(batch: Batch) -> dict[str, CandidateRow]:
    return {row.id.split("/")[1]: row for row in batch.candidates}


@pytest.fixture(scope="module")
def story_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def library(story_home: Home) -> Iterator[ExperienceLibrary]:
    opened = lib.open_library(story_home)
    yield opened
    opened.close()


# --- the projection ------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_a_journal_gives_rows_at_every_stage(tmp_path: Path, stage: Stage) -> None:
    batch = batch_at(tmp_path, stage)
    ids = [row.id for row in (*batch.entries, *batch.candidates, *batch.trials, *batch.directions)]
    assert len(set(ids)) == len(ids)
    assert all(name.startswith(f"{CAMPAIGN}/") for name in ids)
    assert (batch.last_seq, batch.head) == chain.head(tmp_path / f"{stage}-True" / "journal.jsonl")


def test_any_prefix_of_a_journal_gives_rows(tmp_path: Path) -> None:
    write_story(tmp_path / "journal.jsonl")
    events = read_events(tmp_path / "journal.jsonl")
    for length in range(1, len(events) + 1):
        batch = lib.batch_from(batch_of(events[:length]))
        assert batch.last_seq == length - 1
    with pytest.raises(JournalError, match="no campaign yet"):
        batch_of([])


def test_the_last_word_on_each_candidate(tmp_path: Path) -> None:
    rows = rows_of(batch_at(tmp_path))
    assert {name: (row.verdict, row.outcome) for name, row in rows.items()} == {
        "c1": ("screened", "ok"), "c2": ("screened", "ok"), "c4": ("screened", "ok"),
        "c3": ("failed", "oom"), "c5": ("invalid", ""), "c6": ("adopted", "ok"), "h3": ("refused", ""),
    }  # fmt: skip
    assert "bundle c6 is adopted" in rows["c1"].reason
    assert rows["h3"].reason.startswith("duplicate:")
    assert rows["c6"].bundle_of == tuple(f"{CAMPAIGN}/{name}" for name in ("c1", "c2", "c4"))


def test_before_its_verdict_a_promoted_candidate_is_open(tmp_path: Path) -> None:
    rows = rows_of(batch_at(tmp_path, "screening"))
    assert rows["c1"].verdict == ""
    assert rows["c1"].reason.startswith("promoted, not verified")
    assert rows["c3"].verdict == "failed"


def test_the_effect_comes_from_the_best_evidence_and_failures_have_none(tmp_path: Path) -> None:
    rows = rows_of(batch_at(tmp_path))
    assert rows["c6"].log_ratio == pytest.approx(-math.log(1.934))
    assert rows["c1"].log_ratio == pytest.approx(math.log(0.0986 / 0.118))
    assert rows["c3"].log_ratio is None
    assert rows["c3"].requested_bytes == 268435456
    assert {row.memory_limit_bytes for row in rows.values()} == {3 * 2**29}


def test_knobs_are_those_that_differ_from_the_defaults(tmp_path: Path) -> None:
    rows = rows_of(batch_at(tmp_path))
    assert (rows["c4"].knobs, rows["c1"].knobs, rows["c3"].knobs) == ({"threads": 2}, {}, {"micro_batch": 8})


def test_entries_are_hypotheses_failures_diffs_and_lessons(tmp_path: Path) -> None:
    batch = batch_at(tmp_path)
    texts = {entry.id.removeprefix(f"{CAMPAIGN}/"): entry for entry in batch.entries}
    assert {name for name in texts if name.startswith("hypothesis")} == {f"hypothesis/h{n}" for n in range(1, 7)}
    assert "step time -16.4 %" in texts["hypothesis/h1"].text
    assert texts["hypothesis/h1"].layer == "kernel"
    assert texts["failure/t23"].text.endswith("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory")
    assert "\x1b" not in texts["failure/t23"].text
    assert (texts["failure/t23"].outcome, texts["failure/t23"].candidate) == ("oom", f"{CAMPAIGN}/c3")
    assert "F.scaled_dot_product_attention" in texts["diff/c1"].text
    assert "scaled_dot_product_attention" in texts["diff/c1/1"].text
    assert texts["lesson/l1"].text.startswith("SDPA pays on two cores")


def test_the_campaigns_row_holds_the_claim_only_when_it_is_proven(tmp_path: Path) -> None:
    row = batch_at(tmp_path).campaign
    assert (row.state, row.candidates, row.trials_ok, row.trials_failed) == ("finished", 5, 45, 1)
    assert (row.speedup, row.speedup_low, row.speedup_high) == (1.9296, 1.8103, 2.0218)
    assert row.profile["backward"] == 0.513
    assert row.ended_at
    assert batch_at(tmp_path, proven=False).campaign.speedup is None
    assert batch_at(tmp_path, "verifying").campaign.ended_at == ""


def test_hardware_and_software_are_told_apart() -> None:
    assert host_conditions({"torch": "2.13", "cpu": "xeon", "cores": "2"}) == ("cores 2, cpu xeon", "torch 2.13")
    assert host_conditions({"hardware": "xeon 2", "software": "torch 2.13"}) == ("xeon 2", "torch 2.13")
    assert "cpu" not in SOFTWARE


# --- the wiring ----------------------------------------------------------------------------------


def test_importing_the_wiring_loads_nothing_heavy() -> None:
    script = "import sys, rsi_tui.library; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "lancedb", "duckdb", "sentence_transformers", "pyarrow", "transformers"]
    run = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_library_opened_on_a_home_knows_its_campaigns(library: ExperienceLibrary, story_home: Home) -> None:
    assert [row.id for row in library.campaigns()] == [CAMPAIGN]
    assert library.last_seq(CAMPAIGN) == chain.head(story_home.campaign(CAMPAIGN).journal)[0]
    assert library.stats().notes == ()


def test_past_effects_begin_with_what_was_proven_here(library: ExperienceLibrary) -> None:
    row = library.record_of(f"{CAMPAIGN}/c6")
    assert isinstance(row, CandidateRow)
    past = lib.past_effects(
        library,
        lib.Conditions(
            row.workload_key, row.hardware, row.software,
            base_commit=row.base_commit, terms=row.terms, memory_limit_bytes=row.memory_limit_bytes,
        ),
        limit=20,
    )  # fmt: skip
    assert all(effect.same_conditions for effect in past)
    assert past[0].record == row.id
    assert (past[0].verdict, past[0].fit, past[0].same_workload, past[0].knobs) == (
        "adopted",
        1.0,
        True,
        {"threads": 2},
    )
    assert past[0].techniques == ("sdpa", "fused-adamw", "threads")
    assert {p.outcome for p in past} >= {"oom", "ok"}, "failures are included"
    assert not [p for p in past if p.verdict in ("", "refused")]
    assert len(lib.past_effects(library, lib.Conditions("x"), limit=2)) == 2


def test_hits_are_facts_that_the_journal_can_record(library: ExperienceLibrary) -> None:
    memories = lib.recall(library, "the run was killed at its memory limit", lib.Conditions("dense-single-77ab"))
    assert memories.hits[0].kind in ("failure", "hypothesis")
    assert all("same workload" in hit.why for hit in memories.hits)
    assert memories.past
    body = ev.Retrieved(role="director", query=memories.query, hits=memories.hits, changed="")
    assert ev.Retrieved.model_validate_json(body.model_dump_json()) == body
    assert {hit.kind for hit in lib.hits(library, "attention", kinds=["lesson"])} == {"lesson"}


@dataclasses.dataclass(frozen=True)
class Card:
    """A technique as far as its card goes."""

    id: str = "paged-optimizer"
    title: str = "Paged optimizer states"
    layer: str = "memory"
    summary: str = "Moments that are rarely touched are kept in host memory."
    applies_when: str = "the optimizer's moments fill the device"
    affects: tuple[str, ...] = ()
    risk: str = "none"
    source: str = "QLoRA, section 3"
    conflicts: tuple[str, ...] = ()


def test_technique_cards_are_found_as_knowledge(library: ExperienceLibrary) -> None:
    for _ in range(2):
        lib.add_technique_cards(library, [Card()])  # type: ignore[list-item]
    assert library.stats().entries["knowledge"] == 1
    found = lib.hits(library, "paged-optimizer", kinds=["knowledge"])
    assert found[0].record == "knowledge/technique/paged-optimizer"


def test_sync_follows_a_growing_journal(tmp_path: Path) -> None:
    home = write_home(tmp_path, until="searching")
    opened = lib.open_library(home)
    with JournalWriter.open(home.campaign(CAMPAIGN).journal) as journal:
        journal.append(ev.StateChanged(state="stopped", reason="by a person"))
    lib.sync(opened, home, CAMPAIGN)
    assert opened.campaigns()[0].state == "stopped"
    assert opened.last_seq(CAMPAIGN) == chain.head(home.campaign(CAMPAIGN).journal)[0]
    opened.close()


def test_notes_of_the_home_come_back_with_the_library(tmp_path: Path) -> None:
    home = Home(tmp_path)
    add_note(home, "a person", "Micro-batch 16 needs the larger machine")
    add_note(home, "a person", "Paper on paging", source="paper.md")
    opened = lib.open_library(home)
    assert dict(opened.stats().entries) == {"knowledge": 1, "note": 1}
    opened.close()


def test_a_damaged_journal_is_noted_and_the_others_are_read(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    write_story(home.campaign("20261130-2").journal, campaign="20261130-2")
    path = home.campaign(CAMPAIGN).journal
    path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"sex":3', 1))
    opened = lib.open_library(home)
    assert [row.id for row in opened.campaigns()] == ["20261130-2"]
    assert any(CAMPAIGN in note and "line 4" in note for note in opened.stats().notes)
    opened.close()


def test_rebuild_reads_the_journals_again_and_names_what_it_could_not(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    write_story(home.campaign("20261130-2").journal, campaign="20261130-2")
    opened = lib.open_library(home)
    before = (opened.campaigns(), opened.stats().entries)
    assert lib.rebuild(opened) == []
    assert (opened.campaigns(), opened.stats().entries) == before
    home.campaign("20261130-2").journal.write_bytes(b"not an event\n")
    assert ["20261130-2" in note for note in lib.rebuild(opened)] == [True]
    assert [row.id for row in opened.campaigns()] == [CAMPAIGN]
    opened.close()


def test_an_import_brings_each_campaign_once_and_comes_back_after_a_rebuild(tmp_path: Path) -> None:
    theirs = write_home(tmp_path / "theirs")
    write_story(theirs.campaign("20261130-2").journal, campaign="20261130-2")
    add_note(theirs, "a colleague", "Huge pages helped on the old kernel")
    opened = lib.open_library(theirs)
    told = {row.id: row for row in opened.campaigns()}
    assert lib.export(opened, tmp_path / "out") == 2
    opened.close()
    home = write_home(tmp_path / "ours", until="screening")
    assert lib.import_folder(home, tmp_path / "out") == lib.import_folder(home, tmp_path / "out") == 2
    opened = lib.open_library(home)
    for _ in range(2):
        rows = {row.id: row for row in opened.campaigns()}
        assert rows["20261130-2"] == told["20261130-2"]
        assert rows[CAMPAIGN] != told[CAMPAIGN], "what this home has itself is its own"
        assert opened.search("huge pages kernel")[0].entry.text == "Huge pages helped on the old kernel"
        assert opened.stats().entries["note"] == 1
        assert lib.rebuild(opened) == []
    opened.close()


def test_what_is_no_export_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(LibraryError, match="is no export of a library"):
        lib.import_folder(Home(tmp_path / "home"), tmp_path / "folder")
    assert not (tmp_path / "home").exists()


def test_a_retrieval_is_told_with_what_it_led_to(tmp_path: Path) -> None:
    found = batch_at(tmp_path).retrievals
    assert found, "the story asks its library"
    assert found[0].id == f"{CAMPAIGN}/r1"
    assert {row.paid for row in found} <= {"proven", "not proven"}
    assert any(row.about.startswith(f"{CAMPAIGN}/d") for row in found)
    assert all(set(row.used) <= set(row.hits) for row in found)


def test_what_was_measured_again_and_what_was_removed_are_notes(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    with JournalWriter.open(home.campaign(CAMPAIGN).journal) as journal:
        journal.append(ev.Replayed(campaign=CAMPAIGN, candidate="c6", replay="r1", outcome="agrees", reason="1.9 again", before=None, now=None))
    note_dropped(home, ev.Dropped(who="a person", files=(ev.DroppedFile(path="campaigns/x/logs/t1.log", bytes=77, why="output of a run"),)))
    reader = lib.HomeReader(home)
    texts = [entry.text for entry in (*reader.batch(CAMPAIGN).entries, *reader.knowledge()) if entry.kind == "note"]
    assert any("measured again, c6: agrees" in text for text in texts)
    assert any("1 files, 77 bytes" in text and "t1.log" in text for text in texts)


def test_an_engine_that_has_it_open_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    script = (
        "import sys; from pathlib import Path; from rsi_tui.locations import Home; from rsi_tui.library import open_library\n"
        "library = open_library(Home(Path(sys.argv[1]))); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(LibraryError, match=f"is open in process {holder.pid} "):
            lib.open_library(home)
        holder.communicate("")
    lib.open_library(home).close()


def test_a_file_where_the_library_belongs_is_a_sentence(tmp_path: Path) -> None:
    Home(tmp_path).library.touch()
    with pytest.raises(LibraryError, match="folder can't be made"):
        lib.open_library(Home(tmp_path))

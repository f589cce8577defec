"""What lies beside a journal is on disk before it is named, is what its name says, and any damage to it is found."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from rsi_tui.errors import JournalError
from rsi_tui.journal.blobs import LOG_HEAD, LOG_TAIL, Blobs
from rsi_tui.journal.facts import BlobFacts


def test_what_was_put_comes_back_and_the_same_content_is_one_file(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    first, again, other = blobs.put(b"secret" * 1000), blobs.put(b"secret" * 1000), blobs.put(b"")
    assert first == again != other
    assert blobs.get(first) == b"secret" * 1000 and blobs.get(other) == b""
    assert sorted(path.name for path in (tmp_path / "blobs").iterdir()) == sorted(blobs.path(facts).name for facts in (first, other))
    assert blobs.path(first).stat().st_size < 200


def test_any_changed_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    rng, blobs = random.Random(1), Blobs(tmp_path)
    content = rng.randbytes(3000)
    facts = blobs.put(content)
    whole, changed = blobs.path(facts).read_bytes(), 0
    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 1 << rng.randrange(8)
        blobs.path(facts).write_bytes(bytes(bad))
        try:
            assert blobs.get(facts) == content
        except JournalError as error:
            assert str(blobs.path(facts)) in str(error)
            changed += 1
    assert changed > len(whole) - 12  # time, system and the like in the first bytes hold nothing of the content


@pytest.mark.parametrize("kept", [0, 1, 10, 100])
def test_a_file_that_was_cut_off_is_damaged_and_put_again(tmp_path: Path, kept: int) -> None:
    blobs = Blobs(tmp_path)
    facts = blobs.put(random.Random(2).randbytes(3000))
    blobs.path(facts).write_bytes(blobs.path(facts).read_bytes()[:kept])
    assert "damaged" in blobs.problem(facts)
    assert blobs.put(random.Random(2).randbytes(3000)) == facts and blobs.problem(facts) == ""


def test_another_content_under_the_name_is_damage_and_none_is_missing(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    facts = blobs.put(b"order: ABBA")
    blobs.path(facts).write_bytes(gzip.compress(b"order: BAAB"))
    assert "does not match" in blobs.problem(facts)
    blobs.path(facts).unlink()
    assert "missing" in blobs.problem(facts) and not blobs.has(facts)


def test_a_blob_unpacks_to_no_more_than_its_event_says(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    facts = blobs.put(b"0" * 10)
    blobs.path(facts).write_bytes(gzip.compress(b"0" * 50_000_000))
    assert "does not match" in blobs.problem(facts)
    assert "more than" in blobs.problem(BlobFacts(sha256=facts.sha256, bytes=2**40))


def test_where_the_disk_is_full_nothing_half_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(JournalError, match="No space left on device; free some space"):
        Blobs(tmp_path).put(b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_long_log_keeps_its_begin_and_its_end(tmp_path: Path) -> None:
    lines = [f"step {n} loss {n / 7:.4f}" for n in range(100_000)]
    blobs = Blobs(tmp_path)
    facts = blobs.put_log(lines)
    text = blobs.get(facts).decode()
    assert text.startswith("step 0 ") and text.endswith("step 99999 loss 14285.5714\n")
    size = sum(len(line) + 1 for line in lines)
    assert facts.left_out == size - LOG_HEAD - LOG_TAIL and f"[{facts.left_out} bytes were left out here]" in text
    assert facts.bytes < LOG_HEAD + LOG_TAIL + 100


def test_a_short_log_is_kept_as_it_is_torn_characters_replaced(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    facts = blobs.put_log(["größer", "torn \ud800"])
    assert blobs.get(facts).decode() == "größer\ntorn ?\n" and facts.left_out == 0

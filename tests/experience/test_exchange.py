"""Libraries that travel, secrets that stay behind, predictions and questions that are remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experience import exchange
from experience.calibration import calibrated, factor, scored
from experience.errors import ExperienceError, UnreadableJournalError
from experience.interface import ExperienceLibrary
from experience.records import Entry, RetrievalRow
from experience.redact import redacted
from tests.experience.batches import Journals, batch, candidate, entry
from tests.experience.conftest import Open

A = "20261101-1"


def test_an_export_gives_every_campaign_back_as_it_was(library: ExperienceLibrary, tmp_path: Path) -> None:
    assert library.export(str(tmp_path / "out")) == 1
    assert [(head.campaign, head.last_seq) for head in exchange.heads_of(tmp_path / "out")] == [(A, 40)]
    assert exchange.batch_of(tmp_path / "out", A) == replace(
        batch(), entries=tuple(sorted(batch().entries, key=lambda e: e.id)), candidates=tuple(sorted(batch().candidates, key=lambda c: c.id))
    )
    assert exchange.check(tmp_path / "out") == 1
    text = (tmp_path / "out" / "library.md").read_text()
    assert "Attention pays on two cores" in text
    with pytest.raises(ExperienceError, match="holds something already"):
        library.export(str(tmp_path / "out"))


def test_a_damaged_export_is_told_by_a_sentence(library: ExperienceLibrary, tmp_path: Path) -> None:
    library.export(str(tmp_path / "out"))
    (tmp_path / "out" / "candidates.parquet").write_bytes(b"no parquet")
    with pytest.raises(UnreadableJournalError, match="can't be read"):
        exchange.batch_of(tmp_path / "out", A)
    with pytest.raises(ExperienceError, match="is no export"):
        exchange.heads_of(tmp_path)


SECRETS = (
    ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("pushing to https://ann:pa55word@example.org/repo", "pa55word"),
    ("Authorization: Bearer abcdef1234567890abcdef", "abcdef1234567890"),
    ("using hf_abcdefghijklmnopqrstuvwxyz", "hf_abc"),
    ("password: 'correct horse' or \"tr0ub4dor&3\", password = \"tr0ub4dor&3\"", "= \"tr0"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\n-----END OPENSSH PRIVATE KEY-----", "b3Blb"),
    ("key sk-ant-api03-abcdefghijklmnopqrstuv", "sk-ant"),
    ("AKIAABCDEFGHIJKLMNOP", "AKIA"),
)


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_are_not_stored(text: str, secret: str, library: ExperienceLibrary) -> None:
    library.add_knowledge([Entry(id="knowledge/1", kind="knowledge", text=text)])
    stored = library.record_of("knowledge/1")
    assert isinstance(stored, Entry)
    assert secret not in stored.text
    assert "[redacted" in stored.text


@pytest.mark.parametrize(
    "text",
    [
        "token = os.environ['HF_TOKEN']", "max_new_token: 2560000", "pad_token = tokenizer.eos_token_id", "eos_token=50256abc",
        "tokens_per_step = 16384000", "secret = draw_secret(7)", "sha256 53aa51172d142c89d9012cce15ae4d6c", "--micro-batch 8", "KV cache key: value",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_questions_are_remembered_with_what_became_of_them(open_at: Open, tmp_path: Path) -> None:
    rows = tuple(
        RetrievalRow(id=f"{A}/r{n}", campaign=A, role="director", query="attention", hits=("a", "b"), used=("a",), changed="opened", about=f"{A}/d1", paid="proven", at=f"2026-11-0{n}")
        for n in (1, 2)
    )  # fmt: skip
    library = open_at(tmp_path, Journals([replace(batch(), retrievals=rows)]))
    assert library.retrievals() == [rows[1], rows[0]]
    assert library.retrievals(A, 1) == [rows[1]]
    assert library.retrievals("another") == []
    library.close()


@pytest.mark.parametrize(
    ("predicted", "measured", "word"),
    [(-0.1, -0.12, "hit"), (-0.1, -0.03, "overshoot"), (-0.1, -0.4, "undershoot"), (-0.1, 0.05, "miss"), (-0.1, 0.001, "miss"), (-0.005, 0.004, "hit"), (-0.1, None, "failed")],
)  # fmt: skip
def test_a_prediction_is_scored(predicted: float, measured: float | None, word: str) -> None:
    assert scored(predicted, measured) == word


def test_a_factor_begins_at_one_and_follows_the_evidence() -> None:
    assert factor([]) == 1.0
    assert factor([(-0.1, -0.1)]) == pytest.approx(1.0)
    assert factor([(-0.1, None)]) == pytest.approx(2 / 3)
    assert factor([(-0.1, -0.05)] * 50) == pytest.approx(0.5, abs=0.03)
    assert factor([(-0.1, 0.3)] * 50) == 0.0


def test_minds_and_techniques_are_calibrated_apart(library: ExperienceLibrary) -> None:
    rows = [
        candidate(A, "c1", predicted_time=-0.3, log_ratio=-0.3, verdict="adopted"),
        candidate(A, "c2", techniques=("x", "y"), predicted_time=-0.1, log_ratio=0.1),
        candidate(A, "c3", predicted_time=-0.2, log_ratio=None, outcome="oom", verdict="failed"),
        candidate(A, "c4", predicted_time=-0.2, log_ratio=None, outcome="preempted"),
        candidate(A, "c5", bundle_of=(f"{A}/c1",), predicted_time=-0.2),
    ]
    found = {(item.by, item.name): item for item in calibrated(rows, {A: "builtin"})}
    assert found.keys() == {("mind", "builtin"), ("technique", "sdpa")}
    mind = found["mind", "builtin"]
    assert (mind.predictions, mind.hits, mind.misses, mind.failed) == (3, 1, 1, 1)
    assert library.calibration() == calibrated(batch().candidates, {A: "builtin"})


def test_contradicting_lessons_stand_side_by_side(open_at: Open, tmp_path: Path) -> None:
    one = entry(A, "lesson", "l1", "Pinned memory pays here", layer="data")
    other = entry("20261102-1", "lesson", "l1", "Pinned memory does not pay here", layer="data")
    library = open_at(tmp_path, Journals([replace(batch(A), entries=(one,)), replace(batch("20261102-1"), entries=(other,))]))
    assert {hit.entry.text for hit in library.lessons(layer="data")} == {one.text, other.text}
    library.close()

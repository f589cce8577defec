"""Does the library find what is asked, and does the gate know a failed idea in disguise?

    scripts/bench/retrieval.py [--aside] [--quick] [--json] [--home DIR] [--seconds S]

Labelled questions (`retrieval_data`) over the cards of all techniques among 20,000 distractors about other things, 5,000 of
them really encoded and the rest perturbed; a question is answered when the technique it was written for is among the first
five. Every second question is kept aside and asked with --aside alone. Then 20 failed ideas, each told again in other words
and with its diff edited, and 40 new ones (`repeats_data`), before the gate. --quick has 500 distractors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from experience.chunk import diff_texts
from experience.conditions import Conditions
from experience.encoder import MiniLM
from experience.library import DirectLibrary, open_library
from experience.records import Batch, CampaignRow, CandidateRow, Entry
from rsi_tui.library import add_technique_cards
from rsi_tui.techniques.registry import all_techniques
from scripts.bench import corpus
from scripts.bench.common import Figure, show
from scripts.bench.library import AGAIN, NoJournals
from scripts.bench.repeats_data import FAILED, NEW, Change, diff_of
from scripts.bench.retrieval_data import IDEAS, QUESTIONS

DISTRACTORS, ENCODED = 20_000, 5_000
FIRST = 5
HERE = Conditions("w", "cores 2", "torch 2", base_commit="b", terms="t", memory_limit_bytes=2**31)


def filled(folder: Path, distractors: int, encoded: int, until: float) -> DirectLibrary:
    """The library of cards and distractors."""
    base = corpus.texts(encoded, seed=5, ideas=IDEAS)
    encoder = corpus.Perturbed(folder / "encoded", base, until)
    library = open_library(folder / "library", NoJournals(), encoder)
    stored = {row.id for row in library.campaigns()}
    for batch in corpus.batches(distractors, base):
        if batch.campaign.id not in stored:
            library.ingest(batch)
    add_technique_cards(library, all_techniques())
    assert isinstance(library, DirectLibrary)
    return library


def asked(library: DirectLibrary, questions: list[tuple[str, str]], missed: list[str]) -> dict[str, float]:
    """Share of the questions answered within the first five: hybrid, by meaning alone, by words alone."""
    found = {"hybrid": 0, "meaning alone": 0, "words alone": 0}
    for text, technique in questions:
        right = f"knowledge/technique/{technique}"
        ways = {
            "hybrid": [hit.entry.id for hit in library.search(text, limit=FIRST)],
            "meaning alone": [item.id for item in library._by_meaning(text, "", FIRST) or ()],
            "words alone": [item.id for item in library._vectors.by_words(text, "", FIRST)],
        }
        for way, ids in ways.items():
            found[way] += right in ids
        if right not in ways["hybrid"]:
            missed.append(f"missed: {text!r} ({technique})")
    return {way: count / len(questions) for way, count in found.items()}


def gate(folder: Path, encoder: MiniLM) -> DirectLibrary:
    """A library of one campaign in which all of FAILED failed."""
    rows, entries = [], []
    for number, idea in enumerate(FAILED, 1):
        row = CandidateRow(
            id=f"past/c{number}", campaign="past", workload_key="w", parent="past/original", direction="", layer="kernel", statement=idea.statement,
            techniques=(), knobs={}, base_stack=(), base_knobs={}, diff_hash=f"hash{number}", launch_fingerprint="", predicted_time=-0.05,
            predicted_memory=0.0, log_ratio=0.02, peak_bytes=None, outcome="ok", verdict="slower", reason="slower", memory_limit_bytes=2**31,
            requested_bytes=None, hardware="cores 2", software="torch 2", at="2026-11-01", base_commit="b", terms="t",
        )  # fmt: skip
        rows.append(row)
        texts = diff_texts(diff_of(idea.change), idea.statement)
        entries += [Entry(id=f"past/diff/c{number}/{n}", kind="diff", text=text, campaign="past", candidate=row.id) for n, text in enumerate(texts)]
    campaign = CampaignRow("past", "w", "w", "finished", "A", "quick", "bench", "c", "cores 2", "torch 2", "2026-11-01")
    library = open_library(folder, NoJournals(), encoder)
    library.ingest(Batch(campaign, 1, "h", candidates=tuple(rows), entries=tuple(entries)))
    assert isinstance(library, DirectLibrary)
    return library


def refused(library: DirectLibrary, statement: str, change: Change | None) -> str:
    """The candidate that the proposal is said to repeat; '' when it is let through."""
    diff = diff_of(change, line=90) if change else ""
    found = library.duplicates("new", "", (), HERE, (), {}, statement=statement, diff=diff)
    return found[0].row.id if found else ""


def figures(folder: Path, told: argparse.Namespace, notes: list[str]) -> Iterator[Figure]:
    distractors, encoded = (500, 500) if told.quick else (DISTRACTORS, ENCODED)
    library = filled(folder / "search", distractors, encoded, time.monotonic() + told.seconds)
    questions = [question for number, question in enumerate(QUESTIONS) if number % 2 == told.aside]
    yield Figure("questions", len(questions), "", "", None)
    yield Figure("distractors", distractors, "", "", None)
    for way, share in asked(library, questions, notes).items():
        hybrid = way == "hybrid"
        yield Figure(f"the right card in the first {FIRST}, {way}", share, "", "at least 0.9" if hybrid else "", share >= 0.9 if hybrid else None)
    library.close()
    library = gate(folder / "gate", MiniLM())
    past = [f"past/c{number}" for number in range(1, len(FAILED) + 1)]
    words = [refused(library, idea.again, None) for idea in FAILED]
    both = [refused(library, idea.again, idea.edited) for idea in FAILED]
    code = [refused(library, "", idea.edited) for idea in FAILED]
    new = [refused(library, idea.statement, idea.change) for idea in NEW]
    early = [refused(library, idea.statement, None) for idea in NEW]
    yield Figure("failed ideas in other words, built anew: refused", sum(map(str.__eq__, both, past)), f"of {len(FAILED)}", "at least 18", sum(map(str.__eq__, both, past)) >= 18)
    yield Figure("... before their code is written", sum(map(str.__eq__, words, past)), f"of {len(FAILED)}", "", None)
    yield Figure("failed ideas with an edited diff: refused", sum(map(str.__eq__, code, past)), f"of {len(FAILED)}", "at least 18", sum(map(str.__eq__, code, past)) >= 18)
    yield Figure("new ideas refused", sum(map(bool, new)), f"of {len(NEW)}", "at most 2", sum(map(bool, new)) <= 2)
    yield Figure("... before their code is written", sum(map(bool, early)), f"of {len(NEW)}", "at most 2", sum(map(bool, early)) <= 2)
    notes += [f"let through: {idea.again}" for idea, found in zip(FAILED, both, strict=True) if not found]
    notes += [f"refused: {idea.statement} (as {found})" for idea, found in zip(NEW, new, strict=True) if found]
    library.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        notes: list[str] = []
        try:
            found = list(figures(told.home or Path(folder), told, notes))
        except corpus.LaterError:
            print("not done: call it again with the same --home", file=sys.stderr)
            return AGAIN
        return show("retrieval", found, told.json, notes, "--aside" if told.aside else "")


if __name__ == "__main__":
    sys.exit(main())

"""Texts: words as people type them, diffs and documents in pieces that the encoder can read whole."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experience.chunk import CODE_LIMIT, MAX_HUNKS, PROSE_LIMIT, diff_texts, hunks_of, prose_pieces
from experience.encoder import MiniLM
from experience.knowledge import entries_of, sections
from experience.likeness import features_of, likeness
from experience.words import shared_words, words_of

DIFF = """\
diff --git a/model/attention.py b/model/attention.py
--- a/model/attention.py
+++ b/model/attention.py
@@ -71,6 +71,3 @@ class Attention(nn.Module):
         q, k, v = self.split(x)
-        scores = q @ k.transpose(-2, -1)
-        weights = torch.softmax(scores, dim=-1)
--- a line that begins with dashes
-        y = weights @ v
+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
         return y
diff --git a/old.py b/old.py
deleted file mode 100644
--- a/old.py
+++ /dev/null
@@ -1 +0,0 @@
-import apex
\\ No newline at end of file
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--micro-batch", ["micro-batch", "micro", "batch", "microbatch"]),
        ("micro_batch=8", ["micro_batch", "micro", "batch", "microbatch", "8"]),
        ("torch.nn.CrossEntropyLoss()", ["torch.nn.crossentropyloss", "torch", "nn", "cross", "entropy", "loss", "torchnncrossentropyloss"]),
        ("2.13.0", ["2.13.0"]),
        ("Ende.", ["ende"]),
    ],
)  # fmt: skip
def test_identifiers_keep_their_whole_and_their_parts(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_shared_words_pass_over_endings() -> None:
    assert shared_words("fusing gradients", "the gradient is fused late") == ["fusing", "gradients"]


def test_a_diff_is_read_by_its_hunk_headers() -> None:
    first, second = hunks_of(DIFF)
    assert (first.path, first.context) == ("model/attention.py", "class Attention(nn.Module):")
    assert first.removed[2] == "-- a line that begins with dashes"
    assert len(first.added) == 1
    assert (second.path, second.removed, second.added) == ("old.py", ("import apex",), ())


def test_a_diffs_summary_names_files_functions_and_new_names() -> None:
    summary, *hunks = diff_texts(DIFF, "attention in tiles")
    assert summary.startswith("attention in tiles\nfiles: model/attention.py, old.py\nin: class Attention(nn.Module):")
    assert "F.scaled_dot_product_attention" in summary
    assert len(hunks) == 2


LINES = st.lists(st.sampled_from(["a = 1", "--- x", "+++ y", "@@ -1 +1 @@", "", "  return z"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(before=LINES, after=LINES)
def test_every_changed_line_of_a_unified_diff_is_in_a_hunk(before: list[str], after: list[str]) -> None:
    diff = list(difflib.unified_diff(before, after, "a/f.py", "b/f.py", lineterm="", n=1))
    body = diff[2:]
    hunks = hunks_of("\n".join(diff))
    added = [line for hunk in hunks for line in hunk.added]
    removed = [line for hunk in hunks for line in hunk.removed]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    assert len(added) - len(removed) == len(after) - len(before)
    assert len(hunks) == sum(1 for _ in matcher.get_grouped_opcodes(1)) or not body
    assert all(hunk.path == "f.py" for hunk in hunks)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab .\n", max_size=600), limit=st.integers(20, 120))
def test_pieces_are_short_and_lose_nothing(text: str, limit: int) -> None:
    pieces = prose_pieces(text, limit)
    assert all(0 < len(piece) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=400))
def test_no_text_breaks_the_cutters(text: str) -> None:
    assert len(diff_texts(text)) <= MAX_HUNKS + 1
    assert isinstance(words_of(text), list)
    assert len({entry.id for entry in entries_of(text, "x.md")}) == len(entries_of(text, "x.md"))


def test_what_is_cut_fits_into_the_encoders_256_tokens(encoder: MiniLM) -> None:
    encoder.load()
    code = "\n".join(
        f"        self.block_{i}.attention.weight_{i} = torch.nn.functional.softmax(x[{i}])" for i in range(60)
    )
    diff = "--- a/m.py\n+++ b/m.py\n@@ -0,0 +1,60 @@\n" + "".join(f"+{line}\n" for line in code.splitlines())
    prose = "The optimizer keeps two moments for each parameter and reads them at every step of the training run. " * 40
    lengths = [len(encoder._model.tokenizer.encode(text)) for text in (*diff_texts(diff), *prose_pieces(prose))]
    assert max(lengths) <= 256, (CODE_LIMIT, PROSE_LIMIT)


def test_documents_are_cut_by_heading_and_code_is_no_heading() -> None:
    document = "intro\n# Guide\n## Attention\nUse tiles.\n```\n# not a heading\n```\n# Notes\nend"
    assert list(sections(document)) == [
        ("", "intro"),
        ("Guide > Attention", "Use tiles.\n```\n# not a heading\n```"),
        ("Notes", "end"),
    ]
    entries = entries_of(document, "guide.md")
    assert entries == entries_of(document, "guide.md")
    assert entries[1].text.startswith("Guide > Attention\n")
    assert {entry.source for entry in entries} == {"guide.md"}


def test_a_document_with_an_open_code_block_keeps_its_end() -> None:
    assert list(sections("# A\n```\ncode")) == [("A", "```\ncode")]


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("+ h = F.gelu(hidden, approximate='tanh')  # fused", True),
        ("+ x=F.gelu(x,approximate=\"tanh\")", True),
        ("+ y = F.silu(x, inplace=True)", False),
        ("- y = F.gelu(x, approximate='tanh')", False),
        ("+ # a comment alone", False),
    ],
)
def test_names_layout_and_comments_do_not_make_another_change(line: str, same: bool) -> None:
    known = features_of(["model.py forward\n+ y = F.gelu(x, approximate='tanh')"])
    found = likeness(known, features_of([f"train.py\n{line}"]))
    assert (found > 0.9) == same
    assert 0 <= found <= 1


def test_what_is_removed_and_added_alike_is_no_change() -> None:
    assert not features_of(["a.py\n- y = f(x)\n+ z = f(w)  # renamed only"])
    assert likeness(features_of([]), features_of([])) == 0.0

"""The patch applier: what applies, what is refused, and that a refusal names the line."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsi_tui.errors import PatchError
from rsi_tui.repo.patch import Edit, apply_diff, apply_edits, make_diff, normalised_diff_hash

TEN = "".join(f"line {n}\n" for n in range(1, 11))


def change(path: str = "m.py", at: str = "@@ -4,3 +4,3 @@", old: str = "line 5", new: str = "LINE 5") -> str:
    return f"--- a/{path}\n+++ b/{path}\n{at}\n line 4\n-{old}\n+{new}\n line 6\n"


CHANGED = TEN.replace("line 5", "LINE 5")


@pytest.mark.parametrize(
    "diff",
    [
        pytest.param(change(), id="plain"),
        pytest.param("diff --git a/m.py b/m.py\nindex 12ab..34cd 100644\n" + change(), id="git headers"),
        pytest.param("Here is the change:\n\n```diff\n" + change() + "```\nIt is faster.\n", id="fenced in prose"),
        pytest.param("Here is the change:\n" + change(), id="prose before"),
        pytest.param(change() + "\n\n", id="blank lines after"),
        pytest.param(change() + "-- \n2.39.5\n\n", id="format-patch signature"),
        pytest.param(change().replace("a/m.py", "m.py").replace("b/m.py", "m.py"), id="no prefixes"),
        pytest.param(change().replace("m.py\n", "m.py\t2026-01-01 00:00:00\n"), id="dates after the names"),
        pytest.param(change(at="@@ -4,9 +4,1 @@"), id="wrong counts"),
        pytest.param(change(at="@@ -4,2 +4,2 @@"), id="counts too small"),
        pytest.param(change(at="@@"), id="no numbers"),
        pytest.param(change(at="@@ ... @@"), id="dots for numbers"),
        pytest.param(change(at="@@ -400,3 +400,3 @@ def f():"), id="wrong place, the only one that fits"),
        pytest.param(change().replace("\n", "\r\n"), id="the whole diff in CRLF"),
        pytest.param(change().removesuffix("\n"), id="no newline at the diff's end"),
    ],
)
def test_an_unambiguous_diff_is_applied(diff: str) -> None:
    assert apply_diff({"m.py": TEN}, diff) == {"m.py": CHANGED}


def test_wrong_counts_before_another_file_are_read_by_structure() -> None:
    diff = change("m.py", at="@@ -4,4 +4,4 @@") + change("n.py")
    assert apply_diff({"m.py": TEN, "n.py": TEN}, diff) == {"m.py": CHANGED, "n.py": CHANGED}


def test_removed_lines_that_look_like_headers_are_lines() -> None:
    before = "select 1\n-- old\n-- more\nend\n"
    after = "select 1\n++ new\nend\n"
    assert apply_diff({"q": before}, make_diff({"q": before}, {"q": after})) == {"q": after}


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        pytest.param(change(old="line five"), "m.py: line 5 is 'line 5', but the patch expects 'line five'", id="differs"),
        pytest.param(change("other.py"), "other.py does not exist", id="no such file"),
        pytest.param("I would change the optimizer.\n", "no unified diff", id="prose alone"),
        pytest.param(change() + "and then\n", "neither header", id="prose after"),
        pytest.param(change(at="@@ -4,3 +4,3 @@").replace(" line 6", "line 6"), "neither header", id="context without its space"),
        pytest.param(change("../m.py"), "not a plain path", id="out of the tree"),
        pytest.param(change("/etc/passwd").replace("a/", "").replace("b/", ""), "not a plain path", id="absolute"),
        pytest.param(change(".git/config"), "not a plain path", id="git's own folder"),
        pytest.param("--- /dev/null\n+++ b/m.py\n@@ -0,0 +1 @@\n+x\n", "exists already", id="creates what exists"),
        pytest.param("--- a/m.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-line 1\n", "leaves lines of it", id="deletes half a file"),
        pytest.param("diff --git a/m.py b/m.py\nold mode 100644\nnew mode 100755\n", "changes the mode", id="mode"),
        pytest.param("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "link", id="link"),
        pytest.param("diff --git a/s b/s\nnew file mode 160000\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+x\n", "submodule", id="submodule"),
        pytest.param("diff --git a/x b/x\nindex 1..2\nBinary files a/x and b/x differ\n", "binary", id="binary"),
        pytest.param("--- a/m.py\n+++ b/m.py\n@@\n+import x\n", "where it belongs", id="addition without a place"),
        pytest.param("--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n line 1\n line 2\n", "changes nothing", id="context alone"),
        pytest.param("--- a/m.py\n+++ b/n.py\n@@ -1 +1 @@\n-line 1\n+x\n", "two files", id="two names"),
        pytest.param(change() + change()[change().index("@@") :], "same lines", id="the same hunk twice"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_does_not_fit_is_refused_in_words(diff: str, said: str) -> None:
    files = {"m.py": TEN, "n.py": TEN}
    with pytest.raises(PatchError, match=r"(?s).*") as caught:
        apply_diff(files, diff)
    assert said in str(caught.value)
    assert files == {"m.py": TEN, "n.py": TEN}


def test_a_hunk_that_fits_twice_is_refused_unless_its_place_is_stated_rightly() -> None:
    text = "a\nx\nb\na\nx\nb\n"
    hunk = "--- a/f\n+++ b/f\n@@{} @@\n a\n-x\n+y\n b\n"
    assert apply_diff({"f": text}, hunk.format(" -4,3 +4,3")) == {"f": "a\nx\nb\na\ny\nb\n"}
    with pytest.raises(PatchError, match="fits in 2 places"):
        apply_diff({"f": text}, hunk.format(" -3,3 +3,3"))


def test_hunks_in_any_order_are_placed_against_the_original() -> None:
    first = "@@ -1,2 +1,4 @@\n line 1\n+a\n+b\n line 2\n"
    second = "@@ -9,2 +11,1 @@\n line 9\n-line 10\n"
    wanted = TEN.replace("line 1\nline 2", "line 1\na\nb\nline 2").replace("line 9\nline 10\n", "line 9\n")
    for body in (first + second, second + first):
        assert apply_diff({"f": TEN}, "--- a/f\n+++ b/f\n" + body) == {"f": wanted}


def test_a_file_keeps_its_own_line_ends() -> None:
    crlf = TEN.replace("\n", "\r\n")
    assert apply_diff({"m.py": crlf}, change()) == {"m.py": CHANGED.replace("\n", "\r\n")}
    assert apply_diff({"m.py": crlf}, change().replace("\n", "\r\n")) == {"m.py": CHANGED.replace("\n", "\r\n")}
    marked = "".join(
        line + ("\r\n" if line[0] in " +-" and line[1:2] == "l" else "\n") for line in change().splitlines()
    )
    assert apply_diff({"m.py": TEN}, marked.replace("+LINE 5\n", "+LINE 5\r\n")) == {"m.py": CHANGED}
    mixed = "a\r\nb\nc\r\n"
    assert apply_diff({"f": mixed}, "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n") == {"f": "a\r\nB\nc\r\n"}


def test_a_file_without_a_last_newline_keeps_none_where_the_patch_is_silent() -> None:
    bare = TEN.removesuffix("\n")
    tail = "--- a/f\n+++ b/f\n@@ -9,2 +9,2 @@\n line 9\n-line 10\n+ten\n"
    assert apply_diff({"f": bare}, tail) == {"f": bare.replace("line 10", "ten")}
    added = "--- a/f\n+++ b/f\n@@ -10,1 +10,2 @@\n line 10\n+line 11\n"
    assert apply_diff({"f": bare}, added) == {"f": bare + "\nline 11"}


def test_a_patch_that_says_there_is_no_last_newline_is_held_to_it() -> None:
    diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n"
    assert apply_diff({"f": "x"}, diff) == {"f": "y\n"}
    with pytest.raises(PatchError, match="ends without a line feed"):
        apply_diff({"f": "x\n"}, diff)
    with pytest.raises(PatchError, match="more lines follow"):
        apply_diff({"f": "x\nz\n"}, "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file\n")


def test_creating_deleting_renaming_and_copying() -> None:
    files = {"old name.py": TEN, "gone.py": "x\n", "empty": ""}
    diff = (
        "diff --git a/old name.py b/new name.py\nsimilarity index 90%\nrename from old name.py\nrename to new name.py\n"
        "--- a/old name.py\t\n+++ b/new name.py\t\n@@ -4,3 +4,3 @@\n line 4\n-line 5\n+LINE 5\n line 6\n"
        "diff --git a/gone.py b/gone.py\ndeleted file mode 100644\n--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/fresh.py b/fresh.py\nnew file mode 100644\n--- /dev/null\n+++ b/fresh.py\n@@ -0,0 +1 @@\n+y\n"
        "diff --git a/blank b/blank\nnew file mode 100644\nindex 0000000..e69de29\n"
        "diff --git a/empty b/empty\ndeleted file mode 100644\nindex e69de29..0000000\n"
    )
    assert apply_diff(files, diff) == {
        "old name.py": None, "new name.py": CHANGED, "gone.py": None, "fresh.py": "y\n", "blank": "", "empty": None,
    }  # fmt: skip
    copied = "diff --git a/gone.py b/kept.py\nsimilarity index 100%\ncopy from gone.py\ncopy to kept.py\n"
    assert apply_diff(files, copied) == {"kept.py": "x\n"}
    loose = "--- a/new.py\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert apply_diff(files, loose) == {"new.py": "a\nb\n"}


def test_a_folder_named_like_a_prefix_is_not_stripped() -> None:
    diff = "--- b/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x\n+y\n"
    assert apply_diff({"b/m.py": "x\n", "m.py": "x\n"}, diff) == {"b/m.py": "y\n"}


def test_an_empty_answer_changes_nothing() -> None:
    assert apply_diff({"m.py": TEN}, "") == {} == apply_diff({"m.py": TEN}, "\n  \n")
    assert normalised_diff_hash("") == ""


# --- edits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("line 5\n", "LINE 5\n"),
        ("line 5", "LINE 5"),
        ("```python\nline 5\n```", "```python\nLINE 5\n```"),
        ("-line 5\n", "+LINE 5\n"),
        (" line 4\n-line 5\n", " line 4\n+LINE 5\n"),
        ("line 4\r\nline 5\r\n", "line 4\r\nLINE 5\r\n"),
    ],
)
def test_an_exact_and_unique_edit_is_applied(old: str, new: str) -> None:
    assert apply_edits({"m.py": TEN}, [Edit("m.py", old, new)]) == {"m.py": CHANGED}
    crlf = TEN.replace("\n", "\r\n")
    assert apply_edits({"m.py": crlf}, [Edit("m.py", old, new)]) == {"m.py": CHANGED.replace("\n", "\r\n")}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Edit("m.py", "line", "x"), "stands 10 times"),
        (Edit("m.py", "line 5\nline 7\n", "x"), "line 6 is 'line 6', but the patch expects 'line 7'"),
        (Edit("m.py", "", "x"), "exists already"),
        (Edit("n.py", "a", "b"), "n.py does not exist"),
        (Edit("../n.py", "", "b"), "not a plain path"),
        (Edit("m.py", "ine 5\nl", "ine 5\nl") , ""),
    ],
)  # fmt: skip
def test_an_edit_that_is_not_exact_and_unique_is_refused_in_words(edit: Edit, said: str) -> None:
    if not said:
        assert apply_edits({"m.py": TEN}, [edit]) == {}
        return
    with pytest.raises(PatchError) as caught:
        apply_edits({"m.py": TEN}, [edit])
    assert said in str(caught.value)


def test_overlapping_occurrences_count_as_two() -> None:
    with pytest.raises(PatchError, match="stands 2 times"):
        apply_edits({"f": "aaa"}, [Edit("f", "aa", "b")])


def test_one_refused_edit_leaves_all_files_alone() -> None:
    files = {"m.py": TEN}
    with pytest.raises(PatchError):
        apply_edits(files, [Edit("m.py", "line 5", "x"), Edit("m.py", "nothing", "y")])
    assert files == {"m.py": TEN}
    assert apply_edits(files, [Edit("n.py", "", "new\n"), Edit("n.py", "new", "newer")]) == {"n.py": "newer\n"}


# --- properties -------------------------------------------------------------------------------

LINE = st.one_of(
    st.sampled_from(
        ["", "a", "b", "-- x", "++ y", "@@ -1 +1 @@", "```", "\\ No newline at end of file", "x\r", "\r", " ", "é"]
    ),
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8),
)
TEXT = st.builds(
    lambda lines, last: "\n".join(lines) + ("\n" if last and lines else ""), st.lists(LINE, max_size=14), st.booleans()
)
NAME = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and name.lower() != ".git")  # fmt: skip
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(PATH, TEXT, max_size=3)


@settings(max_examples=250, deadline=None)
@given(FILES, FILES)
def test_a_made_diff_gives_back_the_files_to_the_byte(before: dict[str, str], more: dict[str, str]) -> None:
    after = dict(zip(before, more.values(), strict=False)) | more
    changed = apply_diff(before, make_diff(before, after))
    now = {path: text for path, text in (before | changed).items() if text is not None}
    assert now == after


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=3, max_size=20), st.data())
def test_an_applied_hunk_never_touches_what_it_does_not_name(lines: list[str], data: st.DataObject) -> None:
    text = "".join(line + "\n" for line in lines)
    at = data.draw(st.integers(0, len(lines) - 1))
    after = "".join(("NEW" if n == at else line) + "\n" for n, line in enumerate(lines))
    diff = make_diff({"f": text}, {"f": after})
    shift = data.draw(st.integers(-3, 3))
    start = diff.index("@@ -") + 4
    end = diff.index(" ", start)
    first, _, count = diff[start:end].partition(",")
    moved = diff[:start] + f"{max(0, int(first) + shift)}" + ("," + count if count else "") + diff[end:]
    try:
        result = apply_diff({"f": text}, moved)
    except PatchError:
        return
    # Wherever it went, exactly one line became NEW, and it stood in the stated context.
    got = (result["f"] or "").splitlines()
    assert [line for line in got if line != "NEW"] == [line for n, line in enumerate(lines) if n != got.index("NEW")]


@settings(max_examples=40, deadline=None)
@given(TEXT, TEXT)
def test_git_reads_our_diffs_and_we_read_gits(before: str, after: str) -> None:
    if before == after or "\r" in before + after:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "a b").write_bytes(before.encode())
        (root / "c").write_bytes(after.encode())
        done = subprocess.run(
            ["git", "diff", "--no-index", "--text", "a b", "c"], cwd=root, capture_output=True, check=False
        )
        theirs = done.stdout.decode().replace("b/c", "b/a b").replace('"a/a b"', "a/a b")
        assert apply_diff({"a b": before}, theirs) == {"a b": after}
        ours = make_diff({"a b": before}, {"a b": after})
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], input=ours.encode(), cwd=root, check=True, capture_output=True
        )
        assert (root / "a b").read_bytes() == after.encode()


@given(st.text(max_size=200))
def test_any_text_is_applied_or_refused_never_a_crash(text: str) -> None:
    try:
        apply_diff({"m.py": TEN}, "--- a/m.py\n+++ b/m.py\n" + text)
    except PatchError as error:
        assert "\n" not in str(error)


# --- normalised hash --------------------------------------------------------------------------


def test_the_normalised_hash_ignores_position_and_line_ends_but_not_content() -> None:
    one = normalised_diff_hash(change())
    assert one == normalised_diff_hash(change(at="@@ -40,3 +44,3 @@").replace("LINE 5", "LINE 5  "))
    assert one == normalised_diff_hash("diff --git a/m.py b/m.py\nindex 1..2 100644\n" + change())
    assert one != normalised_diff_hash(change(new="LINE  5"))
    assert one != normalised_diff_hash(change(new="    LINE 5"))
    assert one != normalised_diff_hash(change("n.py"))
    two = change() + change("n.py")
    assert normalised_diff_hash(two) == normalised_diff_hash(change("n.py") + change())

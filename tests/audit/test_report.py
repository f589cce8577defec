"""The report: every figure from events, readable, and safe to print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rsi_tui.app.plain import final_summary
from rsi_tui.audit import reading, words
from rsi_tui.audit.report import render_markdown, render_report
from rsi_tui.errors import UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.facts import InvariantFacts, MemorySavingFacts
from rsi_tui.journal.view import CampaignView, campaign_summary
from tests.support.story import FUSED_DIFF, SDPA_DIFF, STAGES, story, write_home, write_story


def report_of(path: Path, format: str = "md") -> str:
    events = read_events(path)
    return render_report(CampaignView().feed_all(events), events, format)


@pytest.fixture(scope="module")
def markdown(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("story") / "journal.jsonl"
    write_story(path)
    return report_of(path)


def test_the_first_line_states_trust_and_isolation(markdown: str) -> None:
    first = markdown.splitlines()[0]
    assert "Trust level A" in first
    assert "bubblewrap" in first


@pytest.mark.parametrize(
    "figure",
    [
        "1.93x faster (99 % interval 1.81 to 2.02)", "118 ms", "61.1 ms", "700 MiB", "640 MiB", "1.42x", "1.91x",
        "**unproven alone**", "estimate from screening, unproven alone", "setting never switched on | -33.6 %",
        "`OMP_NUM_THREADS=2`", SDPA_DIFF.strip(), "e-value of 2411 where 2000 was needed", "host\\_oom\\_killed",
        "the same change was slower on this stack", "trains on half of the tokens", "attention comes before the optimizer",
        "| update size | held | 0.0112 | 0.021 |", "first moments: the checkpoint holds no optimizer state.", "1.7 %", "3.4 %",
        "median 0.136 s, largest 0.162 s (target: 0.5 s, met", "45 ok, 1 oom", "git apply faster.diff", "0.00152", "Xeon Platinum",
    ],
)  # fmt: skip
def test_the_report_holds_what_a_reader_needs(markdown: str, figure: str) -> None:
    assert figure in markdown


def test_no_screening_estimate_is_quoted_as_a_result(markdown: str) -> None:
    headline, rest = markdown.split("## What was adopted")
    proven = rest.split("## What was proven")[1].split("## How to apply")[0]
    for estimate in ("16.4", "16.5", "33.8", "33.6"):
        assert estimate not in headline + proven


def gaps_of(path: Path) -> str:
    return report_of(path).split("**Not covered:**")[1].split("##")[0]


def changed_story(path: Path, verdict: dict[str, object], claim: dict[str, object] | None, *, proven: bool = True) -> str:
    """The report of the story with other facts in its bundle's verdict and claim; None leaves the claim and what follows out."""
    with JournalWriter.open(path) as journal:
        for body in story("c", proven=proven):
            if isinstance(body, ev.VerdictReached) and body.verdict.candidate == "c6":
                body = ev.VerdictReached(verdict=body.verdict.model_copy(update=verdict))
            if isinstance(body, ev.Claimed):
                if claim is None:
                    break
                body = ev.Claimed(claim=body.claim.model_copy(update=claim))
            journal.append(body)
    return report_of(path)


def test_the_report_always_names_what_no_campaign_covers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for stage in ("created", "finished"):
        path.unlink(missing_ok=True)
        write_story(path, until=stage)  # type: ignore[arg-type]
        gaps = gaps_of(path)
        assert "at most 80 steps" in gaps and "is not seen" in gaps
        assert "no run of that length was made" in gaps
        assert ("not proven by runs under a lower limit" in gaps) == (stage == "finished")


STEPPED = InvariantFacts(
    name="update from a saved state, all tensors", status="held", value=1e-6, limit=2e-5,
    how="three times the largest harmless one; from the state after 160 updates, counters moved on",
)  # fmt: skip
UNMOVED = InvariantFacts(
    name="changes that start late in a real run", status="not_covered", value=None, limit=None, how="counters could not be moved on"
)


@pytest.mark.parametrize(
    ("seen", "says", "never"),
    [
        ((), "begins to act after the length that was run (at most 80 steps here) is not seen", "saved states"),
        ((STEPPED,), "one of them with its step counters moved on, were compared", "begins to act after"),
        ((STEPPED, UNMOVED), "only a few updates from saved states were compared", "one of them"),
    ],
    ids=["no states", "moved on", "not moved on"],
)
def test_a_gap_is_named_only_where_it_is_one(tmp_path: Path, seen: tuple[InvariantFacts, ...], says: str, never: str) -> None:
    text = changed_story(tmp_path / "journal.jsonl", {"invariants": seen}, {})
    gaps = text.split("**Not covered:**")[1].split("##")[0]
    assert says in gaps and never not in gaps
    assert "Gradients of a single step from hidden states are not compared" not in gaps
    assert ("update from a saved state, all tensors | held" in text) == bool(seen), "what the verification looked at"


@pytest.mark.parametrize("proven", [True, False])
def test_a_saving_is_called_unproven_only_where_it_is(tmp_path: Path, proven: bool) -> None:
    saving = MemorySavingFacts(
        limit_bytes=640 * 2**20, incumbent_peak_bytes=700 * 2**20, peak_bytes=600 * 2**20, runs=3, proven=proven,
        reason="3 fresh runs ended well under it" if proven else "the incumbent runs under it as well", trials=(),
    )  # fmt: skip
    changed_story(tmp_path / "journal.jsonl", {}, {"memory": saving})
    gaps = gaps_of(tmp_path / "journal.jsonl")
    assert ("lower was measured, not proven" in gaps) != proven
    assert ("the incumbent runs under it as well" in gaps) != proven


def test_what_was_checked_of_a_change_that_was_not_adopted_is_told(tmp_path: Path) -> None:
    broken = InvariantFacts(name="learned update", status="broken", value=0.3, limit=5e-5, how="ten times the largest harmless one")
    text = changed_story(tmp_path / "journal.jsonl", {"verdict": "invalid", "invariants": (broken,)}, None, proven=False)
    told = text.split("## What had to stay the same")[1].split("##")[0]
    assert "what was seen of c6" in told and "| learned update | broken | 0.3 | 5e-05 |" in told
    assert "No change came far enough" not in told


def test_a_change_that_screening_saw_break_an_invariant_was_checked(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    broken = InvariantFacts(name="learned update", status="broken", value=0.3, limit=5e-5, how="ten times the largest harmless one")
    with JournalWriter.open(path) as journal:
        for body in story("c", until="screening"):
            if isinstance(body, ev.Screened):
                body = ev.Screened(results=tuple(r.model_copy(update={"invariants": (broken,)}) for r in body.results[:1]))
            journal.append(body)
    told = report_of(path).split("## What had to stay the same")[1].split("##")[0]
    assert "what was seen of c1" in told and "| learned update | broken" in told


def test_every_sentence_has_one_full_stop(markdown: str) -> None:
    assert not re.search(r"(?<!\.)\.\.(?![./])", markdown)
    assert words.sentence("done..") == "done."
    assert words.sentence("is it?") == "is it?"
    assert words.sentence("") == ""


def test_the_adopted_code_lies_beside_the_report_as_git_takes_it(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    target = reading.write_report(home)
    assert target.with_name("faster.diff").read_text() == SDPA_DIFF + FUSED_DIFF


@pytest.mark.parametrize(
    ("knob", "value", "how"),
    [
        ({"flag": "--compile"}, True, "--compile"),
        ({"flag": "--compile"}, False, "leave --compile out"),
        ({"flag": "--fast {}"}, True, "--fast true"),
        ({"flag": "--mode {}"}, "", "leave --mode out"),
        ({"env": "A"}, True, "A=1"),
        ({"env": "A"}, "", "leave A unset"),
        ({"preload": "libx.so"}, True, "LD_PRELOAD=libx.so"),
        ({"file": "c.yaml:a.b"}, 3, "c.yaml:a.b = 3"),
    ],
)
def test_a_setting_is_given_as_the_contract_renders_it(knob: dict[str, str], value: bool | int | str, how: str) -> None:
    assert words.how_to_set(knob, value) == how


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_a_campaign_has_a_report_without_gaps(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path, until=stage)  # type: ignore[arg-type]
    text = report_of(path)
    assert "None" not in text.replace("-> None:", "")
    assert "\n\n\n\n" not in text
    assert ("1.93x" in text) == (stage == "finished")
    assert ("faster (99" in text) == (stage == "finished")
    assert ("about 1.9x faster" in text) == (stage == "verifying")
    assert json.loads(report_of(path, "json"))["schema"] == 2


def test_nothing_proven_is_said_plainly(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path, proven=False)
    text = report_of(path)
    assert "# dense-single: nothing proven" in text
    assert "faster (99" not in text
    assert "Nothing." in text


@pytest.mark.parametrize("measured", [True, False])
def test_a_claim_that_did_not_hold_is_not_a_speedup(tmp_path: Path, measured: bool) -> None:
    path = tmp_path / "journal.jsonl"
    change: dict[str, object] = {"proven": False, "reasons": ("the interval holds 1",)}
    if not measured:
        change |= {"speedup": None, "baseline_step_s": None, "candidate_step_s": None, "total_wall_ratio": None, "slope_ratio": None}
    with JournalWriter.open(path) as journal:
        for body in story("c"):
            if isinstance(body, ev.Claimed):
                body = ev.Claimed(claim=body.claim.model_copy(update=change))
            journal.append(body)
    text = report_of(path)
    assert "# dense-single: nothing proven" in text
    assert "the claim did not hold" in text
    assert "keep the program as it is" in text
    view = CampaignView().feed_all(read_events(path))
    assert campaign_summary(view)["speedup"] is None
    assert "the interval holds 1" in final_summary(view, path, "rsi")


def test_the_readable_form_follows_from_the_canonical_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path)
    assert render_markdown(json.loads(report_of(path, "json"))) == report_of(path)


def test_no_control_character_of_a_log_reaches_the_report(markdown: str) -> None:
    assert "can't allocate memory" in markdown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", markdown)


def test_an_unknown_format_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_story(path, until="created")
    with pytest.raises(UsageError, match="md, html and json"):
        report_of(path, "pdf")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb\x00\x9b1mc", "ab1mc"),
        ("\u202egnp.exe", "gnp.exe"),
        ("a\tb", "a   b"),
        ("\x1bPq#0\x1b\\z", "z"),
        ("\x1b(Bz\x1b=", "z"),
        ("\x1b", ""),
    ],
)
def test_escape_sequences_are_stripped(text: str, expected: str) -> None:
    assert words.clean(text) == expected

"""The report as a page: everything from the JSON, nothing from the network, nothing that a program can slip in."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rsi_tui.audit import plots
from rsi_tui.audit.html import canonical_json, render_html
from rsi_tui.audit.payback import Usage, payback
from rsi_tui.audit.report import as_json, render_markdown, report_data
from rsi_tui.errors import UsageError
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.facts import ClaimFacts, Interval
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home
from tests.support.story import STAGES, write_story


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path = tmp_path_factory.mktemp("story") / "journal.jsonl"
    write_story(path)
    events = read_events(path)
    return json.loads(as_json(report_data(CampaignView().feed_all(events), events, Usage(200.0, 1.5))))  # type: ignore[no-any-return]


class Page(HTMLParser):
    """Tags that are opened and closed, and the text outside of scripts and styles."""

    VOID = ("meta", "br", "path", "circle", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name in ("href", "src", "action", "xlink:href") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


def test_the_page_is_whole_and_asks_the_network_for_nothing(data: dict[str, object]) -> None:
    page = render_html(data)
    read = Page(page)
    assert read.open == [] and read.addresses and all(address.startswith("#") for address in read.addresses)
    assert "url(" not in page and "@import" not in page and page.count("<script") == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)
    assert canonical_json(page) is not None and json.loads(canonical_json(page) or "") == data
    for figure in ("1.93x", "1.81", "118 ms", "git apply faster.diff", "200.0 h a month at 1.5 USD an hour", "trains on half of the tokens"):
        assert figure in read.text, figure


def test_the_first_screen_says_what_was_found(data: dict[str, object]) -> None:
    head = Page(render_html(data).split('<h2 id="changed">')[0] + "</main></body></html>").text
    for wanted in ("Trust level A", "1.93x faster", "118 ms → 61.1 ms", "8 fresh pairs", "threads=2 (setting never switched on)", "rsi apply c6 --to BRANCH", "git revert"):
        assert wanted in head


def test_the_first_screen_says_to_keep_the_program_where_nothing_holds(data: dict[str, object]) -> None:
    hurt = json.loads(json.dumps(data))
    hurt["claim"] |= {"proven": False, "reasons": ["the interval does not lie above 1"]}
    head = Page(render_html(hurt).split('<h2 id="changed">')[0] + "</main></body></html>").text
    assert "keep the program as it is" in head and "rsi apply" not in head


def test_what_programs_and_people_write_stays_text(data: dict[str, object]) -> None:
    evil = '</script><script>alert(1)</script><img src="http://x/y" onerror=z>"\x1b[31m\u202e'
    hurt = json.loads(json.dumps(data))
    hurt["campaign"]["workload"] = evil
    hurt["failed_trials"] = [{"trial": "t1", "candidate": "c1", "outcome": "oom", "cause": "", "detail": evil, "telling_lines": [evil], "seconds": 1.0, "peak_bytes": 1}]
    hurt["people"] = [{"at": "2026-12-01T00:00:00", "who": evil, "action": "note", "text": evil}]
    hurt["adopted"]["diff"] = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-" + evil + "\n+b\n"
    page = render_html(hurt)
    read = Page(page)
    assert page.count("<script") == 1 and "<img" not in page and all(address.startswith("#") for address in read.addresses)
    assert "\x1b" not in page.split('<script type="application/json"')[0]
    assert json.loads(canonical_json(page) or "") == hurt


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_a_campaign_has_a_page(tmp_path: Path, stage: str) -> None:
    write_story(tmp_path / "journal.jsonl", until=stage)  # type: ignore[arg-type]
    events = read_events(tmp_path / "journal.jsonl")
    read = Page(render_html(report_data(CampaignView().feed_all(events), events)))
    assert read.open == [] and "None" not in read.text.replace("-> None:", "")


def test_a_figure_that_is_changed_in_the_data_changes_in_page_and_plots(data: dict[str, object]) -> None:
    other = json.loads(json.dumps(data))
    other["claim"]["speedup"]["estimate"] = 7.77
    other["intervals"][-1]["estimate"] = 7.77
    assert "7.77x" in Page(render_html(other)).text and "7.770 (" in plots.all_intervals(other)


FIGURES = {
    "claim/candidate_step_s": 0.7771, "claim/baseline_peak_bytes": 777 * 2**20, "claim/slope_ratio": 7.77, "claim/slow_run_bound": 0.0777,
    "noise/run_cv": 0.0777, "invariants/0/value": 0.777, "invariants/0/limit": 0.777, "adopted/parts/0/log_ratio": -1.49, "adopted/settings/0/after": 777,
    "unsuccessful/1/seconds": 777.0, "cost/trial_seconds": 777.0, "cost/candidates": 777, "payback/days": 777.7, "profile/phases/0/share": 0.777,
    "campaign/alpha": 0.00777, "verdict/evalue": 777.7, "record/events": 777,
}  # fmt: skip


def test_every_figure_of_both_readable_forms_comes_from_the_json(data: dict[str, object]) -> None:
    before = render_markdown(data), Page(render_html(data)).text
    for path, value in FIGURES.items():
        other = json.loads(json.dumps(data))
        *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
        place = other
        for step in way:
            place = place[step]
        place[last] = value
        after = render_markdown(other), Page(render_html(other)).text
        for form in (0, 1):
            assert after[form] != before[form], (path, form)


def test_results_of_one_batch_do_not_hide_each_other(data: dict[str, object]) -> None:
    other = json.loads(json.dumps(data))
    other["course"]["tried"] = [{"seconds": 60.0, "candidate": f"c{n}", "what": "screened", "result": r, "log_ratio": None} for n, r in enumerate(("promoted", "dropped", "oom"))]
    drawn = plots.best_so_far(other)
    assert len(set(re.findall(r'<circle class="mark[^>]* cy="([^"]+)"', drawn))) == 2 and '<path class="mark bad"' in drawn


def test_plots_of_a_campaign_of_the_whole_engine(finished: tuple[Home, str]) -> None:
    events = read_events(finished[0].campaign(finished[1]).journal)
    made = report_data(CampaignView().feed_all(events), events)
    for plot in (plots.best_so_far, plots.time_against_memory, plots.all_intervals, plots.contributions, plots.phases):
        drawn = plot(made)
        assert drawn.startswith("<svg") and "<title>" in drawn and "<desc>" in drawn and "nan" not in drawn
    assert made["course"]["best"][0]["speedup"] == 1.0 and made["course"]["best"][-1]["proven"]
    assert "c1" in plots.time_against_memory(made) and made["profile_after"] is not None


# --- payback --------------------------------------------------------------------------------------


def claim(low: float, estimate: float, high: float) -> ClaimFacts:
    return ClaimFacts(
        candidate="c1", pairs=8, baseline_step_s=1.0, candidate_step_s=0.5, total_wall_ratio=1.0, slope_ratio=1.0, baseline_peak_bytes=1,
        candidate_peak_bytes=1, slow_run_bound=0.1, invariants=(), proven=True, speedup=Interval(estimate=estimate, low=low, high=high, confidence=0.99),
    )  # fmt: skip


def test_a_search_is_paid_by_the_share_of_time_that_the_speed_up_takes_away() -> None:
    found = payback(Usage(300.0, 2.0), claim(1.25, 2.0, 4.0), 2 * 3600.0)
    assert found is not None
    assert found["cost"] == {"hours": 2.0, "usd": 4.0}
    assert found["saved_a_month"]["hours"] == pytest.approx({"low": 60.0, "estimate": 150.0, "high": 225.0})
    assert found["saved_a_month"]["usd"]["estimate"] == pytest.approx(300.0) and found["days"] == pytest.approx(0.4)


def test_without_a_proven_claim_nothing_is_saved() -> None:
    found = payback(Usage(300.0), None, 3600.0)
    assert found == {"cost": {"hours": 1.0, "usd": None}, "saved_a_month": None, "days": None}
    assert payback(None, claim(1, 2, 3), 1.0) is None


@pytest.mark.parametrize(("hours", "usd"), [(-1.0, None), (float("nan"), None), (None, 2.0), (10.0, float("inf"))])
def test_a_use_that_cant_be_meant_is_said(hours: float | None, usd: float | None) -> None:
    with pytest.raises(UsageError, match="--"):
        Usage.asked(hours, usd)


def test_a_use_reads_back_from_its_words() -> None:
    for usage in (Usage(0.1 + 0.2), Usage(1e6, 0.333)):
        assert Usage.parse(usage.words) == usage == Usage.read(usage.as_json())

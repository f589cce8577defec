"""`rsi verify`: what follows is said to follow, and whatever was changed afterwards is named."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rsi_tui.audit.bundle import verify_bundle, write_bundle
from rsi_tui.audit.payback import Usage
from rsi_tui.audit.reading import write_report
from rsi_tui.audit.report import SCHEMA
from rsi_tui.audit.verify import Verified, verify_campaign, verify_data, verify_page, verify_target
from rsi_tui.audit.written_reports import compare
from rsi_tui.cli import app
from rsi_tui.errors import JournalError, UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.anchors import write_anchor
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.chain import ZERO, _encode, read_events
from rsi_tui.journal.facts import Fact
from rsi_tui.locations import Home
from rsi_tui.repo.heads import note_head

Campaign = tuple[Home, str]


def test_a_campaign_as_it_was_recorded_follows_from_its_runs(finished: Campaign) -> None:
    found = verify_campaign(*finished)
    assert found.follows and not found.problems and not found.wrong
    figures = {check.figure for check in found.checks}
    for wanted in (
        "noise: scale of a pair", "c1, screening: log ratio", "c1, screening: promoted", "c1, verdict: e-value", "c1, verdict: speed-up, low",
        "claim of c5: speed-up, estimate", "claim of c5: slope of total wall", "leave-one-out 1: c1, low",
        "error probability of the campaign", "error probability of each verification", "noise: smallest provable effect",
        "number of the campaign on its workload, in the home's ledger",
    ):  # fmt: skip
        assert any(figure.startswith(wanted) or wanted in figure for figure in figures), wanted
    assert sum(figure.endswith("the facts are those sealed when it ended") for figure in figures) > 50
    assert sum(figure.endswith("order as drawn") for figure in figures) > 15
    assert not found.lacking
    assert "Everything follows" in verify_page(found) and verify_data(found)["follows"]


# --- a record that was changed, with all hashes made anew ---------------------------------------------


def rewritten(home: Home, campaign: str, change: Callable[[Fact], Fact]) -> Verified:
    """What is said after the bodies of a journal were changed, every hash and all notes of the newest line with them."""
    paths = home.campaign(campaign)
    lines, prev = [], ZERO
    for event in read_events(paths.journal):
        line = re.sub(rb'"at":"[^"]*"', b'"at":"' + event.at.encode() + b'"', _encode(event.seq, change(event.body), event.step, prev), count=1)
        plain = line[: line.rindex(b',"hash":"')] + b"}"
        prev = hashlib.sha256(plain).hexdigest()
        lines.append(plain[:-1] + f',"hash":"{prev}"}}'.encode())
    paths.journal.write_bytes(b"\n".join(lines) + b"\n")
    write_anchor(paths.anchor, len(lines) - 1, prev)
    for mirror in home.mirrors.glob("*.git"):
        note_head(mirror, campaign, len(lines) - 1, prev)
    for report in paths.reports.iterdir():
        report.unlink()
    return verify_campaign(home, campaign)


def nested(body: Fact, path: str, value: Any) -> Fact:
    """The body with one value inside it replaced; `path` as 'verdict.evalue' or 'trials.3.step_s'."""
    data = body.model_dump(mode="json")
    place = data
    *way, last = path.split(".")
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[int(last) if isinstance(place, list) else last] = value(place[last]) if callable(value) else value
    return type(body).model_validate(data)


def times(factor: float) -> Callable[[Any], Any]:
    return lambda value: value * factor if value is not None else value


MUTATIONS: dict[str, tuple[type[Fact], str, Any, str]] = {
    "an e-value": (ev.VerdictReached, "verdict.evalue", times(1.01), "e-value"),
    "a verdict": (ev.VerdictReached, "verdict.verdict", "adopted", ""),
    "an effect": (ev.VerdictReached, "verdict.log_ratio", times(1.1), "log ratio"),
    "an interval": (ev.VerdictReached, "verdict.speedup.low", times(1.01), "speed-up, low"),
    "a share of error probability": (ev.VerdictReached, "verdict.alpha", times(2.0), "error probability"),
    "the claim's estimate": (ev.Claimed, "claim.speedup.estimate", times(1.02), "speed-up, estimate"),
    "the claim's memory": (ev.Claimed, "claim.candidate_peak_bytes", times(0.5), "peak memory of the stack"),
    "the claim's step time": (ev.Claimed, "claim.candidate_step_s", times(0.9), "step time of the stack"),
    "a time in a sealed run": (ev.BlockClosed, "trials.1.step_s", times(0.9), "score"),
    "a sealed run's memory": (ev.BlockClosed, "trials.1.peak_bytes", times(2), "the facts are those sealed"),
    "the noise": (ev.Calibrated, "noise.pair_scale", times(0.5), "scale of a pair"),
    "the smallest provable effect": (ev.Calibrated, "noise.smallest_provable", times(0.5), "smallest provable effect"),
    "what screening saw": (ev.Screened, "results.0.log_ratio", times(1.05), "screening: log ratio"),
    "what was promoted": (ev.Screened, "results.1.promoted", lambda was: not was, "promoted"),
    "what a change is worth": (ev.LeftOut, "parts.0.interval.low", times(1.01), "leave-one-out 1"),
    "the campaign's error probability": (ev.AlphaGranted, "alpha", times(2.0), "error probability"),
    "the campaign's number": (ev.AlphaGranted, "ordinal", 2, "error probability of the campaign"),
    "a number that no campaign has": (ev.AlphaGranted, "ordinal", 0, "error probability"),
    "a term of the contract": (ev.CampaignCreated, "contract.objective.margin", times(2.0), "hash of the contract"),
    "a term that nothing can be computed with": (ev.CampaignCreated, "contract.objective.amortise_over", 0, "t1: times"),
    "a candidate's settings": (ev.CandidateBuilt, "candidate.knobs.micro_batch", 4, "fingerprint of its launch"),
    "a candidate's code": (ev.CandidateBuilt, "diff", lambda was: was + "+x = 1\n", "hash of its code"),
    "what learning was worth": (ev.Claimed, "claim.invariants.0.value", lambda was: was + 1.0, "claim of"),
    "what a change is claimed to be worth": (ev.Claimed, "claim.attribution.0.log_ratio", times(1.1), "effect"),
    "how often it is slow": (ev.VerdictReached, "verdict.slow_run_bound", times(0.5), "bound on slow runs"),
    "a phase of the profile": (ev.Profiled, "profile.phases.0.share", 0.9, "share of forward"),
    "which run was started": (ev.TrialStarted, "slot", lambda was: was + 1, "is the run that was started"),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_figure_changed_with_all_hashes_made_anew_does_not_follow(copied: Campaign, name: str) -> None:
    kind, path, value, named = MUTATIONS[name]
    done = []

    def change(body: Fact) -> Fact:
        sealed = not isinstance(body, ev.BlockClosed) or len(body.trials) > 1
        timed = not isinstance(body, ev.VerdictReached) or body.verdict.blocks or path == "verdict.verdict"
        if isinstance(body, kind) and not done and sealed and timed:
            done.append(body)
            return nested(body, path, value)
        return body

    found = rewritten(*copied, change)
    assert done and not found.problems and not found.follows
    assert any(named in check.figure for check in found.wrong), [check.figure for check in found.wrong]


def test_a_block_that_was_taken_out_of_a_claim_is_missed(copied: Campaign) -> None:
    def change(body: Fact) -> Fact:
        if isinstance(body, ev.Claimed):
            data = body.model_dump(mode="json")
            data["claim"]["trials"], data["claim"]["pairs"] = data["claim"]["trials"][2:], data["claim"]["pairs"] - 1
            return ev.Claimed.model_validate(data)
        return body

    found = rewritten(*copied, change)
    assert any("no pair is left out" in check.figure for check in found.wrong)


@pytest.mark.parametrize("in_line", [False, True], ids=["beside the journal", "in its line, as older versions wrote it"])
def test_an_order_that_was_not_drawn_is_found(copied: Campaign, in_line: bool) -> None:
    blobs = Blobs(copied[0].campaign(copied[1]).blobs)

    def change(body: Fact) -> Fact:
        if isinstance(body, ev.SecretsRevealed):
            assert body.blob is not None and not body.blocks
            blocks = json.loads(blobs.get(body.blob))
            key = next(key for key in blocks if key.startswith("block/verify"))
            order = blocks[key]["value"]["order"]
            blocks[key] = {**blocks[key], "value": {**blocks[key]["value"], "order": order[::-1]}}
            return ev.SecretsRevealed(blocks=blocks) if in_line else ev.SecretsRevealed(blob=blobs.put(json.dumps(blocks).encode()))
        return body

    found = rewritten(*copied, change)
    assert not found.problems
    assert any("the draw is the one committed to" in check.figure for check in found.wrong)


def test_a_lost_end_is_found_when_its_note_went_with_it(copied: Campaign) -> None:
    home, campaign = copied
    paths = home.campaign(campaign)
    found = verify_target(home, campaign)
    assert found.follows and sum("refs/rsi-heads" in anchor.where for anchor in found.anchors) == 1
    paths.anchor.unlink()
    assert any("newest line" in problem and "gone" in problem for problem in verify_target(home, campaign).problems)
    for report in paths.reports.iterdir():
        report.unlink()
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    paths.journal.write_bytes(b"".join(lines[:-3]))
    assert any(problem.startswith(f"line {len(lines) - 2}: lost") for problem in verify_target(home, campaign).problems)


@pytest.mark.parametrize("damage", ["removed", "changed", "no secrets"])
def test_secrets_that_are_not_what_was_revealed_are_named(copied: Campaign, damage: str) -> None:
    home, campaign = copied
    (path,) = home.campaign(campaign).blobs.iterdir()
    if damage == "removed":
        path.unlink()
    elif damage == "changed":
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"candidate", b"incumbent", 1)))
    else:
        path.write_bytes(gzip.compress(b"[]"))
    found = verify_target(home, campaign)
    assert any("line" in problem and path.name in problem for problem in found.problems)
    assert any(check.figure == "secrets of the blocks" for check in found.wrong)
    with pytest.raises(JournalError, match="restore it"):
        write_bundle(home, campaign)


# --- reports ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(finished: Campaign, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reports")
    usage = Usage.asked(200.0, 1.5)
    return {form: write_report(*finished, form, folder / f"r.{form}", usage).read_text() for form in ("json", "md", "html")}


@pytest.mark.parametrize("form", ["json", "md", "html"])
def test_a_report_as_it_was_written_follows_wherever_it_lies(finished: Campaign, texts: dict[str, str], form: str, tmp_path: Path) -> None:
    path = tmp_path / f"sent by mail.{form}"
    path.write_text(texts[form])
    found = verify_target(finished[0], str(path))
    assert found.follows and found.reports[0].follows and not found.reports[0].note


@pytest.mark.parametrize("form", ["json", "md", "html"])
def test_any_digit_that_is_changed_in_a_report_is_named(finished: Campaign, texts: dict[str, str], form: str) -> None:
    events = read_events(finished[0].campaign(finished[1]).journal)
    rng = random.Random(form)
    text = texts[form]
    digits = [n for n, letter in enumerate(text) if letter.isdigit() and letter.isascii()]
    for at in rng.sample(digits, 6):
        found = compare(f"r.{form}", text[:at] + str((int(text[at]) + rng.randrange(1, 10)) % 10) + text[at + 1 :], events)
        assert not found.follows and found.differences[0].place, text[max(0, at - 60) : at + 20]


def test_a_row_that_was_dropped_and_a_word_that_was_changed_are_named(finished: Campaign, texts: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.md"
    path.write_text(texts["md"].replace("oom", "ok", 1))
    assert "line" in verify_target(finished[0], str(path)).reports[0].differences[0].place
    data = json.loads(texts["json"])
    data["unsuccessful"].pop()
    (tmp_path / "r.json").write_text(json.dumps(data))
    assert verify_target(finished[0], str(tmp_path / "r.json")).reports[0].differences[0].place.startswith("unsuccessful")


@pytest.mark.parametrize("form", ["json", "md", "html"])
def test_a_report_that_names_another_format_is_compared_all_the_same(finished: Campaign, texts: dict[str, str], form: str, tmp_path: Path) -> None:
    text = texts[form].replace(f'"schema": {SCHEMA}', '"schema": 9').replace(f"(report format {SCHEMA}", "(report format 9")
    assert text != texts[form]
    path = tmp_path / f"r.{form}"
    path.write_text(text)
    assert verify_target(finished[0], str(path)).reports[0].differences
    if form == "html":
        return  # what is shown there has been changed, not what it is made of
    path.write_text(text.replace("oom", "ok", 1))
    with pytest.raises(UsageError, match="another version"):
        verify_target(finished[0], str(path))


def test_a_report_knows_a_line_that_the_journal_has_lost(copied: Campaign) -> None:
    home, campaign = copied
    write_report(home, campaign, "json")
    paths = home.campaign(campaign)
    paths.journal.write_bytes(b"".join(paths.journal.read_bytes().splitlines(keepends=True)[:-3]))
    paths.anchor.unlink()
    found = verify_campaign(home, campaign)
    assert not found.follows and "at most" in found.reports[0].differences[0].follows


# --- bundles, and the command ---------------------------------------------------------------------------


def test_a_bundle_is_verified_without_home_and_program(finished: Campaign, tmp_path: Path) -> None:
    path = write_bundle(*finished, tmp_path / "b.rsi.tar.gz")
    again = write_bundle(*finished, tmp_path / "again.rsi.tar.gz")
    assert path.read_bytes() == again.read_bytes(), "the same campaign gives the same bytes"
    found = verify_target(Home(tmp_path / "no home"), str(path))
    assert found.follows and {report.file for report in found.reports} == {"report.json", "report.md", "report.html", "faster.diff"}
    assert b"vault" not in path.read_bytes()


def repacked(path: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with tarfile.open(path) as archive:
        files = {member.name: found.read() for member in archive if (found := archive.extractfile(member)) is not None}
    change(files)
    with tarfile.open(target, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target


def test_a_bundle_with_other_changes_or_files_is_named(finished: Campaign, tmp_path: Path) -> None:
    path = write_bundle(*finished, tmp_path / "b.rsi.tar.gz")
    name = f"{finished[1]}/faster.diff"
    for number, change in enumerate((lambda f: f.update({name: f[name].replace(b"+", b"-", 1)}), lambda f: f.update({name: b""}), lambda f: f.update({"x/more.py": b""}))):
        found = verify_bundle(repacked(path, tmp_path / f"{number}.tar.gz", change))
        assert not found.follows and [r.file for r in found.reports if r.differences] in (["faster.diff"], ["more.py"])


def test_a_bundle_is_read_within_bounds(finished: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_bundle(*finished, tmp_path / "b.rsi.tar.gz")
    twice = repacked(path, tmp_path / "twice.tar.gz", lambda f: f.update({"../../journal.jsonl": b""}))
    with pytest.raises(UsageError, match="twice"):
        verify_bundle(twice)
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data), len(data) // 5):
        (tmp_path / "flipped.tar.gz").write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(UsageError, match="no bundle that can be read"):
            verify_bundle(tmp_path / "flipped.tar.gz")
    monkeypatch.setattr("rsi_tui.audit.bundle.MOST_BYTES", 100_000)
    with pytest.raises(UsageError, match="unpacks to more"):
        verify_bundle(path)


@pytest.mark.parametrize(("content", "says"), [(b"", "no bundle that can be read"), (b"\x1f\x8b broken", "no bundle that can be read"), (None, "there is no file")])
def test_what_is_no_bundle_is_said_in_a_sentence(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "b.tar.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        verify_bundle(path)


def test_the_command_answers_with_its_exit_code(copied: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    home, campaign = copied
    monkeypatch.setenv("RSI_HOME", str(home.root))
    done = CliRunner().invoke(app, ["verify", campaign, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["follows"] is True
    journal = home.campaign(campaign).journal
    data = journal.read_bytes()
    journal.write_bytes(data.replace(b'"outcome":"ok"', b'"outcome":"oK"', 1))
    done = CliRunner().invoke(app, ["verify", campaign])
    assert done.exit_code == 1 and "line" in done.stdout and "NOT EVERYTHING FOLLOWS" in done.stdout

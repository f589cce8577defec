"""What the read-only commands print: campaigns, status, show, why, report. Reads journals, changes nothing.

Every function returns the text for stdout; with `as_json` exactly one JSON document. An id is a
campaign, or a candidate, direction, hypothesis or trial, alone ('c3', of the newest campaign) or with
its campaign ('20261130-1/c3'). Errors are one sentence that names the nearest id.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from rsi_tui.audit import pages, words
from rsi_tui.audit.check_page import check_data, check_page
from rsi_tui.audit.payback import Usage
from rsi_tui.audit.profile_page import profile_data, profile_page
from rsi_tui.audit.report import DIFF_FILE, adopted_diff, render_report
from rsi_tui.audit.verdict_page import verdict_data, verdict_page
from rsi_tui.errors import UsageError
from rsi_tui.journal import chain
from rsi_tui.journal.blobs import Blobs
from rsi_tui.journal.view import (
    CampaignView,
    campaign_ids,
    campaign_summary,
    damaged_campaigns,
    list_campaigns,
    load_campaign,
    newest_campaign,
)
from rsi_tui.locations import Home

NO_CAMPAIGN = "there is no campaign here yet; start one with `rsi run WORKLOAD`."


def campaigns(home: Home, as_json: bool = False) -> str:
    """All campaigns of a home, newest first."""
    views = list_campaigns(home)
    if as_json:
        return _json([campaign_summary(v) for v in views])
    damaged = [f"{name}: {why}" for name, why in damaged_campaigns(home).items()]
    if not views and not damaged:
        return NO_CAMPAIGN[0].upper() + NO_CAMPAIGN[1:]
    rows: list[tuple[str, ...]] = [("CAMPAIGN", "KIND", "WORKLOAD", "STATE", "TRUST", "SPEED-UP", "CANDIDATES", "RUNS", "STARTED (UTC)")]
    rows += [_row(v) for v in views]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(words.padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *damaged])


def status(home: Home, campaign: str | None = None, as_json: bool = False) -> str:
    """Where a campaign (default: the newest) stands, and whether an engine works on it."""
    view = load_campaign(home, find_campaign(home, campaign))
    engine = chain.holder(home.campaign(view.id).journal)
    if as_json:
        return _json(_status_data(view, engine))
    lines = [pages.campaign_page(view).title, *pages.campaign_page(view).sections[0].lines, engine_words(view, engine)]
    lines += [running_words(view, name) for name in view.running] if engine is not None else []
    return "\n".join(words.one_line(line) for line in lines)


def show(home: Home, id: str | None = None, as_json: bool = False) -> str:
    """Everything about one campaign, candidate, direction, hypothesis or trial."""
    view, local = resolve(home, id)
    if view.is_evaluation and not local:
        return verdict(home, view, as_json)
    if view.kind == "baseline" and not local:
        return baseline(home, view.id, as_json)
    page = pages.page(view, local)
    return _json({"campaign": view.id, **page.data} if local else page.data) if as_json else page.text()


def log(home: Home, id: str | None, as_json: bool = False) -> str:
    """The output of a trial that failed, as it was but for what would act on a terminal."""
    if as_json:
        raise UsageError("--log prints a run's output as it was; leave out --json.")
    view, local = resolve(home, id)
    facts = view.trials.get(local)
    if facts is None:
        raise UsageError(f"--log is for a trial, like t12; `rsi show {view.id}` lists them by candidate.")
    if facts.log is None:
        kept = "that ended well" if facts.outcome == "ok" else "of an older version of rsi, or that was cut off"
        raise UsageError(f"no output of {facts.id} was kept: it is a run {kept}.")
    logs = Blobs(home.campaign(view.id).logs)
    if not logs.has(facts.log):
        raise UsageError(f"the output of {facts.id} is no longer kept: `rsi gc` dropped it.")
    return words.clean(logs.get(facts.log).decode("utf-8", "replace").rstrip("\n"))


def verdict(home: Home, view: CampaignView, as_json: bool = False, colour: bool = False) -> str:
    """The verdict of an evaluation, as a page or as the JSON document of docs/evaluate.md."""
    report = home.campaign(view.id).reports / "report.md"
    engine = chain.holder(home.campaign(view.id).journal)
    data = verdict_data(view, report if report.exists() else None, engine)
    return _json(data) if as_json else verdict_page(data, colour=colour)


def checked(home: Home, id: str, as_json: bool = False, colour: bool = False) -> str:
    """What a check found, as a page or as JSON."""
    data = check_data(load_campaign(home, id))
    return _json(data) if as_json else check_page(data, colour=colour)


def baseline(home: Home, id: str, as_json: bool = False, colour: bool = False) -> str:
    """What a baseline found, as a page or as JSON."""
    data = profile_data(load_campaign(home, id))
    return _json(data) if as_json else profile_page(data, words.columns(), colour)


def why(home: Home, id: str | None = None, as_json: bool = False) -> str:
    """How a candidate came to be and how it ended: retrieved -> hypothesis -> diff -> trials -> verdict."""
    view, local = resolve(home, id)
    page = pages.why_page(view, local)
    return _json({"campaign": view.id, **page.data}) if as_json else page.text()


def report(home: Home, campaign: str | None = None, format: str = "md", usage: Usage | None = None) -> str:
    """The audit report of a campaign (default: the newest) in one of `report.FORMATS`."""
    paths = home.campaign(find_campaign(home, campaign))
    events = chain.read_events(paths.journal, paths.anchor)
    return render_report(CampaignView().feed_all(events), events, format, usage)


def write_report(
    home: Home, campaign: str | None = None, format: str = "md", path: Path | None = None, usage: Usage | None = None
) -> Path:
    """Write the report to a file (default: the campaign's reports folder), whole or not at all; returns its path.

    The adopted code changes lie beside it as a file that `git apply` takes.
    """
    name = find_campaign(home, campaign)
    text = report(home, name, format, usage)
    target = path or home.campaign(name).reports / f"report.{format}"
    _write_whole(target, text)
    diff = adopted_diff(load_campaign(home, name))
    if diff:
        _write_whole(target.with_name(DIFF_FILE), diff)
    return target


def _write_whole(target: Path, text: str) -> None:
    half = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(text, encoding="utf-8", newline="")
        half.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            half.unlink()
        raise UsageError(f"cannot write the report to {target}: {error.strerror}.") from error


def find_campaign(home: Home, campaign: str | None) -> str:
    """The id of a campaign that exists; the newest that is no replay for None. Raises UsageError naming the nearest."""
    known = campaign_ids(home)
    if not known:
        raise UsageError(NO_CAMPAIGN)
    if campaign is None:
        return newest_campaign(home)
    if campaign not in known:
        raise UsageError(pages.unknown(campaign, known, "the campaigns of this home"))
    return campaign


def resolve(home: Home, id: str | None) -> tuple[CampaignView, str]:
    """The campaign that an id is about, and the local part ('' for the campaign itself).

    Library ids ('20261130-1/hypothesis/h3') are understood as well.
    """
    known = campaign_ids(home)
    if not known:
        raise UsageError(NO_CAMPAIGN)
    if not id or id in known:
        return load_campaign(home, id or newest_campaign(home)), ""
    campaign, slash, rest = id.partition("/")
    if slash:
        return load_campaign(home, find_campaign(home, campaign)), rest.rpartition("/")[2]
    view = load_campaign(home, newest_campaign(home))
    if not _has(view, id) and not _looks_local(id):
        raise UsageError(pages.unknown(id, known, "the campaigns of this home"))
    return view, id


def engine_words(view: CampaignView, engine: int | None) -> str:
    """Whether somebody works on a campaign, and what to do if not."""
    if view.over:
        return "engine: done"
    if engine is not None:
        return f"engine: running, process {engine}"
    created = view.created
    if created is None:
        return "no engine runs, and nothing of it was recorded: start anew"
    unsandboxed = ("--unsandboxed",) if created.trust == "C" else ()
    if created.replays:
        return f"no engine runs; go on with `rsi replay {' '.join((created.replays, *unsandboxed))}`"
    command = words.go_on(created.kind, created.folder, created.preset, created.options or unsandboxed)
    return f"no engine runs; {f'a {created.kind} begins anew:' if created.kind in ('check', 'baseline') else 'go on with'} `{command}`"


def running_words(view: CampaignView, trial: str) -> str:
    """'t31 of c6 (verify, run 2 of 7) since 12:00:05 UTC'."""
    run = view.running[trial]
    place = f", run {run.slot + 1} of {run.of}" if run.of > 1 else ""
    again = f", attempt {run.attempt}" if run.attempt > 1 else ""
    return f"running: {run.trial} of {run.candidate} ({run.kind}{place}{again}) since {view.running_since[11:19]} UTC"


def _status_data(view: CampaignView, engine: int | None) -> dict[str, Any]:
    return campaign_summary(view) | {
        "engine_pid": engine,
        "running": [r.model_dump(mode="json", exclude={"type"}) for r in view.running.values()] if engine is not None else [],
        "speedup_estimate": view.estimated_speedup(),
        "trial_seconds": view.trial_seconds,
        "noise": {"run_cv": view.noise.run_cv, "smallest_provable": view.noise.smallest_provable} if view.noise else None,
    }


def _row(view: CampaignView) -> tuple[str, ...]:
    speedup = short_speedup(view) or "-"
    runs = str(len(view.trials) + len(view.sealed))
    started = view.started_at[:16].replace("T", " ")
    state = f"{view.state}: {view.state_reason}" if view.is_evaluation and view.state == "finished" else view.state_words
    return view.id, view.kind, words.one_line(view.workload), words.one_line(state, 40), view.trust, speedup, str(len(view.candidates)), runs, started


def short_speedup(view: CampaignView) -> str:
    """A campaign's result in a list: the claim, or an estimate that says it is one; '' when there is neither."""
    proven, estimate = view.proven_speedup(), view.estimated_speedup()
    if proven is not None:
        return words.short_interval(proven)
    return f"{words.about(estimate)}, not claimed" if estimate is not None else ""


def _has(view: CampaignView, name: str) -> bool:
    return view.known(name) is not None or name in view.directions or name in view.rounds or name in view.trials or name == "original"


def _looks_local(name: str) -> bool:
    return name[:1] in "cdhkt" and name[1:].isdigit()


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)

"""What reads the record: states, reasons, searches, reports, proofs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rsi_tui.cli.base import Id, Json, app
from rsi_tui.errors import UsageError
from rsi_tui.locations import find_home


@app.command()
def status(campaign: Id = None, as_json: Json = False) -> None:
    """What a campaign is doing now. Example: rsi status"""
    from rsi_tui.audit import reading

    print(reading.status(find_home(), campaign, as_json))


@app.command()
def campaigns(as_json: Json = False) -> None:
    """All campaigns, newest first. Example: rsi campaigns --json"""
    from rsi_tui.audit import reading

    print(reading.campaigns(find_home(), as_json))


@app.command()
def show(
    id: Id = None,
    log: Annotated[bool, typer.Option("--log", help="Of a trial that failed: its whole output, and nothing else.")] = False,
    as_json: Json = False,
) -> None:
    """Everything about one campaign, candidate, direction, hypothesis or trial. Example: rsi show c3"""
    from rsi_tui.audit import reading

    print(reading.log(find_home(), id, as_json) if log else reading.show(find_home(), id, as_json))


@app.command()
def why(id: Id = None, as_json: Json = False) -> None:
    """From what was retrieved to the verdict. Example: rsi why c3"""
    from rsi_tui.audit import reading

    print(reading.why(find_home(), id, as_json))


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="A symptom, an idea in your words, a flag, an error line.")],
    kind: Annotated[list[str] | None, typer.Option(help="hypothesis, failure, diff, lesson, knowledge or note; may be repeated.")] = None,
    workload: Annotated[str, typer.Option(help="Only of campaigns on this workload, by its name.")] = "",
    layer: Annotated[str, typer.Option(help="Only of this layer, like kernel or memory.")] = "",
    outcome: Annotated[str, typer.Option(help="Only with this verdict or outcome, like adopted or oom.")] = "",
    since: Annotated[str, typer.Option(metavar="DATE", help="Only what was written then or later, like 2026-11.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=200)] = 10,
    as_json: Json = False,
) -> None:
    """Has anything like this been tried, and what happened? Example: rsi search "out of memory in attention" --kind failure"""
    from rsi_tui.audit import library_page as pages

    data = pages.search_data(find_home(), text, kind or (), workload=workload, layer=layer, outcome=outcome, since=since, limit=limit)
    print(json.dumps(data, indent=2) if as_json else pages.search_page(data))


@app.command()
def report(
    campaign: Id = None,
    format: Annotated[str, typer.Option(help="md, html, json, or bundle: everything that `rsi verify` needs elsewhere.")] = "md",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")] = None,
    hours_per_month: Annotated[float | None, typer.Option(help="Machine hours of training a month, for the payback.")] = None,
    usd_per_hour: Annotated[float | None, typer.Option(help="Price of a machine hour, for the payback.")] = None,
    as_json: Json = False,
) -> None:
    """The audit report of a campaign. Example: rsi report --format html -o report.html"""
    from rsi_tui.audit import reading
    from rsi_tui.audit.payback import Usage

    usage = Usage.asked(hours_per_month, usd_per_hour)
    chosen = "json" if as_json else format
    if chosen == "bundle":
        from rsi_tui.audit.bundle import write_bundle

        print(write_bundle(find_home(), reading.find_campaign(find_home(), campaign), output, usage))
    elif output is None:
        print(reading.report(find_home(), campaign, chosen, usage), end="")
    else:
        print(reading.write_report(find_home(), campaign, chosen, output, usage))


@app.command()
def verify(
    target: Annotated[str | None, typer.Argument(metavar="CAMPAIGN|BUNDLE|REPORT", help="A campaign, a bundle, or a report file.")] = None,
    as_json: Json = False,
) -> None:
    """Does everything in the record and its reports follow from the runs? Exit code 1 when something does not.

    Example: rsi verify 20261130-1
    """
    from rsi_tui.audit.verify import verify_data, verify_page, verify_target

    found = verify_target(find_home(), target)
    print(json.dumps(verify_data(found), indent=2) if as_json else verify_page(found))
    raise typer.Exit(0 if found.follows else 1)


@app.command()
def explain(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...|-", help="Logs of one run, folders of logs, or - for stdin.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules, with their classes and their order.")] = False,
    as_json: Json = False,
) -> None:
    """Why a run failed, from its output: class, root cause, the lines that tell, figures, what to try.

    Example: rsi explain slurm-4711.out
    """
    from rsi_tui.audit import words
    from rsi_tui.audit.explain_page import explain_data, explain_page, rules_data, rules_page

    if rules:
        print(json.dumps(rules_data(), indent=2) if as_json else rules_page(words.columns()))
        return
    if not files:
        raise UsageError("Name a log, a folder of logs, or - for stdin: rsi explain slurm-4711.out")
    data = explain_data(files)
    print(json.dumps(data, indent=2) if as_json else explain_page(data, words.columns()))

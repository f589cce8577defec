"""What measures: campaigns, plans, checks, baselines, evaluations, replays."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rsi_tui.cli.base import Json, app, go_on_command, how_called, say
from rsi_tui.locations import find_home


@app.command()
def run(
    workload: Annotated[Path, typer.Argument(help="Folder with a workload.toml, or the file.")],
    candidates: Annotated[int | None, typer.Option(min=1, help="Budget of candidates.")] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, help="Budget of hours.")] = None,
    preset: Annotated[str, typer.Option(help="quick, full, or another preset of the workload.")] = "",
    usd: Annotated[float | None, typer.Option(min=0.01, help="Budget of $ for calls to a model (--mind claude).")] = None,
    mind: Annotated[str | None, typer.Option(help="Who thinks for the roles: builtin, or claude, which needs a key.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before under the same conditions.")] = False,
    approval: Annotated[bool, typer.Option("--approval", help="What is proven waits for `rsi approve` before anything rests on it.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the newest interrupted campaign.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Take uncommitted changes along.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Leave uncommitted changes out.")] = False,
    unsandboxed: Annotated[bool, typer.Option("--unsandboxed", help="Run trials without a sandbox (trust level C).")] = False,
    as_json: Json = False,
) -> None:
    """Run a campaign: make the program faster, and prove it.

    Example: rsi run workloads/dense_single --preset quick
    """
    from rsi_tui.app.plain import PlainLog, final_summary
    from rsi_tui.journal.view import campaign_summary, load_campaign
    from rsi_tui.loop.engine import run as run_engine
    from rsi_tui.loop.setup import Request, silent

    home = find_home()
    request = Request(
        workload=workload,
        preset=preset,
        mind=mind,
        candidates=candidates,
        hours=hours,
        usd=usd,
        retry=retry,
        approval=approval,
        resume=resume,
        snapshot=snapshot,
        committed=committed,
        unsandboxed=unsandboxed,
    )
    listen = silent if as_json else PlainLog
    ended = run_engine(home, request, listen=listen, on_note=say)
    view = load_campaign(home, ended.campaign)
    if as_json:
        print(json.dumps(campaign_summary(view), indent=2))
    elif ended.report is None:
        print(f"Stopped. Nothing finished is lost; go on with: {go_on_command('campaign', workload, preset, request.options)}")
    else:
        print(final_summary(view, ended.report, f"{how_called()} attach {ended.campaign}"))
    if ended.sentence:
        print(f"rsi: {ended.sentence}", file=sys.stderr)
    raise typer.Exit(ended.exit_code)


@app.command()
def plan(
    workload: Annotated[Path, typer.Argument(help="Folder with a workload.toml, or the file.")],
    preset: Annotated[str, typer.Option(help="quick, full, or another preset of the workload.")] = "",
    seconds_per_run: Annotated[float | None, typer.Option(min=0.001, help="Seconds that one run takes.")] = None,
    as_json: Json = False,
) -> None:
    """What baseline, verdicts and a campaign will cost, and the smallest effect they can prove. Runs nothing.

    Example: rsi plan workloads/dense_single --preset quick
    """
    from rsi_tui.loop.planning import plan as price
    from rsi_tui.loop.planning import plan_page

    data = price(find_home(), workload, preset, seconds_per_run)
    print(json.dumps(data, indent=2) if as_json else plan_page(data))


@app.command()
def check(
    workload: Annotated[Path, typer.Argument(help="Folder with a workload.toml, or the file.")],
    everything: Annotated[bool, typer.Option("--all", help="Run every planted cheat and every escape; takes long.")] = False,
    preset: Annotated[str, typer.Option(help="quick, full, or another preset of the workload.")] = "",
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Take uncommitted changes along, as part of the program.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Leave uncommitted changes out.")] = False,
    unsandboxed: Annotated[bool, typer.Option("--unsandboxed", help="Run trials without a sandbox (trust level C).")] = False,
    as_json: Json = False,
) -> None:
    """Check a workload: it runs, and cheats planted in it are caught.

    Exit codes: 0 passed, 2 the contract or the program is at fault, 3 something planted got through.

    Example: rsi check workloads/dense_single --preset quick
    """
    from rsi_tui.app.plain import PlainLog
    from rsi_tui.audit.reading import checked
    from rsi_tui.loop.checking import check as check_workload
    from rsi_tui.loop.setup import silent
    from rsi_tui.loop.unresumed import Program

    home = find_home()
    program = Program(workload, preset, snapshot, committed, unsandboxed)
    listen = silent if as_json else PlainLog
    ended = check_workload(home, program, everything=everything, listen=listen, on_note=say)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    text = checked(home, ended.check, as_json, colour)
    print(text if as_json else f"\n{text}")
    raise typer.Exit(ended.exit_code)


@app.command()
def baseline(
    workload: Annotated[Path, typer.Argument(help="Folder with a workload.toml, or the file.")],
    preset: Annotated[str, typer.Option(help="quick, full, or another preset of the workload.")] = "",
    profile: Annotated[bool, typer.Option("--profile", help="One instrumented run only: no noise is measured.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Take uncommitted changes along.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Leave uncommitted changes out.")] = False,
    unsandboxed: Annotated[bool, typer.Option("--unsandboxed", help="Run trials without a sandbox (trust level C).")] = False,
    as_json: Json = False,
) -> None:
    """Where a step's time and memory go, which settings are off, and how small an effect can be proven here.

    Example: rsi baseline workloads/dense_single --preset quick --profile
    """
    from rsi_tui.app.plain import PlainLog
    from rsi_tui.audit.reading import baseline as found
    from rsi_tui.loop.baselining import measure_baseline
    from rsi_tui.loop.setup import silent
    from rsi_tui.loop.unresumed import Program

    home = find_home()
    program = Program(workload, preset, snapshot, committed, unsandboxed)
    listen = silent if as_json else PlainLog
    id = measure_baseline(home, program, profile_only=profile, listen=listen, on_note=say)
    text = found(home, id, as_json, sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    print(text if as_json else f"\n{text}")


@app.command()
def evaluate(
    workload: Annotated[Path, typer.Argument(help="Folder with a workload.toml, or the file.")],
    patch: Annotated[str, typer.Option(help="A unified diff; - reads it from stdin.")] = "",
    commit: Annotated[str, typer.Option(help="A commit or branch: what it changed since it left what is checked out.")] = "",
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="A setting; may be repeated.")] = None,
    preset: Annotated[str, typer.Option(help="quick, full, or another preset of the workload.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the newest interrupted evaluation.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Take uncommitted changes along, as part of the program.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Leave uncommitted changes out.")] = False,
    unsandboxed: Annotated[bool, typer.Option("--unsandboxed", help="Run trials without a sandbox (trust level C).")] = False,
    as_json: Json = False,
) -> None:
    """The verdict on one change of your own, with its evidence.

    Exit codes: 0 adopted or leaner, 1 failed, 3 invalid, 4 not proven or slower.

    Example: git diff | rsi evaluate workloads/dense_single --patch - --committed --set micro_batch=4
    """
    from rsi_tui.app.plain import PlainLog
    from rsi_tui.audit.reading import verdict
    from rsi_tui.journal.view import load_campaign
    from rsi_tui.loop.evaluating import Asked
    from rsi_tui.loop.evaluating import evaluate as judge
    from rsi_tui.loop.setup import silent

    home = find_home()
    asked = Asked(
        workload=workload,
        patch=patch,
        commit=commit,
        settings=tuple(settings or ()),
        preset=preset,
        snapshot=snapshot,
        committed=committed,
        unsandboxed=unsandboxed,
        resume=resume,
    )
    ended = judge(home, asked, listen=silent if as_json else PlainLog, on_note=say)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    text = verdict(home, load_campaign(home, ended.evaluation), as_json, colour)
    print(text if as_json else f"\n{text}")
    if ended.verdict is None:
        if ended.sentence:
            print(f"rsi: {ended.sentence}", file=sys.stderr)
        print(f"Go on with: {go_on_command('evaluation', workload, preset, asked.opening.options)}", file=sys.stderr)
    raise typer.Exit(ended.exit_code)


@app.command()
def replay(
    candidate: Annotated[str | None, typer.Argument(help="c3 of the newest campaign, CAMPAIGN/c3, or a campaign: what it proved.")] = None,
    unsandboxed: Annotated[bool, typer.Option("--unsandboxed", help="Run trials without a sandbox (trust level C).")] = False,
    as_json: Json = False,
) -> None:
    """Measure an adopted change again, here, on fresh pairs; what is refuted is no longer adopted. Goes on where it was stopped.

    Exit codes: 0 it agrees, 3 it is refuted, or is not adopted, 4 undecided.

    Example: rsi replay c3
    """
    from rsi_tui.app.plain import PlainLog
    from rsi_tui.audit.applying import resolve_proven
    from rsi_tui.loop.replaying import replay as measure_again
    from rsi_tui.loop.replaying import replay_data, replay_page
    from rsi_tui.loop.setup import silent

    home = find_home()
    view, local = resolve_proven(home, candidate)
    done = measure_again(home, view, local, unsandboxed=unsandboxed, listen=silent if as_json else PlainLog, on_note=say)
    print(json.dumps(replay_data(done), indent=2) if as_json else f"\n{replay_page(done)}")
    if done.sentence:
        print(f"rsi: {done.sentence}", file=sys.stderr)
    raise typer.Exit(done.exit_code)

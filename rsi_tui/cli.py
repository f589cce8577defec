"""The `rsi` command: parse, call, print. No logic, and nothing heavy imported before it is needed.

Errors that a person can cause end as one sentence on stderr; the exit codes are those of
`rsi_tui.errors`.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from rsi_tui.errors import RsiError, UsageError
from rsi_tui.locations import find_home

app = typer.Typer(
    name="rsi",
    help="Makes training programs faster without changing what they learn, and proves it.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

library_app = typer.Typer(help="The experience library: what it holds, what it is given, where it is served.", no_args_is_help=True)
app.add_typer(library_app, name="library")

UNUSABLE = (errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EDQUOT, errno.EEXIST)
"""errors of a home that can't be written, or a disk that is full"""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Id = Annotated[str | None, typer.Argument(help="Campaign, candidate, direction, hypothesis or trial.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Without a command: open the app on what runs, or on the newest campaign."""
    from rsi_tui.journal.home_version import check_home

    check_home(find_home())
    if context.invoked_subcommand is None:
        from rsi_tui.app.main import run_app

        run_app(find_home(), None)


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
    ended = run_engine(home, request, listen=listen, on_note=_note)
    view = load_campaign(home, ended.campaign)
    if as_json:
        print(json.dumps(campaign_summary(view), indent=2))
    elif ended.report is None:
        print(f"Stopped. Nothing finished is lost; go on with: {_go_on('campaign', workload, preset, request.options)}")
    else:
        print(final_summary(view, ended.report, f"{_how_called()} attach {ended.campaign}"))
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
    ended = check_workload(home, program, everything=everything, listen=listen, on_note=_note)
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
    id = measure_baseline(home, program, profile_only=profile, listen=listen, on_note=_note)
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
    ended = judge(home, asked, listen=silent if as_json else PlainLog, on_note=_note)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    text = verdict(home, load_campaign(home, ended.evaluation), as_json, colour)
    print(text if as_json else f"\n{text}")
    if ended.verdict is None:
        if ended.sentence:
            print(f"rsi: {ended.sentence}", file=sys.stderr)
        print(f"Go on with: {_go_on('evaluation', workload, preset, asked.opening.options)}", file=sys.stderr)
    raise typer.Exit(ended.exit_code)


def _how_called() -> str:
    """The command as this person can type it again: by its path where that was given, with RSI_HOME where set."""
    home = f"RSI_HOME={shlex.quote(os.environ['RSI_HOME'])} " if os.environ.get("RSI_HOME") else ""
    called, found = Path(sys.argv[0]).absolute(), shutil.which("rsi")
    if called.name == "__main__.py":
        return f"{home}{shlex.quote(sys.executable)} -m rsi_tui"
    if found is not None and Path(found).absolute() == called:
        return f"{home}rsi"
    near = called.is_relative_to(Path.cwd())
    return home + shlex.quote(str(called.relative_to(Path.cwd()) if near else called))


def _go_on(kind: str, workload: Path, preset: str, options: tuple[str, ...]) -> str:
    """The command that goes on with what this person interrupted, as it can be typed again."""
    from rsi_tui.audit.words import go_on

    return go_on(kind, str(workload), preset, options, _how_called())


def _note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)


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
def apply(
    candidate: Annotated[str | None, typer.Argument(help="c3 of the newest campaign, CAMPAIGN/c3, or a campaign: what it proved.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="BRANCH", help="Branch to write: a new one, or one not checked out.")] = None,
    patch_series: Annotated[Path | None, typer.Option(help="Write numbered patches for `git am` into this new folder.")] = None,
    settings_file: Annotated[Path | None, typer.Option(help="Write the launch settings to this file.")] = None,
    repo: Annotated[Path | None, typer.Option(help="The repository, where it was moved.")] = None,
    as_json: Json = False,
) -> None:
    """Write a proven change into your repository as commits; working tree, index and HEAD stay untouched.

    Exit codes: 1 it conflicts with the branch, 2 the repository or command line is at fault, 3 not adopted.

    Example: rsi apply c3 --to rsi/faster
    """
    from rsi_tui.audit.applying import Wanted, apply_candidate, apply_page, resolve_proven
    home = find_home()
    view, local = resolve_proven(home, candidate)
    result = apply_candidate(home, view, local, Wanted(to, patch_series, repo, settings_file))
    print(json.dumps(result, indent=2) if as_json else apply_page(result))


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


@app.command()
def attach(campaign: Id = None) -> None:
    """Open the app on a campaign. Example: rsi attach"""
    from rsi_tui.app.main import run_app

    run_app(find_home(), campaign)


@app.command()
def pause(campaign: Id = None) -> None:
    """Pause a campaign after the trial that runs. Example: rsi pause"""
    _command(campaign, "pause")


@app.command("resume")
def resume_(campaign: Id = None) -> None:
    """Let a paused campaign go on. Example: rsi resume"""
    _command(campaign, "resume")


@app.command()
def stop(campaign: Id = None) -> None:
    """End a campaign's search after the trial that runs; what was proven stays. Example: rsi stop"""
    _command(campaign, "stop")


@app.command()
def note(text: Annotated[str, typer.Argument(help="What to remember.")], campaign: Id = None) -> None:
    """Write a note into a campaign's record. Example: rsi note "the machine was busy until noon\""""
    _command(campaign, "note", text)


@app.command()
def approve(
    candidate: Annotated[str, typer.Argument(help="What waits for approval: c3 of the newest campaign, or CAMPAIGN/c3.")],
) -> None:
    """Let what was proven count (of a campaign that runs with --approval). Example: rsi approve c3"""
    from rsi_tui.audit.reading import resolve
    from rsi_tui.loop.approving import approve as say_yes

    home = find_home()
    view, local = resolve(home, candidate)
    print(say_yes(home, view.id, local or candidate, getpass.getuser()))


@app.command()
def veto(
    candidate: Annotated[str, typer.Argument(help="An adopted candidate: c3 of the newest campaign, or CAMPAIGN/c3.")],
    reason: Annotated[str, typer.Option(help="Why it must not count.")] = "",
) -> None:
    """Take an adoption back, with what rests on it. Example: rsi veto c3 --reason "it breaks our data loader\""""
    from rsi_tui.audit.reading import resolve
    from rsi_tui.loop.revoking import veto as take_back

    home = find_home()
    view, local = resolve(home, candidate)
    print(take_back(home, view.id, local or candidate, getpass.getuser(), reason))


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
    done = measure_again(home, view, local, unsandboxed=unsandboxed, listen=silent if as_json else PlainLog, on_note=_note)
    print(json.dumps(replay_data(done), indent=2) if as_json else f"\n{replay_page(done)}")
    if done.sentence:
        print(f"rsi: {done.sentence}", file=sys.stderr)
    raise typer.Exit(done.exit_code)


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    quota: Annotated[str, typer.Option(metavar="SIZE", help="Free only what brings the home below this, like 20GiB.")] = "",
    older_than: Annotated[float, typer.Option(metavar="DAYS", min=0, help="Leave campaigns alone that ended later.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Reclaim disk after saying what goes; never what a claim needs. Example: rsi gc --dry-run"""
    from rsi_tui.audit import housekeeping

    home = find_home()
    items = housekeeping.reclaimable(home, older_than_days=older_than, quota=housekeeping.size_of(quota) if quota else None)
    if not as_json:
        print(housekeeping.gc_page(home, items))
    if items and not dry_run and not yes and (as_json or not sys.stdin.isatty()):
        raise UsageError("nobody can be asked here: add --yes to remove this, or --dry-run to look only.")
    if not items or dry_run or not (yes or typer.confirm("Remove this?")):
        if as_json:
            print(json.dumps(housekeeping.gc_data(home, items, done=False), indent=2))
        return
    freed, problems = housekeeping.reclaim(home, items, getpass.getuser())
    for problem in problems:
        _note(problem)
    if as_json:
        print(json.dumps(housekeeping.gc_data(home, items, done=True, freed=freed, problems=problems), indent=2))
    else:
        print(f"{freed / 2**20:.1f} MiB freed.")
    raise typer.Exit(1 if problems else 0)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine can and can't do, and how to mend it; fails when something is missing. Example: rsi doctor"""
    from dataclasses import asdict

    from rsi_tui.launch.doctor import examine

    checks = examine(find_home())
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            mend = f"\n          {check.mend}" if check.mend else ""
            print(f"{check.status:8}  {check.name}: {check.what}{mend}")
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(1)


@library_app.command("stats")
def library_stats(as_json: Json = False) -> None:
    """What the library holds. Example: rsi library stats"""
    from rsi_tui.audit import library_page as pages

    data = pages.stats_data(find_home())
    print(json.dumps(data, indent=2) if as_json else pages.stats_page(data))


@library_app.command("calibration")
def library_calibration(as_json: Json = False) -> None:
    """How predictions came true, by mind and by technique. Example: rsi library calibration"""
    from rsi_tui.audit import library_page as pages

    data = pages.calibration_data(find_home())
    print(json.dumps(data, indent=2) if as_json else pages.calibration_page(data))


@library_app.command("retrievals")
def library_retrievals(
    campaign: Annotated[str, typer.Argument(help="Only what this campaign asked.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    as_json: Json = False,
) -> None:
    """What the library was asked, what was used of it, and whether that paid off. Example: rsi library retrievals"""
    from rsi_tui.audit import library_page as pages

    data = pages.retrievals_data(find_home(), campaign, limit)
    print(json.dumps(data, indent=2) if as_json else pages.retrievals_page(data))


@library_app.command("add")
def library_add(
    files: Annotated[list[Path], typer.Argument(help="Markdown or text: notes, a paper, a repository's docs.")],
    source: Annotated[str, typer.Option(help="What it is cited by; default: the file's name. The same source again replaces it.")] = "",
    licence: Annotated[str, typer.Option(help="The licence that it is under.")] = "",
) -> None:
    """Give the library documents, cut by their headings. Example: rsi library add docs/*.md --licence MIT"""
    from rsi_tui import library

    if source and len(files) > 1:
        raise UsageError("--source names one document; add several one by one.")
    home = find_home()
    for path in files:
        sections = library.add_document(home, getpass.getuser(), path, source, licence)
        print(f"{path}: {sections} section{'s' if sections != 1 else ''} added as {source or path.name}.")
    with library.opened(home, busy=lambda why: print(why, file=sys.stderr)) as found:
        library.sync(found, home, library.HOME)


@library_app.command("rebuild")
def library_rebuild() -> None:
    """Make tables and vectors anew from the journals. Example: rsi library rebuild"""
    from rsi_tui import library

    with library.opened(find_home(), busy=lambda why: print(why, file=sys.stderr)) as found:
        notes = library.rebuild(found)
        campaigns = len(found.campaigns())
    print("\n".join([*notes, f"{campaigns} campaign{'s' if campaigns != 1 else ''} read from {'their' if campaigns != 1 else 'its'} journal{'s' if campaigns != 1 else ''}."]))


@library_app.command("compact")
def library_compact() -> None:
    """Give back the disk that replaced rows still take. Example: rsi library compact"""
    from rsi_tui import library

    with library.opened(find_home(), busy=lambda why: print(why, file=sys.stderr)) as found:
        before = found.stats().disk_bytes
        found.compact()
        print(f"{before / 2**20:.1f} MiB before, {found.stats().disk_bytes / 2**20:.1f} MiB now.")


@library_app.command("export")
def library_export(folder: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Write the library as Parquet and Markdown, for others to import. Example: rsi library export ~/experience"""
    from rsi_tui import library

    with library.opened(find_home(), busy=lambda why: print(why, file=sys.stderr)) as found:
        campaigns = library.export(found, folder)
    print(f"{campaigns} campaign{'s' if campaigns != 1 else ''} written to {folder}; library.md there is for reading.")


@library_app.command("import")
def library_import(folder: Annotated[Path, typer.Argument(help="What `rsi library export` wrote.")]) -> None:
    """Take in the experience of another home, each campaign once. Example: rsi library import ~/experience"""
    from rsi_tui import library

    home = find_home()
    campaigns = library.import_folder(home, folder)
    with library.opened(home, busy=lambda why: print(why, file=sys.stderr)) as found:
        before = len(found.campaigns())
        notes = found.catch_up()
        added = len(found.campaigns()) - before
    print("\n".join([*notes, f"{campaigns} campaign{'s' if campaigns != 1 else ''} in {folder}, {added} of them new here."]))


@library_app.command("serve")
def library_serve(
    at: Annotated[str, typer.Option(metavar="HOST:PORT", help="For a team: listen here, and ask for the token of config.toml.")] = "",
) -> None:
    """Serve this home's library until it is stopped; for one machine that happens by itself. Example: rsi library serve --at 0.0.0.0:7077"""
    from rsi_tui import library

    home = find_home()
    if not library.serve(home, library.team_address(at) if at else None, library.token_of(home) if at else ""):
        raise UsageError(f"another process serves the library of {home.root} already.")


@library_app.command("end")
def library_end() -> None:
    """End this home's library server, if one runs; whoever needs it starts another. Example: rsi library end"""
    from rsi_tui import library

    print("ended." if library.end_server(find_home()) else "no server runs.")


def _command(campaign: str | None, action: str, text: str = "") -> None:
    from rsi_tui.audit.reading import find_campaign
    from rsi_tui.journal.chain import holder
    from rsi_tui.journal.commands import send_command

    home = find_home()
    found = find_campaign(home, campaign)
    if action != "note" and holder(home.campaign(found).journal) is None:
        raise UsageError(f"No engine works on {found}, so there is nothing to {action}; `rsi status {found}` says more.")
    send_command(home.campaign(found), getpass.getuser(), action, text)  # type: ignore[arg-type]
    print(f"{action} sent to {found}.")


def main() -> None:
    """Entry point: errors of rsi become one sentence and an exit code."""
    try:
        app()
    except RsiError as error:
        print(f"rsi: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("rsi: stopped.", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno in UNUSABLE:
            where = error.filename or find_home().root
            print(f"rsi: {where}: {error.strerror}; RSI_HOME names the folder that rsi keeps its files in.", file=sys.stderr)
            sys.exit(1)
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        # Whoever read this is gone: the interpreter must not try to flush to it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

"""What writes elsewhere, frees disk, and looks at the machine."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rsi_tui.cli.base import Json, app, say
from rsi_tui.errors import UsageError
from rsi_tui.locations import find_home


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
        say(problem)
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

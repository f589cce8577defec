"""What people say to campaigns."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from rsi_tui.cli.base import Id, app
from rsi_tui.errors import UsageError
from rsi_tui.locations import find_home


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
def propose(text: Annotated[str, typer.Argument(help="An idea in your own words, a technique, or knob=value.")], campaign: Id = None) -> None:
    """Put an idea to a campaign's Director: it is tried next, or declined with the reason. Example: rsi propose "fused optimizer\""""
    if not text.strip():
        raise UsageError('say what to try: rsi propose "larger micro-batch".')
    _command(campaign, "propose", text.strip())


@app.command()
def pin(start: Annotated[str, typer.Argument(help="original, best, a candidate like c3, or none.")], campaign: Id = None) -> None:
    """Say what the next directions start from. Example: rsi pin c3"""
    from rsi_tui.audit.reading import find_campaign
    from rsi_tui.journal.view import load_campaign
    from rsi_tui.loop.steering import check_pin

    home = find_home()
    _command(campaign, "pin", check_pin(load_campaign(home, find_campaign(home, campaign)), start))


@app.command()
def budget(
    campaign: Id = None,
    candidates: Annotated[int | None, typer.Option(help="Candidates in all, those that were tried among them.")] = None,
    hours: Annotated[float | None, typer.Option(help="Hours in all, from the campaign's beginning.")] = None,
) -> None:
    """Change the budget of a campaign that runs. Example: rsi budget --candidates 40"""
    from rsi_tui.loop.steering import budget_text

    _command(campaign, "budget", budget_text(candidates, hours))


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

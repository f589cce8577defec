"""What the commands share: the program itself, common options, how it was called, notes to stderr."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

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


def how_called() -> str:
    """The command as this person can type it again: by its path where that was given, with RSI_HOME where set."""
    home = f"RSI_HOME={shlex.quote(os.environ['RSI_HOME'])} " if os.environ.get("RSI_HOME") else ""
    called, found = Path(sys.argv[0]).absolute(), shutil.which("rsi")
    if called.name == "__main__.py":
        return f"{home}{shlex.quote(sys.executable)} -m rsi_tui"
    if found is not None and Path(found).absolute() == called:
        return f"{home}rsi"
    near = called.is_relative_to(Path.cwd())
    return home + shlex.quote(str(called.relative_to(Path.cwd()) if near else called))


def go_on_command(kind: str, workload: Path, preset: str, options: tuple[str, ...]) -> str:
    """The command that goes on with what this person interrupted, as it can be typed again."""
    from rsi_tui.audit.words import go_on

    return go_on(kind, str(workload), preset, options, how_called())


def say(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)

"""`rsi library`: what it holds, what it is given, where it is served."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rsi_tui.cli.base import Json, library_app
from rsi_tui.errors import UsageError
from rsi_tui.locations import find_home


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

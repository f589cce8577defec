"""The terminal app: watches a campaign, shows its record, leaves commands for its engine. It decides nothing.

Promises: it opens at once and blocks no engine; `q`, SIGTERM and SIGHUP leave the terminal as it was;
nothing is painted that did not change. It reads journals and logs and writes only command files.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import App

from rsi_tui.app import rows
from rsi_tui.app.actions import checked_keys, help_lines
from rsi_tui.app.browse import BrowseScreen
from rsi_tui.app.commands import Commands
from rsi_tui.app.library import LibraryScreen
from rsi_tui.app.live import LiveScreen
from rsi_tui.app.map import MapScreen
from rsi_tui.app.pager import Ask, Chooser, Confirm, Pager, ReportPager, page_text
from rsi_tui.app.signals import leave_on_signals
from rsi_tui.app.watch import JournalTail, LogTail, first_campaign
from rsi_tui.audit import pages, reading
from rsi_tui.audit.words import one_line, padded
from rsi_tui.audit.workload_page import workload_page
from rsi_tui.config import AppSettings, load_settings
from rsi_tui.errors import RsiError, UsageError
from rsi_tui.journal.commands import Action, send_command
from rsi_tui.journal.speaking import SpeakingTail
from rsi_tui.journal.view import CampaignView, campaign_ids, list_campaigns
from rsi_tui.locations import Home
from rsi_tui.loop import steering

_IDS_EVERY = 3
"""polls between looks for a first campaign in an empty home"""


def run_app(home: Home, campaign: str | None = None) -> None:
    """Open the app on a campaign (default: the one at work, else the newest) until the person leaves.

    Raises UsageError for an unknown campaign or wrong settings, before the screen is taken over. Prints how
    to come back.
    """
    if campaign is not None:
        campaign = reading.find_campaign(home, campaign)
    settings = load_settings(home.root).app
    checked_keys(settings.keys)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("The app needs a terminal; without one, `rsi status` says where things stand.")
    app = RsiApp(home, campaign, settings, owns_process=True)
    app.run()
    print(app.farewell())


class RsiApp(App[None]):
    """Holds what is watched and the screens that show it."""

    TITLE = "rsi"
    COMMANDS: ClassVar = {Commands}
    BINDINGS: ClassVar = []
    COMMAND_PALETTE_BINDING: ClassVar = "ctrl+p"

    def __init__(self, home: Home, campaign: str | None, settings: AppSettings, owns_process: bool = False) -> None:
        """`owns_process`: signals to the process are this app's to answer."""
        colourless = bool(os.environ.get("NO_COLOR"))
        super().__init__(ansi_color=True if colourless else None)  # Textual picks its colour filter here, not with the theme
        self.animation_level = "none"
        if settings.theme or colourless:
            self.theme = settings.theme if settings.theme in self.available_themes and not colourless else "ansi-dark"
        self.set_keymap(checked_keys(settings.keys))
        self._owns_process = owns_process
        self._home = home
        self._settings = settings
        self._wanted = campaign
        self._tail: JournalTail | None = None
        self._run_log: LogTail | None = None
        self._mind: SpeakingTail | None = None
        self._polls = 0
        self._past: list[CampaignView] = []
        """all campaigns that tried anything, newest first, once a list was asked for"""
        self._live = LiveScreen(settings.log_lines)

    async def on_mount(self) -> None:
        await self.push_screen(self._live)
        if self._owns_process:
            leave_on_signals(self.exit)
        self._open(self._wanted or first_campaign(self._home, self._ids()))
        self.set_interval(1 / self._settings.poll_hz, self._poll)

    def _ids(self) -> list[str]:
        try:
            return campaign_ids(self._home)
        except RsiError as error:
            self._live.say(str(error))
            return []

    def _open(self, campaign: str | None) -> None:
        self._tail = self._run_log = self._mind = None
        self._live.begin()
        if campaign is None:
            self._live.show(CampaignView(), None)
            return
        paths = self._home.campaign(campaign)
        self._tail, self._run_log = JournalTail(paths), LogTail(paths.live_log, self._settings.log_lines)
        self._mind = SpeakingTail(paths.speaking)
        self._poll()

    def _poll(self) -> None:
        """Take in what is new; a damaged journal is said and watched no further."""
        if not self._live.ready:  # the screen is being taken down
            return
        self._polls += 1
        tail, log = self._tail, self._run_log
        if tail is None or log is None:
            if self._polls % _IDS_EVERY == 0 and (name := first_campaign(self._home, self._ids())):
                self._open(name)
            return
        try:
            changed = tail.poll()
        except RsiError as error:
            self._tail = None
            self._live.say(str(error))
            return
        if changed:
            self._live.show(tail.view, tail.engine)
            if isinstance(self.screen, BrowseScreen):
                self._fill(self.screen)
            elif isinstance(self.screen, MapScreen):
                self.screen.show(tail.view)
        self._live.show_log(*log.poll())
        self._show_mind(changed)

    def _show_mind(self, changed: bool) -> None:
        """Bring the row of the models at work up to date; while one waits its seconds count down."""
        mind = self._mind
        if mind is not None and (mind.poll() or changed or any(call.state == "waiting" for call in mind.running.values())):
            self._live.show_mind(mind.running.values())

    @property
    def settings(self) -> AppSettings:
        return self._settings

    @property
    def showing(self) -> bool:
        """Whether a campaign is on the screen."""
        return self._tail is not None and self._tail.view.created is not None and self._live.ready

    # --- keys -------------------------------------------------------------------------------------

    def action_detach(self) -> None:
        self.exit()

    def action_help(self) -> None:
        self.push_screen(Pager(Text("\n".join(help_lines(self._settings.keys)))))

    def action_detail(self) -> None:
        if self._tail is None or self._tail.view.created is None:
            return
        try:
            page = pages.page(self._tail.view, self._live.selected)
        except RsiError as error:
            self._live.say(str(error))
            return
        self.push_screen(Pager(page_text(page)))

    def action_notebook(self) -> None:
        self._browse("Hypotheses, newest first", rows.notebook, "Nothing was tried yet.")

    def action_failures(self) -> None:
        self._browse("Failures and refusals, by cause", rows.failures, "Nothing failed and nothing was refused yet.")

    def action_library(self) -> None:
        screen = LibraryScreen(self._home)
        self.switch_screen(screen) if isinstance(self.screen, BrowseScreen) else self.push_screen(screen)

    def action_map(self) -> None:
        screen = MapScreen(plain=self._settings.ascii)
        screen.show(self._tail.view if self._tail is not None else CampaignView())
        self.switch_screen(screen) if isinstance(self.screen, BrowseScreen) else self.push_screen(screen)

    def action_workload(self) -> None:
        if self._tail is not None and self._tail.view.created is not None:
            view = self._tail.view
            self._read(lambda: page_text(workload_page(view, self.size.width - 2)))

    def _browse(self, title: str, make: Callable[[Iterable[CampaignView]], list[rows.Row]], nothing: str) -> None:
        screen = BrowseScreen(title, make, nothing)
        self._fill(screen)
        if isinstance(self.screen, BrowseScreen):
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def _fill(self, screen: BrowseScreen) -> None:
        """Give it all campaigns, the one that is watched as it is now."""
        watched = self._tail.view if self._tail is not None else CampaignView()
        try:
            self._past = self._past or [view for view in list_campaigns(self._home) if view.rounds or view.trials]
        except RsiError as error:
            self._live.say(str(error))
        views = [watched if view.id == watched.id else view for view in self._past]
        known = any(view.id == watched.id for view in views) or watched.created is None
        screen.show(views if known else [watched, *views], watched.id if watched.created else "")

    def _browsed(self) -> tuple[CampaignView, str] | None:
        """The campaign and the id of what is under the cursor of a list; None where there is nothing."""
        if not isinstance(self.screen, BrowseScreen):
            return None
        campaign, id = self.screen.selected
        watched = self._tail.view if self._tail is not None else None
        view = watched if watched is not None and watched.created is not None and watched.id == campaign else next((v for v in self._past if v.id == campaign), None)
        return (view, id) if view is not None and id else None

    def action_browse_detail(self) -> None:
        if (found := self._browsed()) is not None:
            self._read(lambda: page_text(pages.page(*found)))

    def action_browse_why(self) -> None:
        if (found := self._browsed()) is not None:
            view, id = found
            facts = view.trials.get(id)
            self._read(lambda: page_text(pages.why_page(view, facts.candidate if facts is not None else id)))

    def action_browse_output(self) -> None:
        if (found := self._browsed()) is not None:
            view, id = found
            self._read(lambda: Text(reading.log(self._home, f"{view.id}/{id}")))

    def _read(self, make: Callable[[], Text]) -> None:
        """Open what there is to read, or say in its place why there is nothing."""
        try:
            self.push_screen(Pager(make()))
        except RsiError as error:
            self.push_screen(Pager(Text(str(error))))

    def action_report(self) -> None:
        if self._tail is None or self._tail.view.created is None:
            return
        try:
            text = reading.report(self._home, self._tail.view.id)
        except RsiError as error:
            self._live.say(str(error))
            return
        name = self._tail.view.id
        self.push_screen(ReportPager(text, str(Path.cwd() / f"rsi-{name}.md"), lambda path: export(self._home, name, path)))

    def action_choose(self) -> None:
        try:
            views = list_campaigns(self._home)
        except RsiError as error:
            self._live.say(str(error))
            return
        if views:
            current = self._tail.view.id if self._tail else ""
            self.push_screen(Chooser(list(zip((v.id for v in views), lines_of(views), strict=True)), current), self._chosen)

    def _chosen(self, campaign: str | None) -> None:
        if campaign is not None and (self._tail is None or campaign != self._tail.view.id):
            self._open(campaign)

    def action_pause(self) -> None:
        if self._tail is not None:
            self._command("resume" if self._tail.view.paused else "pause")

    def _asked(self, question: str, action: Action, *, text: Callable[[str], str] = str, start: str = "", engine: bool = True) -> None:
        """Ask for a line and send it as a command; `text` turns it into the command's, and may raise RsiError."""
        if self._tail is None or (engine and not self._can_command()):
            return

        def answered(line: str | None) -> None:
            if line and self._tail is not None:
                try:
                    send_command(self._tail.paths, getpass.getuser(), action, text(line))
                except RsiError as error:
                    self._live.say(str(error))
                else:
                    self._live.say(f"{action} sent: {line}")

        self.push_screen(Ask(question, start), answered)

    def action_propose(self) -> None:
        self._asked("What should be tried? A technique, knob=value, or an idea in your own words", "propose")

    def action_note(self) -> None:
        self._asked("Note for the record", "note", engine=False)

    def action_budget(self) -> None:
        if self._tail is not None and self._tail.view.created is not None:
            created = self._tail.view.created
            self._asked(
                f"Budget in all, like candidates={created.max_candidates} or hours=3",
                "budget", text=lambda line: steering.budget_text(*steering.read_budget(line)),
            )  # fmt: skip

    def action_pin(self) -> None:
        """Pin the candidate under the cursor; where it is pinned already, let go."""
        if self._tail is None or not self._can_command():
            return
        view, id = self._tail.view, self._live.selected
        if (known := view.rounds.get(id)) is not None:
            candidate = known.candidate
        elif (direction := view.directions.get(id)) is not None:
            candidate = direction.facts.start
        else:
            candidate = id if id in view.candidates else "original"
        try:
            pin = "" if candidate == steering.pinned(view) else steering.check_pin(view, candidate or "original")
            send_command(self._tail.paths, getpass.getuser(), "pin", pin)
        except RsiError as error:
            self._live.say(str(error))
            return
        self._live.say(f"directions will start from {pin}" if pin else "the Director chooses the start again")

    def action_approve(self) -> None:
        if self._tail is None or not self._can_command():
            return
        if not (waiting := self._tail.view.waiting):
            self._live.say("nothing waits for approval")
            return
        self.push_screen(Confirm(f"Let {waiting} count?"), lambda yes: self._command("approve", waiting) if yes else None)

    def action_veto(self) -> None:
        if self._tail is None:
            return
        view, id = self._tail.view, self._live.selected
        known = view.rounds.get(id)
        candidate = view.candidates.get(known.candidate if known is not None else id)
        if candidate is None or not candidate.is_adopted:
            self._live.say("put the cursor on what was adopted; a veto takes an adoption back")
            return
        self._asked(f"Why must {candidate.id} not count?", "veto", text=lambda line: f"{candidate.id}: {line}")

    def action_stop(self) -> None:
        if self._tail is not None and self._can_command():
            question = f"Stop campaign {self._tail.view.id} after the run at hand? What is proven stays."
            self.push_screen(Confirm(question), self._stop)

    def _stop(self, yes: bool | None) -> None:
        if yes:
            self._command("stop")

    def _can_command(self) -> bool:
        tail = self._tail
        if tail is None or tail.view.over:
            self._live.say("this campaign is over")
            return False
        if tail.engine is None:
            self._live.say("no engine works on this campaign, so nobody would hear it")
            return False
        return True

    def _command(self, action: Action, text: str = "") -> None:
        if self._tail is None or not self._can_command():
            return
        try:
            send_command(self._tail.paths, getpass.getuser(), action, text)
        except RsiError as error:
            self._live.say(str(error))
            return
        self._live.say(f"asked for: {action}; the engine hears it after the run at hand")

    def farewell(self) -> str:
        """What to print when the app has closed: what goes on, and how to come back."""
        view = self._tail.view if self._tail else None
        if view is None or view.created is None:
            return "rsi: nothing was watched; `rsi run WORKLOAD` starts a campaign."
        if not view.over and self._tail is not None and self._tail.engine is not None:
            return f"Campaign {view.id} runs on (process {self._tail.engine}); come back with `rsi attach {view.id}`."
        return f"Campaign {view.id} is {view.state_words}; look at it again with `rsi attach {view.id}`."


def export(home: Home, campaign: str, path: str) -> str:
    """Write a report where a person said, in the form that its ending says; what was written, in words. Raises UsageError."""
    target = Path(path).expanduser()
    form = target.suffix.removeprefix(".").lower()
    if form not in ("md", "html", "json"):
        raise UsageError(f"'{target.name}' ends in none of .md, .html and .json, so it is not clear what to write.")
    written = reading.write_report(home, campaign, form, target)
    return f"Written: {written.absolute()} ({written.stat().st_size / 1024:.0f} KiB)."


def lines_of(views: list[CampaignView]) -> list[str]:
    """A line for each campaign, in columns."""
    cells = [(v.id, one_line(v.workload, 24), one_line(v.state_words, 30), reading.short_speedup(v) or "nothing proven") for v in views]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(4)]
    return ["  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]

"""The map: plots of the campaign that is watched, side by side where there is room."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from rsi_tui.app import plots
from rsi_tui.app.actions import PAGER, bindings
from rsi_tui.app.pager import move
from rsi_tui.journal.view import CampaignView

PLOTS = (
    ("best", "Best so far", plots.best_so_far),
    ("memory", "Time against memory", plots.time_against_memory),
    ("lineage", "What was built on what", plots.lineage),
    ("machine", "The machine", plots.machine),
)
WIDE = 130
"""columns from which on two plots stand side by side"""
LEAST_ROWS = 9


class MapScreen(Screen[None]):
    """Four plots; it is given what to show and asks for nothing."""

    BINDINGS: ClassVar = bindings(PAGER)
    CSS = """
    MapScreen #plots { layout: grid; grid-size: 1; grid-rows: auto; padding: 0; scrollbar-size: 1 1; }
    MapScreen.-wide #plots { grid-size: 2; }
    MapScreen #plots Static { height: auto; padding: 0 1; border-top: solid $foreground 40%; border-title-style: bold; text-wrap: nowrap; }
    """

    def __init__(self, *, plain: bool) -> None:
        """`plain`: signs of ASCII alone."""
        super().__init__()
        self._plain = plain
        self._view = CampaignView()
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="plots"):
            for id, title, _ in PLOTS:
                plot = Static("", id=id, markup=False)
                plot.border_title = title
                yield plot
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#plots").focus()

    def show(self, view: CampaignView) -> None:
        """Bring it up to a view."""
        self._view = view
        if self.is_mounted:
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        """Paint anew what a view and a size say; nothing where both are what they were."""
        now = (self._view.id, self._view.version, self.size)
        if now == self._drawn or not self.size.width:
            return
        self._drawn = now
        wide = self.size.width >= WIDE
        self.set_class(wide, "-wide")
        columns = self.size.width // (2 if wide else 1) - 4
        rows = max(LEAST_ROWS, (self.size.height - 1) // 2 - 2)
        for id, _, make in PLOTS:
            text = make(self._view, columns, rows, plain=self._plain) if self._view.created is not None else Text("no campaign here yet")
            self.query_one(f"#{id}", Static).update(text)

    def action_back(self) -> None:
        self.dismiss()

    def action_move(self, where: str) -> None:
        move(self.query_one("#plots"), where)

"""Screens that list what campaigns tried: a filter that works as it is typed, and the detail of the line under the cursor.

The list paints the lines that are seen and nothing else, so that its length costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from rsi_tui.app.actions import BROWSE, bindings
from rsi_tui.app.rows import Row, matching
from rsi_tui.audit import words
from rsi_tui.journal.view import CampaignView

GAP = 2
WIDEST = 18
"""columns of a cell that is not the last"""


class RowList(ScrollView, can_focus=True):
    """Rows in columns, one of them under the cursor."""

    DEFAULT_CSS = "RowList { scrollbar-size: 1 1; background: transparent; }"

    class Chosen(Message):
        """The row under the cursor was asked for."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[Row] = ()
        self.cursor = 0
        self._widths: tuple[int, ...] = ()

    def show(self, rows: Sequence[Row]) -> None:
        """Other rows; the cursor stays on the row it was on, where that is still there."""
        before = self.selected
        self.rows = rows
        self._widths = _widths(rows)
        places = (n for n, row in enumerate(rows) if before is not None and (row.campaign, row.id) == (before.campaign, before.id))
        self.cursor = self._near(next(places, 0), 1)
        self.virtual_size = Size(self.size.width, len(rows))
        self._follow()
        self.refresh()

    @property
    def selected(self) -> Row | None:
        row = self.rows[self.cursor] if self.cursor < len(self.rows) else None
        return row if row is not None and not row.is_heading else None

    def move(self, by: int) -> None:
        """Move the cursor by some rows, over headings."""
        if self.rows:
            target = min(max(0, self.cursor + by), len(self.rows) - 1)
            self.cursor = self._near(target, 1 if by > 0 else -1)
            self._follow()
            self.refresh()

    def _near(self, place: int, step: int) -> int:
        """The nearest row from a place on that is no heading."""
        for direction in (step, -step):
            at = place
            while 0 <= at < len(self.rows):
                if not self.rows[at].is_heading:
                    return at
                at += direction
        return 0

    def _follow(self) -> None:
        top = max(0, self.cursor - 1) if self.cursor and self.rows[self.cursor - 1].is_heading else self.cursor
        self.scroll_to_region(Region(0, top, 1, self.cursor - top + 1), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        number = self.scroll_offset.y + y
        width = self.size.width
        if number >= len(self.rows):
            return Strip.blank(width)
        row = self.rows[number]
        style = Style.parse(row.style or "none")
        if number == self.cursor and not row.is_heading:
            style += Style(reverse=True)
        text = _line(row, self._widths, width)
        return Strip([Segment(words.padded(text, width), style)]).adjust_cell_length(width, style)

    def on_click(self, event: object) -> None:
        y = getattr(event, "y", 0) + self.scroll_offset.y
        if y < len(self.rows) and not self.rows[y].is_heading:
            chosen = y == self.cursor
            self.cursor = y
            self.refresh()
            if chosen:
                self.post_message(self.Chosen(self.rows[y]))


def _widths(rows: Sequence[Row]) -> tuple[int, ...]:
    """Columns of each cell but the last, of the rows that are no headings."""
    widths: dict[int, int] = {}
    for row in rows:
        if not row.is_heading:
            for number, cell in enumerate(row.cells[:-1]):
                widths[number] = max(widths.get(number, 0), len(cell))
    return tuple(min(WIDEST, width) for width in widths.values())


def _line(row: Row, widths: Sequence[int], width: int) -> str:
    if row.is_heading:
        return words.one_line(row.cells[-1], width)
    cells = [words.padded(words.one_line(cell, room), room) for cell, room in zip(row.cells[:-1], widths, strict=True) if room]
    head = (" " * GAP).join(cells)
    rest = width - cell_len(head) - GAP
    return f"{head}{' ' * GAP}{words.one_line(row.cells[-1], rest)}" if rest > 8 else words.one_line(head, width)


class BrowseScreen(Screen[None]):
    """One list over all campaigns, or over the one that is watched."""

    BINDINGS: ClassVar = bindings(BROWSE)
    CSS = """
    BrowseScreen #title { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    BrowseScreen #empty { height: 1fr; padding: 1 2; display: none; }
    BrowseScreen.-nothing #empty { display: block; }
    BrowseScreen.-nothing RowList { display: none; }
    BrowseScreen RowList { height: 1fr; padding: 0 1; }
    BrowseScreen Input { height: 1; border: none; padding: 0 1; display: none; background: transparent; }
    BrowseScreen.-filtering Input { display: block; }
    """

    def __init__(self, title: str, make: Callable[[Iterable[CampaignView]], list[Row]], nothing: str) -> None:
        """`make` turns views into rows; `nothing` is said where there are none."""
        super().__init__()
        self._title, self._make, self._nothing = title, make, nothing
        self._views: Sequence[CampaignView] = ()
        self._watched = ""
        self._only_watched = False
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        yield Static("", id="title", markup=False)
        yield RowList()
        yield Static(self._nothing, id="empty", markup=False)
        yield Input(placeholder="words, status:not_proven, layer:memory, cause:host_oom_killed", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(RowList).focus()
        self._list()

    def show(self, views: Sequence[CampaignView], watched: str) -> None:
        """Campaigns, newest first, and the id of the one that is watched."""
        self._views, self._watched = views, watched
        if self.is_mounted:
            self._list()

    def _list(self) -> None:
        chosen = [view for view in self._views if not self._only_watched or view.id == self._watched]
        self._rows = self._make(chosen)
        self._filter()

    def _filter(self) -> None:
        query = self.query_one(Input).value
        found = matching(self._rows, query)
        self.set_class(not self._rows, "-nothing")
        self.query_one(RowList).show(found)
        count, total = (sum(not row.is_heading for row in rows) for rows in (found, self._rows))
        where = "this campaign" if self._only_watched else f"{len(self._views)} campaigns" if len(self._views) != 1 else "one campaign"
        shown = f"{count} of {total}" if query else str(total)
        self.query_one("#title", Static).update(f"{self._title}: {shown}, {where}{f', filter {query!r}' if query else ''}")

    @property
    def selected(self) -> tuple[str, str]:
        """(campaign, id) under the cursor; ('', '') where there is none."""
        row = self.query_one(RowList).selected
        return (row.campaign, row.id) if row is not None else ("", "")

    def on_row_list_chosen(self, event: RowList.Chosen) -> None:
        event.stop()
        self.app.call_later(self.app.run_action, "browse_detail")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._filter()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(RowList).focus()
        self.set_class(bool(event.value), "-filtering")

    def action_filter(self) -> None:
        self.add_class("-filtering")
        self.query_one(Input).focus()

    def action_back(self) -> None:
        """Out of the filter first, then out of the screen."""
        entry = self.query_one(Input)
        if self.has_class("-filtering") or entry.value:
            entry.value = ""
            self.remove_class("-filtering")
            self.query_one(RowList).focus()
        else:
            self.dismiss()

    def action_scope(self) -> None:
        self._only_watched = not self._only_watched
        self._list()

    def action_move(self, where: str) -> None:
        rows = self.query_one(RowList)
        page = max(1, rows.size.height - 1)
        rows.move({"down": 1, "up": -1, "pagedown": page, "pageup": -page, "home": -len(rows.rows), "end": len(rows.rows)}[where])

"""Screens that are read and left: details, help, report; the list of campaigns; a yes-or-no question."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from rsi_tui.app.actions import PAGER, bindings
from rsi_tui.audit.pages import Page
from rsi_tui.audit.words import clean

_DIFF_STYLES = (("+++", "bold"), ("---", "bold"), ("diff ", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def page_text(page: Page) -> Text:
    """A page with its headings and diff signs coloured; the signs stay, so colour carries nothing alone."""
    text = Text(no_wrap=False)
    text.append(page.title, "bold")
    for section in page.sections:
        text.append(f"\n\n{section.title}\n", "bold underline")
        for number, line in enumerate(section.lines):
            end = "" if number == len(section.lines) - 1 else "\n"
            if section.kind == "diff":
                text.append(line + end, next((style for sign, style in _DIFF_STYLES if line.startswith(sign)), ""))
            else:
                text.append(f"  {line}{end}")
    return text


def move(scroll: Widget, where: str) -> None:
    """Scroll by a line or to an end, at once."""
    if where == "down":
        scroll.scroll_relative(y=1, animate=False)
    elif where == "up":
        scroll.scroll_relative(y=-1, animate=False)
    elif where == "home":
        scroll.scroll_home(animate=False)
    else:
        scroll.scroll_end(animate=False)


class Pager(Screen[None]):
    """A long text to read."""

    BINDINGS: ClassVar = bindings(PAGER)
    CSS = "Pager VerticalScroll { padding: 0 1; }"

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_back(self) -> None:
        self.dismiss()

    def action_move(self, where: str) -> None:
        move(self.query_one(VerticalScroll), where)


class ReportPager(Pager):
    """The report, laid out from its Markdown."""

    CSS = "ReportPager VerticalScroll { padding: 0 1; }"

    def __init__(self, markdown: str) -> None:
        super().__init__(Text())
        self._markdown = markdown

    def compose(self) -> ComposeResult:
        from textual.widgets import Markdown

        with VerticalScroll():
            yield Markdown(self._markdown, open_links=False)
        yield Footer(compact=True, show_command_palette=False)


class Chooser(Screen[str | None]):
    """The campaigns of the home, newest first."""

    BINDINGS: ClassVar = [*bindings(PAGER), Binding("enter", "select", "Open", key_display="enter", priority=True)]
    CSS = """
    Chooser > Static { padding: 0 1; text-style: bold; }
    Chooser OptionList { border: none; height: 1fr; }
    """

    def __init__(self, rows: list[tuple[str, str]], current: str) -> None:
        super().__init__()
        self._rows = rows
        self._current = current

    def compose(self) -> ComposeResult:
        yield Static("Campaigns, newest first")
        yield OptionList(*(Option(Text(clean(text), no_wrap=True, overflow="ellipsis"), id=name) for name, text in self._rows), markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        names = [name for name, _ in self._rows]
        options.highlighted = names.index(self._current) if self._current in names else 0
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_select(self) -> None:
        self.query_one(OptionList).action_select()

    def action_back(self) -> None:
        self.dismiss(None)

    def action_move(self, where: str) -> None:
        options = self.query_one(OptionList)
        {"down": options.action_cursor_down, "up": options.action_cursor_up, "home": options.action_first, "end": options.action_last}[where]()


class Confirm(ModalScreen[bool]):
    """A question that y answers; everything else is no."""

    BINDINGS: ClassVar = [Binding("y", "answer(True)", "Yes"), Binding("n,escape,q", "answer(False)", "No", key_display="n")]
    CSS = """
    Confirm { align: center middle; }
    Confirm > Static { width: auto; max-width: 90%; border: round $foreground; padding: 1 2; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(f"{self._question}\n\ny  yes      n  no", markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

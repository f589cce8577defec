"""Screens that are read and left: details, help, report; the list of campaigns; a yes-or-no question."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from rsi_tui.app.actions import PAGER, REPORT, bindings
from rsi_tui.audit.pages import Page
from rsi_tui.audit.words import clean
from rsi_tui.errors import RsiError

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
    """The report, laid out from its Markdown, and its way into a file."""

    BINDINGS: ClassVar = bindings(REPORT)
    CSS = "ReportPager VerticalScroll { padding: 0 1; }"

    def __init__(self, markdown: str, default: str, write: Callable[[str], str]) -> None:
        """`write` takes the path that a person gave, writes there, and returns what to say of it; it may raise RsiError."""
        super().__init__(Text())
        self._markdown, self._default, self._write = markdown, default, write

    def action_export(self) -> None:
        question = "Write the report to which file? Its ending says how: .md, .html or .json"
        self.app.push_screen(Ask(question, self._default), self._export)

    def _export(self, path: str | None) -> None:
        if not path:
            return
        try:
            said = self._write(path)
        except RsiError as error:
            said = str(error)
        self.app.push_screen(Pager(Text(said)))

    def action_copy(self) -> None:
        """Into the clipboard of the person's own terminal, through tmux as well."""
        self.app.copy_to_clipboard(self._markdown)
        self.app.push_screen(Pager(Text("The report, as Markdown, was given to the terminal's clipboard (OSC 52); not every terminal takes it. e writes it to a file.")))

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


class Ask(ModalScreen[str | None]):
    """A question that is answered in a line; esc leaves it unanswered."""

    BINDINGS: ClassVar = [Binding("escape", "leave", "Back", key_display="esc")]
    CSS = """
    Ask { align: center middle; }
    Ask > Vertical { width: 90%; max-width: 100; height: auto; border: round $foreground; padding: 0 2; background: $surface; }
    Ask Input { border: none; padding: 0; height: 1; margin: 1 0; }
    """

    def __init__(self, question: str, answer: str = "") -> None:
        super().__init__()
        self._question, self._answer = question, answer

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Input(self._answer, compact=True)
            yield Static("enter  do it      esc  leave it", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        self.dismiss(None)


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

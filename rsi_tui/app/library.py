"""The library screen: a question in one's own words, the hits with their reasons, and more like one of them.

Asking goes to the home's server in a thread of its own: the screen never waits, and an answer to an older question is
dropped.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from rsi_tui.app.actions import LIBRARY, bindings
from rsi_tui.app.browse import RowList
from rsi_tui.app.pager import Pager
from rsi_tui.app.rows import BAD, GOOD, Row
from rsi_tui.audit import library_page, words
from rsi_tui.errors import RsiError
from rsi_tui.locations import Home

HELP = """\
What to type: a symptom, an idea in your words, a flag, an error line.

  out of memory in attention
  kind:failure CUBLAS_WORKSPACE_CONFIG
  kind:knowledge optimizer states in host memory
"""
LIMIT = 40
"""hits of one answer"""


class LibraryScreen(Screen[None]):
    """Hybrid search over everything that was tried and what is known."""

    BINDINGS: ClassVar = bindings(LIBRARY)
    CSS = """
    LibraryScreen Input { height: 1; border: none; padding: 0 1; background: transparent; text-style: bold; }
    LibraryScreen #said { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    LibraryScreen RowList { height: 1fr; padding: 0 1; }
    LibraryScreen #why { height: 3; padding: 0 1; border-top: solid $foreground 40%; }
    """

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self._hits: list[dict[str, Any]] = []
        self._asked = ""

    def compose(self) -> ComposeResult:
        yield Input(placeholder="search the library", compact=True)
        yield Static(HELP.splitlines()[0], id="said", markup=False)
        yield RowList()
        yield Static("", id="why", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    # --- asking

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._ask(event.value)

    def _ask(self, text: str) -> None:
        kinds = [word.removeprefix("kind:") for word in text.split() if word.startswith("kind:")]
        question = " ".join(word for word in text.split() if not word.startswith("kind:"))
        if not question:
            return
        self._asked = text
        self.query_one("#said", Static).update("asking the library ...")
        self.run_worker(lambda: self._answer(text, question, kinds), thread=True, exclusive=True, group="library")

    def _answer(self, text: str, question: str, kinds: list[str]) -> None:
        """In a thread: ask, then hand the answer to the screen."""
        try:
            hits, said = library_page.search_data(self._home, question, kinds, limit=LIMIT, light=True)["hits"], ""
        except RsiError as error:
            hits, said = [], str(error)
        self.app.call_from_thread(self._show, text, hits, said)

    def _show(self, text: str, hits: list[dict[str, Any]], said: str) -> None:
        if text != self._asked or not self.is_mounted:
            return
        self._hits = hits
        self.query_one(RowList).show([_row(number, hit) for number, hit in enumerate(hits)])
        self.query_one("#said", Static).update(said or (f"{len(hits)} found" if hits else "nothing like it was found"))
        if hits:
            self.query_one(RowList).focus()
        self._show_why()

    @property
    def _hit(self) -> dict[str, Any] | None:
        row = self.query_one(RowList).selected
        return self._hits[int(row.id)] if row is not None else None

    def _show_why(self) -> None:
        hit = self._hit
        self.query_one("#why", Static).update(f"why: {hit['why']}" if hit is not None else "")

    # --- keys

    def on_row_list_chosen(self, event: RowList.Chosen) -> None:
        event.stop()
        self._open()

    def action_ask(self) -> None:
        self._open()

    def _open(self) -> None:
        if (hit := self._hit) is not None:
            self.app.push_screen(Pager(_page(hit)))

    def action_alike(self) -> None:
        if (hit := self._hit) is not None:
            entry = self.query_one(Input)
            entry.value = words.one_line(hit["text"], 300).removesuffix("…")
            self._ask(entry.value)

    def action_again(self) -> None:
        self.query_one(Input).focus()

    def action_back(self) -> None:
        if self.query_one(RowList).has_focus:
            self.query_one(Input).focus()
        else:
            self.dismiss()

    def action_move(self, where: str) -> None:
        rows = self.query_one(RowList)
        if not rows.has_focus and self._hits:
            rows.focus()
        rows.move(1 if where == "down" else -1)
        self._show_why()


def _row(number: int, hit: dict[str, Any]) -> Row:
    style = GOOD if hit["outcome"] in ("adopted", "leaner") else BAD if hit["kind"] == "failure" else ""
    first = next((line for line in words.clean(hit["text"]).splitlines() if line.strip()), "")
    return Row(
        "library", str(number), (f"{hit['score']:.2f}", hit["kind"], hit["outcome"].replace("_", " "), hit["workload"] or hit["source"], words.one_line(first)), style
    )


def _page(hit: dict[str, Any]) -> Text:
    text = Text()
    text.append(hit["id"], "bold")
    about = {name: hit[name] for name in ("kind", "outcome", "workload", "layer", "hardware", "software", "at", "source", "why") if hit[name]}
    for name, value in about.items():
        text.append(f"\n  {name:<9} {words.one_line(str(value))}")
    text.append("\n\n")
    text.append(words.clean(hit["text"]))
    return text

"""The first screen: where a campaign stands, its two loops, the running trial, what was kept and what not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Log, Static, Tree

from rsi_tui.app.actions import LIVE, bindings
from rsi_tui.app.pager import move
from rsi_tui.app.tree import LoopTree, at_work
from rsi_tui.audit import pages, proof, words
from rsi_tui.audit.reading import engine_words, running_words
from rsi_tui.journal.speaking import LiveCall
from rsi_tui.journal.view import CampaignView, CandidateView

W = TypeVar("W", bound=Widget)

HOW_TO_START = """\
No campaign here yet.

  rsi doctor          what this machine can do
  rsi run WORKLOAD    start one; WORKLOAD is a folder
                      with a workload.toml

It appears here as soon as it runs. q leaves, ? helps.
"""


class Line(Static):
    """Text that is painted only when it changes."""

    def __init__(self, id: str) -> None:
        super().__init__("", id=id, markup=False)
        self._shown: Text | None = None

    def show(self, text: Text) -> None:
        """Show a text; the same again costs nothing."""
        if self._shown is None or self._shown.markup != text.markup:
            self._shown = text
            self.update(text)


class LiveScreen(Screen[None]):
    """Everything at a glance. It is given what to show and asks for nothing."""

    BINDINGS: ClassVar = bindings(LIVE)
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012  Textual declares it per instance
    CSS = """
    LiveScreen .line { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    LiveScreen #body { height: 1fr; layout: grid; grid-size: 2 3; grid-columns: 1fr 1fr; grid-rows: 1fr 5 6; }
    LiveScreen .panel { border-top: solid $foreground 40%; border-title-style: bold; height: 100%; padding: 0; }
    LiveScreen .panel:focus { border-top: heavy $foreground; }
    LiveScreen #loops, LiveScreen #log { column-span: 2; background: transparent; }
    LiveScreen VerticalScroll, LiveScreen Log, LiveScreen LoopTree { scrollbar-size: 1 1; background: transparent; }
    LiveScreen LoopTree { overflow-x: hidden; }
    LiveScreen VerticalScroll Line { padding: 0 1; height: auto; }
    LiveScreen #mind { display: none; }
    LiveScreen.-speaking #mind { display: block; }
    LiveScreen #start { display: none; height: 1fr; padding: 1 2; }
    LiveScreen.-empty #start { display: block; }
    LiveScreen.-empty #body { display: none; }
    LiveScreen.-silent #log { display: none; }
    LiveScreen.-silent #body { grid-size: 2 2; grid-rows: 1fr 8; }
    LiveScreen.-wide #body { grid-size: 2 3; grid-columns: 3fr 2fr; grid-rows: 1fr 1fr 2fr; }
    LiveScreen.-wide #loops { column-span: 1; row-span: 3; }
    LiveScreen.-wide #log { column-span: 1; }
    LiveScreen.-wide.-silent #body { grid-size: 2 2; grid-rows: 1fr 1fr; }
    LiveScreen.-wide.-silent #loops { row-span: 2; }
    """

    def __init__(self, log_lines: int) -> None:
        super().__init__()
        self._log_lines = log_lines
        self._view = CampaignView()
        self._engine: int | None = None

    def compose(self) -> ComposeResult:
        for name in ("facts", "cost", "now", "mind"):
            line = Line(name)
            line.add_class("line")
            yield line
        yield Static(HOW_TO_START, id="start", markup=False)
        with Container(id="body"):
            yield _titled(LoopTree("loops"), "Directions and rounds")
            with _titled(VerticalScroll(id="kept-panel"), "Adopted"):
                yield Line("kept")
            with _titled(VerticalScroll(id="refused-panel"), "Failed and refused"):
                yield Line("refused")
            yield _titled(Log(id="log", max_lines=self._log_lines), "Run")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(LoopTree).focus()

    def on_resize(self) -> None:
        self._show_head()

    @property
    def ready(self) -> bool:
        """Whether its parts are there: after it was mounted, until it is taken down."""
        return bool(self.query(Log)) and self.is_running

    # --- what the app gives ----------------------------------------------------------------------

    def begin(self) -> None:
        """Make room for another campaign."""
        self.query_one(LoopTree).start_over()
        self.query_one(Log).clear()

    def show(self, view: CampaignView, engine: int | None) -> None:
        """Bring everything up to a view."""
        self._view, self._engine = view, engine
        self.set_class(view.created is None, "-empty")
        self._show_log_panel()
        self._show_head()
        if view.created is None:
            return
        self.query_one(LoopTree).show(view)
        self.query_one("#kept", Line).show(kept(view))
        self.query_one("#refused", Line).show(turned_down(view))
        log = self.query_one(Log)
        title = next((running_words(view, name) for name in view.running), "no run at the moment") if engine else "Last output; no run now"
        if log.border_title != title:
            log.border_title = title

    def show_log(self, anew: bool, lines: list[str]) -> None:
        """Add lines of the running trial."""
        log = self.query_one(Log)
        if anew:
            log.clear()
        if lines:
            log.write_lines(lines, scroll_end=log.is_vertical_scroll_end)
            self._show_log_panel()

    def show_mind(self, calls: Iterable[LiveCall]) -> None:
        """What the models at work say, in one line: of several calls, how each stands; none takes no room."""
        lines = [call.words() for call in calls] if self._engine is not None else []
        self.set_class(bool(lines), "-speaking")
        each = max(20, (self.size.width - 2) // max(1, len(lines)) - 3)
        self.query_one("#mind", Line).show(Text(" | ".join(_end_of(words.clean(line), each) for line in lines), "italic"))

    def _show_log_panel(self) -> None:
        """The log takes no room when nothing runs and nothing is left to read."""
        empty = self._engine is None and self.query_one(Log).line_count == 0
        self.set_class(self._view.over or empty, "-silent")

    def say(self, text: str) -> None:
        """Put a message where the present state is shown, until the next change."""
        self.query_one("#now", Line).show(Text(words.one_line(text), "bold"))

    def _show_head(self) -> None:
        width = self.size.width - 2
        for name, text in zip(("facts", "cost", "now"), head(self._view, self._engine, width), strict=True):
            self.query_one(f"#{name}", Line).show(text)

    @property
    def selected(self) -> str:
        """The id under the tree's cursor; '' when there is none."""
        node = self.query_one(LoopTree).cursor_node
        return node.data or "" if node is not None else ""

    # --- keys that only this screen knows -----------------------------------------------------------

    def action_move(self, where: str) -> None:
        focused = self.focused
        if isinstance(focused, VerticalScroll | Log):
            move(focused, where)
            return
        tree = self.query_one(LoopTree)
        {"down": tree.action_cursor_down, "up": tree.action_cursor_up, "home": tree.action_scroll_home, "end": tree.action_scroll_end}[where]()

    def action_fold(self, close: bool) -> None:
        node = self.query_one(LoopTree).cursor_node
        if node is None:
            return
        if not close:
            node.expand()
        elif node.is_expanded and node.allow_expand:
            node.collapse()
        elif node.parent is not None and not node.parent.is_root:
            self.query_one(LoopTree).move_cursor(node.parent)

    def on_tree_node_selected(self, event: Tree.NodeSelected[str]) -> None:
        event.stop()
        self.app.call_later(self.app.run_action, "detail")


def _end_of(line: str, most: int) -> str:
    """Who speaks, and the newest of what is said."""
    who, colon, said = line.partition(": ")
    room = most - len(who) - 2
    return line if len(said) <= room or not colon else f"{who}: …{said[-max(1, room - 1):]}"


def _titled(widget: W, title: str) -> W:
    widget.add_class("panel")
    widget.border_title = title
    return widget


def head(view: CampaignView, engine: int | None, width: int) -> tuple[Text, Text, Text]:
    """The three lines at the top: facts, cost and noise, who is at work."""
    if view.created is None:
        return Text("rsi"), Text(""), Text("")
    label = f"{words.one_line(view.workload, 24)}  {words.one_line(view.state_words, 30)}  trust {view.trust}  "
    facts = Text(label)
    speedup, estimate = view.proven_speedup(), view.estimated_speedup()
    if speedup is None and estimate is not None:
        about = words.about(estimate).removesuffix(" faster")
        short = (f"adopted, {about}, {'not claimed' if view.over else 'not yet claimed'}", f"{about}, unclaimed")
        facts.append(next((f for f in short if len(label) + len(f) <= width), short[-1]), "green")
    elif speedup is None:
        facts.append("nothing proven" + ("" if view.over else " yet"))
    else:
        forms = (words.interval(speedup), words.short_interval(speedup), f"{words.times(speedup.estimate)} ({speedup.low:.2f}-{speedup.high:.2f})")
        facts.append(next((f for f in forms if len(label) + len(f) <= width), forms[-1]), "green")
    noise = pages.noise_words(view)
    cost = pages.cost_words(view)
    second = f"{cost}; {noise}" if noise and len(cost) + len(noise) + 2 <= width else cost
    return facts, Text(second), Text(words.one_line(now_words(view, engine)))


def now_words(view: CampaignView, engine: int | None) -> str:
    """Who is at work, or how to go on."""
    if view.over:
        return f"{view.state}: {view.state_reason}" if view.state_reason else f"{view.state}, {view.last_at[:16].replace('T', ' ')} UTC"
    if engine is None:
        return engine_words(view, engine)
    return "paused; p resumes" if view.paused else at_work(view)


def kept(view: CampaignView) -> Text:
    """What was adopted, newest first; what is promising below it."""
    text = Text()
    for known in reversed(view.adopted()):
        text.append(f"+ {pages.candidate_line(view, known)}\n", "green")
        measured = any(view.attribution_of(member) is not None and view.left_out for member in known.facts.members)
        if known.is_bundle:
            text.append(f"  its parts{', by leave-one-out' if measured else ' in screening, unproven alone'}:\n", "dim")
        for member in known.facts.members:
            if member in view.candidates:
                text.append(f"  {words.one_line(_member_words(view, view.candidates[member]))}\n", "dim")
    if not text.plain:
        promising = [c for c in view.candidates.values() if c.screen is not None and c.screen.promoted and c.verdict is None]
        text.append("nothing yet\n" if not view.over else "nothing\n")
        for known in promising:
            text.append(f"~ {pages.candidate_line(view, known)}\n", "dim")
    text.rstrip()
    return text


def _member_words(view: CampaignView, known: CandidateView) -> str:
    """'c1 sdpa: -16.4 %'."""
    seen = proof.member_words(view, known)
    short = seen.removeprefix("leave-one-out: ").removesuffix(" in screening, unproven alone")
    return f"{known.id} {words.contents(*view.own_change(known.id))}{': ' + short if short else ''}"


def turned_down(view: CampaignView) -> Text:
    """What failed or was refused, newest first."""
    lines = [words.one_line(f"{c.id} {pages.change_words(view, c)}: {pages.brief_words(view, c)}") for c in view.turned_down()]
    lines += [words.one_line(f"{r.hypothesis} {r.kind.replace('_', ' ')}: {r.reason}") for k in view.rounds.values() for r in k.refusals]
    return Text("\n".join(f"x {line}" for line in reversed(lines)) or "nothing")

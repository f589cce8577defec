"""Every key of the app, once: the source of bindings, footer, help, palette, and of what `[app.keys]` may change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from textual.binding import Binding, BindingType

from rsi_tui.errors import UsageError


@dataclass(frozen=True)
class Action:
    """One thing a key does."""

    id: str
    """name of the `action_` method; with `app.` one of the app's"""
    keys: str
    """comma-separated, in Textual's names"""
    shown: str
    """the keys as a person reads them"""
    label: str
    """a word for the footer; '' keeps it out"""
    help: str
    """one line for the help screen"""

    @property
    def name(self) -> str:
        """What the home's config.toml calls it: 'pause', 'move_down'."""
        return re.sub(r"\W+", "_", self.id.removeprefix("app.")).strip("_").lower()


PALETTE = Action("app.command_palette", "colon,ctrl+p", ":, ctrl+p", "", "every command by its words")

LIVE: tuple[Action, ...] = (
    Action("app.detail", "enter", "enter", "Detail", "everything about the line under the cursor"),
    Action("app.detach", "q", "q", "Leave", "leave; the engine runs on"),
    Action("app.help", "question_mark", "?", "Help", "this list"),
    PALETTE,
    Action("app.notebook", "2", "2", "Notebook", "all hypotheses and what became of them, over all campaigns"),
    Action("app.failures", "3", "3", "Failed", "what failed or was refused, by cause"),
    Action("app.library", "4", "4", "", "search everything that was ever tried, and what is known"),
    Action("app.map", "5", "5", "", "plots: best so far, time against memory, lineage, the machine's noise"),
    Action("app.workload", "6", "6", "", "program, contract, invariants with their limits, profile"),
    Action("app.report", "r,7", "r, 7", "Report", "preview of the audit report, and its export"),
    Action("app.choose", "c", "c", "Choose", "choose another campaign"),
    Action("app.pause", "p", "p", "Pause", "pause after the run at hand, or resume"),
    Action("app.stop", "s", "s", "Stop", "end the campaign after the run at hand; asks first"),
    Action("app.propose", "o", "o", "", "put an idea to the Director, in your own words"),
    Action("app.pin", "i", "i", "", "let the next directions start from the candidate under the cursor; again to let go"),
    Action("app.budget", "b", "b", "", "another budget of candidates or hours"),
    Action("app.approve", "a", "a", "", "approve what waits for approval"),
    Action("app.veto", "v", "v", "", "take the adoption under the cursor back; asks why"),
    Action("app.note", "n", "n", "", "write a note into the record"),
    Action("move('down')", "j", "j, down", "", "one line down"),
    Action("move('up')", "k", "k, up", "", "one line up"),
    Action("fold(False)", "l,right", "l, right", "", "open a direction"),
    Action("fold(True)", "h,left", "h, left", "", "close a direction, or go to it"),
    Action("move('home')", "g", "g, home", "", "to the first line"),
    Action("move('end')", "G", "G, end", "", "to the last line"),
)
"""the first screen; tab goes from panel to panel"""

BROWSE: tuple[Action, ...] = (
    Action("app.browse_detail", "enter", "enter", "Detail", "everything about the line under the cursor"),
    Action("app.browse_why", "w", "w", "Why", "from what was retrieved to the verdict"),
    Action("app.browse_output", "o", "o", "Output", "the whole output of a run that failed"),
    Action("filter", "slash", "/", "Filter", "narrow the list while you type: words, status:adopted, layer:memory"),
    Action("scope", "a", "a", "Scope", "all campaigns, or the one that is watched"),
    Action("back", "escape,q,1", "esc, q, 1", "Back", "out of the filter, then back to the first screen"),
    Action("app.help", "question_mark", "?", "Help", "this list"),
    Action("app.notebook", "2", "2", "", "hypotheses"),
    Action("app.failures", "3", "3", "", "failures"),
    Action("app.library", "4", "4", "", "search everything"),
    Action("app.map", "5", "5", "", "plots"),
    PALETTE,
    Action("move('down')", "j,down", "j, down", "", "one line down"),
    Action("move('up')", "k,up", "k, up", "", "one line up"),
    Action("move('pagedown')", "pagedown,ctrl+f,space", "pgdn, ctrl+f", "", "a page down"),
    Action("move('pageup')", "pageup,ctrl+b", "pgup, ctrl+b", "", "a page up"),
    Action("move('home')", "g,home", "g, home", "", "to the first line"),
    Action("move('end')", "G,end", "G, end", "", "to the last line"),
)
"""lists of hypotheses and failures"""

PAGER: tuple[Action, ...] = (
    Action("back", "escape,q,1", "esc, q, 1", "Back", "back to the first screen"),
    Action("app.help", "question_mark", "?", "", "this list"),
    PALETTE,
    Action("move('down')", "j", "j, down", "", "scroll down"),
    Action("move('up')", "k", "k, up", "", "scroll up"),
    Action("move('home')", "g", "g, home", "", "to the beginning"),
    Action("move('end')", "G", "G, end", "", "to the end"),
)
"""screens that are read and left"""

REPORT: tuple[Action, ...] = (
    Action("export", "e", "e", "Export", "write the report to a file: Markdown, HTML or JSON"),
    Action("copy", "y", "y", "Copy", "give the report to the terminal's clipboard (OSC 52)"),
    *PAGER,
)
"""the report's preview"""

LIBRARY: tuple[Action, ...] = (
    Action("ask", "enter", "enter", "Search, open", "search for what was typed; in the list: everything about the line"),
    Action("alike", "m", "m", "Alike", "more like the line under the cursor"),
    Action("again", "slash", "/", "Ask", "to the question"),
    Action("back", "escape", "esc", "Back", "to the question, then back to the first screen"),
    Action("move('down')", "down", "down", "", "one line down"),
    Action("move('up')", "up", "up", "", "one line up"),
)
"""search over everything that was tried"""

ACTIONS: dict[str, tuple[Action, ...]] = {"First screen": LIVE, "Notebook, failures": BROWSE, "Library": LIBRARY, "Report": REPORT, "Details, help, map": PAGER}
"""all of them, by place, for the help screen"""


def bindings(actions: tuple[Action, ...]) -> list[BindingType]:
    """Textual's bindings for some actions, in footer order."""
    return [Binding(a.keys, a.id, a.label, show=bool(a.label), key_display=a.shown.split(",")[0], id=a.name) for a in actions]


def checked_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """`[app.keys]` of the config, action -> comma-separated keys, as Textual's keymap.

    Raises UsageError for an action that there is not, and for two of one place that want the same key.
    """
    known = {action.name for actions in ACTIONS.values() for action in actions}
    for name in keys:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise UsageError(f"[app.keys] there is no action '{name}'; the nearest is '{near}', and `?` in the app lists all.")
    for place, actions in ACTIONS.items():
        taken: dict[str, str] = {}
        for action in remapped(actions, keys):
            for key in action.keys.split(","):
                if (other := taken.setdefault(key.strip(), action.name)) != action.name:
                    raise UsageError(f"[app.keys] {place}: '{key.strip()}' is the key of {other} and of {action.name}; give one of them another.")
    return dict(keys)


def remapped(actions: tuple[Action, ...], keys: Mapping[str, str]) -> tuple[Action, ...]:
    """The actions with the keys that a person chose."""
    return tuple(replace(a, keys=keys[a.name], shown=", ".join(k.strip() for k in keys[a.name].split(","))) if a.name in keys else a for a in actions)


def help_lines(keys: Mapping[str, str]) -> list[str]:
    """The help screen's text; `keys` as in `checked_keys`."""
    lines: list[str] = []
    for place, actions in ACTIONS.items():
        lines += [place, *(f"  {a.shown:<12} {a.help}" for a in remapped(actions, keys)), ""]
    return [*lines, "Other keys: [app.keys] in config.toml, like  pause = \"P\"  or  move_down = \"n,down\"."]

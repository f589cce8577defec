"""The two loops as a tree: directions with their rounds, the baseline before and the bundles after them.

Nodes keep their place and fold; only labels that changed are set, so that a quiet campaign paints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from rsi_tui.audit import pages, words
from rsi_tui.journal.view import CampaignView, CandidateView, DirectionView, RoundView, is_turned_down

Entry = tuple[str, str, Text, bool]
"""key, key of the parent ('' = top), label, whether it holds others"""

_GOOD, _BAD, _BUSY = "bold green", "red", "yellow"


class LoopTree(Tree[str]):
    """Directions and rounds; a node's data is the id that a detail can be asked for."""

    BINDINGS: ClassVar = [Binding("enter", "select_cursor", "Detail", key_display="enter")]
    DEFAULT_CSS = "LoopTree { background: transparent; padding: 0; }"

    def __init__(self, id: str) -> None:
        super().__init__("campaign", id=id)
        self.show_root = False
        self.show_guides = True
        self.guide_depth = 2
        self.auto_expand = False
        self._known: dict[str, TreeNode[str]] = {}

    def show(self, view: CampaignView) -> None:
        """Bring the tree up to a view."""
        for key, parent, label, holds in entries(view):
            node = self._known.get(key)
            if node is None:
                above = self._known.get(parent, self.root)
                self._known[key] = above.add(label, data=key, expand=True, allow_expand=holds)
            elif str(node.label) != label.plain or node.label != label:
                node.set_label(label)

    def start_over(self) -> None:
        """Forget all nodes, for another campaign."""
        self.clear()
        self._known.clear()
        self.root.expand()


def entries(view: CampaignView) -> Iterator[Entry]:
    """The tree's lines from top to bottom."""
    if view.created is not None:
        yield view.id, "", Text(baseline_words(view)), False
    for direction in view.directions.values():
        yield direction.facts.id, "", _direction(direction), True
        for name in direction.rounds:
            yield name, direction.facts.id, _round(view, view.rounds[name]), False
    for name, round_ in view.rounds.items():
        if not round_.hypothesis.direction:  # a person's own change
            yield name, "", _round(view, round_), False
    for bundle in view.bundles:
        yield bundle.id, "", _bundle(view, bundle), False


def baseline_words(view: CampaignView) -> str:
    """What is known of the program as it is."""
    if view.profile is None and view.is_evaluation and (view.noise or view.over):
        return f"baseline: {pages.noise_words(view) or 'not needed'}"
    if view.profile is None:
        return "baseline: running the program as it is"
    phases = sorted(view.profile.phases, key=lambda p: -p.share)[:3]
    shares = ", ".join(f"{p.name} {p.share * 100:.0f} %" for p in phases)
    return f"baseline: {words.step_time(view.profile.step_s)} a step ({shares})"


def at_work(view: CampaignView) -> str:
    """Which role is at work, in a few words; '' when the campaign is over or nobody can tell."""
    if view.over:
        return ""
    if view.state in ("contracted", "baselined") and not (view.is_evaluation and view.noise):
        return "measuring the baseline" if view.profile is None else "measuring noise"
    if view.state == "claiming":
        return "evaluator claims on fresh pairs"
    if view.open_block is not None:
        return f"evaluator {({'verify': 'verifies', 'screen': 'screens'}).get(view.open_block.purpose, 'runs')} {', '.join(view.open_block.candidates)}"
    last = list(view.rounds.values())[-1:]
    for known in last:
        if known.candidate == "" and not known.refusals:
            return f"executor writes the change for {known.hypothesis.id}"
        candidate = view.candidates.get(known.candidate)
        if candidate is not None and candidate.review is None:
            return f"reviewer reads {candidate.id}"
    if view.search_ended:
        return "joining what looked promising"
    if view.is_evaluation:
        return "evaluator decides"
    unclosed = [d for d in view.directions.values() if not d.closed]
    return f"selector works on {unclosed[-1].facts.id}" if unclosed else "director chooses what to investigate"


def _direction(known: DirectionView) -> Text:
    label = Text()
    label.append(f"{known.facts.id} ", "bold")
    label.append(f"{known.facts.layer}: ", "dim" if known.closed else "")
    label.append(words.one_line(known.facts.question), "dim" if known.closed else "")
    label.append(f" [{'closed' if known.closed else f'{len(known.rounds)} of {known.facts.budget}'}]", "dim")
    return label


def _round(view: CampaignView, known: RoundView) -> Text:
    mark, style = _mark(view, known)
    label = Text()
    candidate = view.candidates.get(known.candidate)
    label.append(f"{mark} {known.candidate or known.hypothesis.id} ", style)
    if candidate is None:
        label.append(words.one_line(pages.round_words(view, known), 70), style)
        label.append(f"  {words.one_line(known.hypothesis.statement)}", "dim")
        return label
    decided = candidate.verdict is not None or candidate.screen is not None
    label.append(words.one_line(pages.brief_words(view, candidate) if decided else pages.round_words(view, known), 70), style)
    label.append(f"  {words.one_line(pages.change_words(view, candidate))}")
    return label


def _mark(view: CampaignView, known: RoundView) -> tuple[str, str]:
    """A sign beside the colour: + adopted, x turned down, > at work, ~ promising, else a dot."""
    candidate = view.candidates.get(known.candidate)
    if candidate is None:
        return ("x", _BAD) if known.refusals else (">", _BUSY)
    if candidate.standing in ("adopted", "leaner"):
        return "+", _GOOD
    if is_turned_down(candidate):
        return "x", _BAD
    if candidate.screen is not None:
        return "~", "green"
    return ("-", "dim") if view.over else (">", _BUSY)


def _bundle(view: CampaignView, known: CandidateView) -> Text:
    proven = known.is_adopted
    style = _GOOD if proven else _BAD if is_turned_down(known) else _BUSY
    mark = "+" if proven else "x" if is_turned_down(known) else ">"
    label = Text()
    label.append(f"{mark} {known.id} ", style)
    label.append(words.one_line(pages.outcome_words(view, known)), style)
    label.append(f"  bundle of {', '.join(known.facts.members)}")
    return label

"""Scripts for the local Messages API: a campaign by role, each answer a plain value or a function of what was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.messages_api import Asked, Status, Text, Tool, Turn

Answer = Turn | Status | Callable[[Asked], Turn | Status]


def tool(name: str, **given: object) -> Turn:
    """An answer that calls one tool."""
    return Turn((Tool(name, given),))


def direction(**more: object) -> Turn:
    """A free direction for new code."""
    return tool("open_direction", **{
        "question": "Can new code make the parameter update cheaper?", "layer": "optimizer", "start_kind": "original", "start": "original",
        "techniques": [], "reason": "The profile shows time outside forward and backward.", "expected_gain": 0.1, "budget": 1,
        "closing_rule": "closed when the change was measured", "evidence": [], "used": [], **more,
    })  # fmt: skip


def hypothesis(**more: object) -> Turn:
    return tool("write_hypothesis", **{
        "parent": "original", "statement": "Updating all parameters in one pass makes a step shorter, since fewer operators are launched.",
        "techniques": [], "knobs": [], "predicted_time": -0.1, "predicted_memory": 0.0, "refuted_by": "no effect in screening",
        "evidence": [], "used": [], **more,
    })  # fmt: skip


END = tool("end_search", reason="what is left promises less than the margin")
CLOSE = tool("close_direction", reason="its one idea was tried")
PASS = tool("review", on_direction=True, exploit="no", reason="It does the same update in one pass.", lines=[])
LESSON = tool("write_lesson", text="One pass over the parameters did the same update; see the figures of its candidate.")


def edits(*passages: tuple[str, str, str], knobs: Sequence[dict[str, object]] = ()) -> list[Answer]:
    """Turns of an Executor that looks, replaces passages (path, old, new), and submits."""
    paths = dict.fromkeys(path for path, _, _ in passages)
    return [
        Turn((Text("First the files."), Tool("list_files"), *(Tool("read_file", {"path": path}) for path in paths))),
        *(tool("edit_file", path=path, old=old, new=new) for path, old, new in passages),
        tool("submit", note="done as the hypothesis says", knobs=list(knobs)),
    ]


@dataclass
class Play:
    """Answers each role from a list of its own; the last one stays."""

    director: list[Answer] = field(default_factory=lambda: [direction(), END])
    selector: list[Answer] = field(default_factory=lambda: [hypothesis(), CLOSE])
    executor: list[Answer] = field(default_factory=list)
    reviewer: list[Answer] = field(default_factory=lambda: [PASS])
    scribe: list[Answer] = field(default_factory=lambda: [LESSON])
    before: Callable[[Asked], Turn | Status | None] = lambda asked: None
    """may answer in place of the role: a fault"""

    def __call__(self, asked: Asked) -> Turn | Status:
        if (first := self.before(asked)) is not None:
            return first
        left: list[Answer] = getattr(self, asked.role)
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer if isinstance(answer, Turn | Status) else answer(asked)

"""What each role may answer: strict schemas, sent as tools and enforced on what comes back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rsi_tui.contract.model import KnobValue, Layer


class Told(BaseModel):
    """Base: no unknown fields, no guessed types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Used(Told):
    record: str = Field(description="id of a library entry that was shown")
    changed: str = Field(description="what it changed in this answer, one short sentence", max_length=300)


class OpenDirection(Told):
    """Open a direction of research."""

    question: str = Field(description="the research question, one sentence", min_length=10, max_length=400)
    layer: Layer
    start_kind: Literal["original", "best", "intermediate"]
    start: str = Field(description="id of the candidate to start from; 'original' for the unchanged program")
    techniques: list[str] = Field(description="ids of known techniques that it may try, best first; empty for new code", max_length=20)
    reason: str = Field(description="why this, by shares of the profile and by evidence", min_length=10, max_length=1500)
    expected_gain: float = Field(description="predicted reduction of the step time, as a fraction", ge=0, le=0.95)
    budget: int = Field(description="candidates that it may try", ge=1, le=20)
    closing_rule: str = Field(description="when it is to be closed", min_length=5, max_length=400)
    evidence: list[str] = Field(description="ids of library entries and names of phases that speak for it", max_length=20)
    used: list[Used] = Field(description="library entries that changed this decision", max_length=20)
    proposal: str = Field(default="", description="id of the person's idea that this direction tries; '' for none", max_length=20)


class End(Told):
    """End the search: no direction is worth its cost."""

    reason: str = Field(min_length=5, max_length=600)


class Knob(Told):
    name: str
    value: KnobValue


class Hypothesis(Told):
    """Write the hypothesis of this round."""

    parent: str = Field(description="id of the candidate of the archive to build on")
    statement: str = Field(description="what is changed, where, and why that saves time or memory; one sentence", min_length=15, max_length=1200)
    techniques: list[str] = Field(description="ids of known techniques to apply; empty where new code is to be written", max_length=6)
    knobs: list[Knob] = Field(description="settings to change", max_length=10)
    predicted_time: float = Field(description="natural log of new over old step time; negative is faster", ge=-3, le=1)
    predicted_memory: float = Field(description="natural log of new over old peak memory", ge=-3, le=3)
    refuted_by: str = Field(description="the measurement that would refute it", min_length=5, max_length=400)
    evidence: list[str] = Field(max_length=20)
    used: list[Used] = Field(max_length=20)


class Close(Told):
    """Close the direction: it holds no further hypothesis worth a round."""

    reason: str = Field(min_length=5, max_length=600)


class Review(Told):
    """The review of the change."""

    on_direction: bool = Field(description="does it do what the hypothesis says, and only that?")
    exploit: Literal["no", "yes"] = Field(description="does it get a better time other than by doing the same work faster?")
    reason: str = Field(description="one or two sentences", min_length=5, max_length=800)
    lines: list[str] = Field(description="lines of the diff that decide, as they stand there", max_length=12)


class Lesson(Told):
    """The lesson of the closed direction."""

    text: str = Field(description="one to three sentences", min_length=10, max_length=900)


class ListFiles(Told):
    """The program's files: path, lines, and whether it may be changed."""


class ReadFile(Told):
    """Lines of a file."""

    path: str
    first: int = Field(default=1, ge=1, description="first line")
    last: int | None = Field(default=None, ge=1, description="last line; null for 400 lines from the first")


class Search(Told):
    """Lines of all files that hold a text, in upper or lower case; no regular expression."""

    text: str = Field(min_length=1, max_length=300)


class EditFile(Told):
    """Replace one passage of an editable file. The old passage must stand there exactly once, to the character."""

    path: str
    old: str = Field(min_length=1)
    new: str


class CreateFile(Told):
    """Make a new file where editable paths allow one."""

    path: str
    text: str = Field(min_length=1)


class RunCommand(Told):
    """Run a shell command in the sandbox, on a throw-away copy of the program with your edits; returns exit code and output."""

    command: str = Field(min_length=1, max_length=4000)
    seconds: int = Field(default=60, ge=1, le=120, description="time limit")


class ProfileRun(Told):
    """Operators of a short run with your edits, by their own time. No evidence, a hint where to look."""

    steps: int = Field(default=3, ge=1, le=10)


class Submit(Told):
    """Submit the change: all edits so far, and settings."""

    note: str = Field(description="what was changed, one or two sentences", max_length=800)
    knobs: list[Knob] = Field(default_factory=list, max_length=10)
    rounds_otherwise: bool = Field(default=False, description="computes in a lower precision than the parent does")


class GiveUp(Told):
    """Give up: the hypothesis can't be carried out, or is wrong."""

    reason: str = Field(min_length=5, max_length=600)


ROLE_TOOLS: dict[str, dict[str, type[Told]]] = {
    "director": {"open_direction": OpenDirection, "end_search": End},
    "selector": {"write_hypothesis": Hypothesis, "close_direction": Close},
    "executor": {
        "list_files": ListFiles, "read_file": ReadFile, "search": Search, "edit_file": EditFile, "create_file": CreateFile,
        "run_command": RunCommand, "profile_run": ProfileRun, "submit": Submit, "give_up": GiveUp,
    },
    "reviewer": {"review": Review},
    "scribe": {"write_lesson": Lesson},
}  # fmt: skip


def tools_of(role: str) -> tuple[dict[str, Any], ...]:
    """The tools of a role as the API takes them."""
    return tuple(
        {"name": name, "description": (kind.__doc__ or name).strip(), "input_schema": _schema(kind)}
        for name, kind in ROLE_TOOLS[role].items()
    )


def read_answer(role: str, name: str, given: dict[str, Any] | None, raw: str = "") -> Told:
    """A tool's input as its schema; ValueError says in one sentence what is wrong with it."""
    kind = ROLE_TOOLS[role].get(name)
    if kind is None:
        raise ValueError(f"there is no tool {name!r}; the tools are {', '.join(ROLE_TOOLS[role])}")
    if given is None:
        raise ValueError(f"the input of {name} is no JSON object: {raw[:80]!r}")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[:4]
        raise ValueError(f"{name}: " + "; ".join(_says(p["loc"], p["msg"]) for p in found)) from None


def _says(place: Iterable[object], message: str) -> str:
    return f"{'.'.join(map(str, place)) or 'input'}: {message}"


def _schema(kind: type[Told]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    schema.pop("title", None)
    return schema
